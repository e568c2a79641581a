//! AMD's HIP runtime, opened at run time: is it there, is it usable, which GPUs.
//!
//! Guarantees: nothing here allocates device memory or selects a device. The
//! kernel's compute node is looked at before the runtime is asked anything, so
//! that a missing kernel driver, a missing group and a missing library are three
//! different answers. Every failure is one [`DriverError`] whose text says what
//! was wanted, what was found and what to do.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::path::{Path, PathBuf};

use tensorfold_plugin_api::runtime_library::{LibraryNotFound, RuntimeLibrary, SymbolMissing};

use crate::ffi::{self, Functions, Properties, Status};

/// The runtime's file names, newest first. `.so.5` is never tried: its structs
/// are others. Nor is the unversioned name: it can be any release.
const FILE_NAMES: [&str; 2] = ["libamdhip64.so.7", "libamdhip64.so.6"];

/// The kernel's compute node, made by the amdgpu driver.
pub(crate) const COMPUTE_NODE: &str = "/dev/kfd";

/// What to try, in order: `$ROCM_PATH/lib`, `/opt/rocm/lib`, then the names for
/// the dynamic linker.
pub(crate) fn candidates(rocm_path: Option<&OsStr>) -> Vec<PathBuf> {
    // A relative path would depend on the folder the server was started in.
    let named = rocm_path.map(Path::new).filter(|path| path.is_absolute());
    let folders = named.into_iter().chain([Path::new("/opt/rocm")]).map(|root| root.join("lib"));
    let in_folders = folders.flat_map(|folder| FILE_NAMES.map(|name| folder.join(name)));
    in_folders.chain(FILE_NAMES.map(PathBuf::from)).collect()
}

/// The HIP runtime, initialised.
#[derive(Debug)]
pub(crate) struct Driver {
    functions: Functions,
    /// Kept so that the functions stay mapped, and for its path.
    library: RuntimeLibrary,
    version: Version,
}

/// A release of HIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// Major number; ROCm's.
    pub(crate) major: u32,
    /// Minor number.
    pub(crate) minor: u32,
}

/// The oldest release accepted: the first whose device properties are those of
/// [`Properties`].
const OLDEST: Version = Version { major: 6, minor: 0 };

impl Version {
    fn decode(encoded: c_int) -> Self {
        let encoded = encoded.unsigned_abs();
        Self { major: encoded / 10_000_000, minor: encoded % 10_000_000 / 100_000 }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// One GPU as the runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// Index in the runtime's order, after `HIP_VISIBLE_DEVICES`.
    pub(crate) ordinal: u32,
    /// Marketing name, as "AMD Radeon 8060S".
    pub(crate) name: String,
    /// PCI address in lower case, as "0000:c1:00.0".
    pub(crate) pci_address: String,
    /// Architecture without feature suffixes, as "gfx1151".
    pub(crate) architecture: String,
    /// Architecture with feature suffixes, as "gfx90a:sramecc+:xnack-".
    pub(crate) architecture_with_features: String,
    /// Bytes of device memory.
    pub(crate) memory_bytes: u64,
    /// True when the GPU shares the host's memory.
    pub(crate) unified_memory: bool,
}

/// What the kernel offers to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComputeNode {
    /// There, and this process may use it.
    Usable,
    /// There, and this process may not open it for reading and writing.
    Denied,
    /// Not there.
    Missing,
}

impl ComputeNode {
    /// Looks without opening the node: opening it makes a context in the kernel.
    pub(crate) fn look(path: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
            return Self::Missing;
        };
        if !path.exists() {
            return Self::Missing;
        }
        // SAFETY: `name` is a C string that lives through the call.
        let status = unsafe {
            libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::R_OK | libc::W_OK, libc::AT_EACCESS)
        };
        if status == 0 { Self::Usable } else { Self::Denied }
    }

    /// What to add when the runtime itself is missing.
    fn hint(self) -> &'static str {
        match self {
            Self::Usable => "",
            Self::Denied => "; this user may not open the compute node either: add it to the group `render`",
            Self::Missing => {
                "; the kernel's compute node /dev/kfd is missing too: this machine has no AMD GPU, or the amdgpu driver is not loaded"
            }
        }
    }
}

