//! Opening a plugin: the first moment at which code of it may run.
//!
//! The library is opened by absolute path with every symbol bound at once, visible to nobody else, and never closed
//! again, whatever happens later. Afterwards the mapped file is compared with the one that was checked.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tensorfold_plugin_api::abi::{DESCRIPTOR_SYMBOL, TfDescriptor};

use super::image::FileIdentity;
use super::lifecycle::{Code, Finding, one_line, show_path};
use super::memory_map;

/// A plugin that is mapped and stays mapped to the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    library: &'static Library,
    descriptor: NonNull<TfDescriptor>,
}

// SAFETY: the descriptor is immutable data that lives to the end of the process.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// The plugin's descriptor, not yet checked. Valid to the end of the process.
    pub fn descriptor(&self) -> NonNull<TfDescriptor> {
        self.descriptor
    }

    /// The library itself, which is never closed.
    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// The address of a data symbol.
    pub fn symbol(&self, name: &str) -> Option<NonNull<std::ffi::c_void>> {
        let name = std::ffi::CString::new(name).ok()?;
        // SAFETY: only the address is taken; it is not read or called here.
        let symbol = unsafe { self.library.get::<*mut std::ffi::c_void>(name.as_c_str()) }.ok()?;
        NonNull::new(symbol.into_raw())
    }
}

/// Opens the library at `path`, which was read before and had `checked` as its identity.
///
/// From here on the plugin's constructors have run. A finding `file-changed` means that somebody replaced the file
/// between the check and the opening: the caller ends the process.
///
/// # Errors
/// `dlopen-failed` with the dynamic linker's own words, `file-changed`, or `not-a-plugin` when the descriptor is not
/// there.
pub fn open(path: &Path, checked: FileIdentity) -> Result<Opened, Box<Finding>> {
    if !path.is_absolute() {
        return Err(Box::new(Finding::error(Code::DlopenFailed, "not an absolute path").at(path)));
    }
    let reference = reference_view(path, checked)?;
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: running the plugin's constructors is what opening is for; the file passed the checks of admission, and
    // the contract wants constructors without side effects.
    let library = unsafe { Library::open(Some(path), flags) }.map_err(|error| {
        let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Box::new(dlopen_failed(path, &text))
    })?;
    // Closing is never safe with threads and exit handlers of driver libraries, so the handle is given up.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the symbol is used as an address of data here, never called.
    let symbol = unsafe { library.get::<*mut TfDescriptor>(DESCRIPTOR_SYMBOL.as_bytes()) };
    let descriptor = symbol.ok().and_then(|symbol| NonNull::new(symbol.into_raw().cast::<TfDescriptor>()));
    let Some(descriptor) = descriptor else {
        return Err(Box::new(
            Finding::error(Code::NotAPlugin, format!("no symbol `{DESCRIPTOR_SYMBOL}`")).at(path),
        ));
    };
    if let Some(reference) = reference {
        reference.compare(path, descriptor)?;
    }
    Ok(Opened { library, descriptor })
}

fn dlopen_failed(path: &Path, text: &str) -> Finding {
    let finding =
        Finding::error(Code::DlopenFailed, "the dynamic linker refused it").at(path).found(one_line(text));
    if text.contains("cannot open shared object file") {
        finding.fix("install the library that is named; `tensorfold plugins check` lists every missing one")
    } else if text.contains("static TLS") {
        finding.fix("report it to the plugin's vendor: it uses static thread-local storage")
    } else {
        finding.fix("reinstall the plugin, or report it to its vendor")
    }
}

/// A read-only view of the file that was checked. `stat` and the memory map name devices differently on some file
/// systems (btrfs, overlays), so the map's own name for the checked file is the one to compare with.
struct Reference {
    view: memmap2::Mmap,
}

fn reference_view(path: &Path, checked: FileIdentity) -> Result<Option<Reference>, Box<Finding>> {
    let io = |error: std::io::Error| {
        Box::new(Finding::error(Code::DlopenFailed, format!("cannot be read: {error}")).at(path))
    };
    let file = std::fs::File::open(path).map_err(io)?;
    let now = FileIdentity::of(&file.metadata().map_err(io)?);
    if now != checked {
        return Err(Box::new(changed(path, format!("{checked:?}"), format!("{now:?}"))));
    }
    if !cfg!(target_os = "linux") {
        return Ok(None);
    }
    // SAFETY: the view is never read, only looked up in the memory map, so a change of the file cannot be seen
    // through it.
    let view = unsafe { memmap2::MmapOptions::new().len(1).map(&file) }.map_err(io)?;
    Ok(Some(Reference { view }))
}

impl Reference {
    fn compare(&self, path: &Path, descriptor: NonNull<TfDescriptor>) -> Result<(), Box<Finding>> {
        let Some(mappings) = memory_map::current() else { return Ok(()) };
        let base = object_base(descriptor);
        let at =
            |address: u64| mappings.iter().find(|mapping| mapping.start <= address && address < mapping.end);
        let expected = at(self.view.as_ptr() as u64);
        let found = base.and_then(at);
        match (expected, found) {
            (Some(expected), Some(found)) if expected.same_file(found) => Ok(()),
            (expected, found) => {
                let show = |mapping: Option<&memory_map::Mapping>| {
                    mapping.map_or("no mapping".to_owned(), |mapping| {
                        format!(
                            "inode {} of device {} ({})",
                            mapping.inode,
                            mapping.device,
                            show_path(&mapping.path)
                        )
                    })
                };
                Err(Box::new(changed(path, show(expected), show(found))))
            }
        }
    }
}

