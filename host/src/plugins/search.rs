//! Where plugins are looked for, in order.
//!
//! A pure function of the options, the environment and the configuration: nothing here lists a folder. The current
//! folder is never searched, and only folders and files that were named, or that belong to the user, the
//! administrator or the distribution.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tensorfold_plugin_api::abi::ABI_MAJOR;

use super::configuration::{Configuration, Layer};
use super::environment::Environment;
use super::lifecycle::show_path;

/// Library folders of the distribution, colon-separated; `tensorfold/backends<ABI>` is looked for in each. Packagers
/// set the variable of this name when they build.
const SYSTEM_LIBRARY_FOLDERS: Option<&str> = option_env!("TENSORFOLD_SYSTEM_PLUGIN_DIRS");

/// How much a place counts: a plugin in a higher rank (a smaller number) hides the same one in a lower rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rank {
    /// `--plugin` and `--plugin-path`.
    Option,
    /// `TENSORFOLD_PLUGIN_PATH`.
    Variable,
    /// A `plugins.toml`.
    Configuration,
    /// The tree that the executable was built in.
    Workspace,
    /// The user's data folder.
    User,
    /// `/usr/local`, the administrator's.
    Local,
    /// The distribution's folders.
    System,
}

impl Rank {
    /// The name used in documents and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Option => "option",
            Self::Variable => "variable",
            Self::Configuration => "configuration",
            Self::Workspace => "workspace",
            Self::User => "user",
            Self::Local => "local",
            Self::System => "system",
        }
    }
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder, whose `*.tensorfold.toml` files are read.
    Folder,
    /// A sidecar, or a library with an embedded manifest, named by path.
    File,
    /// A library named by bare file name, looked for beside the executable.
    Library,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// How much it counts.
    pub rank: Rank,
    /// What it is.
    pub kind: Kind,
    /// Its absolute path.
    pub path: PathBuf,
    /// The option, variable or file that named it.
    pub origin: String,
}

impl Place {
    /// Whether it must be there: it was asked for on the command line.
    pub fn required(&self) -> bool {
        self.rank == Rank::Option
    }
}

/// The options that say where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchOptions {
    /// `--plugin FILE`, in order.
    pub plugins: Vec<PathBuf>,
    /// `--plugin-path DIR`, in order.
    pub plugin_paths: Vec<PathBuf>,
    /// `--plugins-file FILE`.
    pub plugins_file: Option<PathBuf>,
}

/// The places, highest rank first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Where to look.
    pub places: Vec<Place>,
    /// What was ignored and why, one line each.
    pub notes: Vec<String>,
}

