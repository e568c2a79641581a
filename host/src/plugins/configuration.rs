//! `plugins.toml`: where to look, which plugins are on, their options, and the policy.
//!
//! Files are read lowest layer first and merged; every value remembers the file it came from, so that a message can
//! name it. A key that this host does not know is an error: a setting is never accepted and then ignored.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::configuration_file::{RawFile, RawPolicy, parse};
use super::environment::Environment;
use super::lifecycle::{Finding, show_path};
use super::safety::Checker;

/// Largest configuration file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Where a configuration file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// `<workspace>/plugins.toml` of the tree the executable was built in.
    Workspace,
    /// `/etc/tensorfold/plugins.toml` and the system's drop-ins.
    System,
    /// `$XDG_CONFIG_HOME/tensorfold/plugins.toml` and its drop-ins.
    User,
    /// `--plugins-file` or `TENSORFOLD_PLUGINS_FILE`.
    Explicit,
}

/// A value with the file that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The file.
    pub file: PathBuf,
    /// The file's layer.
    pub layer: Layer,
}

/// What is set for one plugin id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginSettings {
    /// Switched on or off.
    pub enabled: Option<Sourced<bool>>,
    /// Handed to the plugin's `init`: strings, integers, floats and booleans.
    pub options: BTreeMap<String, toml::Value>,
    /// SHA-256 of the library, 64 hexadecimal digits.
    pub sha256: Option<Sourced<String>>,
}

/// The rules that hold for every plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Refuse what is not pinned, and the file that asks for it.
    pub require_lock: Option<Sourced<bool>>,
    /// Folders excused from the unsafe-path rules.
    pub allow_unsafe_paths: Vec<Sourced<PathBuf>>,
}

/// All configuration files together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// The files that were read, highest layer first.
    pub files: Vec<(PathBuf, Layer)>,
    /// `[search] paths`, highest layer first.
    pub search_paths: Vec<Sourced<PathBuf>>,
    /// Libraries named by bare file name, highest layer first.
    pub libraries: Vec<Sourced<String>>,
    /// Settings by plugin id.
    pub plugins: BTreeMap<String, PluginSettings>,
    /// The policy.
    pub policy: Policy,
    /// What was ignored and why, one line each.
    pub notes: Vec<String>,
}

impl Configuration {
    /// Whether plugins must be pinned.
    pub fn requires_lock(&self) -> bool {
        self.policy.require_lock.as_ref().is_some_and(|rule| rule.value)
    }
}

/// Why the configuration cannot be used. Each ends the command.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// Asked for by name and not there, or not readable.
    #[error("{}: the plugins file cannot be read: {source}", show_path(.path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not what a plugins file may hold.
    #[error("{}, line {line}: {what}", show_path(.path))]
    Content {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong, wanted and found.
        what: String,
    },
    /// Somebody else could change the file.
    #[error("{0}")]
    Unsafe(Box<Finding>),
    /// A process with borrowed rights was asked to read a file of the user's choice.
    #[error("--plugins-file {}: not with the rights of another user; run the program unprivileged, or put the settings into /etc/tensorfold/plugins.toml", show_path(.0))]
    Elevated(PathBuf),
    /// A relative path where the folder the user stands in must not matter.
    #[error("{name}: wanted an absolute path, found `{}`", show_path(.path))]
    Relative {
        /// The variable or key.
        name: &'static str,
        /// Its value.
        path: PathBuf,
    },
}

