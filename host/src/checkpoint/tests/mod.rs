//! Checkpoints as they lie on disk: those of the goldens, and copies of them with one thing changed.

mod dense;
mod experts;
mod files;
mod hybrid;

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::*;

macro_rules! golden {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/", $name)
    };
}
pub(crate) use golden;

const HF: &str = golden!("tiny-qwen3_5");
const MLX: &str = golden!("tiny-qwen3_5-mlx-4bit");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo");
const DRAFTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo-DFlash2");

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(Path::new(path)).unwrap_or_else(|error| panic!("{error}"))
}

/// A copy of a checkpoint's folder with one file changed.
fn changed(path: &str, name: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(path).unwrap().flatten() {
        fs::copy(entry.path(), root.path().join(entry.file_name())).unwrap();
    }
    let file = root.path().join(name);
    fs::write(&file, change(fs::read(&file).unwrap_or_default())).unwrap();
    root
}

fn refused(path: &str, from: &str, to: &str) -> String {
    let root = changed(path, "config.json", |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "{from}");
        text.replace(from, to).into_bytes()
    });
    Checkpoint::open(root.path()).expect_err(to).to_string()
}

/// A safetensors file with tensors renamed, or dropped for `None`.
fn renamed(bytes: &[u8], rename: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let tensors = file.iter().filter_map(|(name, view)| Some((rename(name)?, view)));
    safetensors::serialize(tensors, None).unwrap()
}

/// A file of weights with its tensors changed.
fn rewritten(bytes: &[u8], change: impl Fn(&str, Stored) -> Vec<(String, Stored)>) -> Vec<u8> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let stored = file.iter().flat_map(|(name, view)| {
        let (dtype, shape, bytes) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        change(name, Stored { dtype, shape, bytes })
    });
    let stored: Vec<(String, Stored)> = stored.collect();
    let views = stored.iter().map(|(name, tensor)| {
        let view = safetensors::tensor::TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (name, view.unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// One tensor of a file.
struct Stored {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Opens a copy of a checkpoint with keys of its text model's configuration set, or taken away for null.
fn configured(path: &str, keys: &[(&str, Value)]) -> Result<Checkpoint, String> {
    let root = changed(path, "config.json", |bytes| {
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        let nested = config.get("text_config").is_some();
        let text = if nested { &mut config["text_config"] } else { &mut config };
        for (key, value) in keys {
            text[*key] = value.clone();
        }
        config.to_string().into_bytes()
    });
    Checkpoint::open(root.path()).map_err(|error| error.to_string())
}

/// Every one of these configurations is refused with these words, and the checkpoint is not without the change.
#[track_caller]
fn each_is_refused(path: &str, cases: &[(&str, Value, &str)]) {
    open(path);
    for (key, value, wanted) in cases {
        let error = configured(path, &[(key, value.clone())]).err();
        let error = error.unwrap_or_else(|| panic!("{path} opens with {key} {value}"));
        assert!(error.contains(wanted), "{key} {value}: wanted {wanted:?} in {error:?}");
    }
}
