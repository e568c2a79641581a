//! Opens a vendor's runtime library (a GPU driver, a framework) at run time.
//!
//! A plugin that *links* `libcuda.so.1` cannot be loaded on a machine without
//! it, and then nobody can say what is missing. A plugin that opens it in `init`
//! loads everywhere and answers with one line. This module does that opening:
//! every name that was tried is kept with the reason it failed, for that line.
//!
//! Guarantees: a library opened here stays mapped to the end of the process
//! (vendors' exit handlers and threads do not survive unloading), binding is
//! immediate (a missing symbol of the library's own dependencies is an error
//! here, not a crash later) and its symbols stay out of the global scope.
//! Nothing in this module prints, logs or searches folders of its own accord.

use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A vendor's library that was opened and is never closed.
#[derive(Debug)]
pub struct RuntimeLibrary {
    library: ManuallyDrop<Library>,
    path: PathBuf,
}

impl RuntimeLibrary {
    /// Opens the first of `candidates` that the dynamic linker accepts.
    ///
    /// A candidate is either a bare name, which the linker looks up in its own
    /// search path, or an absolute path. Use versioned names (`libcuda.so.1`,
    /// not `libcuda.so`): the unversioned ones belong to development packages
    /// and may be stubs.
    ///
    /// # Errors
    /// When none can be opened: all names tried, each with its reason.
    ///
    /// # Safety
    /// Opening a library runs its constructors. Each candidate must name a
    /// library whose constructors are sound to run in this process.
    pub unsafe fn open_first<I>(candidates: I) -> Result<Self, LibraryNotFound>
    where
        I: IntoIterator,
        I::Item: AsRef<Path>,
    {
        let mut tried = Vec::new();
        for candidate in candidates {
            let requested = candidate.as_ref();
            // The linker's sentence for this case repeats the path; ours is short.
            if requested.is_absolute() && !requested.exists() {
                tried.push(Attempt::new(requested, "no such file"));
                continue;
            }
            // SAFETY: the caller vouches for the constructors of every candidate.
            match unsafe { Library::open(Some(requested), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    let handle = library.into_raw();
                    let path = linker_path(handle).unwrap_or_else(|| requested.to_owned());
                    // SAFETY: the handle came out of a `Library` one line above.
                    let library = ManuallyDrop::new(unsafe { Library::from_raw(handle) });
                    return Ok(Self { library, path });
                }
                Err(error) => tried.push(Attempt::refused(requested, &error)),
            }
        }
        Err(LibraryNotFound { tried })
    }

    /// The address of the function `name`, as a function pointer of type `F`.
    ///
    /// # Errors
    /// When neither the library nor its dependencies define the symbol.
    ///
    /// # Safety
    /// `F` must be a function pointer type with the signature and the calling
    /// convention that the library's documentation gives for `name`.
    ///
    /// # Panics
    /// When `F` is not pointer-sized: a mistake in the calling code.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, SymbolMissing> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "F is no function pointer type");
        // SAFETY: asking for the bare address makes no claim about its type.
        let found = unsafe { self.library.get::<*mut c_void>(name) };
        match found.map(|symbol| symbol.into_raw()) {
            // SAFETY: F has a pointer's size, and the caller vouches that it is
            // the type of this function. The library is never closed.
            Ok(address) if !address.is_null() => Ok(unsafe { std::mem::transmute_copy(&address) }),
            _ => {
                Err(SymbolMissing { symbol: name.to_string_lossy().into_owned(), library: self.path.clone() })
            }
        }
    }

    /// The file that was opened, as the dynamic linker names it; the requested
    /// name on systems whose linker does not tell.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// No candidate could be opened.
///
/// Displays as one line: `tried libcuda.so.1 (not found), ...`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LibraryNotFound {
    /// Every candidate in the order tried.
    pub tried: Vec<Attempt>,
}

impl fmt::Display for LibraryNotFound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("tried ")?;
        for (index, attempt) in self.tried.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{} ({})", attempt.requested.display(), attempt.reason)?;
        }
        if self.tried.is_empty() { formatter.write_str("no name at all") } else { Ok(()) }
    }
}

/// One candidate that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The name or path that was asked for.
    pub requested: PathBuf,
    /// Why it was not opened, in one line.
    pub reason: String,
}

impl Attempt {
    fn new(requested: &Path, reason: &str) -> Self {
        Self { requested: requested.to_owned(), reason: reason.to_owned() }
    }

    fn refused(requested: &Path, error: &libloading::Error) -> Self {
        use std::error::Error as _;
        let text = match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        };
        Self::new(requested, &shorten(&text, requested))
    }
}

