//! A plugin for tests that is sound but for one thing: it attests an engine table in which a lane is named by 32
//! bits where the contract has 64. A host that looks only at sizes would believe it and call it.

use std::ffi::c_void;

use abi_stable::StableAbi;
use tensorfold_plugin_api::abi::{
    ABI_MAJOR, ABI_MINOR, ENGINE_INTERFACE, TF_PLUGIN_MAGIC, TfDescriptor, TfStr,
};
use tensorfold_plugin_api::attest::__private::{
    __call_root_module_loader, CheckTypeLayout, LibHeader, PrefixTypeTrait as _, RootModuleResult,
};
use tensorfold_plugin_api::attest::{AttestedInterface, PluginRoot, PluginRootRef};
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo};
use tensorfold_plugin_api::plugin::__private::{Exported, Runtime, Tables, interface, tables};
use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError};

struct Misshapen;

impl Backend for Misshapen {
    const OFFERS_ENGINE: bool = true;

    fn init(_init: Init<'_>) -> Result<Self, PluginError> {
        Ok(Misshapen)
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        Ok(Vec::new())
    }

    fn fit_device(&self, _device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        Ok(DeviceFit::usable())
    }

    fn open_device(&self, _device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        Err(PluginError::internal("a host that checks layouts never comes here"))
    }
}

static RUNTIME: Runtime<Misshapen> = Runtime::new();
static TABLES: Tables = tables::<Misshapen>();

impl Exported for Misshapen {
    fn runtime() -> &'static Runtime<Self> {
        &RUNTIME
    }
}

/// The table as this plugin believes it to be.
mod believed {
    use tensorfold_plugin_api::abi::{
        TfEngineInfo, TfEngineMemory, TfEngineOptions, TfEngineStats, TfError, TfMemoryPlan, TfModel,
        TfProgress, TfRound, TfRoundResult, TfSnapshot,
    };

    #[repr(C)]
    #[derive(abi_stable::StableAbi)]
    pub(crate) struct TfEngineV1 {
        struct_size: u32,
        reserved: u32,
        plan: Option<
            unsafe extern "C" fn(
                device: u64,
                model: *const TfModel,
                options: *const TfEngineOptions,
                plan: *mut TfMemoryPlan,
                error: *mut TfError,
            ) -> i32,
        >,
        open_engine: Option<
            unsafe extern "C" fn(
                device: u64,
                model: *const TfModel,
                options: *const TfEngineOptions,
                progress: *const TfProgress,
                engine: *mut u64,
                error: *mut TfError,
            ) -> i32,
        >,
        info: Option<unsafe extern "C" fn(engine: u64, info: *mut TfEngineInfo, error: *mut TfError) -> i32>,
        lane_open: Option<unsafe extern "C" fn(engine: u64, lane: *mut u64, error: *mut TfError) -> i32>,
        /// The fault: the contract has `lane: u64`.
        lane_close: Option<unsafe extern "C" fn(engine: u64, lane: u32, error: *mut TfError) -> i32>,
        round: Option<
            unsafe extern "C" fn(
                engine: u64,
                round: *const TfRound,
                result: *mut TfRoundResult,
                error: *mut TfError,
            ) -> i32,
        >,
        snapshot: Option<
            unsafe extern "C" fn(
                engine: u64,
                lane: u64,
                snapshot: *mut TfSnapshot,
                error: *mut TfError,
            ) -> i32,
        >,
        restore:
            Option<unsafe extern "C" fn(engine: u64, lane: u64, snapshot: u64, error: *mut TfError) -> i32>,
        fork:
            Option<unsafe extern "C" fn(engine: u64, lane: u64, fork: *mut u64, error: *mut TfError) -> i32>,
        drop_snapshot: Option<unsafe extern "C" fn(engine: u64, snapshot: u64, error: *mut TfError) -> i32>,
        sleep: Option<unsafe extern "C" fn(engine: u64, level: u32, error: *mut TfError) -> i32>,
        wake: Option<
            unsafe extern "C" fn(engine: u64, progress: *const TfProgress, error: *mut TfError) -> i32,
        >,
        memory: Option<
            unsafe extern "C" fn(engine: u64, memory: *mut TfEngineMemory, error: *mut TfError) -> i32,
        >,
        stats:
            Option<unsafe extern "C" fn(engine: u64, stats: *mut TfEngineStats, error: *mut TfError) -> i32>,
        close: Option<unsafe extern "C" fn(engine: u64, error: *mut TfError) -> i32>,
    }
}

unsafe extern "C" fn get_interface(id: *const u8, length: u64) -> *const c_void {
    // SAFETY: the contract of `get_interface`.
    unsafe { interface::<Misshapen>(id, length, &TABLES) }
}

/// The manifest, where hosts read it without loading the library.
#[unsafe(link_section = ".tensorfold.manifest")]
#[used]
#[unsafe(no_mangle)]
pub static TENSORFOLD_PLUGIN_MANIFEST: [u8; include_bytes!("../tensorfold_plugin.toml").len()] =
    *include_bytes!("../tensorfold_plugin.toml");

/// The door for C, in which nothing is wrong.
#[unsafe(export_name = "tensorfold_plugin_v1")]
pub static DESCRIPTOR: TfDescriptor = TfDescriptor {
    magic: TF_PLUGIN_MAGIC,
    struct_size: size_of::<TfDescriptor>() as u32,
    abi_major: ABI_MAJOR,
    abi_minor: ABI_MINOR,
    min_host_minor: ABI_MINOR,
    reserved: 0,
    flags: 0,
    manifest: (&raw const TENSORFOLD_PLUGIN_MANIFEST).cast(),
    manifest_length: TENSORFOLD_PLUGIN_MANIFEST.len() as u64,
    get_interface: Some(get_interface),
    version: TfStr::new("1.2.3"),
    build_id: TfStr::new("misshapen"),
};

extern "C" fn attested_manifest() -> TfStr {
    TfStr { data: TENSORFOLD_PLUGIN_MANIFEST.as_ptr(), length: TENSORFOLD_PLUGIN_MANIFEST.len() as u64 }
}

unsafe extern "C" fn attested_interface(id: TfStr) -> AttestedInterface {
    // SAFETY: the root module's contract: the id is readable for the call.
    let truth = unsafe { AttestedInterface::of(id, get_interface(id.data, id.length)) };
    // SAFETY: as above.
    if unsafe { id.bytes() } == ENGINE_INTERFACE.as_bytes() {
        return AttestedInterface { layout: Some(<believed::TfEngineV1 as StableAbi>::LAYOUT), ..truth };
    }
    truth
}

fn root_module() -> PluginRootRef {
    PluginRoot { manifest: attested_manifest, interface: attested_interface }.leak_into_prefix()
}

extern "C" fn erased_root_module() -> RootModuleResult {
    __call_root_module_loader(root_module)
}

/// The Rust door.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
pub static ROOT_MODULE: LibHeader = {
    // SAFETY: `erased_root_module` erases a `PluginRootRef`, the type named here.
    unsafe { LibHeader::from_constructor::<PluginRootRef>(erased_root_module, CheckTypeLayout::Yes) }
};
