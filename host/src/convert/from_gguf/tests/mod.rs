//! Files made of golden checkpoints, and back; and files that must be refused.

mod refusals;
mod tokenizers;

use std::collections::BTreeMap;
use std::path::PathBuf;

use half::{bf16, f16};
use serde_json::Value as Json;

use super::super::gguf::testing::GgufWriter;
use super::super::testing::{Silent, golden};
use super::super::{ConvertError, Options, Stop, Summary, convert};
use super::*;
use crate::checkpoint::{Checkpoint, ElementType, Packing};

const F32: u32 = 0;
const F16: u32 = 1;
const BF16: u32 = 30;

/// A golden checkpoint of floats, read without this project's help but for its description.
struct Source {
    checkpoint: Checkpoint,
    config: Json,
    tokenizer: Json,
}

impl Source {
    fn open(name: &str) -> Source {
        let folder = golden(name);
        let json = |file: &str| serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap();
        Source {
            checkpoint: Checkpoint::open(&folder).unwrap(),
            config: json("config.json"),
            tokenizer: json("tokenizer.json"),
        }
    }

    /// Tensors by GGUF name: shape and bytes of bfloat16, rows in GGUF's order.
    fn tensors(&self) -> Vec<(String, Vec<u64>, Vec<u8>)> {
        let family = self.checkpoint.spec.family.as_str();
        let tensors = self.checkpoint.tensors.iter();
        tensors
            .map(|tensor| {
                assert_eq!(tensor.element, ElementType::Bf16);
                let mut bytes = self.checkpoint.bytes(tensor).to_vec();
                let name = gguf_name(&tensor.name);
                if family == "llama" && (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight")) {
                    bytes = in_pairs(&bytes, tensor.shape[0], 64);
                }
                (name, tensor.shape.clone(), bytes)
            })
            .collect()
    }

    /// Metadata alone.
    fn metadata(&self, pre: &str) -> GgufWriter {
        let architecture = self.checkpoint.spec.family.as_str();
        let number = |key: &str| self.config[key].as_u64().unwrap() as u32;
        let own = |key: &str| format!("{architecture}.{key}");
        let mut writer = GgufWriter::new(architecture)
            .integer(&own("block_count"), number("num_hidden_layers"))
            .integer(&own("context_length"), number("max_position_embeddings"))
            .integer(&own("embedding_length"), number("hidden_size"))
            .integer(&own("feed_forward_length"), number("intermediate_size"))
            .integer(&own("attention.head_count"), number("num_attention_heads"))
            .integer(&own("attention.head_count_kv"), number("num_key_value_heads"))
            .float(
                &own("attention.layer_norm_rms_epsilon"),
                self.config["rms_norm_eps"].as_f64().unwrap() as f32,
            )
            .float(&own("rope.freq_base"), self.config["rope_theta"].as_f64().unwrap() as f32);
        if self.config.get("head_dim").is_some() {
            writer = writer.integer(&own("attention.key_length"), number("head_dim"));
        }
        let (tokens, types) = tokens(&self.tokenizer);
        let merges: Vec<String> = self.tokenizer["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
            .collect();
        let end = tokens.iter().position(|token| token == "<|im_end|>").unwrap() as u32;
        writer
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &merges)
            .integer("tokenizer.ggml.bos_token_id", end - 1)
            .integer("tokenizer.ggml.eos_token_id", end)
            .boolean("tokenizer.ggml.add_bos_token", false)
            .text("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    }

    /// The whole model, with matrices of type `matrix` and vectors of 32 bits, as llama.cpp's tools write it.
    fn file(&self, pre: &str, matrix: u32) -> GgufWriter {
        self.tensors().into_iter().fold(self.metadata(pre), |writer, (name, shape, bytes)| {
            let kind = if shape.len() == 1 { F32 } else { matrix };
            writer.tensor(&name, kind, &shape, cast(&bytes, kind))
        })
    }
}

/// bfloat16 as another type of floats.
fn cast(bytes: &[u8], kind: u32) -> Vec<u8> {
    let values = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32());
    match kind {
        F32 => values.flat_map(f32::to_le_bytes).collect(),
        F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        _ => bytes.to_vec(),
    }
}

/// Rows of heads from two halves to pairs: row `s * d / 2 + p` of a head goes to `2 p + s`.
fn in_pairs(bytes: &[u8], rows: u64, head: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows as usize;
    let mut moved = vec![0; bytes.len()];
    for row in 0..rows as usize {
        let (first, inside) = (row / head * head, row % head);
        let to = first + 2 * (inside % (head / 2)) + inside / (head / 2);
        moved[to * row_bytes..][..row_bytes].copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
    }
    moved
}

fn gguf_name(canonical: &str) -> String {
    match canonical {
        "embed" => return "token_embd.weight".into(),
        "norm" => return "output_norm.weight".into(),
        "head" => return "output.weight".into(),
        _ => {}
    }
    let (layer, rest) = canonical.strip_prefix("layers.").unwrap().split_once('.').unwrap();
    let (module, end) = match rest.strip_suffix(".bias") {
        Some(module) => (module, "bias"),
        None => (rest, "weight"),
    };
    let name = match module {
        "input_norm" => "attn_norm",
        "post_norm" => "ffn_norm",
        "attention.q" => "attn_q",
        "attention.k" => "attn_k",
        "attention.v" => "attn_v",
        "attention.o" => "attn_output",
        "attention.q_norm" => "attn_q_norm",
        "attention.k_norm" => "attn_k_norm",
        "ffn.gate" => "ffn_gate",
        "ffn.up" => "ffn_up",
        "ffn.down" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{name}.{end}")
}

fn tokens(tokenizer: &Json) -> (Vec<String>, Vec<i32>) {
    let mut by_id: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        by_id.insert(id.as_u64().unwrap(), (token.clone(), 1));
    }
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        by_id.insert(added["id"].as_u64().unwrap(), (added["content"].as_str().unwrap().into(), kind));
    }
    by_id.into_values().unzip()
}

