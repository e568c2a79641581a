//! The facts of one model, as they cross the border.
//!
//! The host makes a [`ModelSpec`] from a checkpoint's `config.json` and tensor
//! index and hands it to a plugin as a JSON document. It holds normalised
//! facts, never raw `config.json` keys, so that a plugin needs no knowledge of
//! how any tool spells them. A new family therefore needs no new table.
//!
//! A plugin must refuse a document whose `version` it does not know and any
//! value that it cannot compute; it must not guess.
//!
//! # Tensor names
//!
//! Tensors cross under canonical names, whatever the checkpoint calls them:
//!
//! | canonical name | shape | meaning |
//! | --- | --- | --- |
//! | `embed` | `[vocabulary_rows, hidden]` | token embedding |
//! | `head` | `[vocabulary_rows, hidden]` | output head; absent when `tied_head` |
//! | `norm` | `[hidden]` | final norm |
//! | `layers.{i}.input_norm`, `layers.{i}.post_norm` | `[hidden]` | norms before mixer and feed-forward |
//! | `layers.{i}.attention.{q,k,v,o}` | `[out, in]` | attention projections; `q` holds query and gate rows per head when gated |
//! | `layers.{i}.attention.{q_norm,k_norm}` | `[head_size]` | per-head norms |
//! | `layers.{i}.attention.{q,k,v}.bias` | `[out]` | projection biases |
//! | `layers.{i}.delta.{qkv,z,a,b,out}` | `[out, in]` | Gated DeltaNet projections |
//! | `layers.{i}.delta.conv` | `[channels, kernel]` | depth-wise convolution, tap `j` multiplies row `t - kernel + 1 + j` |
//! | `layers.{i}.delta.{a_log,dt_bias}` | `[value_heads]` | decay parameters |
//! | `layers.{i}.delta.norm` | `[value_head_size]` | gated output norm (never offset) |
//! | `layers.{i}.ffn.{gate,up,down}` | `[out, in]` | dense SwiGLU |
//! | `layers.{i}.moe.router` | `[experts, hidden]` | router |
//! | `layers.{i}.moe.experts.{gate,up,down}` | `[experts, out, in]` | routed experts |
//! | `layers.{i}.moe.experts.gate_up` | `[experts, 2 * out, in]` | gate rows, then up rows, where the file fuses them; `down` is as above |
//! | `layers.{i}.moe.experts.{e}.{gate,up,down}` | `[out, in]` | routed experts, where the file holds them one by one |
//! | `layers.{i}.moe.shared.{gate,up,down}`, `layers.{i}.moe.shared_gate` | | shared expert |
//! | `mtp.{embed_norm,hidden_norm,norm}`, `mtp.fc`, `mtp.layers.{i}.…` | | the multi-token prediction head |
//!
//! A matrix that is packed in MLX's affine form is three tensors: `X` (the
//! codes, `u32`), `X.scales` and `X.biases`.

use serde::{Deserialize, Serialize};

/// The version of the document that this crate writes and reads.
pub const MODEL_SPEC_VERSION: u32 = 1;

/// Everything a plugin has to know of a model besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Format of this document: [`MODEL_SPEC_VERSION`].
    pub version: u32,
    /// Family, spelt as in manifests (`qwen3_5`, `llama`, ...).
    pub family: String,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Rows of the embedding and of the head, padding included.
    pub vocabulary_rows: u32,
    /// Ids below this may be drawn, drafted or listed; rows from here on are
    /// padding. This is the tokenizer's size.
    pub selectable_vocabulary: u32,
    /// Positions that the model was made for.
    pub context_window: u32,
    /// Epsilon of every RMS norm of the trunk.
    pub norm_epsilon: f64,
    /// Added to the stored weight of every norm but `delta.norm`: 1 where the
    /// checkpoint stores zero-centred norms, 0 where it stores plain ones.
    pub norm_weight_offset: f32,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// Rotary embedding of the attention layers.
    pub rope: RopeSpec,
    /// Layers from the embedding up.
    pub layers: Vec<LayerSpec>,
    /// The multi-token prediction head, where the checkpoint holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp: Option<MtpSpec>,
    /// Weight formats present, spelt as in manifests (`bf16`, `mlx-q4g64`),
    /// sorted, without repeats.
    pub formats: Vec<String>,
}

/// Rotary position embedding, rotate-half pairing.
///
/// Dimension `i` of the first half pairs with `i + rotary_dimensions / 2`; the
/// angle is `position * theta^(-2 i / rotary_dimensions)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Leading dimensions of each head that are rotated; the rest pass.
    pub rotary_dimensions: u32,
    /// How frequencies are stretched for longer contexts.
    #[serde(default, skip_serializing_if = "RopeScaling::is_none")]
    pub scaling: RopeScaling,
}

