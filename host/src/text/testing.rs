//! Tokenizers that the tests of this folder share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokenizers::Tokenizer;

pub(super) const QWEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/tiny-qwen3_5");
pub(super) const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo");

/// The tokenizer of a folder, loaded once.
pub(super) fn tokenizer(folder: &'static str) -> Arc<Tokenizer> {
    static LOADED: Mutex<Vec<(&str, Arc<Tokenizer>)>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap();
    if let Some((_, tokenizer)) = loaded.iter().find(|(name, _)| *name == folder) {
        return Arc::clone(tokenizer);
    }
    let tokenizer = Arc::new(Tokenizer::from_file(Path::new(folder).join("tokenizer.json")).unwrap());
    loaded.push((folder, Arc::clone(&tokenizer)));
    tokenizer
}
