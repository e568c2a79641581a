//! The model families that can be read, one file each.
//!
//! A family says which `model_type`s are its own, how its tensors are named,
//! and how its configuration becomes a [`ModelSpec`]. Whatever a configuration
//! asks for that the spec cannot express is refused by name.

pub(super) mod qwen3_5;

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::config::Config;
use super::error::CheckpointError;
use super::names::NameRules;
use super::tensors::NamedTensors;

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    /// Name, spelt as in manifests.
    pub(super) name: &'static str,
    /// Values of `model_type` at the top level.
    pub(super) model_types: &'static [&'static str],
    /// How its tensors are named.
    pub(super) names: &'static NameRules,
    /// The facts of a checkpoint. Formats are left empty; `selectable` is the
    /// tokenizer's size.
    pub(super) describe: fn(
        config: &Config,
        tensors: &NamedTensors<'_>,
        selectable: Option<u32>,
    ) -> Result<ModelSpec, CheckpointError>,
}

/// All families.
pub(super) static FAMILIES: &[&Family] = &[&qwen3_5::FAMILY];

/// `model_type`s that are known and not read, with what they would need.
const KNOWN_OTHERS: &[(&str, &str)] = &[
    ("llama", "its plain attention layers are not implemented"),
    ("qwen2", "its plain attention layers with biases are not implemented"),
    ("qwen3", "its plain attention layers are not implemented"),
    ("qwen3_5_moe", "its routed experts are not implemented"),
    ("qwen3_next", "its fused projections and routed experts are not implemented"),
    ("qwen4_exp", "its n-gram embedding, sparse attention and residual streams are not implemented"),
    ("qwen3_5_mtp", "it is a multi-token prediction head, not a model: serve the model that it was made for"),
];

/// The family of a configuration.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with what the family would need.
pub(super) fn find(config: &Config) -> Result<&'static Family, CheckpointError> {
    refuse_drafter(config)?;
    let model_type = config.model_type()?;
    if let Some(family) = lookup(model_type) {
        return Ok(family);
    }
    let needed = KNOWN_OTHERS.iter().find(|(name, _)| *name == model_type).map(|(_, needed)| *needed);
    let needed = needed.unwrap_or("that family is not implemented");
    let supported: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    let needed = format!("{needed}; supported: {}", supported.join(", "));
    Err(CheckpointError::unsupported(config.path(), format!("model_type is {model_type:?}"), needed))
}

/// Refuses a configuration that is an external drafter's. Its `model_type` is that of the layers it is made of, so a
/// family would be of no help to whoever took it for a model.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with what to name in its place.
pub(super) fn refuse_drafter(config: &Config) -> Result<(), CheckpointError> {
    if config.top().get("dflash_config").is_none() {
        return Ok(());
    }
    let found = "dflash_config marks an external drafter, not a model";
    let needed = "name the model that it drafts for, and this with --drafter";
    Err(CheckpointError::unsupported(config.path(), found, needed))
}

/// The family with this `model_type`.
pub(super) fn lookup(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.model_types.contains(&model_type))
}
