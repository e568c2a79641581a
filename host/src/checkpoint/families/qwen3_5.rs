//! Qwen3.5, 3.6 and 3.8, dense.

use tensorfold_plugin_api::model_spec::FeedForwardSpec;

use super::Family;
use super::hybrid::{self, NAMES};

pub(in super::super) static FAMILY: Family = Family {
    name: NAME,
    model_types: &["qwen3_5", "qwen3_5_text"],
    names: &NAMES,
    describe: |config, tensors, selectable| {
        let intermediate_size = config.text().required_integer("intermediate_size")?;
        hybrid::describe(config, tensors, selectable, NAME, FeedForwardSpec::Dense { intermediate_size })
    },
};

const NAME: &str = "qwen3_5";
