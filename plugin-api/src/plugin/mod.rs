//! The plugin's side of the border: traits to implement and the macro that exports them.
//!
//! A plugin in Rust implements [`Backend`], and [`Device`] and [`Engine`] when it runs models,
//! and names its backend in [`export_plugin!`](crate::export_plugin). Everything else is done
//! here: both doors, argument checks, handles, ownership, logs, and the promise that no panic
//! crosses the border.
//!
//! ```
//! use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo};
//! use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError, Status};
//!
//! struct Example;
//!
//! impl Backend for Example {
//!     const OFFERS_ENGINE: bool = false;
//!
//!     fn init(_init: Init<'_>) -> Result<Self, PluginError> {
//!         Ok(Example)
//!     }
//!     fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
//!         Ok(Vec::new())
//!     }
//!     fn fit_device(&self, _device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
//!         Ok(DeviceFit::usable())
//!     }
//!     fn open_device(&self, device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
//!         Err(PluginError::new(Status::NotFound, format!("no device {}", device.name)))
//!     }
//! }
//! ```

mod dlopen_note;
mod export;
mod export_drafters;
mod guard;
mod host;
mod log;
mod model;
mod round;
mod runtime;
mod tables;
/// Conversions that both sides use.
pub(crate) mod raw {
    pub(crate) use super::runtime::{identity_from_raw, raw_identity};
}
#[cfg(test)]
pub(crate) mod tests;

pub use crate::abi::{
    Status, TfDrafterPlan as DrafterPlan, TfEngineMemory as EngineMemory, TfEngineStats as EngineStats,
    TfLogprob as Logprob, TfMemoryPlan as MemoryPlan, TfSnapshot as Snapshot,
};
use crate::device::{DeviceFit, DeviceIdentity, DeviceInfo};
pub use crate::error::PluginError;
pub use host::{CancelToken, Host, Init};
pub use model::{Drafter, Dtype, EngineOptions, Model, Packed, Progress, Tensor, TensorBytes};
pub use round::{AllowedTokens, DraftKind, LaneInput, LaneOutput, NextDrafts, RoundReport};

#[doc(hidden)]
pub mod __private {
    pub use super::dlopen_note::{DlopenNote, padded};

    pub use super::runtime::{Exported, Runtime};
    pub use super::tables::{Tables, fingerprint, interface, tables};
}

/// A backend: the whole plugin, started once.
pub trait Backend: Send + Sync + Sized + 'static {
    /// Whether the plugin offers `tensorfold.engine/1`. Without, it lists devices only.
    const OFFERS_ENGINE: bool;

    /// Whether the plugin offers `tensorfold.mtp/1`: its engines draft with the checkpoint's own
    /// head.
    const OFFERS_MTP: bool = false;

    /// Whether the plugin offers `tensorfold.dflash/1`: its engines run external block drafters.
    const OFFERS_DFLASH: bool = false;

    /// Opens drivers and run-time libraries; no device, no thread that does work.
    ///
    /// # Errors
    /// [`Status::RuntimeMissing`] with the names tried when a library is not there.
    fn init(init: Init<'_>) -> Result<Self, PluginError>;

    /// The devices that the plugin sees now, usable or not.
    ///
    /// # Errors
    /// When the driver fails.
    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError>;

    /// Whether the plugin can use a device, and if not why.
    ///
    /// # Errors
    /// When the driver fails; an unusable device is no error.
    fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError>;

    /// Opens a device.
    ///
    /// # Errors
    /// [`Status::NotFound`], [`Status::Permission`], [`Status::Unsupported`], ...
    fn open_device(&self, device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError>;

    /// Ends the plugin. Everything that was opened is dropped before.
    ///
    /// # Errors
    /// When something could not be ended.
    fn shutdown(&self) -> Result<(), PluginError> {
        Ok(())
    }
}

/// An open device. Dropping it closes it.
pub trait Device: Send + Sync {
    /// What [`open_engine`](Device::open_engine) would hold. Arithmetic only; tensors come
    /// without bytes.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for a model that the plugin cannot run, naming what it lacks.
    fn plan(&self, model: &Model<'_>, options: &EngineOptions<'_>) -> Result<MemoryPlan, PluginError>;

    /// Loads a model.
    ///
    /// # Errors
    /// As [`plan`](Device::plan), and [`Status::OutOfMemory`], [`Status::Cancelled`], ...
    fn open_engine(
        &self,
        model: &Model<'_>,
        options: &EngineOptions<'_>,
        progress: &Progress<'_>,
    ) -> Result<OpenEngine, PluginError>;

    /// What [`Engine::open_mtp`] would hold for this model. Arithmetic only; tensors come without
    /// bytes.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for a head that the plugin cannot run, and unless implemented.
    fn plan_mtp(&self, _model: &Model<'_>, _options: &EngineOptions<'_>) -> Result<DrafterPlan, PluginError> {
        Err(PluginError::unsupported("this plugin drafts with no head"))
    }

    /// What [`Engine::open_dflash`] would hold for this model and drafter. Arithmetic only;
    /// tensors come without bytes.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for a drafter that the plugin cannot run or that does not fit the
    /// model, and unless implemented.
    fn plan_dflash(
        &self,
        _model: &Model<'_>,
        _drafter: &Drafter<'_>,
        _options: &EngineOptions<'_>,
    ) -> Result<DrafterPlan, PluginError> {
        Err(PluginError::unsupported("this plugin runs no external drafter"))
    }
}

/// A loaded model, as [`Device::open_engine`] returns it.
pub struct OpenEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// What can be asked while the engine works.
    pub monitor: std::sync::Arc<dyn EngineMonitor>,
    /// Facts that do not change.
    pub info: EngineInfo,
}

