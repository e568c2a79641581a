//! NVIDIA's driver, opened at run time: is it there, is it usable, which GPUs.
//!
//! Guarantees: nothing here creates a context, allocates device memory or
//! leaves a device in another state. Every failure is one [`DriverError`] whose
//! text says what was wanted, what was found and what to do.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};

use tensorfold_plugin_api::runtime_library::{LibraryNotFound, RuntimeLibrary, SymbolMissing};

use crate::ffi::{self, Functions, Status};

/// The driver's library. The unversioned `libcuda.so` is never tried: where it
/// exists without this one it is the toolkit's stub.
pub(crate) const LIBRARY_NAMES: [&str; 1] = ["libcuda.so.1"];

/// The oldest driver API accepted, as `cuDriverGetVersion` encodes it: CUDA
/// 12.0, which came with Linux driver 525.60.13.
const OLDEST_DRIVER_API: c_int = 12_000;

/// NVIDIA's driver, initialised.
#[derive(Debug)]
pub(crate) struct Driver {
    functions: Functions,
    /// Kept so that the functions stay mapped, and for its path.
    library: RuntimeLibrary,
    api_version: c_int,
}

/// One GPU as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// Index in the driver's order, after `CUDA_VISIBLE_DEVICES`.
    pub(crate) ordinal: u32,
    /// Marketing name, as "NVIDIA H200".
    pub(crate) name: String,
    /// PCI address in lower case, as "0000:c1:00.0".
    pub(crate) pci_address: String,
    /// Compute capability, as (9, 0).
    pub(crate) compute_capability: (u32, u32),
    /// Bytes of device memory.
    pub(crate) memory_bytes: u64,
    /// True when the GPU shares the host's memory (Jetson, DGX Spark).
    pub(crate) unified_memory: bool,
}

impl Gpu {
    /// The architecture name of manifests and kernels, as "sm_90".
    pub(crate) fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }
}

/// Why the driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// No library by any known name.
    #[error(
        "NVIDIA's driver library cannot be opened: {0}; install the NVIDIA driver, or start the container with the NVIDIA container runtime"
    )]
    Missing(LibraryNotFound),
    /// The toolkit's link-time stand-in was found instead of the driver.
    #[error(
        "{} is a stub for linking and not NVIDIA's driver; install the driver and take the stubs folder out of LD_LIBRARY_PATH",
        path.display()
    )]
    Stub {
        /// The file that was opened.
        path: PathBuf,
    },
    /// The library lacks a function that every accepted driver has.
    #[error("NVIDIA's driver is too old or damaged: {0}; wanted one for CUDA 12.0 or newer (525.60.13)")]
    Incomplete(SymbolMissing),
    /// The driver says its own version, and it is below the floor.
    #[error(
        "NVIDIA's driver is too old: wanted one for CUDA 12.0 or newer (525.60.13), found one for CUDA {}.{} ({}); update the driver",
        found / 1000, found % 1000 / 10, path.display()
    )]
    TooOld {
        /// As `cuDriverGetVersion` encodes it.
        found: c_int,
        /// The file that was opened.
        path: PathBuf,
    },
    /// The driver works and offers no GPU to this process.
    #[error(
        "NVIDIA's driver ({}) shows this process no GPU; {advice}",
        path.display()
    )]
    NoDevice {
        /// The file that was opened.
        path: PathBuf,
        /// What to look at, from the state of this machine.
        advice: String,
    },
    /// A call failed in a way that has no case of its own.
    #[error("{call} failed with {name} ({status}) in {}; {advice}", path.display())]
    Call {
        /// The driver function.
        call: &'static str,
        /// `CUresult`.
        status: Status,
        /// The driver's name for the status.
        name: String,
        /// The file that was opened.
        path: PathBuf,
        /// What to do about it.
        advice: &'static str,
    },
}

impl Driver {
    /// Opens the first of `names` that exists and initialises the driver.
    pub(crate) fn open<N: AsRef<Path>>(names: &[N]) -> Result<Self, DriverError> {
        // SAFETY: the names are those of NVIDIA's driver, whose constructors
        // are made to run in any process.
        let library = unsafe { RuntimeLibrary::open_first(names) }.map_err(DriverError::Missing)?;
        // SAFETY: a library of that name has the driver's entry points.
        let functions = unsafe { Functions::bind(&library) }.map_err(DriverError::Incomplete)?;
        let mut driver = Self { functions, library, api_version: 0 };

        // Works before cuInit, and is what cuInit's failure would have to be
        // explained with.
        let mut version: c_int = 0;
        // SAFETY: the pointer is valid for one int during the call.
        let status = unsafe { (functions.driver_get_version)(&raw mut version) };
        driver.check("cuDriverGetVersion", status)?;
        if version < OLDEST_DRIVER_API {
            let path = driver.library_path().to_owned();
            return Err(DriverError::TooOld { found: version, path });
        }
        driver.api_version = version;

        // SAFETY: 0 is the only flag word that cuInit accepts.
        let status = unsafe { (functions.init)(0) };
        driver.check("cuInit", status)?;
        Ok(driver)
    }