struct Converted {
    folder: PathBuf,
    summary: Summary,
    _root: tempfile::TempDir,
}

fn run(bytes: &[u8], options: &Options) -> Result<Converted, ConvertError> {
    let root = tempfile::tempdir().unwrap();
    let (source, output) = (root.path().join("model.gguf"), root.path().join("out"));
    std::fs::write(&source, bytes).unwrap();
    let result = convert(&source, &output, options, &Silent, &Stop::default());
    if result.is_err() {
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "nothing but the source is left");
    }
    result.map(|summary| Converted { folder: output, summary, _root: root })
}

#[track_caller]
fn refused(writer: &GgufWriter) -> String {
    match run(&writer.finish(), &Options::default()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was converted"),
    }
}

/// A model of floats must come back with the same bytes.
#[track_caller]
fn comes_back(name: &str, pre: &str, matrix: u32) -> Converted {
    let source = Source::open(name);
    let made = run(&source.file(pre, matrix).finish(), &Options::default())
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((made.summary.quantized, made.summary.rounded), (0, (0, 0)));
    assert_eq!(made.summary.lossless, source.checkpoint.tensors.len());
    let found = Checkpoint::open(&made.folder).unwrap();
    assert_eq!(found.tensors.len(), source.checkpoint.tensors.len());
    for tensor in &source.checkpoint.tensors {
        let other = found.tensor(&tensor.name).unwrap();
        let kind = match other.element {
            ElementType::F32 => F32,
            ElementType::F16 => F16,
            _ => BF16,
        };
        assert!(found.bytes(other) == cast(source.checkpoint.bytes(tensor), kind), "{}", tensor.name);
    }
    let (mut spec, mut wanted) = (found.spec.clone(), source.checkpoint.spec.clone());
    assert_eq!((spec.rope.theta, spec.norm_epsilon), (wanted.rope.theta, wanted.norm_epsilon));
    (spec.formats, wanted.formats) = (vec![], vec![]);
    assert_eq!(spec, wanted);
    assert_eq!(found.stop_tokens, [found.stop_tokens[0]]);
    made
}

