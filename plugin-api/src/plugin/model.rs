//! A model, as a plugin sees it.

use super::PluginError;
use super::host::text;
use crate::abi::{
    TF_DTYPE_BF16, TF_DTYPE_F16, TF_DTYPE_F32, TF_DTYPE_U8, TF_DTYPE_U32, TF_MAX_RANK, TfEngineOptions,
    TfModel, TfProgress, TfStr, TfTensor,
};
use crate::drafter_spec::DrafterSpec;
use crate::model_spec::ModelSpec;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Unsigned 32-bit integer; packed codes.
    U32,
    /// Unsigned byte.
    U8,
}

impl Dtype {
    const TABLE: [(Dtype, u32, u64, &'static str); 5] = [
        (Dtype::F32, TF_DTYPE_F32, 4, "f32"),
        (Dtype::F16, TF_DTYPE_F16, 2, "f16"),
        (Dtype::Bf16, TF_DTYPE_BF16, 2, "bf16"),
        (Dtype::U32, TF_DTYPE_U32, 4, "u32"),
        (Dtype::U8, TF_DTYPE_U8, 1, "u8"),
    ];

    fn row(self) -> &'static (Dtype, u32, u64, &'static str) {
        Dtype::TABLE.iter().find(|row| row.0 == self).expect("the table lists every variant")
    }

    /// From the raw constant; `None` for types this build does not know.
    pub fn from_code(code: u32) -> Option<Dtype> {
        Dtype::TABLE.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    /// The raw constant.
    pub fn code(self) -> u32 {
        self.row().1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        self.row().2
    }

    /// The name, such as `bf16`.
    pub fn name(self) -> &'static str {
        self.row().3
    }
}

/// How a packed matrix is packed (MLX affine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    /// Bits of a code.
    pub bits: u32,
    /// Weights that share a scale and a bias.
    pub group: u32,
}

/// Bytes of a tensor in a mapped file: valid until the engine they were handed to is closed.
#[derive(Clone, Copy, Debug)]
pub struct TensorBytes {
    data: *const u8,
    length: usize,
}

// SAFETY: the bytes are mapped read-only; nobody writes to them while the engine is open.
unsafe impl Send for TensorBytes {}
// SAFETY: as above.
unsafe impl Sync for TensorBytes {}

impl TensorBytes {
    /// Bytes that live as long as the program, for tests.
    pub fn from_static(bytes: &'static [u8]) -> TensorBytes {
        TensorBytes { data: bytes.as_ptr(), length: bytes.len() }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, with no promise about alignment.
    ///
    /// # Safety
    /// The result must not be used after the engine that it was handed to is closed: keep it in
    /// the engine, which is dropped at that moment, and nowhere else.
    pub unsafe fn get(self) -> &'static [u8] {
        // SAFETY: the host keeps the mapping until the engine is closed, and the caller promises
        // not to use it longer.
        unsafe { crate::abi::slice(self.data, self.length as u64) }
    }
}

/// One tensor of the checkpoint.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Canonical name; see [`crate::model_spec`].
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each axis, row-major.
    pub shape: Vec<u64>,
    /// How it is packed, if it is.
    pub packed: Option<Packed>,
    /// The bytes; `None` in a plan.
    pub data: Option<TensorBytes>,
    /// Number of bytes.
    pub bytes: u64,
    /// For [`Host::tensor_read`](super::Host::tensor_read).
    pub id: u64,
    /// Where the bytes stand in the file.
    pub file_offset: u64,
    /// The open file, for direct reads.
    pub file_descriptor: Option<i32>,
}

/// A model: its facts and its tensors.
pub struct Model<'a> {
    /// The facts.
    pub spec: ModelSpec,
    /// The tensors, sorted by name.
    pub tensors: Vec<Tensor<'a>>,
}

impl<'a> Model<'a> {
    /// A model from parts, for tests.
    pub fn new(spec: ModelSpec, mut tensors: Vec<Tensor<'a>>) -> Model<'a> {
        tensors.sort_by(|a, b| a.name.cmp(b.name));
        Model { spec, tensors }
    }

    /// The tensor of a canonical name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.binary_search_by(|tensor| tensor.name.cmp(name)).ok().map(|at| &self.tensors[at])
    }

    /// # Safety
    /// `raw` must follow the contract of [`TfModel`] for the duration of `'a`.
    pub(super) unsafe fn from_raw(raw: &'a TfModel) -> Result<Model<'a>, PluginError> {
        // SAFETY: the caller's promise, here and below.
        let spec = ModelSpec::from_json(unsafe { text(raw.spec)? })
            .map_err(|error| PluginError::invalid(error.to_string()))?;
        // SAFETY: as above.
        Ok(Model::new(spec, unsafe { tensors_from_raw(raw)? }))
    }
}

/// An external block drafter: its facts and its tensors.
pub struct Drafter<'a> {
    /// The facts.
    pub spec: DrafterSpec,
    /// The tensors, sorted by name.
    pub tensors: Vec<Tensor<'a>>,
}

