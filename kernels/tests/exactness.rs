//! The engine against itself, bit for bit.

mod support;

use support::*;
use tensorfold_kernels::cpu::{Activations, CpuDevice, InstructionSet};
use tensorfold_kernels::device::{Device, DeviceResult, Product};
use tensorfold_kernels::executor::{Observer, Point, Step, StepOutcome};
use tensorfold_kernels::weights::{ExpertShape, Storage, TensorView, Tensors};
use tensorfold_plugin_api::sampling::{Sampling, draw};

/// Keeps logits.
#[derive(Default)]
struct Rows(Vec<Vec<f32>>);

impl Observer<CpuDevice> for Rows {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        if point == Point::Logits {
            self.0.extend(device.read(rows, width, values)?.chunks(width).map(<[f32]>::to_vec));
        }
        Ok(())
    }
}

/// Keeps logits as bits.
#[derive(Default)]
struct Logits(Vec<Vec<u32>>);

impl Observer<CpuDevice> for Logits {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        if point == Point::Logits {
            let all = device.read(rows, width, values)?;
            self.0.extend(all.chunks(width).map(|row| row.iter().map(|x| x.to_bits()).collect()));
        }
        Ok(())
    }
}

fn round(executor: &mut Cpu<'_>, steps: &mut [Step<'_, CpuDevice>]) -> (Vec<StepOutcome>, Vec<Vec<u32>>) {
    let mut logits = Logits::default();
    let outcome = executor.round_observed(steps, &mut logits).unwrap();
    (outcome.lanes, logits.0)
}

#[test]
fn rows_verified_together_have_the_bits_of_single_steps() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 2);
        let (prompt, next) = (text(70), text(16));
        let mut start = executor.open_lane().unwrap();
        feed(&mut executor, &mut start, &prompt, 0, WARM);
        let mut single = Vec::new();
        let mut lane = executor.fork(&start).unwrap();
        for token in &next {
            single.extend(round(&mut executor, &mut [step(&mut lane, &[*token], 0, 1, WARM)]).1);
        }
        for rows in 1..=16 {
            // As rows of a prompt, and as drafts, which are traced.
            for drafts in [0, rows - 1] {
                let mut lane = executor.fork(&start).unwrap();
                let (_, logits) =
                    round(&mut executor, &mut [step(&mut lane, &next[..rows], drafts, rows, WARM)]);
                assert!(logits == single[..rows], "{rows} rows, {drafts} drafts");
            }
        }
    });
}

#[test]
fn any_number_of_accepted_drafts_leaves_the_lane_as_if_only_they_had_been_fed() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 2);
        for sampling in [Sampling::GREEDY, WARM] {
            let prompt = text(67);
            let serial = generate(&mut executor, &prompt, 24, sampling);
            for right in 0..=7 {
                let mut lane = executor.open_lane().unwrap();
                feed(&mut executor, &mut lane, &prompt, 1, sampling);
                let mut drafts = serial[..8].to_vec();
                if right < 7 {
                    drafts[right + 1] = (drafts[right + 1] + 1) % 1000;
                }
                let (got, _) = round(&mut executor, &mut [step(&mut lane, &drafts, 7, 8, sampling)]);
                assert_eq!(got[0].accepted, right);
                let drawn: Vec<u32> = got[0].draws.iter().map(|draw| draw.token.unwrap()).collect();
                assert_eq!(drawn, serial[1..right + 2]);

                let mut alone = executor.open_lane().unwrap();
                feed(&mut executor, &mut alone, &prompt, 1, sampling);
                for token in &serial[..right + 1] {
                    feed(&mut executor, &mut alone, &[*token], 1, sampling);
                }
                assert!(contents(&lane) == contents(&alone), "{right} accepted");
                let mut pending = *drawn.last().unwrap();
                for wanted in &serial[right + 2..] {
                    pending = feed(&mut executor, &mut lane, &[pending], 1, sampling).draws[0].token.unwrap();
                    assert_eq!(pending, *wanted, "{right} accepted");
                }
            }
        }
    });
}

