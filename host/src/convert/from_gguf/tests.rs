//! Files made of golden checkpoints, and back; and files that must be refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::Value as Json;

use super::super::gguf::testing::GgufWriter;
use super::super::testing::{Silent, golden};
use super::super::{ConvertError, Options, Stop, Summary, convert};
use super::*;
use crate::checkpoint::{Checkpoint, ElementType, Packing};
use crate::text::TextModel;

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
fn a_scale_that_is_no_number_is_refused() {
    let source = Source::open("tiny-llama");
    let writer =
        source.tensors().into_iter().fold(source.metadata("smollm"), |writer, (name, shape, bytes)| {
            if name != "blk.1.ffn_up.weight" {
                let kind = if shape.len() == 1 { F32 } else { F16 };
                return writer.tensor(&name, kind, &shape, cast(&bytes, kind));
            }
            let mut data = blocks(34, (shape[0] * shape[1] / 32) as usize);
            data[34..36].copy_from_slice(&f16::NAN.to_le_bytes());
            writer.tensor(&name, 8, &shape, data)
        });
    let error = refused(&writer);
    assert!(error.contains("blk.1.ffn_up.weight holds a scale that is no finite number"), "{error}");
}

#[test]
fn types_that_do_not_fit_are_all_counted() {
    let source = Source::open("tiny-llama");
    let q4_k = |name: &str| (name.to_owned(), 12u32, vec![1u64, 256], vec![0u8; 144]);
    let mut writer = source.metadata("smollm");
    for (name, kind, shape, data) in [
        q4_k("a"),
        q4_k("b"),
        ("c".into(), 14, vec![1, 256], vec![0; 210]),
        ("d".into(), 99, vec![5], vec![]),
    ] {
        writer = writer.tensor(&name, kind, &shape, data);
    }
    let writer = writer.tensor("token_embd.weight", F32, &[1024, 1], vec![0; 4096]);
    let error = refused(&writer);
    assert!(error.contains("Q4_K (2 tensors), Q6_K (1 tensor), number 99 (1 tensor);"), "{error}");
    assert!(error.contains("Q8_0 are converted: take such a file"), "{error}");
}

/// Whether a tensor may be left out of, or put into, a small file: refused in either case.
#[test]
fn tensors_that_are_missing_or_unknown_are_named() {
    let source = Source::open("tiny-llama");
    let without = |left_out: &str| {
        source
            .tensors()
            .into_iter()
            .filter(|(name, ..)| name != left_out)
            .fold(source.metadata("smollm"), |writer, (name, shape, bytes)| {
                writer.tensor(&name, BF16, &shape, bytes)
            })
    };
    let error = refused(&without("blk.2.ffn_down.weight"));
    assert!(error.contains("it lacks tensors of the model: blk.2.ffn_down.weight"), "{error}");
    let error = refused(&without("").tensor("blk.0.attn_q.bias", F32, &[192], vec![0; 768]));
    assert!(error.contains("(llama) is not known to have: blk.0.attn_q.bias"), "{error}");
    let error =
        refused(&without("output_norm.weight").tensor("output_norm.weight", F32, &[64], vec![0; 256]));
    assert!(error.contains("output_norm.weight has the shape [64]; the metadata asks for [192]"), "{error}");
}

