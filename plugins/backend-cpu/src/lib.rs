//! tensorfold's CPU backend.
//!
//! The executor of `tensorfold-kernels` on its CPU device, behind the engine
//! interface. Weights are used where the host mapped them. Guarantees: a reply
//! depends on nothing but model, tokens and sampling, bit for bit; no thread
//! runs before an engine is opened, and idle threads block.

mod device;
mod engine;
mod system;
#[cfg(test)]
mod tests;

use device::CpuPluginDevice;
use tensorfold_kernels::cpu::Activations;
use tensorfold_plugin_api::abi::TF_UNFIT_DEVICE;
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo};
use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError, Status};

/// What is said of a device that is not in the list.
const NO_SUCH_DEVICE: &str = "this plugin offers the machine's processors as one device and no other";

struct Cpu {
    threads: usize,
    activations: Activations,
}

tensorfold_plugin_api::export_plugin! {
    backend: Cpu,
    manifest: "../tensorfold_plugin.toml",
}

impl Backend for Cpu {
    const OFFERS_ENGINE: bool = true;
    const OFFERS_MTP: bool = true;
    const OFFERS_DFLASH: bool = true;

    fn init(init: Init<'_>) -> Result<Self, PluginError> {
        init.check_keys(&["threads", "activations"])?;
        let threads = match init.value("threads") {
            None | Some("0") => std::thread::available_parallelism().map_or(1, usize::from),
            Some(text) => text.parse().map_err(|_| {
                PluginError::invalid(format!("the option threads wants a whole number, found \"{text}\""))
            })?,
        };
        let activations = match init.value("activations") {
            None | Some("f32") => Activations::F32,
            Some("int8") => Activations::Int8,
            Some(text) => {
                return Err(PluginError::invalid(format!(
                    "the option activations wants f32 or int8, found \"{text}\""
                )));
            }
        };
        Ok(Cpu { threads, activations })
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        Ok(vec![system::device()])
    }

    fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        if system::device().identity.same_device(device) {
            Ok(DeviceFit::usable())
        } else {
            Ok(DeviceFit::unusable(TF_UNFIT_DEVICE, NO_SUCH_DEVICE))
        }
    }

    fn open_device(&self, device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        if system::device().identity.same_device(device) {
            Ok(Box::new(CpuPluginDevice::new(self.threads, self.activations)))
        } else {
            Err(PluginError::new(Status::NotFound, NO_SUCH_DEVICE))
        }
    }
}
