//! The facts of an external block drafter, as they cross the border.
//!
//! Like a [`ModelSpec`](crate::model_spec::ModelSpec), a [`DrafterSpec`] holds normalised facts and
//! tensors cross under canonical names:
//!
//! | canonical name | shape | meaning |
//! | --- | --- | --- |
//! | `fc` | `[hidden, taps * hidden]` | projects the target's tapped states, in the order of `taps` |
//! | `hidden_norm`, `norm` | `[hidden]` | norm of the projected states; final norm |
//! | `layers.{i}.input_norm`, `layers.{i}.post_norm` | `[hidden]` | norms before attention and feed-forward |
//! | `layers.{i}.attention.{q,k,v,o}` | `[out, in]` | attention projections |
//! | `layers.{i}.attention.{q_norm,k_norm}` | `[head_size]` | per-head norms |
//! | `layers.{i}.ffn.{gate,up,down}` | `[out, in]` | SwiGLU |
//! | `layers.{i}.{attention_conv,ffn_conv}.base` | `[2, kernel, hidden]` | DFlash2: kernels before (0) and after (1) the half |
//! | `layers.{i}.{attention_conv,ffn_conv}.projection` | `[2 * kernel * hidden / group, hidden]` | DFlash2: what a row adds to them; rows are ordered side, tap, group |
//! | `selector.hidden` | `[rank, hidden]` | DFlash2: the selector's projection |
//! | `selector.{predecessor,successor}` | `[vocabulary_rows, rank]` | DFlash2: the selector's codebooks |
//!
//! A matrix that is packed in MLX's affine form is three tensors: `X`, `X.scales` and `X.biases`.
//! Embedding and head are the target's. Norm weights are plain, never offset.

use serde::{Deserialize, Serialize};

use crate::model_spec::{ModelSpecError, RopeSpec};

/// The version of the document that this crate writes and reads.
pub const DRAFTER_SPEC_VERSION: u32 = 1;

/// Everything a plugin has to know of a block drafter besides its tensors.
///
/// A block is the last committed token and `block_size - 1` masks; row `i` of it predicts the
/// token at its own position. Formulas: the documentation of
/// [`TfDflashV1`](crate::abi::TfDflashV1)'s implementers and the drafters' own publications.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrafterSpec {
    /// Format of this document: [`DRAFTER_SPEC_VERSION`].
    pub version: u32,
    /// Width of the residual stream; the target's.
    pub hidden_size: u32,
    /// Rows of the target's embedding and head.
    pub vocabulary_rows: u32,
    /// Rows of a block, its known token included; at least 2.
    pub block_size: u32,
    /// Row of the target's embedding that stands for a token to be guessed.
    pub mask_token: u32,
    /// Layers of the target whose output is read, from 0, ascending.
    pub taps: Vec<u32>,
    /// Epsilon of every RMS norm.
    pub norm_epsilon: f64,
    /// Rotary embedding over whole heads.
    pub rope: RopeSpec,
    /// Multiplies rows of the embedding.
    pub embedding_scale: f64,
    /// Multiplies logits.
    pub output_multiplier: f64,
    /// Logits `x` become `cap * tanh(x / cap)`, after the multiplier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_softcap: Option<f64>,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub key_value_heads: u32,
    /// Dimensions of a head.
    pub head_size: u32,
    /// Rows of `gate` and `up`.
    pub intermediate_size: u32,
    /// Layers from the embedding up.
    pub layers: Vec<DrafterLayerSpec>,
    /// What DFlash2 adds; `None`: DFlash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refinement: Option<RefinementSpec>,
    /// Weight formats present, spelt as in manifests, sorted, without repeats.
    pub formats: Vec<String>,
}

/// What a row of a drafter's layer sees. Positions are absolute and the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrafterLayerSpec {
    /// Position `q` sees `k` only when `|q - k|` is below this; `None`: any distance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Whether position `q` sees `k` only when `k <= q`.
    pub causal: bool,
}

/// What DFlash2 adds to DFlash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefinementSpec {
    /// Taps of the convolution around each half of a layer, this row included.
    pub convolution_kernel: u32,
    /// Channels that share what a row adds to the kernels; divides the hidden size.
    pub convolution_group: u32,
    /// Dimensions of the selector.
    pub selector_rank: u32,
    /// Candidates of a slot.
    pub selector_candidates: u32,
}

impl DrafterSpec {
    /// Parses and validates a document.
    ///
    /// # Errors
    /// See [`ModelSpecError`]; the version is checked before anything else.
    pub fn from_json(text: &str) -> Result<DrafterSpec, ModelSpecError> {
        #[derive(Deserialize)]
        struct Probe {
            version: u32,
        }
        let probe: Probe = serde_json::from_str(text)?;
        if probe.version != DRAFTER_SPEC_VERSION {
            return Err(ModelSpecError::Version { found: probe.version });
        }
        let spec: DrafterSpec = serde_json::from_str(text)?;
        spec.validate()?;
        Ok(spec)
    }

