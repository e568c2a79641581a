//! Drafting with the multi-token prediction head changes nothing but time, bit for bit.

mod support;

use support::*;
use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::executor::{Lane, NextDrafts, Step, StepOutcome};
use tensorfold_plugin_api::sampling::Sampling;

/// Tokens after each prompt.
const REPLY: usize = 40;

fn most(count: usize) -> NextDrafts {
    NextDrafts { count, ..NextDrafts::default() }
}

/// A sequence of numbers that looks like nothing, the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// An executor whose head is open.
fn with_head<'w>(checkpoint: &'w Checkpoint, threads: usize) -> Cpu<'w> {
    let tensors = checkpoint.tensors();
    let mut executor = executor(checkpoint, &tensors, threads);
    executor.open_head(&tensors).unwrap();
    executor
}

/// Feeds a lane, the last `drafts` tokens as drafts, and asks for `wanted`.
fn drafting(
    executor: &mut Cpu<'_>,
    lane: &mut Lane<CpuDevice>,
    (tokens, drafts): (&[u32], usize),
    wanted: NextDrafts,
    sampling: Sampling,
) -> StepOutcome {
    let step = Step { next_drafts: wanted, ..step(lane, tokens, drafts, drafts + 1, sampling) };
    executor.round(&mut [step]).unwrap().lanes.remove(0)
}

/// One text on its way through a random schedule.
struct Running {
    lane: Lane<CpuDevice>,
    sampling: Sampling,
    /// Prompt tokens that are not fed yet; empty once the reply goes on.
    prompt: Vec<u32>,
    reply: Vec<u32>,
    drafts: Vec<u32>,
    /// What serial decoding without a head gives.
    serial: Vec<u32>,
    /// Tokens of prompt and reply, as far as serial decoding went.
    text: Vec<u32>,
}

impl Running {
    /// What goes in next, and how many of it are drafts.
    fn next(&self, chance: &mut Chance) -> (Vec<u32>, usize) {
        if !self.prompt.is_empty() {
            let whole = chance.below(2) == 0;
            let count = if whole { self.prompt.len() } else { self.prompt.len().min(64) };
            return (self.prompt[..count].to_vec(), 0);
        }
        let mut drafts = self.drafts.clone();
        match chance.below(6) {
            // Not all of them, none, or somebody else's.
            0 => drafts.truncate(chance.below(drafts.len() + 1)),
            1 => drafts.clear(),
            2 => {
                let from = self.reply.len();
                drafts = self.serial[from..].iter().take(1 + chance.below(6)).copied().collect();
                if let Some(draft) = drafts.last_mut() {
                    *draft = (*draft + chance.below(2) as u32) % 1000;
                }
            }
            _ => {}
        }
        let count = drafts.len();
        (self.reply.last().copied().into_iter().chain(drafts).collect(), count)
    }
}

/// A snapshot of a text.
struct Kept {
    index: usize,
    lane: Lane<CpuDevice>,
    reply: Vec<u32>,
    drafts: Vec<u32>,
}

