use super::super::drafting::Drafters;
use super::super::fake::{Call, FakeControl, FakeEngine, Fault, expected_reply, request};
use super::super::request::{Event, FinishReason, Priority, ReplyStatistics};
use super::super::round::LaneDrawn;
use super::*;
use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;

const LIMIT: Duration = Duration::from_secs(20);
const VOCABULARY: u32 = 1000;

fn start(options: &EngineOptions) -> (EngineHandle, FakeControl) {
    let (engine, control) = FakeEngine::new(VOCABULARY);
    (EngineHandle::start(Box::new(engine), options).unwrap(), control)
}

async fn collect(mut events: EventReceiver) -> (Vec<u32>, Event) {
    let mut tokens = Vec::new();
    loop {
        match events.next().await.expect("an end before the end") {
            Event::Prefilled { .. } => {}
            Event::Tokens(more) => tokens.extend(more),
            end => return (tokens, end),
        }
    }
}

fn statistics(end: Event) -> ReplyStatistics {
    match end {
        Event::Finished { reason: FinishReason::Length, statistics } => statistics,
        other => panic!("{other:?}"),
    }
}

fn failure(end: Event) -> (FailureKind, String) {
    match end {
        Event::Failed { kind, message } => (kind, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reply_is_the_one_the_prompt_asks_for_whatever_the_chunks() {
    let prompt: Vec<u32> = (0..700).map(|index| index % VOCABULARY).collect();
    for chunk in [1, 64, 100, 512, 4096] {
        let (engine, control) = start(&EngineOptions { prefill_chunk: chunk, ..EngineOptions::default() });
        let (tokens, end) = collect(engine.submit(request(&prompt, 5)).unwrap()).await;
        assert_eq!(tokens, expected_reply(&prompt, 5, VOCABULARY));
        let statistics = statistics(end);
        assert_eq!(
            (statistics.rounds, statistics.drafts, statistics.min_rows),
            (4, Some(DraftCounts::default()), 1)
        );
        for call in control.calls() {
            let Call::Round(lanes) = call else { continue };
            let (position, rows) = lanes[0];
            let border = (position + rows).is_multiple_of(64) || position + rows >= 700;
            assert!(border && rows <= chunk.max(64), "{position} + {rows}");
        }
    }
}

#[tokio::test]
async fn many_requests_at_once_are_all_answered_right() {
    for lanes in [1, 3] {
        let (engine, _) = FakeEngine::with_facts(EngineFacts {
            name: "fake".to_owned(),
            lanes,
            positions: 4096,
            rows: 256,
            vocabulary: VOCABULARY,
            counts_drafts: false,
            outputs: 1,
            drafters: Drafters::default(),
        });
        let options = EngineOptions { lanes: 8, prefill_chunk: 64, ..EngineOptions::default() };
        let engine = EngineHandle::start(Box::new(engine), &options).unwrap();
        let mut open = Vec::new();
        for index in 0..40u32 {
            let prompt: Vec<u32> =
                (0..1 + index * 7).map(|token| (token * 31 + index) % VOCABULARY).collect();
            let length = 1 + index % 9;
            open.push((engine.submit(request(&prompt, length)).unwrap(), prompt, length));
        }
        let mut total = 0;
        for (events, prompt, length) in open {
            let (tokens, end) = collect(events).await;
            assert_eq!(tokens, expected_reply(&prompt, length as usize, VOCABULARY));
            assert_eq!(statistics(end).drafts, None);
            total += u64::from(length);
        }
        let counters = engine.counters();
        assert_eq!((counters.requests_total, counters.completion_tokens_total), (40, total));
        assert_eq!((counters.requests_running, counters.requests_waiting), (0, 0));
        assert_eq!(counters.drafts_total, None);
        assert!(matches!(engine.stop(LIMIT), StopOutcome::Stopped(_)));
    }
}

#[tokio::test]
async fn a_stop_token_ends_the_reply_and_is_named_but_not_shown() {
    let (engine, control) = start(&EngineOptions::default());
    control.reply_with(&[5, 6, 7]);
    let wanted = GenerationRequest { stop_tokens: [7].into(), ..request(&[1], 100) };
    let (tokens, end) = collect(engine.submit(wanted).unwrap()).await;
    assert_eq!(tokens, [5, 6]);
    assert!(matches!(end, Event::Finished { reason: FinishReason::StopToken(7), .. }));
    assert_eq!(engine.counters().completion_tokens_total, 3);
}

#[tokio::test]
async fn a_dropped_receiver_frees_the_engine_at_the_next_round() {
    let (engine, control) = start(&EngineOptions::default());
    control.hold();
    let left = engine.submit(request(&[1, 2, 3], 4000)).unwrap();
    control.wait_for_round(1);
    let next = engine.submit(request(&[4], 2)).unwrap();
    drop(left);
    control.release();
    let (tokens, _) = collect(next).await;
    assert_eq!(tokens, expected_reply(&[4], 2, VOCABULARY));
    assert_eq!(engine.counters().requests_cancelled_total, 1);
    // Its prompt, and at most nothing more; then the other's prompt and one round.
    let rounds = control.calls().iter().filter(|call| matches!(call, Call::Round(_))).count();
    assert_eq!(rounds, 3);
}

#[tokio::test]
async fn a_long_prompt_is_left_between_two_chunks() {
    let (engine, control) = start(&EngineOptions { prefill_chunk: 64, ..EngineOptions::default() });
    control.hold();
    let left = engine.submit(request(&[1; 3000], 1)).unwrap();
    control.wait_for_round(1);
    drop(left);
    control.release();
    control.wait_for_closes(1);
    assert_eq!(control.calls().iter().filter(|call| matches!(call, Call::Round(_))).count(), 1);
}

#[tokio::test]
async fn a_full_queue_refuses_and_forgets_those_who_left() {
    let (engine, control) = start(&EngineOptions { queue: 1, ..EngineOptions::default() });
    control.hold();
    let running = engine.submit(request(&[1], 1)).unwrap();
    control.wait_for_round(1);
    let waiting = engine.submit(request(&[2], 1)).unwrap();
    assert_eq!(engine.submit(request(&[3], 1)).unwrap_err(), SubmitError::Busy { waiting: 1 });
    assert_eq!(engine.counters().requests_waiting, 1);
    drop(waiting);
    let third = engine.submit(request(&[3], 1)).unwrap();
    control.release();
    assert_eq!(collect(running).await.0, expected_reply(&[1], 1, VOCABULARY));
    assert_eq!(collect(third).await.0, expected_reply(&[3], 1, VOCABULARY));
}

#[tokio::test]
async fn background_requests_wait_behind_foreground_ones() {
    let (engine, control) = start(&EngineOptions::default());
    control.hold();
    let first = engine.submit(request(&[1], 1)).unwrap();
    control.wait_for_round(1);
    let background = GenerationRequest { priority: Priority::Background, ..request(&[2; 2], 1) };
    let background = engine.submit(background).unwrap();
    let foreground = engine.submit(request(&[3; 3], 1)).unwrap();
    control.release();
    for events in [first, background, foreground] {
        collect(events).await;
    }
    let prompts: Vec<u32> = control
        .calls()
        .into_iter()
        .filter_map(|call| match call {
            Call::Round(lanes) => Some(lanes[0].1),
            _ => None,
        })
        .collect();
    assert_eq!(prompts, [1, 3, 2]);
}

#[tokio::test]
async fn a_broken_engine_fails_open_requests_and_refuses_new_ones() {
    let faults = [
        Fault::Error(PluginError::new(Status::DeviceLost, "the card is gone")),
        Fault::Error(PluginError::new(Status::Panicked, "index out of bounds")),
        Fault::Panic("a bug"),
        Fault::Answer(vec![]),
        Fault::Answer(vec![LaneDrawn { tokens: vec![VOCABULARY], ..LaneDrawn::default() }]),
        Fault::Answer(vec![LaneDrawn { tokens: vec![1, 2], accepted: 1, ..LaneDrawn::default() }]),
    ];
    for fault in faults {
        let (engine, control) = start(&EngineOptions::default());
        control.hold();
        control.fail_round(2, fault);
        let running = engine.submit(request(&[1], 9)).unwrap();
        let waiting = engine.submit(request(&[2], 9)).unwrap();
        control.release();
        let (tokens, end) = collect(running).await;
        assert_eq!(tokens, expected_reply(&[1], 1, VOCABULARY));
        assert_eq!(failure(end).0, FailureKind::Engine);
        assert_eq!(failure(collect(waiting).await.1).0, FailureKind::Engine);
        assert!(matches!(engine.state(), EngineState::Failed(_)));
        assert!(matches!(engine.submit(request(&[1], 1)), Err(SubmitError::Failed(_))));
        assert_eq!(control.calls().iter().filter(|call| **call == Call::Close).count(), 0);
        assert!(matches!(engine.stop(LIMIT), StopOutcome::Failed(_)));
    }
}

#[tokio::test]
async fn a_refused_round_or_lane_fails_one_request_only() {
    let (engine, control) = start(&EngineOptions::default());
    control.fail_round(1, Fault::Error(PluginError::new(Status::OutOfMemory, "no room")));
    let (_, end) = collect(engine.submit(request(&[1], 2)).unwrap()).await;
    assert_eq!(failure(end).1, "the engine failed: no room (out-of-memory)");

    control.fail_open(PluginError::new(Status::OutOfMemory, "no lane"));
    let (_, end) = collect(engine.submit(request(&[1], 2)).unwrap()).await;
    assert_eq!(failure(end).1, "the engine failed: no lane (out-of-memory)");

    let (tokens, _) = collect(engine.submit(request(&[1], 2)).unwrap()).await;
    assert_eq!(tokens, expected_reply(&[1], 2, VOCABULARY));
    assert_eq!(engine.state(), EngineState::Serving);
}

#[tokio::test]
async fn stopping_ends_running_and_waiting_requests_and_gives_the_engine_back() {
    let (engine, control) = start(&EngineOptions::default());
    control.hold();
    let running = engine.submit(request(&[1], 4000)).unwrap();
    let waiting = engine.submit(request(&[2], 4000)).unwrap();
    control.wait_for_round(1);
    engine.begin_stop();
    assert_eq!(engine.submit(request(&[3], 1)).unwrap_err(), SubmitError::Stopping);
    assert!(matches!(engine.stop(Duration::ZERO), StopOutcome::Stuck));
    control.release();
    for events in [running, waiting] {
        let (kind, message) = failure(collect(events).await.1);
        assert_eq!((kind, message.as_str()), (FailureKind::ShuttingDown, SHUTTING_DOWN));
    }
    assert!(matches!(engine.stop(LIMIT), StopOutcome::Stopped(_)));
    assert_eq!(control.calls().last(), Some(&Call::Close));
}

#[tokio::test]
async fn neighbours_that_come_and_go_change_no_reply() {
    let (engine, control) = FakeEngine::with_facts(EngineFacts {
        name: "fake".to_owned(),
        lanes: 4,
        positions: 4096,
        rows: 256,
        vocabulary: VOCABULARY,
        counts_drafts: true,
        outputs: 1,
        drafters: Drafters::default(),
    });
    let options = EngineOptions { lanes: 4, prefill_chunk: 64, ..EngineOptions::default() };
    let engine = EngineHandle::start(Box::new(engine), &options).unwrap();
    let mut state = 1u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut left = 0;
    let mut kept = Vec::new();
    for _ in 0..200 {
        let prompt: Vec<u32> = (0..1 + random(200)).map(|_| random(VOCABULARY)).collect();
        let length = 1 + random(30);
        let mut events = engine.submit(request(&prompt, length)).unwrap();
        if random(3) == 0 {
            // Gone at once, or somewhere in the middle of the reply.
            for _ in 0..random(4) {
                events.next().await;
            }
            left += 1;
        } else {
            kept.push((events, prompt, length));
        }
    }
    for (events, prompt, length) in kept {
        let (tokens, end) = collect(events).await;
        assert_eq!(tokens, expected_reply(&prompt, length as usize, VOCABULARY));
        statistics(end);
    }
    assert!(left > 40);
    assert!(matches!(engine.stop(LIMIT), StopOutcome::Stopped(_)));
    let count = |wanted: &Call| control.calls().iter().filter(|call| *call == wanted).count();
    assert_eq!(count(&Call::Open), count(&Call::Close));
}

fn lanes_of_rounds(control: &FakeControl) -> Vec<Vec<(u32, u32)>> {
    let calls = control.calls().into_iter();
    calls
        .filter_map(|call| match call {
            Call::Round(lanes) => Some(lanes),
            _ => None,
        })
        .collect()
}

fn several_lanes() -> (EngineHandle, FakeControl) {
    let (engine, control) = FakeEngine::with_facts(EngineFacts {
        name: "fake".to_owned(),
        lanes: 16,
        positions: 4096,
        rows: 1024,
        outputs: 1,
        vocabulary: VOCABULARY,
        counts_drafts: true,
        drafters: Drafters::default(),
    });
    let options = EngineOptions { lanes: 16, ..EngineOptions::default() };
    (EngineHandle::start(Box::new(engine), &options).unwrap(), control)
}

#[tokio::test]
async fn a_running_reply_gets_its_token_in_every_round_of_a_long_prompt() {
    let (engine, control) = several_lanes();
    control.hold();
    let running = engine.submit(request(&[1], 300)).unwrap();
    control.wait_for_round(1);
    let long = engine.submit(request(&[2; 3000], 2)).unwrap();
    control.release();
    collect(running).await;
    collect(long).await;
    let rounds = lanes_of_rounds(&control);
    let beside: Vec<_> = rounds.iter().filter(|lanes| lanes.len() == 2).collect();
    assert!(beside.len() >= 23, "{}", beside.len());
    assert!(beside.iter().all(|lanes| lanes[0].1 == 1 && lanes[1].1 <= 128));
    assert!(rounds.iter().all(|lanes| lanes.iter().map(|lane| lane.1).sum::<u32>() <= 513));
}

#[tokio::test]
async fn a_short_prompt_goes_before_what_is_left_of_a_long_one() {
    let (engine, control) = several_lanes();
    control.hold();
    let long = engine.submit(request(&[2; 2000], 1)).unwrap();
    control.wait_for_round(1);
    let short = engine.submit(request(&[3; 100], 1)).unwrap();
    control.release();
    collect(short).await;
    collect(long).await;
    let rounds = lanes_of_rounds(&control);
    assert_eq!(rounds[..2], [vec![(0, 512)], vec![(512, 384), (0, 100)]]);
}

#[test]
fn requests_that_cannot_run_are_refused_with_the_reason() {
    let (engine, _) = start(&EngineOptions { context: 100, ..EngineOptions::default() });
    let refusal =
        |prompt: &[u32], max_tokens| engine.submit(request(prompt, max_tokens)).unwrap_err().to_string();
    assert_eq!(refusal(&[], 1), "the prompt is empty: it needs at least one token");
    assert_eq!(refusal(&[3, 1000], 1), "token id 1000 is outside the vocabulary: valid ids are 0 to 999");
    assert_eq!(refusal(&[3], 0), "max_tokens is 0: a reply has at least one token");
    assert_eq!(refusal(&[3], 100), "the context holds 100 tokens, prompt and reply want 101");
    assert!(engine.submit(request(&[3], 99)).is_ok());
}
