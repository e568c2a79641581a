//! A round, as a plugin sees it.

use super::host::{CancelToken, Host};
use super::{Logprob, PluginError};
use crate::abi::{
    TF_DRAFT_BLOCK, TF_DRAFT_MTP, TF_DRAFT_NONE, TF_STATUS_CANCELLED, TF_STATUS_OK, TF_UNKNOWN, TfLaneInput,
    TfLaneResult, TfRound, TfRoundResult,
};
use crate::sampling::Sampling;

/// Who makes drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DraftKind {
    /// Nobody.
    #[default]
    None,
    /// The checkpoint's own multi-token prediction head.
    Mtp,
    /// An external block drafter.
    Block,
}

impl DraftKind {
    /// From the raw constant; `None` for a kind this build does not know.
    pub fn from_code(code: u32) -> Option<DraftKind> {
        match code {
            TF_DRAFT_NONE => Some(DraftKind::None),
            TF_DRAFT_MTP => Some(DraftKind::Mtp),
            TF_DRAFT_BLOCK => Some(DraftKind::Block),
            _ => None,
        }
    }

    /// The raw constant.
    pub fn code(self) -> u32 {
        match self {
            DraftKind::None => TF_DRAFT_NONE,
            DraftKind::Mtp => TF_DRAFT_MTP,
            DraftKind::Block => TF_DRAFT_BLOCK,
        }
    }
}

/// Which drafts to make for the next round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextDrafts {
    /// Who makes them.
    pub kind: DraftKind,
    /// At most so many.
    pub count: usize,
    /// A chain ends before a draft less likely than this.
    pub confidence: f32,
}

/// Masks of allowed ids, one for each output row.
#[derive(Clone, Copy, Debug)]
pub struct AllowedTokens<'a> {
    words: &'a [u32],
    words_per_row: usize,
}

impl<'a> AllowedTokens<'a> {
    /// Masks of `words_per_row` words each, bit `i % 32` of word `i / 32` for id `i`.
    pub fn new(words: &'a [u32], words_per_row: usize) -> AllowedTokens<'a> {
        AllowedTokens { words, words_per_row }
    }

    /// The mask of an output row.
    pub fn row(&self, output: usize) -> &'a [u32] {
        &self.words[output * self.words_per_row..(output + 1) * self.words_per_row]
    }
}

/// What one lane does in a round; see [`crate::abi::TfLaneInput`].
#[derive(Clone, Copy)]
pub struct LaneInput<'a> {
    /// The lane.
    pub lane: u64,
    /// Tokens that the host believes the lane to hold.
    pub position: u64,
    /// Tokens to feed; never empty.
    pub tokens: &'a [u32],
    /// How many of the last tokens are drafts.
    pub draft_count: usize,
    /// How many of the last rows draw a token.
    pub output_count: usize,
    /// How to draw.
    pub sampling: Sampling,
    /// Allowed ids; `None`: every selectable one.
    pub allowed: Option<AllowedTokens<'a>>,
    /// How many likeliest tokens to list beside each draw; `None`: no log probabilities.
    pub logprobs: Option<usize>,
    /// Drafts for the next round.
    pub next_drafts: NextDrafts,
    /// When to stop.
    pub cancel: CancelToken,
}

/// Where one lane's outcome goes.
pub struct LaneOutput<'a> {
    /// Set when the lane was cancelled.
    pub cancelled: bool,
    /// Tokens that the lane holds now; set it always.
    pub position: u64,
    /// Draws; `output_count` entries.
    pub tokens: &'a mut [u32],
    /// Draws written to `tokens`.
    pub token_count: usize,
    /// Drafts accepted.
    pub accepted: usize,
    /// Next drafts.
    pub drafts: &'a mut [u32],
    /// Their probabilities.
    pub draft_probabilities: &'a mut [f32],
    /// Drafts written.
    pub draft_count: usize,
    /// Who made them.
    pub draft_kind: DraftKind,
    /// Log probabilities, `1 + listed` for each draw.
    pub logprobs: &'a mut [Logprob],
    /// Entries of `logprobs` written.
    pub logprob_count: usize,
}

