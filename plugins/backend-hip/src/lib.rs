//! tensorfold's HIP backend.
//!
//! Opens AMD's HIP runtime in `init` and lists its GPUs. It runs no model yet,
//! and its manifest declares none. Guarantees: the library loads on every
//! machine, with or without ROCm, and neither `init` nor the list of devices
//! touches device memory.

mod driver;
mod ffi;

use std::path::Path;

use driver::{COMPUTE_NODE, Driver, DriverError, Gpu, candidates};
use tensorfold_plugin_api::abi::{TF_UNFIT_DEVICE, TF_UNFIT_OTHER};
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceKind, DeviceMemory};
use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError, Status};
use tensorfold_plugin_api::runtime_library::trusted_variable;

/// Why no GPU can be used, whichever it is.
const NO_MODELS: &str =
    "this release of the HIP plugin lists GPUs and runs no model on them; serve with --backend cpu";

/// What is said of a GPU that is not in the list.
const NO_SUCH_GPU: &str =
    "the HIP runtime shows this process no such GPU; list those it shows with `rocminfo`";

struct Hip {
    driver: Driver,
}

tensorfold_plugin_api::export_plugin! {
    backend: Hip,
    manifest: "../tensorfold_plugin.toml",
}

// The driver comes with the machine or the container, so packages only recommend it.
tensorfold_plugin_api::dlopen_note! {
    feature: "hip",
    description: "AMD's HIP runtime",
    priority: "recommended",
    soname: ["libamdhip64.so.7", "libamdhip64.so.6"],
}

impl Backend for Hip {
    const OFFERS_ENGINE: bool = false;

    fn init(_init: Init<'_>) -> Result<Self, PluginError> {
        let names = candidates(trusted_variable("ROCM_PATH").as_deref());
        let driver = Driver::open(&names, Path::new(COMPUTE_NODE)).map_err(plugin_error)?;
        tracing::info!(library = %driver.library_path().display(), version = %driver.version(), "opened the HIP runtime");
        Ok(Self { driver })
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        let gpus = self.driver.gpus().map_err(plugin_error)?;
        Ok(gpus.into_iter().map(|gpu| device_info(gpu, &self.driver)).collect())
    }

    fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        let listed = self.list_devices()?;
        if listed.iter().any(|info| info.identity.same_device(device)) {
            Ok(DeviceFit::unusable(TF_UNFIT_OTHER, NO_MODELS))
        } else {
            Ok(DeviceFit::unusable(TF_UNFIT_DEVICE, NO_SUCH_GPU))
        }
    }

    fn open_device(&self, _device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        Err(PluginError::unsupported(NO_MODELS))
    }
}

fn device_info(gpu: Gpu, driver: &Driver) -> DeviceInfo {
    DeviceInfo {
        identity: DeviceIdentity {
            kind: DeviceKind::Gpu,
            pci_address: gpu.pci_address,
            uuid: String::new(),
            name: gpu.name,
            index: gpu.ordinal,
        },
        memory: if gpu.unified_memory { DeviceMemory::Unified } else { DeviceMemory::Dedicated },
        arch: gpu.architecture,
        memory_bytes: Some(gpu.memory_bytes),
        // The runtime answers this for the selected device only, and none is
        // selected here.
        free_memory_bytes: None,
        driver: format!("HIP {}", driver.version()),
        facts: vec![
            ("arch_with_features".to_owned(), gpu.architecture_with_features),
            ("library".to_owned(), driver.library_path().display().to_string()),
        ],
    }
}

/// The error for the host, with the code of the plugin life cycle as a detail.
fn plugin_error(error: DriverError) -> PluginError {
    let (status, code) = match &error {
        DriverError::Missing { .. } | DriverError::Incomplete(_) => {
            (Status::RuntimeMissing, "runtime-missing")
        }
        DriverError::TooOld { .. } => (Status::RuntimeMissing, "driver-too-old"),
        DriverError::NoComputeNode { .. } | DriverError::NoDevice { .. } => (Status::NotFound, "no-device"),
        DriverError::NodeDenied { .. } => (Status::Permission, "device-permission"),
        DriverError::Call { .. } => (Status::Internal, "init-failed"),
    };
    PluginError::new(status, error.to_string()).with("code", code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorfold_plugin_api::manifest::Manifest;

    const MANIFEST: &str = include_str!("../tensorfold_plugin.toml");

    #[test]
    fn the_manifest_is_strict_and_belongs_to_this_crate() {
        let parsed = Manifest::parse(MANIFEST.as_bytes(), "tensorfold_plugin.toml").unwrap();
        parsed.strict().unwrap();
        let manifest = parsed.manifest;
        assert_eq!(manifest.plugin.version.to_string(), env!("CARGO_PKG_VERSION"));
        // The names without a folder are what the manifest tells packagers.
        let bare: Vec<_> = candidates(None).into_iter().filter(|name| name.is_relative()).collect();
        let declared: Vec<_> = manifest.runtimes[0].soname.iter().map(std::path::PathBuf::from).collect();
        assert_eq!(bare, declared);
    }

    #[test]
    fn the_manifest_promises_no_more_than_listing_devices() {
        let manifest = Manifest::parse(MANIFEST.as_bytes(), "tensorfold_plugin.toml").unwrap().manifest;
        assert!(manifest.families.is_empty() && manifest.drafters.is_empty());
        assert!(manifest.capabilities.formats.is_empty() && manifest.capabilities.serve_flags.is_empty());
        let interfaces: Vec<_> = manifest.abi.interfaces.iter().map(String::as_str).collect();
        assert_eq!(interfaces, ["tensorfold.backend/1"]);
        const { assert!(!Hip::OFFERS_ENGINE) };
    }

    #[test]
    fn each_fault_has_its_code_of_the_life_cycle() {
        let missing = Driver::open(&["libtensorfold-no-hip.so.7"], Path::new(COMPUTE_NODE)).unwrap_err();
        let error = plugin_error(missing);
        assert_eq!((error.status, error.detail("code")), (Status::RuntimeMissing, Some("runtime-missing")));
        let error = plugin_error(DriverError::NodeDenied { node: COMPUTE_NODE.into() });
        assert_eq!((error.status, error.detail("code")), (Status::Permission, Some("device-permission")));
        let error = plugin_error(DriverError::NoComputeNode { node: COMPUTE_NODE.into(), path: "/x".into() });
        assert_eq!((error.status, error.detail("code")), (Status::NotFound, Some("no-device")));
    }
}
