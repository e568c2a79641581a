//! The descriptor: the one symbol that every plugin exports for C.

use super::TfStr;

/// First eight bytes of a descriptor: `TFPLUGIN` in little-endian order.
pub const TF_PLUGIN_MAGIC: u64 = 0x4e49_4755_4c50_4654;

/// Name of the data symbol that holds the [`TfDescriptor`].
pub const DESCRIPTOR_SYMBOL: &str = "tensorfold_plugin_v1";

/// Name of the data symbol, and of what the section holds: the manifest's TOML.
pub const MANIFEST_SYMBOL: &str = "TENSORFOLD_PLUGIN_MANIFEST";

/// Name of the section that holds the manifest.
pub const MANIFEST_SECTION: &str = ".tensorfold.manifest";

/// What a plugin states about itself. It is data: reading it runs no code of
/// the plugin.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDescriptor {
    /// [`TF_PLUGIN_MAGIC`].
    pub magic: u64,
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Major number of the contract that the plugin was built against.
    pub abi_major: u16,
    /// Minor number of it.
    pub abi_minor: u16,
    /// Oldest host minor that the plugin can live with.
    pub min_host_minor: u16,
    /// Zero.
    pub reserved: u16,
    /// Zero; no flag is defined yet.
    pub flags: u32,
    /// The manifest's TOML, the same bytes as in the section.
    pub manifest: *const u8,
    /// Bytes of `manifest`.
    pub manifest_length: u64,
    /// `[any]` Looks an interface up by id (`length` bytes at `id`, such as
    /// `tensorfold.engine/1`). Returns its table, valid to the end of the process, or null when
    /// the id is not offered. Works before `init`. Never null.
    pub get_interface: Option<unsafe extern "C" fn(id: *const u8, length: u64) -> *const std::ffi::c_void>,
    /// The plugin's version, the same as in the manifest.
    pub version: TfStr,
    /// Something that differs between builds with different content.
    pub build_id: TfStr,
}

// SAFETY: a descriptor is immutable data; its pointers lead to immutable statics.
unsafe impl Sync for TfDescriptor {}
