//! From a DFlash or DFlash2 `config.json` to normalised facts, with everything that is wrong with them.

use serde_json::Value;
use tensorfold_plugin_api::drafter_spec::{
    DRAFTER_SPEC_VERSION, DrafterLayerSpec, DrafterSpec, RefinementSpec,
};
use tensorfold_plugin_api::model_spec::RopeSpec;

use super::fault::{Fault, FaultCode};
use super::fields::Fields;
use super::recognise::{Class, REFINEMENT};
use crate::checkpoint::parts::rope::{self, RopeRules, Share};
use crate::checkpoint::parts::{Config, brief};

/// More layers than any drafter or target has.
const MOST_LAYERS: u32 = 4096;

/// Rows of a block where the configuration names none.
const DEFAULT_BLOCK: u32 = 16;

/// What a configuration says. What is `None` is missing or faulty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(super) hidden_size: Option<u32>,
    pub(super) vocabulary_rows: Option<u32>,
    pub(super) block_size: Option<u32>,
    pub(super) mask_token: Option<u32>,
    /// As they stand, whatever the target has; ascending or not.
    pub(super) taps: Option<Vec<i64>>,
    /// Depth of the target that it was made for.
    pub(super) target_layers: Option<u32>,
    /// Size of a vocabulary that is a part of the target's.
    pub(super) draft_vocabulary: Option<u32>,
    norm_epsilon: Option<f64>,
    rope: Option<RopeSpec>,
    embedding_scale: Option<f64>,
    output_multiplier: Option<f64>,
    logit_softcap: Option<f64>,
    heads: Option<Heads>,
    intermediate_size: Option<u32>,
    layers: Option<Vec<DrafterLayerSpec>>,
    refinement: Option<RefinementSpec>,
    /// What is odd and changes nothing, one clause each.
    pub(super) warnings: Vec<String>,
    /// What keeps it from being used.
    pub(super) faults: Vec<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Heads {
    heads: u32,
    key_value_heads: u32,
    head_size: u32,
}

impl Reading {
    /// Reads the configuration of a block drafter of this class.
    pub(crate) fn of(config: &Config, class: Class) -> Reading {
        let mut all = Fields::new(config);
        let fields = &mut all;
        let mut reading = Reading {
            hidden_size: fields.required("hidden_size", FaultCode::HiddenSize),
            vocabulary_rows: fields.required("vocab_size", FaultCode::VocabSize),
            block_size: Some(DEFAULT_BLOCK),
            mask_token: fields.required_index("mask_token_id", FaultCode::MaskToken),
            target_layers: fields.integer("num_target_layers", FaultCode::TargetLayers),
            draft_vocabulary: fields.integer("draft_vocab_size", FaultCode::VocabSize),
            norm_epsilon: fields.required_positive("rms_norm_eps"),
            embedding_scale: Some(1.0),
            output_multiplier: Some(1.0),
            logit_softcap: fields.number_or_none("final_logit_softcapping"),
            intermediate_size: fields.required("intermediate_size", FaultCode::BadField),
            ..Reading::default()
        };
        if fields.get("block_size").is_some() {
            reading.block_size = block_size(fields);
        }
        for (key, value) in [
            ("input_embedding_scale", &mut reading.embedding_scale),
            ("output_multiplier", &mut reading.output_multiplier),
        ] {
            if fields.get(key).is_some() {
                *value = fields.positive(key);
            }
        }
        let count = layer_count(fields);
        reading.taps = taps(fields, reading.target_layers, count);
        reading.heads = heads(fields, reading.hidden_size);
        reading.layers = layers(fields, count, &mut reading.warnings);
        reading.rope = rotation(fields, reading.heads, &mut reading.warnings);
        if class == Class::Dflash2 {
            reading.refinement = refinement(fields, &reading);
        }
        refuse_what_is_not_computed(fields);
        if let (Some(part), Some(whole)) = (reading.draft_vocabulary, reading.vocabulary_rows)
            && part == whole
        {
            reading.draft_vocabulary = None;
        }
        reading.faults = all.end(class.name());
        reading
    }

