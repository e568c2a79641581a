//! The round loop's one step: admit, compute a round, hand out what it brought.
//!
//! Pure of threads and locks: the thread in `handle` drives it, tests call it.

use std::time::{Duration, Instant};

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;

use super::drafting::{DepthRule, DraftCounts, DraftOptions, Drafters};
use super::lane::{Guide, Lane, RowLimits, Settled};
use super::mailbox::EventSender;
use super::policy::{Load, Measured, Pace};
use super::prefixes::{PrefixOptions, Prefixes};
use super::queue::Waiting;
use super::request::{FailureKind, FinishReason, GenerationRequest, ReplyStatistics};
use super::round::{EngineFacts, LaneDrawn, LaneId, LaneRows, RoundEngine, RoundTimes, is_fatal};

/// The lanes of one engine.
pub(super) struct Scheduler {
    engine: Box<dyn RoundEngine>,
    facts: EngineFacts,
    lanes: Vec<Lane>,
    /// Complete replies whose readers have not been told yet.
    complete: Vec<(EventSender, FinishReason, ReplyStatistics)>,
    most_lanes: usize,
    chunks: Chunks,
    drafters: Drafters,
    mtp_confidence: f32,
    copies: bool,
    prefixes: Prefixes,
    /// `None`: drafts go as far as possible.
    pace: Option<Pace>,
    drawn: Vec<LaneDrawn>,
}

/// Most rows of prompts in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    /// While no reply runs.
    pub(super) alone: u32,
    /// Beside replies.
    pub(super) beside: u32,
}

/// What one step did, for the counters.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StepReport {
    pub(super) prompt_rows: u32,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) reply_tokens: u32,
    pub(super) rounds: u64,
    pub(super) drafts: DraftCounts,
    pub(super) cancelled: u64,
    pub(super) prefill_seconds: f64,
    pub(super) decode_seconds: f64,
}

/// What became of a request that was given to [`Scheduler::admit`].
pub(super) enum Admission {
    /// It has a lane.
    Running,
    /// There is no room while others run; ask again after a step.
    Later(Waiting),
    /// It was answered with a failure.
    Refused,
}

impl Scheduler {
    pub(super) fn new(
        engine: Box<dyn RoundEngine>,
        lanes: u32,
        chunks: Chunks,
        drafting: &DraftOptions,
        prefixes: PrefixOptions,
    ) -> Self {
        let facts = engine.facts();
        Scheduler {
            engine,
            drafters: drafting.used(facts.drafters),
            mtp_confidence: drafting.mtp_confidence,
            copies: drafting.copies(facts.outputs),
            prefixes: Prefixes::new(prefixes),
            pace: (drafting.depth == DepthRule::Measured).then(Pace::new),
            facts,
            lanes: Vec::new(),
            complete: Vec::new(),
            most_lanes: lanes as usize,
            chunks,
            drawn: Vec::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.lanes.len() < self.most_lanes
    }

    pub(super) fn running(&self) -> usize {
        self.lanes.len()
    }

    /// Opens a lane for a request. An error means that the engine broke.
    pub(super) fn admit(&mut self, waiting: Waiting) -> Result<Admission, PluginError> {
        match self.open_lane(&waiting.request) {
            Ok((id, cached)) => {
                // A serial request is held against others: it computes all of its prompt.
                let keeps = waiting.request.drafts;
                let borders =
                    if keeps { self.prefixes.borders(&waiting.request.prompt, cached) } else { Vec::new() };
                let now = Instant::now();
                let mut lane = Lane::new(id, waiting, now, self.facts.counts_drafts, self.copies);
                lane.begin(cached, borders);
                self.lanes.push(lane);
                Ok(Admission::Running)
            }
            Err(error) if is_fatal(&error) => {
                waiting.events.fail(FailureKind::Engine, failure_line(&error));
                Err(error)
            }
            Err(error) if !self.lanes.is_empty() && is_shortage(error.status) => {
                Ok(Admission::Later(waiting))
            }
            Err(error) => {
                tracing::warn!(id = waiting.request.id, %error, "the engine opened no lane");
                waiting.events.fail(FailureKind::Engine, failure_line(&error));
                Ok(Admission::Refused)
            }
        }
    }

    /// Opens a lane that holds as much of the prompt as was kept, and says how much that is.
    fn open_lane(&mut self, request: &GenerationRequest) -> Result<(LaneId, u32), PluginError> {
        let engine = &mut *self.engine;
        loop {
            let lane = match engine.lane_open() {
                // A request that can run is worth more than a state that may be of use.
                Err(error) if error.status == Status::OutOfMemory && self.prefixes.drop_oldest(engine)? => {
                    continue;
                }
                opened => opened?,
            };
            if !request.drafts {
                return Ok((lane, 0));
            }
            let Some((snapshot, tokens)) = self.prefixes.find(&request.prompt) else {
                return Ok((lane, 0));
            };
            match engine.restore(lane, snapshot) {
                Ok(()) => return Ok((lane, tokens)),
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    // What the lane holds now is not certain: a new one, without that state.
                    tracing::warn!(%error, "the engine did not restore a prompt state");
                    self.prefixes.forget(engine, snapshot)?;
                    engine.lane_close(lane)?;
                }
            }
        }
    }

