//! Drafters as they lie on disk, and copies of them with one thing changed.

mod config;
mod mutations;
mod tensors;
mod vectors;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo-DFlash2");

/// A drafter of the goldens.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens/dflash").join(name).join("drafter")
}

/// A folder of a drafter's whose configuration and weights were changed.
fn copy(
    from: &Path,
    configure: impl FnOnce(&mut Value),
    weights: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>,
) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut config = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    configure(&mut config);
    fs::write(root.path().join("config.json"), config.to_string()).unwrap();
    if let Some(bytes) = weights(fs::read(from.join("model.safetensors")).unwrap()) {
        fs::write(root.path().join("model.safetensors"), bytes).unwrap();
    }
    root
}

/// The same with another configuration alone.
fn configured(from: &Path, configure: impl FnOnce(&mut Value)) -> Survey {
    survey(copy(from, configure, Some).path()).unwrap()
}

/// Everything that is wrong, in one line.
fn wrong(survey: &Survey) -> String {
    one_line(&survey.faults())
}