    /// The document that crosses the border.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a DrafterSpec has string keys and finite numbers only")
    }

    /// Checks that the facts fit each other.
    ///
    /// # Errors
    /// [`ModelSpecError::Inconsistent`] names the fact.
    pub fn validate(&self) -> Result<(), ModelSpecError> {
        let fail = |what: String| Err(ModelSpecError::Inconsistent(what));
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("vocabulary_rows", self.vocabulary_rows),
            ("heads", self.heads),
            ("key_value_heads", self.key_value_heads),
            ("head_size", self.head_size),
            ("intermediate_size", self.intermediate_size),
        ];
        if let Some((name, _)) = sizes.iter().find(|size| size.1 == 0) {
            return fail(format!("{name} is 0"));
        }
        if self.block_size < 2 {
            return fail(format!("a block of {} rows drafts nothing", self.block_size));
        }
        if self.mask_token >= self.vocabulary_rows {
            return fail(format!(
                "the mask token {} is outside of {} rows",
                self.mask_token, self.vocabulary_rows
            ));
        }
        if self.taps.is_empty() || !self.taps.is_sorted_by(|a, b| a < b) {
            return fail(format!("taps {:?} do not ascend", self.taps));
        }
        if self.layers.is_empty() || self.layers.iter().any(|layer| layer.window == Some(0)) {
            return fail("no layers, or a window of 0".into());
        }
        if !self.heads.is_multiple_of(self.key_value_heads) || !self.head_size.is_multiple_of(2) {
            return fail(format!(
                "{} heads of {} over {} key/value heads",
                self.heads, self.head_size, self.key_value_heads
            ));
        }
        if self.rope.rotary_dimensions != self.head_size {
            return fail(format!(
                "{} of {} dimensions of a head are rotated; a drafter rotates all",
                self.rope.rotary_dimensions, self.head_size
            ));
        }
        let numbers = [
            self.norm_epsilon,
            self.embedding_scale,
            self.output_multiplier,
            self.logit_softcap.unwrap_or(1.0),
        ];
        if numbers.iter().any(|number| !number.is_finite() || *number <= 0.0) {
            return fail("an epsilon, scale, multiplier or cap is not above 0".into());
        }
        match self.refinement {
            Some(refinement) => refinement.validate(self),
            None => Ok(()),
        }
    }
}

impl RefinementSpec {
    fn validate(&self, spec: &DrafterSpec) -> Result<(), ModelSpecError> {
        let RefinementSpec { convolution_kernel, convolution_group, selector_rank, selector_candidates } =
            *self;
        if convolution_kernel == 0
            || convolution_kernel > spec.block_size
            || convolution_group == 0
            || !spec.hidden_size.is_multiple_of(convolution_group)
            || selector_rank == 0
            || selector_candidates == 0
            || selector_candidates > spec.vocabulary_rows
        {
            return Err(ModelSpecError::Inconsistent(format!(
                "kernels of {convolution_kernel} rows in groups of {convolution_group}, a selector of rank \
                 {selector_rank} over {selector_candidates} candidates"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_spec::RopeScaling;

    fn sample() -> DrafterSpec {
        DrafterSpec {
            version: DRAFTER_SPEC_VERSION,
            hidden_size: 64,
            vocabulary_rows: 100,
            block_size: 8,
            mask_token: 99,
            taps: vec![1, 3],
            norm_epsilon: 1e-6,
            rope: RopeSpec { theta: 1e6, rotary_dimensions: 16, scaling: RopeScaling::None },
            embedding_scale: 1.0,
            output_multiplier: 1.0,
            logit_softcap: None,
            heads: 4,
            key_value_heads: 2,
            head_size: 16,
            intermediate_size: 96,
            layers: vec![DrafterLayerSpec { window: Some(32), causal: false }],
            refinement: Some(RefinementSpec {
                convolution_kernel: 2,
                convolution_group: 16,
                selector_rank: 8,
                selector_candidates: 16,
            }),
            formats: vec!["bf16".into()],
        }
    }

    #[test]
    fn a_document_survives_the_border() {
        let spec = sample();
        assert_eq!(DrafterSpec::from_json(&spec.to_json()).unwrap(), spec);
        let later = spec.to_json().replace("\"version\":1", "\"version\":2");
        assert!(matches!(DrafterSpec::from_json(&later), Err(ModelSpecError::Version { found: 2 })));
    }

    #[test]
    fn contradictions_are_refused() {
        let breaks: [fn(&mut DrafterSpec); 12] = [
            |spec| spec.hidden_size = 0,
            |spec| spec.block_size = 1,
            |spec| spec.mask_token = 100,
            |spec| spec.taps = vec![],
            |spec| spec.taps = vec![3, 3],
            |spec| spec.layers.clear(),
            |spec| spec.layers[0].window = Some(0),
            |spec| spec.key_value_heads = 3,
            |spec| spec.rope.rotary_dimensions = 4,
            |spec| spec.output_multiplier = f64::NAN,
            |spec| spec.refinement.as_mut().unwrap().convolution_group = 24,
            |spec| spec.refinement.as_mut().unwrap().selector_candidates = 101,
        ];
        assert!(sample().validate().is_ok());
        for (index, broken) in breaks.iter().enumerate() {
            let mut spec = sample();
            broken(&mut spec);
            assert!(matches!(spec.validate(), Err(ModelSpecError::Inconsistent(_))), "{index}");
        }
    }
}