    /// One round over all lanes. Readers hear of the ends of their replies at
    /// the next [`publish`](Self::publish), so that the caller can count first.
    /// An error means that the engine broke; its lanes are still there for
    /// [`fail_all`](Self::fail_all).
    pub(super) fn step(&mut self) -> Result<StepReport, PluginError> {
        let mut report = StepReport::default();
        self.end_abandoned(&mut report)?;
        if self.lanes.is_empty() {
            return Ok(report);
        }
        self.drawn.clear();
        let members = self.prepare();
        let rows: Vec<LaneRows<'_>> = members.iter().map(|&member| self.lanes[member].rows()).collect();
        let begun = Instant::now();
        match self.engine.round(&rows, &mut self.drawn) {
            Ok(times) => {
                check_answer(&rows, &self.drawn, self.facts.vocabulary)?;
                self.learn(&members, &times, begun.elapsed());
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the engine refused a round");
                self.fail_members(&members, &error)?;
                return Ok(report);
            }
        }
        let now = Instant::now();
        let drawn = std::mem::take(&mut self.drawn);
        let mut ended = Vec::new();
        for (&member, drawn) in members.iter().zip(&drawn) {
            let lane = &mut self.lanes[member];
            let was_prompt = lane.in_prompt();
            let rows = lane.rows().tokens.len() as u32;
            let settled = lane.settle(drawn, now);
            if was_prompt {
                report.prompt_rows += rows;
                let id = lane.id;
                if let Some(tokens) = lane.take_border() {
                    self.prefixes.keep(&mut *self.engine, id, tokens)?;
                }
                if !lane.in_prompt() {
                    report.prompt_tokens += u64::from(lane.prompt_tokens());
                    report.prefill_seconds += lane.statistics(now).prefill.as_secs_f64();
                    report.cached_tokens += u64::from(lane.cached());
                    lane.events.prefilled(lane.cached());
                }
            } else {
                report.rounds += 1;
                if let Some((by, drafted, accepted)) = lane.tested(drawn) {
                    report.drafts.note(by, drafted, accepted);
                }
            }
            let Settled { tokens, counted, end, .. } = settled;
            report.reply_tokens += counted;
            lane.events.tokens(&tokens);
            if let Some(reason) = end {
                ended.push((member, reason));
            }
        }
        self.drawn = drawn;
        // From the back, so that the positions of the others stay true.
        for (member, reason) in ended.into_iter().rev() {
            let lane = self.lanes.remove(member);
            let statistics = lane.statistics(now);
            report.decode_seconds += statistics.decode.as_secs_f64();
            self.complete.push((lane.events, reason, statistics));
            let closed = self.engine.lane_close(lane.id);
            self.note_close(closed)?;
        }
        Ok(report)
    }

    /// Tells the readers of complete replies.
    pub(super) fn publish(&mut self) {
        for (events, reason, statistics) in self.complete.drain(..) {
            events.finish(reason, statistics);
        }
    }

    /// Ends every lane with a failure, without calling the engine.
    pub(super) fn fail_all(&mut self, kind: FailureKind, message: &str) {
        self.publish();
        for lane in self.lanes.drain(..) {
            lane.events.fail(kind, message);
        }
    }