    /// The description that crosses the border, without its formats; `None` where something is missing or does not
    /// fit the rest.
    pub(super) fn spec(&self) -> Option<DrafterSpec> {
        if !self.faults.is_empty() {
            return None;
        }
        let heads = self.heads?;
        let taps = self.taps.as_ref()?.iter().map(|&tap| u32::try_from(tap).ok()).collect::<Option<_>>()?;
        let spec = DrafterSpec {
            version: DRAFTER_SPEC_VERSION,
            hidden_size: self.hidden_size?,
            vocabulary_rows: self.vocabulary_rows?,
            block_size: self.block_size?,
            mask_token: self.mask_token?,
            taps,
            norm_epsilon: self.norm_epsilon?,
            rope: self.rope.clone()?,
            embedding_scale: self.embedding_scale?,
            output_multiplier: self.output_multiplier?,
            logit_softcap: self.logit_softcap,
            heads: heads.heads,
            key_value_heads: heads.key_value_heads,
            head_size: heads.head_size,
            intermediate_size: self.intermediate_size?,
            layers: self.layers.clone()?,
            refinement: self.refinement,
            formats: Vec::new(),
        };
        spec.validate().is_ok().then_some(spec)
    }
}

fn block_size(fields: &mut Fields<'_>) -> Option<u32> {
    let size = fields.integer("block_size", FaultCode::BlockSize)?;
    if size < 2 {
        fields.fault(FaultCode::BlockSize, format!("block_size {size}; a block has at least 2 rows"));
        return None;
    }
    Some(size)
}

fn layer_count(fields: &mut Fields<'_>) -> Option<u32> {
    let count = fields.required("num_hidden_layers", FaultCode::BadField)?;
    if count > MOST_LAYERS {
        let text = format!("num_hidden_layers {count}; at most {MOST_LAYERS} are read");
        fields.fault(FaultCode::BadField, text);
        return None;
    }
    Some(count)
}

/// The layers of the target that are read: the listed ones, else those of the default rule.
fn taps(fields: &mut Fields<'_>, target_layers: Option<u32>, count: Option<u32>) -> Option<Vec<i64>> {
    const KEY: &str = "target_layer_ids";
    let Some(listed) = fields.get(KEY) else {
        if target_layers.is_none() {
            fields.need_any("target_layer_ids or num_target_layers");
        }
        return Some(default_taps(target_layers?, count?));
    };
    let Some(listed) = listed.as_array().filter(|listed| !listed.is_empty()) else {
        let text = format!("{KEY} is {}; a list of the target's layers is needed", brief(listed));
        fields.fault(FaultCode::TapIds, text);
        return None;
    };
    if let Some(odd) = listed.iter().find(|id| id.as_i64().is_none()) {
        fields.fault(FaultCode::TapIds, format!("{KEY} holds {}; layers are numbers from 0", brief(odd)));
        return None;
    }
    Some(listed.iter().filter_map(Value::as_i64).collect())
}

/// The taps of a checkpoint that lists none: spread from the second layer of the target to the third from its end.
/// One layer taps the middle. Halves are rounded to even.
fn default_taps(target_layers: u32, count: u32) -> Vec<i64> {
    let depth = i64::from(target_layers);
    let gaps = i64::from(count) - 1;
    if gaps < 1 {
        return vec![depth / 2];
    }
    (0..=gaps)
        .map(|index| {
            let product = index * (depth - 4);
            let (whole, rest) = (product.div_euclid(gaps), product.rem_euclid(gaps));
            let place = 1 + whole;
            match (2 * rest).cmp(&gaps) {
                std::cmp::Ordering::Less => place,
                std::cmp::Ordering::Greater => place + 1,
                std::cmp::Ordering::Equal => place + place.rem_euclid(2),
            }
        })
        .collect()
}