/// Scaling of the rotary frequencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RopeScaling {
    /// Frequencies as they are.
    #[default]
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's piecewise rule: long wavelengths divided, short ones kept, a
    /// linear blend between.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_context / low_frequency_factor` are divided.
        low_frequency_factor: f64,
        /// Wavelengths below `original_context / high_frequency_factor` are kept.
        high_frequency_factor: f64,
        /// Context that the model was first trained on.
        original_context: u32,
    },
}

impl RopeScaling {
    /// Whether frequencies are used as they are.
    pub fn is_none(&self) -> bool {
        *self == RopeScaling::None
    }
}

/// One decoder layer: `x += mixer(norm(x)); x += feed_forward(norm(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// What follows it.
    pub feed_forward: FeedForwardSpec,
}

/// The part of a layer that looks at other positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum MixerSpec {
    /// Softmax attention over all earlier positions.
    Attention(AttentionSpec),
    /// Gated DeltaNet recurrence.
    GatedDelta(GatedDeltaSpec),
}

/// Softmax attention with grouped key/value heads, scale `head_size^-1/2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub key_value_heads: u32,
    /// Dimensions of a head.
    pub head_size: u32,
    /// Whether the rows of `q` hold, per head, a query and then a gate whose
    /// sigmoid multiplies the head's output.
    pub gated: bool,
    /// Whether queries and keys are RMS-normed per head.
    pub head_norms: bool,
    /// Whether `q`, `k` and `v` carry biases.
    pub biases: bool,
}

/// Gated DeltaNet: a depth-wise convolution and a gated delta-rule recurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatedDeltaSpec {
    /// Query/key heads.
    pub key_heads: u32,
    /// Value heads; value head `j` uses key head `j / (value_heads / key_heads)`.
    pub value_heads: u32,
    /// Dimensions of a query or key.
    pub key_head_size: u32,
    /// Dimensions of a value.
    pub value_head_size: u32,
    /// Taps of the convolution, this row included.
    pub convolution_kernel: u32,
}

impl GatedDeltaSpec {
    /// Channels that pass through the convolution: all queries, all keys, all
    /// values, in this order.
    pub fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_head_size + self.value_heads * self.value_head_size
    }
}

/// The part of a layer that looks at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FeedForwardSpec {
    /// `down(silu(gate(x)) * up(x))`.
    Dense {
        /// Rows of `gate` and `up`.
        intermediate_size: u32,
    },
    /// A softmax router over experts, the best few renormalised, and a shared
    /// expert behind a sigmoid gate. Ties go to the lower expert.
    MixtureOfExperts {
        /// Routed experts.
        experts: u32,
        /// Experts that run for each row.
        experts_per_token: u32,
        /// Rows of a routed expert's `gate` and `up`.
        intermediate_size: u32,
        /// Rows of the shared expert's `gate` and `up`; 0: no shared expert.
        shared_intermediate_size: u32,
    },
}

/// The checkpoint's own multi-token prediction head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MtpSpec {
    /// Decoder layers of the head.
    pub layers: Vec<LayerSpec>,
    /// As [`ModelSpec::norm_weight_offset`], for the head's norms.
    pub norm_weight_offset: f32,
    /// Weight formats of the head.
    pub formats: Vec<String>,
}

/// Why a model document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelSpecError {
    /// Not JSON, or a field is missing or of another type.
    #[error("the description does not parse: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Written by a host of another generation.
    #[error("the description has version {found}; this build reads version {MODEL_SPEC_VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A value contradicts another one.
    #[error("the description is inconsistent: {0}")]
    Inconsistent(String),
}

impl ModelSpec {
    /// Parses and validates a document.
    ///
    /// # Errors
    /// See [`ModelSpecError`]; the version is checked before anything else.
    pub fn from_json(text: &str) -> Result<ModelSpec, ModelSpecError> {
        #[derive(Deserialize)]
        struct Probe {
            version: u32,
        }
        let probe: Probe = serde_json::from_str(text)?;
        if probe.version != MODEL_SPEC_VERSION {
            return Err(ModelSpecError::Version { found: probe.version });
        }
        let spec: ModelSpec = serde_json::from_str(text)?;
        spec.validate()?;
        Ok(spec)
    }

