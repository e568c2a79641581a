//! The environment variables of the program, read once.
//!
//! `main` reads them before any thread starts; every later step takes the struct. Nothing else in the host asks the
//! process environment for a setting of plugins, so what a step does follows from its arguments.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Variables of the driver libraries that hide devices or claim another architecture. Printed at start when set.
pub const VISIBILITY_VARIABLES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROCR_VISIBLE_DEVICES",
];

/// Every variable beginning with `TENSORFOLD_` that some part of the program or of its own plugins reads, and the two
/// that switch off what this program never does. Anything else is reported: a setting is never accepted and ignored.
pub const KNOWN_VARIABLES: &[&str] = &[
    "TENSORFOLD_API_KEY",
    "TENSORFOLD_LOG",
    "TENSORFOLD_LOG_FORMAT",
    "TENSORFOLD_MLX_DIR",
    "TENSORFOLD_NORMAL_EXIT",
    "TENSORFOLD_NO_LIVE",
    "TENSORFOLD_NO_UPDATE_CHECK",
    "TENSORFOLD_PLUGINS_FILE",
    "TENSORFOLD_PLUGIN_DISABLE",
    "TENSORFOLD_PLUGIN_PATH",
    "TENSORFOLD_PLUGIN_SELECT",
    "TENSORFOLD_REQUEST_LOG",
    "TENSORFOLD_SEED_SALT",
];

/// What the process was started with, as far as finding plugins is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `TENSORFOLD_PLUGIN_PATH`: colon-separated absolute folders.
    pub plugin_path: Option<OsString>,
    /// `TENSORFOLD_PLUGINS_FILE`: replaces the user's and the system's `plugins.toml`.
    pub plugins_file: Option<PathBuf>,
    /// `TENSORFOLD_PLUGIN_SELECT`: patterns of sidecar names that are kept.
    pub plugin_select: Option<OsString>,
    /// `TENSORFOLD_PLUGIN_DISABLE`: patterns of sidecar names that are dropped, first of the two.
    pub plugin_disable: Option<OsString>,
    /// The user's configuration folder, `$XDG_CONFIG_HOME` or `$HOME/.config`.
    pub config_home: Option<PathBuf>,
    /// The user's data folder, `$XDG_DATA_HOME` or `$HOME/.local/share`.
    pub data_home: Option<PathBuf>,
    /// The user's cache folder, `$XDG_CACHE_HOME` or `$HOME/.cache`.
    pub cache_home: Option<PathBuf>,
    /// Those of [`VISIBILITY_VARIABLES`] that are set, with their values.
    pub visibility: BTreeMap<String, String>,
    /// Variables that begin with `TENSORFOLD_` and that nothing reads: most likely misspelt.
    pub unknown: Vec<String>,
    /// All set variables that begin with `TENSORFOLD_`, by name. Values of tokens and keys are not kept.
    pub set: BTreeMap<String, String>,
    /// The process has more rights than the user who started it (set-user-id, file capabilities).
    pub elevated: bool,
    /// The running executable with links resolved, when the system tells.
    pub executable: Option<PathBuf>,
}

impl Environment {
    /// Reads the process. Call it once, in `main`, before any thread starts.
    pub fn read() -> Self {
        let mut environment = Self::from_variables(std::env::vars_os(), elevated());
        environment.executable = std::env::current_exe().ok().map(|path| path.canonicalize().unwrap_or(path));
        environment
    }

    /// The folder for what this program may forget. There is none where its place in the file system is not there
    /// either: a home that does not exist, as that of many service accounts, is never made.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        let cache = self.cache_home.as_ref()?;
        (cache.is_dir() || cache.parent().is_some_and(Path::is_dir)).then(|| cache.join("tensorfold"))
    }

    /// The same from given variables; the executable is left unknown.
    pub fn from_variables(variables: impl IntoIterator<Item = (OsString, OsString)>, elevated: bool) -> Self {
        let mut all = BTreeMap::new();
        for (name, value) in variables {
            if let Some(name) = name.to_str() {
                all.insert(name.to_owned(), value);
            }
        }
        // An empty value means the same as an absent one, which is how shells let users switch things off.
        let get = |name: &str| all.get(name).filter(|value| !value.is_empty()).cloned();
        let home = get("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        // Relative values are to be ignored, says the XDG base directory specification.
        let folder = |name: &str, below_home: &str| {
            get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| home.as_ref().map(|home| home.join(below_home)))
        };
        Self {
            plugin_path: get("TENSORFOLD_PLUGIN_PATH"),
            plugins_file: get("TENSORFOLD_PLUGINS_FILE").map(PathBuf::from),
            plugin_select: get("TENSORFOLD_PLUGIN_SELECT"),
            plugin_disable: get("TENSORFOLD_PLUGIN_DISABLE"),
            config_home: folder("XDG_CONFIG_HOME", ".config"),
            data_home: folder("XDG_DATA_HOME", ".local/share"),
            cache_home: folder("XDG_CACHE_HOME", ".cache"),
            visibility: VISIBILITY_VARIABLES
                .iter()
                .filter_map(|name| {
                    all.get(*name).map(|value| ((*name).to_owned(), value.to_string_lossy().into()))
                })
                .collect(),
            unknown: all
                .keys()
                .filter(|name| name.starts_with("TENSORFOLD_") && !KNOWN_VARIABLES.contains(&name.as_str()))
                .cloned()
                .collect(),
            set: all
                .iter()
                .filter(|(name, _)| name.starts_with("TENSORFOLD_"))
                .map(|(name, value)| (name.clone(), shown_value(name, value)))
                .collect(),
            elevated,
            executable: None,
        }
    }

    /// The folder that holds the running executable.
    pub fn executable_folder(&self) -> Option<&Path> {
        self.executable.as_deref().and_then(Path::parent)
    }

    /// The workspace that the running executable was built in: it lies in `<workspace>/target/<profile>/`, and the
    /// workspace has a `Cargo.toml`. Where cargo was told to build elsewhere (`CARGO_TARGET_DIR`, `--target`) the
    /// executable lies in a folder that cargo has marked, and the workspace is the one that was compiled. Never for an
    /// elevated process or a build for packaging.
    pub fn workspace(&self) -> Option<PathBuf> {
        if cfg!(feature = "packaged") || self.elevated {
            return None;
        }
        let profile = self.executable_folder()?;
        // Test executables lie one folder deeper, in `deps`.
        let profile =
            if profile.file_name() == Some(OsStr::new("deps")) { profile.parent()? } else { profile };
        let has_manifest = |folder: &Path| folder.join("Cargo.toml").is_file();
        let target = profile.parent()?;
        if target.file_name() == Some(OsStr::new("target")) {
            let workspace = target.parent()?;
            if has_manifest(workspace) {
                return Some(workspace.to_path_buf());
            }
        }
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
        // A build for a named platform lies one folder deeper.
        let marked = target.ancestors().take(2).any(|folder| folder.join("CACHEDIR.TAG").is_file());
        (marked && has_manifest(compiled)).then(|| compiled.to_path_buf())
    }
}