    /// The file the driver was loaded from.
    pub(crate) fn library_path(&self) -> &Path {
        self.library.path()
    }

    /// The driver API's version as (major, minor), as (13, 0).
    pub(crate) fn api_version(&self) -> (u32, u32) {
        let version = self.api_version.unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }

    /// All GPUs that the driver shows to this process, in its order.
    pub(crate) fn gpus(&self) -> Result<Vec<Gpu>, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is valid for one int during the call.
        let status = unsafe { (self.functions.device_get_count)(&raw mut count) };
        self.check("cuDeviceGetCount", status)?;
        let gpus = (0..count).map(|ordinal| self.gpu(ordinal)).collect::<Result<Vec<_>, _>>()?;
        if gpus.is_empty() { Err(self.no_device()) } else { Ok(gpus) }
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, DriverError> {
        let functions = &self.functions;
        let mut device: ffi::Device = 0;
        // SAFETY: the pointer is valid for one handle during the call.
        let status = unsafe { (functions.device_get)(&raw mut device, ordinal) };
        self.check("cuDeviceGet", status)?;

        let name = self.text("cuDeviceGetName", functions.device_get_name, device)?;
        let pci_address = self.text("cuDeviceGetPCIBusId", functions.device_get_pci_bus_id, device)?;
        let mut memory_bytes: usize = 0;
        // SAFETY: the pointer is valid for one size_t during the call.
        let status = unsafe { (functions.device_total_mem)(&raw mut memory_bytes, device) };
        self.check("cuDeviceTotalMem", status)?;

        Ok(Gpu {
            ordinal: ordinal.unsigned_abs(),
            name,
            pci_address: pci_address.to_ascii_lowercase(),
            compute_capability: (
                self.attribute(ffi::ATTRIBUTE_CAPABILITY_MAJOR, device)?.unsigned_abs(),
                self.attribute(ffi::ATTRIBUTE_CAPABILITY_MINOR, device)?.unsigned_abs(),
            ),
            memory_bytes: memory_bytes as u64,
            unified_memory: self.attribute(ffi::ATTRIBUTE_INTEGRATED, device)? != 0,
        })
    }

    fn attribute(&self, attribute: c_int, device: ffi::Device) -> Result<c_int, DriverError> {
        let mut value: c_int = 0;
        // SAFETY: the pointer is valid for one int during the call.
        let status = unsafe { (self.functions.device_get_attribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", status)?;
        Ok(value)
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, ffi::Device) -> Status,
        device: ffi::Device,
    ) -> Result<String, DriverError> {
        let mut buffer = [0 as c_char; 256];
        // The last byte stays zero whatever the driver does with its capacity.
        let capacity = buffer.len() as c_int - 1;
        // SAFETY: the driver writes at most `capacity` bytes to the buffer.
        let status = unsafe { function(buffer.as_mut_ptr(), capacity, device) };
        self.check(call, status)?;
        // SAFETY: the buffer ends in a zero byte.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        Ok(text.to_string_lossy().trim().to_owned())
    }

    /// Turns a status into the error that explains it.
    fn check(&self, call: &'static str, status: Status) -> Result<(), DriverError> {
        let advice = match status {
            ffi::SUCCESS => return Ok(()),
            ffi::STUB_LIBRARY => {
                return Err(DriverError::Stub { path: self.library_path().to_owned() });
            }
            ffi::NO_DEVICE => return Err(self.no_device()),
            ffi::SYSTEM_NOT_READY => "start nvidia-fabricmanager, which this machine's NVSwitch needs",
            ffi::SYSTEM_DRIVER_MISMATCH => {
                "the library and the loaded kernel module are of two releases: reboot after the update, or update the container's driver files"
            }
            ffi::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                "the compatibility package does not serve this GPU: take its folder out of LD_LIBRARY_PATH"
            }
            _ => "see the kernel's log for lines of the NVIDIA driver (NVRM)",
        };
        Err(DriverError::Call {
            call,
            status,
            name: self.status_name(status),
            path: self.library_path().to_owned(),
            advice,
        })
    }

    fn no_device(&self) -> DriverError {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        DriverError::NoDevice {
            path: self.library_path().to_owned(),
            advice: no_device_advice(
                visible.as_deref(),
                Path::new("/dev/nvidiactl").exists(),
                Path::new("/proc/driver/nvidia/version").exists(),
            ),
        }
    }

