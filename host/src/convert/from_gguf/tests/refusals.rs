//! Files that are not converted, and what is said of them.

use half::f16;

use super::super::super::Options;
use super::super::super::gguf::testing::GgufWriter;
use super::{BF16, F16, F32, Source, blocks, cast, refused, run};

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
fn a_broken_file_is_named_with_the_place() {
    let mut bytes = Source::open("tiny-llama").file("smollm", BF16).finish();
    bytes.truncate(bytes.len() / 2);
    let error = run(&bytes, &Options::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("is not a sound GGUF file") && error.contains("may be incomplete"), "{error}");
}
