//! A plugin's `tensorfold.backend/1`, called safely.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::control::ControlThread;
use super::services::HostTable;
use super::{CancelHandle, HostServices};
use crate::PluginError;
use crate::abi::{
    ABI_MAJOR, BACKEND_INTERFACE, DFLASH_INTERFACE, ENGINE_INTERFACE, MTP_INTERFACE, Status, TF_STATUS_OK,
    TfBackendV1, TfConfigurationEntry, TfDescriptor, TfDeviceFit, TfDeviceIdentity, TfDeviceInfo, TfDflashV1,
    TfEngineV1, TfError, TfInit, TfMtpV1, TfStr,
};
use crate::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceMemory};
use crate::plugin::raw::{identity_from_raw, raw_identity};

/// Why a plugin's tables cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// The descriptor has no lookup function.
    #[error("the descriptor's get_interface is null")]
    NoLookup,
    /// The manifest offers an interface that the library does not have.
    #[error("the manifest offers {id}, but the library has no such table")]
    Missing {
        /// The id.
        id: String,
    },
    /// A table is smaller than its id promises.
    #[error("the table {id} has {found} bytes, wanted {wanted}")]
    TooSmall {
        /// The id.
        id: String,
        /// Bytes found.
        found: u32,
        /// Bytes wanted.
        wanted: u32,
    },
    /// A function that the contract demands is null.
    #[error("the function {function} of the table {id} is null")]
    NullFunction {
        /// The id.
        id: String,
        /// The function.
        function: &'static str,
    },
    /// The system gives no thread for the plugin's control calls.
    #[error("no thread for the plugin: {0}")]
    NoThread(String),
}

/// What `init` is given.
pub struct InitOptions {
    /// The host's release.
    pub host_version: String,
    /// The ABI minor that host and plugin agreed on.
    pub agreed_abi_minor: u16,
    /// Options for the plugin, by name: value, and whether the plugin must know them.
    pub configuration: Vec<(String, String, bool)>,
    /// Level filter for logs (`TF_LOG_*`).
    pub log_level: u32,
}

/// The tables of one loaded plugin. The library stays mapped to the end of the process.
pub struct PluginClient {
    pub(super) backend: &'static TfBackendV1,
    pub(super) engine: Option<&'static TfEngineV1>,
    pub(super) mtp: Option<&'static TfMtpV1>,
    pub(super) dflash: Option<&'static TfDflashV1>,
    pub(super) host: HostTable,
    /// Where functions of class `[control]` run.
    control: ControlThread,
}

macro_rules! require {
    ($table:expr, $id:expr, [$($function:ident),+ $(,)?]) => {
        $(if $table.$function.is_none() {
            return Err(InterfaceError::NullFunction { id: $id.to_owned(), function: stringify!($function) });
        })+
    };
}

/// # Safety
/// `get` must follow the contract of `get_interface`.
unsafe fn table<T>(
    get: unsafe extern "C" fn(*const u8, u64) -> *const c_void,
    id: &str,
) -> Result<&'static T, InterfaceError> {
    // SAFETY: the caller's promise; the id is readable.
    let raw = unsafe { get(id.as_ptr(), id.len() as u64) };
    if raw.is_null() {
        return Err(InterfaceError::Missing { id: id.to_owned() });
    }
    // SAFETY: not null; the contract says that every table begins with its size.
    let found = unsafe { raw.cast::<u32>().read() };
    let wanted = size_of::<T>() as u32;
    if found < wanted {
        return Err(InterfaceError::TooSmall { id: id.to_owned(), found, wanted });
    }
    // SAFETY: large enough, and the contract says that it lives to the end of the process.
    Ok(unsafe { &*raw.cast::<T>() })
}

