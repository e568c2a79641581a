//! The engine side of the host: requests in, tokens out.
//!
//! One thread owns the model. It admits requests from a bounded queue, feeds
//! every live request's next rows to the plugin in one call a round, and posts
//! what came back to the request's mailbox.
//!
//! What this module guarantees:
//!
//! - Plugin calls happen on one dedicated thread, never on a `tokio` worker.
//! - A prompt that begins like an earlier one may go on from a kept state; its
//!   reply is the same.
//! - A request's tokens depend on the request alone, not on what else runs.
//! - Nobody who reads slowly slows the thread down, and no token is lost: a
//!   mailbox holds at most the tokens of one reply.
//! - A request whose receiver is dropped ends at the next round or prompt chunk.
//! - An engine that has failed is never called again; its open requests end
//!   with an error, new ones are refused, and the process goes on answering.
//! - Drafts change when tokens come, never which.
//!
//! It knows token ids only: no text, no HTTP, no files.

mod copies;
mod counters;
mod drafting;
#[cfg(test)]
mod drafting_tests;
#[cfg(test)]
pub(crate) mod fake;
mod handle;
mod lane;
mod mailbox;
mod plugin_engine;
mod policy;
mod prefixes;
mod queue;
mod request;
mod round;
mod scheduler;
mod seed;

pub use counters::{Counters, EngineState};
pub use drafting::{BlockDrafter, DepthRule, DraftCounts, DraftOptions, DraftTally, Drafters, Proposer};
pub(crate) use handle::SHUTTING_DOWN;
pub use handle::{EngineHandle, EngineOptions, StopOutcome, SubmitError};
pub use mailbox::EventReceiver;
pub use plugin_engine::PluginEngine;
pub use prefixes::PrefixOptions;
pub use request::{
    Event, FailureKind, FinishReason, GenerationRequest, Priority, ReplyStatistics, TokenWatch, Watch,
};
pub use round::{
    Draft, EngineFacts, LaneDrawn, LaneId, LaneRows, RoundEngine, RoundTimes, Snapshot, SnapshotId, is_fatal,
};
pub use seed::{prompt_seed, token_digest};