fn heads(fields: &mut Fields<'_>, hidden_size: Option<u32>) -> Option<Heads> {
    let heads = fields.required("num_attention_heads", FaultCode::Heads)?;
    let key_value_heads = match fields.get("num_key_value_heads") {
        Some(_) => fields.integer("num_key_value_heads", FaultCode::Heads)?,
        None => heads,
    };
    let head_size = match fields.get("head_dim") {
        Some(_) => fields.integer("head_dim", FaultCode::Heads)?,
        None if hidden_size?.is_multiple_of(heads) => hidden_size? / heads,
        None => {
            let text =
                format!("no head_dim, and {} dimensions do not divide into {heads} heads", hidden_size?);
            fields.fault(FaultCode::Heads, text);
            return None;
        }
    };
    if !heads.is_multiple_of(key_value_heads) || head_size == 0 || !head_size.is_multiple_of(2) {
        let text = format!(
            "{heads} heads of {head_size} over {key_value_heads} key/value heads; these must divide into those, and a \
             head have an even size"
        );
        fields.fault(FaultCode::Heads, text);
        return None;
    }
    Some(Heads { heads, key_value_heads, head_size })
}

/// What rows of each layer see.
fn layers(
    fields: &mut Fields<'_>,
    count: Option<u32>,
    warnings: &mut Vec<String>,
) -> Option<Vec<DrafterLayerSpec>> {
    let count = count?;
    let sliding = sliding_layers(fields, count)?;
    // The top level decides, then the training recipe's stamp, then the kind of layer.
    let stamped = fields.kept(|fields| fields.nested_boolean("causal"));
    let all_causal = fields.top_boolean("is_causal").or(stamped);
    let window = match sliding.contains(&true) {
        true => window(fields, warnings)?,
        false => None,
    };
    let layer = |sliding: bool| DrafterLayerSpec {
        window: window.filter(|_| sliding),
        causal: all_causal.unwrap_or(sliding),
    };
    Some(sliding.into_iter().map(layer).collect())
}

/// Which layers slide. Without a list none does.
fn sliding_layers(fields: &mut Fields<'_>, count: u32) -> Option<Vec<bool>> {
    const KEY: &str = "layer_types";
    let Some(types) = fields.get(KEY) else { return Some(vec![false; count as usize]) };
    let Some(types) = types.as_array() else {
        fields.fault(FaultCode::LayerTypes, format!("{KEY} is {}; a list is needed", brief(types)));
        return None;
    };
    if types.len() != count as usize {
        let text = format!("{KEY} names {} layers, num_hidden_layers is {count}", types.len());
        fields.fault(FaultCode::LayerTypes, text);
        return None;
    }
    let kind = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(format!("{KEY} holds {}; full_attention and sliding_attention are known", brief(kind))),
    };
    match types.iter().map(kind).collect::<Result<_, _>>() {
        Ok(types) => Some(types),
        Err(text) => {
            fields.fault(FaultCode::LayerTypes, text);
            None
        }
    }
}

/// The window of sliding layers. `Some(None)`: there is none, as the reference has it where the switch is off.
#[expect(clippy::option_option, reason = "a window that is faulty is not one that is absent")]
fn window(fields: &mut Fields<'_>, warnings: &mut Vec<String>) -> Option<Option<u32>> {
    match fields.boolean("use_sliding_window") {
        Some(true) => {}
        Some(false) => {
            warnings.push("layer_types slide and use_sliding_window is false: no window is kept".into());
            return Some(None);
        }
        None => {
            warnings.push("layer_types slide and nothing says use_sliding_window: the window is kept".into())
        }
    }
    match fields.integer("sliding_window", FaultCode::SlidingWindow) {
        Some(window) if window >= 2 => Some(Some(window)),
        Some(window) => {
            fields.fault(FaultCode::SlidingWindow, format!("sliding_window {window}; at least 2 is needed"));
            None
        }
        None if fields.get("sliding_window").is_some() => None,
        None => {
            fields.fault(FaultCode::SlidingWindow, "its layers slide, but it has no sliding_window");
            None
        }
    }
}

