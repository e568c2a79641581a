//! A loader for the checkpoints of the tests: just enough, and strict.
#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part")]

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tensorfold_kernels::cpu::{CpuDevice, InstructionSet, KeyValues};
use tensorfold_kernels::executor::{Executor, Lane, LaneLayer, NextDrafts, Options, Step, StepOutcome};
use tensorfold_kernels::weights::{ElementType, Packing, TensorView, Tensors};
use tensorfold_plugin_api::model_spec::*;
use tensorfold_plugin_api::sampling::Sampling;

/// The repository's `tests` folder.
pub fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// A JSON file below `tests`.
pub fn json(path: &str) -> Value {
    let text = std::fs::read(tests_folder().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&text).unwrap()
}

/// Ids in a JSON array.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A safetensors file with named vectors.
pub struct Vectors(Vec<u8>);

impl Vectors {
    pub fn open(path: &str) -> Vectors {
        Vectors(std::fs::read(tests_folder().join(path)).unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    pub fn bytes(&self, name: &str) -> (Dtype, Vec<usize>, &[u8]) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        (view.dtype(), view.shape().to_vec(), view.data())
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = self.bytes(name);
        match dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }
}

impl Vectors {
    /// Ids, which files keep as signed words.
    pub fn u32(&self, name: &str) -> Vec<u32> {
        let (dtype, _, bytes) = self.bytes(name);
        assert_eq!(dtype, Dtype::I32, "{name}");
        bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }
}

/// A safetensors file of weights.
pub struct File(Vec<u8>);

impl File {
    /// Reads a file below `tests`.
    pub fn open(path: &str) -> File {
        File(std::fs::read(tests_folder().join(path)).unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    /// Its tensors, none of them packed, under the names that `rename` gives them.
    pub fn tensors(&self, rename: impl Fn(&str) -> Option<String>) -> Tensors<'_> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let mut tensors = Tensors::new();
        for (name, view) in file.iter() {
            let Some(name) = rename(name) else { continue };
            let element = match view.dtype() {
                Dtype::F32 => ElementType::F32,
                Dtype::F16 => ElementType::F16,
                Dtype::BF16 => ElementType::Bf16,
                other => panic!("{name} is {other:?}"),
            };
            // The file outlives its parsed index.
            let start = view.data().as_ptr() as usize - self.0.as_ptr() as usize;
            let bytes = &self.0[start..start + view.data().len()];
            let shape = view.shape().to_vec();
            tensors.insert(name, TensorView { element, shape, packed: None, bytes });
        }
        tensors
    }
}

/// The largest absolute difference.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

/// A checkpoint read into memory.
pub struct Checkpoint {
    pub spec: ModelSpec,
    config: Value,
    files: Vec<Vec<u8>>,
}

impl Checkpoint {
    /// Reads a folder, below `tests` unless absolute; ids from `selectable` on
    /// are padding.
    pub fn open(folder: &str, selectable: u32) -> Checkpoint {
        let root = tests_folder().join(folder);
        let config = json(&format!("{folder}/config.json"));
        let mut files = vec![std::fs::read(root.join("model.safetensors")).unwrap()];
        files.extend(std::fs::read(root.join("mtp-4bit.safetensors")));
        let spec = spec(&config, selectable, &SafeTensors::deserialize(&files[0]).unwrap());
        Checkpoint { spec, config, files }
    }

    /// The tensors under canonical names.
    pub fn tensors(&self) -> Tensors<'_> {
        let mut tensors = Tensors::new();
        for content in &self.files {
            let file = SafeTensors::deserialize(content).unwrap();
            let names = file.names();
            for name in &names {
                let Some(canonical) = canonical(name) else { continue };
                let view = file.tensor(name).unwrap();
                let mut shape = view.shape().to_vec();
                if canonical.ends_with("delta.conv") {
                    shape.retain(|&extent| extent != 1);
                }
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let packed = names
                    .contains(&&*format!("{module}.scales"))
                    .then(|| self.packing(module))
                    .filter(|_| view.dtype() == Dtype::U32);
                let element = match view.dtype() {
                    Dtype::F32 => ElementType::F32,
                    Dtype::F16 => ElementType::F16,
                    Dtype::BF16 => ElementType::Bf16,
                    Dtype::U32 => ElementType::U32,
                    other => panic!("{name} is {other:?}"),
                };
                // The file outlives its parsed index.
                let start = view.data().as_ptr() as usize - content.as_ptr() as usize;
                let bytes = &content[start..start + view.data().len()];
                tensors.insert(canonical, TensorView { element, shape, packed, bytes });
            }
        }
        tensors
    }

