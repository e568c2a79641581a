//! The host's side of the border: safe calls into a loaded plugin.
//!
//! A [`PluginClient`] wraps the tables of one plugin. Everything that comes back is checked
//! before it is believed: null functions, sizes, counts and token ids. Nothing here decides
//! whether a plugin may be used, and nothing here opens a library.

mod client;
mod control;
mod drafters;
mod engine;
mod model;
mod services;
#[cfg(test)]
mod tests;

pub use client::{DeviceClient, InitOptions, InterfaceError, PluginClient};
pub use control::GAVE_UP;
pub use engine::{EngineClient, LaneOutcome, LaneRequest, MonitorClient, RoundOutcome};
pub use model::{DrafterSource, EngineSetup, ModelSource, ModelTensor, TensorSource};
pub use services::{CancelHandle, HostServices, LogRecord};
