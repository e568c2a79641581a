//! tensorfold's MLX backend.
//!
//! Finds and opens MLX in `init`, asks its version, and lists MLX's CPU device.
//! It runs no model yet, and its manifest declares none. Guarantees: the library
//! loads on every machine, with or without MLX, and makes no array.

mod library;

use library::{Library, LibraryError, Places};
use tensorfold_plugin_api::abi::{TF_UNFIT_DEVICE, TF_UNFIT_OTHER};
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceKind, DeviceMemory};
use tensorfold_plugin_api::plugin::{Backend, Device, Init, PluginError, Status};

/// Why the device cannot be used.
const NO_MODELS: &str =
    "this release of the MLX plugin finds MLX and runs no model with it; serve with --backend cpu";

/// What is said of a device that is not in the list.
const NO_SUCH_DEVICE: &str = "this plugin offers the CPU device of MLX and no other";

struct Mlx {
    library: Library,
}

tensorfold_plugin_api::export_plugin! {
    backend: Mlx,
    manifest: "../tensorfold_plugin.toml",
}

tensorfold_plugin_api::dlopen_note! {
    feature: "mlx",
    description: "Apple's MLX",
    priority: "required",
    soname: ["libmlx.so"],
}

impl Backend for Mlx {
    const OFFERS_ENGINE: bool = false;

    fn init(_init: Init<'_>) -> Result<Self, PluginError> {
        let library = Library::open(&Places::of_this_system()).map_err(plugin_error)?;
        tracing::info!(library = %library.path().display(), version = library.version(), "opened MLX");
        Ok(Self { library })
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        Ok(vec![cpu(&self.library)])
    }

    fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        if cpu(&self.library).identity.same_device(device) {
            Ok(DeviceFit::unusable(TF_UNFIT_OTHER, NO_MODELS))
        } else {
            Ok(DeviceFit::unusable(TF_UNFIT_DEVICE, NO_SUCH_DEVICE))
        }
    }

    fn open_device(&self, _device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        Err(PluginError::unsupported(NO_MODELS))
    }
}

/// MLX's CPU device, which every build of MLX has.
fn cpu(library: &Library) -> DeviceInfo {
    DeviceInfo {
        identity: DeviceIdentity {
            kind: DeviceKind::Cpu,
            pci_address: String::new(),
            uuid: String::new(),
            name: "MLX CPU".to_owned(),
            index: 0,
        },
        memory: DeviceMemory::Unified,
        arch: std::env::consts::ARCH.to_owned(),
        memory_bytes: None,
        free_memory_bytes: None,
        driver: format!("MLX {}", library.version()),
        facts: vec![("library".to_owned(), library.path().display().to_string())],
    }
}

/// The error for the host, with the code of the plugin life cycle as a detail.
fn plugin_error(error: LibraryError) -> PluginError {
    let (status, code) = match &error {
        LibraryError::RelativeFolder(_) => (Status::InvalidArgument, "init-failed"),
        LibraryError::Missing(_) | LibraryError::NotMlx(_) => (Status::RuntimeMissing, "runtime-missing"),
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
        assert_eq!(manifest.runtimes[0].name, "mlx");
    }

    #[test]
    fn the_manifest_promises_no_more_than_listing_devices() {
        let manifest = Manifest::parse(MANIFEST.as_bytes(), "tensorfold_plugin.toml").unwrap().manifest;
        assert!(manifest.families.is_empty() && manifest.drafters.is_empty());
        assert!(manifest.capabilities.formats.is_empty() && manifest.capabilities.serve_flags.is_empty());
        let interfaces: Vec<_> = manifest.abi.interfaces.iter().map(String::as_str).collect();
        assert_eq!(interfaces, ["tensorfold.backend/1"]);
        const { assert!(!Mlx::OFFERS_ENGINE) };
    }

    #[test]
    fn a_missing_library_has_its_code_of_the_life_cycle() {
        let places = Places { folder: Some("/nonexistent".into()), ..Places::default() };
        let error = plugin_error(Library::open(&places).unwrap_err());
        assert_eq!((error.status, error.detail("code")), (Status::RuntimeMissing, Some("runtime-missing")));
    }
}
