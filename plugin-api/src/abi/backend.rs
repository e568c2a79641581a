//! `tensorfold.backend/1`: life of the plugin and its devices.

use super::{TfError, TfHostV1, TfKeyValue, TfStr};

/// One entry of the configuration given to `init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfConfigurationEntry {
    /// Name of an option of the manifest.
    pub key: TfStr,
    /// Its value as text, already checked against the manifest's type.
    pub value: TfStr,
    /// 1: `init` must fail with `unsupported`, naming the key, when it does not know it.
    /// 0: an unknown key is ignored.
    pub required: u32,
    /// Zero.
    pub reserved: u32,
}

/// What `init` is told.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfInit {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// The host's contract, major number.
    pub host_abi_major: u16,
    /// The minor number that host and plugin agreed to work at.
    pub agreed_abi_minor: u16,
    /// The host's release, for logs.
    pub host_version: TfStr,
    /// `tensorfold.host/1`; null when the plugin's manifest does not ask for it.
    pub host: *const TfHostV1,
    /// The configuration.
    pub configuration: *const TfConfigurationEntry,
    /// Entries of `configuration`.
    pub configuration_count: u64,
    /// Level filter for logs at the start (`TF_LOG_*`).
    pub log_level: u32,
    /// Zero.
    pub reserved: u32,
}

/// Kind of device: a CPU.
pub const TF_DEVICE_CPU: u32 = 1;
/// Kind of device: a GPU.
pub const TF_DEVICE_GPU: u32 = 2;
/// Kind of device: a neural processing unit.
pub const TF_DEVICE_NPU: u32 = 3;
/// Kind of device: any other accelerator.
pub const TF_DEVICE_ACCELERATOR: u32 = 4;

/// Memory of a device: its own.
pub const TF_DEVICE_MEMORY_DEDICATED: u32 = 1;
/// Memory of a device: shared with the CPU.
pub const TF_DEVICE_MEMORY_UNIFIED: u32 = 2;

/// Who a device is, in terms that host and plugin share. Empty fields are unknown.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDeviceIdentity {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// One of `TF_DEVICE_CPU` ...
    pub kind: u32,
    /// PCI address, `0000:c1:00.0`; the first choice for comparing devices.
    pub pci_address: TfStr,
    /// The vendor's unique id.
    pub uuid: TfStr,
    /// Name for people.
    pub name: TfStr,
    /// Position in the plugin's list, for devices with neither of the above.
    pub index: u32,
    /// Zero.
    pub reserved: u32,
}

/// One device that the plugin sees.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDeviceInfo {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// `TF_DEVICE_MEMORY_DEDICATED` or `TF_DEVICE_MEMORY_UNIFIED`; 0: unknown.
    pub memory: u32,
    /// Who it is.
    pub identity: TfDeviceIdentity,
    /// Architecture as spelt in manifests: `gfx1151`, `sm_90`, `avx512`.
    pub arch: TfStr,
    /// All memory of the device in bytes; 0: unknown.
    pub memory_bytes: u64,
    /// Free memory in bytes now; 0: unknown.
    pub free_memory_bytes: u64,
    /// Version of the driver that was asked; may be empty.
    pub driver: TfStr,
    /// Further facts. Owned by the plugin as everything in this struct: valid until the next
    /// call of `list_devices` or `shutdown`.
    pub facts: *const TfKeyValue,
    /// Entries of `facts`.
    pub fact_count: u64,
}

/// `fit_device`: the driver does not fit.
pub const TF_UNFIT_DRIVER: u32 = 1;
/// `fit_device`: the device does not fit.
pub const TF_UNFIT_DEVICE: u32 = 2;
/// `fit_device`: something that the plugin needs is missing.
pub const TF_UNFIT_MISSING_DEPENDENCY: u32 = 4;
/// `fit_device`: another reason.
pub const TF_UNFIT_OTHER: u32 = 8;

/// Whether a device can be used, and why not.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDeviceFit {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// 0: the device can be used; else a sum of `TF_UNFIT_*`.
    pub reasons: u32,
    /// One line for people; owned by the plugin, valid until the next call of `fit_device` or
    /// `shutdown`.
    pub text: TfStr,
}

/// `tensorfold.backend/1`. No function may be null.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfBackendV1 {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// `[control]` Starts the plugin: opens drivers, no device. Called once, or again after
    /// `shutdown`. `init` is borrowed for the call, its `host` table is kept.
    pub init: Option<unsafe extern "C" fn(init: *const TfInit, error: *mut TfError) -> i32>,
    /// `[control]` Writes up to `capacity` devices to `devices` and their true number to `count`.
    pub list_devices: Option<
        unsafe extern "C" fn(
            devices: *mut TfDeviceInfo,
            capacity: u64,
            count: *mut u64,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[control]` Says whether the plugin can use a device that the host names.
    pub fit_device: Option<
        unsafe extern "C" fn(
            identity: *const TfDeviceIdentity,
            fit: *mut TfDeviceFit,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[control]` Opens a device; `device` receives a handle, never 0.
    pub open_device: Option<
        unsafe extern "C" fn(identity: *const TfDeviceIdentity, device: *mut u64, error: *mut TfError) -> i32,
    >,
    /// `[control]` Closes a device. `busy` while engines are open on it.
    pub close_device: Option<unsafe extern "C" fn(device: u64, error: *mut TfError) -> i32>,
    /// `[any]` Sets the level filter for logs (`TF_LOG_*`).
    pub set_log_level: Option<unsafe extern "C" fn(level: u32)>,
    /// `[control]` Ends the plugin: closes what is open and joins its threads. May be called
    /// after a failed `init`, without `init`, and more than once.
    pub shutdown: Option<unsafe extern "C" fn(error: *mut TfError) -> i32>,
    /// `[any]` Frees what a [`TfError`] of any table of this plugin holds and empties it.
    /// An empty error or null is fine.
    pub release_error: Option<unsafe extern "C" fn(error: *mut TfError)>,
}
