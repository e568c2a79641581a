//! The functions behind the tables, and the macro that exports them.
//!
//! Each function checks what it got before it believes it, runs inside [`guard`], and leaves
//! nothing half done: a failed call changes no handle.

use std::sync::{Arc, Mutex, PoisonError};

use super::guard::{catch, guard, release};
use super::model::{EngineOptions, Model, Progress};
use super::runtime::{
    DeviceEntry, EngineCell, EngineInner, Exported, ListedDevice, Started, identity_from_raw,
};
use super::{Host, Init, PluginError, Status, log, round};
use crate::abi::{
    TfBackendV1, TfDeviceFit, TfDeviceIdentity, TfDeviceInfo, TfEngineInfo, TfEngineMemory, TfEngineOptions,
    TfEngineStats, TfEngineV1, TfError, TfInit, TfMemoryPlan, TfModel, TfProgress, TfRound, TfRoundResult,
    TfSnapshot, TfStr,
};

/// Borrows a struct that begins with its size.
///
/// # Safety
/// `raw` must be null or point to a struct that begins with its true size.
pub(super) unsafe fn sized<'a, T>(raw: *const T, what: &str) -> Result<&'a T, PluginError> {
    if raw.is_null() {
        return Err(PluginError::invalid(format!("{what} is null")));
    }
    // SAFETY: not null, and the caller promises that the first field is the size.
    let size = unsafe { raw.cast::<u32>().read() } as usize;
    if size < size_of::<T>() {
        return Err(PluginError::invalid(format!(
            "{what} has {size} bytes, this plugin needs {}",
            size_of::<T>()
        )));
    }
    // SAFETY: large enough.
    Ok(unsafe { &*raw })
}

/// As [`sized`], for an output.
///
/// # Safety
/// As for [`sized`], and nothing else may use the struct meanwhile.
pub(super) unsafe fn sized_mut<'a, T>(raw: *mut T, what: &str) -> Result<&'a mut T, PluginError> {
    // SAFETY: passed on to the caller.
    unsafe { sized(raw.cast_const(), what)? };
    // SAFETY: checked by `sized`; the caller promises exclusivity.
    Ok(unsafe { &mut *raw })
}

/// # Safety
/// `raw` must be null or writable.
pub(super) unsafe fn put<T>(raw: *mut T, value: T, what: &str) -> Result<(), PluginError> {
    if raw.is_null() {
        return Err(PluginError::invalid(format!("the pointer for {what} is null")));
    }
    // SAFETY: not null, and the caller promises that it is writable.
    unsafe { raw.write(value) };
    Ok(())
}

/// Refuses a null pointer for an output before work is done whose result would be lost.
pub(super) fn not_null<T>(raw: *mut T, what: &str) -> Result<(), PluginError> {
    if raw.is_null() {
        return Err(PluginError::invalid(format!("the pointer for {what} is null")));
    }
    Ok(())
}