    fn packing(&self, module: &str) -> Packing {
        let global = &self.config["quantization"];
        let own = &global[module];
        let of = if own.is_object() { own } else { global };
        let number = |key: &str, default: u64| of[key].as_u64().unwrap_or(default) as u32;
        Packing { bits: number("bits", 4), group: number("group_size", 64) }
    }
}

fn canonical(name: &str) -> Option<String> {
    let head = name.strip_prefix("language_model.").unwrap_or(name).strip_prefix("lm_head.");
    let name = match head {
        Some(part) => format!("head.{part}"),
        None if name.starts_with("mtp.") => name.to_owned(),
        None => ["model.language_model.", "language_model.model.", "model."]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix).map(str::to_owned))?,
    };
    let mut out = name;
    for (from, to) in [
        ("pre_fc_norm_embedding", "embed_norm"),
        ("pre_fc_norm_hidden", "hidden_norm"),
        ("embed_tokens", "embed"),
        ("input_layernorm", "input_norm"),
        ("post_attention_layernorm", "post_norm"),
        ("self_attn.", "attention."),
        ("linear_attn.", "delta."),
        ("mlp.switch_mlp.", "moe.experts."),
        ("mlp.experts.", "moe.experts."),
        ("mlp.shared_expert.", "moe.shared."),
        ("mlp.shared_expert_gate", "moe.shared_gate"),
        ("mlp.gate.", "moe.router."),
        ("mlp.", "ffn."),
        ("in_proj_", ""),
        ("conv1d", "conv"),
        ("A_log", "a_log"),
        ("_proj", ""),
    ] {
        out = out.replace(from, to);
    }
    Some(out.strip_suffix(".weight").map(str::to_owned).unwrap_or(out))
}

fn spec(config: &Value, selectable: u32, file: &SafeTensors<'_>) -> ModelSpec {
    let text = if config["text_config"].is_object() { &config["text_config"] } else { config };
    let number = |key: &str| text[key].as_u64().unwrap_or_else(|| panic!("config has no {key}")) as u32;
    let family = config["model_type"].as_str().unwrap().to_owned();
    let names = file.names();
    let hybrid = family.starts_with("qwen3_5");
    let head_size = text["head_dim"]
        .as_u64()
        .map_or_else(|| number("hidden_size") / number("num_attention_heads"), |d| d as u32);
    let rope = &text["rope_parameters"];
    let partial = rope["partial_rotary_factor"].as_f64().unwrap_or(1.0);
    let shifted = names
        .iter()
        .find(|name| name.ends_with("conv1d.weight"))
        .is_none_or(|name| *file.tensor(name).unwrap().shape().last().unwrap() == 1);
    let attention = AttentionSpec {
        heads: number("num_attention_heads"),
        key_value_heads: number("num_key_value_heads"),
        head_size,
        gated: hybrid,
        head_norms: names.iter().any(|name| name.contains("self_attn.q_norm")),
        biases: names.iter().any(|name| name.ends_with("self_attn.q_proj.bias")),
    };
    let layer = |linear: bool| {
        let mixer = match linear {
            true => MixerSpec::GatedDelta(GatedDeltaSpec {
                key_heads: number("linear_num_key_heads"),
                value_heads: number("linear_num_value_heads"),
                key_head_size: number("linear_key_head_dim"),
                value_head_size: number("linear_value_head_dim"),
                convolution_kernel: number("linear_conv_kernel_dim"),
            }),
            false => MixerSpec::Attention(attention.clone()),
        };
        let feed_forward = match text["num_experts"].is_u64() {
            true => FeedForwardSpec::MixtureOfExperts {
                experts: number("num_experts"),
                experts_per_token: number("num_experts_per_tok"),
                intermediate_size: number("moe_intermediate_size"),
                shared_intermediate_size: number("shared_expert_intermediate_size"),
            },
            false => FeedForwardSpec::Dense { intermediate_size: number("intermediate_size") },
        };
        LayerSpec { mixer, feed_forward }
    };
    let layers = (0..number("num_hidden_layers") as usize)
        .map(|index| layer(hybrid && text["layer_types"][index] == "linear_attention"));
    let offset = if shifted { 0.0 } else { 1.0 };
    let mtp = hybrid.then(|| MtpSpec {
        layers: vec![layer(false)],
        norm_weight_offset: offset,
        formats: vec!["bf16".into()],
    });
    let spec = ModelSpec {
        version: MODEL_SPEC_VERSION,
        hidden_size: number("hidden_size"),
        vocabulary_rows: number("vocab_size"),
        selectable_vocabulary: selectable.min(number("vocab_size")),
        context_window: number("max_position_embeddings"),
        norm_epsilon: text["rms_norm_eps"].as_f64().unwrap(),
        norm_weight_offset: offset,
        tied_head: !names.iter().any(|name| name.contains("lm_head")),
        rope: RopeSpec {
            theta: rope["rope_theta"].as_f64().or(text["rope_theta"].as_f64()).unwrap(),
            rotary_dimensions: (f64::from(head_size) * partial) as u32,
            scaling: RopeScaling::None,
        },
        layers: layers.collect(),
        mtp,
        formats: vec!["bf16".into()],
        family,
    };
    spec.validate().unwrap();
    spec
}

