//! The arguments of `round`: everything that one step of an engine takes and gives.
//!
//! The host lays out both sides. For each lane it feeds `tokens`: a chunk of a prompt, or the
//! pending token followed by `draft_count` drafts. The last `output_count` rows draw a token by
//! the sampling rule (the crate's `sampling` module); row `r` of the call, counted from 0, draws
//! with the key position `position + r + 1`.
//!
//! Verification: with drafts, `output_count` is `draft_count + 1`. Draft `i`, counted from 1, is
//! accepted when it and all before it equal the draw of the row before it. The plugin commits
//! every row up to the last accepted draft and forgets the others, so that afterwards the lane
//! holds `position + token_count - draft_count + accepted` tokens, bit for bit as if only those
//! had been fed one after another. It returns `accepted + 1` draws: the accepted drafts and the
//! token that follows them.
//!
//! Prompt chunks end at absolute multiples of 64 or at the end of the prompt. The host never
//! mixes drafts and prompt rows of one lane in a round.

use super::TfStr;
use crate::sampling::Sampling;

/// No drafts.
pub const TF_DRAFT_NONE: u32 = 0;
/// Drafts by the checkpoint's own multi-token prediction head.
pub const TF_DRAFT_MTP: u32 = 1;
/// Drafts by an external block drafter.
pub const TF_DRAFT_BLOCK: u32 = 2;

/// How a lane draws its tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfSampling {
    /// Key of the noise.
    pub seed: u64,
    /// 0 or less: the greatest logit, lowest id on ties.
    pub temperature: f64,
    /// In (0, 1): the nucleus; otherwise off.
    pub top_p: f64,
    /// Above 0: tokens at least this likely, relative to the likeliest.
    pub min_p: f64,
    /// The so many likeliest tokens; 0: all.
    pub top_k: u32,
    /// Zero.
    pub reserved: u32,
}

impl From<TfSampling> for Sampling {
    fn from(raw: TfSampling) -> Sampling {
        let TfSampling { seed, temperature, top_p, min_p, top_k, reserved: _ } = raw;
        Sampling { temperature, top_p, top_k, min_p, seed }
    }
}

impl From<Sampling> for TfSampling {
    fn from(sampling: Sampling) -> TfSampling {
        let Sampling { temperature, top_p, top_k, min_p, seed } = sampling;
        TfSampling { seed, temperature, top_p, min_p, top_k, reserved: 0 }
    }
}

/// What one lane does in a round.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfLaneInput {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// The lane.
    pub lane: u64,
    /// Tokens that the lane holds; the plugin checks it.
    pub position: u64,
    /// Tokens to feed.
    pub tokens: *const u32,
    /// Entries of `tokens`; at least 1.
    pub token_count: u32,
    /// How many of the last tokens are drafts to verify.
    pub draft_count: u32,
    /// How many of the last rows draw a token; 0 while a prompt goes on.
    pub output_count: u32,
    /// The so many likeliest tokens are listed beside each draw; see `logprobs` of the result.
    pub logprob_count: u32,
    /// 1: log probabilities are wanted.
    pub logprobs_wanted: u32,
    /// Kind of drafts to make for the next round, `TF_DRAFT_*`.
    pub next_draft_kind: u32,
    /// Most drafts to make for the next round.
    pub next_draft_count: u32,
    /// A chain of drafts ends before a draft less likely than this; 0: never.
    pub next_draft_confidence: f32,
    /// How to draw.
    pub sampling: TfSampling,
    /// Bit masks of allowed ids, one for each output row, `mask_words` words each, bit `i % 32`
    /// of word `i / 32`; null: every selectable id.
    pub allowed: *const u32,
    /// Words of a mask.
    pub mask_words: u64,
    /// For the host's `cancel_poll`; 0: cannot be cancelled.
    pub cancel: u64,
}

/// A round.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfRound {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// The lanes, each at most once.
    pub lanes: *const TfLaneInput,
    /// Entries of `lanes`.
    pub lane_count: u64,
}

/// One log probability.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability at temperature 1, over all selectable ids.
    pub logprob: f32,
}

/// What one lane got. The host sets the pointers and capacities and zeroes the rest.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfLaneResult {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// `ok`, or `cancelled`: the lane then holds what it held before the round, or some leading
    /// part of a prompt chunk; `position` says which.
    pub status: i32,
    /// Tokens that the lane holds now.
    pub position: u64,
    /// Receives the draws; capacity `output_count`.
    pub tokens: *mut u32,
    /// Draws written.
    pub token_count: u32,
    /// Drafts accepted.
    pub accepted: u32,
    /// Receives the next drafts; capacity `next_draft_count`.
    pub drafts: *mut u32,
    /// Receives the drafter's probability of each; same capacity.
    pub draft_probabilities: *mut f32,
    /// Drafts written.
    pub draft_count: u32,
    /// Their kind, `TF_DRAFT_*`.
    pub draft_kind: u32,
    /// Receives log probabilities: for each draw the drawn token's, then the `logprob_count`
    /// likeliest, likeliest first; capacity `output_count * (logprob_count + 1)`. Null when none
    /// are wanted.
    pub logprobs: *mut TfLogprob,
    /// Entries written.
    pub logprob_count: u64,
}

/// What a round gave.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfRoundResult {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// One for each lane of the round, in the same order.
    pub lanes: *mut TfLaneResult,
    /// Entries of `lanes`.
    pub lane_count: u64,
    /// Time of the model's forward pass; `TF_UNKNOWN` when not measured.
    pub forward_nanoseconds: u64,
    /// Time of drawing and verification; `TF_UNKNOWN` when not measured.
    pub sample_nanoseconds: u64,
    /// Time of drafting; `TF_UNKNOWN` when not measured.
    pub draft_nanoseconds: u64,
    /// Which slower ways of computing were in use, for the record; may be empty. Owned by the
    /// engine, valid until its next call.
    pub degraded: TfStr,
}
