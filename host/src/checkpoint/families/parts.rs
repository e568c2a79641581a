//! What configurations of all families have in common.

use tensorfold_plugin_api::model_spec::{LayerSpec, MODEL_SPEC_VERSION, ModelSpec, MtpSpec, RopeSpec};

use super::super::config::{Config, Section};
use super::super::error::CheckpointError;
use super::super::tensors::NamedTensors;

/// More layers than any model has; a larger number is a fault, not a model.
pub(super) const MOST_LAYERS: u32 = 4096;

/// Sizes of the attention layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    /// Query heads.
    pub(super) heads: u32,
    /// Key/value heads.
    pub(super) key_value_heads: u32,
    /// Dimensions of a head.
    pub(super) head_size: u32,
}

/// Reads the sizes of the attention layers. `head_dim` need not be
/// `hidden_size / num_attention_heads`; where it is absent it is.
///
/// # Errors
/// When a size is missing or no head size follows.
pub(super) fn heads(text: &Section<'_>) -> Result<Heads, CheckpointError> {
    let hidden_size = text.required_integer("hidden_size")?;
    let heads = text.required_integer("num_attention_heads")?;
    let head_size = match text.integer("head_dim")? {
        Some(size) => size,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let problem =
                format!("is missing, and {hidden_size} dimensions do not divide into {heads} heads");
            return Err(text.fault("head_dim", problem));
        }
    };
    let key_value_heads = text.integer("num_key_value_heads")?.unwrap_or(heads);
    Ok(Heads { heads, key_value_heads, head_size })
}

/// The number of layers.
///
/// # Errors
/// When it is missing, or no honest number.
pub(super) fn layer_count(text: &Section<'_>) -> Result<u32, CheckpointError> {
    let count = text.required_integer("num_hidden_layers")?;
    if count > MOST_LAYERS {
        return Err(text.fault("num_hidden_layers", format!("is {count}; at most {MOST_LAYERS} are read")));
    }
    Ok(count)
}

/// `layer_types`, checked to name as many layers as there are; `None` where it is absent.
///
/// # Errors
/// When the counts differ, or a layer is none of `known`.
pub(super) fn layer_types<'a>(
    text: &Section<'a>,
    known: &[&str],
) -> Result<Option<Vec<&'a str>>, CheckpointError> {
    let count = layer_count(text)?;
    let Some(types) = text.array("layer_types")? else { return Ok(None) };
    if types.len() != count as usize {
        let problem = format!("names {} layers, num_hidden_layers is {count}", types.len());
        return Err(text.fault("layer_types", problem));
    }
    let known_type = |kind: &'a serde_json::Value| {
        kind.as_str().filter(|kind| known.contains(kind)).ok_or_else(|| {
            let known: Vec<_> = known.iter().map(|kind| format!("{kind:?}")).collect();
            text.fault("layer_types", format!("holds {kind}; {} are implemented", known.join(" and ")))
        })
    };
    types.iter().map(known_type).collect::<Result<_, _>>().map(Some)
}

/// Refuses an activation other than SiLU.
///
/// # Errors
/// [`CheckpointError::Unsupported`].
pub(super) fn require_silu(text: &Section<'_>) -> Result<(), CheckpointError> {
    if text.string("hidden_act")?.is_some_and(|act| act != "silu") {
        return Err(text.unsupported("hidden_act", "only \"silu\" is implemented"));
    }
    Ok(())
}

/// Refuses a switch that is on.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with `needed`.
pub(super) fn refuse_true(text: &Section<'_>, key: &str, needed: &str) -> Result<(), CheckpointError> {
    match text.boolean(key)? {
        Some(true) => Err(text.unsupported(key, needed)),
        _ => Ok(()),
    }
}

/// Refuses a switch that is off.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with `needed`.
pub(super) fn refuse_false(text: &Section<'_>, key: &str, needed: &str) -> Result<(), CheckpointError> {
    match text.boolean(key)? {
        Some(false) => Err(text.unsupported(key, needed)),
        _ => Ok(()),
    }
}

/// What distinguishes a model from others of the same sizes.
pub(super) struct Trunk {
    pub(super) family: &'static str,
    pub(super) norm_weight_offset: f32,
    pub(super) rope: RopeSpec,
    pub(super) layers: Vec<LayerSpec>,
    pub(super) mtp: Option<MtpSpec>,
}

/// The description of a model, its formats left empty.
///
/// # Errors
/// When a size that every family needs is missing.
pub(super) fn model_spec(
    config: &Config,
    tensors: &NamedTensors<'_>,
    selectable: Option<u32>,
    trunk: Trunk,
) -> Result<ModelSpec, CheckpointError> {
    let text = config.text();
    let vocabulary_rows = text.required_integer("vocab_size")?;
    let context_window = config
        .context_window()?
        .ok_or_else(|| text.fault("max_position_embeddings", "is missing; a positive integer is needed"))?;
    Ok(ModelSpec {
        version: MODEL_SPEC_VERSION,
        family: trunk.family.into(),
        hidden_size: text.required_integer("hidden_size")?,
        vocabulary_rows,
        selectable_vocabulary: selectable.unwrap_or(vocabulary_rows),
        context_window,
        norm_epsilon: text.required_number("rms_norm_eps")?,
        norm_weight_offset: trunk.norm_weight_offset,
        // The tensors decide: the two places of tie_word_embeddings may disagree.
        tied_head: !tensors.contains("head"),
        rope: trunk.rope,
        layers: trunk.layers,
        mtp: trunk.mtp,
        formats: Vec::new(),
    })
}