#[test]
fn drafting_all_the_way_gives_the_serial_reply() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 1);
        let prompt = text(40);
        let serial = generate(&mut executor, &prompt, 60, WARM);
        let mut lane = executor.open_lane().unwrap();
        let mut reply = vec![feed(&mut executor, &mut lane, &prompt, 1, WARM).draws[0].token.unwrap()];
        let mut round_number = 0;
        while reply.len() < serial.len() {
            // A drafter that is right for a changing number of tokens.
            let mut feed = vec![reply[reply.len() - 1]];
            feed.extend(
                serial[reply.len()..]
                    .iter()
                    .take(4)
                    .enumerate()
                    .map(|(i, token)| if i < round_number % 5 { *token } else { (token + 1) % 1000 }),
            );
            let drafts = feed.len() - 1;
            let (got, _) = round(&mut executor, &mut [step(&mut lane, &feed, drafts, drafts + 1, WARM)]);
            reply.extend(got[0].draws.iter().map(|draw| draw.token.unwrap()));
            round_number += 1;
        }
        assert_eq!(reply[..serial.len()], serial);
    });
}

#[test]
fn draws_are_keyed_by_seed_and_position_and_nothing_else() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5", 1009);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 1);
    let mut told_apart = [0; 2];
    for seed in [0, 1, 77, u64::MAX] {
        let sampling = Sampling { seed, ..WARM };
        let mut lane = executor.open_lane().unwrap();
        let mut position = 0;
        // A prompt in two parts, a plain step, and drafts of which some hold: first wrong ones, then those drawn.
        for (tokens, drafts, outputs) in
            [(text(64), 0, 0), (text(9), 0, 5), (text(1), 0, 1), (text(5), 4, 5), (text(2), 1, 2)]
        {
            let mut rows = Rows::default();
            let step = step(&mut lane, &tokens, drafts, outputs, sampling);
            let got = executor.round_observed(&mut [step], &mut rows).unwrap().lanes.remove(0);
            assert_eq!(rows.0.len(), outputs);
            // The draw after a token has that token and all before it behind it.
            let first = (position + tokens.len() - outputs + 1) as u64;
            for ((drawn, logits), position) in got.draws.iter().zip(&rows.0).zip(first..) {
                let by_rule = |sampling: &Sampling, position| draw(logits, 1009, None, sampling, position);
                assert_eq!(drawn.token, by_rule(&sampling, position), "seed {seed}, position {position}");
                told_apart[0] += usize::from(drawn.token != by_rule(&sampling, position + 1));
                let other = Sampling { seed: seed ^ 1, ..sampling };
                told_apart[1] += usize::from(drawn.token != by_rule(&other, position));
            }
            position += tokens.len() - drafts + got.accepted;
            assert_eq!(lane.position(), position);
        }
        executor.close_lane(lane);
    }
    assert!(told_apart.iter().all(|&count| count > 10), "other keys draw other tokens: {told_apart:?}");
}

#[test]
fn no_split_of_a_prompt_changes_a_bit() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 2);
        // Longer than a pass and than a part of attention.
        let prompt = text(600);
        let mut reference = None;
        for chunk in [600, 512, 192, 128, 64, 13] {
            let mut lane = executor.open_lane().unwrap();
            let mut last = Vec::new();
            for piece in prompt.chunks(chunk) {
                last = round(&mut executor, &mut [step(&mut lane, piece, 0, 1, WARM)]).1;
            }
            let now = (contents(&lane), last);
            assert!(*reference.get_or_insert_with(|| now.clone()) == now, "chunks of {chunk}");
        }
    });
}