/// Reads every configuration file that applies.
///
/// `explicit` is the value of `--plugins-file`; `root` is `/` except in tests. The folders that the policy excuses
/// are added to `checker`.
///
/// # Errors
/// The first file that cannot be used. A file that is absent is skipped unless it was asked for.
pub fn read(
    environment: &Environment,
    explicit: Option<&Path>,
    root: &Path,
    checker: &mut Checker,
) -> Result<Configuration, ConfigurationError> {
    let mut configuration = Configuration::default();
    let explicit = explicit_file(environment, explicit, &mut configuration.notes)?;
    let replaced = explicit.is_some();

    for path in system_files(root) {
        merge_optional(&mut configuration, &path, Layer::System, replaced, checker)?;
    }
    for path in user_files(environment, &mut configuration.notes) {
        merge_optional(&mut configuration, &path, Layer::User, replaced, checker)?;
    }
    if let Some(path) = explicit {
        let file = parse_checked(&path, checker)?;
        merge(&mut configuration, &path, Layer::Explicit, file, false, checker);
    } else if let Some(workspace) = environment.workspace() {
        let path = workspace.join("plugins.toml");
        merge_optional(&mut configuration, &path, Layer::Workspace, false, checker)?;
    }
    // Within a layer a later file wins; between layers the higher one does.
    configuration.files.reverse();
    configuration.files.sort_by_key(|(_, layer)| std::cmp::Reverse(*layer));
    configuration.search_paths.sort_by_key(|entry| std::cmp::Reverse(entry.layer));
    configuration.libraries.sort_by_key(|entry| std::cmp::Reverse(entry.layer));
    Ok(configuration)
}

fn explicit_file(
    environment: &Environment,
    option: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<Option<PathBuf>, ConfigurationError> {
    if let Some(path) = option {
        if environment.elevated {
            return Err(ConfigurationError::Elevated(path.to_path_buf()));
        }
        let absolute = std::path::absolute(path)
            .map_err(|source| ConfigurationError::Unreadable { path: path.to_path_buf(), source })?;
        return Ok(Some(absolute));
    }
    let Some(path) = &environment.plugins_file else { return Ok(None) };
    if environment.elevated {
        notes.push(
            "TENSORFOLD_PLUGINS_FILE is ignored: the process runs with the rights of another user".into(),
        );
        return Ok(None);
    }
    if !path.is_absolute() {
        return Err(ConfigurationError::Relative { name: "TENSORFOLD_PLUGINS_FILE", path: path.clone() });
    }
    Ok(Some(path.clone()))
}

/// The system's main file, then its drop-ins in byte order of their names. The same name in `/etc` replaces the one
/// in `/run`, which replaces the one in `/usr/lib`.
fn system_files(root: &Path) -> Vec<PathBuf> {
    let mut drop_ins: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for folder in ["usr/lib/tensorfold", "run/tensorfold", "etc/tensorfold"] {
        for path in toml_files(&root.join(folder).join("plugins.d")) {
            if let Some(name) = path.file_name() {
                drop_ins.insert(name.to_owned(), path);
            }
        }
    }
    std::iter::once(root.join("etc/tensorfold/plugins.toml")).chain(drop_ins.into_values()).collect()
}

fn user_files(environment: &Environment, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let Some(folder) = environment.config_home.as_ref().map(|folder| folder.join("tensorfold")) else {
        return Vec::new();
    };
    let main = folder.join("plugins.toml");
    let mut drop_ins = toml_files(&folder.join("plugins.d"));
    drop_ins.sort();
    let files: Vec<PathBuf> =
        std::iter::once(main).filter(|main| main.symlink_metadata().is_ok()).chain(drop_ins).collect();
    if environment.elevated {
        if let Some(first) = files.first() {
            notes.push(format!(
                "{} is ignored: the process runs with the rights of another user",
                show_path(first)
            ));
        }
        return Vec::new();
    }
    files
}

fn toml_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect()
}

fn merge_optional(
    configuration: &mut Configuration,
    path: &Path,
    layer: Layer,
    policy_only: bool,
    checker: &mut Checker,
) -> Result<(), ConfigurationError> {
    // A link to /dev/null or an empty file switches a drop-in off.
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if !metadata.is_dir() && metadata.len() == 0 => return Ok(()),
        _ => {}
    }
    let file = parse_checked(path, checker)?;
    merge(configuration, path, layer, file, policy_only, checker);
    Ok(())
}

fn parse_checked(path: &Path, checker: &Checker) -> Result<RawFile, ConfigurationError> {
    let text = read_checked(path, checker)?;
    parse(&text).map_err(|error| ConfigurationError::Content {
        path: path.to_path_buf(),
        line: error.line,
        what: error.what,
    })
}