#[test]
fn llama_of_bfloat16_comes_back_bit_for_bit() {
    let made = comes_back("tiny-llama", "smollm", BF16);
    assert_eq!(Checkpoint::open(&made.folder).unwrap().spec.formats, ["bf16"]);
    assert!(made.summary.notes.contains(&"F32 became bf16: 7 tensors".into()), "{:?}", made.summary.notes);
}

#[test]
fn qwen2_with_its_biases_comes_back_bit_for_bit() {
    comes_back("tiny-qwen2", "qwen35", F32);
}

#[test]
fn qwen3_with_its_head_size_and_norms_comes_back_bit_for_bit() {
    comes_back("tiny-qwen3", "qwen35", BF16);
}

/// Blocks of arbitrary codes with moderate scales.
fn blocks(bytes_of_block: usize, count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut all = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..bytes_of_block).map(|_| next()).collect();
        // Below 2 in magnitude: d, and m where there is one.
        block[1] &= 0xbb;
        if bytes_of_block == 20 {
            block[3] &= 0xbb;
        }
        all.extend(block);
    }
    all
}

/// The weights of blocks, by the format's own formulas.
fn weights(kind: u32, bytes: &[u8]) -> Vec<f32> {
    let (size, start) = [(18, 2), (20, 4), (34, 2)][[2, 3, 8].iter().position(|&k| k == kind).unwrap()];
    let mut all = Vec::new();
    for block in bytes.chunks_exact(size) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let codes = &block[start..];
        for i in 0..32 {
            let nibble = || if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 };
            all.push(match kind {
                2 => half(0) * (f32::from(nibble()) - 8.0),
                3 => half(0) * f32::from(nibble()) + half(2),
                _ => half(0) * f32::from(codes[i] as i8),
            });
        }
    }
    all
}

/// The weights of a packed matrix in a converted folder.
fn unpacked(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let packing = tensor.packing.unwrap();
    assert_eq!(packing.group_size, 32);
    let part = |part: &str| {
        let tensor = checkpoint.tensor(&format!("{name}.{part}")).unwrap();
        assert_eq!(tensor.element, ElementType::F16);
        let halves = checkpoint.bytes(tensor).chunks_exact(2);
        halves.map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect::<Vec<_>>()
    };
    let (scales, biases) = (part("scales"), part("biases"));
    let bytes = checkpoint.bytes(tensor);
    let codes: Vec<u8> = match packing.bits {
        8 => bytes.to_vec(),
        _ => bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
    };
    codes.iter().enumerate().map(|(i, code)| scales[i / 32] * f32::from(*code) + biases[i / 32]).collect()
}

#[test]
fn blocks_keep_their_weights_and_rows_of_queries_move_whole() {
    let source = Source::open("tiny-llama");
    for (kind, size, format) in [(2, 18, "mlx-q4g32"), (3, 20, "mlx-q4g32"), (8, 34, "mlx-q8g32")] {
        let mut stored: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let writer =
            source.tensors().into_iter().fold(source.metadata("smollm"), |writer, (name, shape, bytes)| {
                if shape.len() == 1 {
                    return writer.tensor(&name, F32, &shape, cast(&bytes, F32));
                }
                let data = blocks(size, (shape[0] * shape[1] / 32) as usize);
                stored.insert(name.clone(), data.clone());
                writer.tensor(&name, kind, &shape, data)
            });
        let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((made.summary.quantized, made.summary.rounded), (0, (0, 0)));
        let found = Checkpoint::open(&made.folder).unwrap();
        assert_eq!(found.spec.formats, [format]);
        for tensor in source.checkpoint.tensors.iter().filter(|tensor| tensor.shape.len() == 2) {
            let wanted = weights(kind, &stored[&gguf_name(&tensor.name)]);
            let made = unpacked(&found, &tensor.name);
            // d * q + (-8 d) is d * (q - 8) but for the last bit of a float of 32.
            let close = |a: f32, b: f32| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
            let columns = tensor.shape[1] as usize;
            for (row, made) in made.chunks_exact(columns).enumerate() {
                let from = match tensor.name.rsplit('.').next() {
                    Some("q" | "k") => row / 64 * 64 + 2 * (row % 64 % 32) + row % 64 / 32,
                    _ => row,
                };
                let wanted = &wanted[from * columns..][..columns];
                assert!(made.iter().zip(wanted).all(|(&a, &b)| close(a, b)), "{} row {row}", tensor.name);
            }
        }
    }
}

