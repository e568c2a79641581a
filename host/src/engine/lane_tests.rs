//! One lane: what it feeds, and what it makes of draws.

use super::super::fake::request;
use super::super::mailbox::mailbox;
use super::super::request::GenerationRequest;
use super::super::round::Draft;
use super::*;

fn lane(request: GenerationRequest) -> Lane {
    let (events, _) = mailbox();
    let now = Instant::now();
    Lane::new(LaneId(1), Waiting { request, events, submitted: now }, now, true, true)
}

fn one(token: u32) -> LaneDrawn {
    LaneDrawn { tokens: vec![token], ..LaneDrawn::default() }
}

#[test]
fn prompt_chunks_end_at_multiples_of_64_and_at_the_end_of_the_prompt() {
    assert_eq!(chunk_end(0, 1000, 256), Some(256));
    assert_eq!(chunk_end(0, 1000, 300), Some(256));
    assert_eq!(chunk_end(192, 1000, 100), Some(256));
    assert_eq!(chunk_end(896, 1000, 256), Some(1000));
    assert_eq!(chunk_end(0, 10, 256), Some(10));
    assert_eq!(chunk_end(0, 1000, 63), None);
    assert_eq!(chunk_end(0, 1000, 0), None);
}

const LIMITS: RowLimits = RowLimits { rows: 512, outputs: 32 };

/// As far as possible, with a drafter that makes so many drafts.
fn guide(limits: RowLimits, drafts: u32) -> Guide<'static> {
    Guide {
        limits,
        drafters: Drafters { mtp: Some(drafts), block: None },
        mtp_confidence: 0.3,
        pace: None,
        load: Load::default(),
    }
}

fn prompt(lane: &mut Lane, drawn: &LaneDrawn) -> Settled {
    assert!(lane.prepare_prompt(64, &guide(LIMITS, 0)));
    lane.settle(drawn, Instant::now())
}

fn reply(lane: &mut Lane, drawn: &LaneDrawn) -> Settled {
    lane.prepare_reply(&guide(LIMITS, 3));
    lane.settle(drawn, Instant::now())
}

fn with_next(tokens: &[u32], next: &[u32]) -> LaneDrawn {
    with_next_after(tokens, 0, next)
}

fn with_next_after(tokens: &[u32], accepted: u32, next: &[u32]) -> LaneDrawn {
    let next = next.iter().map(|&token| Draft { token, probability: 0.5 }).collect();
    LaneDrawn { next, ..answer(tokens, accepted) }
}

fn answer(tokens: &[u32], accepted: u32) -> LaneDrawn {
    LaneDrawn { tokens: tokens.to_vec(), accepted, ..LaneDrawn::default() }
}

#[test]
fn a_prompt_that_was_passed_over_eight_times_goes_before_shorter_ones() {
    let mut long = lane(request(&[5; 900], 4));
    let short = lane(request(&[5; 100], 4));
    for _ in 0..8 {
        assert!(short.prompt_turn() < long.prompt_turn());
        long.note_turn(false);
    }
    assert!(long.prompt_turn() < short.prompt_turn());
    long.note_turn(true);
    assert!(short.prompt_turn() < long.prompt_turn());
}

#[test]
fn only_the_last_prompt_row_is_drawn_from() {
    let mut lane = lane(request(&[5; 130], 4));
    assert!(lane.prepare_prompt(64, &guide(LIMITS, 3)));
    let rows = lane.rows();
    assert_eq!((rows.position, rows.tokens.len(), rows.draws, rows.next.count), (0, 64, 0, 0));
    prompt(&mut lane, &LaneDrawn::default());
    prompt(&mut lane, &LaneDrawn::default());
    assert!(lane.prepare_prompt(64, &guide(LIMITS, 3)));
    let rows = lane.rows();
    // Of four tokens the last prompt row draws one and the next round at least one.
    assert_eq!((rows.position, rows.tokens.len(), rows.draws, rows.next.count), (128, 2, 1, 2));
    let settled = lane.settle(&one(9), Instant::now());
    assert_eq!((settled.tokens, settled.end), (vec![9], None));
    lane.prepare_reply(&guide(LIMITS, 0));
    let rows = lane.rows();
    assert_eq!((rows.position, rows.tokens, rows.draws), (130, &[9][..], 1));
}

#[test]
fn the_reply_ends_at_its_length_or_at_a_stop_token() {
    let mut short = lane(request(&[1], 1));
    let settled = prompt(&mut short, &one(9));
    assert_eq!((settled.tokens, settled.end), (vec![9], Some(FinishReason::Length)));

    let mut stopped = lane(GenerationRequest { stop_tokens: [7].into(), ..request(&[1], 9) });
    let settled = prompt(&mut stopped, &one(7));
    assert_eq!((settled.tokens, settled.counted), (vec![], 1));
    assert_eq!(settled.end, Some(FinishReason::StopToken(7)));
}

