//! A drafter as the border hands it to a plugin.

use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::host::{DrafterSource, ModelTensor, TensorSource};

use super::Drafter;
use crate::checkpoint::parts::handed_on;

/// An open drafter with its tensors in the border's own terms. It stays mapped as long as an engine uses it.
#[derive(Debug)]
pub struct DrafterFiles {
    drafter: Drafter,
    tensors: Vec<ModelTensor>,
}

impl DrafterFiles {
    /// Wraps a drafter.
    pub fn new(drafter: Drafter) -> DrafterFiles {
        let tensors = drafter.tensors.iter().map(handed_on).collect();
        DrafterFiles { drafter, tensors }
    }

    /// The drafter.
    pub fn drafter(&self) -> &Drafter {
        &self.drafter
    }
}

impl TensorSource for DrafterFiles {
    fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }

    fn bytes(&self, tensor: usize) -> &[u8] {
        self.drafter.bytes(&self.drafter.tensors[tensor])
    }
}

impl DrafterSource for DrafterFiles {
    fn spec(&self) -> &DrafterSpec {
        &self.drafter.spec
    }
}