/// Why the places cannot be used. Each ends the command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// A process with borrowed rights was told to load a file of the user's choice.
    #[error(
        "{option} {}: not with the rights of another user; install the plugin in a system folder (`tensorfold plugins path --install`)",
        show_path(.path)
    )]
    Elevated {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// An entry of the search path that would depend on where the user stands.
    #[error("TENSORFOLD_PLUGIN_PATH: wanted absolute folders separated by `:`, found `{0}`")]
    NotAbsolute(String),
    /// A path that cannot be made absolute.
    #[error("{option} {}: the current folder is not known; give an absolute path", show_path(.path))]
    NoCurrentFolder {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
}

/// Puts the places in order. `root` is `/` except in tests.
///
/// # Errors
/// [`SearchError`]; every one names the option or variable.
pub fn places(
    options: &SearchOptions,
    environment: &Environment,
    configuration: &Configuration,
    root: &Path,
) -> Result<Search, SearchError> {
    let mut search = Search { places: Vec::new(), notes: configuration.notes.clone() };
    option_places(&mut search, options, environment)?;
    variable_places(&mut search, environment)?;
    configured_places(&mut search, environment, configuration);
    user_place(&mut search, environment);
    search.places.extend(installed_places(root, environment));
    Ok(search)
}

/// The compiled-in folders, user's first, whether or not they are there.
pub fn standard_folders(environment: &Environment, root: &Path) -> Vec<(Rank, PathBuf)> {
    let user = environment.data_home.as_ref().map(|home| (Rank::User, home.join(suffix())));
    user.into_iter()
        .chain(installed_places(root, environment).into_iter().map(|place| (place.rank, place.path)))
        .collect()
}

/// The folder that a vendor's package installs into.
pub fn install_folder(root: &Path) -> PathBuf {
    library_folders(root).first().cloned().unwrap_or_else(|| root.join("usr/lib")).join(suffix())
}

fn suffix() -> PathBuf {
    Path::new("tensorfold").join(format!("backends{ABI_MAJOR}"))
}

fn option_places(
    search: &mut Search,
    options: &SearchOptions,
    environment: &Environment,
) -> Result<(), SearchError> {
    let named = options.plugins.iter().map(|path| ("--plugin", Kind::File, path));
    let folders = options.plugin_paths.iter().map(|path| ("--plugin-path", Kind::Folder, path));
    for (option, kind, path) in named.chain(folders) {
        if environment.elevated {
            return Err(SearchError::Elevated { option, path: path.clone() });
        }
        let absolute = std::path::absolute(path)
            .map_err(|_| SearchError::NoCurrentFolder { option, path: path.clone() })?;
        search.places.push(Place { rank: Rank::Option, kind, path: absolute, origin: option.into() });
    }
    Ok(())
}

fn variable_places(search: &mut Search, environment: &Environment) -> Result<(), SearchError> {
    let Some(value) = &environment.plugin_path else { return Ok(()) };
    if environment.elevated {
        search.notes.push(ignored("TENSORFOLD_PLUGIN_PATH"));
        return Ok(());
    }
    for entry in value.as_bytes().split(|byte| *byte == b':') {
        let path = Path::new(OsStr::from_bytes(entry));
        if !path.is_absolute() {
            return Err(SearchError::NotAbsolute(show_path(path)));
        }
        search.places.push(Place {
            rank: Rank::Variable,
            kind: Kind::Folder,
            path: path.to_path_buf(),
            origin: "TENSORFOLD_PLUGIN_PATH".into(),
        });
    }
    Ok(())
}

fn configured_places(search: &mut Search, environment: &Environment, configuration: &Configuration) {
    // The tree's own file comes last, in a rank of its own.
    for workspace in [false, true] {
        let rank = if workspace { Rank::Workspace } else { Rank::Configuration };
        let belongs = |layer: Layer| (layer == Layer::Workspace) == workspace;
        for folder in configuration.search_paths.iter().filter(|folder| belongs(folder.layer)) {
            search.places.push(Place {
                rank,
                kind: Kind::Folder,
                path: folder.value.clone(),
                origin: show_path(&folder.file),
            });
        }
        for library in configuration.libraries.iter().filter(|library| belongs(library.layer)) {
            let origin = show_path(&library.file);
            match beside_executable(environment, &library.value) {
                Some(path) => search.places.push(Place { rank, kind: Kind::Library, path, origin }),
                None => search.notes.push(format!(
                    "{origin}: library `{}` is ignored: the folder of the running executable is not known",
                    library.value
                )),
            }
        }
    }
}

fn user_place(search: &mut Search, environment: &Environment) {
    let Some(home) = &environment.data_home else { return };
    let path = home.join(suffix());
    if environment.elevated {
        if path.is_dir() {
            search.notes.push(ignored(&show_path(&path)));
        }
        return;
    }
    search.places.push(Place {
        rank: Rank::User,
        kind: Kind::Folder,
        path,
        origin: "the user's data folder".into(),
    });
}

fn installed_places(root: &Path, environment: &Environment) -> Vec<Place> {
    let local = root.join("usr/local/lib");
    let mut places = Vec::new();
    let mut add = |rank, folder: PathBuf| {
        places.push(Place {
            rank,
            kind: Kind::Folder,
            path: folder.join(suffix()),
            origin: "built in".into(),
        });
    };
    if cfg!(target_os = "macos") {
        if let Some(prefix) = environment.executable_folder().and_then(Path::parent) {
            add(Rank::System, prefix.join("lib"));
        }
        return places;
    }
    add(Rank::Local, local.clone());
    if let Some(triplet) = multiarch() {
        add(Rank::Local, local.join(triplet));
    }
    for folder in library_folders(root) {
        add(Rank::System, folder);
    }
    places
}

fn library_folders(root: &Path) -> Vec<PathBuf> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    if let Some(list) = SYSTEM_LIBRARY_FOLDERS {
        return list.split(':').filter(|entry| entry.starts_with('/')).map(below).collect();
    }
    let mut folders = Vec::new();
    if let Some(triplet) = multiarch() {
        folders.push(below("usr/lib").join(triplet));
    }
    folders.push(below("usr/lib64"));
    folders.push(below("usr/lib"));
    folders
}

/// The name of Debian's per-architecture library folder.
fn multiarch() -> Option<&'static str> {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return None;
    }
    match std::env::consts::ARCH {
        "x86_64" => Some("x86_64-linux-gnu"),
        "aarch64" => Some("aarch64-linux-gnu"),
        "riscv64" => Some("riscv64-linux-gnu"),
        _ => None,
    }
}

/// Where a library named by bare file name is: beside the executable, or in `deps` below it. When both are there the
/// newer one is taken: `cargo build` refreshes both and `cargo test` only the one in `deps`, so that each run uses
/// what was built last. When neither is there the first place is the answer, for the message.
fn beside_executable(environment: &Environment, library: &str) -> Option<PathBuf> {
    let folder = environment.executable_folder()?;
    let folder = if folder.file_name() == Some(OsStr::new("deps")) { folder.parent()? } else { folder };
    let beside = folder.join(library);
    let deps = folder.join("deps").join(library);
    let changed = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    match (changed(&beside), changed(&deps)) {
        (Some(first), Some(second)) if second > first => Some(deps),
        (None, Some(_)) => Some(deps),
        _ => Some(beside),
    }
}

fn ignored(what: &str) -> String {
    format!("{what} is ignored: the process runs with the rights of another user")
}