#[test]
fn what_the_metadata_asks_for_and_is_not_computed_is_refused() {
    let source = Source::open("tiny-llama");
    let base = || source.file("smollm", BF16);
    for (writer, wanted) in [
        (GgufWriter::new("phi3"), "its architecture is \"phi3\"; llama, qwen2, qwen3 are converted"),
        (GgufWriter::default(), "general.architecture is missing"),
        (base().text("general.type", "adapter"), "general.type is \"adapter\""),
        (base().integer("split.count", 3), "one of 3 parts of a split file"),
        (base().integer("llama.expert_count", 8), "llama.expert_count is 8"),
        (base().integer("llama.attention.sliding_window", 4096), "llama.attention.sliding_window is 4096"),
        (base().float("llama.logit_scale", 0.5), "llama.logit_scale is 0.5"),
        (base().float("llama.attention.scale", 0.1), "llama.attention.scale is 0.1"),
        (base().boolean("llama.attention.causal", false), "llama.attention.causal is false"),
        (base().integer("llama.rope.dimension_count", 32), "llama.rope.dimension_count is 32"),
        (base().integer("llama.attention.value_length", 32), "llama.attention.value_length is 32"),
        (base().text("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.type is \"yarn\""),
        (base().integer("llama.attention.key_length", 63), "heads have the size 63"),
        (
            base().integer("tokenizer.ggml.padding_token_id", 4000),
            "padding_token_id is 4000, and there are 1000",
        ),
        (base().boolean("tokenizer.ggml.add_eos_token", true), "add_eos_token is true"),
        (
            base().tensor("rope_freqs.weight", F32, &[32], [3f32; 32].map(f32::to_le_bytes).concat()),
            "not those of Llama 3's rule",
        ),
        (base().tensor("rope_freqs.weight", F32, &[16], vec![0; 64]), "rope_freqs.weight has the type F32"),
    ] {
        let error = refused(&writer);
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
    let sizes = |key: &str, value: u32| {
        let names = ["block_count", "context_length", "embedding_length", "attention.head_count"];
        let mut writer = GgufWriter::new("llama");
        for name in names {
            writer = writer.integer(&format!("llama.{name}"), if name == key { value } else { 4 });
        }
        refused(&writer.tensor("token_embd.weight", F32, &[1, 1], vec![0; 4]))
    };
    assert!(sizes("block_count", u32::MAX).contains("at most 4096 are read"));
    assert!(sizes("embedding_length", 0).contains("llama.embedding_length is 0"));
    assert!(sizes("attention.head_count", 0).contains("llama.attention.head_count is 0"));
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

#[test]
fn tokenizers_give_the_ids_of_the_original_and_of_llama_cpp() {
    let read = |name: &str| -> Json {
        serde_json::from_slice(&std::fs::read(golden("expect").join(name)).unwrap()).unwrap()
    };
    let ids = |value: &Json| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let text_model = |checkpoint: &str, pre: &str, family: &str| {
        // The vocabulary of a hybrid in a file of a family that is converted.
        let mut source = Source::open(family);
        source.tokenizer = Source::open_tokenizer(&golden(checkpoint));
        let made = run(&source.file(pre, BF16).finish(), &Options::default())
            .unwrap_or_else(|error| panic!("{error}"));
        TextModel::load(&made.folder).unwrap()
    };
    let encode = |model: &TextModel, text: &str| -> Vec<u64> {
        model.encode(text, false).unwrap().into_iter().map(u64::from).collect()
    };
    let originals = read("text.json");
    for (key, pre, family) in [("llama", "smollm", "tiny-llama"), ("qwen", "qwen35", "tiny-qwen2")] {
        let model = text_model(originals[key]["checkpoint"].as_str().unwrap(), pre, family);
        let cases = originals[key]["encode"].as_array().unwrap();
        assert_eq!(cases.len(), 20);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            assert_eq!(encode(&model, text), ids(&case["ids"]), "{key}: {text:?}");
        }
    }
    let others = read("gguf-tokenizers.json");
    let texts: Vec<&str> =
        others["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let cases = others["cases"].as_array().unwrap();
    assert_eq!((texts.len(), cases.len()), (28, 7));
    for case in cases {
        let pre = case["pre"].as_str().unwrap();
        let checkpoint = case["tokenizer"].as_str().unwrap();
        let family = if checkpoint == "tiny-llama" { "tiny-llama" } else { "tiny-qwen2" };
        let model = text_model(checkpoint, pre, family);
        for (text, wanted) in texts.iter().zip(case["ids"].as_array().unwrap()) {
            // The originals of these two compose characters, as the files above show; llama.cpp does not.
            if matches!(pre, "qwen2" | "qwen35") && text.contains('\u{301}') {
                continue;
            }
            assert_eq!(encode(&model, text), ids(wanted), "{pre}: {text:?}");
        }
    }
}

impl Source {
    fn open_tokenizer(folder: &Path) -> Json {
        serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
    }
}

#[test]
fn sentencepiece_vocabularies_give_the_ids_of_the_original() {
    let golden: Json = serde_json::from_slice(
        &std::fs::read(super::super::testing::golden("expect/gguf-sentencepiece.json")).unwrap(),
    )
    .unwrap();
    let list = |key: &str| golden[key].as_array().unwrap();
    let tokens: Vec<&str> = list("tokens").iter().map(|token| token.as_str().unwrap()).collect();
    let types: Vec<i32> = list("types").iter().map(|kind| kind.as_i64().unwrap() as i32).collect();
    let scores: Vec<f32> = list("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect();
    let source = Source::open("tiny-llama");
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let other = |name: &str| format!("tokenizer.xxxx.{name}");
    let mut writer = source.file("smollm", BF16);
    for name in
        ["model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "add_bos_token"]
    {
        writer = writer.renamed(&key(name), &other(name));
    }
    let writer = writer
        .text(&key("model"), "llama")
        .texts(&key("tokens"), &tokens)
        .integers(&key("token_type"), &types)
        .floats(&key("scores"), &scores)
        .integer(&key("bos_token_id"), 1)
        .integer(&key("eos_token_id"), 2)
        .integer(&key("unknown_token_id"), 0);
    let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let model = TextModel::load(&made.folder).unwrap();
    assert_eq!(list("texts").len(), 34);
    for (text, wanted) in list("texts").iter().zip(list("ids")) {
        let text = text.as_str().unwrap();
        let wanted: Vec<u32> =
            wanted.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(model.encode(text, false).unwrap(), wanted, "{text:?}");
        // The file does not say, and models of this kind begin with their first token.
        assert_eq!(model.encode(text, true).unwrap(), [&[1], wanted.as_slice()].concat(), "{text:?}");
        let mut stream = model.detokenizer();
        let mut said: String = wanted.iter().map(|&id| stream.push(id)).collect();
        said += &stream.finish();
        if !text.contains("<s>") && !text.contains('\u{2581}') {
            assert_eq!(said, text);
        }
    }
}

#[test]
fn a_prompt_begins_as_the_file_says_or_as_its_kind_does() {
    let first = |pre: &str, says: Option<bool>| {
        let source = Source::open("tiny-llama");
        let (tokens, types) = tokens(&source.tokenizer);
        let whole = source.file(pre, BF16);
        let bytes = match says {
            Some(says) => whole.replaced_boolean("tokenizer.ggml.add_bos_token", says),
            None => whole.renamed("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_xyz_token"),
        }
        .finish();
        assert_eq!(tokens.len(), types.len());
        let made = run(&bytes, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
        TextModel::load(&made.folder).unwrap().encode("a", true).unwrap()[0]
    };
    let plain = first("smollm", None);
    assert_eq!(first("llama-bpe", None), 1);
    assert_eq!(first("smollm", Some(true)), 1);
    assert_eq!(first("llama-bpe", Some(false)), plain);
    assert_ne!(plain, 1);
}

#[test]
fn tokenizers_that_are_not_understood_are_refused() {
    let base = |pre: &str| Source::open("tiny-llama").file(pre, BF16);
    let error = refused(&base("tekken"));
    assert!(error.contains("tokenizer.ggml.pre is \"tekken\"") && error.contains("smollm"), "{error}");
    let rename = |key: &str| {
        base("smollm").renamed(&format!("tokenizer.ggml.{key}"), &format!("tokenizer.xxxx.{key}"))
    };
    for (key, wanted) in [
        ("pre", "tokenizer.ggml.pre is missing"),
        ("model", "tokenizer.ggml.model is missing"),
        ("tokens", "tokenizer.ggml.tokens is missing"),
        ("token_type", "tokenizer.ggml.token_type is missing"),
        ("merges", "tokenizer.ggml.merges is missing"),
        ("eos_token_id", "tokenizer.ggml.eos_token_id is missing"),
    ] {
        let error = refused(&rename(key));
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
    let with = |key: &str, values: &[&str]| {
        let key = format!("tokenizer.ggml.{key}");
        refused(&base("smollm").renamed(&key, &key.replace("ggml", "xxxx")).texts(&key, values))
    };
    assert!(with("merges", &["ab"]).contains("\"ab\", which is no pair"));
    assert!(
        with("merges", &["a notthere"]).contains("its tokenizer cannot be used"),
        "{}",
        with("merges", &["a zz"])
    );
    assert!(with("tokens", &["a", "b"]).contains("token_type has 1000 entries for 2 tokens"));
    let many: Vec<String> = (0..1025).map(|i| format!("t{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(with("tokens", &many).contains("1025 tokens and a vocabulary of 1024 rows"));
    let same: Vec<&str> = (0..1000).map(|_| "same").collect();
    assert!(with("tokens", &same).contains("tokens 0 and 1 are both \"same\""));
    let other = |model: &str| {
        base("smollm")
            .renamed("tokenizer.ggml.model", "tokenizer.xxxx.model")
            .text("tokenizer.ggml.model", model)
    };
    assert!(refused(&other("t5")).contains("tokenizer.ggml.model is \"t5\""));
    assert!(refused(&other("llama")).contains("tokenizer.ggml.scores is missing"));
    let cleaned = other("llama").boolean("tokenizer.ggml.remove_extra_whitespaces", true);
    assert!(refused(&cleaned).contains("remove_extra_whitespaces is true"));
    let scored = |scores: &[f32]| refused(&other("llama").floats("tokenizer.ggml.scores", scores));
    assert!(scored(&[0.0]).contains("scores has 1 entries for 1000 tokens"));
    assert!(scored(&[f32::NAN; 1000]).contains("numbers are needed"));
    let kinds = base("smollm")
        .renamed("tokenizer.ggml.token_type", "tokenizer.xxxx.token_type")
        .integers("tokenizer.ggml.token_type", &[9; 1000]);
    assert!(refused(&kinds).contains("1 to 6 are known"));
}

#[test]
fn rows_that_pad_the_vocabulary_are_no_tokens() {
    let mut source = Source::open("tiny-llama");
    source.tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "id": 1000, "content": "[PAD1000]", "special": true }));
    let (_, mut types) = tokens(&source.tokenizer);
    types[1000] = 5;
    let writer = source
        .file("smollm", BF16)
        .renamed("tokenizer.ggml.token_type", "tokenizer.xxxx.token_type")
        .integers("tokenizer.ggml.token_type", &types);
    let made = run(&writer.finish(), &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Checkpoint::open(&made.folder).unwrap().spec.selectable_vocabulary, 1000);
}

#[test]
fn a_broken_file_is_named_with_the_place() {
    let mut bytes = Source::open("tiny-llama").file("smollm", BF16).finish();
    bytes.truncate(bytes.len() / 2);
    let error = run(&bytes, &Options::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("is not a sound GGUF file") && error.contains("may be incomplete"), "{error}");
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
