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
#[path = "lane_tests.rs"]
mod tests;