/// Why the runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// No library by any known name.
    #[error(
        "AMD's HIP runtime cannot be opened: {tried}; install ROCm 6 or 7 (the package with libamdhip64) or set ROCM_PATH to its folder{}",
        node.hint()
    )]
    Missing {
        /// What was tried.
        tried: LibraryNotFound,
        /// The compute node, for the hint.
        node: ComputeNode,
    },
    /// The runtime says its own version, and it is below the floor.
    #[error(
        "AMD's HIP runtime is too old: wanted 6.0 or newer, found {found} ({}); update ROCm or set ROCM_PATH to a newer one",
        path.display()
    )]
    TooOld {
        /// Its version.
        found: Version,
        /// The file that was opened.
        path: PathBuf,
    },
    /// The library lacks a function that every accepted release has.
    #[error("AMD's HIP runtime is damaged or something else: {0}; reinstall ROCm or set ROCM_PATH")]
    Incomplete(SymbolMissing),
    /// The kernel has no compute node.
    #[error(
        "the kernel's compute node {} is missing, though the HIP runtime ({}) is there; load the amdgpu driver, or give the container /dev/kfd and /dev/dri",
        node.display(), path.display()
    )]
    NoComputeNode {
        /// The node looked for.
        node: PathBuf,
        /// The file that was opened.
        path: PathBuf,
    },
    /// The compute node may not be opened.
    #[error(
        "this user may not open {} for reading and writing; add it to the group that owns the node (`render`, on older systems `video`) and log in again",
        node.display()
    )]
    NodeDenied {
        /// The node.
        node: PathBuf,
    },
    /// The runtime works and offers no GPU to this process.
    #[error("AMD's HIP runtime ({}) shows this process no GPU; {advice}", path.display())]
    NoDevice {
        /// The file that was opened.
        path: PathBuf,
        /// What to look at.
        advice: String,
    },
    /// A call failed in a way that has no case of its own.
    #[error("{call} failed with {name} ({status}) in {}; see the kernel's log for lines of amdgpu", path.display())]
    Call {
        /// The runtime's function.
        call: &'static str,
        /// `hipError_t`.
        status: Status,
        /// The runtime's name for the status.
        name: String,
        /// The file that was opened.
        path: PathBuf,
    },
}

impl Driver {
    /// Opens the first of `names` that exists and initialises the runtime.
    pub(crate) fn open<N: AsRef<Path>>(names: &[N], compute_node: &Path) -> Result<Self, DriverError> {
        let node = ComputeNode::look(compute_node);
        // SAFETY: the names are those of AMD's HIP runtime, whose constructors
        // are made to run in any process.
        let library = unsafe { RuntimeLibrary::open_first(names) }
            .map_err(|tried| DriverError::Missing { tried, node })?;
        let version = runtime_version(&library)?;
        let path = library.path().to_owned();
        if version < OLDEST {
            return Err(DriverError::TooOld { found: version, path });
        }
        match node {
            ComputeNode::Usable => {}
            ComputeNode::Denied => return Err(DriverError::NodeDenied { node: compute_node.to_owned() }),
            ComputeNode::Missing => {
                return Err(DriverError::NoComputeNode { node: compute_node.to_owned(), path });
            }
        }
        // SAFETY: a library of that name and version has the runtime's entry
        // points.
        let functions = unsafe { Functions::bind(&library) }.map_err(DriverError::Incomplete)?;
        let driver = Self { functions, library, version };
        // SAFETY: 0 is the only flag word that hipInit accepts.
        let status = unsafe { (functions.init)(0) };
        driver.check("hipInit", status)?;
        Ok(driver)
    }

    /// The file the runtime was loaded from.
    pub(crate) fn library_path(&self) -> &Path {
        self.library.path()
    }

    /// The runtime's release.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// All GPUs that the runtime shows to this process, in its order.
    pub(crate) fn gpus(&self) -> Result<Vec<Gpu>, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is valid for one int during the call.
        let status = unsafe { (self.functions.get_device_count)(&raw mut count) };
        self.check("hipGetDeviceCount", status)?;
        let gpus = (0..count).map(|ordinal| self.gpu(ordinal)).collect::<Result<Vec<_>, _>>()?;
        if gpus.is_empty() { Err(self.no_device()) } else { Ok(gpus) }
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, DriverError> {
        let mut properties = Box::new(Properties::zeroed());
        // SAFETY: the buffer is larger than the struct of every release that
        // has this function, and aligned as it.
        let status = unsafe { (self.functions.get_device_properties)(&raw mut *properties, ordinal) };
        self.check("hipGetDevicePropertiesR0600", status)?;

        let mut address = [0 as c_char; 64];
        // The last byte stays zero whatever the runtime does with its capacity.
        let capacity = address.len() as c_int - 1;
        // SAFETY: the runtime writes at most `capacity` bytes to the buffer.
        let status =
            unsafe { (self.functions.device_get_pci_bus_id)(address.as_mut_ptr(), capacity, ordinal) };
        self.check("hipDeviceGetPCIBusId", status)?;
        // SAFETY: the buffer ends in a zero byte.
        let address = unsafe { CStr::from_ptr(address.as_ptr()) };

        let full = properties.architecture_name();
        Ok(Gpu {
            ordinal: ordinal.unsigned_abs(),
            name: properties.name(),
            pci_address: address.to_string_lossy().trim().to_ascii_lowercase(),
            architecture: full.split(':').next().unwrap_or_default().to_owned(),
            architecture_with_features: full,
            memory_bytes: properties.total_memory_bytes(),
            unified_memory: properties.integrated(),
        })
    }

