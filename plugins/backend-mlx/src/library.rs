//! MLX's library, found and opened at run time.
//!
//! `libmlx` has a C++ interface only. The one thing called here is its version
//! function, which takes nothing and returns a C string, so that its mangled
//! name is all that is needed. Guarantees: no array is made, no device is
//! chosen, and every failure is one [`LibraryError`] whose text says what was
//! tried and what to do.

use std::ffi::{CStr, OsString, c_char};
use std::path::{Path, PathBuf};

use tensorfold_plugin_api::runtime_library::{
    LibraryNotFound, RuntimeLibrary, SymbolMissing, trusted_variable,
};

/// File name of the library. MLX gives it no version suffix on any system.
pub(crate) const FILE_NAME: &str = if cfg!(target_os = "macos") { "libmlx.dylib" } else { "libmlx.so" };

/// The variable that names MLX's folder: the one that holds `lib/` and
/// `include/`, which is `mlx` of the Python package or Homebrew's prefix.
pub(crate) const FOLDER_VARIABLE: &str = "TENSORFOLD_MLX_DIR";

/// `const char *mlx::core::version()`, mangled by the Itanium rules that every
/// supported compiler follows.
const VERSION_FUNCTION: &CStr = c"_ZN3mlx4core7versionEv";

/// Where MLX may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// [`FOLDER_VARIABLE`]: when set, nothing else is tried.
    pub(crate) folder: Option<PathBuf>,
    /// Prefixes whose `lib/` holds the library itself: Homebrew's.
    pub(crate) library_prefixes: Vec<PathBuf>,
    /// Prefixes of Python installations that may have the `mlx-cpu` or `mlx`
    /// package.
    pub(crate) python_prefixes: Vec<PathBuf>,
}

impl Places {
    /// The places of this system, the user's own ones first.
    pub(crate) fn of_this_system() -> Self {
        let path = |name: &str| trusted_variable(name).map(PathBuf::from);
        let home = path("HOME").map(|home| home.join(".local"));
        let own = [path("VIRTUAL_ENV"), path("CONDA_PREFIX"), home];
        let system = ["/usr/local", "/usr"].map(|prefix| Some(PathBuf::from(prefix)));
        let homebrew: &[&str] =
            if cfg!(target_os = "macos") { &["/opt/homebrew", "/usr/local"] } else { &[] };
        let absolute = |path: &PathBuf| path.is_absolute();
        Self {
            folder: path(FOLDER_VARIABLE),
            library_prefixes: homebrew.iter().map(PathBuf::from).collect(),
            python_prefixes: own.into_iter().chain(system).flatten().filter(absolute).collect(),
        }
    }

    /// What to try, in order.
    ///
    /// Folders of Python are listed to find the versions installed in them; a
    /// folder that does not exist yields nothing.
    pub(crate) fn candidates(&self) -> Vec<PathBuf> {
        if let Some(folder) = &self.folder {
            return vec![folder.join("lib").join(FILE_NAME)];
        }
        let direct = self.library_prefixes.iter().map(|prefix| prefix.join("lib").join(FILE_NAME));
        let python = self.python_prefixes.iter().flat_map(|prefix| package_folders(prefix));
        let wheels = python.map(|folder| folder.join("mlx/lib").join(FILE_NAME));
        direct.chain(wheels).chain([PathBuf::from(FILE_NAME)]).collect()
    }
}

/// Folders in which Python packages of `prefix` lie, the newest Python first.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let minor = name.to_str()?.strip_prefix("python3")?;
            // Debian's `python3` without a minor number comes last.
            let minor = if minor.is_empty() { 0 } else { minor.strip_prefix('.')?.parse().ok()? };
            Some((minor, entry.path()))
        })
        .collect();
    versions.sort_by(|left, right| right.cmp(left));
    let folders = versions.into_iter().flat_map(|(_, python)| {
        ["site-packages", "dist-packages"].map(|name| python.join(name)).into_iter().filter(|p| p.is_dir())
    });
    folders.collect()
}

/// MLX, opened.
#[derive(Debug)]
pub(crate) struct Library {
    library: RuntimeLibrary,
    version: String,
}

/// Why MLX cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    /// [`FOLDER_VARIABLE`] is relative.
    #[error(
        "{FOLDER_VARIABLE} must be an absolute path, found {0:?}; name the folder that holds lib/{FILE_NAME}"
    )]
    RelativeFolder(OsString),
    /// No library in any known place.
    #[error(
        "MLX cannot be opened: {0}; install it (`pip install mlx-cpu` on Linux, `brew install mlx` on macOS) or set {FOLDER_VARIABLE} to the folder that holds lib/{FILE_NAME}"
    )]
    Missing(LibraryNotFound),
    /// A library of that name without MLX's version function.
    #[error("this is not MLX, or one that is too old to tell its version: {0}; install a current MLX")]
    NotMlx(SymbolMissing),
}

