//! Every file of the fuzzers' corpora through the functions that the fuzzers
//! call, on any tool chain.

#[path = "fuzz/src/lib.rs"]
mod fuzz;

use std::path::{Path, PathBuf};

use fuzz::Scratch;

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Runs a target on its corpus. Files named `good-...` must be accepted, and
/// with them whatever a target does after it accepted; each must also be
/// refused when its second half is missing, so that accepting means something.
fn replay(target: &str, run: impl Fn(&Scratch, &[u8]) -> Result<(), String>) {
    let scratch = Scratch::new();
    let mut good = 0;
    for path in corpus(target) {
        let input = std::fs::read(&path).unwrap();
        let outcome = run(&scratch, &input);
        if path.file_name().unwrap().to_string_lossy().starts_with("good-") {
            good += 1;
            assert_eq!(outcome, Ok(()), "{}", path.display());
            let half = run(&scratch, &input[..input.len() / 2]).expect_err("half a file is refused");
            assert!(!half.is_empty(), "{}", path.display());
        }
    }
    assert!(good > 0, "the corpus of {target} holds nothing that must be accepted");
}

#[test]
fn weight_files_and_indices() {
    replay("safetensors", fuzz::safetensors);
}

#[test]
fn configurations() {
    replay("config", fuzz::config);
}

#[test]
fn configurations_of_drafters() {
    replay("drafter", fuzz::drafter);
}

#[test]
fn tokenizers_and_templates() {
    replay("tokenizer", fuzz::tokenizer);
}

#[test]
fn manifests_and_libraries() {
    replay("manifest", |_, input| fuzz::manifest(input));
}

#[test]
fn gguf_files() {
    replay("gguf", fuzz::gguf);
}