fn changed(path: &Path, wanted: String, found: String) -> Finding {
    Finding::error(Code::FileChanged, "the file changed while it was being loaded")
        .at(path)
        .wanted(wanted)
        .found(found)
        .fix("run the command again when no update is running")
}

/// Where the object that holds this address begins; its first mapping is of the library's file.
fn object_base(descriptor: NonNull<TfDescriptor>) -> Option<u64> {
    let mut information = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes the struct only when it succeeds.
    let found = unsafe { libc::dladdr(descriptor.as_ptr().cast(), information.as_mut_ptr()) };
    // SAFETY: all-zero is a valid Dl_info, and it was written if `found` is not zero.
    let information = unsafe { information.assume_init() };
    (found != 0).then_some(information.dli_fbase as u64)
}

/// The paths of mapped run-time libraries with these names; see [`memory_map::mapped_files`].
pub fn mapped_runtimes(names: &[&str]) -> Vec<PathBuf> {
    memory_map::current().map(|mappings| memory_map::mapped_files(&mappings, names)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::image;
    use super::super::testing::Library as TestLibrary;
    use super::*;

    fn identity(path: &Path) -> FileIdentity {
        FileIdentity::of(&std::fs::metadata(path).unwrap())
    }

    #[test]
    fn a_plugin_is_opened_and_its_constructor_runs_only_then() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("marker");
        let path = TestLibrary::new("backend-marker")
            .extra(&format!(
                "#include <fcntl.h>\n#include <unistd.h>\n__attribute__((constructor)) static void begin(void) {{ close(open({:?}, O_CREAT | O_WRONLY, 0600)); }}",
                marker.to_str().unwrap()
            ))
            .build(folder.path());
        let image = image::read(&path).unwrap();
        assert!(!marker.exists(), "reading a library runs nothing of it");
        let opened = open(&path, image.identity).unwrap();
        assert!(marker.exists(), "the marker works: opening runs the constructor");
        assert!(opened.symbol(image::MANIFEST_SYMBOL).is_some());
        assert!(opened.symbol("no_such_symbol").is_none());
    }

    #[test]
    fn two_plugins_are_two_objects() {
        let folder = tempfile::tempdir().unwrap();
        let first = TestLibrary::new("backend-one").build(folder.path());
        let second = TestLibrary::new("backend-two").build(folder.path());
        let first = open(&first, identity(&first)).unwrap();
        let second = open(&second, identity(&second)).unwrap();
        assert_ne!(first.descriptor(), second.descriptor());
    }

    #[test]
    fn a_missing_library_is_named_in_the_linkers_words() {
        let folder = tempfile::tempdir().unwrap();
        let dependency = TestLibrary::new("dependency")
            .source("int dependency(void) { return 1; }")
            .flags(&["-Wl,-soname,libneeded_by_test.so.9"])
            .build(folder.path());
        let path =
            TestLibrary::new("backend-linked").flags(&[dependency.to_str().unwrap()]).build(folder.path());
        std::fs::remove_file(&dependency).unwrap();
        let finding = open(&path, identity(&path)).unwrap_err();
        assert_eq!(finding.code, Code::DlopenFailed);
        let text = finding.to_string();
        assert!(text.contains("libneeded_by_test.so.9: cannot open shared object file"), "{text}");
    }

    #[test]
    fn an_unresolved_symbol_is_an_error_of_opening_and_not_of_the_first_call() {
        let folder = tempfile::tempdir().unwrap();
        let path = TestLibrary::new("backend-unresolved")
            .extra("int nobody_has_this(void); int call(void) { return nobody_has_this(); }")
            .flags(&["-Wl,-z,lazy"])
            .build(folder.path());
        let finding = open(&path, identity(&path)).unwrap_err();
        assert_eq!(finding.code, Code::DlopenFailed);
        assert!(finding.to_string().contains("nobody_has_this"), "{finding}");
    }

    #[test]
    fn a_file_replaced_after_the_check_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = TestLibrary::new("backend-swapped").build(folder.path());
        let checked = identity(&path);
        let other = folder.path().join("other.so");
        std::fs::copy(&path, &other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(open(&path, checked).unwrap_err().code, Code::FileChanged);
    }

    #[test]
    fn another_file_under_the_mapping_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let first = TestLibrary::new("backend-first").build(folder.path());
        let second = TestLibrary::new("backend-second").build(folder.path());
        let opened = open(&second, identity(&second)).unwrap();
        let reference = reference_view(&first, identity(&first)).unwrap().unwrap();
        assert_eq!(reference.compare(&first, opened.descriptor()).unwrap_err().code, Code::FileChanged);
        let reference = reference_view(&second, identity(&second)).unwrap().unwrap();
        reference.compare(&second, opened.descriptor()).unwrap();
    }

    #[test]
    fn a_library_without_a_descriptor_is_no_plugin() {
        let folder = tempfile::tempdir().unwrap();
        let path = TestLibrary::new("plain").source("int nothing(void) { return 0; }").build(folder.path());
        assert_eq!(open(&path, identity(&path)).unwrap_err().code, Code::NotAPlugin);
    }
}
