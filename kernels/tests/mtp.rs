//! The multi-token prediction head against a float64 reference, and what it must never change.

mod support;

use serde_json::Value;
use support::*;
use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::device::{Device, DeviceResult};
use tensorfold_kernels::executor::{
    CHAIN_DRAFTS, Lane, NextDrafts, Observer, Options, Point, Step, StepOutcome, check_head, head_plan,
};
use tensorfold_plugin_api::model_spec::FeedForwardSpec;
use tensorfold_plugin_api::sampling::{Sampling, draw};

const TINY: [&str; 4] =
    ["tiny-qwen3_5", "tiny-qwen3_5-mlx-4bit", "tiny-qwen3_5_moe", "tiny-qwen3_5_moe-mlx-4bit"];

/// Against float64; see the notes beside the vectors.
const LOGITS: f32 = 5e-4;
const STATES: f32 = 1e-4;

/// Feeds a lane tokens, the last `drafts` of them drafts, and asks for `wanted` more.
fn round(
    executor: &mut Cpu<'_>,
    lane: &mut Lane<CpuDevice>,
    (tokens, drafts): (&[u32], usize),
    wanted: NextDrafts,
    sampling: Sampling,
    observer: Option<&mut dyn Observer<CpuDevice>>,
) -> StepOutcome {
    let step = Step { next_drafts: wanted, ..step(lane, tokens, drafts, drafts + 1, sampling) };
    let outcome = match observer {
        Some(observer) => executor.round_observed(&mut [step], observer),
        None => executor.round(&mut [step]),
    };
    outcome.unwrap().lanes.remove(0)
}

fn most(count: usize) -> NextDrafts {
    NextDrafts { count, ..NextDrafts::default() }
}

fn open<'w>(checkpoint: &'w Checkpoint) -> Cpu<'w> {
    let tensors = checkpoint.tensors();
    let mut executor = executor(checkpoint, &tensors, 2);
    executor.open_head(&tensors).unwrap();
    executor
}