/// What three texts get in a random schedule; the number of drafts of the head that were accepted.
fn schedule(prompts: &[Vec<u32>], executor: &mut Cpu<'_>, plain: &mut Cpu<'_>, seed: u64) -> usize {
    let mut chance = Chance(seed);
    let mut running: Vec<Running> = prompts
        .iter()
        .cloned()
        .enumerate()
        .map(|(index, prompt)| {
            let warm = (seed as usize + index) % 2 == 1;
            let sampling = if warm { Sampling { seed, ..WARM } } else { Sampling::GREEDY };
            let serial = generate(plain, &prompt, REPLY + 16, sampling);
            let text = [&prompt[..], &serial[..]].concat();
            let lane = executor.open_lane().unwrap();
            Running { lane, sampling, prompt, reply: Vec::new(), drafts: Vec::new(), serial, text }
        })
        .collect();
    let mut accepted = 0;
    let mut kept: Option<Kept> = None;
    while running.iter().any(|one| one.reply.len() < REPLY) {
        // Some lanes of those that go on, at least one.
        let mut active: Vec<usize> =
            (0..running.len()).filter(|&index| running[index].reply.len() < REPLY).collect();
        let first = active[chance.below(active.len())];
        active.retain(|&index| index == first || chance.below(3) > 0);
        let fed: Vec<(Vec<u32>, usize)> =
            active.iter().map(|&index| running[index].next(&mut chance)).collect();
        let wanted: Vec<NextDrafts> = active
            .iter()
            .map(|_| NextDrafts {
                count: [0, 1, 3, 7][chance.below(4)],
                confidence: [0.0, 0.2][chance.below(2)],
                ..NextDrafts::default()
            })
            .collect();
        // One of them may be cancelled before some layer, or never.
        let (victim, at) = (chance.below(4), chance.below(8));
        let polls = std::cell::Cell::new(0);
        let cancelled = || {
            polls.set(polls.get() + 1);
            polls.get() == at + 1
        };
        let mut steps = Vec::new();
        let own = running.iter_mut().enumerate().filter(|(index, _)| active.contains(index));
        for (place, (_, one)) in own.enumerate() {
            let (tokens, drafts) = &fed[place];
            let mut step = step(&mut one.lane, tokens, *drafts, *drafts + 1, one.sampling);
            step.next_drafts = wanted[place];
            if place == victim {
                step.cancelled = &cancelled;
            }
            steps.push(step);
        }
        let got = executor.round(&mut steps).unwrap().lanes;
        for ((&index, (tokens, drafts)), got) in active.iter().zip(&fed).zip(got) {
            let one = &mut running[index];
            if got.cancelled {
                assert!(got.drafts.is_empty() && got.draws.is_empty());
                continue;
            }
            // Whose drafts these were does not matter to the lane, only to the count.
            accepted +=
                one.drafts.iter().zip(&tokens[1..]).take(got.accepted).filter(|(a, b)| a == b).count();
            one.drafts = got.drafts.iter().map(|draft| draft.0).collect();
            let drawn = got.draws.iter().map(|draw| draw.token.unwrap());
            if one.prompt.len() > tokens.len() {
                one.prompt.drain(..tokens.len());
                // The draw after a part of a prompt is nobody's.
                one.drafts.clear();
                continue;
            }
            assert!(one.prompt.is_empty() || *drafts == 0);
            one.prompt.clear();
            one.reply.extend(drawn);
            assert_eq!(one.reply[..], one.serial[..one.reply.len()], "seed {seed}, text {index}");
        }
        // A snapshot of some lane, which goes on from it later: a fork, or back in time.
        let index = chance.below(running.len());
        match (chance.below(5), &kept) {
            (0, _) => {
                let one = &running[index];
                let (reply, drafts) = (one.reply.clone(), one.drafts.clone());
                let lane = executor.fork(&one.lane).unwrap();
                let old = kept.replace(Kept { index, lane, reply, drafts });
                old.into_iter().for_each(|old| executor.close_lane(old.lane));
            }
            // Only what has its whole prompt: a prompt that is on its way is not kept with it.
            (1, Some(kept)) if !kept.reply.is_empty() => {
                let one = &mut running[kept.index];
                let restored = executor.fork(&kept.lane).unwrap();
                executor.close_lane(std::mem::replace(&mut one.lane, restored));
                (one.reply, one.drafts) = (kept.reply.clone(), kept.drafts.clone());
            }
            _ => {}
        }
    }
    for one in running {
        let mut alone = plain.open_lane().unwrap();
        feed(plain, &mut alone, &one.text[..one.lane.position()], 0, one.sampling);
        assert!(contents(&one.lane) == contents(&alone), "seed {seed}");
        plain.close_lane(alone);
        executor.close_lane(one.lane);
    }
    accepted
}

