//! Conversions against what MLX's own tools made of the same models.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::testing::{Silent, golden};
use super::*;

fn run(source: &Path, output: &Path, options: &Options) -> Result<Summary, ConvertError> {
    convert(source, output, options, &Silent, &Stop::default())
}

const FOUR_BITS: Options =
    Options { packing: Some(Packing { bits: 4, group_size: 64 }), element: None, force: false };

/// Type, shape and bytes of every tensor in a folder's safetensors files.
fn tensors(folder: &Path) -> BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let bytes = fs::read(&path).unwrap();
            for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().iter() {
                found.insert(
                    name.to_owned(),
                    (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()),
                );
            }
        }
    }
    found
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

/// `model` in floats must become `model-mlx-4bit`, byte for byte.
#[track_caller]
fn becomes_what_mlx_made(model: &str) {
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("out");
    let summary = run(&golden(model), &output, &FOUR_BITS).unwrap_or_else(|error| panic!("{error}"));
    let wanted_folder = golden(&format!("{model}-mlx-4bit"));
    let (made, wanted) = (tensors(&output), tensors(&wanted_folder));
    assert_eq!(made.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, wanted) in &wanted {
        let made = &made[name];
        assert_eq!((made.0, &made.1), (wanted.0, &wanted.1), "{name}");
        assert!(made.2 == wanted.2, "{name} has other bytes");
    }
    let (mut config, wanted) = (json(&output, "config.json"), json(&wanted_folder, "config.json"));
    // MLX's loader renames this key in passing; both spellings are read.
    if let Some(rope) = config.pointer_mut("/text_config/rope_parameters").and_then(Value::as_object_mut)
        && let Some(kind) = rope.remove("rope_type")
    {
        rope.insert("type".into(), kind);
    }
    assert_eq!(config, wanted);
    let mut index = json(&output, "model.safetensors.index.json");
    let wanted = json(&wanted_folder, "model.safetensors.index.json");
    // MLX counts the parameters of modules, and not those that a layer has itself.
    index["metadata"]["total_parameters"] = wanted["metadata"]["total_parameters"].clone();
    assert!(index == wanted, "the index names other tensors or another size");
    // Sums of norms and one are rounded; nothing else is, as the goldens are of one type.
    let norms = made.keys().filter(|name| name.contains("norm") && !name.contains("linear_attn")).count();
    let shifted = if model.starts_with("tiny-qwen3_5") { norms } else { 0 };
    assert!(summary.quantized > 0 && summary.rounded.0 <= shifted, "{summary:?}");
    assert_eq!(summary.rounded.0 > 0, shifted > 0, "{summary:?}");
    assert!(output.join("tokenizer.json").is_file() && output.join("tokenizer_config.json").is_file());
}

#[test]
fn the_hybrid_becomes_what_mlx_made_of_it() {
    becomes_what_mlx_made("tiny-qwen3_5");
}

#[test]
fn the_hybrid_with_experts_becomes_what_mlx_made_of_it() {
    becomes_what_mlx_made("tiny-qwen3_5_moe");
}

#[test]
fn llama_becomes_what_mlx_made_of_it() {
    becomes_what_mlx_made("tiny-llama");
}

#[test]
fn qwen2_becomes_what_mlx_made_of_it() {
    becomes_what_mlx_made("tiny-qwen2");
}

#[test]
fn qwen3_becomes_what_mlx_made_of_it() {
    becomes_what_mlx_made("tiny-qwen3");
}

#[test]
fn without_bits_the_model_keeps_its_weights_in_mlxs_form() {
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("out");
    let summary = run(&golden("tiny-qwen3_5"), &output, &Options::default()).unwrap();
    assert_eq!(summary.quantized, 0);
    let made = Checkpoint::open(&output).unwrap();
    let source = Checkpoint::open(&golden("tiny-qwen3_5")).unwrap();
    assert_eq!(made.spec.norm_weight_offset, 0.0);
    assert_eq!(made.tensors.len(), source.tensors.len());
    for tensor in source.tensors.iter().filter(|tensor| !tensor.name.ends_with("norm")) {
        assert!(source.bytes(tensor) == made.bytes(made.tensor(&tensor.name).unwrap()), "{}", tensor.name);
    }
}

#[test]
fn another_float_type_is_rounded_and_told() {
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("out");
    let options = Options { element: Some(ElementType::F32), ..Options::default() };
    let summary = run(&golden("tiny-qwen3"), &output, &options).unwrap();
    assert_eq!(summary.rounded, (0, 0), "everything fits into 32 bits");
    assert_eq!(json(&output, "config.json")["torch_dtype"], "float32");
    let back = root.path().join("back");
    let options = Options { element: Some(ElementType::F16), ..Options::default() };
    let summary = run(&golden("tiny-qwen3"), &back, &options).unwrap();
    assert!(summary.rounded.0 > 0 && summary.rounded.1 > 0, "tiny weights lose digits in 16 bits of IEEE");
}

#[test]
fn a_packing_that_no_matrix_can_take_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let options =
        |group_size| Options { packing: Some(Packing { bits: 4, group_size }), ..Options::default() };
    // Its rows have 192 and 320 weights.
    let source = golden("tiny-llama");
    let error = run(&source, &root.path().join("out"), &options(128)).unwrap_err().to_string();
    assert!(error.contains("none of its matrices has rows of whole groups of 128"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    assert!(run(&source, &root.path().join("out"), &options(64)).unwrap().quantized > 0);
}

#[test]
fn what_is_packed_is_not_packed_again() {
    let root = tempfile::tempdir().unwrap();
    let error = run(&golden("tiny-qwen3_5-mlx-4bit"), &root.path().join("out"), &FOUR_BITS).unwrap_err();
    assert!(error.to_string().contains("is packed already (mlx-q4g64)"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_stopped_conversion_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    /// Asks for the end once the first rows are done.
    struct After(Stop);
    impl Progress for After {
        fn begin(&self, _: u64) {}
        fn advance(&self, _: u64) {
            self.0.request(2);
        }
    }
    let after = After(Stop::default());
    let output = root.path().join("out");
    let error = convert(&golden("tiny-qwen3_5"), &output, &FOUR_BITS, &after, &after.0).unwrap_err();
    assert!(matches!(error, ConvertError::Stopped { signal: 2 }), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_weight_that_is_no_number_is_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(golden("tiny-qwen3_5")).unwrap().flatten() {
        fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    let path = source.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let at = checkpoint.tensor("layers.1.ffn.up").unwrap().offset as usize;
    drop(checkpoint);
    for (value, options, wanted) in [
        ([0x80, 0x7f], FOUR_BITS, "layers.1.mlp.up_proj.weight holds the weight inf"),
        ([0xc0, 0x7f], FOUR_BITS, "layers.1.mlp.up_proj.weight holds the weight NaN"),
        // 1e5, within bfloat16 and beyond half precision.
        ([0xc3, 0x47], Options { element: Some(ElementType::F16), ..FOUR_BITS }, "use --dtype bf16 or f32"),
        (
            [0xc3, 0x47],
            Options { element: Some(ElementType::F16), packing: None, force: false },
            "do not reach",
        ),
    ] {
        bytes[at..at + 2].copy_from_slice(&value);
        fs::write(&path, &bytes).unwrap();
        let error = run(&source, &root.path().join("out"), &options).unwrap_err().to_string();
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
}