#[cfg(test)]
mod tests {
    use super::super::configuration::Sourced;
    use super::*;
    use std::fs;
    use std::time::{Duration, SystemTime};

    fn environment() -> Environment {
        Environment { data_home: Some("/home/u/.local/share".into()), ..Environment::default() }
    }

    fn find(environment: &Environment, options: &SearchOptions) -> Result<Search, SearchError> {
        places(options, environment, &Configuration::default(), Path::new("/"))
    }

    #[test]
    fn without_anything_set_user_local_and_system_are_searched_in_this_order() {
        let search = find(&environment(), &SearchOptions::default()).unwrap();
        let ranks: Vec<_> = search.places.iter().map(|place| place.rank).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert_eq!(search.places[0].path, Path::new("/home/u/.local/share/tensorfold/backends0"));
        let paths: Vec<_> = search.places.iter().map(|place| place.path.to_str().unwrap()).collect();
        assert!(paths.contains(&"/usr/local/lib/tensorfold/backends0"), "{paths:?}");
        assert!(paths.contains(&"/usr/lib/tensorfold/backends0"), "{paths:?}");
        assert!(search.places.iter().all(|place| !place.required()));
    }

    #[test]
    fn options_come_first_in_the_order_given_and_must_be_there() {
        let options = SearchOptions {
            plugins: vec!["/p/b.tensorfold.toml".into()],
            plugin_paths: vec!["/z".into(), "/a".into()],
            plugins_file: None,
        };
        let search =
            find(&Environment { plugin_path: Some("/v1:/v2".into()), ..environment() }, &options).unwrap();
        let first: Vec<_> = search.places.iter().take(5).map(|place| place.path.to_str().unwrap()).collect();
        assert_eq!(first, ["/p/b.tensorfold.toml", "/z", "/a", "/v1", "/v2"]);
        assert!(search.places[..3].iter().all(Place::required));
        assert!(search.places[3..].iter().all(|place| !place.required()));
    }

    #[test]
    fn relative_and_empty_entries_of_the_variable_are_refused() {
        for value in ["here", "/a::/b", "/a:", ":/a"] {
            let environment = Environment { plugin_path: Some(value.into()), ..environment() };
            let error = find(&environment, &SearchOptions::default()).unwrap_err();
            assert!(matches!(error, SearchError::NotAbsolute(_)), "{value}: {error}");
        }
    }

    #[test]
    fn with_borrowed_rights_options_are_refused_and_variables_and_home_ignored() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("tensorfold/backends0")).unwrap();
        let environment = Environment {
            elevated: true,
            plugin_path: Some("/v".into()),
            data_home: Some(home.path().into()),
            ..Environment::default()
        };
        let search = find(&environment, &SearchOptions::default()).unwrap();
        assert!(search.places.iter().all(|place| place.rank >= Rank::Local));
        assert_eq!(search.notes.len(), 2, "{:?}", search.notes);
        for options in [
            SearchOptions { plugins: vec!["/x".into()], ..SearchOptions::default() },
            SearchOptions { plugin_paths: vec!["/x".into()], ..SearchOptions::default() },
        ] {
            assert!(matches!(find(&environment, &options), Err(SearchError::Elevated { .. })));
        }
    }

    #[test]
    fn the_trees_own_file_ranks_below_other_files_and_above_installed_plugins() {
        let sourced = |path: &str, layer| Sourced { value: PathBuf::from(path), file: "/f".into(), layer };
        let configuration = Configuration {
            search_paths: vec![sourced("/user", Layer::User), sourced("/tree", Layer::Workspace)],
            ..Configuration::default()
        };
        let search =
            places(&SearchOptions::default(), &environment(), &configuration, Path::new("/")).unwrap();
        let ranks: Vec<_> = search.places.iter().take(3).map(|place| place.rank).collect();
        assert_eq!(ranks, [Rank::Configuration, Rank::Workspace, Rank::User]);
    }

    #[test]
    fn of_two_copies_beside_the_executable_the_newer_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("deps")).unwrap();
        let environment = Environment { executable: Some(root.join("tensorfold")), ..Environment::default() };
        let look = || beside_executable(&environment, "liba.so").unwrap();
        assert_eq!(look(), root.join("liba.so"), "named for the message when there is none");
        let touch = |path: PathBuf, age: u64| {
            let file = fs::File::create(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        touch(root.join("deps/liba.so"), 100);
        assert_eq!(look(), root.join("deps/liba.so"));
        touch(root.join("liba.so"), 50);
        assert_eq!(look(), root.join("liba.so"));
        touch(root.join("deps/liba.so"), 10);
        assert_eq!(look(), root.join("deps/liba.so"), "what `cargo test` built last");
        fs::remove_file(root.join("liba.so")).unwrap();
        fs::hard_link(root.join("deps/liba.so"), root.join("liba.so")).unwrap();
        assert_eq!(look(), root.join("liba.so"), "one file under two names");
        let test = Environment { executable: Some(root.join("deps/test-1")), ..Environment::default() };
        assert_eq!(beside_executable(&test, "liba.so").unwrap(), root.join("liba.so"));
    }
}