#[test]
fn no_schedule_of_drafts_changes_a_bit() {
    for name in ["tiny-qwen3_5", "tiny-qwen3_5-mlx-4bit", "tiny-qwen3_5_moe", "tiny-qwen3_5_moe-mlx-4bit"] {
        let checkpoint = Checkpoint::open(&format!("goldens/{name}"), 1009);
        let tensors = checkpoint.tensors();
        let mut plain = executor(&checkpoint, &tensors, 1);
        let mut drafting = with_head(&checkpoint, 2);
        // The heads of these models know the replies to these prompts by half.
        let expected = json(&format!("goldens/expect/{name}.json"));
        let prompts: Vec<Vec<u32>> =
            expected["prompts"].as_array().unwrap().iter().map(|prompt| ids(&prompt["ids"])).collect();
        let accepted: usize = (0..30).map(|seed| schedule(&prompts, &mut drafting, &mut plain, seed)).sum();
        assert!(accepted > 100, "{name}: {accepted} drafts of the head were accepted");
    }
}

#[test]
fn after_any_number_of_accepted_drafts_the_head_is_as_if_it_had_seen_only_them() {
    hybrids(|checkpoint| {
        let mut executor = with_head(checkpoint, 2);
        for sampling in [Sampling::GREEDY, WARM] {
            let prompt = text(67);
            let serial = generate(&mut executor, &prompt, 24, sampling);
            for right in 0..=7 {
                let mut lane = executor.open_lane().unwrap();
                drafting(&mut executor, &mut lane, (&prompt, 0), most(7), sampling);
                let mut fed = serial[..8].to_vec();
                if right < 7 {
                    fed[right + 1] = (fed[right + 1] + 1) % 1000;
                }
                let got = drafting(&mut executor, &mut lane, (&fed, 7), most(7), sampling);
                assert_eq!(got.accepted, right);
                // Another lane goes there one token at a time and has never drafted.
                let mut alone = executor.open_lane().unwrap();
                drafting(&mut executor, &mut alone, (&prompt, 0), most(0), sampling);
                let mut last = StepOutcome::default();
                for (index, token) in serial[..right + 1].iter().enumerate() {
                    let wanted = most(if index == right { 7 } else { 0 });
                    last = drafting(&mut executor, &mut alone, (&[*token], 0), wanted, sampling);
                }
                assert_eq!(got.drafts, last.drafts, "{right} accepted");
                assert_eq!(got.drafts.len(), 7);
                assert!(contents(&lane) == contents(&alone), "{right} accepted");
                executor.close_lane(lane);
                executor.close_lane(alone);
            }
        }
    });
}

#[test]
fn a_pause_that_the_backlog_holds_leaves_no_hole_in_what_the_head_knows() {
    hybrids(|checkpoint| {
        let mut executor = with_head(checkpoint, 2);
        // The ring of states that wait begins anywhere; the prompt's last state and the next token's wait too.
        for (start, rounds) in [(2, 62), (40, 1), (40, 30), (64, 20), (100, 62), (127, 2)] {
            let prompt = text(start);
            let serial = generate(&mut executor, &prompt, rounds + 1, WARM);
            let mut lane = executor.open_lane().unwrap();
            drafting(&mut executor, &mut lane, (&prompt, 0), most(0), WARM);
            for token in &serial[..rounds] {
                drafting(&mut executor, &mut lane, (&[*token], 0), most(0), WARM);
            }
            // A lane that has the same text as its prompt takes all of it in at once.
            let mut fresh = executor.open_lane().unwrap();
            let whole = [&prompt[..], &serial[..rounds]].concat();
            drafting(&mut executor, &mut fresh, (&whole, 0), most(0), WARM);
            let next = [serial[rounds]];
            let paused = drafting(&mut executor, &mut lane, (&next, 0), most(5), WARM);
            assert_eq!(paused.drafts.len(), 5);
            assert_eq!(paused, drafting(&mut executor, &mut fresh, (&next, 0), most(5), WARM));
            assert!(head_contents(&lane) == head_contents(&fresh), "{start}, {rounds}");
            executor.close_lane(lane);
            executor.close_lane(fresh);
        }
    });
}

