//! The Rust door: layouts of the tables, compared by type and not by trust.
//!
//! A plugin built with this crate's feature `attest` exports, beside its descriptor, a root
//! module through `abi_stable`. It holds two functions that never change: the manifest, and a
//! table by id together with the layout that the plugin was compiled with. The host compares
//! that layout with its own, field by field, before it calls anything.
//!
//! The C door is the contract and this one an extra check: a plugin without it is fully valid.

#[cfg(feature = "attest")]
pub use attested::{AttestedInterface, PluginRoot, PluginRootRef, expected_layout};

/// The symbol that `abi_stable` looks for; plugins export it when they attest their layouts.
pub const ROOT_MODULE_SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

#[cfg(feature = "attest")]
#[doc(hidden)]
pub mod __private {
    pub use abi_stable::library::{__call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult};
    pub use abi_stable::prefix_type::PrefixTypeTrait;
}

#[cfg(feature = "attest")]
mod attested {
    use std::ffi::c_void;

    use abi_stable::StableAbi;
    use abi_stable::library::RootModule;
    use abi_stable::package_version_strings;
    use abi_stable::sabi_types::VersionStrings;
    use abi_stable::type_layout::TypeLayout;

    use crate::abi::{BACKEND_INTERFACE, DFLASH_INTERFACE, ENGINE_INTERFACE, HOST_INTERFACE, MTP_INTERFACE};
    use crate::abi::{TfBackendV1, TfDflashV1, TfEngineV1, TfHostV1, TfMtpV1, TfStr};

    /// A table with the layout that its plugin was compiled with.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct AttestedInterface {
        /// The table; null: not offered.
        pub table: *const c_void,
        /// Its layout; `None`: not offered, or not attested.
        pub layout: Option<&'static TypeLayout>,
    }

    /// The root module. Frozen: anything new comes as a new interface id.
    #[repr(C)]
    #[derive(StableAbi)]
    #[sabi(kind(Prefix(prefix_ref = PluginRootRef)))]
    #[sabi(missing_field(panic))]
    pub struct PluginRoot {
        /// The manifest's TOML.
        pub manifest: extern "C" fn() -> TfStr,
        /// A table by id, and the layout that the plugin knows for it. The id's text must be
        /// readable for the call. The host's own table is asked for in the same way: its
        /// `table` is null and its `layout` what the plugin expects of the host.
        #[sabi(last_prefix_field)]
        pub interface: unsafe extern "C" fn(id: TfStr) -> AttestedInterface,
    }

    impl RootModule for PluginRootRef {
        abi_stable::declare_root_module_statics! {PluginRootRef}
        const BASE_NAME: &'static str = "tensorfold_plugin";
        const NAME: &'static str = "tensorfold_plugin";
        const VERSION_STRINGS: VersionStrings = package_version_strings!();
    }

    /// The layout that this build has for an interface, if it knows the id.
    pub fn expected_layout(id: &str) -> Option<&'static TypeLayout> {
        match id {
            BACKEND_INTERFACE => Some(<TfBackendV1 as StableAbi>::LAYOUT),
            ENGINE_INTERFACE => Some(<TfEngineV1 as StableAbi>::LAYOUT),
            MTP_INTERFACE => Some(<TfMtpV1 as StableAbi>::LAYOUT),
            DFLASH_INTERFACE => Some(<TfDflashV1 as StableAbi>::LAYOUT),
            HOST_INTERFACE => Some(<TfHostV1 as StableAbi>::LAYOUT),
            _ => None,
        }
    }

    impl AttestedInterface {
        /// Pairs a table with this build's layout for its id.
        ///
        /// # Safety
        /// `id` must be readable text.
        pub unsafe fn of(id: TfStr, table: *const c_void) -> AttestedInterface {
            // SAFETY: the caller's promise.
            let layout = std::str::from_utf8(unsafe { id.bytes() }).ok().and_then(expected_layout);
            AttestedInterface { table, layout }
        }
    }
}

/// The part of [`export_plugin!`](crate::export_plugin) that attests layouts.
#[cfg(feature = "attest")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_attestation {
    ($manifest:expr, $get_interface:path) => {
        extern "C" fn attested_manifest() -> $crate::abi::TfStr {
            let manifest: &'static [u8] = $manifest;
            $crate::abi::TfStr { data: manifest.as_ptr(), length: manifest.len() as u64 }
        }

        unsafe extern "C" fn attested_interface(id: $crate::abi::TfStr) -> $crate::attest::AttestedInterface {
            // SAFETY: the root module's contract: the id is readable for the call.
            unsafe { $crate::attest::AttestedInterface::of(id, $get_interface(id.data, id.length)) }
        }

        fn root_module() -> $crate::attest::PluginRootRef {
            use $crate::attest::__private::PrefixTypeTrait as _;
            $crate::attest::PluginRoot { manifest: attested_manifest, interface: attested_interface }
                .leak_into_prefix()
        }

        extern "C" fn erased_root_module() -> $crate::attest::__private::RootModuleResult {
            $crate::attest::__private::__call_root_module_loader(root_module)
        }

        #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
        pub static ROOT_MODULE: $crate::attest::__private::LibHeader = {
            // SAFETY: `erased_root_module` erases a `PluginRootRef`, the type named here.
            unsafe {
                $crate::attest::__private::LibHeader::from_constructor::<$crate::attest::PluginRootRef>(
                    erased_root_module,
                    $crate::attest::__private::CheckTypeLayout::Yes,
                )
            }
        };
    };
}

/// Nothing to attest with.
#[cfg(not(feature = "attest"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_attestation {
    ($manifest:expr, $get_interface:path) => {};
}
