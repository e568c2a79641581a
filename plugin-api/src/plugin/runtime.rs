//! What a loaded plugin holds: its backend, devices and engines, by handle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::{Backend, Device, Engine, EngineInfo, EngineMonitor, Handles, Host, PluginError, Status};
use crate::abi::{TfDeviceIdentity, TfDeviceInfo, TfKeyValue, TfStr};
use crate::device::{DeviceIdentity, DeviceInfo};

/// Ties a backend to the statics that [`export_plugin!`](crate::export_plugin) makes for it.
pub trait Exported: Backend {
    /// The one runtime of the library.
    fn runtime() -> &'static Runtime<Self>;
}

/// The state of a plugin between `init` and `shutdown`.
pub struct Runtime<B> {
    pub(super) backend: RwLock<Option<Started<B>>>,
    pub(super) devices: RwLock<Handles<DeviceEntry>>,
    pub(super) engines: RwLock<Handles<Arc<EngineCell>>>,
    pub(super) listed: Mutex<Vec<ListedDevice>>,
    pub(super) fit_text: Mutex<String>,
}

pub(super) struct Started<B> {
    pub(super) backend: Arc<B>,
    pub(super) host: Host,
}

pub(super) struct DeviceEntry {
    pub(super) device: Arc<dyn Device>,
}

/// One engine. Dropping the last reference frees the model.
pub(super) struct EngineCell {
    pub(super) device: u64,
    pub(super) info: EngineInfo,
    pub(super) monitor: Arc<dyn EngineMonitor>,
    pub(super) host: Host,
    pub(super) inner: Mutex<EngineInner>,
}

pub(super) struct EngineInner {
    pub(super) engine: Box<dyn Engine>,
    /// Set by a panic: the engine's state may be half changed, so it only gets dropped.
    pub(super) broken: bool,
    pub(super) degraded: String,
}

impl<B> Runtime<B> {
    /// An empty runtime.
    #[allow(clippy::new_without_default, reason = "a const constructor is what statics need")]
    pub const fn new() -> Runtime<B> {
        Runtime {
            backend: RwLock::new(None),
            devices: RwLock::new(Handles::new(1)),
            engines: RwLock::new(Handles::new(2)),
            listed: Mutex::new(Vec::new()),
            fit_text: Mutex::new(String::new()),
        }
    }

    pub(super) fn backend(&self) -> Result<Arc<B>, PluginError> {
        let started = self.backend.read().unwrap_or_else(PoisonError::into_inner);
        started.as_ref().map(|started| started.backend.clone()).ok_or_else(not_started)
    }

    pub(super) fn host(&self) -> Result<Host, PluginError> {
        let started = self.backend.read().unwrap_or_else(PoisonError::into_inner);
        started.as_ref().map(|started| started.host).ok_or_else(not_started)
    }

    pub(super) fn device(&self, handle: u64) -> Result<Arc<dyn Device>, PluginError> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        Ok(devices.get(handle, "device")?.device.clone())
    }

    pub(super) fn engine(&self, handle: u64) -> Result<Arc<EngineCell>, PluginError> {
        let engines = self.engines.read().unwrap_or_else(PoisonError::into_inner);
        Ok(engines.get(handle, "engine")?.clone())
    }
}

fn not_started() -> PluginError {
    PluginError::invalid("the plugin is not initialised; call init first")
}

impl EngineCell {
    /// The engine, for a call of class `[engine]`.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, EngineInner>, PluginError> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            // A panic is caught inside of the lock, so a poisoned one is as good as any.
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(PluginError::new(
                    Status::Busy,
                    "two calls into one engine at once; the host must make them one after another",
                ));
            }
        };
        if inner.broken {
            return Err(PluginError::new(
                Status::Panicked,
                "this engine panicked before; close it and open a new one",
            ));
        }
        Ok(inner)
    }
}

/// A device list entry, with what its C form points to.
pub(super) struct ListedDevice {
    info: DeviceInfo,
    facts: Vec<TfKeyValue>,
}

// SAFETY: the pointers in `facts` lead into `info` of the same entry, which is never changed.
unsafe impl Send for ListedDevice {}

impl ListedDevice {
    pub(super) fn new(info: DeviceInfo) -> ListedDevice {
        let facts = info
            .facts
            .iter()
            .map(|(key, value)| TfKeyValue { key: TfStr::new(key), value: TfStr::new(value) })
            .collect();
        ListedDevice { info, facts }
    }

    /// The C form, valid while this entry lives.
    pub(super) fn raw(&self) -> TfDeviceInfo {
        let info = &self.info;
        TfDeviceInfo {
            struct_size: size_of::<TfDeviceInfo>() as u32,
            memory: info.memory.code(),
            identity: raw_identity(&info.identity),
            arch: TfStr::new(&info.arch),
            memory_bytes: info.memory_bytes.unwrap_or(0),
            free_memory_bytes: info.free_memory_bytes.unwrap_or(0),
            driver: TfStr::new(&info.driver),
            facts: self.facts.as_ptr(),
            fact_count: self.facts.len() as u64,
        }
    }
}

/// The C form of an identity, valid while `identity` lives.
pub(crate) fn raw_identity(identity: &DeviceIdentity) -> TfDeviceIdentity {
    TfDeviceIdentity {
        struct_size: size_of::<TfDeviceIdentity>() as u32,
        kind: identity.kind.code(),
        pci_address: TfStr::new(&identity.pci_address),
        uuid: TfStr::new(&identity.uuid),
        name: TfStr::new(&identity.name),
        index: identity.index,
        reserved: 0,
    }
}

/// # Safety
/// `raw` must follow the contract of [`TfDeviceIdentity`].
pub(crate) unsafe fn identity_from_raw(raw: &TfDeviceIdentity) -> DeviceIdentity {
    // SAFETY: the caller's promise.
    unsafe {
        DeviceIdentity {
            kind: crate::device::DeviceKind::from_code(raw.kind),
            pci_address: raw.pci_address.to_string_lossy(),
            uuid: raw.uuid.to_string_lossy(),
            name: raw.name.to_string_lossy(),
            index: raw.index,
        }
    }
}