pub type Cpu<'w> = Executor<'w, CpuDevice>;

/// An executor on the best instruction set.
pub fn executor<'w>(checkpoint: &Checkpoint, tensors: &Tensors<'w>, threads: usize) -> Cpu<'w> {
    executor_on(checkpoint, tensors, threads, InstructionSet::best())
}

pub fn executor_on<'w>(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'w>,
    threads: usize,
    set: InstructionSet,
) -> Cpu<'w> {
    executor_of(checkpoint, tensors, CpuDevice::with_instruction_set(threads, set).unwrap())
}

pub fn executor_of<'w>(checkpoint: &Checkpoint, tensors: &Tensors<'w>, device: CpuDevice) -> Cpu<'w> {
    let options = Options { lanes: 4, context: 4096 };
    Executor::open(device, checkpoint.spec.clone(), tensors, options).unwrap()
}

/// A step that is never cancelled.
pub fn step<'a>(
    lane: &'a mut Lane<CpuDevice>,
    tokens: &'a [u32],
    drafts: usize,
    outputs: usize,
    sampling: Sampling,
) -> Step<'a, CpuDevice> {
    Step {
        lane,
        tokens,
        drafts,
        outputs,
        sampling,
        allowed: &[],
        log_probabilities: None,
        next_drafts: NextDrafts::default(),
        cancelled: &|| false,
    }
}

/// Feeds one lane and returns what it got.
pub fn feed(
    executor: &mut Cpu<'_>,
    lane: &mut Lane<CpuDevice>,
    tokens: &[u32],
    outputs: usize,
    sampling: Sampling,
) -> StepOutcome {
    executor.round(&mut [step(lane, tokens, 0, outputs, sampling)]).unwrap().lanes.remove(0)
}

/// The prompt and then `count` tokens, one a round.
pub fn generate(executor: &mut Cpu<'_>, prompt: &[u32], count: usize, sampling: Sampling) -> Vec<u32> {
    let mut lane = executor.open_lane().unwrap();
    let mut pending = prompt.to_vec();
    let mut out = Vec::new();
    while out.len() < count {
        let got = feed(executor, &mut lane, &pending, 1, sampling);
        pending = vec![got.draws[0].token.unwrap()];
        out.extend(&pending);
    }
    executor.close_lane(lane);
    out
}

/// Sampling in which every rule has a part.
pub const WARM: Sampling = Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, min_p: 0.01, seed: 77 };

/// Everything that a lane holds, as bits.
pub fn contents(lane: &Lane<CpuDevice>) -> Vec<u32> {
    let mut bits = vec![lane.position() as u32];
    for layer in lane.layers() {
        match layer {
            LaneLayer::Delta(state) => {
                bits.extend(state.window().iter().chain(state.memory()).map(|x| x.to_bits()));
            }
            LaneLayer::KeyValues(cache) => {
                assert_eq!(cache.tokens(), lane.position());
                for position in 0..cache.tokens() {
                    bits.extend(cache.key(position, 0).iter().map(|x| x.to_bits()));
                    bits.extend(cache.value(position, 0).iter().map(|x| x.to_bits()));
                }
            }
        }
    }
    bits
}

/// Everything that the block drafter holds of a lane, as bits, where nothing of it is forgotten yet.
pub fn block_contents(lane: &Lane<CpuDevice>) -> Vec<u32> {
    lane.block_layers().iter().flat_map(cache_contents).collect()
}

/// Everything that the head's layers hold of a lane, as bits.
pub fn head_contents(lane: &Lane<CpuDevice>) -> Vec<u32> {
    let caches = lane.head_layers().iter().map(|layer| match layer {
        LaneLayer::KeyValues(cache) => cache_contents(cache),
        LaneLayer::Delta(_) => unreachable!("nothing in a head is recurrent"),
    });
    caches.flatten().collect()
}

fn cache_contents(cache: &KeyValues) -> Vec<u32> {
    let rows = (0..cache.tokens())
        .flat_map(|position| cache.key(position, 0).into_iter().chain(cache.value(position, 0).to_vec()));
    rows.map(f32::to_bits).chain([cache.tokens() as u32]).collect()
}

/// Both forms of the tiny hybrids, the dense one and the one of experts.
pub fn hybrids(test: impl Fn(&Checkpoint)) {
    for name in ["tiny-qwen3_5", "tiny-qwen3_5-mlx-4bit", "tiny-qwen3_5_moe", "tiny-qwen3_5_moe-mlx-4bit"] {
        test(&Checkpoint::open(&format!("goldens/{name}"), 1009));
    }
}

/// A text of `count` tokens that looks like nothing.
pub fn text(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 31 + i * 7 + 3) % 1000).collect()
}