    /// Turns a status into the error that explains it.
    fn check(&self, call: &'static str, status: Status) -> Result<(), DriverError> {
        match status {
            ffi::SUCCESS => Ok(()),
            ffi::NO_DEVICE | ffi::INVALID_DEVICE => Err(self.no_device()),
            _ => Err(DriverError::Call {
                call,
                status,
                name: self.status_name(status),
                path: self.library_path().to_owned(),
            }),
        }
    }

    fn no_device(&self) -> DriverError {
        let visible = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().map(|value| (name, value)));
        let advice = no_device_advice(visible.as_ref().map(|(name, value)| (*name, value.as_str())));
        DriverError::NoDevice { path: self.library_path().to_owned(), advice }
    }

    fn status_name(&self, status: Status) -> String {
        // SAFETY: returns a static C string or null for any status.
        let text = unsafe { (self.functions.get_error_name)(status) };
        if text.is_null() {
            return "an unknown status".to_owned();
        }
        // SAFETY: not null, so it is the runtime's static C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn runtime_version(library: &RuntimeLibrary) -> Result<Version, DriverError> {
    // SAFETY: the library was opened by the runtime's name.
    let get_version = unsafe { ffi::bind_version(library) }.map_err(DriverError::Incomplete)?;
    let mut encoded: c_int = 0;
    // SAFETY: the pointer is valid for one int during the call, which needs no
    // hipInit before it.
    let status = unsafe { get_version(&raw mut encoded) };
    if status != ffi::SUCCESS {
        return Err(DriverError::Call {
            call: "hipRuntimeGetVersion",
            status,
            name: "a status before hipInit".to_owned(),
            path: library.path().to_owned(),
        });
    }
    Ok(Version::decode(encoded))
}