#[test]
fn a_lane_beside_others_is_a_lane_alone() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 2);
        let prompts = [text(5), text(130), text(64)];
        let alone: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| generate(&mut executor, prompt, 12, WARM)).collect();
        let mut lanes: Vec<_> = (0..3).map(|_| executor.open_lane().unwrap()).collect();
        let mut pending: Vec<Vec<u32>> = prompts.to_vec();
        let mut replies = vec![Vec::new(); 3];
        for number in 0..12 {
            // One of them drafts, wrongly, in every third round.
            let drafting = number % 3;
            for (index, feed) in pending.iter_mut().enumerate() {
                if number > 0 && index == drafting {
                    feed.push(999);
                }
            }
            let mut steps: Vec<_> = lanes
                .iter_mut()
                .zip(&pending)
                .enumerate()
                .map(|(index, (lane, feed))| {
                    let drafts = usize::from(number > 0 && index == drafting);
                    step(lane, feed, drafts, drafts + 1, WARM)
                })
                .collect();
            let (got, _) = round(&mut executor, &mut steps);
            for ((feed, reply), got) in pending.iter_mut().zip(&mut replies).zip(got) {
                let token = got.draws[0].token.unwrap();
                assert_eq!((got.draws.len(), got.accepted), (1, 0));
                reply.push(token);
                *feed = vec![token];
            }
        }
        assert_eq!(replies, alone);
    });
}

#[test]
fn a_snapshot_is_neither_changed_nor_forgotten() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 1);
        let prompt = text(90);
        let fresh = generate(&mut executor, &prompt, 20, WARM);
        for kept in [64, 37] {
            let mut lane = executor.open_lane().unwrap();
            feed(&mut executor, &mut lane, &prompt[..kept], 0, WARM);
            let snapshot = executor.fork(&lane).unwrap();
            let bits = contents(&snapshot);
            // The lane goes elsewhere and ends; the snapshot serves two others.
            feed(&mut executor, &mut lane, &text(50), 1, WARM);
            executor.close_lane(lane);
            for _ in 0..2 {
                let mut lane = executor.fork(&snapshot).unwrap();
                let mut pending = prompt[kept..].to_vec();
                for wanted in &fresh {
                    let token = feed(&mut executor, &mut lane, &pending, 1, WARM).draws[0].token.unwrap();
                    assert_eq!(token, *wanted);
                    pending = vec![token];
                }
                executor.close_lane(lane);
                assert!(contents(&snapshot) == bits);
            }
        }
    });
}

#[test]
fn threads_and_instruction_sets_do_not_change_a_bit() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let prompt = text(100);
        let mut reference = None;
        for set in InstructionSet::available() {
            for threads in [1, 2, 5] {
                let mut executor = executor_on(checkpoint, &tensors, threads, set);
                let mut lane = executor.open_lane().unwrap();
                let (_, logits) = round(&mut executor, &mut [step(&mut lane, &prompt, 0, 8, WARM)]);
                let now = (contents(&lane), logits);
                assert!(*reference.get_or_insert_with(|| now.clone()) == now, "{set:?}, {threads} threads");
            }
        }
    });
}

#[test]
fn experts_one_by_one_give_the_bits_of_stacked_ones() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5_moe", 1009);
    let stacked = checkpoint.tensors();
    let mut single = checkpoint.tensors();
    for layer in 0..checkpoint.spec.layers.len() {
        let name = format!("layers.{layer}.moe.experts");
        let views =
            stacked.experts(&name, ExpertShape { experts: 8, hidden: 128, intermediate: 64 }).unwrap();
        single.remove(&format!("{name}.gate_up"));
        single.remove(&format!("{name}.down"));
        for (part, views) in [("gate", views.gate), ("up", views.up), ("down", views.down)] {
            for (expert, view) in views.iter().enumerate() {
                let Storage::Plain { element, bytes } = view.storage else { unreachable!() };
                let shape = vec![view.rows, view.columns];
                single.insert(
                    format!("{name}.{expert}.{part}"),
                    TensorView { element, shape, packed: None, bytes },
                );
            }
        }
    }
    let logits = |tensors: &Tensors<'_>| {
        let mut executor = executor(&checkpoint, tensors, 2);
        let mut lane = executor.open_lane().unwrap();
        round(&mut executor, &mut [step(&mut lane, &text(40), 0, 8, WARM)]).1
    };
    assert!(logits(&single) == logits(&stacked));
}

