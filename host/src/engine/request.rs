//! One request to the engine and what it is told in return.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorfold_plugin_api::sampling::Sampling;

use super::drafting::DraftCounts;

/// A reply to be generated.
pub struct GenerationRequest {
    /// The id by which logs name the request.
    pub id: String,
    /// The prompt. Never empty.
    pub prompt: Vec<u32>,
    /// Tokens the reply may have, at least 1. Prompt and reply together must fit the context.
    pub max_tokens: u32,
    /// How tokens are drawn, the seed included.
    pub sampling: Sampling,
    /// Ids that end the reply. Empty to run on to `max_tokens`.
    pub stop_tokens: BTreeSet<u32>,
    /// Whether the reply waits behind others.
    pub priority: Priority,
    /// Whether drafts may be used for it. They change its time, never its tokens.
    pub drafts: bool,
    /// Looks at every token on its way, where something besides `stop_tokens`
    /// can end or steer the reply.
    pub watch: Option<Box<dyn TokenWatch>>,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// In order of arrival.
    #[default]
    Foreground,
    /// Only when no foreground request waits.
    Background,
}

/// Sees every reply token before it counts, on the engine thread: it must be quick.
///
/// Its answers may depend on the tokens alone, so that a reply does not depend
/// on how tokens were grouped into rounds.
pub trait TokenWatch: Send {
    /// Judges the next token of the reply.
    fn token(&mut self, token: u32) -> Watch;

    /// How many tokens from now on are certainly not replaced. No draft is put
    /// to the test beyond them: the engine keeps what it accepts.
    fn certain(&self) -> u32;
}

/// A verdict on one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The token counts and the reply goes on.
    Continue,
    /// The token counts and is the last.
    Stop,
    /// These tokens, at least one, stand in place of the token. They count and
    /// are shown to the watch in turn, which can end the reply at one of them
    /// but cannot replace it again.
    Replace(Vec<u32>),
}

/// What a request hears, in this order: `Prefilled` once, `Tokens` any number
/// of times, then `Finished` or `Failed` once. A failure can come at any point.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt is computed.
    Prefilled {
        /// Prompt tokens that came from a kept state.
        cached: u32,
    },
    /// Reply tokens, without the stop token that ends the reply. Holds what
    /// has settled since the last event was taken, at most 1,024 tokens.
    Tokens(Vec<u32>),
    /// The reply is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        statistics: ReplyStatistics,
    },
    /// The reply cannot be completed.
    Failed {
        /// Whose fault it is.
        kind: FailureKind,
        /// One line for the client.
        message: String,
    },
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew this stop token. It counts as a reply token.
    StopToken(u32),
    /// The request's [`TokenWatch`] said so.
    Watch,
    /// `max_tokens` was reached.
    Length,
}

/// Why a reply could not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The engine refused or broke.
    Engine,
    /// The server is stopping.
    ShuttingDown,
}

/// What a reply took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplyStatistics {
    /// Rounds after the prompt.
    pub rounds: u64,
    /// What became of drafts; `None` where the engine does not count.
    pub drafts: Option<DraftCounts>,
    /// Fewest rows any round after the prompt had; 0 without such a round.
    pub min_rows: u32,
    /// From submission to the first prompt chunk.
    pub queue: Duration,
    /// From the first prompt chunk to the first reply token.
    pub prefill: Duration,
    /// From the end of the prompt to the last reply token.
    pub decode: Duration,
    /// From submission to the first reply token.
    pub time_to_first_token: Duration,
}