    /// Ends every lane with a failure and gives the lanes and all kept states back.
    pub(super) fn stop(&mut self, kind: FailureKind, message: &str) -> Result<(), PluginError> {
        while let Some(lane) = self.lanes.pop() {
            lane.events.fail(kind, message);
            let closed = self.engine.lane_close(lane.id);
            self.note_close(closed)?;
        }
        self.prefixes.clear(&mut *self.engine)
    }

    /// The engine, for its owner to close.
    pub(super) fn into_engine(self) -> Box<dyn RoundEngine> {
        self.engine
    }

    /// Makes the rows of the round to come ready: every reply, and as many
    /// prompts as one chunk holds. Gives the lanes that take part, ascending.
    fn prepare(&mut self) -> Vec<usize> {
        let limits = RowLimits { rows: self.facts.rows, outputs: self.facts.outputs };
        let (mut prompts, mut members): (Vec<usize>, Vec<usize>) =
            (0..self.lanes.len()).partition(|&index| self.lanes[index].in_prompt());
        let chunk = if members.is_empty() { self.chunks.alone } else { self.chunks.beside };
        // The others: one row and one token each, and what they draft as it becomes known.
        let others = members.len().saturating_sub(1) as u32;
        let mut guide = Guide {
            limits,
            drafters: self.drafters,
            mtp_confidence: self.mtp_confidence,
            pace: self.pace.as_ref(),
            load: Load { rows: others, tokens: f64::from(others), draft_seconds: 0.0 },
        };
        for &index in &members {
            let lane = &mut self.lanes[index];
            lane.prepare_reply(&guide);
            let extra = lane.extra_load(guide.pace);
            guide.load.rows += extra.rows;
            guide.load.tokens += extra.tokens;
            guide.load.draft_seconds += extra.draft_seconds;
        }
        let mut rows_left = chunk.min(limits.rows);
        prompts.sort_by_key(|&index| self.lanes[index].prompt_turn());
        for index in prompts {
            let lane = &mut self.lanes[index];
            let taken = lane.prepare_prompt(rows_left, &guide);
            lane.note_turn(taken);
            if taken {
                rows_left -= lane.rows().tokens.len() as u32;
                members.push(index);
            }
        }
        members.sort_unstable();
        members
    }

    /// Notes what a round took, if it was one of replies only. Those that have
    /// just begun are left out: what an engine sets up for them costs once.
    fn learn(&mut self, members: &[usize], times: &RoundTimes, elapsed: Duration) {
        let Some(pace) = &mut self.pace else { return };
        let lanes = || members.iter().map(|&member| &self.lanes[member]);
        if lanes().any(|lane| lane.in_prompt() || lane.rounds() == 0) {
            return;
        }
        let draft = times.draft.unwrap_or_default();
        let forward = match (times.forward, times.sample) {
            (Some(forward), Some(sample)) => forward + sample,
            _ => elapsed.saturating_sub(draft),
        };
        let asked: Vec<_> = lanes().filter_map(Lane::asked).collect();
        let drafting = asked.first().filter(|first| asked.iter().all(|other| other.0 == first.0));
        let drafts = asked.iter().map(|(_, count)| count).sum();
        pace.note(&Measured {
            lanes: members.len() as u32,
            rows: lanes().map(|lane| lane.rows().tokens.len() as u32).sum(),
            tokens: self.drawn.iter().map(|drawn| drawn.tokens.len() as u32).sum(),
            seconds: forward.as_secs_f64(),
            draft_seconds: draft.as_secs_f64(),
            drafting: drafting.map(|&(proposer, _)| (proposer, asked.len() as u32, drafts)),
            drafted: !asked.is_empty() || lanes().any(|lane| lane.rows().drafts > 0),
        });
    }

    fn end_abandoned(&mut self, report: &mut StepReport) -> Result<(), PluginError> {
        while let Some(index) = self.lanes.iter().position(|lane| lane.events.is_abandoned()) {
            let lane = self.lanes.remove(index);
            tracing::debug!(id = lane.request_id, "cancelled");
            report.cancelled += 1;
            let closed = self.engine.lane_close(lane.id);
            self.note_close(closed)?;
        }
        Ok(())
    }

    fn fail_members(&mut self, members: &[usize], error: &PluginError) -> Result<(), PluginError> {
        let mut members = members.to_vec();
        members.sort_unstable();
        for member in members.into_iter().rev() {
            let lane = self.lanes.remove(member);
            lane.events.fail(FailureKind::Engine, failure_line(error));
            let closed = self.engine.lane_close(lane.id);
            self.note_close(closed)?;
        }
        Ok(())
    }

