//! The part of the HIP runtime that this plugin calls, declared by hand.
//!
//! Signatures, offsets and values are those of HIP 6 and 7, whose
//! `hipDeviceProp_tR0600` is the same. Nothing in this file decides anything:
//! [`crate::driver`] is the only caller.

use std::ffi::{c_char, c_int, c_uint};

use tensorfold_plugin_api::runtime_library::{RuntimeLibrary, SymbolMissing};

/// `hipError_t`.
pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
/// `hipErrorNoDevice`
pub(crate) const NO_DEVICE: Status = 100;
/// `hipErrorInvalidDevice`; what `hipInit` answers when it finds none.
pub(crate) const INVALID_DEVICE: Status = 101;

/// `hipDeviceProp_tR0600`, read by offset: a newer runtime may append to it, so
/// the buffer is larger than the 1472 bytes of HIP 7.
#[repr(C, align(8))]
pub(crate) struct Properties {
    bytes: [u8; 4096],
}

impl Properties {
    /// All zero, as the runtime wants it.
    pub(crate) fn zeroed() -> Self {
        Self { bytes: [0; 4096] }
    }

    /// `name`
    pub(crate) fn name(&self) -> String {
        self.text(0, 256)
    }

    /// `totalGlobalMem`, bytes
    pub(crate) fn total_memory_bytes(&self) -> u64 {
        let mut value = [0; 8];
        value.copy_from_slice(&self.bytes[288..296]);
        u64::from_ne_bytes(value)
    }

    /// `integrated`
    pub(crate) fn integrated(&self) -> bool {
        self.bytes[396..400] != [0; 4]
    }

    /// `gcnArchName`, with its feature suffixes: `gfx90a:sramecc+:xnack-`
    pub(crate) fn architecture_name(&self) -> String {
        self.text(1160, 256)
    }

    fn text(&self, offset: usize, capacity: usize) -> String {
        let field = &self.bytes[offset..offset + capacity];
        let length = field.iter().position(|&byte| byte == 0).unwrap_or(capacity);
        String::from_utf8_lossy(&field[..length]).trim().to_owned()
    }
}

/// The functions, bound once when the runtime is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    /// `hipInit(flags)`
    pub(crate) init: unsafe extern "C" fn(c_uint) -> Status,
    /// `hipGetDeviceCount(*count)`
    pub(crate) get_device_count: unsafe extern "C" fn(*mut c_int) -> Status,
    /// `hipGetDevicePropertiesR0600(*properties, device)`. The name without the
    /// suffix is another function, which fills the older and shorter struct.
    pub(crate) get_device_properties: unsafe extern "C" fn(*mut Properties, c_int) -> Status,
    /// `hipDeviceGetPCIBusId(text, capacity, device)`
    pub(crate) device_get_pci_bus_id: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status,
    /// `hipGetErrorName(status)`: a static string
    pub(crate) get_error_name: unsafe extern "C" fn(Status) -> *const c_char,
}

impl Functions {
    /// Looks all of them up in an opened runtime.
    ///
    /// # Safety
    /// `library` must be AMD's `libamdhip64` of HIP 6 or 7, or one with the same
    /// entry points.
    pub(crate) unsafe fn bind(library: &RuntimeLibrary) -> Result<Self, SymbolMissing> {
        // SAFETY: the caller vouches that this is libamdhip64; each field's type
        // is hip_runtime_api.h's signature for the name beside it.
        unsafe {
            Ok(Self {
                init: library.function(c"hipInit")?,
                get_device_count: library.function(c"hipGetDeviceCount")?,
                get_device_properties: library.function(c"hipGetDevicePropertiesR0600")?,
                device_get_pci_bus_id: library.function(c"hipDeviceGetPCIBusId")?,
                get_error_name: library.function(c"hipGetErrorName")?,
            })
        }
    }
}

/// `hipRuntimeGetVersion(*version)`: 10,000,000 * major + 100,000 * minor + patch.
///
/// Bound apart from [`Functions`], because it exists in every release and tells
/// an old runtime from a damaged one.
pub(crate) type RuntimeGetVersion = unsafe extern "C" fn(*mut c_int) -> Status;

/// Looks up `hipRuntimeGetVersion`.
///
/// # Safety
/// As for [`Functions::bind`], with any release of HIP.
pub(crate) unsafe fn bind_version(library: &RuntimeLibrary) -> Result<RuntimeGetVersion, SymbolMissing> {
    // SAFETY: hip_runtime_api.h's signature; the caller vouches for the library.
    unsafe { library.function(c"hipRuntimeGetVersion") }
}