fn shown_value(name: &str, value: &OsStr) -> String {
    if name.ends_with("_KEY") || name.ends_with("_TOKEN") {
        "(set)".to_owned()
    } else {
        value.to_string_lossy().into()
    }
}

/// Whether the process has more rights than the user who started it.
fn elevated() -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: getauxval reads the process' own auxiliary vector and has no preconditions.
        unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        // SAFETY: these four calls cannot fail and have no preconditions.
        unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_variables(pairs.iter().map(|(name, value)| (name.into(), value.into())), false)
    }

    #[test]
    fn folders_follow_the_base_directory_rules() {
        let environment =
            from(&[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "/conf"), ("XDG_DATA_HOME", "relative")]);
        assert_eq!(environment.config_home, Some("/conf".into()));
        assert_eq!(environment.data_home, Some("/home/u/.local/share".into()));
        assert_eq!(environment.cache_home, Some("/home/u/.cache".into()));
        assert_eq!(from(&[]).config_home, None);
    }

    #[test]
    fn an_empty_variable_is_an_absent_one() {
        let environment = from(&[("TENSORFOLD_PLUGIN_PATH", ""), ("TENSORFOLD_PLUGINS_FILE", "")]);
        assert_eq!(environment.plugin_path, None);
        assert_eq!(environment.plugins_file, None);
    }

    #[test]
    fn misspelt_variables_are_listed_and_known_ones_are_not() {
        let environment =
            from(&[("TENSORFOLD_PLUGINS_PATH", "/x"), ("TENSORFOLD_PLUGIN_PATH", "/x"), ("PATH", "/")]);
        assert_eq!(environment.unknown, ["TENSORFOLD_PLUGINS_PATH"]);
    }

    #[test]
    fn secrets_are_not_kept() {
        let environment = from(&[("TENSORFOLD_API_KEY", "hush"), ("TENSORFOLD_PLUGIN_SELECT", "a*")]);
        assert!(!format!("{environment:?}").contains("hush"));
        assert_eq!(environment.set["TENSORFOLD_PLUGIN_SELECT"], "a*");
    }

    #[test]
    fn a_hidden_card_is_remembered_even_when_the_list_is_empty() {
        let environment = from(&[("CUDA_VISIBLE_DEVICES", "")]);
        assert_eq!(environment.visibility["CUDA_VISIBLE_DEVICES"], "");
    }

    #[test]
    fn the_workspace_is_found_from_target_profile_and_deps_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::write(root.join("Cargo.toml"), "[workspace]").unwrap();
        let at = |path: &str, elevated: bool| {
            let executable = Some(root.join(path));
            Environment { executable, elevated, ..Environment::default() }.workspace()
        };
        let expected = (!cfg!(feature = "packaged")).then(|| root.to_path_buf());
        assert_eq!(at("target/debug/tensorfold", false), expected);
        assert_eq!(at("target/release/deps/tensorfold-0123", false), expected);
        assert_eq!(at("target/debug/tensorfold", true), None);
        assert_eq!(at("build/debug/tensorfold", false), None);
        assert_eq!(at("tensorfold", false), None);
        std::fs::remove_file(root.join("Cargo.toml")).unwrap();
        assert_eq!(at("target/debug/tensorfold", false), None);
    }

    #[test]
    fn a_build_in_a_folder_of_cargo_elsewhere_belongs_to_the_tree_that_was_compiled() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let at = |path: &str, elevated: bool| {
            let executable = Some(root.join(path));
            Environment { executable, elevated, ..Environment::default() }.workspace()
        };
        assert_eq!(at("cache/release/tensorfold", false), None, "no folder of cargo");
        std::fs::create_dir(root.join("cache")).unwrap();
        std::fs::write(root.join("cache/CACHEDIR.TAG"), "").unwrap();
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let expected = (!cfg!(feature = "packaged")).then(|| compiled.to_path_buf());
        for path in ["cache/release/tensorfold", "cache/debug/deps/test-1", "cache/x86_64/release/tensorfold"]
        {
            assert_eq!(at(path, false), expected, "{path}");
            assert_eq!(at(path, true), None, "{path} with the rights of another user");
        }
        assert_eq!(at("cache/a/b/release/tensorfold", false), None, "too deep");
    }
}