    fn note_close(&self, closed: Result<(), PluginError>) -> Result<(), PluginError> {
        match closed {
            Err(error) if !is_fatal(&error) => {
                tracing::warn!(%error, "the engine kept a lane that was closed");
                Ok(())
            }
            other => other,
        }
    }
}

/// An answer that cannot be true means that the engine's state cannot be trusted.
fn check_answer(rows: &[LaneRows<'_>], drawn: &[LaneDrawn], vocabulary: u32) -> Result<(), PluginError> {
    let broken = |message: String| Err(PluginError::new(Status::Internal, message));
    if drawn.len() != rows.len() {
        return broken(format!("the engine answered {} of {} lanes", drawn.len(), rows.len()));
    }
    for (rows, drawn) in rows.iter().zip(drawn) {
        let wanted = if rows.draws == 0 { 0 } else { drawn.accepted + 1 };
        if drawn.accepted > rows.drafts || drawn.tokens.len() != wanted as usize {
            return broken(format!(
                "the engine gave {} tokens and accepted {} of {} drafts where {} draws were wanted",
                drawn.tokens.len(),
                drawn.accepted,
                rows.drafts,
                rows.draws,
            ));
        }
        let drafts = &rows.tokens[rows.tokens.len() - rows.drafts as usize..];
        let accepted = drawn.accepted as usize;
        if drawn.tokens[..accepted] != drafts[..accepted] {
            return broken("the engine accepted drafts that are not the tokens it drew".to_owned());
        }
        if drawn.next.len() > rows.next.count {
            return broken(format!(
                "the engine made {} drafts where {} were wanted",
                drawn.next.len(),
                rows.next.count
            ));
        }
        let guessed = drawn.next.iter().map(|draft| draft.token);
        if let Some(token) = drawn.tokens.iter().copied().chain(guessed).find(|&token| token >= vocabulary) {
            return broken(format!("the engine drew token {token}, past the {vocabulary} of the vocabulary"));
        }
    }
    Ok(())
}

/// The one line by which a client hears of an engine's error.
pub(super) fn failure_line(error: &PluginError) -> String {
    format!("the engine failed: {} ({})", error.message, error.status)
}

fn is_shortage(status: Status) -> bool {
    matches!(status, Status::Busy | Status::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use tensorfold_plugin_api::plugin::{DraftKind, NextDrafts};
    use tensorfold_plugin_api::sampling::Sampling;

    use super::super::round::Draft;
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_true_is_found() {
        let rows = LaneRows {
            lane: LaneId(1),
            position: 9,
            tokens: &[4, 5, 6],
            drafts: 2,
            draws: 3,
            sampling: Sampling::GREEDY,
            next: NextDrafts { kind: DraftKind::Mtp, count: 1, confidence: 0.0 },
        };
        let check = |tokens: &[u32], accepted, next: &[u32]| {
            let next = next.iter().map(|&token| Draft { token, probability: 1.0 }).collect();
            let drawn = LaneDrawn { tokens: tokens.to_vec(), accepted, next, next_kind: DraftKind::Mtp };
            check_answer(&[rows], &[drawn], 10).map_err(|error| error.message)
        };
        assert_eq!(check(&[5, 6, 7], 2, &[9]), Ok(()));
        assert_eq!(check(&[8], 0, &[]), Ok(()));
        let unlike = "the engine accepted drafts that are not the tokens it drew";
        assert_eq!(check(&[5, 9, 7], 2, &[]).unwrap_err(), unlike);
        let most = "the engine made 2 drafts where 1 were wanted";
        assert_eq!(check(&[8], 0, &[1, 2]).unwrap_err(), most);
        for (tokens, accepted, next) in [(&[5, 6, 7, 8][..], 3, &[][..]), (&[5, 6], 2, &[]), (&[10], 0, &[])]
        {
            assert!(check(tokens, accepted, next).is_err(), "{tokens:?}");
        }
        let past = "the engine drew token 10, past the 10 of the vocabulary";
        assert_eq!(check(&[8], 0, &[10]).unwrap_err(), past);
        assert!(check_answer(&[rows], &[], 10).is_err());
    }
}
