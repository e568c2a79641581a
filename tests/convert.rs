//! `tensorfold convert` as a program: what it makes is served, and what it refuses leaves no trace.

mod support;

#[path = "../host/src/convert/gguf/testing.rs"]
#[allow(dead_code, reason = "the unit tests use the rest")]
mod gguf;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gguf::GgufWriter;
use serde_json::json;
use support::replies::{COMPLETIONS, ids, start, token_sha, wait_until};
use support::{Sandbox, json as parse, workspace};

fn golden(name: &str) -> PathBuf {
    workspace().join("tests/goldens").join(name)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_converted_is_served_as_the_references_have_it() {
    let sandbox = Sandbox::new();
    let output = sandbox.here().join("converted");
    let done = sandbox
        .tensorfold(["convert"])
        .arg(golden("tiny-qwen3_5"))
        .args(["converted", "--bits", "4", "--group-size", "64"])
        .run();
    done.exits(0);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[0], "converted: qwen3_5, 2.1 million parameters, 1192772 bytes in 2 weight files");
    // One was added to 18 norms, which rounds all but a happy few.
    assert!(lines.contains(&"quantized to mlx-q4g64: 41 tensors"), "{}", done.stdout);
    assert!(done.stdout.contains("rounded: 18 tensors ("), "{}", done.stdout);
    assert!(done.stdout.contains("note: the multi-token prediction head"), "{}", done.stdout);
    assert!(done.stderr.starts_with("[tensorfold] converting "), "{}", done.stderr);
    assert_eq!(names(&sandbox.here()), ["converted"]);
    assert!(names(&output).contains(&"chat_template.jinja".to_owned()));

    let golden = std::fs::read_to_string(golden("expect/tiny-qwen3_5-mlx-4bit.json")).unwrap();
    let golden = parse(&golden);
    let server = start(&sandbox, &output, &[]);
    for prompt in golden["prompts"].as_array().unwrap() {
        let body = json!({ "prompt": prompt["ids"], "max_tokens": 64, "temperature": 0, "ignore_eos": true });
        let reply = server.whole(COMPLETIONS, &body);
        assert_eq!(reply.token_sha, token_sha(&ids(&prompt["greedy"])), "{reply:?}");
    }
}

#[test]
fn refusals_are_one_line_and_leave_nothing() {
    let sandbox = Sandbox::new();
    let source = golden("tiny-qwen3_5");
    let source = source.to_str().unwrap();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let outcome = sandbox.tensorfold(["convert"]).args(arguments).run();
        outcome.exits(1);
        // The line before it says what was begun.
        let line = outcome.stderr.lines().last().unwrap();
        assert!(line.starts_with("tensorfold: "), "{line}");
        for part in parts {
            assert!(line.contains(part), "wanted {part:?} in {line:?}");
        }
    };
    refused(&["absent.gguf", "out"], &["absent.gguf: there is no such file"]);
    refused(&["absent", "out"], &["absent is neither a directory nor a Hugging Face repo id"]);
    refused(&[source, "a/out"], &["there is no folder a to make it in"]);
    let packed = golden("tiny-qwen3_5-mlx-4bit");
    refused(&[packed.to_str().unwrap(), "out", "--bits", "4"], &["is packed already (mlx-q4g64)"]);
    let broken = sandbox.file("broken.gguf", b"GGUF\x03\0\0\0 not quite");
    refused(&[broken.to_str().unwrap(), "out"], &["broken.gguf is not a sound GGUF file"]);
    let other = sandbox.file("other.gguf", GgufWriter::new("mamba").finish());
    refused(&[other.to_str().unwrap(), "out"], &["its architecture is \"mamba\""]);
    let text = sandbox.file("notes.txt", "not a model");
    refused(&[text.to_str().unwrap(), "out"], &["it does not begin with GGUF"]);
    assert!(sandbox.traces_left().is_empty(), "{:?}", sandbox.traces_left());
}