impl PluginClient {
    /// Fetches and checks the tables. `offered` are the interfaces of the plugin's manifest:
    /// one that is not listed is not used, one that is listed must be there. `configuration`
    /// is what the plugin can look up at any time.
    ///
    /// # Safety
    /// `descriptor` must be that of a loaded library that is never unloaded, and the library
    /// must follow the contract; nothing can make native code safe that does not.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub unsafe fn new(
        descriptor: &'static TfDescriptor,
        offered: &[String],
        services: Box<dyn HostServices>,
        configuration: &[(String, String)],
    ) -> Result<Arc<PluginClient>, InterfaceError> {
        let get = descriptor.get_interface.ok_or(InterfaceError::NoLookup)?;
        // SAFETY: the caller's promise, here and below.
        let backend = unsafe { table::<TfBackendV1>(get, BACKEND_INTERFACE)? };
        require!(
            backend,
            BACKEND_INTERFACE,
            [
                init,
                list_devices,
                fit_device,
                open_device,
                close_device,
                set_log_level,
                shutdown,
                release_error
            ]
        );
        let offers = |id: &str| offered.iter().any(|offered| offered == id);
        let engine = if offers(ENGINE_INTERFACE) {
            // SAFETY: as above.
            let engine = unsafe { table::<TfEngineV1>(get, ENGINE_INTERFACE)? };
            require!(
                engine,
                ENGINE_INTERFACE,
                [
                    plan,
                    open_engine,
                    info,
                    lane_open,
                    lane_close,
                    round,
                    snapshot,
                    restore,
                    fork,
                    drop_snapshot,
                    sleep,
                    wake,
                    memory,
                    stats,
                    close
                ]
            );
            Some(engine)
        } else {
            None
        };
        let (mut mtp, mut dflash) = (None, None);
        if offers(MTP_INTERFACE) {
            // SAFETY: as above.
            let table = unsafe { table::<TfMtpV1>(get, MTP_INTERFACE)? };
            require!(table, MTP_INTERFACE, [plan, open, close]);
            mtp = Some(table);
        }
        if offers(DFLASH_INTERFACE) {
            // SAFETY: as above.
            let table = unsafe { table::<TfDflashV1>(get, DFLASH_INTERFACE)? };
            require!(table, DFLASH_INTERFACE, [plan, open, close]);
            dflash = Some(table);
        }
        let host = HostTable::leak(services, configuration);
        let control = ControlThread::start().map_err(|error| InterfaceError::NoThread(error.to_string()))?;
        Ok(Arc::new(PluginClient { backend, engine, mtp, dflash, host, control }))
    }

    /// Whether the plugin runs models.
    pub fn offers_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Whether the plugin's engines draft with a checkpoint's own head.
    pub fn offers_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    /// Whether the plugin's engines run external block drafters.
    pub fn offers_dflash(&self) -> bool {
        self.dflash.is_some()
    }

    /// A handle for cancelling work of this plugin.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.host.context.cancels.handle()
    }

    /// Calls a function of any table and turns its status into a result.
    pub(super) fn call(&self, call: impl FnOnce(*mut TfError) -> i32) -> Result<(), PluginError> {
        let mut error = TfError::empty();
        let code = call(&mut error);
        if code == TF_STATUS_OK {
            return Ok(());
        }
        let status = Status::from_code(code);
        // SAFETY: the contract says that a failed call filled the error with what the plugin owns
        // until `release_error`; an empty message means that it filled nothing.
        let failure = unsafe {
            let details = crate::abi::slice(error.details, error.detail_count);
            PluginError {
                status,
                message: error.message.to_string_lossy(),
                details: details
                    .iter()
                    .map(|pair| (pair.key.to_string_lossy(), pair.value.to_string_lossy()))
                    .collect(),
            }
        };
        if let Some(release) = self.backend.release_error {
            // SAFETY: filled by this plugin, released once.
            unsafe { release(&mut error) };
        }
        if failure.message.is_empty() {
            return Err(PluginError {
                message: format!("the plugin failed with status {status} ({code}) and gave no reason"),
                ..failure
            });
        }
        Err(failure)
    }

    /// Calls a function of class `[control]`.
    pub(super) fn control(&self, call: impl FnOnce(*mut TfError) -> i32) -> Result<(), PluginError> {
        self.control.run(|| self.call(call))?
    }

    /// Starts the plugin. When `limit` passes first, the plugin may still be inside of `init`, and
    /// every later call of class `[control]` fails at once: end the process.
    ///
    /// # Errors
    /// What the plugin says; [`Status::Timeout`] with the fact [`GAVE_UP`](super::GAVE_UP) when it
    /// does not answer in time.
    pub fn init(self: &Arc<Self>, options: InitOptions, limit: Duration) -> Result<(), PluginError> {
        let plugin = self.clone();
        self.control.run_within(limit, move || plugin.init_here(&options))?
    }

    fn init_here(&self, options: &InitOptions) -> Result<(), PluginError> {
        let entries: Vec<TfConfigurationEntry> = options
            .configuration
            .iter()
            .map(|(key, value, required)| TfConfigurationEntry {
                key: TfStr::new(key),
                value: TfStr::new(value),
                required: u32::from(*required),
                reserved: 0,
            })
            .collect();
        let init = TfInit {
            struct_size: size_of::<TfInit>() as u32,
            host_abi_major: ABI_MAJOR,
            agreed_abi_minor: options.agreed_abi_minor,
            host_version: TfStr::new(&options.host_version),
            host: self.host.table,
            configuration: entries.as_ptr(),
            configuration_count: entries.len() as u64,
            log_level: options.log_level,
            reserved: 0,
        };
        let call = self.backend.init.expect("checked in new");
        // SAFETY: the table's contract; everything is borrowed for the call but the host table,
        // which lives to the end of the process.
        self.call(|error| unsafe { call(&init, error) })
    }

    /// The devices that the plugin sees.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        self.control.run(|| self.list_devices_here())?
    }

    fn list_devices_here(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        const ROOM: usize = 64;
        const MOST: u64 = 65_536;
        // SAFETY: a device info of zeroes is valid: null pointers with length 0.
        let empty: TfDeviceInfo = unsafe { std::mem::zeroed() };
        let mut devices = vec![empty; ROOM];
        let call = self.backend.list_devices.expect("checked in new");
        let mut count = 0;
        // Devices can come and go between two calls, so the second call's count is bounded too.
        for _ in 0..2 {
            // SAFETY: the table's contract; there is room for as many entries as stated.
            self.call(|error| unsafe {
                call(devices.as_mut_ptr(), devices.len() as u64, &mut count, error)
            })?;
            if count > MOST {
                return Err(PluginError::internal(format!(
                    "the plugin says that it has {count} devices; at most {MOST} are believed"
                )));
            }
            if count as usize <= devices.len() {
                break;
            }
            devices.resize(count as usize, empty);
        }
        let written = devices.len().min(count as usize);
        let wanted = size_of::<TfDeviceInfo>() as u32;
        let short = devices[..written].iter().position(|raw| {
            raw.struct_size < wanted || (raw.identity.struct_size as usize) < size_of::<TfDeviceIdentity>()
        });
        if let Some(place) = short {
            return Err(PluginError::internal(format!(
                "the plugin listed {count} devices, and number {place} has {} bytes where {wanted} are wanted",
                devices[place].struct_size
            )));
        }
        // SAFETY: the contract says that the texts are valid until the next call of this class,
        // which waits for this one.
        Ok(devices[..written].iter().map(|raw| unsafe { device_from_raw(raw) }).collect())
    }

    /// Whether the plugin can use a device.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        let identity = raw_identity(device);
        let mut fit =
            TfDeviceFit { struct_size: size_of::<TfDeviceFit>() as u32, reasons: 0, text: TfStr::EMPTY };
        let call = self.backend.fit_device.expect("checked in new");
        self.control.run(|| {
            // SAFETY: the table's contract.
            self.call(|error| unsafe { call(&identity, &mut fit, error) })?;
            // SAFETY: valid until the next call of this class, which waits for this one.
            Ok(DeviceFit { reasons: fit.reasons, text: unsafe { fit.text.to_string_lossy() } })
        })?
    }

    /// Opens a device.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open_device(self: &Arc<Self>, device: &DeviceIdentity) -> Result<Arc<DeviceClient>, PluginError> {
        let identity = raw_identity(device);
        let mut handle = 0;
        let call = self.backend.open_device.expect("checked in new");
        // SAFETY: the table's contract.
        self.control(|error| unsafe { call(&identity, &mut handle, error) })?;
        if handle == 0 {
            return Err(PluginError::internal("the plugin opened a device but named it 0"));
        }
        Ok(Arc::new(DeviceClient { plugin: self.clone(), handle }))
    }

    /// Sets the plugin's level filter for logs (`TF_LOG_*`).
    pub fn set_log_level(&self, level: u32) {
        let call = self.backend.set_log_level.expect("checked in new");
        // SAFETY: the table's contract; `[any]`.
        unsafe { call(level) };
    }

    /// Ends the plugin. Fine after a failed `init` and more than once.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn shutdown(&self) -> Result<(), PluginError> {
        self.control.run(|| self.shut_down_here())?
    }

    /// As [`shutdown`](PluginClient::shutdown). When `limit` passes first, the plugin may still be
    /// inside, and every later call of class `[control]` fails at once: end the process.
    ///
    /// # Errors
    /// What the plugin says; [`Status::Timeout`] with the fact [`GAVE_UP`](super::GAVE_UP) when it
    /// does not answer in time.
    pub fn shutdown_within(self: &Arc<Self>, limit: Duration) -> Result<(), PluginError> {
        let plugin = self.clone();
        self.control.run_within(limit, move || plugin.shut_down_here())?
    }

    fn shut_down_here(&self) -> Result<(), PluginError> {
        let call = self.backend.shutdown.expect("checked in new");
        // SAFETY: the table's contract.
        self.call(|error| unsafe { call(error) })
    }
}

