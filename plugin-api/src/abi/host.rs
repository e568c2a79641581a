//! `tensorfold.host/1`: what the host offers to a plugin.

use std::ffi::c_void;

use super::TfStr;

/// Log level: something failed.
pub const TF_LOG_ERROR: u32 = 1;
/// Log level: something is not as it should be.
pub const TF_LOG_WARN: u32 = 2;
/// Log level: what a user may want to see.
pub const TF_LOG_INFO: u32 = 3;
/// Log level: what a developer may want to see.
pub const TF_LOG_DEBUG: u32 = 4;
/// Log level: everything.
pub const TF_LOG_TRACE: u32 = 5;
/// Level filter: nothing at all.
pub const TF_LOG_OFF: u32 = 0;

/// One log record. Unknown levels are taken as errors.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfLogRecord {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// One of the `TF_LOG_*` levels.
    pub level: u32,
    /// Which part of the plugin speaks; the host puts `plugin.<id>.` before it.
    pub target: TfStr,
    /// The message, one line.
    pub message: TfStr,
    /// Source file; may be empty.
    pub file: TfStr,
    /// Source line; 0: unknown.
    pub line: u32,
    /// Entries of `fields`.
    pub field_count: u32,
    /// Structured values, as text.
    pub fields: *const super::TfKeyValue,
}

/// Memory that a plugin reports through `memory_report`: held by the device.
pub const TF_MEMORY_DEVICE: u32 = 1;
/// Memory of the machine that the plugin holds.
pub const TF_MEMORY_HOST: u32 = 2;

/// `tensorfold.host/1`. Passed to `init`; valid to the end of the process.
/// All functions are `[any]`, never unwind, never block for long and never
/// call back into the plugin. The first argument of each is `context`.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfHostV1 {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Handed back to the host with every call.
    pub context: *mut c_void,
    /// Whether a record of this level and target would be kept (1) or dropped (0).
    pub log_enabled: Option<unsafe extern "C" fn(context: *mut c_void, level: u32, target: TfStr) -> u8>,
    /// Takes a record. The record is borrowed for the call.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, record: *const TfLogRecord)>,
    /// Tells the host how much memory of a kind (`TF_MEMORY_*`) the plugin holds now, in bytes.
    pub memory_report: Option<unsafe extern "C" fn(context: *mut c_void, kind: u32, bytes: u64)>,
    /// Whether the work behind a cancel token should stop (1). Token 0 never stops.
    pub cancel_poll: Option<unsafe extern "C" fn(context: *mut c_void, token: u64) -> u8>,
    /// Reads a value of the plugin's configuration into `value` (owned by the host, valid to
    /// the end of the process). Returns a status: not-found when the key is not set.
    pub config_get: Option<unsafe extern "C" fn(context: *mut c_void, key: TfStr, value: *mut TfStr) -> i32>,
    /// Copies `length` bytes from `offset` of a tensor of the engine that is being opened into
    /// `buffer`, for plugins that do not read mapped memory. Returns a status.
    pub tensor_read: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            tensor: u64,
            offset: u64,
            buffer: *mut u8,
            length: u64,
        ) -> i32,
    >,
    /// Further tables of the host by id (`length` bytes at `id`); null: not offered. Host
    /// interfaces that the host's minor does not know are never offered.
    pub get_interface:
        Option<unsafe extern "C" fn(context: *mut c_void, id: *const u8, length: u64) -> *const c_void>,
}

// SAFETY: the contract says that every function of the table is `[any]`, and `context` is only
// ever handed back to them.
unsafe impl Sync for TfHostV1 {}
// SAFETY: as above.
unsafe impl Send for TfHostV1 {}
