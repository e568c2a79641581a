//! Gated DeltaNet layers with a layer of gated attention in between: what the
//! Qwen3.5 families share.

use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec, MtpSpec,
};

use super::super::config::{Config, Section};
use super::super::error::CheckpointError;
use super::super::names::NameRules;
use super::super::tensors::NamedTensors;
use super::parts::{self, MOST_LAYERS, Trunk, refuse_false, refuse_true};
use super::rope::{self, RopeRules, Share};

pub(in super::super) static NAMES: NameRules = NameRules {
    trunk: &["model.language_model.", "language_model.model.", "model."],
    head: &["lm_head", "language_model.lm_head"],
    mtp: &["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."],
    ignored: &["model.visual.", "visual.", "vision_tower.", "model.vision_tower.", "language_model.visual."],
};

/// Most experts of all layers together: each may be three tensors of its own.
const MOST_EXPERTS: u64 = 1 << 18;

/// The facts of a checkpoint whose layers all have this feed-forward.
///
/// # Errors
/// When a value is missing or wrong, or asks for what is not computed.
pub(super) fn describe(
    config: &Config,
    tensors: &NamedTensors<'_>,
    selectable: Option<u32>,
    family: &'static str,
    feed_forward: FeedForwardSpec,
) -> Result<ModelSpec, CheckpointError> {
    let text = config.text();
    refuse_what_differs(&text)?;

    let heads = parts::heads(&text)?;
    let attention = AttentionSpec {
        heads: heads.heads,
        key_value_heads: heads.key_value_heads,
        head_size: heads.head_size,
        gated: true,
        head_norms: true,
        biases: false,
    };
    let rules = RopeRules { default_theta: None, share: Share::Named, position_triples: true };
    let rope = rope::read(&text, heads.head_size, rules)?;
    let delta = gated_delta(&text)?;
    let full_attention =
        LayerSpec { mixer: MixerSpec::Attention(attention), feed_forward: feed_forward.clone() };
    let linear_attention = LayerSpec { mixer: MixerSpec::GatedDelta(delta), feed_forward };
    let layers: Vec<LayerSpec> = layer_pattern(&text)?
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
    bound_experts(&text, layers.iter().chain(mtp.iter().flat_map(|mtp| &mtp.layers)))?;
    let trunk = Trunk { family, norm_weight_offset: trunk_offset, rope, layers, mtp };
    parts::model_spec(config, tensors, selectable, trunk)
}

fn gated_delta(text: &Section<'_>) -> Result<GatedDeltaSpec, CheckpointError> {
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
    Ok(delta)
}

/// A list of tensors is made for each expert; a stranger's number must not make it a long one.
fn bound_experts<'a>(
    text: &Section<'_>,
    layers: impl Iterator<Item = &'a LayerSpec>,
) -> Result<(), CheckpointError> {
    let experts: u64 = layers
        .map(|layer| match layer.feed_forward {
            FeedForwardSpec::MixtureOfExperts { experts, .. } => u64::from(experts),
            FeedForwardSpec::Dense { .. } => 0,
        })
        .sum();
    if experts > MOST_EXPERTS {
        let problem = format!("makes {experts} experts in all layers; at most {MOST_EXPERTS} are read");
        return Err(text.fault("num_experts", problem));
    }
    Ok(())
}

/// Switches of the architecture that change the mathematics.
fn refuse_what_differs(text: &Section<'_>) -> Result<(), CheckpointError> {
    parts::require_silu(text)?;
    refuse_true(text, "attention_bias", "this family is implemented without biases")?;
    refuse_true(text, "use_sliding_window", "a sliding attention window is not implemented")?;
    refuse_false(text, "attn_output_gate", "this family is implemented with gated attention")
}

/// For each layer, whether it is full attention.
fn layer_pattern(text: &Section<'_>) -> Result<Vec<bool>, CheckpointError> {
    if let Some(types) = parts::layer_types(text, &["linear_attention", "full_attention"])? {
        return Ok(types.into_iter().map(|kind| kind == "full_attention").collect());
    }
    let interval = text.required_integer("full_attention_interval")?;
    Ok((1..=parts::layer_count(text)?).map(|layer| layer % interval == 0).collect())
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
