//! Qwen3: queries and keys are normed per head.

use super::Family;
use super::dense::{self, NAMES, Traits};

pub(in super::super) static FAMILY: Family = Family {
    name: "qwen3",
    model_types: &["qwen3"],
    names: &NAMES,
    describe: |config, tensors, selectable| dense::describe(config, tensors, selectable, TRAITS),
};

const TRAITS: Traits = Traits { family: "qwen3", head_norms: true, biases: false, default_theta: None };