/// The likeliest reason for "no device".
fn no_device_advice(visible: Option<(&str, &str)>) -> String {
    match visible {
        Some((name, value)) => format!("{name} is set to \"{value}\": unset it or name an existing GPU"),
        None => {
            "check with `rocminfo`, and that this user may open /dev/dri/renderD* (group `render`)".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    struct Fake {
        folder: tempfile::TempDir,
        library: PathBuf,
    }

    /// Compiles `tests/fake_libamdhip64.c` with the given switches.
    fn fake(switches: &[&str]) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_libamdhip64.c");
        let library = folder.path().join("libamdhip64.so.7");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(source)
            .args(switches)
            .output()
            .expect("cc, which also links this test, starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Fake { folder, library }
    }

    impl Fake {
        /// Opens it beside a compute node that this process may use.
        fn open(&self) -> Result<Driver, DriverError> {
            let node = self.folder.path().join("kfd");
            std::fs::write(&node, "").unwrap();
            Driver::open(&[&self.library], &node)
        }
    }

    #[test]
    fn gpus_are_listed_with_what_the_runtime_says_about_them() {
        let fake = fake(&[]);
        let driver = fake.open().unwrap();
        assert_eq!(driver.version(), Version { major: 7, minor: 1 });
        assert_eq!(driver.library_path(), fake.library);
        assert_eq!(
            driver.gpus().unwrap(),
            [
                Gpu {
                    ordinal: 0,
                    name: "AMD Fake 0".to_owned(),
                    pci_address: "0000:c1:00.0".to_owned(),
                    architecture: "gfx1151".to_owned(),
                    architecture_with_features: "gfx1151".to_owned(),
                    memory_bytes: 1 << 34,
                    unified_memory: true,
                },
                Gpu {
                    ordinal: 1,
                    name: "AMD Fake 1".to_owned(),
                    pci_address: "0000:c2:00.0".to_owned(),
                    architecture: "gfx90a".to_owned(),
                    architecture_with_features: "gfx90a:sramecc+:xnack-".to_owned(),
                    memory_bytes: 2 << 34,
                    unified_memory: false,
                },
            ]
        );
    }

    #[test]
    fn the_named_folder_is_tried_first_and_release_5_never() {
        let tried = candidates(Some(OsStr::new("/srv/rocm-7.1")));
        assert_eq!(tried[0], Path::new("/srv/rocm-7.1/lib/libamdhip64.so.7"));
        assert_eq!(tried[2], Path::new("/opt/rocm/lib/libamdhip64.so.7"));
        assert_eq!(tried[4..], ["libamdhip64.so.7", "libamdhip64.so.6"].map(PathBuf::from));
        for path in tried {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.ends_with(".so.7") || name.ends_with(".so.6"), "{name}");
        }
    }

    #[test]
    fn a_relative_rocm_path_is_not_followed() {
        assert_eq!(candidates(Some(OsStr::new("rocm"))), candidates(None));
    }

    #[test]
    fn a_machine_without_the_runtime_gets_one_line_with_names_and_fix() {
        let error = Driver::open(&["libtensorfold-no-hip.so.7"], Path::new("/nonexistent/kfd")).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(
                "AMD's HIP runtime cannot be opened: tried libtensorfold-no-hip.so.7 (not found); install ROCm 6 or 7"
            ),
            "{message}"
        );
        assert!(message.contains("/dev/kfd is missing too"), "{message}");
        assert!(!message.contains('\n'));
    }

    #[test]
    fn a_missing_kernel_driver_is_told_apart_from_a_missing_runtime() {
        let fake = fake(&[]);
        let error = Driver::open(&[&fake.library], Path::new("/nonexistent/kfd")).unwrap_err();
        assert!(matches!(error, DriverError::NoComputeNode { .. }), "{error}");
        assert!(error.to_string().contains("load the amdgpu driver"), "{error}");
    }

    #[test]
    fn the_compute_node_is_looked_at_without_being_opened() {
        let folder = tempfile::tempdir().unwrap();
        // A pipe without a reader blocks whoever opens it for reading alone.
        let node = folder.path().join("kfd");
        let made = Command::new("mkfifo").arg(&node).status().unwrap();
        assert!(made.success());
        assert_eq!(ComputeNode::look(&node), ComputeNode::Usable);
        assert_eq!(ComputeNode::look(&folder.path().join("none")), ComputeNode::Missing);
    }

    #[test]
    fn a_denied_node_names_the_group_and_not_the_driver() {
        let node = PathBuf::from("/dev/kfd");
        let message = DriverError::NodeDenied { node }.to_string();
        assert!(message.contains("group that owns the node (`render`"), "{message}");
        assert!(!message.contains("driver"), "{message}");
    }

    #[test]
    fn an_old_runtime_is_refused_with_wanted_and_found() {
        let error = fake(&["-DFAKE_VERSION=50221153", "-DFAKE_LACKS_R0600"]).open().unwrap_err().to_string();
        assert!(error.contains("wanted 6.0 or newer, found 5.2 ("), "{error}");
        assert!(fake(&["-DFAKE_VERSION=60000000"]).open().is_ok());
    }

    #[test]
    fn a_library_without_an_entry_point_is_refused_by_that_name() {
        let error = fake(&["-DFAKE_LACKS_R0600"]).open().unwrap_err().to_string();
        assert!(error.contains("has no symbol hipGetDevicePropertiesR0600"), "{error}");
    }

    #[test]
    fn no_device_is_an_answer_of_its_own_whether_init_or_the_count_says_so() {
        for switch in ["-DFAKE_INIT=100", "-DFAKE_INIT=101"] {
            let error = fake(&[switch]).open().unwrap_err();
            assert!(matches!(error, DriverError::NoDevice { .. }), "{error}");
        }
        let error = fake(&["-DFAKE_COUNT=0"]).open().unwrap().gpus().unwrap_err();
        assert!(matches!(error, DriverError::NoDevice { .. }), "{error}");
        let advice = no_device_advice(Some(("HIP_VISIBLE_DEVICES", "")));
        assert!(advice.starts_with("HIP_VISIBLE_DEVICES is set to \"\""), "{advice}");
    }

    #[test]
    fn other_failures_carry_call_status_and_name() {
        let error = fake(&["-DFAKE_INIT=3"]).open().unwrap_err().to_string();
        assert!(error.starts_with("hipInit failed with hipErrorNotInitialized (3) in "), "{error}");
    }
}
