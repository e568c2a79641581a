//! Whether a drafter fits a target, from the facts of both.
//!
//! Equal sizes do not make a match: a drafter learnt the states of one model. They only keep a drafter from being run
//! with a model that it cannot be of.

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::fault::{Fault, FaultCode};
use super::reading::Reading;

/// What has to be known of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Ids that its head tells apart, padding included.
    pub vocabulary: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Rows of its embedding.
    pub embedding_rows: u32,
}

impl Target {
    /// A model that is described.
    pub fn of(model: &ModelSpec) -> Target {
        Target {
            hidden_size: model.hidden_size,
            vocabulary: model.vocabulary_rows,
            layers: u32::try_from(model.layers.len()).unwrap_or(u32::MAX),
            embedding_rows: model.vocabulary_rows,
        }
    }
}

/// Everything that keeps a drafter from drafting for a target; without one, from drafting for any. `drafts` is how
/// many a round were asked for.
pub(super) fn faults(reading: &Reading, target: Option<Target>, drafts: Option<u32>) -> Vec<Fault> {
    let mut faults = reading.faults.clone();
    let mut fault = |code, text: String| faults.push(Fault::new(code, text));
    if let Some(target) = target {
        if let Some(own) = reading.hidden_size.filter(|own| *own != target.hidden_size) {
            let text = format!("hidden size {own}, but the target's is {}", target.hidden_size);
            fault(FaultCode::HiddenSize, text);
        }
        if let Some(own) = reading.vocabulary_rows.filter(|own| *own != target.vocabulary) {
            fault(
                FaultCode::VocabSize,
                format!("vocabulary {own}, but the target's is {}", target.vocabulary),
            );
        }
        if let Some(own) = reading.target_layers.filter(|own| *own != target.layers) {
            let text = format!("made for a target of {own} layers; this one has {}", target.layers);
            fault(FaultCode::TargetLayers, text);
        }
    }
    if let Some(part) = reading.draft_vocabulary {
        fault(
            FaultCode::VocabSize,
            format!("draft_vocab_size {part}: a part of a vocabulary is not drafted from"),
        );
    }
    let rows = target.map(|target| target.embedding_rows).or(reading.vocabulary_rows);
    if let (Some(mask), Some(rows)) = (reading.mask_token, rows)
        && mask >= rows
    {
        fault(FaultCode::MaskToken, format!("mask token {mask} is outside the target's {rows} rows"));
    }
    if let Some(taps) = &reading.taps {
        let depth = target.map(|target| target.layers).or(reading.target_layers);
        if let Some(text) = depth.and_then(|depth| out_of_range(taps, depth)) {
            fault(FaultCode::TapRange, text);
        }
        if !taps.is_sorted_by(|a, b| a < b) {
            fault(FaultCode::TapOrder, format!("taps layers {}; they must ascend", listed(taps)));
        }
    }
    if let (Some(drafts), Some(block)) = (drafts, reading.block_size)
        && !(1..block).contains(&drafts)
    {
        let text =
            format!("{drafts} drafts asked: this drafter's block of {block} drafts at most {}", block - 1);
        fault(FaultCode::DraftCount, text);
    }
    faults
}

/// The output of the last layer is no tap: some write it down before the final norm and some after it, and nothing
/// that was published says which a drafter would want.
fn out_of_range(taps: &[i64], depth: u32) -> Option<String> {
    let last = i64::from(depth) - 1;
    let outside = taps.iter().find(|tap| !(0..=last).contains(*tap));
    match outside {
        Some(tap) => Some(format!("taps layer {tap}; the target's last is {last}")),
        None => taps.contains(&last).then(|| {
            format!("taps layer {last}, the target's last; what is read there is not settled, layers before it can be")
        }),
    }
}

/// At most a few of a list that may be long.
fn listed(taps: &[i64]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = taps.iter().take(SHOWN).map(i64::to_string).collect();
    let more = if taps.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}