    /// The document that crosses the border.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a ModelSpec has string keys and finite numbers only")
    }

    /// Checks what no tensor is needed for.
    ///
    /// # Errors
    /// [`ModelSpecError::Inconsistent`] with the first contradiction.
    pub fn validate(&self) -> Result<(), ModelSpecError> {
        let fail = |what: String| Err(ModelSpecError::Inconsistent(what));
        if self.hidden_size == 0 || self.vocabulary_rows == 0 || self.layers.is_empty() {
            return fail("hidden size, vocabulary and layers must not be empty".into());
        }
        if self.selectable_vocabulary == 0 || self.selectable_vocabulary > self.vocabulary_rows {
            return fail(format!(
                "the selectable vocabulary is {} of {} rows",
                self.selectable_vocabulary, self.vocabulary_rows
            ));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon > 0.0 && self.norm_weight_offset.is_finite())
        {
            return fail("the norm epsilon must be positive and the norm offset finite".into());
        }
        if !(self.rope.theta.is_finite()
            && self.rope.theta > 0.0
            && self.rope.rotary_dimensions.is_multiple_of(2))
        {
            return fail("rotary dimensions must be even and theta positive".into());
        }
        let heads = self.layers.iter().chain(self.mtp.iter().flat_map(|mtp| &mtp.layers));
        for (index, layer) in heads.enumerate() {
            match &layer.mixer {
                MixerSpec::Attention(a) => {
                    if a.heads == 0
                        || a.key_value_heads == 0
                        || !a.heads.is_multiple_of(a.key_value_heads)
                        || a.head_size == 0
                    {
                        return fail(format!(
                            "layer {index}: {} query heads over {} key/value heads",
                            a.heads, a.key_value_heads
                        ));
                    }
                    if self.rope.rotary_dimensions > a.head_size {
                        return fail(format!(
                            "layer {index}: {} rotary dimensions in a head of {}",
                            self.rope.rotary_dimensions, a.head_size
                        ));
                    }
                }
                MixerSpec::GatedDelta(d) => {
                    if d.key_heads == 0 || d.value_heads == 0 || !d.value_heads.is_multiple_of(d.key_heads) {
                        return fail(format!(
                            "layer {index}: {} value heads over {} key heads",
                            d.value_heads, d.key_heads
                        ));
                    }
                    if d.key_head_size == 0 || d.value_head_size == 0 || d.convolution_kernel == 0 {
                        return fail(format!("layer {index}: a DeltaNet dimension is zero"));
                    }
                }
            }
            match &layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size: 0 } => {
                    return fail(format!("layer {index}: the feed-forward has no rows"));
                }
                FeedForwardSpec::MixtureOfExperts {
                    experts, experts_per_token, intermediate_size, ..
                } if *experts == 0
                    || *experts_per_token == 0
                    || experts_per_token > experts
                    || *intermediate_size == 0 =>
                {
                    return fail(format!("layer {index}: {experts_per_token} of {experts} experts"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> ModelSpec {
        ModelSpec {
            version: MODEL_SPEC_VERSION,
            family: "llama".into(),
            hidden_size: 8,
            vocabulary_rows: 16,
            selectable_vocabulary: 12,
            context_window: 64,
            norm_epsilon: 1e-5,
            norm_weight_offset: 0.0,
            tied_head: true,
            rope: RopeSpec { theta: 1e4, rotary_dimensions: 4, scaling: RopeScaling::None },
            layers: vec![LayerSpec {
                mixer: MixerSpec::Attention(AttentionSpec {
                    heads: 2,
                    key_value_heads: 1,
                    head_size: 4,
                    gated: false,
                    head_norms: false,
                    biases: false,
                }),
                feed_forward: FeedForwardSpec::Dense { intermediate_size: 16 },
            }],
            mtp: None,
            formats: vec!["bf16".into()],
        }
    }

    #[test]
    fn a_document_survives_the_border() {
        let spec = tiny();
        assert_eq!(ModelSpec::from_json(&spec.to_json()).unwrap(), spec);
        // Numbers whose nearest neighbours a reader that rounds quickly takes them for.
        for number in [1.9999997000000002e107, 1e-60, 1e-86] {
            let spec = ModelSpec { norm_epsilon: number, ..spec.clone() };
            assert_eq!(ModelSpec::from_json(&spec.to_json()).unwrap(), spec);
        }
    }

    #[test]
    fn another_version_is_refused_before_its_fields_are_read() {
        let error = ModelSpec::from_json(r#"{"version": 2, "shape": "unknown"}"#).unwrap_err();
        assert!(matches!(error, ModelSpecError::Version { found: 2 }), "{error}");
    }

    #[test]
    fn contradictions_are_named() {
        let mut spec = tiny();
        spec.selectable_vocabulary = 17;
        assert!(spec.validate().unwrap_err().to_string().contains("17 of 16 rows"));
        let mut spec = tiny();
        spec.rope.rotary_dimensions = 6;
        assert!(spec.validate().unwrap_err().to_string().contains("6 rotary dimensions in a head of 4"));
    }
}
