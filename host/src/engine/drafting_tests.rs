//! Replies with and without drafts, over random schedules.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fake::{FakeControl, FakeEngine, request};
use super::*;

const VOCABULARY: u32 = 200;

fn facts(drafters: Drafters) -> EngineFacts {
    EngineFacts {
        name: "fake".to_owned(),
        lanes: 4,
        positions: 4096,
        rows: 128,
        outputs: 9,
        vocabulary: VOCABULARY,
        counts_drafts: true,
        drafters,
    }
}

fn engine(drafters: Drafters, accuracy: u32, drafting: DraftOptions) -> (EngineHandle, FakeControl) {
    let (engine, control) = FakeEngine::with_facts(facts(drafters));
    control.draft_with(accuracy);
    let options = EngineOptions { lanes: 4, prefill_chunk: 64, drafting, ..EngineOptions::default() };
    (EngineHandle::start(Box::new(engine), &options).unwrap(), control)
}

/// Cuts a reply short at a token, as a budget for thinking does.
struct Budget {
    seen: u32,
    at: u32,
}

impl TokenWatch for Budget {
    fn token(&mut self, _: u32) -> Watch {
        self.seen += 1;
        if self.seen == self.at { Watch::Replace(vec![7, 8, 9]) } else { Watch::Continue }
    }

    fn certain(&self) -> u32 {
        if self.at > self.seen { self.at - self.seen - 1 } else { u32::MAX }
    }
}

/// One request of a schedule.
#[derive(Clone, Debug)]
struct Plan {
    prompt: Vec<u32>,
    max_tokens: u32,
    stops: BTreeSet<u32>,
    budget: u32,
    drafts: bool,
    /// Leaves after so many events.
    leaves: Option<u32>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let prompt = prop::collection::vec(0..VOCABULARY, 1..150);
    let stops = prop::collection::btree_set(0..VOCABULARY, 0..6);
    let leaves = prop::option::weighted(0.2, 0..4u32);
    (prompt, 1..60u32, stops, 0..40u32, prop::bool::weighted(0.9), leaves).prop_map(
        |(prompt, max_tokens, stops, budget, drafts, leaves)| Plan {
            prompt,
            max_tokens,
            stops,
            budget,
            drafts,
            leaves,
        },
    )
}

/// What became of each request that stayed.
async fn replies(engine: &EngineHandle, plans: &[Plan]) -> Vec<(Vec<u32>, FinishReason, ReplyStatistics)> {
    let mut open = Vec::new();
    for plan in plans {
        let watch =
            (plan.budget > 0).then(|| Box::new(Budget { seen: 0, at: plan.budget }) as Box<dyn TokenWatch>);
        let mut events = engine
            .submit(GenerationRequest {
                stop_tokens: plan.stops.clone(),
                drafts: plan.drafts,
                watch,
                ..request(&plan.prompt, plan.max_tokens)
            })
            .unwrap();
        match plan.leaves {
            None => open.push(events),
            Some(count) => {
                for _ in 0..count {
                    events.next().await;
                }
            }
        }
    }
    let mut replies = Vec::new();
    for mut events in open {
        let mut tokens = Vec::new();
        loop {
            match events.next().await.expect("an end before the end") {
                Event::Prefilled { .. } => {}
                Event::Tokens(more) => tokens.extend(more),
                Event::Finished { reason, statistics } => {
                    replies.push((tokens, reason, statistics));
                    break;
                }
                Event::Failed { message, .. } => panic!("{message}"),
            }
        }
    }
    replies
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn replies_with_drafts_are_those_without(
        plans in prop::collection::vec(plan(), 1..12),
        mtp in prop::option::of(1..8u32),
        block in prop::option::of((any::<bool>(), 1..16u32)),
        accuracy in prop::sample::select(vec![0, 40, 80, 100]),
        (copies, full) in any::<(bool, bool)>(),
        cycle in prop::option::of(3..30u32),
    ) {
        let block = block.map(|(second, drafts)| BlockDrafter { second, drafts });
        let drafters = Drafters { mtp, block };
        let depth = if full { DepthRule::Full } else { DepthRule::Measured };
        let on = DraftOptions { copies, depth, ..DraftOptions::default() };
        let (drafted, one) = engine(drafters, accuracy, on);
        let off = DraftOptions { enabled: false, ..DraftOptions::default() };
        let (serial, other) = engine(drafters, accuracy, off);
        if let Some(cycle) = cycle {
            // A reply that repeats itself, with an odd token here and there, is there to be copied.
            let reply: Vec<u32> = (0..64).map(|at| if at % 23 == 22 { 150 } else { at % cycle }).collect();
            one.reply_with(&reply);
            other.reply_with(&reply);
        }
        let with = run(replies(&drafted, &plans));
        let without = run(replies(&serial, &plans));
        prop_assert_eq!(with.len(), without.len());
        let stayed = plans.iter().filter(|plan| plan.leaves.is_none());
        for ((with, without), plan) in with.iter().zip(&without).zip(stayed) {
            prop_assert_eq!((&with.0, with.1), (&without.0, without.1));
            let tally = with.2.drafts.unwrap().total();
            prop_assert!(tally.accepted <= tally.drafted);
            prop_assert!(plan.drafts || tally.drafted == 0);
            prop_assert_eq!(without.2.drafts.unwrap().total(), DraftTally::default());
        }
    }
}

#[tokio::test]
async fn right_drafts_bring_a_reply_in_fewer_rounds_and_are_counted() {
    let (engine, _) = engine(
        Drafters { mtp: Some(3), block: None },
        100,
        DraftOptions { depth: DepthRule::Full, ..DraftOptions::default() },
    );
    let plan = Plan {
        prompt: vec![5; 70],
        max_tokens: 41,
        stops: BTreeSet::new(),
        budget: 0,
        drafts: true,
        leaves: None,
    };
    let (tokens, _, statistics) = replies(&engine, &[plan]).await.remove(0);
    assert_eq!((tokens.len(), statistics.rounds), (41, 10));
    let wanted = DraftTally { rounds: 10, drafted: 30, accepted: 30 };
    assert_eq!(statistics.drafts.unwrap().of(Proposer::Mtp), wanted);
    assert_eq!(engine.counters().drafts_total.unwrap().total(), wanted);
}

#[tokio::test]
async fn a_reply_that_repeats_is_copied_without_a_drafter() {
    let full = DraftOptions { depth: DepthRule::Full, ..DraftOptions::default() };
    let (engine, control) = engine(Drafters::default(), 0, full);
    assert!(engine.drafts());
    let reply: Vec<u32> = (0..50).map(|at| at % 10).collect();
    control.reply_with(&reply);
    let plan = Plan {
        prompt: vec![5],
        max_tokens: 50,
        stops: BTreeSet::new(),
        budget: 0,
        drafts: true,
        leaves: None,
    };
    let (tokens, _, statistics) = replies(&engine, &[plan]).await.remove(0);
    assert_eq!(tokens, reply);
    let copied = statistics.drafts.unwrap().of(Proposer::Copy);
    assert!(copied.accepted > 25 && copied.accepted == copied.drafted, "{copied:?}");
    assert!(statistics.rounds < 25);
}