/// What a round tells besides its draws. `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Time of the forward pass.
    pub forward_nanoseconds: Option<u64>,
    /// Time of drawing and verification.
    pub sample_nanoseconds: Option<u64>,
    /// Time of drafting.
    pub draft_nanoseconds: Option<u64>,
    /// Slower ways of computing that were in use.
    pub degraded: String,
}

/// Checks a round and lays it out for an engine.
///
/// # Safety
/// `round` and `result` must follow their contracts for the duration of `'a`.
pub(super) unsafe fn from_raw<'a>(
    round: &'a TfRound,
    result: &'a mut TfRoundResult,
    host: Host,
) -> Result<(Vec<LaneInput<'a>>, Vec<LaneOutput<'a>>), PluginError> {
    // SAFETY: the caller's promise, here and below.
    let lanes = unsafe { crate::abi::slice(round.lanes, round.lane_count) };
    // SAFETY: as above.
    let results = unsafe { crate::abi::slice_mut(result.lanes, result.lane_count) };
    if lanes.len() != results.len() || lanes.is_empty() {
        return Err(PluginError::invalid(format!(
            "a round of {} lanes with room for {} results",
            lanes.len(),
            results.len()
        )));
    }
    let mut inputs = Vec::with_capacity(lanes.len());
    let mut outputs = Vec::with_capacity(lanes.len());
    for (lane, result) in lanes.iter().zip(results) {
        if inputs.iter().any(|input: &LaneInput<'_>| input.lane == lane.lane) {
            return Err(PluginError::invalid(format!("lane {:#x} is named twice in a round", lane.lane)));
        }
        // SAFETY: as above.
        inputs.push(unsafe { input(lane, host)? });
        // SAFETY: as above.
        outputs.push(unsafe { output(lane, result)? });
    }
    Ok((inputs, outputs))
}

/// # Safety
/// `raw` must follow the contract of [`TfLaneInput`] for the duration of `'a`.
unsafe fn input<'a>(raw: &'a TfLaneInput, host: Host) -> Result<LaneInput<'a>, PluginError> {
    let fail = |what: String| Err(PluginError::invalid(format!("lane {:#x}: {what}", raw.lane)));
    if (raw.struct_size as usize) < size_of::<TfLaneInput>() {
        return fail(format!("its input has {} bytes", raw.struct_size));
    }
    if raw.token_count == 0 || raw.tokens.is_null() {
        return fail("no tokens to feed".into());
    }
    if raw.output_count > raw.token_count {
        return fail(format!("{} outputs of {} rows", raw.output_count, raw.token_count));
    }
    if raw.draft_count > 0 && raw.output_count != raw.draft_count + 1 {
        return fail(format!("{} drafts with {} outputs", raw.draft_count, raw.output_count));
    }
    let Some(kind) = DraftKind::from_code(raw.next_draft_kind) else {
        return fail(format!("unknown kind of drafts {}", raw.next_draft_kind));
    };
    let allowed = if raw.allowed.is_null() {
        None
    } else {
        let words = u64::from(raw.output_count).saturating_mul(raw.mask_words);
        // SAFETY: the caller's promise.
        let words = unsafe { crate::abi::slice(raw.allowed, words) };
        Some(AllowedTokens::new(words, raw.mask_words as usize))
    };
    Ok(LaneInput {
        lane: raw.lane,
        position: raw.position,
        // SAFETY: the caller's promise.
        tokens: unsafe { crate::abi::slice(raw.tokens, raw.token_count.into()) },
        draft_count: raw.draft_count as usize,
        output_count: raw.output_count as usize,
        sampling: raw.sampling.into(),
        allowed,
        logprobs: (raw.logprobs_wanted != 0).then_some(raw.logprob_count as usize),
        next_drafts: NextDrafts {
            kind,
            count: raw.next_draft_count as usize,
            confidence: raw.next_draft_confidence,
        },
        cancel: CancelToken::new(host, raw.cancel),
    })
}