#[test]
fn a_cancelled_lane_is_as_before_and_others_go_on() {
    hybrids(|checkpoint| {
        let tensors = checkpoint.tensors();
        let mut executor = executor(checkpoint, &tensors, 1);
        let mut lanes: Vec<_> = (0..2).map(|_| executor.open_lane().unwrap()).collect();
        for lane in &mut lanes {
            feed(&mut executor, lane, &text(70), 0, WARM);
        }
        let before = contents(&lanes[0]);
        // Asked once before each layer: the third time is in the middle.
        let polls = std::cell::Cell::new(0);
        let cancelled = || {
            polls.set(polls.get() + 1);
            polls.get() == 3
        };
        let (more, next) = (text(30), text(9));
        let [a, b] = &mut lanes[..] else { unreachable!() };
        let mut steps = [step(a, &more, 0, 1, WARM), step(b, &next, 0, 1, WARM)];
        steps[0].cancelled = &cancelled;
        let (got, _) = round(&mut executor, &mut steps);
        assert!(got[0].cancelled && got[0].draws.is_empty());
        assert!(contents(&lanes[0]) == before);
        let mut alone = executor.open_lane().unwrap();
        feed(&mut executor, &mut alone, &text(70), 0, WARM);
        let expected = feed(&mut executor, &mut alone, &next, 1, WARM);
        assert_eq!(got[1], expected);
        assert!(contents(&lanes[1]) == contents(&alone));
        // A lane can be used again after it was cancelled.
        let again = feed(&mut executor, &mut lanes[0], &next, 1, WARM);
        assert_eq!(again, expected);
    });
}

#[test]
fn a_long_prompt_is_cancelled_at_a_position_that_the_lane_names() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5", 1009);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 1);
    let prompt = text(600);
    let polls = std::cell::Cell::new(0);
    let cancelled = || {
        polls.set(polls.get() + 1);
        // Four layers a pass: this is the second pass.
        polls.get() == 6
    };
    let mut lane = executor.open_lane().unwrap();
    let mut steps = [step(&mut lane, &prompt, 0, 1, WARM)];
    steps[0].cancelled = &cancelled;
    let (got, _) = round(&mut executor, &mut steps);
    assert!(got[0].cancelled);
    assert_eq!(lane.position(), 256);
    let rest = feed(&mut executor, &mut lane, &prompt[256..], 1, WARM);
    let mut whole = executor.open_lane().unwrap();
    assert_eq!(feed(&mut executor, &mut whole, &prompt, 1, WARM), rest);
}

#[test]
fn a_round_that_breaks_the_contract_is_refused_and_changes_nothing() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5", 1009);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 1);
    let mut lane = executor.open_lane().unwrap();
    feed(&mut executor, &mut lane, &text(3), 0, WARM);
    let before = contents(&lane);
    let long = vec![1; 4094];
    for (tokens, drafts, outputs, message) in [
        (&[][..], 0, 0, "no tokens to feed"),
        (&[1, 1024], 0, 1, "token 1024 is not among the 1024"),
        (&[1, 2], 2, 3, "2 drafts and 3 outputs in 2 tokens"),
        (&[1, 2], 1, 1, "1 drafts and 1 outputs"),
        (&[1, 2], 0, 3, "0 drafts and 3 outputs"),
        (&long[..40], 0, 40, "40 outputs; at most 32"),
        (&long[..], 0, 1, "4094 tokens after position 3 exceed the context of 4096"),
    ] {
        let error = executor.round(&mut [step(&mut lane, tokens, drafts, outputs, WARM)]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.to_string().starts_with("lane 0 of the round: "), "{error}");
    }
    assert!(contents(&lane) == before);
}

#[test]
fn a_mask_binds_and_an_empty_one_is_an_error_that_leaves_the_lane() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5", 1009);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 1);
    let mut lane = executor.open_lane().unwrap();
    let mut mask = vec![0u32; 32];
    mask[5] = 1 << 9;
    let prompt = text(8);
    let mut steps = [step(&mut lane, &prompt, 0, 1, WARM)];
    steps[0].allowed = &mask;
    assert_eq!(round(&mut executor, &mut steps).0[0].draws[0].token, Some(169));
    let before = contents(&lane);
    // The only allowed id is padding, which is as good as none.
    mask[5] = 0;
    mask[31] = 1 << 30;
    let mut steps = [step(&mut lane, &[7], 0, 1, WARM)];
    steps[0].allowed = &mask;
    let error = executor.round(&mut steps).unwrap_err().to_string();
    assert!(error.contains("no token to draw at position 9"), "{error}");
    assert!(contents(&lane) == before);
}

