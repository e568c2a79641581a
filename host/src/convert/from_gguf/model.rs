//! The model's facts, from metadata to `config.json`.

use serde_json::{Map, Value as Json, json};

use super::super::float;
use super::super::gguf::{GgmlType, Gguf};
use super::keys::Keys;
use crate::checkpoint::ElementType;

/// An architecture that is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

impl Family {
    const ALL: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];

    /// Its name in both worlds.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The family of a file.
    ///
    /// # Errors
    /// When it is none of these, or the file is not a whole model.
    pub(super) fn of(file: &Gguf<'_>) -> Result<Family, String> {
        let keys = Keys::new(file, "");
        let architecture = keys.text("general.architecture")?.ok_or("general.architecture is missing")?;
        let family = Family::ALL.into_iter().find(|family| family.name() == architecture).ok_or_else(|| {
            let names = Family::ALL.map(Family::name).join(", ");
            format!(
                "its architecture is {architecture:?}; {names} are converted: take the model's original weights if its family is served"
            )
        })?;
        if let Some(kind) = keys.text("general.type")?.filter(|kind| *kind != "model") {
            return Err(format!("general.type is {kind:?}; only whole models are converted"));
        }
        if let Some(parts @ 2..) = keys.integer("split.count")? {
            return Err(format!(
                "it is one of {parts} parts of a split file; put them together first: llama-gguf-split --merge FIRST_PART WHOLE.gguf"
            ));
        }
        Ok(family)
    }
}

/// Sizes and switches of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) family: Family,
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) inner: u32,
    pub(super) heads: u32,
    pub(super) key_value_heads: u32,
    pub(super) head_size: u32,
    pub(super) vocabulary: u64,
    context: u32,
    epsilon: f64,
    theta: f64,
    /// `rope_scaling` of `config.json`; null where positions are not scaled.
    rope_scaling: Json,
}

/// More layers than any model has.
const MOST_LAYERS: u32 = 4096;

impl Model {
    /// Reads the facts.
    ///
    /// # Errors
    /// When one is missing, or asks for what is not computed.
    pub(super) fn read(file: &Gguf<'_>, family: Family) -> Result<Model, String> {
        let keys = Keys::new(file, family.name());
        refuse_what_differs(&keys)?;
        let layers = keys.required("block_count")?;
        if layers > MOST_LAYERS {
            return Err(format!("{} is {layers}; at most {MOST_LAYERS} are read", keys.name("block_count")));
        }
        let (hidden, heads) = (keys.required("embedding_length")?, keys.required("attention.head_count")?);
        let key_value_heads = match keys.get(&keys.name("attention.head_count_kv")) {
            None => heads,
            Some(_) => keys.required("attention.head_count_kv")?,
        };
        if heads % key_value_heads != 0 {
            return Err(format!(
                "{heads} query heads do not divide among {key_value_heads} of keys and values"
            ));
        }
        let head_size = keys.integer(&keys.name("attention.key_length"))?.unwrap_or(hidden / heads);
        if head_size == 0 || head_size % 2 != 0 {
            return Err(format!("its heads have the size {head_size}; an even one is needed"));
        }
        for (key, what) in [
            ("attention.value_length", "values of another size than keys are not implemented"),
            ("rope.dimension_count", "heads of which only a part is rotated are not implemented"),
        ] {
            let name = keys.name(key);
            if let Some(other) = keys.integer(&name)?.filter(|&other| other != head_size) {
                return Err(format!("{name} is {other}, and heads have the size {head_size}; {what}"));
            }
        }
        let theta = keys.number(&keys.name("rope.freq_base"))?.unwrap_or(10_000.0);
        if theta <= 0.0 {
            return Err(format!("{} is {theta}; a positive number is needed", keys.name("rope.freq_base")));
        }
        let epsilon_key = keys.name("attention.layer_norm_rms_epsilon");
        let embedding = file.tensor("token_embd.weight").ok_or("it has no token_embd.weight")?;
        Ok(Model {
            family,
            layers,
            hidden,
            inner: keys.required("feed_forward_length")?,
            heads,
            key_value_heads,
            head_size,
            vocabulary: embedding.shape[0],
            context: keys.required("context_length")?,
            epsilon: keys.number(&epsilon_key)?.ok_or(format!("{epsilon_key} is missing"))?,
            theta,
            rope_scaling: rope_scaling(file, &keys, theta, head_size)?,
        })
    }

    /// `config.json`, without the quantization table.
    pub(super) fn config(&self, tied: bool, element: ElementType) -> Map<String, Json> {
        let mut config = json!({
            "architectures": [self.family.class()],
            "hidden_act": "silu",
            "head_dim": self.head_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.context,
            "model_type": self.family.name(),
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.key_value_heads,
            "rms_norm_eps": self.epsilon,
            "rope_scaling": self.rope_scaling,
            "rope_theta": self.theta,
            "tie_word_embeddings": tied,
            "torch_dtype": float::torch_name(element),
            "vocab_size": self.vocabulary,
        });
        let config = config.as_object_mut().expect("it was written as an object");
        match self.family {
            Family::Llama => {
                config.insert("attention_bias".into(), false.into());
                config.insert("mlp_bias".into(), false.into());
            }
            Family::Qwen2 => {
                config.insert("use_sliding_window".into(), false.into());
            }
            Family::Qwen3 => {
                config.insert("attention_bias".into(), false.into());
                config.insert("use_sliding_window".into(), false.into());
            }
        }
        std::mem::take(config)
    }
}