fn read_checked(path: &Path, checker: &Checker) -> Result<String, ConfigurationError> {
    let unreadable = |source| ConfigurationError::Unreadable { path: path.to_path_buf(), source };
    // Asked first so that a missing file is reported as missing and not as unsafe.
    std::fs::symlink_metadata(path).map_err(unreadable)?;
    checker.check_file(path).map_err(ConfigurationError::Unsafe)?;
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > FILE_MAX {
        return Err(ConfigurationError::Content {
            path: path.to_path_buf(),
            line: 1,
            what: format!("wanted at most {FILE_MAX} bytes, found more"),
        });
    }
    Ok(text)
}

fn merge(
    configuration: &mut Configuration,
    path: &Path,
    layer: Layer,
    file: RawFile,
    policy_only: bool,
    checker: &mut Checker,
) {
    fn from<T>(value: T, path: &Path, layer: Layer) -> Sourced<T> {
        Sourced { value, file: path.to_path_buf(), layer }
    }
    configuration.files.push((path.to_path_buf(), layer));
    merge_policy(configuration, path, layer, file.policy, checker);
    if policy_only {
        return;
    }
    configuration.search_paths.extend(file.search.paths.into_iter().map(|value| from(value, path, layer)));
    for entry in file.plugin.0 {
        if let Some(library) = entry.library {
            if entry.enabled != Some(false) {
                configuration.libraries.push(from(library, path, layer));
            }
            if entry.id.is_none() {
                continue;
            }
        }
        let settings = configuration.plugins.entry(entry.id.unwrap_or_default()).or_default();
        // The tree's own file fills what nobody else has set; every other later file wins.
        let fill_only = layer == Layer::Workspace;
        if let Some(enabled) = entry.enabled
            && !(fill_only && settings.enabled.is_some())
        {
            settings.enabled = Some(from(enabled, path, layer));
        }
        if let Some(sha256) = entry.sha256
            && !(fill_only && settings.sha256.is_some())
        {
            settings.sha256 = Some(from(sha256, path, layer));
        }
        for (name, value) in entry.options {
            if !(fill_only && settings.options.contains_key(&name)) {
                settings.options.insert(name, value);
            }
        }
    }
}