#[test]
fn accepted_drafts_count_as_tokens_and_only_the_last_is_fed_again() {
    let mut lane = lane(request(&[1], 10));
    prompt(&mut lane, &one(2));
    reply(&mut lane, &with_next(&[3], &[4, 5, 9]));
    lane.prepare_reply(&guide(LIMITS, 3));
    let rows = lane.rows();
    assert_eq!((rows.position, rows.tokens, rows.drafts, rows.draws), (2, &[3, 4, 5, 9][..], 3, 4));
    let settled = lane.settle(&answer(&[4, 5, 6], 2), Instant::now());
    assert_eq!(settled.tokens, [4, 5, 6]);
    lane.prepare_reply(&guide(LIMITS, 3));
    let rows = lane.rows();
    assert_eq!((rows.position, rows.tokens, rows.drafts), (5, &[6][..], 0));
    let statistics = lane.statistics(Instant::now());
    let tally = statistics.drafts.unwrap().of(Proposer::Mtp);
    assert_eq!((statistics.rounds, tally.rounds, tally.drafted, tally.accepted), (2, 1, 3, 2));
    assert_eq!(statistics.min_rows, 1);
}

#[test]
fn drafts_never_pass_what_the_reply_may_have_or_the_round_can_test() {
    let drafts = |max_tokens, limits| {
        let mut lane = lane(request(&[1], max_tokens));
        prompt(&mut lane, &one(2));
        lane.prepare_reply(&guide(LIMITS, 4));
        lane.settle(&with_next(&[3], &[4, 5, 6, 7]), Instant::now());
        lane.prepare_reply(&guide(limits, 0));
        lane.rows().drafts
    };
    assert_eq!(drafts(100, LIMITS), 4);
    // Two are there; two drafts and what follows them fill five.
    assert_eq!(drafts(5, LIMITS), 2);
    assert_eq!(drafts(3, LIMITS), 0);
    assert_eq!(drafts(100, RowLimits { rows: 512, outputs: 4 }), 3);
    assert_eq!(drafts(100, RowLimits { rows: 3, outputs: 32 }), 2);
    let serial = GenerationRequest { drafts: false, ..request(&[1], 100) };
    let mut lane = lane(serial);
    prompt(&mut lane, &one(2));
    lane.prepare_reply(&guide(LIMITS, 3));
    assert_eq!(lane.rows().next, NextDrafts::default());
}

#[test]
fn a_copy_takes_the_place_of_the_drafters_guesses() {
    let prompt_tokens: Vec<u32> = (10..19).chain([50, 51, 52, 53]).chain(10..18).collect();
    let mut lane = lane(request(&prompt_tokens, 40));
    assert_eq!(prompt(&mut lane, &one(18)).tokens, [18]);
    lane.prepare_reply(&guide(LIMITS, 3));
    let rows = lane.rows();
    // The last eight tokens stood before, and all that followed them there is taken.
    let copied: Vec<u32> = [50, 51, 52, 53].into_iter().chain(10..19).collect();
    assert_eq!((rows.tokens[0], &rows.tokens[1..]), (18, &copied[..]));
    let settled = lane.settle(&with_next_after(&[50, 51, 60], 2, &[61]), Instant::now());
    assert_eq!(settled.tokens, [50, 51, 60]);
    // Nothing repeats now: the drafter's turn.
    lane.prepare_reply(&guide(LIMITS, 3));
    assert_eq!(lane.rows().tokens, [60, 61]);
    lane.settle(&answer(&[61, 62], 1), Instant::now());
    let counts = lane.statistics(Instant::now()).drafts.unwrap();
    assert_eq!((counts.of(Proposer::Copy).drafted, counts.of(Proposer::Copy).accepted), (13, 2));
    assert_eq!((counts.of(Proposer::Mtp).drafted, counts.of(Proposer::Mtp).accepted), (1, 1));
}

/// Verdicts in order, and how far they are certain.
struct Script(Vec<Watch>);

impl TokenWatch for Script {
    fn token(&mut self, _: u32) -> Watch {
        self.0.remove(0)
    }

    fn certain(&self) -> u32 {
        let replaced = self.0.iter().position(|verdict| matches!(verdict, Watch::Replace(_)));
        replaced.map_or(u32::MAX, |tokens| tokens as u32)
    }
}

#[test]
fn a_watch_can_replace_a_token_and_end_the_reply() {
    let more = [Watch::Continue, Watch::Replace(vec![20, 21]), Watch::Continue, Watch::Continue];
    let script = Script(more.into_iter().chain([Watch::Stop]).collect());
    let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 10) });
    assert_eq!(prompt(&mut lane, &one(2)).tokens, [2]);
    // The token after the next is replaced: no guess about it can be used.
    assert_eq!(reply(&mut lane, &with_next(&[3], &[4, 5])).tokens, [20, 21]);
    lane.prepare_reply(&guide(LIMITS, 3));
    assert_eq!((lane.rows().tokens, lane.rows().drafts), (&[20, 21][..], 0));
    let settled = lane.settle(&one(4), Instant::now());
    assert_eq!((settled.tokens, settled.end), (vec![4], Some(FinishReason::Watch)));
}