/// Keys that change the mathematics.
fn refuse_what_differs(keys: &Keys<'_>) -> Result<(), String> {
    for (key, what) in [
        ("expert_count", "routed experts of this architecture are not implemented"),
        ("attention.sliding_window", "a sliding attention window is not implemented"),
    ] {
        let name = keys.name(key);
        if let Some(value @ 1..) = keys.integer(&name)? {
            return Err(format!("{name} is {value}; {what}"));
        }
    }
    for (key, neutral) in [
        ("logit_scale", 1.0),
        ("residual_scale", 1.0),
        ("embedding_scale", 1.0),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scale_linear", 1.0),
        // Zero is "as usual": the inverse root of the head's size.
        ("attention.scale", 0.0),
    ] {
        let name = keys.name(key);
        if let Some(value) = keys.number(&name)?.filter(|&value| value != neutral && value != 0.0) {
            return Err(format!("{name} is {value}; it is not implemented"));
        }
    }
    if keys.boolean(&keys.name("attention.causal"))? == Some(false) {
        return Err(format!("{} is false; only causal models are served", keys.name("attention.causal")));
    }
    Ok(())
}

/// `rope_scaling` of `config.json`.
fn rope_scaling(file: &Gguf<'_>, keys: &Keys<'_>, theta: f64, head_size: u32) -> Result<Json, String> {
    let (kind_key, factor_key) = (keys.name("rope.scaling.type"), keys.name("rope.scaling.factor"));
    let factor = keys.number(&factor_key)?.filter(|&factor| factor != 0.0 && factor != 1.0);
    let linear = match (keys.text(&kind_key)?, factor) {
        (Some("none"), _) | (None | Some("linear"), None) => None,
        (None | Some("linear"), Some(factor)) if factor > 0.0 => Some(factor),
        (None | Some("linear"), Some(factor)) => {
            return Err(format!("{factor_key} is {factor}; a positive number is needed"));
        }
        (Some(kind), _) => {
            return Err(format!("{kind_key} is {kind:?}; \"none\" and \"linear\" are converted"));
        }
    };
    let factors = frequency_factors(file, head_size)?;
    match (linear, factors) {
        (None, None) => Ok(Json::Null),
        (Some(factor), None) => Ok(json!({ "factor": factor, "rope_type": "linear" })),
        (None, Some(factors)) => llama3(&factors, theta, head_size),
        (Some(_), Some(_)) => {
            Err(format!("it has both {factor_key} and rope_freqs.weight; one of them is read"))
        }
    }
}

/// The divisors of the rotary frequencies; `None` where there are none, or all are one.
fn frequency_factors(file: &Gguf<'_>, head_size: u32) -> Result<Option<Vec<f32>>, String> {
    let Some(tensor) = file.tensor("rope_freqs.weight") else { return Ok(None) };
    if tensor.element != GgmlType::F32 || tensor.shape != [u64::from(head_size / 2)] {
        return Err(format!(
            "rope_freqs.weight has the type {} and the shape {:?}; F32 and [{}] are read",
            tensor.element.name(),
            tensor.shape,
            head_size / 2
        ));
    }
    let mut factors = Vec::new();
    float::decode(ElementType::F32, tensor.data, &mut factors);
    Ok(Some(factors).filter(|factors| factors.iter().any(|&factor| factor != 1.0)))
}

/// Llama 3's parameters, found again in the divisors that were made of them.
///
/// Of wavelength `w` in a model made for `L` positions, the divisor is `factor` for `w > L / low`, one for
/// `w < L / high`, and between them `1 / ((1 - r) / factor + r)` with `r = (L / w - low) / (high - low)`. All models of
/// this family have `low` 1, `high` 4 and `L` 8192; others are not guessed.
fn llama3(factors: &[f32], theta: f64, head_size: u32) -> Result<Json, String> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const CONTEXT: f64 = 8192.0;
    let factor = factors.iter().copied().fold(1.0f32, f32::max);
    let divisor = |index: usize| {
        let wavelength = std::f64::consts::TAU * theta.powf(2.0 * index as f64 / f64::from(head_size));
        let blend = (CONTEXT / wavelength - LOW) / (HIGH - LOW);
        match blend {
            blend if blend <= 0.0 => f64::from(factor),
            blend if blend >= 1.0 => 1.0,
            blend => 1.0 / ((1.0 - blend) / f64::from(factor) + blend),
        }
    };
    let close = |(index, &found): (usize, &f32)| (f64::from(found) / divisor(index) - 1.0).abs() < 1e-4;
    if !factors.iter().enumerate().all(close) {
        return Err(
            "rope_freqs.weight holds frequencies that are not those of Llama 3's rule; other rules are not read".into(),
        );
    }
    Ok(json!({
        "factor": factor,
        "high_freq_factor": HIGH,
        "low_freq_factor": LOW,
        "original_max_position_embeddings": CONTEXT as u32,
        "rope_type": "llama3",
    }))
}
