//! Qwen3.5 and 3.6 with routed experts: every feed-forward is a mixture with
//! one shared expert.

use tensorfold_plugin_api::model_spec::FeedForwardSpec;

use super::super::config::Section;
use super::super::error::CheckpointError;
use super::Family;
use super::hybrid::{self, NAMES};
use super::parts::refuse_false;

pub(in super::super) static FAMILY: Family = Family {
    name: NAME,
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    names: &NAMES,
    describe: |config, tensors, selectable| {
        let feed_forward = mixture(&config.text())?;
        hybrid::describe(config, tensors, selectable, NAME, feed_forward)
    },
};

const NAME: &str = "qwen3_5_moe";

fn mixture(text: &Section<'_>) -> Result<FeedForwardSpec, CheckpointError> {
    refuse_false(text, "norm_topk_prob", "experts whose weights are not renormalised are not implemented")?;
    if text.integer("decoder_sparse_step")?.is_some_and(|step| step != 1) {
        return Err(
            text.unsupported("decoder_sparse_step", "only experts in every layer (1) are implemented")
        );
    }
    if text.array("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(text.unsupported("mlp_only_layers", "only experts in every layer ([]) are implemented"));
    }
    let experts = text.required_integer("num_experts")?;
    let experts_per_token = text.required_integer("num_experts_per_tok")?;
    if experts_per_token > experts {
        let problem = format!("is {experts_per_token}, but num_experts is {experts}");
        return Err(text.fault("num_experts_per_tok", problem));
    }
    Ok(FeedForwardSpec::MixtureOfExperts {
        experts,
        experts_per_token,
        intermediate_size: text.required_integer("moe_intermediate_size")?,
        shared_intermediate_size: text.required_integer("shared_expert_intermediate_size")?,
    })
}
