//! Checkpoint folders: weight files, their index, and `config.json`.

use std::path::Path;

use tensorfold::checkpoint::{Checkpoint, CheckpointSource, ElementType, survey};
use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::executor::{self, Options};
use tensorfold_kernels::weights::{self, TensorView, Tensors};
use tensorfold_plugin_api::host::{ModelSource as _, TensorSource as _};
use tensorfold_plugin_api::model_spec::ModelSpec;
use tensorfold_plugin_api::plugin::Dtype;

use super::Scratch;

const TOKENIZER: &[u8] = br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 9}, "merges": []}}"#;

/// A configuration and the weights that fit it.
struct Seed {
    config: &'static [u8],
    weights: &'static [u8],
}

macro_rules! seed {
    ($name:literal) => {
        Seed {
            config: include_bytes!(concat!("../corpus/config/good-", $name)),
            weights: include_bytes!(concat!("../corpus/safetensors/good-", $name)),
        }
    };
}

const LLAMA: Seed = seed!("llama-hf");

/// What weights look like, by a part of a tensor's name that others lack, and
/// packed and not. The first that fits is meant.
const SEEDS: &[(&str, Seed, Seed)] = &[
    ("shared_expert", seed!("qwen3_5_moe-hf"), seed!("qwen3_5_moe-mlx")),
    ("conv1d", seed!("qwen3_5-hf"), seed!("qwen3_5-mlx")),
    ("q_norm", seed!("qwen3-hf"), seed!("qwen3-mlx")),
    ("q_proj.bias\"", seed!("qwen2-hf"), seed!("qwen2-mlx")),
    ("", LLAMA, seed!("llama-mlx")),
];

const SHARDS: [(&str, &[u8]); 2] = [
    ("model-00001-of-00002.safetensors", include_bytes!("../shards/model-00001-of-00002.safetensors")),
    ("model-00002-of-00002.safetensors", include_bytes!("../shards/model-00002-of-00002.safetensors")),
];

fn holds(bytes: &[u8], part: &str) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

/// A weight file, or, when it begins as JSON, the index of two weight files.
pub fn safetensors(scratch: &Scratch, input: &[u8]) -> Result<(), String> {
    if input.first() == Some(&b'{') {
        return open(scratch.fill(&[
            ("config.json", LLAMA.config),
            ("tokenizer.json", TOKENIZER),
            ("model.safetensors.index.json", input),
            SHARDS[0],
            SHARDS[1],
        ]));
    }
    let (_, plain, packed) = SEEDS.iter().find(|seed| holds(input, seed.0)).expect("the last fits all");
    let seed = if holds(input, ".scales") { packed } else { plain };
    open(scratch.fill(&[
        ("config.json", seed.config),
        ("tokenizer.json", TOKENIZER),
        ("model.safetensors", input),
    ]))
}

/// A `config.json`, beside weights of the family that it names.
pub fn config(scratch: &Scratch, input: &[u8]) -> Result<(), String> {
    let document: serde_json::Value = serde_json::from_slice(input).unwrap_or_default();
    let part = match document["model_type"].as_str().unwrap_or_default().trim_end_matches("_text") {
        "qwen3_5_moe" => "shared_expert",
        "qwen3_5" => "conv1d",
        "qwen3" => "q_norm",
        "qwen2" => "q_proj.bias\"",
        _ => "",
    };
    let (_, plain, packed) = SEEDS.iter().find(|seed| seed.0 == part).expect("all are listed");
    let seed = if document["quantization"].is_object() { packed } else { plain };
    open(scratch.fill(&[
        ("config.json", input),
        ("tokenizer.json", TOKENIZER),
        ("model.safetensors", seed.weights),
    ]))
}

/// Looks at a folder as `info` does, and opens it as `serve` does.
fn open(folder: &Path) -> Result<(), String> {
    let facts = survey(folder).map(|(facts, problem)| (facts, problem.map(|problem| problem.to_string())));
    let checkpoint = match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Err(error.to_string()),
    };
    let (facts, problem) = facts.expect("what can be opened can be looked at");
    assert_eq!(problem, None, "what can be opened has no fault to the eye");
    assert!(facts.supported);
    assert_eq!(facts.mtp, checkpoint.has_mtp());

    let spec = &checkpoint.spec;
    assert_eq!(ModelSpec::from_json(&spec.to_json()).expect("the border's document is sound"), *spec);
    for tensor in &checkpoint.tensors {
        let elements = tensor.shape.iter().product::<u64>();
        let bytes = match tensor.element {
            ElementType::F32 | ElementType::U32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
        };
        assert_eq!(checkpoint.bytes(tensor).len() as u64, elements * bytes, "{}", tensor.name);
    }
    plan(&CheckpointSource::new(checkpoint))
}

/// Checks a model as a backend does before it takes memory for it.
fn plan(source: &CheckpointSource) -> Result<(), String> {
    let mut tensors = Tensors::new();
    for (index, tensor) in source.tensors().iter().enumerate() {
        let element = match tensor.dtype {
            Dtype::F32 => weights::ElementType::F32,
            Dtype::F16 => weights::ElementType::F16,
            Dtype::Bf16 => weights::ElementType::Bf16,
            Dtype::U32 => weights::ElementType::U32,
            Dtype::U8 => continue,
        };
        let packed = tensor.packed.map(|packed| weights::Packing { bits: packed.bits, group: packed.group });
        let shape = tensor.shape.iter().map(|&axis| axis as usize).collect();
        let view = TensorView { element, shape, packed, bytes: source.bytes(index) };
        tensors.insert(tensor.name.as_str(), view);
    }
    executor::check(source.spec(), &tensors, CpuDevice::LIMITS).map_err(|error| error.to_string())?;
    let plan = executor::memory_plan(source.spec(), Options { lanes: 4, context: 1 << 20 });
    assert!(plan.scratch_bytes > 0);
    Ok(())
}
