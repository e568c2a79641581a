//! The model families that can be read, one file each.
//!
//! A family says which `model_type`s are its own, how its tensors are named,
//! and how its configuration becomes a [`ModelSpec`]. Whatever a configuration
//! asks for that the spec cannot express is refused by name.
//!
//! Families of one build share it: `dense` is plain attention in every layer,
//! `hybrid` Gated DeltaNet with attention in between.

mod dense;
mod hybrid;
mod llama;
mod others;
mod parts;
mod qwen2;
mod qwen3;
pub(super) mod qwen3_5;
mod qwen3_5_moe;
pub(crate) mod rope;

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::config::Config;
use super::error::CheckpointError;
use super::names::NameRules;
use super::tensors::NamedTensors;
use crate::drafter::{self, Fault};

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    /// Name, spelt as in manifests.
    pub(super) name: &'static str,
    /// Values of `model_type`, at the top level or in `text_config`.
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
pub(super) static FAMILIES: &[&Family] =
    &[&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY, &qwen3_5::FAMILY, &qwen3_5_moe::FAMILY];

/// The family of a configuration.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with what the family would need.
pub(super) fn find(config: &Config) -> Result<&'static Family, CheckpointError> {
    refuse_drafter(config)?;
    let model_type = config.model_type()?;
    let Some(family) = lookup(model_type) else {
        let supported: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        let needed = others::needed(model_type).unwrap_or("that family is not implemented");
        let needed = format!("{needed}; supported: {}", supported.join(", "));
        return Err(CheckpointError::unsupported(
            config.path(),
            format!("model_type is {model_type:?}"),
            needed,
        ));
    };
    let text = config.text();
    if text.string("model_type")?.is_some_and(|inner| !family.model_types.contains(&inner)) {
        let needed = format!("the text model of {model_type:?} is {}", family.model_types.join(" or "));
        return Err(text.unsupported("model_type", needed));
    }
    Ok(family)
}

/// Refuses a configuration that is a drafter's. Its `model_type` may be that of the layers it is made of, so a family
/// would be of no help to whoever took it for a model.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with what to name in its place.
fn refuse_drafter(config: &Config) -> Result<(), CheckpointError> {
    match drafter::configured(config) {
        None => {}
        Some(Ok(class)) => {
            let found = format!("it is of a {} drafter, not of a model", class.name());
            let needed = "name the model that it drafts for, and this with --drafter";
            return Err(CheckpointError::unsupported(config.path(), found, needed));
        }
        Some(Err(fault)) => return Err(not_read(config, fault)),
    }
    if let Some(family) = prediction_head_of(config) {
        let found =
            format!("model_type is {:?}, a multi-token prediction head, not a model", config.model_type()?);
        let needed = format!(
            "copy its safetensors file into the folder of the {family} model that it was made for, as \
             mtp.safetensors, and name that model"
        );
        return Err(CheckpointError::unsupported(config.path(), found, needed));
    }
    Ok(())
}

/// The refusal of a drafter of a kind that is not read.
pub(super) fn not_read(config: &Config, fault: Fault) -> CheckpointError {
    CheckpointError::Files { path: config.path().into(), problem: fault.text }
}

/// The family whose prediction head a folder holds, apart from a model.
pub(super) fn prediction_head_of(config: &Config) -> Option<&'static str> {
    let family = lookup(config.model_type().ok()?.strip_suffix("_mtp")?)?;
    (!family.names.mtp.is_empty()).then_some(family.name)
}

/// The family with this `model_type`.
pub(super) fn lookup(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.model_types.contains(&model_type))
}
