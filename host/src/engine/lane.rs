//! One running request: what it feeds next and what it makes of the draws.

use std::collections::BTreeSet;
use std::time::Instant;

use tensorfold_plugin_api::plugin::NextDrafts;
use tensorfold_plugin_api::sampling::Sampling;

use super::copies::{Copies, MATCH, WINDOW};
use super::drafting::{DraftCounts, Drafters, Proposer};
use super::mailbox::EventSender;
use super::policy::{LanePace, Load, Pace};
use super::queue::Waiting;
use super::request::{FinishReason, ReplyStatistics, TokenWatch, Watch};
use super::round::{LaneDrawn, LaneId, LaneRows};

/// Prompt chunks end at absolute multiples of this, so that a state kept there
/// is the same whichever request made it.
pub(super) const CHUNK_BORDER: u32 = 64;

/// Rounds after which a prompt goes before shorter ones.
const MOST_PASSED_OVER: u32 = 8;

/// A request with a lane.
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) request_id: String,
    pub(super) events: EventSender,
    /// The prompt and the reply so far. Of the reply, what lies from `position`
    /// on is not held by the engine yet; it is never empty after the prompt.
    context: Vec<u32>,
    prompt: u32,
    sampling: Sampling,
    stop_tokens: BTreeSet<u32>,
    watch: Option<Box<dyn TokenWatch>>,
    max_tokens: u32,
    /// Tokens the engine holds for this lane.
    position: u32,
    /// Prompt tokens that came from a kept state.
    cached: u32,
    /// Rounds in which other prompts went first.
    passed_over: u32,
    /// Where the prompt's state is to be kept, the next one last.
    borders: Vec<u32>,
    /// Whether drafts may be used.
    drafting: bool,
    copies: Option<Copies>,
    pace: LanePace,
    /// What the engine guesses to come after the context.
    proposed: Option<Proposed>,
    /// The rows of the round to come or that is being computed.
    feed: Feed,
    submitted: Instant,
    started: Instant,
    prefilled: Option<Instant>,
    statistics: ReplyStatistics,
}

/// Guesses of what comes next.
struct Proposed {
    by: Proposer,
    tokens: Vec<u32>,
}

/// What a lane feeds in one round.
#[derive(Default)]
struct Feed {
    /// Tokens of a reply with drafts behind them; a prompt is fed from the context.
    tokens: Vec<u32>,
    rows: u32,
    drafts: u32,
    by: Option<Proposer>,
    draws: u32,
    next: NextDrafts,
    next_by: Option<Proposer>,
}

/// The most that a lane may feed in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowLimits {
    pub(super) rows: u32,
    /// Rows that may be drawn from.
    pub(super) outputs: u32,
}

/// What decides how far a lane drafts in a round.
#[derive(Clone, Copy)]
pub(super) struct Guide<'a> {
    pub(super) limits: RowLimits,
    pub(super) drafters: Drafters,
    pub(super) mtp_confidence: f32,
    /// `None`: as far as possible.
    pub(super) pace: Option<&'a Pace>,
    /// The other lanes of the round.
    pub(super) load: Load,
}

/// What a round made of a lane.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Reply tokens to tell the reader.
    pub(super) tokens: Vec<u32>,
    /// Reply tokens that count, the stop token included.
    pub(super) counted: u32,
    /// Set when the reply is complete.
    pub(super) end: Option<FinishReason>,
    /// A token was replaced.
    replaced: bool,
}

