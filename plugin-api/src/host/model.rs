//! What the host says of a model when an engine is planned or opened.

use crate::PluginError;
use crate::abi::{TF_MAX_RANK, TfEngineOptions, TfModel, TfStr, TfTensor};
use crate::drafter_spec::DrafterSpec;
use crate::model_spec::ModelSpec;
use crate::plugin::{Dtype, Packed};

/// One tensor of a [`TensorSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTensor {
    /// Canonical name; see [`crate::model_spec`].
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each axis, row-major; at most four.
    pub shape: Vec<u64>,
    /// How it is packed, if it is.
    pub packed: Option<Packed>,
    /// Where its bytes stand in the file.
    pub file_offset: u64,
    /// The open file, valid as long as the source.
    pub file_descriptor: Option<i32>,
}

/// Where tensors come from.
pub trait TensorSource: Send + Sync + 'static {
    /// The tensors.
    fn tensors(&self) -> &[ModelTensor];
    /// The bytes of a tensor, by its place in [`tensors`](TensorSource::tensors).
    fn bytes(&self, tensor: usize) -> &[u8];
}

/// Where a model's facts and bytes come from. An engine keeps its source until it is closed.
pub trait ModelSource: TensorSource {
    /// The facts.
    fn spec(&self) -> &ModelSpec;
}

/// Where a block drafter's facts and bytes come from. An engine keeps its source until it is
/// closed.
pub trait DrafterSource: TensorSource {
    /// The facts.
    fn spec(&self) -> &DrafterSpec;
}

/// How an engine is to be opened; see [`TfEngineOptions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSetup {
    /// Most lanes that may be open at once.
    pub lanes: u32,
    /// Most tokens that a lane may hold.
    pub context: u64,
    /// Most rows that one lane feeds in a round.
    pub rows: u32,
    /// Ranks that work together.
    pub world: u32,
    /// This process's rank.
    pub rank: u32,
    /// Element type of the key/value cache; empty: the plugin's choice.
    pub kv_dtype: String,
    /// Most bytes that the plugin may hold on the device.
    pub memory_limit: Option<u64>,
}

impl EngineSetup {
    pub(super) fn raw(&self) -> TfEngineOptions {
        TfEngineOptions {
            struct_size: size_of::<TfEngineOptions>() as u32,
            lanes: self.lanes,
            context: self.context,
            rows: self.rows,
            world: self.world,
            rank: self.rank,
            reserved: 0,
            kv_dtype: TfStr::new(&self.kv_dtype),
            memory_limit: self.memory_limit.unwrap_or(0),
        }
    }
}

/// The C form of a model or drafter, with what it points to.
pub(super) struct RawModel<'a> {
    spec: String,
    tensors: Vec<TfTensor>,
    _source: &'a dyn TensorSource,
}

impl<'a> RawModel<'a> {
    pub(super) fn of_model(
        source: &'a dyn ModelSource,
        with_bytes: bool,
    ) -> Result<RawModel<'a>, PluginError> {
        RawModel::new(source.spec().to_json(), source, with_bytes)
    }

    pub(super) fn of_drafter(
        source: &'a dyn DrafterSource,
        with_bytes: bool,
    ) -> Result<RawModel<'a>, PluginError> {
        RawModel::new(source.spec().to_json(), source, with_bytes)
    }

    fn new(
        spec: String,
        source: &'a dyn TensorSource,
        with_bytes: bool,
    ) -> Result<RawModel<'a>, PluginError> {
        let mut tensors = Vec::with_capacity(source.tensors().len());
        for (index, tensor) in source.tensors().iter().enumerate() {
            if tensor.shape.len() > TF_MAX_RANK {
                return Err(PluginError::invalid(format!(
                    "tensor {} has {} axes",
                    tensor.name,
                    tensor.shape.len()
                )));
            }
            let mut shape = [0; TF_MAX_RANK];
            shape[..tensor.shape.len()].copy_from_slice(&tensor.shape);
            let bytes = source.bytes(index);
            tensors.push(TfTensor {
                name: TfStr::new(&tensor.name),
                dtype: tensor.dtype.code(),
                rank: tensor.shape.len() as u32,
                shape,
                packed_bits: tensor.packed.map_or(0, |packed| packed.bits),
                packed_group: tensor.packed.map_or(0, |packed| packed.group),
                data: if with_bytes { bytes.as_ptr() } else { std::ptr::null() },
                bytes: bytes.len() as u64,
                id: index as u64,
                file_offset: tensor.file_offset,
                file_descriptor: tensor.file_descriptor.unwrap_or(-1),
                reserved: 0,
            });
        }
        Ok(RawModel { spec, tensors, _source: source })
    }

    pub(super) fn raw(&self) -> TfModel {
        TfModel {
            struct_size: size_of::<TfModel>() as u32,
            reserved: 0,
            spec: TfStr::new(&self.spec),
            tensors: self.tensors.as_ptr(),
            tensor_count: self.tensors.len() as u64,
        }
    }
}