impl<'a> Drafter<'a> {
    /// A drafter from parts, for tests.
    pub fn new(spec: DrafterSpec, mut tensors: Vec<Tensor<'a>>) -> Drafter<'a> {
        tensors.sort_by(|a, b| a.name.cmp(b.name));
        Drafter { spec, tensors }
    }

    /// # Safety
    /// `raw` must follow the contract of [`TfModel`] for the duration of `'a`.
    pub(super) unsafe fn from_raw(raw: &'a TfModel) -> Result<Drafter<'a>, PluginError> {
        // SAFETY: the caller's promise, here and below.
        let spec = DrafterSpec::from_json(unsafe { text(raw.spec)? })
            .map_err(|error| PluginError::invalid(error.to_string()))?;
        // SAFETY: as above.
        Ok(Drafter::new(spec, unsafe { tensors_from_raw(raw)? }))
    }
}

/// # Safety
/// `raw` must follow the contract of [`TfModel`] for the duration of `'a`.
unsafe fn tensors_from_raw<'a>(raw: &'a TfModel) -> Result<Vec<Tensor<'a>>, PluginError> {
    // SAFETY: the caller's promise, here and below.
    let raw_tensors = unsafe { crate::abi::slice(raw.tensors, raw.tensor_count) };
    let mut tensors = Vec::with_capacity(raw_tensors.len());
    for tensor in raw_tensors {
        // SAFETY: as above.
        tensors.push(unsafe { tensor_from_raw(tensor)? });
    }
    Ok(tensors)
}

/// # Safety
/// `raw` must follow the contract of [`TfTensor`].
unsafe fn tensor_from_raw<'a>(raw: &TfTensor) -> Result<Tensor<'a>, PluginError> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(raw.name)? };
    let Some(dtype) = Dtype::from_code(raw.dtype) else {
        return Err(PluginError::unsupported(format!("tensor {name} has unknown type {}", raw.dtype)));
    };
    if raw.rank as usize > TF_MAX_RANK {
        return Err(PluginError::invalid(format!("tensor {name} has {} axes", raw.rank)));
    }
    let shape = raw.shape[..raw.rank as usize].to_vec();
    let elements = shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
    if elements.and_then(|count| count.checked_mul(dtype.bytes())) != Some(raw.bytes) {
        return Err(PluginError::invalid(format!(
            "tensor {name} of shape {shape:?} and type {} has {} bytes",
            dtype.name(),
            raw.bytes
        )));
    }
    let packed = (raw.packed_bits != 0).then_some(Packed { bits: raw.packed_bits, group: raw.packed_group });
    let data = (!raw.data.is_null()).then_some(TensorBytes { data: raw.data, length: raw.bytes as usize });
    let file_descriptor = (raw.file_descriptor >= 0).then_some(raw.file_descriptor);
    Ok(Tensor {
        name,
        dtype,
        shape,
        packed,
        data,
        bytes: raw.bytes,
        id: raw.id,
        file_offset: raw.file_offset,
        file_descriptor,
    })
}

/// How an engine is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions<'a> {
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
    pub kv_dtype: &'a str,
    /// Most bytes that the plugin may hold on the device.
    pub memory_limit: Option<u64>,
}

impl<'a> EngineOptions<'a> {
    /// # Safety
    /// `raw` must follow the contract of [`TfEngineOptions`] for the duration of `'a`.
    pub(super) unsafe fn from_raw(raw: &'a TfEngineOptions) -> Result<EngineOptions<'a>, PluginError> {
        if raw.lanes == 0 || raw.context == 0 || raw.rows == 0 || raw.world == 0 || raw.rank >= raw.world {
            return Err(PluginError::invalid(format!(
                "engine options make no sense: {} lanes, context {}, {} rows, rank {} of {}",
                raw.lanes, raw.context, raw.rows, raw.rank, raw.world
            )));
        }
        Ok(EngineOptions {
            lanes: raw.lanes,
            context: raw.context,
            rows: raw.rows,
            world: raw.world,
            rank: raw.rank,
            // SAFETY: the caller's promise.
            kv_dtype: unsafe { text(raw.kv_dtype)? },
            memory_limit: (raw.memory_limit != 0).then_some(raw.memory_limit),
        })
    }
}

/// Where to report how far a long call is.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    raw: Option<&'a TfProgress>,
}

impl<'a> Progress<'a> {
    /// Reports go nowhere.
    pub const fn silent() -> Progress<'a> {
        Progress { raw: None }
    }

    /// # Safety
    /// `raw` must be null or follow the contract of [`TfProgress`] for the duration of `'a`.
    pub(super) unsafe fn from_raw(raw: *const TfProgress) -> Progress<'a> {
        // SAFETY: the caller's promise.
        let raw = unsafe { raw.as_ref() };
        Progress { raw: raw.filter(|raw| raw.struct_size as usize >= size_of::<TfProgress>()) }
    }

    /// `done` of `total` bytes; `what` is being done.
    ///
    /// # Errors
    /// [`Status::Cancelled`](super::Status::Cancelled) when the host wants the call to end.
    pub fn report(&self, done: u64, total: u64, what: &str) -> Result<(), PluginError> {
        let Some((raw, report)) = self.raw.and_then(|raw| Some((raw, raw.report?))) else {
            return Ok(());
        };
        // SAFETY: the contract of the progress struct; `what` is borrowed for the call.
        if unsafe { report(raw.context, done, total, TfStr::new(what)) } == 0 {
            Ok(())
        } else {
            Err(PluginError::new(super::Status::Cancelled, format!("cancelled while {what}")))
        }
    }
}