/// # Safety
/// `raw` must follow the contract of [`TfDeviceInfo`].
unsafe fn device_from_raw(raw: &TfDeviceInfo) -> DeviceInfo {
    let known = |bytes: u64| (bytes != 0).then_some(bytes);
    // SAFETY: the caller's promise.
    unsafe {
        let facts = crate::abi::slice(raw.facts, raw.fact_count);
        DeviceInfo {
            identity: identity_from_raw(&raw.identity),
            memory: DeviceMemory::from_code(raw.memory),
            arch: raw.arch.to_string_lossy(),
            memory_bytes: known(raw.memory_bytes),
            free_memory_bytes: known(raw.free_memory_bytes),
            driver: raw.driver.to_string_lossy(),
            facts: facts
                .iter()
                .map(|pair| (pair.key.to_string_lossy(), pair.value.to_string_lossy()))
                .collect(),
        }
    }
}

/// An open device; closed when dropped.
pub struct DeviceClient {
    pub(super) plugin: Arc<PluginClient>,
    pub(super) handle: u64,
}

impl DeviceClient {
    /// The plugin that the device belongs to.
    pub fn plugin(&self) -> &Arc<PluginClient> {
        &self.plugin
    }
}

impl Drop for DeviceClient {
    fn drop(&mut self) {
        let call = self.plugin.backend.close_device.expect("checked in new");
        // SAFETY: the table's contract.
        let closed = self.plugin.control(|error| unsafe { call(self.handle, error) });
        if let Err(failure) = closed {
            // After `shutdown` the plugin knows the device no more, which is as good as closed.
            if failure.status != Status::NotFound {
                tracing::warn!(%failure, "a device did not close");
            }
        }
    }
}
