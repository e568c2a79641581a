//! Qwen3.5, 3.6 and 3.8, dense: three Gated DeltaNet layers, then one layer of
//! gated attention, repeated.

use serde_json::Value;
use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MODEL_SPEC_VERSION, MixerSpec, ModelSpec,
    MtpSpec, RopeScaling, RopeSpec,
};

use super::super::config::{Config, Section};
use super::super::error::CheckpointError;
use super::super::names::NameRules;
use super::super::tensors::NamedTensors;
use super::Family;

pub(in super::super) static FAMILY: Family =
    Family { name: "qwen3_5", model_types: &["qwen3_5", "qwen3_5_text"], names: &NAMES, describe };

pub(in super::super) static NAMES: NameRules = NameRules {
    trunk: &["model.language_model.", "language_model.model.", "model."],
    head: &["lm_head", "language_model.lm_head"],
    mtp: &["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."],
    ignored: &["model.visual.", "visual.", "vision_tower.", "model.vision_tower.", "language_model.visual."],
};

/// More layers than any model has; a larger number is a fault, not a model.
const MOST_LAYERS: u32 = 4096;

fn describe(
    config: &Config,
    tensors: &NamedTensors<'_>,
    selectable: Option<u32>,
) -> Result<ModelSpec, CheckpointError> {
    let text = config.text();
    refuse_what_differs(&text)?;

    let feed_forward =
        FeedForwardSpec::Dense { intermediate_size: text.required_integer("intermediate_size")? };
    let hidden_size = text.required_integer("hidden_size")?;
    let heads = text.required_integer("num_attention_heads")?;
    let attention = AttentionSpec {
        heads,
        key_value_heads: text.integer("num_key_value_heads")?.unwrap_or(heads),
        head_size: text.integer("head_dim")?.unwrap_or(hidden_size / heads),
        gated: true,
        head_norms: true,
        biases: false,
    };
    let delta = GatedDeltaSpec {
        key_heads: text.required_integer("linear_num_key_heads")?,
        value_heads: text.required_integer("linear_num_value_heads")?,
        key_head_size: text.required_integer("linear_key_head_dim")?,
        value_head_size: text.required_integer("linear_value_head_dim")?,
        convolution_kernel: text.required_integer("linear_conv_kernel_dim")?,
    };
    let product = |a: u32, b: u32| u128::from(a) * u128::from(b);
    let channels =
        2 * product(delta.key_heads, delta.key_head_size) + product(delta.value_heads, delta.value_head_size);
    if channels > u128::from(u32::MAX) {
        return Err(text.fault("linear_key_head_dim", format!("and its kin make {channels} channels")));
    }
    let full_attention =
        LayerSpec { mixer: MixerSpec::Attention(attention.clone()), feed_forward: feed_forward.clone() };
    let linear_attention = LayerSpec { mixer: MixerSpec::GatedDelta(delta), feed_forward };
    let layers = layer_pattern(&text)?
        .into_iter()
        .map(|full| if full { full_attention.clone() } else { linear_attention.clone() })
        .collect();

    let trunk_offset = trunk_norm_offset(config, tensors)?;
    let mtp = match tensors.mtp_layers() {
        None => None,
        Some(_) if text.boolean("mtp_use_dedicated_embeddings")? == Some(true) => {
            return Err(text.unsupported(
                "mtp_use_dedicated_embeddings",
                "prediction heads with an embedding of their own are not implemented",
            ));
        }
        Some(count) => Some(MtpSpec {
            layers: vec![full_attention; count.min(MOST_LAYERS) as usize],
            norm_weight_offset: mtp_norm_offset(tensors, trunk_offset)?,
            formats: Vec::new(),
        }),
    };
    let vocabulary_rows = text.required_integer("vocab_size")?;
    Ok(ModelSpec {
        version: MODEL_SPEC_VERSION,
        family: FAMILY.name.into(),
        hidden_size,
        vocabulary_rows,
        selectable_vocabulary: selectable.unwrap_or(vocabulary_rows),
        context_window: config.context_window()?.ok_or_else(|| {
            text.fault("max_position_embeddings", "is missing; a positive integer is needed")
        })?,
        norm_epsilon: text.required_number("rms_norm_eps")?,
        norm_weight_offset: trunk_offset,
        // The tensors decide: the two places of tie_word_embeddings may disagree.
        tied_head: !tensors.contains("head"),
        rope: rope(&text, &attention)?,
        layers,
        mtp,
        formats: Vec::new(),
    })
}

/// Switches of the architecture that change the mathematics.
fn refuse_what_differs(text: &Section<'_>) -> Result<(), CheckpointError> {
    if text.string("hidden_act")?.is_some_and(|act| act != "silu") {
        return Err(text.unsupported("hidden_act", "only \"silu\" is implemented"));
    }
    if text.boolean("attention_bias")? == Some(true) {
        return Err(text.unsupported("attention_bias", "this family is implemented without biases"));
    }
    if text.boolean("attn_output_gate")? == Some(false) {
        return Err(text.unsupported("attn_output_gate", "this family is implemented with gated attention"));
    }
    Ok(())
}