#[test]
fn an_existing_folder_is_replaced_by_force_alone() {
    let sandbox = Sandbox::new();
    let source = golden("tiny-llama");
    let convert = |flags: &[&str]| sandbox.tensorfold(["convert"]).arg(&source).arg("out").args(flags).run();
    convert(&[]).exits(0);
    let first = std::fs::read(sandbox.here().join("out/model.safetensors")).unwrap();
    let again = convert(&["--bits", "4"]);
    again.exits(1);
    assert!(again.stderr.contains("out: it exists already"), "{}", again.stderr);
    assert_eq!(std::fs::read(sandbox.here().join("out/model.safetensors")).unwrap(), first);
    convert(&["--bits", "4", "--force"]).exits(0);
    assert_ne!(std::fs::read(sandbox.here().join("out/model.safetensors")).unwrap(), first);
    assert_eq!(names(&sandbox.here()), ["out"]);
    // A folder with anything else in it is nobody's to delete.
    std::fs::create_dir(sandbox.here().join("out/photos")).unwrap();
    let kept = convert(&["--force"]);
    kept.exits(1);
    assert!(kept.stderr.contains("--force does not replace it"), "{}", kept.stderr);
    assert!(sandbox.here().join("out/photos").is_dir());
}

#[test]
fn usage_errors_end_with_2() {
    let sandbox = Sandbox::new();
    for arguments in [&["convert"][..], &["convert", "a"], &["convert", "a", "b", "--bits", "7"]] {
        let outcome = sandbox.tensorfold(arguments).run();
        outcome.exits(2);
        assert!(outcome.stderr.contains("usage: tensorfold convert SOURCE OUTPUT"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("tensorfold convert: error: "), "{}", outcome.stderr);
    }
}

/// A sound model of a gigabyte of zeros, most of which is no block on the disk.
fn large_model(sandbox: &Sandbox) -> PathBuf {
    const HIDDEN: u64 = 64;
    let vector = |count: u64| vec![0; 4 * count as usize];
    let mut writer = GgufWriter::new("llama")
        .integer("llama.block_count", 1)
        .integer("llama.context_length", 64)
        .integer("llama.embedding_length", HIDDEN as u32)
        .integer("llama.feed_forward_length", 32)
        .integer("llama.attention.head_count", 1)
        .float("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", &["a"])
        .integers("tokenizer.ggml.token_type", &[3])
        .texts::<&str>("tokenizer.ggml.merges", &[])
        .integer("tokenizer.ggml.eos_token_id", 0);
    for (name, rows) in [
        ("attn_q", HIDDEN),
        ("attn_k", HIDDEN),
        ("attn_v", HIDDEN),
        ("attn_output", HIDDEN),
        ("ffn_gate", 32),
        ("ffn_up", 32),
    ] {
        let name = format!("blk.0.{name}.weight");
        writer = writer.tensor(&name, 0, &[rows, HIDDEN], vector(rows * HIDDEN));
    }
    let rows = 1u64 << 22;
    let file = writer
        .tensor("blk.0.ffn_down.weight", 0, &[HIDDEN, 32], vector(HIDDEN * 32))
        .tensor("blk.0.attn_norm.weight", 0, &[HIDDEN], vector(HIDDEN))
        .tensor("blk.0.ffn_norm.weight", 0, &[HIDDEN], vector(HIDDEN))
        .tensor("output_norm.weight", 0, &[HIDDEN], vector(HIDDEN))
        .tensor("token_embd.weight", 0, &[rows, HIDDEN], vec![])
        .finish();
    let path = sandbox.file("large.gguf", &file);
    let length = (file.len() as u64).next_multiple_of(32) + 4 * rows * HIDDEN;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    path
}

#[test]
fn a_signal_in_the_middle_leaves_nothing_and_is_told_by_the_code() {
    let sandbox = Sandbox::new();
    let source = large_model(&sandbox);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command =
            sandbox.tensorfold(["convert"]).arg(&source).args(["out", "--bits", "4"]).into_command();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut begun = String::new();
        stderr.read_line(&mut begun).unwrap();
        // It writes beside the place of its output.
        wait_until("something is written", || {
            names(&sandbox.here()).iter().any(|name| name.starts_with(".out.converting-"))
        });
        // SAFETY: signals the process that this test started and has not waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal), "{begun}{said}");
        assert_eq!(said, format!("tensorfold: stopped by signal {signal}; nothing was written\n"));
        assert!(names(&sandbox.here()).is_empty(), "{:?}", names(&sandbox.here()));
    }
}