/// The library was opened but is not the one expected, or is too old.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has no symbol {symbol}", library.display())]
pub struct SymbolMissing {
    /// The symbol asked for.
    pub symbol: String,
    /// The file that lacks it.
    pub library: PathBuf,
}

/// An environment variable that may decide which file is opened.
///
/// `None` when it is unset or empty, and always `None` in a process that runs
/// with more rights than the user who started it: whoever sets the environment
/// of such a process must not choose what code it runs.
#[must_use]
pub fn trusted_variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    if process_is_elevated() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The linker's sentence without the name that the message states anyway.
fn shorten(text: &str, requested: &Path) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let own_prefix = format!("{}: ", requested.display());
    match one_line.strip_prefix(&own_prefix) {
        // The file itself is missing, not one of the libraries it needs.
        Some(rest) if rest.ends_with("No such file or directory") => "not found".to_owned(),
        Some(rest) => rest.to_owned(),
        None => one_line,
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn linker_path(handle: *mut c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;

    // The head of glibc's `struct link_map`; the rest is not read.
    #[repr(C)]
    struct LinkMap {
        load_bias: usize,
        name: *const std::ffi::c_char,
    }

    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the caller's handle is open, and for this request dlinfo writes
    // one pointer to a link map.
    let status = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    if status != 0 || map.is_null() {
        return None;
    }
    // SAFETY: dlinfo succeeded, so the map is that of an open library, and its
    // name is a C string that lives as long as the library is open.
    let name = unsafe { CStr::from_ptr((*map).name) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    (!path.as_os_str().is_empty()).then(|| path.to_owned())
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn linker_path(_handle: *mut c_void) -> Option<PathBuf> {
    None
}

#[cfg(target_os = "linux")]
fn process_is_elevated() -> bool {
    // SAFETY: reads one word of the auxiliary vector; no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(not(target_os = "linux"))]
fn process_is_elevated() -> bool {
    // SAFETY: these four only return the process's own ids.
    unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(candidates: &[&str]) -> Result<RuntimeLibrary, LibraryNotFound> {
        // SAFETY: the names used here are absent, no libraries, or the C library.
        unsafe { RuntimeLibrary::open_first(candidates) }
    }

    #[test]
    fn every_name_tried_is_reported_in_order_with_its_reason() {
        let text = std::env::temp_dir().join(format!("not-a-library-{}", std::process::id()));
        std::fs::write(&text, "plain text, longer than an ELF header needs to be for the check").unwrap();
        let error = open(&["libtensorfold-absent.so.1", "/nonexistent/libx.so.2", text.to_str().unwrap()])
            .unwrap_err();
        std::fs::remove_file(&text).unwrap();

        let message = error.to_string();
        assert!(
            message.starts_with(
                "tried libtensorfold-absent.so.1 (not found), /nonexistent/libx.so.2 (no such file), "
            ),
            "{message}"
        );
        // The third exists, so its reason is the linker's own.
        assert!(!error.tried[2].reason.contains("not found"), "{message}");
        assert!(!error.tried[2].reason.is_empty());
        assert!(!message.contains('\n'));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn the_first_library_that_opens_is_named_by_its_file() {
        let library = open(&["libtensorfold-absent.so.1", "libc.so.6"]).unwrap();
        assert!(library.path().is_absolute(), "{}", library.path().display());
        assert_eq!(library.path().file_name().unwrap(), "libc.so.6");
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_function_is_callable_and_a_missing_one_names_library_and_symbol() {
        let library = open(&["libc.so.6"]).unwrap();
        // SAFETY: the C standard's signature of abs.
        let abs: unsafe extern "C" fn(i32) -> i32 = unsafe { library.function(c"abs") }.unwrap();
        // SAFETY: abs has no precondition for -7.
        assert_eq!(unsafe { abs(-7) }, 7);

        // SAFETY: the symbol does not exist, so no pointer of this type is made.
        let missing = unsafe { library.function::<unsafe extern "C" fn()>(c"tensorfold_absent") };
        let message = missing.unwrap_err().to_string();
        assert!(message.ends_with("libc.so.6 has no symbol tensorfold_absent"), "{message}");
    }

    #[test]
    fn a_missing_dependency_is_not_mistaken_for_a_missing_library() {
        let requested = Path::new("libamdhip64.so.7");
        assert_eq!(
            shorten("libamdhip64.so.7: cannot open shared object file: No such file or directory", requested),
            "not found"
        );
        let dependency = "libhsa-runtime64.so.1: cannot open shared object file: No such file or directory";
        assert_eq!(shorten(dependency, requested), dependency);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(trusted_variable("TENSORFOLD_TEST_VARIABLE_THAT_NOBODY_SETS"), None);
        assert!(trusted_variable("PATH").is_some());
    }
}
