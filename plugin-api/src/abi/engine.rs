//! `tensorfold.engine/1`: one loaded model on one device.

use std::ffi::c_void;

use super::{TfError, TfRound, TfRoundResult, TfStr};

/// A number that is not known or not counted. Never stands for zero.
pub const TF_UNKNOWN: u64 = u64::MAX;

/// Element type: 32-bit float.
pub const TF_DTYPE_F32: u32 = 1;
/// Element type: 16-bit float, IEEE half.
pub const TF_DTYPE_F16: u32 = 2;
/// Element type: 16-bit float, bfloat.
pub const TF_DTYPE_BF16: u32 = 3;
/// Element type: unsigned 32-bit integer (packed codes).
pub const TF_DTYPE_U32: u32 = 4;
/// Element type: unsigned byte.
pub const TF_DTYPE_U8: u32 = 5;

/// Axes that a [`TfTensor`] can have.
pub const TF_MAX_RANK: usize = 4;

/// One tensor of the checkpoint.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfTensor {
    /// Canonical name, as listed in the crate's `model_spec` module.
    pub name: TfStr,
    /// One of `TF_DTYPE_*`.
    pub dtype: u32,
    /// Axes in use.
    pub rank: u32,
    /// Extent of each axis, row-major; unused ones are 0.
    pub shape: [u64; TF_MAX_RANK],
    /// Bits of a code when the tensor is packed (MLX affine): `shape` is then that of the packed
    /// words; 0: plain.
    pub packed_bits: u32,
    /// Weights that share a scale and a bias; 0: plain.
    pub packed_group: u32,
    /// The bytes, mapped read-only and valid until the engine is closed. No alignment is
    /// promised. Null in `plan`.
    pub data: *const u8,
    /// Bytes.
    pub bytes: u64,
    /// Identifies the tensor in calls of the host table.
    pub id: u64,
    /// Where the bytes stand in the file.
    pub file_offset: u64,
    /// The open file, borrowed until the engine is closed, for direct reads; -1: none.
    pub file_descriptor: i32,
    /// Zero.
    pub reserved: u32,
}

/// A model: its facts and its tensors.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfModel {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// The model description as JSON (the crate's `ModelSpec`).
    pub spec: TfStr,
    /// The tensors, in no particular order.
    pub tensors: *const TfTensor,
    /// Entries of `tensors`.
    pub tensor_count: u64,
}

/// How an engine is to be opened.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfEngineOptions {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Most lanes that may be open at once.
    pub lanes: u32,
    /// Most tokens that a lane may hold.
    pub context: u64,
    /// Most rows that one lane feeds in a round; prompt chunks are not longer.
    pub rows: u32,
    /// Ranks that work together; 1: alone.
    pub world: u32,
    /// This process's rank, from 0.
    pub rank: u32,
    /// Zero.
    pub reserved: u32,
    /// Element type of the key/value cache as spelt in manifests; empty: the plugin's choice.
    pub kv_dtype: TfStr,
    /// Most bytes that the plugin may hold on the device; 0: no limit but the device's.
    pub memory_limit: u64,
}

/// What an engine will hold, in bytes. Arithmetic only: nothing is read or allocated for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfMemoryPlan {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Lanes that fit beside each other, at most as many as were asked for.
    pub lanes: u32,
    /// Weights that are copied or repacked.
    pub weight_bytes: u64,
    /// Weights that stay in the mapped files.
    pub mapped_bytes: u64,
    /// One lane at the full context.
    pub lane_bytes: u64,
    /// Working memory, once an engine.
    pub scratch_bytes: u64,
    /// A snapshot of an empty lane.
    pub snapshot_bytes: u64,
    /// What a snapshot grows by with every token that it holds.
    pub snapshot_token_bytes: u64,
    /// Memory that may be used now; [`TF_UNKNOWN`] when nobody knows.
    pub available_bytes: u64,
}

/// Reports progress of a long call; called on the calling thread.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfProgress {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Handed back with every report.
    pub context: *mut c_void,
    /// `done` of `total` bytes, and what is being done. Returns 1 when the call should end with
    /// `cancelled`. May be null.
    pub report: Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64, what: TfStr) -> u8>,
}

/// Facts of an open engine that do not change.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfEngineInfo {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Lanes that can be open at once.
    pub lanes: u32,
    /// Tokens that a lane can hold.
    pub context: u64,
    /// Rows of a prompt chunk that the engine likes best; a multiple of 64.
    pub prefill_rows: u32,
    /// Most rows of one lane whose draw can be wanted in a round.
    pub output_rows: u32,
    /// One line about how the engine runs, for the log. Owned by the engine.
    pub description: TfStr,
}

