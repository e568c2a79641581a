//! `config.json` of what was converted.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::plan::{Form, Job};
use super::{Options, float};
use crate::checkpoint::{ElementType, Packing};

/// The float type that a configuration names for its weights.
pub(super) fn float_type(config: &Map<String, Value>) -> Option<ElementType> {
    let text = config.get("text_config").and_then(Value::as_object);
    [Some(config), text]
        .into_iter()
        .flatten()
        .flat_map(|section| [section.get("torch_dtype"), section.get("dtype")])
        .flatten()
        .find_map(Value::as_str)
        .and_then(float::from_torch_name)
}

/// The configuration of a converted checkpoint, from that of its source.
pub(super) fn converted(
    mut config: Map<String, Value>,
    generation: &Map<String, Value>,
    options: &Options,
    tied: bool,
    jobs: &[Job<'_>],
) -> Value {
    // What the tensors no longer have, or what spoke of another file.
    for key in ["_name_or_path", "vision_config", "quantization", "quantization_config"] {
        config.remove(key);
    }
    if let Some(element) = options.element {
        set_float_type(&mut config, element);
    }
    let set_tied = |section: &mut Map<String, Value>| {
        if let Some(value) = section.get_mut("tie_word_embeddings") {
            *value = tied.into();
        }
    };
    set_tied(&mut config);
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        set_tied(text);
    }
    // All ids that end a reply, where one place is read.
    if let Some(end) = generation.get("eos_token_id") {
        config.insert("eos_token_id".into(), end.clone());
    }
    if let Some(packing) = options.packing {
        add_quantization(&mut config, packing, jobs);
    }
    config.sort_keys();
    Value::Object(config)
}

/// Names the packing of all modules and of those that differ, under both keys that readers know.
pub(super) fn add_quantization(config: &mut Map<String, Value>, packing: Packing, jobs: &[Job<'_>]) {
    let mut table = Map::new();
    table.insert("group_size".into(), packing.group_size.into());
    table.insert("bits".into(), packing.bits.into());
    table.insert("mode".into(), "affine".into());
    let differing: BTreeMap<&str, Packing> = jobs
        .iter()
        .filter_map(|job| match job.form {
            Form::Affine { packing: own, .. } if own != packing => Some((job.module(), own)),
            _ => None,
        })
        .collect();
    for (module, own) in differing {
        table.insert(module.into(), json!({ "group_size": own.group_size, "bits": own.bits }));
    }
    config.insert("quantization".into(), Value::Object(table.clone()));
    config.insert("quantization_config".into(), Value::Object(table));
}

fn set_float_type(config: &mut Map<String, Value>, element: ElementType) {
    let name = Value::from(float::torch_name(element));
    let mut found = false;
    let mut set = |section: &mut Map<String, Value>| {
        for key in ["torch_dtype", "dtype"] {
            if let Some(value) = section.get_mut(key) {
                *value = name.clone();
                found = true;
            }
        }
    };
    set(config);
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        set(text);
    }
    if !found {
        config.insert("torch_dtype".into(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_float_type_is_found_at_either_level_and_spelling() {
        let of = |value| float_type(&map(value));
        assert_eq!(of(json!({ "torch_dtype": "float16" })), Some(ElementType::F16));
        assert_eq!(of(json!({ "text_config": { "dtype": "bfloat16" } })), Some(ElementType::Bf16));
        assert_eq!(of(json!({ "dtype": "torch.float32" })), Some(ElementType::F32));
        assert_eq!(of(json!({ "dtype": "float8_e4m3fn" })), None);
        assert_eq!(of(json!({})), None);
    }

    #[test]
    fn what_no_longer_holds_is_changed() {
        let options = Options { element: Some(ElementType::F16), ..Options::default() };
        let source = json!({
            "vision_config": {}, "tie_word_embeddings": true, "eos_token_id": 1, "torch_dtype": "bfloat16",
            "text_config": { "dtype": "bfloat16", "tie_word_embeddings": true }, "_name_or_path": "x",
        });
        let config = converted(map(source), &map(json!({ "eos_token_id": [2, 1] })), &options, false, &[]);
        let wanted = json!({
            "eos_token_id": [2, 1], "tie_word_embeddings": false, "torch_dtype": "float16",
            "text_config": { "dtype": "float16", "tie_word_embeddings": false },
        });
        assert_eq!(config, wanted);
    }
}
