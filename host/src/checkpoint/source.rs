//! A checkpoint as the border hands it to a plugin.

use std::sync::Arc;

use tensorfold_plugin_api::host::{ModelSource, ModelTensor, TensorSource};
use tensorfold_plugin_api::model_spec::ModelSpec;
use tensorfold_plugin_api::plugin::{Dtype, Packed};

use super::{Checkpoint, ElementType, Tensor};

/// An open checkpoint with its tensors in the border's own terms. It stays mapped as long as
/// an engine uses it.
#[derive(Debug)]
pub struct CheckpointSource {
    checkpoint: Arc<Checkpoint>,
    spec: ModelSpec,
    tensors: Vec<ModelTensor>,
}

impl CheckpointSource {
    /// Wraps a checkpoint.
    pub fn new(checkpoint: Checkpoint) -> CheckpointSource {
        let tensors = checkpoint.tensors.iter().map(handed_on).collect();
        CheckpointSource { spec: checkpoint.spec.clone(), checkpoint: Arc::new(checkpoint), tensors }
    }

    /// The same files, described otherwise.
    pub fn with_spec(&self, spec: ModelSpec) -> CheckpointSource {
        CheckpointSource { checkpoint: Arc::clone(&self.checkpoint), spec, tensors: self.tensors.clone() }
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// A tensor in the border's own terms.
pub(crate) fn handed_on(tensor: &Tensor) -> ModelTensor {
    ModelTensor {
        name: tensor.name.clone(),
        dtype: dtype(tensor.element),
        shape: tensor.shape.clone(),
        packed: tensor.packing.map(|packing| Packed { bits: packing.bits, group: packing.group_size }),
        file_offset: tensor.offset,
        file_descriptor: None,
    }
}

fn dtype(element: ElementType) -> Dtype {
    match element {
        ElementType::Bf16 => Dtype::Bf16,
        ElementType::F16 => Dtype::F16,
        ElementType::F32 => Dtype::F32,
        ElementType::U32 => Dtype::U32,
    }
}

impl TensorSource for CheckpointSource {
    fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }

    fn bytes(&self, tensor: usize) -> &[u8] {
        self.checkpoint.bytes(&self.checkpoint.tensors[tensor])
    }
}

impl ModelSource for CheckpointSource {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_tensor_keeps_its_name_shape_and_bytes() {
        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo"));
        let source = CheckpointSource::new(Checkpoint::open(demo).unwrap());
        assert!(!source.tensors().is_empty());
        for (index, tensor) in source.tensors().iter().enumerate() {
            let elements: u64 = tensor.shape.iter().product();
            assert_eq!(source.bytes(index).len() as u64, elements * tensor.dtype.bytes(), "{}", tensor.name);
        }
        let embed = source.tensors().iter().find(|tensor| tensor.name == "embed").unwrap();
        assert_eq!(embed.packed, Some(Packed { bits: 4, group: 64 }));
    }
}