/// The drafter's own rotary positions. They are never the target's.
fn rotation(fields: &mut Fields<'_>, heads: Option<Heads>, warnings: &mut Vec<String>) -> Option<RopeSpec> {
    let rules = RopeRules { default_theta: None, share: Share::WholeRegardless, position_triples: true };
    let head_size = heads.map_or(2, |heads| heads.head_size);
    let found = fields.kept(|fields| rope::read(&fields.top, head_size, rules).map(Some));
    let nested = ["rope_parameters", "rope_scaling"].map(|key| fields.top.get(key));
    let factor = nested
        .into_iter()
        .flatten()
        .find_map(|section| section.get("partial_rotary_factor"))
        .or_else(|| fields.top.get("partial_rotary_factor"));
    if let Some(factor) = factor.filter(|factor| factor.as_f64() != Some(1.0)) {
        // Recipes copied the target's field; whoever obeys it loses most acceptance.
        warnings.push(format!("partial_rotary_factor {} is ignored: whole heads turn", brief(factor)));
    }
    found
}

fn refinement(fields: &mut Fields<'_>, reading: &Reading) -> Option<RefinementSpec> {
    let codes =
        [FaultCode::ConvKernel, FaultCode::ConvGroup, FaultCode::SelectorRank, FaultCode::SelectorTopK];
    let mut values = [None; 4];
    for ((value, key), code) in values.iter_mut().zip(REFINEMENT).zip(codes) {
        *value = fields.required(key, code);
    }
    let [kernel, group, rank, candidates] = values;
    if let (Some(kernel), Some(block)) = (kernel, reading.block_size)
        && kernel > block
    {
        fields.fault(
            FaultCode::ConvKernel,
            format!("conv_kernel_size {kernel} is more than its block of {block}"),
        );
    }
    if let (Some(group), Some(hidden)) = (group, reading.hidden_size)
        && !hidden.is_multiple_of(group)
    {
        fields.fault(FaultCode::ConvGroup, format!("conv_group_size {group} does not divide {hidden}"));
    }
    if let (Some(candidates), Some(rows)) = (candidates, reading.vocabulary_rows)
        && candidates > rows
    {
        let text = format!("selector_top_k {candidates} is more than its vocabulary of {rows}");
        fields.fault(FaultCode::SelectorTopK, text);
    }
    Some(RefinementSpec {
        convolution_kernel: kernel?,
        convolution_group: group?,
        selector_rank: rank?,
        selector_candidates: candidates?,
    })
}

/// What the published checkpoints all have alike, and the formulas know nothing else of.
fn refuse_what_is_not_computed(fields: &mut Fields<'_>) {
    fields.refuse("attention_bias", true, "biases of attention are not implemented for drafters");
    fields.refuse("mlp_bias", true, "biases of the feed-forward are not implemented for drafters");
    fields.refuse("is_neox_style", false, "rotary pairs of neighbouring dimensions are not implemented");
    if let Some(act) = fields.get("hidden_act").filter(|act| *act != "silu") {
        let text = format!("hidden_act is {}; only \"silu\" is implemented", brief(act));
        fields.fault(FaultCode::Unsupported, text);
    }
    if let Some(family) = fields.top.get("model_type").filter(|family| *family != "qwen3") {
        let text = format!("model_type is {}; drafters with layers of qwen3 are implemented", brief(family));
        fields.fault(FaultCode::Unsupported, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_taps_are_those_of_the_published_rule() {
        #[derive(serde::Deserialize)]
        struct Case {
            num_target_layers: u32,
            num_hidden_layers: u32,
            ids: Vec<i64>,
        }
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../../tests/goldens/dflash/unit/target_layer_ids.json"))
                .unwrap();
        assert_eq!(cases.len(), 12);
        for case in cases {
            assert_eq!(default_taps(case.num_target_layers, case.num_hidden_layers), case.ids);
        }
    }
}
