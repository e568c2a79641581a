//! Plain attention and a SwiGLU feed-forward in every layer: what Llama,
//! Qwen2 and Qwen3 share.

use tensorfold_plugin_api::model_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec, ModelSpec};

use super::super::config::{Config, Section};
use super::super::error::CheckpointError;
use super::super::names::NameRules;
use super::super::tensors::NamedTensors;
use super::parts::{self, Trunk, refuse_true};
use super::rope::{self, RopeRules, Share};

/// How one family differs from the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Name, spelt as in manifests.
    pub(super) family: &'static str,
    /// Whether queries and keys are normed per head.
    pub(super) head_norms: bool,
    /// Whether queries, keys and values carry biases.
    pub(super) biases: bool,
    /// Base of the rotary frequencies where the configuration names none.
    pub(super) default_theta: Option<f64>,
}

/// These families have the same names in both forms.
pub(super) static NAMES: NameRules =
    NameRules { trunk: &["model."], head: &["lm_head"], mtp: &[], ignored: &[] };

/// The facts of a checkpoint.
///
/// # Errors
/// When a value is missing or wrong, or asks for what is not computed.
pub(super) fn describe(
    config: &Config,
    tensors: &NamedTensors<'_>,
    selectable: Option<u32>,
    traits: Traits,
) -> Result<ModelSpec, CheckpointError> {
    let text = config.text();
    refuse_what_differs(&text, traits)?;
    let heads = parts::heads(&text)?;
    let attention = AttentionSpec {
        heads: heads.heads,
        key_value_heads: heads.key_value_heads,
        head_size: heads.head_size,
        gated: false,
        head_norms: traits.head_norms,
        biases: traits.biases,
    };
    let rules =
        RopeRules { default_theta: traits.default_theta, share: Share::Whole, position_triples: false };
    let rope = rope::read(&text, heads.head_size, rules)?;
    let layer = LayerSpec {
        mixer: MixerSpec::Attention(attention),
        feed_forward: FeedForwardSpec::Dense {
            intermediate_size: text.required_integer("intermediate_size")?,
        },
    };
    let layers = vec![layer; parts::layer_count(&text)? as usize];
    // Norm weights are stored as they multiply, in both forms.
    let trunk = Trunk { family: traits.family, norm_weight_offset: 0.0, rope, layers, mtp: None };
    parts::model_spec(config, tensors, selectable, trunk)
}

/// Switches of the architecture that change the mathematics.
fn refuse_what_differs(text: &Section<'_>, traits: Traits) -> Result<(), CheckpointError> {
    parts::require_silu(text)?;
    // Qwen2's biases are part of the family; there the key says nothing.
    if !traits.biases {
        refuse_true(text, "attention_bias", "this family is implemented without biases")?;
    }
    refuse_true(text, "mlp_bias", "biases of the feed-forward are not implemented")?;
    refuse_true(text, "use_sliding_window", "a sliding attention window is not implemented")?;
    refuse_true(text, "rope_interleaved", "rotary pairs of neighbouring dimensions are not implemented")?;
    parts::layer_types(text, &["full_attention"]).map(drop)
}