/// Facts of an open engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Lanes that can be open at once.
    pub lanes: u32,
    /// Tokens that a lane can hold.
    pub context: u64,
    /// Rows of a prompt chunk that the engine likes best; a multiple of 64.
    pub prefill_rows: u32,
    /// Most rows of one lane whose draw can be wanted in a round.
    pub output_rows: u32,
    /// One line about how the engine runs, for the log.
    pub description: String,
}

/// A loaded model. Calls come one at a time. Dropping it frees everything.
///
/// Lanes and snapshots are named by numbers that the engine hands out: never 0 and never used
/// again. [`Handles`] does that.
pub trait Engine: Send {
    /// Opens an empty lane.
    ///
    /// # Errors
    /// [`Status::Busy`] when all lanes are open, [`Status::OutOfMemory`].
    fn lane_open(&mut self) -> Result<u64, PluginError>;

    /// Closes a lane.
    ///
    /// # Errors
    /// [`Status::NotFound`].
    fn lane_close(&mut self, lane: u64) -> Result<(), PluginError>;

    /// One step for all lanes named; see [`crate::abi::TfRound`] for the rules. `outputs` has
    /// one entry for each of `inputs`.
    ///
    /// # Errors
    /// When the round as a whole failed; the engine is then not used any more. A cancelled lane
    /// is no error: mark its output.
    fn round(
        &mut self,
        inputs: &[LaneInput<'_>],
        outputs: &mut [LaneOutput<'_>],
    ) -> Result<RoundReport, PluginError>;

    /// Keeps the state of a lane.
    ///
    /// # Errors
    /// [`Status::Unsupported`] unless implemented.
    fn snapshot(&mut self, _lane: u64) -> Result<Snapshot, PluginError> {
        Err(PluginError::unsupported("this engine keeps no snapshots"))
    }

    /// Makes a lane hold a kept state.
    ///
    /// # Errors
    /// [`Status::Unsupported`] unless implemented.
    fn restore(&mut self, _lane: u64, _snapshot: u64) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine keeps no snapshots"))
    }

    /// Opens a lane that holds what another one holds.
    ///
    /// # Errors
    /// [`Status::Unsupported`] unless implemented.
    fn fork(&mut self, _lane: u64) -> Result<u64, PluginError> {
        Err(PluginError::unsupported("this engine forks no lanes"))
    }

    /// Frees a snapshot.
    ///
    /// # Errors
    /// [`Status::NotFound`].
    fn drop_snapshot(&mut self, _snapshot: u64) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine keeps no snapshots"))
    }

