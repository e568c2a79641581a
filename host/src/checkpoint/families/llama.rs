//! Llama 2 and 3, SmolLM2 and their kin.

use super::Family;
use super::dense::{self, NAMES, Traits};

pub(in super::super) static FAMILY: Family = Family {
    name: "llama",
    model_types: &["llama"],
    names: &NAMES,
    describe: |config, tensors, selectable| dense::describe(config, tensors, selectable, TRAITS),
};

const TRAITS: Traits = Traits {
    family: "llama",
    head_norms: false,
    biases: false,
    // Configurations of the first Llamas name no base; it was this one.
    default_theta: Some(10_000.0),
};
