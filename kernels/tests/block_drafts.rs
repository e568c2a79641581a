//! A trained block drafter beside its model: what it drafts, and what it must never change.

#[path = "support/drafter.rs"]
mod drafter_files;
mod support;

use serde_json::Value;
use support::*;
use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::executor::{
    DraftSource, Lane, NextDrafts, OUTPUT_ROWS, Options, Step, StepOutcome, block_plan, check_drafter,
};
use tensorfold_kernels::weights::Tensors;
use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::sampling::{AllowedTokens, Sampling};

struct Demo {
    model: Checkpoint,
    drafter: File,
    spec: DrafterSpec,
    goldens: Value,
}

impl Demo {
    fn open() -> Demo {
        Demo {
            model: Checkpoint::open("models/demo", 8180),
            drafter: File::open("models/demo-DFlash2/model.safetensors"),
            spec: drafter_files::spec(&json("models/demo-DFlash2/config.json")),
            goldens: json("models/demo-goldens.json"),
        }
    }

    fn tensors(&self) -> Tensors<'_> {
        self.drafter.tensors(drafter_files::canonical)
    }

    /// The model with its drafter and its own head.
    fn executor(&self) -> Cpu<'_> {
        let tensors = self.model.tensors();
        let mut executor = executor(&self.model, &tensors, 2);
        executor.open_head(&tensors).unwrap();
        executor.open_block(self.spec.clone(), &self.tensors()).unwrap();
        executor
    }

    fn prompt(&self, index: usize) -> Vec<u32> {
        ids(&self.goldens["prompts"][index]["prompt_ids"])
    }
}

fn block(count: usize) -> NextDrafts {
    NextDrafts { source: DraftSource::Block, count, confidence: 0.0 }
}

fn round(
    executor: &mut Cpu<'_>,
    lane: &mut Lane<CpuDevice>,
    (tokens, drafts): (&[u32], usize),
    wanted: NextDrafts,
    sampling: Sampling,
) -> StepOutcome {
    let step = Step { next_drafts: wanted, ..step(lane, tokens, drafts, drafts + 1, sampling) };
    executor.round(&mut [step]).unwrap().lanes.remove(0)
}

/// A reply, with drafts as `plan` says round by round; each round's drafts and how many were accepted.
fn reply(
    executor: &mut Cpu<'_>,
    prompt: &[u32],
    length: usize,
    sampling: Sampling,
    plan: &dyn Fn(usize) -> NextDrafts,
) -> (Vec<u32>, Vec<(Vec<u32>, usize)>) {
    let mut lane = executor.open_lane().unwrap();
    let mut got = round(executor, &mut lane, (prompt, 0), plan(0), sampling);
    let mut out = vec![got.draws[0].token.unwrap()];
    let mut rounds = Vec::new();
    for index in 1.. {
        if out.len() >= length {
            break;
        }
        let drafts: Vec<u32> = got.drafts.iter().map(|draft| draft.0).collect();
        let tokens = [&out[out.len() - 1..], &drafts[..]].concat();
        got = round(executor, &mut lane, (&tokens, drafts.len()), plan(index), sampling);
        out.extend(got.draws.iter().map(|draw| draw.token.unwrap()));
        rounds.push((drafts, got.accepted));
    }
    executor.close_lane(lane);
    out.truncate(length);
    (out, rounds)
}

#[test]
fn the_trained_drafters_blocks_are_those_of_the_reference() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    assert_eq!(executor.block_drafts(), 7);
    let (mut made, mut wanted_rounds) = (0.0, 0.0);
    for prompt in demo.goldens["prompts"].as_array().unwrap() {
        let greedy = ids(&prompt["greedy"]);
        let (got, rounds) =
            reply(&mut executor, &ids(&prompt["prompt_ids"]), greedy.len(), Sampling::GREEDY, &|_| block(7));
        assert_eq!(got, greedy, "{}", prompt["prompt"]);
        for (got, wanted) in rounds.iter().zip(prompt["dflash2"]["rounds"].as_array().unwrap()) {
            assert_eq!(got.0, ids(&wanted["drafts"]), "{}", prompt["prompt"]);
            assert_eq!(got.1 as u64, wanted["accepted"].as_u64().unwrap());
        }
        made += rounds.len() as f64;
        wanted_rounds += prompt["dflash2"]["all_rounds"].as_f64().unwrap();
    }
    // A near tie may go the other way, and with it a round.
    assert!((made / wanted_rounds - 1.0).abs() < 0.03, "{made} rounds, {wanted_rounds} in float64");
}