#[test]
fn padding_is_never_drawn() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5-mlx-4bit", 1009);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 1);
    let hot = Sampling { temperature: 50.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 3 };
    let reply = generate(&mut executor, &text(4), 300, hot);
    assert!(reply.iter().all(|&token| token < 1009));
    assert!(reply.iter().any(|&token| token > 900), "nearly uniform draws reach everywhere");
}

#[test]
fn rounded_activations_are_exact_in_their_own_way() {
    for name in ["tiny-qwen3_5-mlx-4bit", "tiny-qwen3_5_moe-mlx-4bit", "tiny-llama-mlx-4bit"] {
        let checkpoint = Checkpoint::open(&format!("goldens/{name}"), 1009);
        let tensors = checkpoint.tensors();
        let open = |set, threads, activations| {
            let device = CpuDevice::with_instruction_set(threads, set).unwrap();
            executor_of(&checkpoint, &tensors, device.with_activations(activations))
        };
        let (prompt, next) = (text(70), text(12));
        let mut reference = None;
        for set in InstructionSet::available() {
            for (threads, chunk) in [(1, 70), (2, 64), (3, 1)] {
                let mut executor = open(set, threads, Activations::Int8);
                let mut lane = executor.open_lane().unwrap();
                let mut logits = Vec::new();
                for piece in prompt.chunks(chunk) {
                    logits = round(&mut executor, &mut [step(&mut lane, piece, 0, 1, WARM)]).1;
                }
                let mut single = executor.fork(&lane).unwrap();
                for token in &next {
                    logits.extend(round(&mut executor, &mut [step(&mut single, &[*token], 0, 1, WARM)]).1);
                }
                // The same tokens as drafts of one round.
                let (_, rows) = round(&mut executor, &mut [step(&mut lane, &next, 11, 12, WARM)]);
                assert!(rows == logits[1..], "{name}, {set:?}, {threads} threads");
                let wanted = reference.get_or_insert_with(|| logits.clone());
                assert!(*wanted == logits, "{name}, {set:?}, {threads} threads, chunks of {chunk}");
            }
        }
        let mut floats = open(InstructionSet::best(), 1, Activations::F32);
        let mut lane = floats.open_lane().unwrap();
        let (_, exact) = round(&mut floats, &mut [step(&mut lane, &prompt, 0, 1, WARM)]);
        assert!(exact[0] != reference.unwrap()[0], "{name}: activations were not rounded");
    }
}

/// Keeps what the first layer's router saw and said.
#[derive(Default)]
struct Router([Vec<f32>; 2]);

impl Observer<CpuDevice> for Router {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        match point {
            Point::PostNorm(0) => self.0[0] = device.read(rows, width, values)?,
            Point::RouterLogits(0) => self.0[1] = device.read(rows, width, values)?,
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn routers_never_see_rounded_activations() {
    const ROWS: usize = 9;
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5_moe-mlx-4bit", 1009);
    let tensors = checkpoint.tensors();
    let device = |activations| CpuDevice::new(1).unwrap().with_activations(activations);
    let mut executor = executor_of(&checkpoint, &tensors, device(Activations::Int8));
    let mut lane = executor.open_lane().unwrap();
    let mut seen = Router::default();
    executor.round_observed(&mut [step(&mut lane, &text(ROWS), 0, 1, WARM)], &mut seen).unwrap();
    let Router([x, logits]) = seen;
    let by_hand = |activations| {
        let router = tensors.matrix("layers.0.moe.router", 8, x.len() / ROWS).unwrap();
        let mut out = vec![0.0; logits.len()];
        let product = Product { matrix: &router, bias: None, out: &mut out };
        device(activations).multiply(ROWS, &x, &mut [product]).unwrap();
        out
    };
    assert_eq!(logits, by_hand(Activations::F32));
    assert_ne!(logits, by_hand(Activations::Int8), "this router's codes could be met by rounded activations");
}