    fn status_name(&self, status: Status) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver stores a pointer to a static string, or null for a
        // status that it does not know.
        let found = unsafe { (self.functions.get_error_name)(status, &raw mut text) };
        if found != ffi::SUCCESS || text.is_null() {
            return "an unknown status".to_owned();
        }
        // SAFETY: not null, so it is the driver's static C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The likeliest reason for "no device", from what the machine shows.
fn no_device_advice(visible: Option<&str>, node: bool, module: bool) -> String {
    match (visible, node, module) {
        (Some(value), _, _) => {
            format!("CUDA_VISIBLE_DEVICES is set to \"{value}\": unset it or name an existing GPU")
        }
        (None, _, false) => {
            "its kernel module is not loaded: run `modprobe nvidia` and see the kernel's log"
                .to_owned()
        }
        (None, false, true) => {
            "its kernel module is loaded and /dev/nvidiactl is missing: run `nvidia-modprobe`, or give the container the NVIDIA devices"
                .to_owned()
        }
        (None, true, true) => {
            "check with `nvidia-smi -L` and the permissions of /dev/nvidia*".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// Compiles `tests/fake_libcuda.c` with the given switches.
    fn fake(folder: &tempfile::TempDir, switches: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_libcuda.c");
        let library = folder.path().join("libcuda.so.1");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(source)
            .args(switches)
            .output()
            .expect("cc, which also links this test, starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    }

    fn open(switches: &[&str]) -> Result<(Driver, PathBuf), String> {
        let folder = tempfile::tempdir().unwrap();
        let library = fake(&folder, switches);
        let opened = Driver::open(&[&library]).map_err(|error| error.to_string());
        opened.map(|driver| (driver, library))
    }

    #[test]
    fn gpus_are_listed_with_what_the_driver_says_about_them() {
        let (driver, library) = open(&[]).unwrap();
        assert_eq!(driver.api_version(), (13, 0));
        assert_eq!(driver.library_path(), library);
        let gpus = driver.gpus().unwrap();
        assert_eq!(
            gpus,
            [
                Gpu {
                    ordinal: 0,
                    name: "NVIDIA Fake 0".to_owned(),
                    pci_address: "0000:c1:00.0".to_owned(),
                    compute_capability: (9, 0),
                    memory_bytes: 1 << 34,
                    unified_memory: false,
                },
                Gpu {
                    ordinal: 1,
                    name: "NVIDIA Fake 1".to_owned(),
                    pci_address: "0000:c2:00.0".to_owned(),
                    compute_capability: (12, 1),
                    memory_bytes: 2 << 34,
                    unified_memory: true,
                },
            ]
        );
        assert_eq!(gpus[0].architecture(), "sm_90");
        assert_eq!(gpus[1].architecture(), "sm_121");
    }

    #[test]
    fn a_machine_without_the_driver_gets_one_line_with_names_and_fix() {
        let error = Driver::open(&["libtensorfold-no-cuda.so.1"]).unwrap_err();
        assert!(matches!(error, DriverError::Missing(_)));
        assert_eq!(
            error.to_string(),
            "NVIDIA's driver library cannot be opened: tried libtensorfold-no-cuda.so.1 (not found); \
             install the NVIDIA driver, or start the container with the NVIDIA container runtime"
        );
    }

    #[test]
    fn the_toolkits_stub_is_told_apart_and_named_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let library = fake(&folder, &["-DFAKE_STUB"]);
        let error = Driver::open(&[&library]).unwrap_err();
        assert!(matches!(&error, DriverError::Stub { path } if *path == library), "{error}");
    }

    #[test]
    fn an_old_driver_is_refused_with_wanted_and_found() {
        let error = open(&["-DFAKE_VERSION=11040"]).unwrap_err();
        assert!(error.contains("wanted one for CUDA 12.0"), "{error}");
        assert!(error.contains("found one for CUDA 11.4"), "{error}");
        assert!(open(&["-DFAKE_VERSION=12000"]).is_ok());
    }

    #[test]
    fn a_library_without_an_entry_point_is_refused_by_that_name() {
        let error = open(&["-DFAKE_LACKS_PCI"]).unwrap_err();
        assert!(error.contains("libcuda.so.1 has no symbol cuDeviceGetPCIBusId"), "{error}");
    }

    #[test]
    fn no_device_is_an_answer_of_its_own_whether_init_or_the_count_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let library = fake(&folder, &["-DFAKE_INIT=100"]);
        let error = Driver::open(&[&library]).unwrap_err();
        assert!(matches!(error, DriverError::NoDevice { .. }), "{error}");

        let (driver, _) = open(&["-DFAKE_COUNT=0"]).unwrap();
        let error = driver.gpus().unwrap_err();
        assert!(matches!(error, DriverError::NoDevice { .. }), "{error}");
    }

    #[test]
    fn the_advice_for_no_device_follows_what_the_machine_shows() {
        assert!(no_device_advice(Some("7"), true, true).contains("CUDA_VISIBLE_DEVICES is set to \"7\""));
        assert!(no_device_advice(None, true, false).contains("modprobe nvidia"));
        assert!(no_device_advice(None, false, true).contains("/dev/nvidiactl is missing"));
        assert!(no_device_advice(None, true, true).contains("nvidia-smi -L"));
    }

    #[test]
    fn other_failures_carry_call_status_name_and_advice() {
        let error = open(&["-DFAKE_INIT=803"]).unwrap_err();
        assert!(
            error.starts_with("cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803) in "),
            "{error}"
        );
        assert!(error.contains("reboot after the update"), "{error}");
        let error = open(&["-DFAKE_INIT=802"]).unwrap_err();
        assert!(error.contains("nvidia-fabricmanager"), "{error}");
        let error = open(&["-DFAKE_INIT=999"]).unwrap_err();
        assert!(error.contains("an unknown status (999)"), "{error}");
    }
}