#[test]
fn rounds_keep_the_rows_that_the_stored_rounds_keep() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    let rounds = json("goldens/dflash/unit/greedy_round.json");
    let rounds = rounds.as_array().unwrap();
    assert_eq!(rounds.len(), 11);
    for case in rounds {
        let (history, drafts, target) =
            (ids(&case["history"]), ids(&case["drafts"]), ids(&case["target_argmax"]));
        let (&anchor, before) = history.split_last().unwrap();
        let mut lane = executor.open_lane().unwrap();
        round(&mut executor, &mut lane, (before, 0), block(0), Sampling::GREEDY);
        // A mask with one id in it makes the model say what the case's target says.
        let words = AllowedTokens::words_for(8180);
        let mut allowed = vec![0; words * target.len()];
        for (row, &token) in target.iter().enumerate() {
            allowed[row * words + token as usize / 32] = 1 << (token % 32);
        }
        let fed = [&[anchor], &drafts[..]].concat();
        let mut step = step(&mut lane, &fed, drafts.len(), target.len(), Sampling::GREEDY);
        (step.allowed, step.next_drafts) = (&allowed, block(7));
        let got = executor.round(&mut [step]).unwrap().lanes.remove(0);
        let accepted = case["accepted"].as_u64().unwrap() as usize;
        assert_eq!(got.accepted, accepted, "{case}");
        let drawn: Vec<u32> = got.draws.iter().map(|draw| draw.token.unwrap()).collect();
        // What is new ends earlier where the reply ends, which the host sees to.
        let new = ids(&case["new"]);
        assert_eq!(drawn[..new.len()], new, "{case}");
        assert_eq!(drawn, target[..=accepted], "{case}");
        if case["finish"].is_null() {
            assert_eq!(lane.position() as u64, case["kv_end"].as_u64().unwrap(), "{case}");
            assert_eq!(case["taps_absorbed"][1], case["kv_end"]);
        }
        // The drafter has taken in the same rows, no more and no fewer.
        assert_eq!(case["taps_absorbed"][0].as_u64().unwrap() as usize, before.len());
        for cache in lane.block_layers() {
            assert_eq!(cache.tokens(), lane.position(), "{case}");
        }
        executor.close_lane(lane);
    }
}

#[test]
fn blocks_change_no_token_whatever_else_drafts() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    let noise = Sampling { temperature: 0.8, top_p: 0.95, seed: 3, ..Sampling::GREEDY };
    for sampling in [Sampling::GREEDY, noise] {
        let prompt = demo.prompt(1);
        let (plain, _) = reply(&mut executor, &prompt, 90, sampling, &|_| block(0));
        let (drafted, rounds) = reply(&mut executor, &prompt, 90, sampling, &|_| block(7));
        assert_eq!(drafted, plain);
        let accepted: usize = rounds.iter().map(|round| round.1).sum();
        assert!(accepted > 20, "{accepted} of 90 tokens came from drafts");
        // From block to head to nothing and back; pauses are longer than what waits.
        let mixed = |round: usize| match round % 60 {
            0..4 => block(7),
            4..8 => NextDrafts { source: DraftSource::Head, count: 3, confidence: 0.3 },
            8..48 => block(0),
            _ => NextDrafts { confidence: 0.4, ..block(5) },
        };
        assert_eq!(reply(&mut executor, &prompt, 90, sampling, &mixed).0, plain);
    }
}

#[test]
fn forks_and_chunks_and_neighbours_draft_alike() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    let prompt: Vec<u32> = demo.prompt(0).repeat(9);
    let mut whole = executor.open_lane().unwrap();
    let first = round(&mut executor, &mut whole, (&prompt, 0), block(7), Sampling::GREEDY);
    assert_eq!(first.drafts.len(), 7);
    let mut split = executor.open_lane().unwrap();
    let mut last = StepOutcome::default();
    for chunk in prompt.chunks(64) {
        last = round(&mut executor, &mut split, (chunk, 0), block(7), Sampling::GREEDY);
    }
    assert_eq!(last, first);
    let mut fork = executor.fork(&split).unwrap();
    let token = [first.draws[0].token.unwrap()];
    let alone = round(&mut executor, &mut whole, (&token, 0), block(7), Sampling::GREEDY);
    let mut other = executor.open_lane().unwrap();
    round(&mut executor, &mut other, (&demo.prompt(2), 0), block(0), Sampling::GREEDY);
    let mut steps = [
        Step { next_drafts: block(4), ..step(&mut other, &[9], 0, 1, Sampling::GREEDY) },
        Step { next_drafts: block(7), ..step(&mut fork, &token, 0, 1, Sampling::GREEDY) },
    ];
    let beside = executor.round(&mut steps).unwrap();
    assert_eq!(beside.lanes[1], alone);
    assert_eq!(beside.lanes[0].drafts.len(), 4);
    // Windows slide: a long text holds no more of it than they show.
    let context = whole.block_layers().iter().map(|layer| layer.bytes()).sum::<usize>();
    assert!(context > 0 && whole.waiting_bytes() > 0);
}

