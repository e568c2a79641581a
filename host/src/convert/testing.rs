//! What several tests of this module need.

use std::path::{Path, PathBuf};

use super::Progress;

/// Nobody is told.
pub(super) struct Silent;

impl Progress for Silent {
    fn begin(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

/// The folder of a golden checkpoint.
pub(super) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens").join(name)
}

/// Unit vectors: tensors by name.
pub(super) struct Vectors {
    bytes: Vec<u8>,
}

impl Vectors {
    pub(super) fn open(name: &str) -> Vectors {
        let path = golden("unit").join(name);
        Vectors { bytes: std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
    }

    pub(super) fn bytes(&self, tensor: &str) -> &[u8] {
        let file = safetensors::SafeTensors::deserialize(&self.bytes).unwrap();
        file.tensor(tensor).unwrap_or_else(|_| panic!("no tensor {tensor}")).data()
    }
}
