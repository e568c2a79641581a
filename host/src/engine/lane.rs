//! One running request: what it feeds next and what it makes of the draws.

use std::collections::BTreeSet;
use std::time::Instant;

use tensorfold_plugin_api::sampling::Sampling;

use super::mailbox::EventSender;
use super::queue::Waiting;
use super::request::{FinishReason, ReplyStatistics, TokenWatch, Watch};
use super::round::{LaneDrawn, LaneId, LaneRows};

/// Prompt chunks end at absolute multiples of this, so that a state kept there
/// is the same whichever request made it.
pub(super) const CHUNK_BORDER: u32 = 64;

/// A request with a lane.
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) request_id: String,
    pub(super) events: EventSender,
    prompt: Vec<u32>,
    sampling: Sampling,
    stop_tokens: BTreeSet<u32>,
    watch: Option<Box<dyn TokenWatch>>,
    max_tokens: u32,
    /// Tokens the engine holds for this lane.
    position: u32,
    /// Reply tokens that the engine does not hold yet; never empty after the prompt.
    pending: Vec<u32>,
    /// Reply tokens so far.
    produced: u32,
    submitted: Instant,
    started: Instant,
    prefilled: Option<Instant>,
    statistics: ReplyStatistics,
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
}

impl Lane {
    /// A lane that begins now.
    pub(super) fn new(id: LaneId, waiting: Waiting, now: Instant, counts_drafts: bool) -> Self {
        let Waiting { request, events, submitted } = waiting;
        let count = counts_drafts.then_some(0);
        Lane {
            id,
            request_id: request.id,
            events,
            prompt: request.prompt,
            sampling: request.sampling,
            stop_tokens: request.stop_tokens,
            watch: request.watch,
            max_tokens: request.max_tokens,
            position: 0,
            pending: Vec::new(),
            produced: 0,
            submitted,
            started: now,
            prefilled: None,
            statistics: ReplyStatistics {
                drafted: count,
                accepted: count,
                queue: now.duration_since(submitted),
                ..ReplyStatistics::default()
            },
        }
    }

    /// Whether prompt tokens are left to feed.
    pub(super) fn in_prompt(&self) -> bool {
        (self.position as usize) < self.prompt.len()
    }

    /// Length of the prompt in tokens.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// The next chunk of the prompt, at most `chunk` rows; `None` when that
    /// does not reach the next border.
    pub(super) fn prompt_rows(&self, chunk: u32) -> Option<LaneRows<'_>> {
        let end = chunk_end(self.position, self.prompt_tokens(), chunk)?;
        let last = end == self.prompt_tokens();
        Some(self.feed(&self.prompt[self.position as usize..end as usize], u32::from(last)))
    }

    /// The reply tokens that the engine does not hold yet, at most `rows`.
    pub(super) fn reply_rows(&self, rows: u32) -> LaneRows<'_> {
        let count = self.pending.len().min(rows as usize);
        self.feed(&self.pending[..count], u32::from(count == self.pending.len()))
    }

    fn feed<'a>(&self, tokens: &'a [u32], draws: u32) -> LaneRows<'a> {
        LaneRows { lane: self.id, position: self.position, tokens, drafts: 0, draws, sampling: self.sampling }
    }

    /// Takes the result of a round that fed `rows` rows, `drafts` of them guesses.
    pub(super) fn settle(&mut self, rows: u32, drafts: u32, drawn: &LaneDrawn, now: Instant) -> Settled {
        let first_of_reply = self.prefilled.is_none();
        self.position += rows - drafts + drawn.accepted;
        if self.in_prompt() {
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
        add(&mut self.statistics.drafted, drafts);
        add(&mut self.statistics.accepted, drawn.accepted);

        let mut settled = Settled::default();
        self.pending.drain(..(rows - drafts).min(self.pending.len() as u32) as usize);
        for &token in &drawn.tokens {
            self.judge(token, &mut settled);
            if settled.end.is_some() {
                break;
            }
        }
        // All but the last token were accepted drafts, which the engine holds.
        let held = (drawn.accepted as usize).min(self.pending.len().saturating_sub(1));
        self.pending.drain(..held);
        settled
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
        self.produced += 1;
        settled.counted += 1;
        self.pending.push(token);
        if self.stop_tokens.contains(&token) {
            settled.end = Some(FinishReason::StopToken(token));
            return;
        }
        settled.tokens.push(token);
        if last {
            settled.end = Some(FinishReason::Watch);
        } else if self.produced >= self.max_tokens {
            settled.end = Some(FinishReason::Length);
        }
    }
}

/// Where a prompt chunk that starts at `position` ends: at the end of the
/// prompt, or at the last border that `chunk` rows reach. A chunk shorter than
/// the way to the next border is `None`.
pub(super) fn chunk_end(position: u32, prompt: u32, chunk: u32) -> Option<u32> {
    let reach = position.saturating_add(chunk);
    if reach >= prompt {
        return Some(prompt);
    }
    let end = reach / CHUNK_BORDER * CHUNK_BORDER;
    (end > position).then_some(end)
}

