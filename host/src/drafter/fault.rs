//! What keeps a drafter from being used, one clause each.

use std::fmt;

use crate::checkpoint::CheckpointError;

/// What a fault is about, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultCode {
    /// A field of the configuration has a value that cannot be read.
    BadField,
    /// The size of a block.
    BlockSize,
    /// Channels that share what a row adds to the kernels.
    ConvGroup,
    /// Rows of the kernels.
    ConvKernel,
    /// Drafts that were asked for.
    DraftCount,
    /// The files of the weights.
    Files,
    /// The spelling of the whole checkpoint.
    Format,
    /// Attention heads.
    Heads,
    /// Width of the residual stream.
    HiddenSize,
    /// A DFlash drafter with a part of another kind's.
    Hybrid,
    /// The kind of drafter.
    Kind,
    /// Kinds of layers.
    LayerTypes,
    /// The token to be guessed.
    MaskToken,
    /// A field that has no default is absent.
    MissingField,
    /// Neither a drafter nor a model.
    NotAModel,
    /// The dimensions of the selector.
    SelectorRank,
    /// The number of candidates.
    SelectorTopK,
    /// The window of sliding layers.
    SlidingWindow,
    /// Tapped layers are no numbers of layers.
    TapIds,
    /// Tapped layers do not ascend.
    TapOrder,
    /// Tapped layers are not the target's.
    TapRange,
    /// Depth of the target.
    TargetLayers,
    /// Names, shapes and types of tensors.
    Tensors,
    /// An algorithm of the speculators format that is not known.
    UnknownAlgorithm,
    /// A projector that is not known.
    UnknownProjector,
    /// The configuration asks for what is not computed.
    Unsupported,
    /// The vocabulary.
    VocabSize,
}

impl FaultCode {
    /// The name in documents.
    pub const fn id(self) -> &'static str {
        match self {
            FaultCode::BadField => "bad-field",
            FaultCode::BlockSize => "block-size",
            FaultCode::ConvGroup => "conv-group",
            FaultCode::ConvKernel => "conv-kernel",
            FaultCode::DraftCount => "draft-count",
            FaultCode::Files => "files",
            FaultCode::Format => "format",
            FaultCode::Heads => "heads",
            FaultCode::HiddenSize => "hidden-size",
            FaultCode::Hybrid => "hybrid",
            FaultCode::Kind => "kind",
            FaultCode::LayerTypes => "layer-types",
            FaultCode::MaskToken => "mask-token",
            FaultCode::MissingField => "missing-field",
            FaultCode::NotAModel => "not-a-model",
            FaultCode::SelectorRank => "selector-rank",
            FaultCode::SelectorTopK => "selector-top-k",
            FaultCode::SlidingWindow => "sliding-window",
            FaultCode::TapIds => "tap-ids",
            FaultCode::TapOrder => "tap-order",
            FaultCode::TapRange => "tap-range",
            FaultCode::TargetLayers => "target-layers",
            FaultCode::Tensors => "tensors",
            FaultCode::UnknownAlgorithm => "unknown-algorithm",
            FaultCode::UnknownProjector => "unknown-projector",
            FaultCode::Unsupported => "unsupported",
            FaultCode::VocabSize => "vocab-size",
        }
    }
}

/// One thing that is wrong: a clause that follows the drafter's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it is about.
    pub code: FaultCode,
    /// The clause.
    pub text: String,
}

impl Fault {
    pub(super) fn new(code: FaultCode, text: impl Into<String>) -> Fault {
        Fault { code, text: text.into() }
    }

    /// A fault of the configuration, without the path that every one of them would repeat.
    pub(super) fn of_config(error: CheckpointError) -> Fault {
        match error {
            CheckpointError::Value { key, problem, .. } => {
                Fault::new(FaultCode::BadField, format!("{key} {problem}"))
            }
            CheckpointError::Unsupported { found, needed, .. } => {
                Fault::new(FaultCode::Unsupported, format!("{found}; {needed}"))
            }
            other => Fault::new(FaultCode::Files, other.to_string()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// All faults in one line.
pub fn one_line(faults: &[Fault]) -> String {
    faults.iter().map(|fault| fault.text.as_str()).collect::<Vec<_>>().join("; ")
}