#[test]
fn pauses_of_any_length_leave_no_hole_in_what_the_drafter_knows() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    let prompt = demo.prompt(2);
    let serial = generate(&mut executor, &prompt, 80, WARM);
    // Around what waits at most, which is what a round can draw.
    for rounds in [1, OUTPUT_ROWS - 1, OUTPUT_ROWS, OUTPUT_ROWS + 1, 2 * OUTPUT_ROWS + 3] {
        let mut lane = executor.open_lane().unwrap();
        round(&mut executor, &mut lane, (&prompt, 0), block(7), WARM);
        for (index, token) in serial[..rounds].iter().enumerate() {
            // Now and then a wrong draft, so that rows are taken back in between.
            let wrong = (serial[index + 1] + 1) % 8000;
            let fed = [*token, wrong];
            let drafts = usize::from(index % 5 == 3);
            round(&mut executor, &mut lane, (&fed[..1 + drafts], drafts), block(0), WARM);
        }
        let mut fork = executor.fork(&lane).unwrap();
        // A lane that has the same text as its prompt knows all of it at once.
        let mut fresh = executor.open_lane().unwrap();
        let whole = [&prompt[..], &serial[..rounds]].concat();
        round(&mut executor, &mut fresh, (&whole, 0), block(0), WARM);
        let next = [serial[rounds]];
        let wanted = round(&mut executor, &mut fresh, (&next, 0), block(7), WARM);
        assert_eq!(wanted.drafts.len(), 7);
        for lane in [&mut lane, &mut fork] {
            assert_eq!(round(&mut executor, lane, (&next, 0), block(7), WARM), wanted, "{rounds} rounds");
            assert!(block_contents(lane) == block_contents(&fresh), "{rounds} rounds");
        }
    }
}

#[test]
fn fewer_drafts_are_the_first_of_a_whole_block() {
    let demo = Demo::open();
    let mut executor = demo.executor();
    let mut drafts = |count, confidence| {
        let mut lane = executor.open_lane().unwrap();
        let wanted = NextDrafts { confidence, ..block(count) };
        let got = round(&mut executor, &mut lane, (&demo.prompt(0), 0), wanted, Sampling::GREEDY);
        executor.close_lane(lane);
        got.drafts
    };
    let whole = drafts(7, 0.0);
    assert_eq!(whole.len(), 7);
    for count in 0..7 {
        assert_eq!(drafts(count, 0.0), whole[..count]);
    }
    // They end before the first that is less likely than what was asked, but for the first of all.
    assert_eq!(drafts(7, 1.1), whole[..1]);
    let least = whole[1..].iter().map(|draft| draft.1).fold(1.0, f32::min);
    let at = 1 + whole[1..].iter().position(|draft| draft.1 == least).unwrap();
    assert_eq!(drafts(7, least * 1.0001), whole[..at]);
    assert_eq!(drafts(7, least), whole);
}

#[test]
fn a_drafter_of_another_model_is_refused() {
    let demo = Demo::open();
    let model_tensors = demo.model.tensors();
    let mut executor = executor(&demo.model, &model_tensors, 1);
    let tensors = demo.tensors();
    assert_eq!(executor.block_drafts(), 0);
    let mut refused = |change: &dyn Fn(&mut DrafterSpec)| {
        let mut spec = demo.spec.clone();
        change(&mut spec);
        let checked = check_drafter(&demo.model.spec, &spec, &tensors, CpuDevice::LIMITS).unwrap_err();
        assert_eq!(executor.open_block(spec, &tensors).unwrap_err().to_string(), checked.to_string());
        checked.to_string()
    };
    assert_eq!(refused(&|spec| spec.hidden_size = 512), "the drafter's hidden size is 512, the model's 384");
    assert_eq!(
        refused(&|spec| spec.vocabulary_rows = 9000),
        "the drafter's vocabulary has 9000 rows, the model's 8192"
    );
    let taps = refused(&|spec| *spec.taps.last_mut().unwrap() = 12);
    assert_eq!(taps, "the drafter reads layer 12 of a model of 12 layers");
    // Without a drafter nobody drafts.
    let mut lane = executor.open_lane().unwrap();
    assert!(round(&mut executor, &mut lane, (&[1, 2], 0), block(7), Sampling::GREEDY).drafts.is_empty());
    let plan = block_plan(&demo.spec, Options { lanes: 1, context: 4096 });
    let taps = (OUTPUT_ROWS * demo.spec.taps.len() * 384 * 4) as u64;
    assert_eq!(plan.snapshot_bytes, taps);
    assert!(plan.lane_bytes > taps && plan.scratch_bytes > 0 && plan.snapshot_token_bytes > 0);
}