unsafe extern "C" fn init<B: Exported>(raw: *const TfInit, error: *mut TfError) -> i32 {
    let body = || {
        // SAFETY: the contract of `init`, here and below.
        let raw = unsafe { sized(raw, "the init argument")? };
        // SAFETY: as above.
        let host = unsafe { Host::from_raw(raw.host)? };
        // SAFETY: as above.
        let arguments = unsafe { Init::from_raw(raw, host)? };
        let mut slot = B::runtime().backend.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return Err(PluginError::new(Status::Busy, "init was called twice without shutdown"));
        }
        log::set_level(raw.log_level);
        log::install(host);
        *slot = Some(Started { backend: Arc::new(B::init(arguments)?), host });
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn list_devices<B: Exported>(
    devices: *mut TfDeviceInfo,
    capacity: u64,
    count: *mut u64,
    error: *mut TfError,
) -> i32 {
    let body = || {
        not_null(count, "the count of devices")?;
        if devices.is_null() && capacity > 0 {
            return Err(PluginError::invalid("the list of devices is null"));
        }
        let found = B::runtime().backend()?.list_devices()?;
        let mut listed = B::runtime().listed.lock().unwrap_or_else(PoisonError::into_inner);
        *listed = found.into_iter().map(ListedDevice::new).collect();
        for (index, device) in listed.iter().enumerate().take(capacity as usize) {
            // SAFETY: the contract promises room for `capacity` entries.
            unsafe { devices.add(index).write(device.raw()) };
        }
        // SAFETY: checked above.
        unsafe { put(count, listed.len() as u64, "the count of devices") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn fit_device<B: Exported>(
    identity: *const TfDeviceIdentity,
    fit: *mut TfDeviceFit,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `fit_device`, here and below.
        let identity = unsafe { identity_from_raw(sized(identity, "the device identity")?) };
        // SAFETY: as above.
        let out = unsafe { sized_mut(fit, "the device fit")? };
        let answer = B::runtime().backend()?.fit_device(&identity)?;
        let mut text = B::runtime().fit_text.lock().unwrap_or_else(PoisonError::into_inner);
        *text = answer.text;
        out.reasons = answer.reasons;
        out.text = TfStr::new(&text);
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn open_device<B: Exported>(
    identity: *const TfDeviceIdentity,
    device: *mut u64,
    error: *mut TfError,
) -> i32 {
    let body = || {
        not_null(device, "the device")?;
        // SAFETY: the contract of `open_device`.
        let identity = unsafe { identity_from_raw(sized(identity, "the device identity")?) };
        let opened = B::runtime().backend()?.open_device(&identity)?;
        let mut devices = B::runtime().devices.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: checked above.
        unsafe { put(device, devices.insert(DeviceEntry { device: Arc::from(opened) }), "the device") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn close_device<B: Exported>(device: u64, error: *mut TfError) -> i32 {
    let body = || {
        let engines = B::runtime().engines.read().unwrap_or_else(PoisonError::into_inner);
        if engines.values().any(|cell| cell.device == device) {
            return Err(PluginError::new(Status::Busy, "engines are still open on this device"));
        }
        drop(engines);
        let mut devices = B::runtime().devices.write().unwrap_or_else(PoisonError::into_inner);
        let entry = devices.remove(device, "device")?;
        drop(devices);
        drop(entry);
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn set_log_level(level: u32) {
    log::set_level(level);
}

unsafe extern "C" fn shutdown<B: Exported>(error: *mut TfError) -> i32 {
    let body = || {
        let runtime = B::runtime();
        let started = runtime.backend.write().unwrap_or_else(PoisonError::into_inner).take();
        // Whatever panics while it is dropped must not keep the rest alive.
        let engines: Vec<_> =
            runtime.engines.write().unwrap_or_else(PoisonError::into_inner).drain().collect();
        let devices: Vec<_> =
            runtime.devices.write().unwrap_or_else(PoisonError::into_inner).drain().collect();
        let mut first_failure = Ok(());
        for engine in engines {
            first_failure = first_failure.and(catch(|| {
                drop(engine);
                Ok(())
            }));
        }
        for device in devices {
            first_failure = first_failure.and(catch(|| {
                drop(device);
                Ok(())
            }));
        }
        runtime.listed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(started) = started {
            first_failure = first_failure.and(started.backend.shutdown());
        }
        first_failure
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn release_error(error: *mut TfError) {
    // SAFETY: the contract of `release_error`.
    unsafe { release(error) }
}

/// The table `tensorfold.backend/1` of a backend.
pub(super) const fn backend_table<B: Exported>() -> TfBackendV1 {
    TfBackendV1 {
        struct_size: size_of::<TfBackendV1>() as u32,
        reserved: 0,
        init: Some(init::<B>),
        list_devices: Some(list_devices::<B>),
        fit_device: Some(fit_device::<B>),
        open_device: Some(open_device::<B>),
        close_device: Some(close_device::<B>),
        set_log_level: Some(set_log_level),
        shutdown: Some(shutdown::<B>),
        release_error: Some(release_error),
    }
}

unsafe extern "C" fn plan<B: Exported>(
    device: u64,
    model: *const TfModel,
    options: *const TfEngineOptions,
    plan: *mut TfMemoryPlan,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `plan`, here and below.
        let model = unsafe { Model::from_raw(sized(model, "the model")?)? };
        // SAFETY: as above.
        let options = unsafe { EngineOptions::from_raw(sized(options, "the engine options")?)? };
        // SAFETY: as above.
        let out = unsafe { sized_mut(plan, "the memory plan")? };
        let planned = B::runtime().device(device)?.plan(&model, &options)?;
        *out = TfMemoryPlan { struct_size: size_of::<TfMemoryPlan>() as u32, ..planned };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn open_engine<B: Exported>(
    device: u64,
    model: *const TfModel,
    options: *const TfEngineOptions,
    progress: *const TfProgress,
    engine: *mut u64,
    error: *mut TfError,
) -> i32 {
    let body = || {
        not_null(engine, "the engine")?;
        // SAFETY: the contract of `open_engine`, here and below.
        let model = unsafe { Model::from_raw(sized(model, "the model")?)? };
        // SAFETY: as above.
        let options = unsafe { EngineOptions::from_raw(sized(options, "the engine options")?)? };
        // SAFETY: as above.
        let progress = unsafe { Progress::from_raw(progress) };
        let host = B::runtime().host()?;
        let opened = B::runtime().device(device)?.open_engine(&model, &options, &progress)?;
        let cell = EngineCell {
            device,
            info: opened.info,
            monitor: opened.monitor,
            host,
            inner: Mutex::new(EngineInner { engine: opened.engine, broken: false, degraded: String::new() }),
        };
        let mut engines = B::runtime().engines.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: checked above.
        unsafe { put(engine, engines.insert(Arc::new(cell)), "the engine") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn info<B: Exported>(engine: u64, info: *mut TfEngineInfo, error: *mut TfError) -> i32 {
    let body = || {
        let cell = B::runtime().engine(engine)?;
        // SAFETY: the contract of `info`.
        let out = unsafe { sized_mut(info, "the engine info")? };
        *out = TfEngineInfo {
            struct_size: size_of::<TfEngineInfo>() as u32,
            lanes: cell.info.lanes,
            context: cell.info.context,
            prefill_rows: cell.info.prefill_rows,
            output_rows: cell.info.output_rows,
            // Lives in the cell, which the table keeps until `close`.
            description: TfStr::new(&cell.info.description),
        };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

/// Runs a call of class `[engine]`; a panic makes the engine unusable.
pub(super) fn with_engine<B: Exported, T>(
    engine: u64,
    body: impl FnOnce(&mut EngineInner, Host) -> Result<T, PluginError>,
) -> Result<T, PluginError> {
    let cell = B::runtime().engine(engine)?;
    let mut inner = cell.enter()?;
    let outcome = catch(|| body(&mut inner, cell.host));
    if matches!(&outcome, Err(failure) if failure.status == Status::Panicked) {
        inner.broken = true;
    }
    outcome
}

unsafe extern "C" fn lane_open<B: Exported>(engine: u64, lane: *mut u64, error: *mut TfError) -> i32 {
    let body = || {
        not_null(lane, "the lane")?;
        let opened = with_engine::<B, _>(engine, |inner, _| inner.engine.lane_open())?;
        // SAFETY: checked above.
        unsafe { put(lane, opened, "the lane") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn lane_close<B: Exported>(engine: u64, lane: u64, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.lane_close(lane));
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn run_round<B: Exported>(
    engine: u64,
    raw: *const TfRound,
    result: *mut TfRoundResult,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `round`, here and below.
        let raw = unsafe { sized(raw, "the round")? };
        // SAFETY: as above.
        let result = unsafe { sized_mut(result, "the result of the round")? };
        with_engine::<B, _>(engine, |inner, host| {
            // SAFETY: as above.
            let (inputs, mut outputs) = unsafe { round::from_raw(raw, result, host)? };
            let report = inner.engine.round(&inputs, &mut outputs)?;
            let outcomes = outputs
                .into_iter()
                .zip(&inputs)
                .map(|(output, input)| output.finish(input))
                .collect::<Result<Vec<_>, _>>()?;
            inner.degraded.clone_from(&report.degraded);
            let degraded = TfStr::new(&inner.degraded);
            // SAFETY: as above; the outputs were consumed.
            unsafe { round::write_back(result, &outcomes, &report, degraded) };
            Ok(())
        })
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn snapshot<B: Exported>(
    engine: u64,
    lane: u64,
    snapshot: *mut TfSnapshot,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `snapshot`.
        let out = unsafe { sized_mut(snapshot, "the snapshot")? };
        let kept = with_engine::<B, _>(engine, |inner, _| inner.engine.snapshot(lane))?;
        *out = TfSnapshot { struct_size: size_of::<TfSnapshot>() as u32, ..kept };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn restore<B: Exported>(engine: u64, lane: u64, snapshot: u64, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.restore(lane, snapshot));
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn fork<B: Exported>(engine: u64, lane: u64, fork: *mut u64, error: *mut TfError) -> i32 {
    let body = || {
        not_null(fork, "the lane")?;
        let opened = with_engine::<B, _>(engine, |inner, _| inner.engine.fork(lane))?;
        // SAFETY: checked above.
        unsafe { put(fork, opened, "the lane") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn drop_snapshot<B: Exported>(engine: u64, snapshot: u64, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.drop_snapshot(snapshot));
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn sleep<B: Exported>(engine: u64, level: u32, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.sleep(level));
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn wake<B: Exported>(engine: u64, progress: *const TfProgress, error: *mut TfError) -> i32 {
    let body = || {
        // SAFETY: the contract of `wake`.
        let progress = unsafe { Progress::from_raw(progress) };
        with_engine::<B, _>(engine, |inner, _| inner.engine.wake(&progress))
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn memory<B: Exported>(
    engine: u64,
    memory: *mut TfEngineMemory,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `memory`.
        let out = unsafe { sized_mut(memory, "the memory figures")? };
        let now = B::runtime().engine(engine)?.monitor.memory();
        *out = TfEngineMemory { struct_size: size_of::<TfEngineMemory>() as u32, ..now };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn stats<B: Exported>(engine: u64, stats: *mut TfEngineStats, error: *mut TfError) -> i32 {
    let body = || {
        // SAFETY: the contract of `stats`.
        let out = unsafe { sized_mut(stats, "the counts")? };
        let now = B::runtime().engine(engine)?.monitor.stats();
        *out = TfEngineStats { struct_size: size_of::<TfEngineStats>() as u32, ..now };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn close<B: Exported>(engine: u64, error: *mut TfError) -> i32 {
    let body = || {
        let mut engines = B::runtime().engines.write().unwrap_or_else(PoisonError::into_inner);
        let cell = engines.remove(engine, "engine")?;
        drop(engines);
        drop(cell);
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

/// The table `tensorfold.engine/1` of a backend.
pub(super) const fn engine_table<B: Exported>() -> TfEngineV1 {
    TfEngineV1 {
        struct_size: size_of::<TfEngineV1>() as u32,
        reserved: 0,
        plan: Some(plan::<B>),
        open_engine: Some(open_engine::<B>),
        info: Some(info::<B>),
        lane_open: Some(lane_open::<B>),
        lane_close: Some(lane_close::<B>),
        round: Some(run_round::<B>),
        snapshot: Some(snapshot::<B>),
        restore: Some(restore::<B>),
        fork: Some(fork::<B>),
        drop_snapshot: Some(drop_snapshot::<B>),
        sleep: Some(sleep::<B>),
        wake: Some(wake::<B>),
        memory: Some(memory::<B>),
        stats: Some(stats::<B>),
        close: Some(close::<B>),
    }
}

/// Exports a [`Backend`](crate::plugin::Backend) as a plugin: the manifest's section and symbol,
/// the descriptor, and the module that attests layouts.
///
/// Use it once in a crate of type `cdylib`. `manifest` is a path relative to the source file.
/// The build id is the environment variable `TENSORFOLD_BUILD_ID` at build time, which a
/// packager may set; without it, a fingerprint of manifest and version.
///
/// ```text
/// tensorfold_plugin_api::export_plugin! {
///     backend: MyBackend,
///     manifest: "../tensorfold_plugin.toml",
/// }
/// ```
#[macro_export]
macro_rules! export_plugin {
    (backend: $backend:ty, manifest: $manifest:literal $(,)?) => {
        /// The manifest, where hosts read it without loading the library.
        #[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".tensorfold.manifest"))]
        #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__tf_manifest"))]
        #[used]
        #[unsafe(no_mangle)]
        pub static TENSORFOLD_PLUGIN_MANIFEST: [u8; include_bytes!($manifest).len()] =
            *include_bytes!($manifest);

        const _: () = {
            use $crate::abi::{ABI_MAJOR, ABI_MINOR, TF_PLUGIN_MAGIC, TfDescriptor, TfStr};
            use $crate::plugin::__private as private;

            static RUNTIME: private::Runtime<$backend> = private::Runtime::new();
            static TABLES: private::Tables = private::tables::<$backend>();

            impl private::Exported for $backend {
                fn runtime() -> &'static private::Runtime<Self> {
                    &RUNTIME
                }
            }

            static FINGERPRINT: [u8; 16] =
                private::fingerprint(&[include_bytes!($manifest), env!("CARGO_PKG_VERSION").as_bytes()]);

            const BUILD_ID: TfStr = match option_env!("TENSORFOLD_BUILD_ID") {
                Some(id) => TfStr::new(id),
                None => TfStr { data: FINGERPRINT.as_ptr(), length: 16 },
            };

            unsafe extern "C" fn get_interface(id: *const u8, length: u64) -> *const ::std::ffi::c_void {
                // SAFETY: the contract of `get_interface`.
                unsafe { private::interface::<$backend>(id, length, &TABLES) }
            }

            #[unsafe(export_name = "tensorfold_plugin_v1")]
            pub static DESCRIPTOR: TfDescriptor = TfDescriptor {
                magic: TF_PLUGIN_MAGIC,
                struct_size: ::std::mem::size_of::<TfDescriptor>() as u32,
                abi_major: ABI_MAJOR,
                abi_minor: ABI_MINOR,
                min_host_minor: ABI_MINOR,
                reserved: 0,
                flags: 0,
                manifest: (&raw const TENSORFOLD_PLUGIN_MANIFEST).cast(),
                manifest_length: TENSORFOLD_PLUGIN_MANIFEST.len() as u64,
                get_interface: Some(get_interface),
                version: TfStr::new(env!("CARGO_PKG_VERSION")),
                build_id: BUILD_ID,
            };

            $crate::__export_attestation!(&TENSORFOLD_PLUGIN_MANIFEST, get_interface);
        };
    };
}
