use super::super::fake::{FakeControl, FakeEngine, expected_reply, request};
use super::super::*;
use super::*;

const VOCABULARY: u32 = 1000;

/// A fake state takes so many bytes a token.
const TOKEN_BYTES: u64 = 10;

fn prompt(length: u32, odd: u32) -> Vec<u32> {
    (0..length).map(|at| (at * 7 + odd * u32::from(at >= 150)) % VOCABULARY).collect()
}

/// A lane of the fake engine that holds these tokens.
fn held(engine: &mut FakeEngine, tokens: &[u32]) -> LaneId {
    let lane = engine.lane_open().unwrap();
    let rows = LaneRows {
        lane,
        position: 0,
        tokens,
        drafts: 0,
        draws: 0,
        sampling: tensorfold_plugin_api::sampling::Sampling::GREEDY,
        next: Default::default(),
    };
    engine.round(&[rows], &mut Vec::new()).unwrap();
    lane
}

/// Keeps prefixes of these lengths of `tokens`.
fn keep(prefixes: &mut Prefixes, engine: &mut FakeEngine, tokens: &[u32], lengths: &[usize]) {
    for &length in lengths {
        let lane = held(engine, &tokens[..length]);
        prefixes.keep(engine, lane, &tokens[..length]).unwrap();
        engine.lane_close(lane).unwrap();
    }
}

fn on(bytes: u64, entries: u32) -> (Prefixes, FakeEngine, FakeControl) {
    let (engine, control) = FakeEngine::new(VOCABULARY);
    (Prefixes::new(PrefixOptions { bytes, entries }), engine, control)
}

#[test]
fn the_longest_prefix_is_found_and_never_the_whole_prompt() {
    let (mut prefixes, mut engine, _) = on(u64::MAX, 10);
    let tokens = prompt(300, 0);
    keep(&mut prefixes, &mut engine, &tokens, &[64, 128, 256]);
    let mut length = |prompt: &[u32]| prefixes.find(prompt).map(|(_, tokens)| tokens);
    assert_eq!(length(&tokens), Some(256));
    assert_eq!(length(&tokens[..256]), Some(128));
    assert_eq!(length(&prompt(300, 1)), Some(128));
    assert_eq!(length(&tokens[..64]), None);
    assert_eq!(length(&tokens[1..]), None);
}

#[test]
fn borders_are_the_last_one_shared_beginnings_and_powers_of_two() {
    let (mut prefixes, mut engine, _) = on(u64::MAX, 10);
    assert_eq!(prefixes.borders(&prompt(64, 0), 0), [0; 0]);
    assert_eq!(prefixes.borders(&prompt(65, 0), 0), [64]);
    assert_eq!(prefixes.borders(&prompt(1500, 0), 0), [256, 512, 1024, 1472]);
    assert_eq!(prefixes.borders(&prompt(1500, 0), 512), [1024, 1472]);
    keep(&mut prefixes, &mut engine, &prompt(1500, 0), &[960]);
    // Equal up to token 150.
    assert_eq!(prefixes.borders(&prompt(1500, 1), 0), [128, 256, 512, 1024, 1472]);
    assert_eq!(Prefixes::new(PrefixOptions::default()).borders(&prompt(1500, 0), 0), [0; 0]);
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let (mut prefixes, mut engine, control) = on(u64::MAX, 2);
    let prompts: Vec<Vec<u32>> = (0..3).map(|first| vec![first; 65]).collect();
    keep(&mut prefixes, &mut engine, &prompts[0], &[64]);
    keep(&mut prefixes, &mut engine, &prompts[1], &[64]);
    assert!(prefixes.find(&prompts[0]).is_some());
    keep(&mut prefixes, &mut engine, &prompts[2], &[64]);
    let found: Vec<bool> = prompts.iter().map(|prompt| prefixes.find(prompt).is_some()).collect();
    assert_eq!((found, control.snapshots()), (vec![true, false, true], 2));
    prefixes.clear(&mut engine).unwrap();
    assert_eq!((control.snapshots(), prefixes.bytes), (0, 0));
}