impl Lane {
    /// A lane that begins now.
    pub(super) fn new(id: LaneId, waiting: Waiting, now: Instant, counts_drafts: bool, copies: bool) -> Self {
        let Waiting { request, events, submitted } = waiting;
        Lane {
            id,
            request_id: request.id,
            events,
            prompt: request.prompt.len() as u32,
            context: request.prompt,
            sampling: request.sampling,
            stop_tokens: request.stop_tokens,
            watch: request.watch,
            max_tokens: request.max_tokens,
            position: 0,
            cached: 0,
            passed_over: 0,
            borders: Vec::new(),
            drafting: request.drafts,
            copies: (copies && request.drafts).then(|| Copies::new(MATCH, WINDOW)),
            pace: LanePace::new(),
            proposed: None,
            feed: Feed::default(),
            submitted,
            started: now,
            prefilled: None,
            statistics: ReplyStatistics {
                drafts: counts_drafts.then(DraftCounts::default),
                queue: now.duration_since(submitted),
                ..ReplyStatistics::default()
            },
        }
    }

    /// Goes on from a kept state of so many tokens, 0 for none, and stops at
    /// `borders`, ascending, for states to be kept.
    pub(super) fn begin(&mut self, cached: u32, borders: Vec<u32>) {
        (self.position, self.cached) = (cached, cached);
        self.borders = borders;
        self.borders.reverse();
    }

    /// Prompt tokens that came from a kept state.
    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    /// What the engine holds of the prompt, when its state is to be kept now.
    pub(super) fn take_border(&mut self) -> Option<&[u32]> {
        self.borders.pop_if(|border| *border == self.position)?;
        Some(&self.context[..self.position as usize])
    }

    /// Where the prompt stands among others: those that were passed over too
    /// often first, then the shortest.
    pub(super) fn prompt_turn(&self) -> (bool, u32) {
        (self.passed_over < MOST_PASSED_OVER, self.prompt - self.position)
    }

    /// Notes whether other prompts left no rows for this one.
    pub(super) fn note_turn(&mut self, taken: bool) {
        self.passed_over = if taken { 0 } else { self.passed_over + 1 };
    }

    /// Whether prompt tokens are left to feed.
    pub(super) fn in_prompt(&self) -> bool {
        self.position < self.prompt
    }