impl Library {
    /// Opens MLX from the first of `places` that has it.
    pub(crate) fn open(places: &Places) -> Result<Self, LibraryError> {
        if let Some(folder) = places.folder.as_ref().filter(|folder| !folder.is_absolute()) {
            return Err(LibraryError::RelativeFolder(folder.clone().into_os_string()));
        }
        // SAFETY: the names are those of MLX, whose constructors only fill
        // tables of its own.
        let library =
            unsafe { RuntimeLibrary::open_first(places.candidates()) }.map_err(LibraryError::Missing)?;
        // SAFETY: mlx/version.h declares `const char* version()`; a function
        // without arguments has the same calling convention in C and C++.
        let version: unsafe extern "C" fn() -> *const c_char =
            unsafe { library.function(VERSION_FUNCTION) }.map_err(LibraryError::NotMlx)?;
        // SAFETY: no precondition; returns a static C string.
        let text = unsafe { version() };
        let version = if text.is_null() {
            "unknown".to_owned()
        } else {
            // SAFETY: not null, so it is the library's static string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Ok(Self { library, version })
    }

    /// The file MLX was loaded from.
    pub(crate) fn path(&self) -> &Path {
        self.library.path()
    }

    /// MLX's own version, as "0.32.4".
    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Compiles `tests/fake_libmlx.c` into `folder`.
    fn fake(folder: &Path, switches: &[&str]) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_libmlx.c");
        let library = folder.join(FILE_NAME);
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

    fn python(prefix: &Path) -> Places {
        Places { python_prefixes: vec![prefix.to_owned()], ..Places::default() }
    }

    #[test]
    fn the_newest_python_that_has_mlx_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib");
        std::fs::create_dir_all(lib.join("python3.14/site-packages")).unwrap();
        let expected = fake(&lib.join("python3.12/site-packages/mlx/lib"), &["-DFAKE_VERSION=\"0.32.4\""]);
        fake(&lib.join("python3.9/site-packages/mlx/lib"), &["-DFAKE_VERSION=\"0.9.0\""]);

        let library = Library::open(&python(root.path())).unwrap();
        assert_eq!(library.path(), expected);
        assert_eq!(library.version(), "0.32.4");
    }

    #[test]
    fn pythons_are_ordered_by_number_and_debians_folder_comes_last() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["python3/dist-packages", "python3.9/site-packages", "python3.11/dist-packages"] {
            std::fs::create_dir_all(root.path().join("lib").join(folder)).unwrap();
        }
        std::fs::create_dir_all(root.path().join("lib/python2.7/site-packages")).unwrap();
        let found = package_folders(root.path());
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(root.path()).unwrap()).collect();
        let expected =
            ["lib/python3.11/dist-packages", "lib/python3.9/site-packages", "lib/python3/dist-packages"];
        assert_eq!(names, expected.map(Path::new));
    }

    #[test]
    fn a_named_folder_is_the_only_place_tried() {
        let root = tempfile::tempdir().unwrap();
        fake(&root.path().join("lib/python3.12/site-packages/mlx/lib"), &[]);
        let mut places = python(root.path());
        places.folder = Some(root.path().join("elsewhere"));
        let message = Library::open(&places).unwrap_err().to_string();
        let wanted = root.path().join("elsewhere/lib").join(FILE_NAME);
        assert!(
            message.starts_with(&format!(
                "MLX cannot be opened: tried {} (no such file); install it",
                wanted.display()
            )),
            "{message}"
        );

        places.folder = Some(root.path().join("lib/python3.12/site-packages/mlx"));
        assert!(Library::open(&places).is_ok());
    }

    #[test]
    fn a_relative_folder_is_refused_and_not_looked_up() {
        let places = Places { folder: Some("mlx".into()), ..Places::default() };
        let message = Library::open(&places).unwrap_err().to_string();
        assert!(
            message.starts_with("TENSORFOLD_MLX_DIR must be an absolute path, found \"mlx\""),
            "{message}"
        );
    }

    #[test]
    fn the_bare_name_is_tried_last() {
        let places = Places { library_prefixes: vec!["/opt/homebrew".into()], ..Places::default() };
        let candidates = places.candidates();
        assert_eq!(candidates[0], Path::new("/opt/homebrew/lib").join(FILE_NAME));
        assert_eq!(candidates.last().unwrap(), Path::new(FILE_NAME));
    }

    #[test]
    fn a_library_of_that_name_without_the_version_function_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fake(&root.path().join("lib"), &["-DFAKE_LACKS_VERSION"]);
        let places = Places { folder: Some(root.path().to_owned()), ..Places::default() };
        let error = Library::open(&places).unwrap_err();
        assert!(matches!(error, LibraryError::NotMlx(_)), "{error}");
        assert!(error.to_string().contains("has no symbol _ZN3mlx4core7versionEv"), "{error}");
    }

    #[test]
    fn a_library_that_gives_no_version_is_still_mlx() {
        let root = tempfile::tempdir().unwrap();
        fake(&root.path().join("lib"), &["-DFAKE_VERSION=0"]);
        let places = Places { folder: Some(root.path().to_owned()), ..Places::default() };
        assert_eq!(Library::open(&places).unwrap().version(), "unknown");
    }
}