    /// Gives memory back without closing.
    ///
    /// # Errors
    /// [`Status::Unsupported`] unless implemented.
    fn sleep(&mut self, _level: u32) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine does not sleep"))
    }

    /// Undoes [`sleep`](Engine::sleep).
    ///
    /// # Errors
    /// [`Status::Unsupported`] unless implemented.
    fn wake(&mut self, _progress: &Progress<'_>) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine does not sleep"))
    }

    /// Makes the checkpoint's own head ready and says how many drafts it makes for a lane in a
    /// round, at most. There are no lanes and no snapshots yet.
    ///
    /// # Errors
    /// [`Status::Busy`] when there are; [`Status::Unsupported`] unless implemented.
    fn open_mtp(&mut self, _progress: &Progress<'_>) -> Result<u32, PluginError> {
        Err(PluginError::unsupported("this engine drafts with no head"))
    }

    /// Frees what [`open_mtp`](Engine::open_mtp) took.
    ///
    /// # Errors
    /// [`Status::Busy`] while lanes or snapshots are there.
    fn close_mtp(&mut self) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine drafts with no head"))
    }

    /// Loads an external block drafter and says how many drafts it makes for a lane in a round,
    /// at most. There are no lanes and no snapshots yet. The bytes of its tensors may be used
    /// until [`close_dflash`](Engine::close_dflash) or the engine's end.
    ///
    /// # Errors
    /// [`Status::Busy`] when there are; [`Status::Unsupported`] unless implemented.
    fn open_dflash(&mut self, _drafter: &Drafter<'_>, _progress: &Progress<'_>) -> Result<u32, PluginError> {
        Err(PluginError::unsupported("this engine runs no external drafter"))
    }

    /// Frees what [`open_dflash`](Engine::open_dflash) took.
    ///
    /// # Errors
    /// [`Status::Busy`] while lanes or snapshots are there.
    fn close_dflash(&mut self) -> Result<(), PluginError> {
        Err(PluginError::unsupported("this engine runs no external drafter"))
    }
}

/// What can be asked of an engine from any thread, also during a round.
pub trait EngineMonitor: Send + Sync {
    /// What the engine holds now.
    fn memory(&self) -> EngineMemory;
    /// Counts since it was opened.
    fn stats(&self) -> EngineStats;
}

/// Objects named by numbers that are never 0 and never used again.
#[derive(Debug)]
pub struct Handles<T> {
    next: u64,
    entries: std::collections::BTreeMap<u64, T>,
}

impl<T> Handles<T> {
    /// An empty table whose numbers begin with `kind` in the top byte, so that a handle of one
    /// kind is never taken for one of another.
    pub const fn new(kind: u8) -> Handles<T> {
        Handles { next: ((kind as u64) << 56) + 1, entries: std::collections::BTreeMap::new() }
    }

    /// Adds an object and names it.
    pub fn insert(&mut self, entry: T) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.entries.insert(handle, entry);
        handle
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`Status::NotFound`], calling the object `what`.
    pub fn get(&self, handle: u64, what: &str) -> Result<&T, PluginError> {
        self.entries.get(&handle).ok_or_else(|| missing(handle, what))
    }

    /// As [`get`](Handles::get), writable.
    ///
    /// # Errors
    /// [`Status::NotFound`].
    pub fn get_mut(&mut self, handle: u64, what: &str) -> Result<&mut T, PluginError> {
        self.entries.get_mut(&handle).ok_or_else(|| missing(handle, what))
    }

    /// Takes the object out; its handle is not used again.
    ///
    /// # Errors
    /// [`Status::NotFound`].
    pub fn remove(&mut self, handle: u64, what: &str) -> Result<T, PluginError> {
        self.entries.remove(&handle).ok_or_else(|| missing(handle, what))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }

    /// Takes everything out, in the order of insertion.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.entries).into_values()
    }
}

fn missing(handle: u64, what: &str) -> PluginError {
    PluginError::new(Status::NotFound, format!("there is no {what} {handle:#x}"))
}