    /// Length of the prompt in tokens.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt
    }

    /// Makes the next chunk of the prompt ready, at most `chunk` rows. False
    /// when that does not reach the next border.
    pub(super) fn prepare_prompt(&mut self, chunk: u32, guide: &Guide<'_>) -> bool {
        let until = self.borders.last().copied().unwrap_or(self.prompt);
        let Some(end) = chunk_end(self.position, until, chunk) else { return false };
        let draws = u32::from(end == self.prompt);
        self.feed.rows = end - self.position;
        (self.feed.drafts, self.feed.by, self.feed.draws) = (0, None, draws);
        self.ask(guide, draws > 0);
        true
    }

    /// Makes the reply tokens ready that the engine does not hold yet, and
    /// behind them as many drafts as are of use.
    pub(super) fn prepare_reply(&mut self, guide: &Guide<'_>) {
        let pending = &self.context[self.position as usize..];
        let count = pending.len().min(guide.limits.rows as usize);
        let whole = count == pending.len();
        self.feed.tokens.clear();
        self.feed.tokens.extend_from_slice(&pending[..count]);
        (self.feed.drafts, self.feed.by) = (0, None);
        let proposed = self.proposed.take();
        // Guesses follow on the one token that was drawn last, not on several that replaced it.
        let room = if count == 1 && whole { self.draft_room(guide.limits, 0) } else { 0 };
        if room > 0 && !self.feed_copy(room, guide) {
            let allowed = guide.pace.is_none_or(Pace::allows_drafts);
            if let Some(proposed) = proposed.filter(|_| allowed) {
                let drafts = proposed.tokens.len().min(room as usize);
                self.feed.tokens.extend_from_slice(&proposed.tokens[..drafts]);
                (self.feed.drafts, self.feed.by) = (drafts as u32, Some(proposed.by));
            }
        }
        self.feed.rows = self.feed.tokens.len() as u32;
        self.feed.draws = if whole { self.feed.drafts + 1 } else { 0 };
        self.ask(guide, whole);
    }

    /// Feeds what followed earlier in the context, in place of any drafter's
    /// guesses. False where nothing repeats or it does not pay.
    fn feed_copy(&mut self, room: u32, guide: &Guide<'_>) -> bool {
        let Some(copies) = &self.copies else { return false };
        let found = copies.find(&self.context, room as usize);
        let most = found.len() as u32;
        let depth = match guide.pace {
            _ if most == 0 => 0,
            None => most,
            Some(pace) => self.pace.copies(pace, most, guide.load),
        };
        self.feed.tokens.extend_from_slice(&found[..depth as usize]);
        if depth > 0 {
            (self.feed.drafts, self.feed.by) = (depth, Some(Proposer::Copy));
        }
        depth > 0
    }

    /// What this lane adds to a round beyond one row and one token, for the lanes after it.
    pub(super) fn extra_load(&self, pace: Option<&Pace>) -> Load {
        let tokens = self.feed.by.map_or(1.0, |by| self.pace.expected(by, self.feed.drafts));
        let draft_seconds = match (pace, self.feed.next_by) {
            (Some(pace), Some(by)) => pace.drafts(by, self.feed.next.count as u32),
            _ => 0.0,
        };
        Load { rows: self.feed.drafts, tokens: tokens - 1.0, draft_seconds }
    }

    /// Who was asked for drafts in the round that was made ready, and for how many.
    pub(super) fn asked(&self) -> Option<(Proposer, u32)> {
        self.feed.next_by.map(|by| (by, self.feed.next.count as u32))
    }

    /// Rounds after the prompt so far.
    pub(super) fn rounds(&self) -> u64 {
        self.statistics.rounds
    }

    /// The rows that were made ready.
    pub(super) fn rows(&self) -> LaneRows<'_> {
        let from = self.position as usize;
        let tokens = match self.in_prompt() {
            true => &self.context[from..from + self.feed.rows as usize],
            false => &self.feed.tokens[..],
        };
        LaneRows {
            lane: self.id,
            position: self.position,
            tokens,
            drafts: self.feed.drafts,
            draws: self.feed.draws,
            sampling: self.sampling,
            next: self.feed.next,
        }
    }

    /// How many drafts can be of use in the round to come (`ahead` 0) or the one after it (1).
    fn draft_room(&self, limits: RowLimits, ahead: u32) -> u32 {
        if !self.drafting {
            return 0;
        }
        // A round of n drafts brings up to n + 1 tokens, and each round at least one.
        let left = self.max_tokens.saturating_sub(self.produced()).saturating_sub(1 + ahead);
        let certain = self.watch.as_ref().map_or(u32::MAX, |watch| watch.certain().saturating_sub(ahead));
        left.min(certain).min(limits.rows.saturating_sub(1)).min(limits.outputs.saturating_sub(1))
    }

    /// Asks for the drafts of the round after, unless this round draws nothing.
    fn ask(&mut self, guide: &Guide<'_>, draws: bool) {
        (self.feed.next_by, self.feed.next) = (None, NextDrafts::default());
        let room = if draws { self.draft_room(guide.limits, 1) } else { 0 };
        if room == 0 {
            return;
        }
        let chosen = match guide.pace {
            None => guide.drafters.proposers().next(),
            Some(pace) => self.pace.choose(pace, guide.drafters, guide.load),
        };
        if let Some((by, drafts)) = chosen {
            let confidence = if by == Proposer::Mtp { guide.mtp_confidence } else { 0.0 };
            let count = drafts.min(room) as usize;
            self.feed.next_by = Some(by);
            self.feed.next = NextDrafts { kind: by.kind(), count, confidence };
        }
    }

    fn produced(&self) -> u32 {
        self.context.len() as u32 - self.prompt
    }

    /// Takes the result of the round whose rows were made ready last.
    pub(super) fn settle(&mut self, drawn: &LaneDrawn, now: Instant) -> Settled {
        let first_of_reply = self.prefilled.is_none();
        let Feed { rows, drafts, by, next_by, .. } = self.feed;
        self.position += rows - drafts + drawn.accepted;
        if let Some(by) = by {
            self.pace.note(by, drafts, drawn.accepted);
        }
        if self.in_prompt() {
            self.index_copies(self.position);
            return Settled::default();
        }
        if first_of_reply {
            self.prefilled = Some(now);
            self.statistics.prefill = now.duration_since(self.started);
            self.statistics.time_to_first_token = now.duration_since(self.submitted);
        } else {
            self.statistics.min_rows = match self.statistics.rounds {
                0 => rows,
                _ => self.statistics.min_rows.min(rows),
            };
            self.statistics.rounds += 1;
        }
        if let (Some(counts), Some(by)) = (&mut self.statistics.drafts, by) {
            counts.note(by, drafts, drawn.accepted);
        }

        let mut settled = Settled::default();
        for &token in &drawn.tokens {
            self.judge(token, &mut settled);
            if settled.end.is_some() {
                break;
            }
        }
        self.index_copies(self.context.len() as u32);
        // What was replaced is held by no engine: `TokenWatch::certain` reaches over all drafts.
        debug_assert!(
            settled.end.is_some() || (self.position as usize) < self.context.len() || drawn.tokens.is_empty()
        );
        if let Some(by) = next_by
            && !settled.replaced
            && !drawn.next.is_empty()
        {
            let tokens = drawn.next.iter().map(|draft| draft.token).collect();
            self.proposed = Some(Proposed { by, tokens });
        }
        settled
    }

    /// Makes the first tokens of the context known as what can be copied.
    fn index_copies(&mut self, tokens: u32) {
        if let Some(copies) = &mut self.copies {
            copies.extend(&self.context[..tokens as usize]);
        }
    }

    /// Which drafts the last round tested: by whom, how many, and how many held.
    pub(super) fn tested(&self, drawn: &LaneDrawn) -> Option<(Proposer, u32, u32)> {
        self.feed.by.map(|by| (by, self.feed.drafts, drawn.accepted))
    }

    /// What the reply has taken up to now.
    pub(super) fn statistics(&self, now: Instant) -> ReplyStatistics {
        let mut statistics = self.statistics.clone();
        if let Some(prefilled) = self.prefilled {
            statistics.decode = now.duration_since(prefilled);
        }
        statistics
    }

    fn judge(&mut self, token: u32, settled: &mut Settled) {
        match self.verdict(token) {
            Watch::Continue => self.count(token, false, settled),
            Watch::Stop => self.count(token, true, settled),
            Watch::Replace(tokens) => {
                settled.replaced = true;
                for token in tokens {
                    let last = self.verdict(token) == Watch::Stop;
                    self.count(token, last, settled);
                    if settled.end.is_some() {
                        break;
                    }
                }
            }
        }
    }

    fn verdict(&mut self, token: u32) -> Watch {
        match &mut self.watch {
            Some(watch) if !self.stop_tokens.contains(&token) => watch.token(token),
            _ => Watch::Continue,
        }
    }

    fn count(&mut self, token: u32, last: bool, settled: &mut Settled) {
        settled.counted += 1;
        self.context.push(token);
        if self.stop_tokens.contains(&token) {
            settled.end = Some(FinishReason::StopToken(token));
            return;
        }
        settled.tokens.push(token);
        if last {
            settled.end = Some(FinishReason::Watch);
        } else if self.produced() >= self.max_tokens {
            settled.end = Some(FinishReason::Length);
        }
    }
}

/// Where a prompt chunk that starts at `position` ends: at the end of the
/// prompt or where its state is to be kept, or at the last border that `chunk` rows reach. A chunk shorter than
/// the way to the next border is `None`.
pub(super) fn chunk_end(position: u32, prompt: u32, chunk: u32) -> Option<u32> {
    let reach = position.saturating_add(chunk);
    if reach >= prompt {
        return Some(prompt);
    }
    let end = reach / CHUNK_BORDER * CHUNK_BORDER;
    (end > position).then_some(end)
}

#[cfg(test)]
mod tests {
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
}