#[test]
fn bytes_are_bounded_before_and_after_a_state_is_kept() {
    let (mut prefixes, mut engine, control) = on(200 * TOKEN_BYTES, 100);
    let tokens = prompt(300, 0);
    keep(&mut prefixes, &mut engine, &tokens, &[64, 128]);
    assert_eq!((control.snapshots(), prefixes.bytes), (2, 192 * TOKEN_BYTES));
    // As long as both: they make room, and at no time more is held.
    keep(&mut prefixes, &mut engine, &tokens, &[192]);
    assert_eq!((control.snapshots(), prefixes.bytes), (1, 192 * TOKEN_BYTES));
    assert!(control.most_snapshot_tokens() <= 200);
    // Too large for the limit alone: not kept, and not tried again.
    let (mut prefixes, mut engine, control) = on(100 * TOKEN_BYTES, 100);
    keep(&mut prefixes, &mut engine, &tokens, &[128, 192]);
    assert_eq!((control.snapshots(), control.snapshots_made()), (0, 1));
    assert_eq!(prefixes.borders(&tokens, 0), [0; 0]);
    keep(&mut prefixes, &mut engine, &tokens, &[64]);
    assert_eq!(control.snapshots(), 1);
}

#[test]
fn a_part_of_fixed_size_frees_no_more_than_a_state_needs() {
    let (mut prefixes, mut engine, control) = on(600_000, 100);
    control.weigh_snapshots(100_000);
    let tokens = prompt(512, 0);
    keep(&mut prefixes, &mut engine, &tokens, &[64, 128, 256, 448, 512]);
    assert_eq!(control.snapshots(), 5);
    assert_eq!(prefixes.bytes, 5 * 100_000 + (64 + 128 + 256 + 448 + 512) * TOKEN_BYTES);
}

#[test]
fn sizes_lie_on_the_line_through_what_was_seen() {
    let mut sizes = Sizes::default();
    assert_eq!(sizes.expected(64), 0);
    sizes.note(128, 5000);
    assert_eq!((sizes.expected(64), sizes.expected(4096)), (5000, 5000));
    sizes.note(256, 6000);
    assert_eq!((sizes.expected(128), sizes.expected(256), sizes.expected(1280)), (5000, 6000, 14_000));
    // Sizes that shrink, or that no sum holds.
    sizes.note(512, 100);
    assert_eq!(sizes.expected(1024), 5000);
    sizes.note(512, u64::MAX);
    assert_eq!(sizes.expected(u32::MAX), u64::MAX);
}

#[test]
fn a_shortage_frees_older_states_and_other_refusals_end_the_keeping() {
    let (mut prefixes, mut engine, control) = on(u64::MAX, 10);
    let tokens = prompt(300, 0);
    keep(&mut prefixes, &mut engine, &tokens, &[64, 128]);
    control.fail_snapshots(vec![PluginError::new(Status::OutOfMemory, "full")]);
    keep(&mut prefixes, &mut engine, &tokens, &[192]);
    assert_eq!(control.snapshots(), 2);
    assert_eq!(prefixes.find(&tokens).unwrap().1, 192);
    control.fail_snapshots(vec![PluginError::new(Status::OutOfMemory, "full"); 9]);
    keep(&mut prefixes, &mut engine, &tokens, &[256]);
    assert_eq!((control.snapshots(), prefixes.is_on()), (0, true));
    control.fail_snapshots(vec![PluginError::unsupported("no")]);
    keep(&mut prefixes, &mut engine, &tokens, &[64]);
    assert!(!prefixes.is_on());
}

