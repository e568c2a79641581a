//! tensorfold's CUDA backend.
//!
//! Opens NVIDIA's driver in `init` and lists its GPUs. It runs no model yet, and
//! its manifest declares none. Guarantees: the library loads on every machine,
//! with or without a driver, and neither `init` nor the list of devices creates
//! a context or touches device memory.

mod driver;
mod ffi;

use driver::{Driver, DriverError, Gpu, LIBRARY_NAMES};
use tensorfold_plugin_api::abi::{TF_UNFIT_DEVICE, TF_UNFIT_OTHER};
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceKind, DeviceMemory};
use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError, Status};

/// Why no GPU can be used, whichever it is.
const NO_MODELS: &str =
    "this release of the CUDA plugin lists GPUs and runs no model on them; serve with --backend cpu";

/// What is said of a GPU that is not in the list.
const NO_SUCH_GPU: &str =
    "NVIDIA's driver shows this process no such GPU; list those it shows with `nvidia-smi -L`";

struct Cuda {
    driver: Driver,
}

tensorfold_plugin_api::export_plugin! {
    backend: Cuda,
    manifest: "../tensorfold_plugin.toml",
}

// The driver comes with the machine or the container, so packages only recommend it.
tensorfold_plugin_api::dlopen_note! {
    feature: "cuda",
    description: "NVIDIA's driver",
    priority: "recommended",
    soname: ["libcuda.so.1"],
}

impl Backend for Cuda {
    const OFFERS_ENGINE: bool = false;

    fn init(_init: Init<'_>) -> Result<Self, PluginError> {
        let driver = Driver::open(&LIBRARY_NAMES).map_err(plugin_error)?;
        let (major, minor) = driver.api_version();
        tracing::info!(library = %driver.library_path().display(), api = %format_args!("{major}.{minor}"), "opened NVIDIA's driver");
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
    let (major, minor) = driver.api_version();
    let (capability_major, capability_minor) = gpu.compute_capability;
    DeviceInfo {
        arch: gpu.architecture(),
        identity: DeviceIdentity {
            kind: DeviceKind::Gpu,
            pci_address: gpu.pci_address,
            uuid: String::new(),
            name: gpu.name,
            index: gpu.ordinal,
        },
        memory: if gpu.unified_memory { DeviceMemory::Unified } else { DeviceMemory::Dedicated },
        memory_bytes: Some(gpu.memory_bytes),
        // The driver answers this inside a context only, and none is made here.
        free_memory_bytes: None,
        driver: format!("CUDA {major}.{minor}"),
        facts: vec![
            ("compute_capability".to_owned(), format!("{capability_major}.{capability_minor}")),
            ("library".to_owned(), driver.library_path().display().to_string()),
        ],
    }
}

/// The error for the host, with the code of the plugin life cycle as a detail.
fn plugin_error(error: DriverError) -> PluginError {
    let (status, code) = match &error {
        DriverError::Missing(_) | DriverError::Incomplete(_) => (Status::RuntimeMissing, "runtime-missing"),
        DriverError::Stub { .. } => (Status::RuntimeMissing, "stub-driver"),
        DriverError::TooOld { .. } => (Status::RuntimeMissing, "driver-too-old"),
        DriverError::NoDevice { .. } => (Status::NotFound, "no-device"),
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
        assert_eq!(manifest.runtimes[0].soname, LIBRARY_NAMES);
    }

    #[test]
    fn the_manifest_promises_no_more_than_listing_devices() {
        let manifest = Manifest::parse(MANIFEST.as_bytes(), "tensorfold_plugin.toml").unwrap().manifest;
        assert!(manifest.families.is_empty() && manifest.drafters.is_empty());
        assert!(manifest.capabilities.formats.is_empty() && manifest.capabilities.serve_flags.is_empty());
        let interfaces: Vec<_> = manifest.abi.interfaces.iter().map(String::as_str).collect();
        assert_eq!(interfaces, ["tensorfold.backend/1"]);
        const { assert!(!Cuda::OFFERS_ENGINE) };
    }

    #[test]
    fn each_fault_has_its_code_of_the_life_cycle() {
        let error = plugin_error(Driver::open(&["libtensorfold-no-cuda.so.1"]).unwrap_err());
        assert_eq!((error.status, error.detail("code")), (Status::RuntimeMissing, Some("runtime-missing")));
        let error = plugin_error(DriverError::Stub { path: "/x/libcuda.so.1".into() });
        assert_eq!((error.status, error.detail("code")), (Status::RuntimeMissing, Some("stub-driver")));
        let error = plugin_error(DriverError::TooOld { found: 11_040, path: "/x/libcuda.so.1".into() });
        assert_eq!((error.status, error.detail("code")), (Status::RuntimeMissing, Some("driver-too-old")));
    }
}