#[test]
fn types_that_differ_are_named_in_the_table() {
    let source = Source::open("tiny-llama");
    let writer =
        source.tensors().into_iter().fold(source.metadata("smollm"), |writer, (name, shape, bytes)| {
            let count = (shape.iter().product::<u64>() / 32) as usize;
            match (shape.len(), name.as_str()) {
                (1, _) => writer.tensor(&name, F32, &shape, cast(&bytes, F32)),
                (_, "token_embd.weight") => writer.tensor(&name, 8, &shape, blocks(34, count)),
                (_, "blk.0.attn_v.weight") => writer.tensor(&name, F16, &shape, cast(&bytes, F16)),
                _ => writer.tensor(&name, 3, &shape, blocks(20, count)),
            }
        });
    let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let config: Json =
        serde_json::from_slice(&std::fs::read(made.folder.join("config.json")).unwrap()).unwrap();
    let table = &config["quantization"];
    assert_eq!(
        (&table["bits"], &table["group_size"], &table["mode"]),
        (&4.into(), &32.into(), &"affine".into())
    );
    assert_eq!(table["model.embed_tokens"], json!({ "group_size": 32, "bits": 8 }));
    assert_eq!(table.as_object().unwrap().len(), 4);
    assert_eq!(Checkpoint::open(&made.folder).unwrap().spec.formats, ["f16", "mlx-q4g32", "mlx-q8g32"]);
    // And what is quantized is not quantized again.
    let again = Options { packing: Some(Packing { bits: 4, group_size: 32 }), ..Options::default() };
    let error = run(&writer.finish(), &again).map(drop).unwrap_err().to_string();
    assert!(error.contains("quantized already"), "{error}");
    // Another type for the scales loses digits, and says so.
    let narrow = Options { element: Some(ElementType::Bf16), ..Options::default() };
    let summary = run(&writer.finish(), &narrow).unwrap().summary;
    assert!(summary.rounded.0 > 0, "{summary:?}");
}

#[test]
fn floats_are_quantized_as_those_of_a_folder_are() {
    let source = Source::open("tiny-llama");
    let options = Options { packing: Some(Packing { bits: 4, group_size: 64 }), ..Options::default() };
    let made = run(&source.file("smollm", BF16).finish(), &options).unwrap_or_else(|error| panic!("{error}"));
    let found = Checkpoint::open(&made.folder).unwrap();
    let wanted = Checkpoint::open(&golden("tiny-llama-mlx-4bit")).unwrap();
    assert_eq!(found.tensors.len(), wanted.tensors.len());
    for tensor in &wanted.tensors {
        assert!(found.bytes(found.tensor(&tensor.name).unwrap()) == wanted.bytes(tensor), "{}", tensor.name);
    }
}

#[test]
fn norms_that_sixteen_bits_do_not_hold_stay_at_thirty_two() {
    let source = Source::open("tiny-llama");
    let writer =
        source.tensors().into_iter().fold(source.metadata("smollm"), |writer, (name, shape, bytes)| {
            let kind = if shape.len() == 1 { F32 } else { F16 };
            let mut data = cast(&bytes, kind);
            if name == "output_norm.weight" {
                data[..4].copy_from_slice(&1.000_000_1f32.to_le_bytes());
            }
            writer.tensor(&name, kind, &shape, data)
        });
    let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(made.summary.rounded, (0, 0));
    let found = Checkpoint::open(&made.folder).unwrap();
    assert_eq!(found.tensor("norm").unwrap().element, ElementType::F32);
}