/// For each layer, whether it is full attention.
fn layer_pattern(text: &Section<'_>) -> Result<Vec<bool>, CheckpointError> {
    let count = text.required_integer("num_hidden_layers")?;
    if count > MOST_LAYERS {
        return Err(text.fault("num_hidden_layers", format!("is {count}; at most {MOST_LAYERS} are read")));
    }
    let Some(types) = text.array("layer_types")? else {
        let interval = text.required_integer("full_attention_interval")?;
        return Ok((1..=count).map(|layer| layer % interval == 0).collect());
    };
    if types.len() != count as usize {
        let problem = format!("names {} layers, num_hidden_layers is {count}", types.len());
        return Err(text.fault("layer_types", problem));
    }
    types
        .iter()
        .map(|kind| match kind {
            Value::String(kind) if kind == "full_attention" => Ok(true),
            Value::String(kind) if kind == "linear_attention" => Ok(false),
            other => Err(text.fault(
                "layer_types",
                format!("holds {other}; \"linear_attention\" and \"full_attention\" are implemented"),
            )),
        })
        .collect()
}

fn rope(text: &Section<'_>, attention: &AttentionSpec) -> Result<RopeSpec, CheckpointError> {
    let parameters = text.section("rope_parameters")?;
    let scaling = text.section("rope_scaling")?;
    for section in parameters.iter().chain(&scaling) {
        for key in ["rope_type", "type"] {
            // "mrope" is the older word for position triples, which text has all equal.
            if section.string(key)?.is_some_and(|kind| kind != "default" && kind != "mrope") {
                return Err(section.unsupported(
                    key,
                    "only unscaled rotary positions (\"default\") are implemented for this family",
                ));
            }
        }
    }
    let find = |key: &str| match parameters.as_ref().map(|section| section.number(key)).transpose()?.flatten()
    {
        Some(value) => Ok(value),
        None => text.required_number(key),
    };
    let theta = find("rope_theta")?;
    let factor = find("partial_rotary_factor")?;
    if !(factor > 0.0 && factor <= 1.0) {
        return Err(text.fault("partial_rotary_factor", format!("is {factor}; it is a share of the head")));
    }
    let rotary_dimensions = (f64::from(attention.head_size) * factor) as u32;
    Ok(RopeSpec { theta, rotary_dimensions, scaling: RopeScaling::None })
}

/// 1 where norms are stored zero-centred, 0 where one was added already.
///
/// The form shows in the convolution, never in the norms: `[C, 1, K]` was
/// written by Hugging Face's tools, `[C, K, 1]` by MLX's.
fn trunk_norm_offset(config: &Config, tensors: &NamedTensors<'_>) -> Result<f32, CheckpointError> {
    let mut forms = tensors
        .iter()
        .filter(|(name, _)| name.ends_with(".delta.conv"))
        .map(|(_, tensor)| (tensor.name.as_str(), tensor.shape.last().copied() == Some(1)));
    let undecided = |what: &str| {
        let needed = "the weights must be as Hugging Face's tools or MLX's write them";
        Err(CheckpointError::unsupported(config.path(), what, needed))
    };
    let Some((_, mlx)) = forms.next() else {
        return undecided("no layer has a convolution (conv1d.weight), which tells how norms are stored");
    };
    if let Some((name, _)) = forms.find(|(_, other)| *other != mlx) {
        return undecided(&format!(
            "{name} has another order of axes than the convolution of the first layer"
        ));
    }
    Ok(if mlx { 0.0 } else { 1.0 })
}

/// As [`trunk_norm_offset`], for the prediction head.
fn mtp_norm_offset(tensors: &NamedTensors<'_>, trunk_offset: f32) -> Result<f32, CheckpointError> {
    let packed = tensors.iter().any(|(name, _)| name.starts_with("mtp.") && name.ends_with(".scales"));
    if packed {
        return Ok(0.0);
    }
    if trunk_offset == 1.0 {
        return Ok(1.0);
    }
    // An unpacked head beside an MLX trunk may be either. Per-head norms lie
    // around 1 where one was added, well below where not.
    let mean = |name| tensors.mean(name).map(|mean| mean.unwrap_or(1.0));
    let mean = (mean("mtp.layers.0.attention.q_norm")? + mean("mtp.layers.0.attention.k_norm")?) / 2.0;
    let offset = if mean >= 0.9 { 0.0 } else { 1.0 };
    tracing::warn!(
        mean,
        offset,
        "the prediction head is not packed although the model is; how its norms are stored was decided by their mean"
    );
    Ok(offset)
}
