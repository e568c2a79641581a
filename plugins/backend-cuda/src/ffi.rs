//! The part of the CUDA driver API that this plugin calls, declared by hand.
//!
//! Signatures and values are those of `cuda.h` (CUDA 12.0). Nothing in this file
//! decides anything: [`crate::driver`] is the only caller.

use std::ffi::{c_char, c_int, c_uint};

use tensorfold_plugin_api::runtime_library::{RuntimeLibrary, SymbolMissing};

/// `CUresult`.
pub(crate) type Status = c_int;
/// `CUdevice`: an ordinal-like handle, no pointer.
pub(crate) type Device = c_int;

pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_STUB_LIBRARY`
pub(crate) const STUB_LIBRARY: Status = 34;
/// `CUDA_ERROR_NO_DEVICE`
pub(crate) const NO_DEVICE: Status = 100;
/// `CUDA_ERROR_SYSTEM_NOT_READY`: the fabric manager of an NVSwitch machine does not run.
pub(crate) const SYSTEM_NOT_READY: Status = 802;
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`
pub(crate) const SYSTEM_DRIVER_MISMATCH: Status = 803;
/// `CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE`
pub(crate) const COMPAT_NOT_SUPPORTED_ON_DEVICE: Status = 804;

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`
pub(crate) const ATTRIBUTE_INTEGRATED: c_int = 18;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`
pub(crate) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`
pub(crate) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;

/// The functions, bound once when the driver is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    /// `cuInit(flags)`
    pub(crate) init: unsafe extern "C" fn(c_uint) -> Status,
    /// `cuDriverGetVersion(*version)`: 1000 * major + 10 * minor
    pub(crate) driver_get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    /// `cuDeviceGetCount(*count)`
    pub(crate) device_get_count: unsafe extern "C" fn(*mut c_int) -> Status,
    /// `cuDeviceGet(*device, ordinal)`
    pub(crate) device_get: unsafe extern "C" fn(*mut Device, c_int) -> Status,
    /// `cuDeviceGetName(name, capacity, device)`
    pub(crate) device_get_name: unsafe extern "C" fn(*mut c_char, c_int, Device) -> Status,
    /// `cuDeviceGetAttribute(*value, attribute, device)`
    pub(crate) device_get_attribute: unsafe extern "C" fn(*mut c_int, c_int, Device) -> Status,
    /// `cuDeviceGetPCIBusId(text, capacity, device)`
    pub(crate) device_get_pci_bus_id: unsafe extern "C" fn(*mut c_char, c_int, Device) -> Status,
    /// `cuDeviceTotalMem_v2(*bytes, device)`
    pub(crate) device_total_mem: unsafe extern "C" fn(*mut usize, Device) -> Status,
    /// `cuGetErrorName(status, *text)`
    pub(crate) get_error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
}

impl Functions {
    /// Looks all of them up in an opened driver library.
    ///
    /// # Safety
    /// `library` must be NVIDIA's `libcuda`, or one with the same entry points.
    pub(crate) unsafe fn bind(library: &RuntimeLibrary) -> Result<Self, SymbolMissing> {
        // SAFETY: the caller vouches that this is libcuda; each field's type is
        // cuda.h's signature for the name beside it.
        unsafe {
            Ok(Self {
                init: library.function(c"cuInit")?,
                driver_get_version: library.function(c"cuDriverGetVersion")?,
                device_get_count: library.function(c"cuDeviceGetCount")?,
                device_get: library.function(c"cuDeviceGet")?,
                device_get_name: library.function(c"cuDeviceGetName")?,
                device_get_attribute: library.function(c"cuDeviceGetAttribute")?,
                device_get_pci_bus_id: library.function(c"cuDeviceGetPCIBusId")?,
                device_total_mem: library.function(c"cuDeviceTotalMem_v2")?,
                get_error_name: library.function(c"cuGetErrorName")?,
            })
        }
    }
}
