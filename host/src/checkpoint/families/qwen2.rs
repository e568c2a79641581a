//! Qwen2 and Qwen2.5: queries, keys and values carry biases.

use super::Family;
use super::dense::{self, NAMES, Traits};

pub(in super::super) static FAMILY: Family = Family {
    name: "qwen2",
    model_types: &["qwen2"],
    names: &NAMES,
    describe: |config, tensors, selectable| dense::describe(config, tensors, selectable, TRAITS),
};

const TRAITS: Traits = Traits { family: "qwen2", head_norms: false, biases: true, default_theta: None };
