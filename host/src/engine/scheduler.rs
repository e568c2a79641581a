//! The round loop's one step: admit, compute a round, hand out what it brought.
//!
//! Pure of threads and locks: the thread in `handle` drives it, tests call it.

use std::time::Instant;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;

use super::lane::{Lane, Settled};
use super::mailbox::EventSender;
use super::queue::Waiting;
use super::request::{FailureKind, FinishReason, ReplyStatistics};
use super::round::{EngineFacts, LaneDrawn, LaneRows, RoundEngine, is_fatal};

/// The lanes of one engine.
pub(super) struct Scheduler {
    engine: Box<dyn RoundEngine>,
    facts: EngineFacts,
    lanes: Vec<Lane>,
    /// Complete replies whose readers have not been told yet.
    complete: Vec<(EventSender, FinishReason, ReplyStatistics)>,
    most_lanes: usize,
    prefill_chunk: u32,
    drawn: Vec<LaneDrawn>,
}

/// What one step did, for the counters.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StepReport {
    pub(super) prompt_rows: u32,
    pub(super) prompt_tokens: u64,
    pub(super) reply_tokens: u32,
    pub(super) rounds: u64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
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
    pub(super) fn new(engine: Box<dyn RoundEngine>, lanes: u32, prefill_chunk: u32) -> Self {
        let facts = engine.facts();
        Scheduler {
            engine,
            facts,
            lanes: Vec::new(),
            complete: Vec::new(),
            most_lanes: lanes as usize,
            prefill_chunk,
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
        match self.engine.lane_open() {
            Ok(id) => {
                let lane = Lane::new(id, waiting, Instant::now(), self.facts.counts_drafts);
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
        let (members, rows) = rows_of_round(&self.lanes, self.facts.rows, self.prefill_chunk);
        let shapes: Vec<(u32, u32, u32)> =
            rows.iter().map(|rows| (rows.tokens.len() as u32, rows.drafts, rows.draws)).collect();
        match self.engine.round(&rows, &mut self.drawn) {
            Ok(()) => self.check_answer(&shapes)?,
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
        for ((&member, &(rows, drafts, _)), drawn) in members.iter().zip(&shapes).zip(&drawn) {
            let lane = &mut self.lanes[member];
            let was_prompt = lane.in_prompt();
            let settled = lane.settle(rows, drafts, drawn, now);
            if was_prompt {
                report.prompt_rows += rows;
                if !lane.in_prompt() {
                    report.prompt_tokens += u64::from(lane.prompt_tokens());
                    report.prefill_seconds += lane.statistics(now).prefill.as_secs_f64();
                    lane.events.prefilled(0);
                }
            } else {
                report.rounds += 1;
                report.drafted += u64::from(drafts);
                report.accepted += u64::from(drawn.accepted);
            }
            let Settled { tokens, counted, end } = settled;
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

    /// Ends every lane with a failure and gives the lanes back.
    pub(super) fn stop(&mut self, kind: FailureKind, message: &str) -> Result<(), PluginError> {
        while let Some(lane) = self.lanes.pop() {
            lane.events.fail(kind, message);
            let closed = self.engine.lane_close(lane.id);
            self.note_close(closed)?;
        }
        Ok(())
    }

    /// The engine, for its owner to close.
    pub(super) fn into_engine(self) -> Box<dyn RoundEngine> {
        self.engine
    }

    /// An answer that cannot be true means that the engine's state cannot be trusted.
    fn check_answer(&self, shapes: &[(u32, u32, u32)]) -> Result<(), PluginError> {
        let broken = |message: String| Err(PluginError::new(Status::Internal, message));
        if self.drawn.len() != shapes.len() {
            return broken(format!("the engine answered {} of {} lanes", self.drawn.len(), shapes.len()));
        }
        for (drawn, &(_, drafts, draws)) in self.drawn.iter().zip(shapes) {
            let wanted = if draws == 0 { 0 } else { drawn.accepted + 1 };
            if drawn.accepted > drafts || drawn.tokens.len() != wanted as usize {
                return broken(format!(
                    "the engine gave {} tokens and accepted {} of {drafts} drafts where {draws} draws were wanted",
                    drawn.tokens.len(),
                    drawn.accepted,
                ));
            }
            if let Some(token) = drawn.tokens.iter().find(|&&token| token >= self.facts.vocabulary) {
                return broken(format!(
                    "the engine drew token {token}, past the {} of the vocabulary",
                    self.facts.vocabulary
                ));
            }
        }
        Ok(())
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

/// Which lanes take part and with what: every reply, and as many prompts in
/// order of arrival as one chunk holds.
fn rows_of_round(lanes: &[Lane], rows_per_lane: u32, chunk: u32) -> (Vec<usize>, Vec<LaneRows<'_>>) {
    let mut members = Vec::with_capacity(lanes.len());
    let mut rows = Vec::with_capacity(lanes.len());
    let mut chunk_left = chunk.min(rows_per_lane);
    for (index, lane) in lanes.iter().enumerate() {
        let lane_rows = if lane.in_prompt() {
            let Some(lane_rows) = lane.prompt_rows(chunk_left) else { continue };
            chunk_left -= lane_rows.tokens.len() as u32;
            lane_rows
        } else {
            lane.reply_rows(rows_per_lane)
        };
        members.push(index);
        rows.push(lane_rows);
    }
    (members, rows)
}

/// The one line by which a client hears of an engine's error.
pub(super) fn failure_line(error: &PluginError) -> String {
    format!("the engine failed: {} ({})", error.message, error.status)
}

fn is_shortage(status: Status) -> bool {
    matches!(status, Status::Busy | Status::OutOfMemory)
}