/// # Safety
/// `result` must follow the contract of [`TfLaneResult`] for the duration of `'a`.
unsafe fn output<'a>(
    lane: &TfLaneInput,
    result: &'a mut TfLaneResult,
) -> Result<LaneOutput<'a>, PluginError> {
    let outputs = u64::from(lane.output_count);
    let drafts = u64::from(lane.next_draft_count);
    let listed = if lane.logprobs_wanted == 0 { 0 } else { outputs * (u64::from(lane.logprob_count) + 1) };
    if (result.struct_size as usize) < size_of::<TfLaneResult>()
        || (outputs > 0 && result.tokens.is_null())
        || (drafts > 0 && (result.drafts.is_null() || result.draft_probabilities.is_null()))
        || (listed > 0 && result.logprobs.is_null())
    {
        return Err(PluginError::invalid(format!("lane {:#x}: no room for its result", lane.lane)));
    }
    // SAFETY: not null where entries are wanted, and the caller promises the capacities, that
    // nobody else touches the buffers, and that they do not overlap.
    let (tokens, draft_tokens, draft_probabilities, logprobs) = unsafe {
        (
            crate::abi::slice_mut(result.tokens, outputs),
            crate::abi::slice_mut(result.drafts, drafts),
            crate::abi::slice_mut(result.draft_probabilities, drafts),
            crate::abi::slice_mut(result.logprobs, listed),
        )
    };
    Ok(LaneOutput {
        cancelled: false,
        position: lane.position,
        tokens,
        token_count: 0,
        accepted: 0,
        drafts: draft_tokens,
        draft_probabilities,
        draft_count: 0,
        draft_kind: DraftKind::None,
        logprobs,
        logprob_count: 0,
    })
}

/// The counts of an output, apart from the buffers it borrows.
pub(super) struct Outcome {
    cancelled: bool,
    position: u64,
    token_count: usize,
    accepted: usize,
    draft_count: usize,
    draft_kind: DraftKind,
    logprob_count: usize,
}

impl LaneOutput<'_> {
    /// Checks what the engine wrote and lets go of the buffers.
    pub(super) fn finish(self, input: &LaneInput<'_>) -> Result<Outcome, PluginError> {
        let wrong = if self.token_count > self.tokens.len() {
            Some("more draws than rows that draw")
        } else if self.draft_count > self.drafts.len() {
            Some("more drafts than were asked for")
        } else if self.logprob_count > self.logprobs.len() {
            Some("more log probabilities than were asked for")
        } else if self.accepted > input.draft_count {
            Some("more drafts accepted than fed")
        } else if !self.cancelled && input.draft_count > 0 && self.token_count != self.accepted + 1 {
            Some("a count of draws that does not follow from the accepted drafts")
        } else {
            None
        };
        if let Some(what) = wrong {
            return Err(PluginError::internal(format!("lane {:#x}: the engine reports {what}", input.lane)));
        }
        Ok(Outcome {
            cancelled: self.cancelled,
            position: self.position,
            token_count: self.token_count,
            accepted: self.accepted,
            draft_count: self.draft_count,
            draft_kind: self.draft_kind,
            logprob_count: self.logprob_count,
        })
    }
}

/// Writes outcomes and report where the host reads them. `degraded` must stay alive until the
/// engine's next call.
///
/// # Safety
/// As for [`from_raw`], and no [`LaneOutput`] of the round may be alive.
pub(super) unsafe fn write_back(
    result: &mut TfRoundResult,
    outcomes: &[Outcome],
    report: &RoundReport,
    degraded: crate::abi::TfStr,
) {
    // SAFETY: the caller's promise.
    let lanes = unsafe { crate::abi::slice_mut(result.lanes, result.lane_count) };
    for (lane, outcome) in lanes.iter_mut().zip(outcomes) {
        lane.status = if outcome.cancelled { TF_STATUS_CANCELLED } else { TF_STATUS_OK };
        lane.position = outcome.position;
        lane.token_count = outcome.token_count as u32;
        lane.accepted = outcome.accepted as u32;
        lane.draft_count = outcome.draft_count as u32;
        lane.draft_kind = outcome.draft_kind.code();
        lane.logprob_count = outcome.logprob_count as u64;
    }
    result.forward_nanoseconds = report.forward_nanoseconds.unwrap_or(TF_UNKNOWN);
    result.sample_nanoseconds = report.sample_nanoseconds.unwrap_or(TF_UNKNOWN);
    result.draft_nanoseconds = report.draft_nanoseconds.unwrap_or(TF_UNKNOWN);
    result.degraded = degraded;
}
