//! What the host asks of an engine: the border seen from the round loop.

use std::time::Duration;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;
use tensorfold_plugin_api::plugin::{DraftKind, NextDrafts};
use tensorfold_plugin_api::sampling::Sampling;

use super::drafting::Drafters;

/// A loaded model that computes rounds.
///
/// All calls come from one thread, one at a time. A [fatal](is_fatal) error is
/// the last thing the host hears of an engine: no further call follows.
pub trait RoundEngine: Send {
    /// What the engine is and how much it takes. Fixed after opening.
    fn facts(&self) -> EngineFacts;

    /// Opens a lane that holds no tokens.
    fn lane_open(&mut self) -> Result<LaneId, PluginError>;

    /// Gives a lane back. The id may be used again by a later [`lane_open`](Self::lane_open).
    fn lane_close(&mut self, lane: LaneId) -> Result<(), PluginError>;

    /// Computes one round: appends each lane's rows to its state and draws
    /// where draws are wanted. Fills one entry of `drawn` per entry of `rows`,
    /// in the same order; `drawn` is empty on entry.
    fn round(&mut self, rows: &[LaneRows<'_>], drawn: &mut Vec<LaneDrawn>)
    -> Result<RoundTimes, PluginError>;

    /// Keeps the state of a lane, which stays as it is.
    fn snapshot(&mut self, _lane: LaneId) -> Result<Snapshot, PluginError> {
        Err(PluginError::unsupported("this engine keeps no prompt states"))
    }

    /// Makes a lane hold a kept state.
    fn restore(&mut self, _lane: LaneId, _snapshot: SnapshotId) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine keeps no prompt states"))
    }

    /// Frees a kept state.
    fn drop_snapshot(&mut self, _snapshot: SnapshotId) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine keeps no prompt states"))
    }
}

/// A lane as its engine names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(pub u64);

/// A kept state as its engine names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub u64);

/// A kept state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub id: SnapshotId,
    /// Tokens that it holds.
    pub position: u32,
    /// Bytes that the engine holds for it.
    pub bytes: u64,
}

/// What one lane feeds in a round.
#[derive(Clone, Copy, Debug)]
pub struct LaneRows<'a> {
    /// The lane.
    pub lane: LaneId,
    /// Absolute position of the first of `tokens`: how many tokens the lane
    /// already holds.
    pub position: u32,
    /// A piece of the prompt, or the token drawn last and drafts after it.
    pub tokens: &'a [u32],
    /// How many of the last of `tokens` are guesses that the round puts to the test.
    pub drafts: u32,
    /// How many trailing rows want a draw: 0 inside a prompt, else 1 and the
    /// number of drafts. The draw after `tokens[i]` is keyed by position
    /// `position + i + 1`.
    pub draws: u32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Drafts to make for the lane's next round, after the last token that this one draws.
    pub next: NextDrafts,
}

/// What one lane got back from a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneDrawn {
    /// The reply tokens this round settled, in order: the accepted drafts and
    /// then the first draw that was no draft. Empty when no draw was wanted.
    /// All but the last are part of the lane's state; the last is fed next.
    pub tokens: Vec<u32>,
    /// How many drafts were accepted; the rest were taken back.
    pub accepted: u32,
    /// Drafts for the next round, at most as many as were asked for.
    pub next: Vec<Draft>,
    /// Who made them.
    pub next_kind: DraftKind,
}

/// A token that a drafter guesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    /// The token.
    pub token: u32,
    /// How likely the drafter holds it, from 0 to 1.
    pub probability: f32,
}

/// What the parts of a round took; `None` where the engine does not measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTimes {
    /// The forward pass over all rows.
    pub forward: Option<Duration>,
    /// Drawing and putting drafts to the test.
    pub sample: Option<Duration>,
    /// Making the next drafts.
    pub draft: Option<Duration>,
}

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The engine's name for users, such as `CPU` or `HIP`.
    pub name: String,
    /// Requests that can run at the same time.
    pub lanes: u32,
    /// Tokens that one lane can hold, prompt and reply together.
    pub positions: u32,
    /// Rows that one lane may feed in a round.
    pub rows: u32,
    /// Rows of one lane that may be drawn from in a round: one more than the drafts that it may feed.
    pub outputs: u32,
    /// Ids below this may be fed and can be drawn.
    pub vocabulary: u32,
    /// Whether this engine counts drafts. Where it does not, draft counts are
    /// reported as unknown, never as 0.
    pub counts_drafts: bool,
    /// The drafters that are open.
    pub drafters: Drafters,
}

/// Whether an engine must not be called again after this error.
pub fn is_fatal(error: &PluginError) -> bool {
    !matches!(
        error.status,
        Status::InvalidArgument
            | Status::Unsupported
            | Status::NotFound
            | Status::Permission
            | Status::OutOfMemory
            | Status::Cancelled
            | Status::Busy
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_one_request_leave_the_engine_usable() {
        let fatal = |status| is_fatal(&PluginError::new(status, ""));
        for status in [Status::InvalidArgument, Status::Unsupported, Status::OutOfMemory, Status::Busy] {
            assert!(!fatal(status), "{status}");
        }
        for status in [Status::Timeout, Status::DeviceLost, Status::Panicked, Status::Internal] {
            assert!(fatal(status), "{status}");
        }
    }
}