/// What a head gives, row by row.
#[derive(Default)]
struct Outputs {
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

impl Observer<CpuDevice> for Outputs {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        match point {
            Point::HeadHidden => self.hidden.extend(device.read(rows, width, values)?),
            Point::HeadLogits => self.logits.extend(device.read(rows, width, values)?),
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn a_chain_gives_the_references_states_and_logits() {
    for name in TINY {
        let expected = json(&format!("goldens/expect/{name}.json"));
        let vectors = Vectors::open(&format!("goldens/expect/{name}.safetensors"));
        let limit = expected["tokenizer_limit"].as_u64().unwrap() as u32;
        let checkpoint = Checkpoint::open(&format!("goldens/{name}"), limit);
        let hidden = checkpoint.spec.hidden_size as usize;
        let mut executor = open(&checkpoint);
        let mut lane = executor.open_lane().unwrap();
        let mut outputs = Outputs::default();
        let prompt = ids(&expected["prompts"][1]["ids"]);
        // Three drafts, and a fourth, so that the third is fed to the head too.
        let got =
            round(&mut executor, &mut lane, (&prompt, 0), most(4), Sampling::GREEDY, Some(&mut outputs));
        assert_eq!(got.draws[0].token, Some(ids(&expected["prompts"][1]["greedy"])[0]));
        let drafts: Vec<u32> = got.drafts.iter().map(|draft| draft.0).collect();
        assert_eq!(drafts[..3], ids(&expected["mtp"]["p1_first_drafts"])[..3], "{name}");
        // The prompt's own rows were taken in before; what is seen is its last row, and the chain's.
        let wanted = vectors.f32("mtp.hidden");
        let worst = difference(&outputs.hidden[..hidden], &wanted[wanted.len() - hidden..]);
        assert!(worst <= STATES, "{name}: {worst:e}");
        let worst = difference(&outputs.hidden[hidden..4 * hidden], &vectors.f32("mtp.chain_hidden"));
        assert!(worst <= STATES, "{name}: {worst:e}");
        let wanted = vectors.f32("mtp.chain_logits");
        let worst = difference(&outputs.logits[..wanted.len()], &wanted);
        assert!(worst <= LOGITS, "{name}: {worst:e}");
    }
}

/// Decodes greedily with `count` drafts a round until there are `length` tokens; each round's drafts and how many were
/// accepted.
fn rounds(executor: &mut Cpu<'_>, prompt: &[u32], count: usize, length: usize) -> Vec<(Vec<u32>, usize)> {
    let mut lane = executor.open_lane().unwrap();
    let mut got = round(executor, &mut lane, (prompt, 0), most(count), Sampling::GREEDY, None);
    let mut produced = 1;
    let mut seen = Vec::new();
    while produced < length {
        let drafts: Vec<u32> = got.drafts.iter().map(|draft| draft.0).collect();
        let tokens = [&[got.draws.last().unwrap().token.unwrap()], &drafts[..]].concat();
        got = round(executor, &mut lane, (&tokens, drafts.len()), most(count), Sampling::GREEDY, None);
        produced += got.accepted + 1;
        seen.push((drafts, got.accepted));
    }
    executor.close_lane(lane);
    seen
}

#[test]
fn every_round_of_the_references_is_the_same() {
    for name in TINY {
        let expected = json(&format!("goldens/expect/{name}.json"));
        let limit = expected["tokenizer_limit"].as_u64().unwrap() as u32;
        let checkpoint = Checkpoint::open(&format!("goldens/{name}"), limit);
        let mut executor = open(&checkpoint);
        for case in expected["mtp"]["rounds"].as_array().unwrap() {
            let prompt = ids(&expected["prompts"][case["prompt"].as_u64().unwrap() as usize]["ids"]);
            let count = case["drafts_per_round"].as_u64().unwrap() as usize;
            let wanted: Vec<(Vec<u32>, usize)> = case["rounds"]
                .as_array()
                .unwrap()
                .iter()
                .map(|round| (ids(&round["drafts"]), round["accepted"].as_u64().unwrap() as usize))
                .collect();
            let got = rounds(&mut executor, &prompt, count, 64);
            // The references stop counting when they have their tokens.
            let shared = got.len().min(wanted.len());
            assert!(shared + 1 >= wanted.len(), "{name}");
            assert_eq!(got[..shared], wanted[..shared], "{name} {count}");
        }
    }
}

fn demo() -> (Checkpoint, Value) {
    (Checkpoint::open("models/demo", 8180), json("models/demo-goldens.json"))
}

/// The reply to a prompt, with up to `count` drafts a round as `plan` says round by round.
fn reply(
    executor: &mut Cpu<'_>,
    prompt: &[u32],
    length: usize,
    sampling: Sampling,
    plan: &dyn Fn(usize) -> NextDrafts,
) -> (Vec<u32>, usize) {
    let mut lane = executor.open_lane().unwrap();
    let mut got = round(executor, &mut lane, (prompt, 0), plan(0), sampling, None);
    let mut out = vec![got.draws[0].token.unwrap()];
    let mut accepted = 0;
    for index in 1.. {
        if out.len() >= length {
            break;
        }
        let drafts: Vec<u32> = got.drafts.iter().map(|draft| draft.0).collect();
        let tokens = [&out[out.len() - 1..], &drafts[..]].concat();
        got = round(executor, &mut lane, (&tokens, drafts.len()), plan(index), sampling, None);
        out.extend(got.draws.iter().map(|draw| draw.token.unwrap()));
        accepted += got.accepted;
    }
    executor.close_lane(lane);
    out.truncate(length);
    (out, accepted)
}

#[test]
fn drafts_change_no_token_of_a_trained_model_and_many_are_accepted() {
    let (checkpoint, goldens) = demo();
    let mut executor = open(&checkpoint);
    let noise = Sampling { temperature: 0.8, top_p: 0.95, seed: 11, ..Sampling::GREEDY };
    for prompt in goldens["prompts"].as_array().unwrap().iter().take(2) {
        let prompt = ids(&prompt["prompt_ids"]);
        for sampling in [Sampling::GREEDY, noise] {
            let (plain, _) = reply(&mut executor, &prompt, 32, sampling, &|_| most(0));
            for count in [3, CHAIN_DRAFTS] {
                let (drafted, accepted) = reply(&mut executor, &prompt, 32, sampling, &|_| most(count));
                assert_eq!(drafted, plain, "{count} drafts, {sampling:?}");
                assert!(accepted > 5, "{accepted} of 32 tokens were drafted");
            }
            // Depth, and whether there are drafts at all, may change from round to round; long pauses leave gaps.
            let plan = |round: usize| match round % 90 {
                0..8 => most(round % 4),
                8..80 => most(0),
                _ => NextDrafts { confidence: 0.5, ..most(5) },
            };
            let (mixed, _) = reply(&mut executor, &prompt, 110, sampling, &plan);
            let (plain, _) = reply(&mut executor, &prompt, 110, sampling, &|_| most(0));
            assert_eq!(mixed, plain);
        }
    }
}

#[test]
fn chains_are_drawn_with_the_noise_of_the_target() {
    // Where head and target agree, they then draw the same token.
    let (checkpoint, goldens) = demo();
    let mut executor = open(&checkpoint);
    let mut told_apart = 0;
    for seed in 0..4 {
        let sampling = Sampling { temperature: 1.5, seed, ..Sampling::GREEDY };
        let prompt = ids(&goldens["prompts"][0]["prompt_ids"]);
        let mut lane = executor.open_lane().unwrap();
        let mut seen = Outputs::default();
        let got = round(&mut executor, &mut lane, (&prompt, 0), most(5), sampling, Some(&mut seen));
        executor.close_lane(lane);
        // The prompt and the drawn token come before the first draft.
        let first = prompt.len() as u64 + 1;
        let rows = seen.logits.chunks(checkpoint.spec.vocabulary_rows as usize);
        assert_eq!((rows.len(), got.drafts.len()), (5, 5));
        for ((draft, logits), position) in got.drafts.iter().zip(rows).zip(first..) {
            assert_eq!(Some(draft.0), draw(logits, 8180, None, &sampling, position), "seed {seed}");
            told_apart += usize::from(Some(draft.0) != draw(logits, 8180, None, &sampling, position + 1));
        }
    }
    assert!(told_apart > 5, "other positions draw other tokens");
}

#[test]
fn a_chain_ends_before_what_is_unlikely() {
    let (checkpoint, goldens) = demo();
    let mut executor = open(&checkpoint);
    let prompt = ids(&goldens["prompts"][0]["prompt_ids"]);
    let mut with = |confidence: f32| {
        let mut lane = executor.open_lane().unwrap();
        let wanted = NextDrafts { confidence, ..most(7) };
        let got = round(&mut executor, &mut lane, (&prompt, 0), wanted, Sampling::GREEDY, None);
        executor.close_lane(lane);
        got.drafts
    };
    let all = with(0.0);
    assert_eq!(all.len(), 7);
    assert!(all.iter().all(|draft| draft.1 > 0.0 && draft.1 <= 1.0));
    assert_eq!(with(1.1), all[..1], "one draft is always made");
    let least = all[1..].iter().map(|draft| draft.1).fold(1.0, f32::min);
    let at = 1 + all[1..].iter().position(|draft| draft.1 == least).unwrap();
    assert_eq!(with(least * 1.0001), all[..at]);
    assert_eq!(with(least), all);
}

#[test]
fn forks_draft_as_their_origin_and_replaced_tokens_are_forgotten() {
    let (checkpoint, goldens) = demo();
    let mut executor = open(&checkpoint);
    let prompt = ids(&goldens["prompts"][1]["prompt_ids"]);
    let mut lane = executor.open_lane().unwrap();
    let first = round(&mut executor, &mut lane, (&prompt, 0), most(3), Sampling::GREEDY, None);
    let mut fork = executor.fork(&lane).unwrap();
    // What is fed is not what was drawn, and none of it was drafted.
    let other = [(first.draws[0].token.unwrap() + 1) % 8000];
    let replaced = round(&mut executor, &mut lane, (&other, 0), most(3), Sampling::GREEDY, None);
    let forked = round(&mut executor, &mut fork, (&other, 0), most(3), Sampling::GREEDY, None);
    assert_eq!(replaced, forked);
    // As if the lane had never drafted before.
    let mut fresh = executor.open_lane().unwrap();
    round(&mut executor, &mut fresh, (&prompt, 0), most(0), Sampling::GREEDY, None);
    let undrafted = round(&mut executor, &mut fresh, (&other, 0), most(3), Sampling::GREEDY, None);
    assert_eq!(undrafted, replaced);
    // In one chunk or several, alone or beside others.
    let mut split = executor.open_lane().unwrap();
    for chunk in prompt.chunks(64) {
        round(&mut executor, &mut split, (chunk, 0), most(0), Sampling::GREEDY, None);
    }
    let mut again = executor.fork(&fresh).unwrap();
    let mut steps = [
        Step { next_drafts: most(3), ..step(&mut split, &other, 0, 1, Sampling::GREEDY) },
        Step { next_drafts: most(2), ..step(&mut again, &[7], 0, 1, Sampling::GREEDY) },
    ];
    let beside = executor.round(&mut steps).unwrap();
    assert_eq!(beside.lanes[0], replaced);
    assert_eq!(beside.lanes[1].drafts.len(), 2);
}

#[test]
fn without_a_head_there_are_no_drafts_and_what_is_asked_too_much_is_refused() {
    let (checkpoint, goldens) = demo();
    let prompt = ids(&goldens["prompts"][0]["prompt_ids"]);
    let tensors = checkpoint.tensors();
    let mut plain = executor(&checkpoint, &tensors, 1);
    let mut lane = plain.open_lane().unwrap();
    let got = round(&mut plain, &mut lane, (&prompt, 0), most(3), Sampling::GREEDY, None);
    assert!(got.drafts.is_empty());
    let too_many =
        Step { next_drafts: most(CHAIN_DRAFTS + 1), ..step(&mut lane, &[1], 0, 1, Sampling::GREEDY) };
    assert!(plain.round(&mut [too_many]).unwrap_err().to_string().contains("32 drafts are wanted"));
    assert!(check_head(&checkpoint.spec, &tensors, CpuDevice::LIMITS).is_ok());
    let mut headless = checkpoint.spec.clone();
    headless.mtp = None;
    let refused = check_head(&headless, &tensors, CpuDevice::LIMITS).unwrap_err().to_string();
    assert_eq!(refused, "the model has no multi-token prediction head");
    let mut narrow = checkpoint.spec.clone();
    narrow.mtp.as_mut().unwrap().layers[0].feed_forward = FeedForwardSpec::Dense { intermediate_size: 760 };
    assert_eq!(
        check_head(&narrow, &tensors, CpuDevice::LIMITS).unwrap_err().to_string(),
        "layer 0 of the multi-token prediction head: the feed-forward size is 760; \
         this engine computes multiples of 16"
    );
    let mut missing = checkpoint.tensors();
    missing.remove("mtp.fc");
    let refused = check_head(&checkpoint.spec, &missing, CpuDevice::LIMITS).unwrap_err().to_string();
    assert_eq!(refused, "tensor `mtp.fc` is missing");
    let plan = head_plan(&checkpoint.spec, Options { lanes: 1, context: 100 });
    // Two key/value heads of 64 dimensions in floats, keys and values, and 64 states of 384.
    assert_eq!(plan.snapshot_token_bytes, 2 * 2 * 64 * 4);
    assert_eq!(plan.lane_bytes, 128 * 1024 + 64 * 384 * 4);
}

#[test]
fn the_trained_heads_drafts_are_those_of_the_reference() {
    let (checkpoint, goldens) = demo();
    let mut executor = open(&checkpoint);
    let (mut rounds_made, mut rounds_wanted) = (0.0, 0.0);
    for prompt in goldens["prompts"].as_array().unwrap() {
        let (ids_of_prompt, greedy) = (ids(&prompt["prompt_ids"]), ids(&prompt["greedy"]));
        let got = rounds(&mut executor, &ids_of_prompt, 3, greedy.len());
        for (got, wanted) in got.iter().zip(prompt["mtp"]["rounds"].as_array().unwrap()) {
            assert_eq!(got.0, ids(&wanted["drafts"]), "{}", prompt["prompt"]);
            assert_eq!(got.1 as u64, wanted["accepted"].as_u64().unwrap());
        }
        rounds_made += got.len() as f64;
        rounds_wanted += prompt["mtp"]["all_rounds"].as_f64().unwrap();
    }
    // A near tie may go the other way, and with it a round.
    assert!(
        (rounds_made / rounds_wanted - 1.0).abs() < 0.03,
        "{rounds_made} rounds, {rounds_wanted} in float64"
    );
}