fn add(total: &mut Option<u64>, more: u32) {
    if let Some(total) = total {
        *total += u64::from(more);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::request;
    use super::super::mailbox::mailbox;
    use super::super::request::GenerationRequest;
    use super::*;

    fn lane(request: GenerationRequest) -> Lane {
        let (events, _) = mailbox();
        let now = Instant::now();
        Lane::new(LaneId(1), Waiting { request, events, submitted: now }, now, true)
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

    #[test]
    fn only_the_last_prompt_row_is_drawn_from() {
        let mut lane = lane(request(&[5; 130], 4));
        let rows = lane.prompt_rows(64).unwrap();
        assert_eq!((rows.position, rows.tokens.len(), rows.draws), (0, 64, 0));
        lane.settle(64, 0, &LaneDrawn::default(), Instant::now());
        lane.settle(64, 0, &LaneDrawn::default(), Instant::now());
        let rows = lane.prompt_rows(64).unwrap();
        assert_eq!((rows.position, rows.tokens.len(), rows.draws), (128, 2, 1));
        let settled = lane.settle(2, 0, &one(9), Instant::now());
        assert_eq!((settled.tokens, settled.end), (vec![9], None));
        let rows = lane.reply_rows(512);
        assert_eq!((rows.position, rows.tokens, rows.draws), (130, &[9][..], 1));
    }

    #[test]
    fn the_reply_ends_at_its_length_or_at_a_stop_token() {
        let mut short = lane(request(&[1], 1));
        let settled = short.settle(1, 0, &one(9), Instant::now());
        assert_eq!((settled.tokens, settled.end), (vec![9], Some(FinishReason::Length)));

        let mut stopped = lane(GenerationRequest { stop_tokens: [7].into(), ..request(&[1], 9) });
        let settled = stopped.settle(1, 0, &one(7), Instant::now());
        assert_eq!((settled.tokens, settled.counted), (vec![], 1));
        assert_eq!(settled.end, Some(FinishReason::StopToken(7)));
    }

    #[test]
    fn accepted_drafts_count_as_tokens_and_only_the_last_is_fed_again() {
        let mut lane = lane(request(&[1], 10));
        lane.settle(1, 0, &one(2), Instant::now());
        let drawn = LaneDrawn { tokens: vec![3, 4, 5], accepted: 2 };
        let settled = lane.settle(4, 3, &drawn, Instant::now());
        assert_eq!(settled.tokens, [3, 4, 5]);
        let rows = lane.reply_rows(8);
        assert_eq!((rows.position, rows.tokens), (4, &[5][..]));
        let statistics = lane.statistics(Instant::now());
        assert_eq!((statistics.rounds, statistics.drafted, statistics.accepted), (1, Some(3), Some(2)));
        assert_eq!(statistics.min_rows, 4);
    }

    struct Script(Vec<Watch>);

    impl TokenWatch for Script {
        fn token(&mut self, _: u32) -> Watch {
            self.0.remove(0)
        }
    }

    #[test]
    fn a_watch_can_replace_a_token_and_end_the_reply() {
        let more = [Watch::Continue, Watch::Replace(vec![20, 21]), Watch::Continue, Watch::Continue];
        let script = Script(more.into_iter().chain([Watch::Stop]).collect());
        let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 10) });
        assert_eq!(lane.settle(1, 0, &one(2), Instant::now()).tokens, [2]);
        assert_eq!(lane.settle(1, 0, &one(3), Instant::now()).tokens, [20, 21]);
        assert_eq!(lane.reply_rows(8).tokens, [20, 21]);
        let settled = lane.settle(2, 0, &one(4), Instant::now());
        assert_eq!((settled.tokens, settled.end), (vec![4], Some(FinishReason::Watch)));
    }

    #[test]
    fn replaced_tokens_never_pass_the_length() {
        let script = Script(vec![Watch::Replace(vec![20, 21, 22]), Watch::Continue, Watch::Continue]);
        let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 2) });
        let settled = lane.settle(1, 0, &one(2), Instant::now());
        assert_eq!((settled.tokens, settled.end), (vec![20, 21], Some(FinishReason::Length)));
    }

    #[test]
    fn a_watch_can_end_the_reply_at_a_replaced_token() {
        let script = Script(vec![Watch::Replace(vec![20, 21, 22]), Watch::Continue, Watch::Stop]);
        let mut lane = lane(GenerationRequest { watch: Some(Box::new(script)), ..request(&[1], 9) });
        let settled = lane.settle(1, 0, &one(2), Instant::now());
        assert_eq!((settled.tokens, settled.end), (vec![20, 21], Some(FinishReason::Watch)));
    }
}