#[test]
fn a_broken_engine_is_told_of() {
    let (mut prefixes, mut engine, control) = on(u64::MAX, 10);
    let lane = held(&mut engine, &[1; 64]);
    control.fail_snapshots(vec![PluginError::new(Status::DeviceLost, "gone")]);
    assert_eq!(prefixes.keep(&mut engine, lane, &[1; 64]).unwrap_err().status, Status::DeviceLost);
    // The engine's lane holds 64 tokens.
    assert_eq!(prefixes.keep(&mut engine, lane, &[1; 128]).unwrap_err().status, Status::Internal);
}

fn serve(prefixes: PrefixOptions) -> (EngineHandle, FakeControl) {
    let (engine, control) = FakeEngine::new(VOCABULARY);
    let options = EngineOptions { prefixes, ..EngineOptions::default() };
    (EngineHandle::start(Box::new(engine), &options).unwrap(), control)
}

/// The reply, and how many tokens of the prompt came from a kept state.
async fn reply(engine: &EngineHandle, wanted: GenerationRequest) -> (Vec<u32>, u32) {
    let mut events = engine.submit(wanted).unwrap();
    let (mut tokens, mut found) = (Vec::new(), 0);
    loop {
        match events.next().await.expect("an end before the end") {
            Event::Prefilled { cached } => found = cached,
            Event::Tokens(more) => tokens.extend(more),
            Event::Finished { .. } => return (tokens, found),
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
}

#[tokio::test]
async fn a_conversation_goes_on_from_where_it_was_kept() {
    let (engine, control) = serve(PrefixOptions { bytes: u64::MAX, entries: 16 });
    let mut conversation = prompt(700, 0);
    let mut cached = Vec::new();
    for turn in 0..4 {
        let (tokens, found) = reply(&engine, request(&conversation, 40)).await;
        assert_eq!(tokens, expected_reply(&conversation, 40, VOCABULARY));
        cached.push(found);
        conversation.extend(tokens);
        conversation.extend([turn; 30]);
    }
    assert_eq!(cached, [0, 640, 768, 832]);
    assert_eq!(engine.counters().cached_tokens_total, 640 + 768 + 832);
    // Another ending of the first part: the shared border was not kept yet, but a power of two was.
    let (tokens, found) = reply(&engine, request(&[&prompt(600, 0)[..], &[3; 90]].concat(), 5)).await;
    assert_eq!((tokens.len(), found), (5, 512));
    // Now it is.
    assert_eq!(reply(&engine, request(&[&prompt(600, 0)[..], &[4; 90]].concat(), 5)).await.1, 576);
    // A serial request neither finds nor keeps anything.
    let made = control.snapshots_made();
    let serial = GenerationRequest { drafts: false, ..request(&conversation, 5) };
    assert_eq!(reply(&engine, serial).await.1, 0);
    assert_eq!(control.snapshots_made(), made);
    engine.stop(std::time::Duration::from_secs(20));
    assert_eq!(control.snapshots(), 0);
}

#[tokio::test]
async fn a_state_that_cannot_be_restored_is_computed_anew() {
    let (engine, control) = serve(PrefixOptions { bytes: u64::MAX, entries: 16 });
    let wanted = prompt(200, 0);
    assert_eq!(reply(&engine, request(&wanted, 5)).await.1, 0);
    control.fail_restore(PluginError::new(Status::NotFound, "lost"));
    let (tokens, found) = reply(&engine, request(&wanted, 5)).await;
    assert_eq!((tokens, found), (expected_reply(&wanted, 5, VOCABULARY), 0));
    assert_eq!(reply(&engine, request(&wanted, 5)).await.1, 192);
}

#[tokio::test]
async fn without_room_for_states_nothing_is_kept() {
    let (engine, control) = serve(PrefixOptions::default());
    for _ in 0..2 {
        assert_eq!(reply(&engine, request(&prompt(200, 0), 5)).await.1, 0);
    }
    assert_eq!(control.snapshots_made(), 0);
}