/// Only the system may loosen what the system has tightened.
fn merge_policy(
    configuration: &mut Configuration,
    path: &Path,
    layer: Layer,
    policy: RawPolicy,
    checker: &mut Checker,
) {
    let system_has_rules = |configuration: &Configuration| {
        configuration.policy.allow_unsafe_paths.iter().any(|entry| entry.layer == Layer::System)
    };
    if let Some(wanted) = policy.require_lock {
        let held = configuration
            .policy
            .require_lock
            .as_ref()
            .filter(|held| held.value && held.layer == Layer::System);
        match held {
            Some(held) if !wanted && layer != Layer::System => configuration.notes.push(format!(
                "{}: require_lock = false is ignored, {} says true",
                show_path(path),
                show_path(&held.file)
            )),
            _ => {
                configuration.policy.require_lock =
                    Some(Sourced { value: wanted, file: path.to_path_buf(), layer });
            }
        }
    }
    if let Some(folders) = policy.allow_unsafe_paths {
        if layer != Layer::System && system_has_rules(configuration) {
            configuration.notes.push(format!(
                "{}: allow_unsafe_paths is ignored, the system's configuration has its own",
                show_path(path)
            ));
            return;
        }
        checker.allow(folders.iter().cloned());
        configuration.policy.allow_unsafe_paths.extend(folders.into_iter().map(|value| Sourced {
            value,
            file: path.to_path_buf(),
            layer,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::safety::Process;
    use super::*;
    use std::fs;

    struct Tree {
        folder: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        fn environment(&self) -> Environment {
            Environment { config_home: Some(self.path("home/.config")), ..Environment::default() }
        }

        fn read_with(
            &self,
            environment: &Environment,
            explicit: Option<&Path>,
        ) -> Result<Configuration, ConfigurationError> {
            let mut checker = Checker::new(Process::current(false));
            read(environment, explicit, self.folder.path(), &mut checker)
        }

        fn read(&self) -> Configuration {
            self.read_with(&self.environment(), None).unwrap()
        }
    }

    fn enabled(configuration: &Configuration, id: &str) -> Option<bool> {
        configuration.plugins.get(id)?.enabled.as_ref().map(|enabled| enabled.value)
    }

    #[test]
    fn without_files_everything_is_empty() {
        assert_eq!(Tree::new().read(), Configuration::default());
    }

    #[test]
    fn the_user_wins_over_drop_ins_which_win_in_byte_order_over_the_main_file() {
        let tree = Tree::new();
        tree.write("etc/tensorfold/plugins.toml", "[plugin.a]\nenabled = true\n[plugin.b]\nenabled = true\n");
        tree.write("usr/lib/tensorfold/plugins.d/20.toml", "[plugin.a]\nenabled = false\n");
        tree.write(
            "etc/tensorfold/plugins.d/10.toml",
            "[plugin.a]\nenabled = true\n[plugin.c]\nenabled = true\n",
        );
        tree.write("home/.config/tensorfold/plugins.toml", "[[plugin]]\nid = \"c\"\nenabled = false\n");
        let configuration = tree.read();
        assert_eq!(enabled(&configuration, "a"), Some(false));
        assert_eq!(enabled(&configuration, "b"), Some(true));
        assert_eq!(enabled(&configuration, "c"), Some(false));
        assert_eq!(configuration.files[0].1, Layer::User);
    }

    #[test]
    fn a_drop_in_replaces_the_one_of_the_same_name_below_it_and_an_empty_one_hides_it() {
        let tree = Tree::new();
        tree.write("usr/lib/tensorfold/plugins.d/10.toml", "[plugin.a]\nenabled = false\n");
        tree.write("run/tensorfold/plugins.d/10.toml", "[plugin.b]\nenabled = false\n");
        assert_eq!(enabled(&tree.read(), "a"), None);
        assert_eq!(enabled(&tree.read(), "b"), Some(false));
        fs::create_dir_all(tree.path("etc/tensorfold/plugins.d")).unwrap();
        std::os::unix::fs::symlink("/dev/null", tree.path("etc/tensorfold/plugins.d/10.toml")).unwrap();
        assert_eq!(enabled(&tree.read(), "b"), None);
    }

    #[test]
    fn an_explicit_file_replaces_all_but_the_policy() {
        let tree = Tree::new();
        tree.write(
            "etc/tensorfold/plugins.toml",
            "[policy]\nrequire_lock = true\n[search]\npaths = [\"/sys\"]\n",
        );
        let explicit = tree.write("mine.toml", "[search]\npaths = [\"/mine\"]\n");
        let configuration = tree.read_with(&tree.environment(), Some(&explicit)).unwrap();
        assert_eq!(configuration.search_paths.len(), 1);
        assert_eq!(configuration.search_paths[0].value, Path::new("/mine"));
        assert!(configuration.requires_lock());
        let environment = Environment { plugins_file: Some(explicit), ..tree.environment() };
        assert_eq!(tree.read_with(&environment, None).unwrap().search_paths, configuration.search_paths);
    }

    #[test]
    fn a_user_cannot_loosen_the_systems_policy() {
        let tree = Tree::new();
        let user = "[policy]\nrequire_lock = false\nallow_unsafe_paths = [\"/user\"]\n";
        tree.write("home/.config/tensorfold/plugins.toml", user);
        let alone = tree.read();
        assert!(!alone.requires_lock());
        assert_eq!(alone.policy.allow_unsafe_paths.len(), 1, "where the system is silent the user decides");
        tree.write(
            "etc/tensorfold/plugins.toml",
            "[policy]\nrequire_lock = true\nallow_unsafe_paths = [\"/opt\"]\n",
        );
        let both = tree.read();
        assert!(both.requires_lock());
        assert_eq!(both.policy.allow_unsafe_paths[0].value, Path::new("/opt"));
        assert_eq!(both.policy.allow_unsafe_paths.len(), 1);
        assert_eq!(both.notes.len(), 2);
    }

    #[test]
    fn a_user_may_tighten_the_policy() {
        let tree = Tree::new();
        tree.write("etc/tensorfold/plugins.toml", "[policy]\nrequire_lock = false\n");
        tree.write("home/.config/tensorfold/plugins.toml", "[policy]\nrequire_lock = true\n");
        assert!(tree.read().requires_lock());
    }

    #[test]
    fn with_borrowed_rights_the_users_files_are_ignored_and_the_option_refused() {
        let tree = Tree::new();
        let user = tree.write("home/.config/tensorfold/plugins.toml", "[search]\npaths = [\"/x\"]\n");
        let environment =
            Environment { elevated: true, plugins_file: Some(user.clone()), ..tree.environment() };
        let configuration = tree.read_with(&environment, None).unwrap();
        assert!(configuration.search_paths.is_empty());
        assert_eq!(configuration.notes.len(), 2);
        let refused = tree.read_with(&environment, Some(&user)).unwrap_err();
        assert!(matches!(refused, ConfigurationError::Elevated(_)), "{refused}");
    }

    #[test]
    fn the_tree_it_was_built_in_comes_last() {
        let tree = Tree::new();
        tree.write("Cargo.toml", "");
        tree.write(
            "plugins.toml",
            "[[plugin]]\nlibrary = \"liba.so\"\n[[plugin]]\nid = \"a\"\nenabled = true\n",
        );
        tree.write("etc/tensorfold/plugins.toml", "[[plugin]]\nid = \"a\"\nenabled = false\n");
        let executable = Some(tree.path("target/debug/tensorfold"));
        let environment = Environment { executable, ..tree.environment() };
        let configuration = tree.read_with(&environment, None).unwrap();
        assert_eq!(enabled(&configuration, "a"), Some(false));
        let libraries: Vec<_> =
            configuration.libraries.iter().map(|library| library.value.as_str()).collect();
        assert_eq!(libraries, if cfg!(feature = "packaged") { vec![] } else { vec!["liba.so"] });
        let explicit = tree.write("mine.toml", "");
        assert!(tree.read_with(&environment, Some(&explicit)).unwrap().libraries.is_empty());
    }

    #[test]
    fn mistakes_name_file_line_wanted_and_found() {
        let tree = Tree::new();
        for (text, line, part) in [
            ("[search]\npath = []\n", 2, "path"),
            ("\n[search]\npaths = [\"here\"]\n", 3, "absolute"),
            ("[[plugin]]\nlibrary = \"../a.so\"\n", 2, "bare file name"),
            ("[[plugin]]\nenabled = true\n", 1, "neither"),
            ("[plugin.x]\nsha256 = \"12\"\n", 2, "64"),
            ("[plugin.x]\noptions = { a = [1] }\n", 2, "array"),
            ("[plugin.x]\nlibrary = \"a.so\"\n", 1, "[[plugin]]"),
            ("[policy]\ntrusted_keys = []\n", 2, "trusted_keys"),
            ("x = \n", 1, ""),
        ] {
            let path = tree.write("bad.toml", text);
            let error = tree.read_with(&tree.environment(), Some(&path)).unwrap_err().to_string();
            assert!(error.contains(&format!("bad.toml, line {line}:")), "{text}: {error}");
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_named_file_that_is_missing_or_unsafe_is_an_error() {
        use std::os::unix::fs::PermissionsExt;
        let tree = Tree::new();
        let missing = tree.path("none.toml");
        let error = tree.read_with(&tree.environment(), Some(&missing)).unwrap_err();
        assert!(matches!(error, ConfigurationError::Unreadable { .. }), "{error}");
        let path = tree.write("open.toml", "");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = tree.read_with(&tree.environment(), Some(&path)).unwrap_err();
        assert!(matches!(error, ConfigurationError::Unsafe(_)), "{error}");
        let environment = Environment { plugins_file: Some("rel.toml".into()), ..tree.environment() };
        assert!(matches!(tree.read_with(&environment, None), Err(ConfigurationError::Relative { .. })));
    }
}