#[test]
fn drafts_end_before_a_token_that_may_be_replaced() {
    let mut verdicts = vec![Watch::Continue; 4];
    verdicts.extend([Watch::Replace(vec![20]), Watch::Continue]);
    let watch = Some(Box::new(Script(verdicts)) as Box<dyn TokenWatch>);
    let mut lane = lane(GenerationRequest { watch, ..request(&[1], 100) });
    prompt(&mut lane, &one(2));
    // Three more tokens are certain: one of this round, two of the next.
    lane.prepare_reply(&guide(LIMITS, 3));
    assert_eq!(lane.rows().next.count, 2);
    lane.settle(&with_next(&[3], &[4, 5]), Instant::now());
    lane.prepare_reply(&guide(LIMITS, 3));
    assert_eq!((lane.rows().drafts, lane.rows().next.count), (2, 1));
    // The last of them is replaced, and the engine does not hold it.
    let settled = lane.settle(&answer(&[4, 5, 6], 2), Instant::now());
    assert_eq!(settled.tokens, [4, 5, 20]);
    lane.prepare_reply(&guide(LIMITS, 0));
    assert_eq!((lane.rows().position, lane.rows().tokens), (5, &[20][..]));
}

#[test]
fn replaced_tokens_never_pass_the_length() {
    let script = Script(vec![Watch::Replace(vec![20, 21, 22]), Watch::Continue, Watch::Continue]);
    let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 2) });
    let settled = prompt(&mut lane, &one(2));
    assert_eq!((settled.tokens, settled.end), (vec![20, 21], Some(FinishReason::Length)));
}

#[test]
fn a_watch_can_end_the_reply_at_a_replaced_token() {
    let script = Script(vec![Watch::Replace(vec![20, 21, 22]), Watch::Continue, Watch::Stop]);
    let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 9) });
    let settled = prompt(&mut lane, &one(2));
    assert_eq!((settled.tokens, settled.end), (vec![20, 21], Some(FinishReason::Watch)));
}

/// A stored round: what a target's greedy choices make of some drafts.
#[derive(serde::Deserialize)]
struct StoredRound {
    name: String,
    /// The last of them is not fed yet.
    history: Vec<u32>,
    drafts: Vec<u32>,
    target_argmax: Vec<u32>,
    room: u32,
    stop_tokens: BTreeSet<u32>,
    new: Vec<u32>,
    finish: Option<String>,
    kv_end: u32,
}

#[test]
fn a_round_ends_a_reply_where_the_stored_rounds_end_it() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/dflash/unit/greedy_round.json");
    let rounds: Vec<StoredRound> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(rounds.len(), 11);
    for round in rounds {
        let (&anchor, before) = round.history.split_last().unwrap();
        let max_tokens = round.room + 1;
        let mut lane =
            lane(GenerationRequest { stop_tokens: round.stop_tokens.clone(), ..request(before, max_tokens) });
        assert!(lane.prepare_prompt(64, &guide(LIMITS, 3)));
        lane.settle(&with_next(&[anchor], &round.drafts), Instant::now());
        lane.prepare_reply(&guide(LIMITS, 3));
        let rows = lane.rows();
        let drafts = &rows.tokens[1..];
        // What there is no room for is not fed at all: room n takes n - 1 drafts and the token after them.
        let useful = round.drafts.len().min(round.room as usize - 1);
        assert_eq!((rows.tokens[0], drafts), (anchor, &round.drafts[..useful]), "{}", round.name);
        let accepted = drafts.iter().zip(&round.target_argmax).take_while(|(a, b)| a == b).count();
        let drawn = answer(&round.target_argmax[..=accepted], accepted as u32);
        let settled = lane.settle(&drawn, Instant::now());
        let (finish, counted) = match settled.end {
            None => (None, settled.tokens.clone()),
            Some(FinishReason::Length) => (Some("length"), settled.tokens.clone()),
            Some(FinishReason::StopToken(stop)) => (Some("stop"), [&settled.tokens[..], &[stop]].concat()),
            Some(other) => panic!("{}: {other:?}", round.name),
        };
        assert_eq!((counted, finish), (round.new, round.finish.as_deref()), "{}", round.name);
        // A reply that has ended goes on from nowhere: its lane is closed, and what it holds is kept by nobody.
        if settled.end.is_none() {
            assert_eq!(lane.position, round.kv_end, "{}", round.name);
            lane.prepare_reply(&guide(LIMITS, 0));
            assert_eq!(lane.rows().tokens, &drawn.tokens[accepted..], "{}", round.name);
        }
    }
}