#[test]
fn scaled_positions_are_kept() {
    let source = Source::open("tiny-llama");
    let scaling = |writer: GgufWriter| {
        let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
        Checkpoint::open(&made.folder).unwrap().spec.rope.scaling
    };
    use tensorfold_plugin_api::model_spec::RopeScaling;
    let base = || source.file("smollm", BF16);
    let linear = || base().float("llama.rope.scaling.factor", 4.0);
    assert_eq!(
        scaling(linear().text("llama.rope.scaling.type", "linear")),
        RopeScaling::Linear { factor: 4.0 }
    );
    assert_eq!(scaling(linear()), RopeScaling::Linear { factor: 4.0 }, "linear is what absence means");
    assert_eq!(scaling(linear().text("llama.rope.scaling.type", "none")), RopeScaling::None);
    let ones = [1f32; 32].map(f32::to_le_bytes).concat();
    assert_eq!(scaling(base().tensor("rope_freqs.weight", F32, &[32], ones)), RopeScaling::None);
    // As llama.cpp's tools compute them, in their own order of steps: theta 100,000, heads of 64, factor 8.
    let factors: Vec<u8> = (0..32)
        .map(|i| {
            let frequency = 1.0 / 100_000f32.powf(2.0 * i as f32 / 64.0);
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            let (low, high) = (8192.0 / 1.0, 8192.0 / 4.0);
            if wavelength < high {
                1.0
            } else if wavelength > low {
                8.0
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
                1.0 / ((1.0 - smooth) / 8.0 + smooth)
            }
        })
        .flat_map(f32::to_le_bytes)
        .collect();
    let found = scaling(base().tensor("rope_freqs.weight", F32, &[32], factors));
    let wanted = RopeScaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context: 8192,
    };
    assert_eq!(found, wanted);
}

/// A whole model of a few kilobytes.
fn smallest() -> GgufWriter {
    let mut writer = GgufWriter::new("qwen3")
        .integer("qwen3.block_count", 1)
        .integer("qwen3.context_length", 64)
        .integer("qwen3.embedding_length", 32)
        .integer("qwen3.feed_forward_length", 32)
        .integer("qwen3.attention.head_count", 2)
        .integer("qwen3.attention.head_count_kv", 1)
        .integer("qwen3.attention.key_length", 16)
        .float("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
        .text("qwen3.rope.scaling.type", "linear")
        .float("qwen3.rope.scaling.factor", 2.0)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &["a", "b", "ab", "<end>", "[PAD4]"])
        .integers("tokenizer.ggml.token_type", &[1, 1, 1, 3, 5])
        .texts("tokenizer.ggml.merges", &["a b"])
        .integer("tokenizer.ggml.eos_token_id", 3)
        .tensor("token_embd.weight", 8, &[5, 32], blocks(34, 5))
        .tensor("output_norm.weight", F32, &[32], vec![0; 128]);
    for (name, rows, columns) in [
        ("attn_q", 32, 32),
        ("attn_k", 16, 32),
        ("attn_v", 16, 32),
        ("attn_output", 32, 32),
        ("ffn_gate", 32, 32),
        ("ffn_up", 32, 32),
        ("ffn_down", 32, 32),
    ] {
        writer = writer.tensor(
            &format!("blk.0.{name}.weight"),
            3,
            &[rows, columns],
            blocks(20, (rows * columns / 32) as usize),
        );
    }
    for (name, length) in [("attn_norm", 32), ("ffn_norm", 32), ("attn_q_norm", 16), ("attn_k_norm", 16)] {
        writer = writer.tensor(&format!("blk.0.{name}.weight"), F32, &[length], vec![0; 4 * length as usize]);
    }
    writer
}

#[test]
fn the_smallest_model_is_sound() {
    let made = run(&smallest().finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Checkpoint::open(&made.folder).unwrap().spec.selectable_vocabulary, 4);
}

proptest::proptest! {
    /// What parses is planned or refused; nothing in between, whatever a file says.
    #[test]
    fn mutated_models_never_panic(
        changes in proptest::collection::vec((24usize..2200, proptest::prelude::any::<u8>()), 1..4),
    ) {
        let mut bytes = smallest().finish();
        for (at, value) in changes {
            bytes[at] = value;
        }
        if let Ok(file) = Gguf::parse(&bytes) {
            for packing in [None, Some(Packing { bits: 4, group_size: 32 })] {
                let _ = build(&file, &Options { packing, ..Options::default() });
            }
        }
    }
}