/// What an engine holds now, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfEngineMemory {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// All memory of the device held by the engine.
    pub used_bytes: u64,
    /// The most it ever held.
    pub peak_bytes: u64,
    /// Thereof lanes.
    pub lane_bytes: u64,
    /// Thereof snapshots.
    pub snapshot_bytes: u64,
}

/// Counts since the engine was opened. [`TF_UNKNOWN`] stands for "not counted".
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfEngineStats {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Calls of `round` that succeeded.
    pub rounds: u64,
    /// Rows that went through the model.
    pub rows: u64,
    /// Tokens drawn.
    pub drawn: u64,
    /// Drafts that were verified.
    pub verified: u64,
    /// Drafts thereof that were accepted.
    pub accepted: u64,
}

/// A kept state of a lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfSnapshot {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Names the snapshot; never 0.
    pub snapshot: u64,
    /// Tokens that it holds.
    pub position: u64,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// `tensorfold.engine/1`. No function may be null; one that the plugin cannot do returns
/// `unsupported`.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfEngineV1 {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// `[any]` What `open_engine` would hold. Pure arithmetic on the model's facts; tensors come
    /// without bytes. Fails where `open_engine` would refuse the model.
    pub plan: Option<
        unsafe extern "C" fn(
            device: u64,
            model: *const TfModel,
            options: *const TfEngineOptions,
            plan: *mut TfMemoryPlan,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[control]` Loads a model; `engine` receives a handle, never 0. The tensors' bytes stay
    /// valid until `close`; `model`, `options` and `progress` are borrowed for the call.
    pub open_engine: Option<
        unsafe extern "C" fn(
            device: u64,
            model: *const TfModel,
            options: *const TfEngineOptions,
            progress: *const TfProgress,
            engine: *mut u64,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[any]` Facts of the engine.
    pub info: Option<unsafe extern "C" fn(engine: u64, info: *mut TfEngineInfo, error: *mut TfError) -> i32>,
    /// `[engine]` Opens a lane with no tokens; `lane` receives a handle, never 0.
    pub lane_open: Option<unsafe extern "C" fn(engine: u64, lane: *mut u64, error: *mut TfError) -> i32>,
    /// `[engine]` Closes a lane and frees what it held.
    pub lane_close: Option<unsafe extern "C" fn(engine: u64, lane: u64, error: *mut TfError) -> i32>,
    /// `[engine]` One step for all lanes named: feeds, draws, verifies, commits, rolls back and
    /// drafts. `result` is laid out by the host.
    pub round: Option<
        unsafe extern "C" fn(
            engine: u64,
            round: *const TfRound,
            result: *mut TfRoundResult,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[engine]` Keeps the state of a lane, which stays as it is.
    pub snapshot: Option<
        unsafe extern "C" fn(engine: u64, lane: u64, snapshot: *mut TfSnapshot, error: *mut TfError) -> i32,
    >,
    /// `[engine]` Makes a lane hold a kept state, whatever it held; the snapshot stays.
    pub restore:
        Option<unsafe extern "C" fn(engine: u64, lane: u64, snapshot: u64, error: *mut TfError) -> i32>,
    /// `[engine]` Opens a lane that holds what `lane` holds.
    pub fork:
        Option<unsafe extern "C" fn(engine: u64, lane: u64, fork: *mut u64, error: *mut TfError) -> i32>,
    /// `[engine]` Frees a snapshot.
    pub drop_snapshot: Option<unsafe extern "C" fn(engine: u64, snapshot: u64, error: *mut TfError) -> i32>,
    /// `[engine]` Gives memory back without closing: level 1 keeps weights in the machine's
    /// memory, level 2 keeps nothing. Lanes and snapshots must be gone, else `busy`.
    pub sleep: Option<unsafe extern "C" fn(engine: u64, level: u32, error: *mut TfError) -> i32>,
    /// `[engine]` Undoes `sleep`.
    pub wake:
        Option<unsafe extern "C" fn(engine: u64, progress: *const TfProgress, error: *mut TfError) -> i32>,
    /// `[any]` What the engine holds now.
    pub memory:
        Option<unsafe extern "C" fn(engine: u64, memory: *mut TfEngineMemory, error: *mut TfError) -> i32>,
    /// `[any]` Counts.
    pub stats:
        Option<unsafe extern "C" fn(engine: u64, stats: *mut TfEngineStats, error: *mut TfError) -> i32>,
    /// `[control]` Closes an engine with its lanes and snapshots.
    pub close: Option<unsafe extern "C" fn(engine: u64, error: *mut TfError) -> i32>,
}