#[test]
fn many_lanes_draft_together_what_each_drafts_alone() {
    hybrids(|checkpoint| {
        let mut executor = with_head(checkpoint, 2);
        // More than go through the output head together.
        const LANES: usize = 20;
        let texts: Vec<Vec<u32>> = (0..LANES).map(|index| text(3 + 7 * index)).collect();
        let depth = |index: usize| most([7, 1, 3, 0][index % 4]);
        let sampling = |index: usize| Sampling { seed: index as u64, ..WARM };
        let alone: Vec<Vec<StepOutcome>> = (0..LANES)
            .map(|index| {
                let mut lane = executor.open_lane().unwrap();
                let rounds = [&texts[index][..], &[9][..], &[11][..]];
                let rounds = rounds.map(|tokens| {
                    drafting(&mut executor, &mut lane, (tokens, 0), depth(index), sampling(index))
                });
                executor.close_lane(lane);
                rounds.to_vec()
            })
            .collect();
        let mut lanes: Vec<_> = (0..LANES).map(|_| executor.open_lane().unwrap()).collect();
        for round in 0..3 {
            let mut steps: Vec<_> = lanes
                .iter_mut()
                .enumerate()
                .map(|(index, lane)| {
                    let tokens = [&texts[index][..], &[9][..], &[11][..]][round];
                    Step { next_drafts: depth(index), ..step(lane, tokens, 0, 1, sampling(index)) }
                })
                .collect();
            let got = executor.round(&mut steps).unwrap().lanes;
            for (index, got) in got.into_iter().enumerate() {
                assert_eq!(got.drafts.len(), depth(index).count);
                assert_eq!(got, alone[index][round], "lane {index}, round {round}");
            }
        }
    });
}

#[test]
fn a_cancelled_round_leaves_the_head_as_it_was() {
    hybrids(|checkpoint| {
        let mut executor = with_head(checkpoint, 1);
        let prompt = text(70);
        let mut lane = executor.open_lane().unwrap();
        let first = drafting(&mut executor, &mut lane, (&prompt, 0), most(3), WARM);
        let mut twin = executor.fork(&lane).unwrap();
        let mut tokens = vec![first.draws[0].token.unwrap()];
        tokens.extend(first.drafts.iter().map(|draft| draft.0));
        for at in 0..4 {
            let polls = std::cell::Cell::new(0);
            let cancelled = || {
                polls.set(polls.get() + 1);
                polls.get() == at + 1
            };
            let mut step = step(&mut lane, &tokens, 3, 4, WARM);
            step.next_drafts = most(7);
            step.cancelled = &cancelled;
            let got = executor.round(&mut [step]).unwrap().lanes.remove(0);
            assert!(got.cancelled && got.drafts.is_empty());
        }
        let after = drafting(&mut executor, &mut lane, (&tokens, 3), most(7), WARM);
        let never = drafting(&mut executor, &mut twin, (&tokens, 3), most(7), WARM);
        assert_eq!(after, never);
        assert!(contents(&lane) == contents(&twin));
    });
}

#[test]
fn rows_that_do_not_fit_the_backlog_are_skipped() {
    let checkpoint = Checkpoint::open("goldens/tiny-qwen3_5", 1009);
    let mut executor = with_head(&checkpoint, 1);
    // More rows than wait for the head, of which the last one is a draft; then one by one past the ring's end.
    for rows in [63, 64, 65, 66, 129, 200] {
        let prompt = text(rows);
        let mut lane = executor.open_lane().unwrap();
        drafting(&mut executor, &mut lane, (&text(7), 0), most(0), WARM);
        drafting(&mut executor, &mut lane, (&prompt, 1), most(0), WARM);
        let mut fork = executor.fork(&lane).unwrap();
        for lane in [&mut lane, &mut fork] {
            let got = drafting(&mut executor, lane, (&[5], 0), most(3), WARM);
            assert_eq!(got.drafts.len(), 3, "{rows} rows");
        }
        for token in text(70) {
            drafting(&mut executor, &mut lane, (&[token], 0), most(0), WARM);
        }
        let got = drafting(&mut executor, &mut lane, (&[5], 0), most(3), WARM);
        assert_eq!(got.drafts.len(), 3, "{rows} rows");
        let mut alone = executor.open_lane().unwrap();
        let same = [&text(7)[..], &prompt[..rows - 1], &[5], &text(70), &[5]].concat();
        feed(&mut executor, &mut alone, &same, 0, WARM);
        assert!(contents(&lane) == contents(&alone), "{rows} rows");
    }
}
