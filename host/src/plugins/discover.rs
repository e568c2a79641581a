//! Finding plugins: from places to manifests.
//!
//! Reads sidecars, and the manifest section of libraries that were named directly. Opens no library for execution,
//! touches no device, makes no file. A plugin that cannot be used is kept in the list with its reason.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tensorfold_plugin_api::manifest::{MANIFEST_BYTES_MAX, Manifest};

use super::configuration::Configuration;
use super::globs::Globs;
use super::image;
use super::lifecycle::{Code, Finding, Level, State, show_path};
use super::safety::Checker;
use super::search::{Kind, Place, Rank, Search};

/// End of the name of every sidecar.
pub const SIDECAR_SUFFIX: &str = ".tensorfold.toml";

pub use super::plugin::Plugin;

/// What became of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPlace {
    /// The place.
    pub place: Place,
    /// Sidecars or libraries found; `None` when it is not there.
    pub found: Option<usize>,
}

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Plugins in order of rank, then place, then byte order of names.
    pub plugins: Vec<Plugin>,
    /// Every place with what became of it.
    pub places: Vec<SearchedPlace>,
    /// What was ignored and why, one line each.
    pub notes: Vec<String>,
}

/// Why there is no list at all. Each ends the command.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// A file or folder named on the command line is not there.
    #[error("{option} {}: no such {wanted}; name one that exists", show_path(.path))]
    Missing {
        /// The option.
        option: String,
        /// Its value.
        path: PathBuf,
        /// "file" or "folder".
        wanted: &'static str,
    },
    /// A file or folder named on the command line cannot be used.
    #[error("{0}")]
    Unusable(Box<Finding>),
}

/// Looks at every place.
///
/// # Errors
/// [`DiscoverError`] when something that was named on the command line is missing or unsafe. What was not asked for
/// never fails: it is recorded with the plugin, or as a note.
pub fn discover(
    search: &Search,
    configuration: &Configuration,
    globs: &Globs,
    checker: &Checker,
) -> Result<Discovery, DiscoverError> {
    let mut discovery = Discovery { notes: search.notes.clone(), ..Discovery::default() };
    // Ranks are in order, so a mask is known before anything that it can hide.
    let mut masks: BTreeMap<OsString, (Rank, PathBuf)> = BTreeMap::new();
    let mut visited = HashSet::new();
    for place in &search.places {
        let files = match list_place(place, checker, &mut discovery, &mut visited)? {
            Some(files) => files,
            None => {
                discovery.places.push(SearchedPlace { place: place.clone(), found: None });
                continue;
            }
        };
        discovery.places.push(SearchedPlace { place: place.clone(), found: Some(files.len()) });
        for path in files {
            let name = path.file_name().unwrap_or_default().to_owned();
            if place.kind == Kind::Folder && is_mask(&path) {
                masks.entry(name).or_insert((place.rank, path));
                continue;
            }
            let embedded = !name.as_bytes().ends_with(SIDECAR_SUFFIX.as_bytes());
            let mut plugin = Plugin::new(place, path, embedded);
            let mask =
                masks.get(&name).filter(|(rank, _)| *rank < place.rank).map(|(_, path)| path.as_path());
            read_plugin(&mut plugin, &name, mask, configuration, globs, checker);
            if place.kind == Kind::File
                && let Some(error) = plugin.life.error()
                && matches!(error.code, Code::UnsafePath)
            {
                return Err(DiscoverError::Unusable(Box::new(error.clone())));
            }
            discovery.plugins.push(plugin);
        }
    }
    resolve_names(&mut discovery.plugins);
    Ok(discovery)
}

/// The files to look at in a place, in byte order; `None` when it is not there.
fn list_place(
    place: &Place,
    checker: &Checker,
    discovery: &mut Discovery,
    visited: &mut HashSet<PathBuf>,
) -> Result<Option<Vec<PathBuf>>, DiscoverError> {
    let missing =
        |wanted| DiscoverError::Missing { option: place.origin.clone(), path: place.path.clone(), wanted };
    if place.kind != Kind::Folder {
        if place.kind == Kind::File && !place.path.is_file() {
            return Err(missing("file"));
        }
        let canonical = place.path.canonicalize().unwrap_or_else(|_| place.path.clone());
        return Ok(Some(if visited.insert(canonical) { vec![place.path.clone()] } else { Vec::new() }));
    }
    let Ok(entries) = std::fs::read_dir(&place.path) else {
        if place.required() && !place.path.is_dir() {
            return Err(missing("folder"));
        }
        if place.path.is_dir() {
            discovery.notes.push(format!("{} is skipped: it cannot be listed", show_path(&place.path)));
        }
        return Ok(None);
    };
    // Several standard folders may be one by links; what is found twice that way is no duplicate.
    let canonical = place.path.canonicalize().unwrap_or_else(|_| place.path.clone());
    if !visited.insert(canonical) {
        return Ok(Some(Vec::new()));
    }
    match checker.check_folder(&place.path) {
        Ok(checked) => discovery.notes.extend(checked.warnings.iter().map(ToString::to_string)),
        Err(finding) if place.required() => return Err(DiscoverError::Unusable(finding)),
        Err(finding) => {
            discovery.notes.push(format!("skipped: {finding}"));
            return Ok(Some(Vec::new()));
        }
    }
    let mut names: Vec<OsString> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| is_sidecar_name(name))
        .collect();
    names.sort_by(|left, right| left.as_bytes().cmp(right.as_bytes()));
    Ok(Some(names.into_iter().map(|name| place.path.join(name)).collect()))
}

fn is_sidecar_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.ends_with(SIDECAR_SUFFIX.as_bytes()) && bytes.len() > SIDECAR_SUFFIX.len() && bytes[0] != b'.'
}

/// An empty file, or a link to `/dev/null`.
fn is_mask(path: &Path) -> bool {
    if std::fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null")) {
        return true;
    }
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

fn read_plugin(
    plugin: &mut Plugin,
    name: &OsStr,
    mask: Option<&Path>,
    configuration: &Configuration,
    globs: &Globs,
    checker: &Checker,
) {
    let library_missing = plugin.embedded && !plugin.manifest_path.exists();
    if library_missing {
        let finding =
            Finding::error(Code::LibraryMissing, format!("named in {} and not there", plugin.origin))
                .fix("build it with `cargo build`, or take its entry out of that file");
        return plugin.record(finding);
    }
    if let Err(finding) = checker.check_file(&plugin.manifest_path) {
        return plugin.record(*finding);
    }
    if !read_manifest(plugin) {
        return;
    }
    if let Some(variable) = globs.switched_off_by(name) {
        return plugin.record(Finding::note(Code::Disabled, format!("switched off by {variable}")));
    }
    if let Some(mask) = mask {
        return plugin.record(Finding::note(Code::Masked, format!("hidden by {}", show_path(mask))));
    }
    let settings =
        plugin.manifest.as_ref().and_then(|manifest| configuration.plugins.get(&manifest.plugin.id));
    if let Some(off) =
        settings.and_then(|settings| settings.enabled.as_ref()).filter(|enabled| !enabled.value)
    {
        let file = show_path(&off.file);
        plugin.record(Finding::note(Code::Disabled, format!("switched off by `enabled = false` in {file}")));
    }
}

/// Reads the manifest; on failure the reason is recorded.
fn read_manifest(plugin: &mut Plugin) -> bool {
    let bytes = if plugin.embedded {
        embedded_manifest(&plugin.manifest_path, "name a plugin's library, or its sidecar")
    } else {
        sidecar(&plugin.manifest_path)
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(finding) => {
            plugin.record(*finding);
            return false;
        }
    };
    let file = show_path(&plugin.manifest_path);
    match Manifest::parse(&bytes, &file) {
        Ok(parsed) => {
            if !plugin.embedded {
                plugin.library =
                    plugin.manifest_path.parent().map(|folder| folder.join(&parsed.manifest.plugin.library));
            }
            plugin.manifest = Some(parsed.manifest);
            plugin.notes = parsed.notes;
            true
        }
        Err(errors) => {
            for error in errors.iter() {
                let line = error.line.map(|line| format!("line {line}: ")).unwrap_or_default();
                let key = if error.key.is_empty() { "the manifest" } else { &error.key };
                let finding = Finding::error(error.code, format!("{line}{key}"))
                    .wanted(error.allowed.clone())
                    .found(error.found.clone());
                plugin.record(finding);
            }
            false
        }
    }
}

fn sidecar(path: &Path) -> Result<Vec<u8>, Box<Finding>> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MANIFEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => {
            Err(Box::new(Finding::error(Code::ManifestSyntax, format!("cannot be read: {error}")).at(path)))
        }
    }
}

/// The manifest section of a library, read from the file. `fix` says what to name instead of a file that is none.
///
/// # Errors
/// `not-a-plugin` or `wrong-arch`, with what the file is.
pub fn embedded_manifest(path: &Path, fix: &str) -> Result<Vec<u8>, Box<Finding>> {
    match image::read(path) {
        Ok(image) => image.manifest.ok_or_else(|| {
            let what = format!("the library has no section `{}`", image::MANIFEST_SECTION);
            Box::new(Finding::error(Code::NotAPlugin, what).at(path).fix(fix))
        }),
        Err(image::ImageError::Foreign(target)) => Err(Box::new(
            Finding::error(Code::WrongArch, "built for another machine")
                .at(path)
                .wanted(std::env::consts::ARCH)
                .found(target.arch()),
        )),
        Err(error) => Err(Box::new(Finding::error(Code::NotAPlugin, error.to_string()).at(path).fix(fix))),
    }
}

/// Decides between plugins of one id and variant, and lets those that remain advance.
fn resolve_names(plugins: &mut [Plugin]) {
    let mut winners: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
    for index in 0..plugins.len() {
        if plugins[index].manifest.is_none() || plugins[index].is_hidden() {
            continue;
        }
        let Some(key) = plugins[index].key() else { continue };
        match winners.get(&key) {
            None => {
                winners.insert(key, index);
            }
            Some(&winner) if plugins[winner].rank < plugins[index].rank => {
                let winner = show_path(&plugins[winner].manifest_path);
                plugins[index].record(Finding::note(Code::Shadowed, format!("shadowed by {winner}")));
            }
            Some(&winner) => {
                let paths = [winner, index].map(|index| show_path(&plugins[index].manifest_path));
                for (this, other) in [(winner, &paths[1]), (index, &paths[0])] {
                    let already =
                        plugins[this].life.findings().iter().any(|finding| finding.code == Code::Duplicate);
                    if !already || this == index {
                        let what = format!("the same plugin is also at {other}, in places of the same rank");
                        plugins[this]
                            .record(Finding::error(Code::Duplicate, what).fix("remove one of the two"));
                    }
                }
            }
        }
    }
    for plugin in plugins {
        let duplicate = plugin.life.findings().iter().any(|finding| finding.level == Level::Error);
        if plugin.manifest.is_some() && !plugin.is_hidden() && !duplicate {
            // A plugin that was just discovered can always be read.
            let advanced = plugin.life.advance(State::ManifestRead);
            debug_assert!(advanced.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::safety::Process;
    use super::super::testing::{Library, manifest_text};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Tree {
        folder: tempfile::TempDir,
        places: Vec<Place>,
    }

    impl Tree {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap(), places: Vec::new() }
        }

        fn folder(&mut self, name: &str, rank: Rank) -> PathBuf {
            let path = self.folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            self.places.push(Place { rank, kind: Kind::Folder, path: path.clone(), origin: name.into() });
            path
        }

        fn find(&self) -> Result<Discovery, DiscoverError> {
            self.find_with(&Configuration::default(), &Globs::default())
        }

        fn find_with(
            &self,
            configuration: &Configuration,
            globs: &Globs,
        ) -> Result<Discovery, DiscoverError> {
            let search = Search { places: self.places.clone(), notes: Vec::new() };
            discover(&search, configuration, globs, &Checker::new(Process::current(false)))
        }
    }

    fn sidecar_at(folder: &Path, id: &str) -> PathBuf {
        let path = folder.join(format!("{id}{SIDECAR_SUFFIX}"));
        fs::write(&path, manifest_text(id)).unwrap();
        path
    }

    fn codes(plugin: &Plugin) -> Vec<Code> {
        plugin.life.findings().iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn sidecars_are_found_in_byte_order_and_other_files_are_not_looked_at() {
        let mut tree = Tree::new();
        let folder = tree.folder("a", Rank::System);
        for id in ["backend-b", "backend-a", "backend-a2"] {
            sidecar_at(&folder, id);
        }
        fs::write(folder.join("readme.toml"), "nonsense").unwrap();
        fs::write(folder.join(SIDECAR_SUFFIX), "nonsense").unwrap();
        fs::create_dir(folder.join("sub")).unwrap();
        sidecar_at(&folder.join("sub"), "backend-sub");
        let discovery = tree.find().unwrap();
        let names: Vec<_> = discovery.plugins.iter().map(Plugin::name).collect();
        assert_eq!(names, ["backend-a", "backend-a2", "backend-b"], "`.` sorts before `2`");
        assert!(discovery.plugins.iter().all(Plugin::is_active));
        assert_eq!(discovery.plugins[0].life.state(), State::ManifestRead);
        assert_eq!(discovery.plugins[0].library, Some(folder.join("libtensorfold_backend_a.so")));
    }

    #[test]
    fn a_higher_rank_wins_whatever_the_version_and_the_loser_stays_in_the_list() {
        let mut tree = Tree::new();
        let (high, low) = (tree.folder("high", Rank::User), tree.folder("low", Rank::System));
        let winner = sidecar_at(&high, "backend-a");
        let newer = manifest_text("backend-a").replace("1.2.3", "9.0.0");
        fs::write(low.join("backend-a.tensorfold.toml"), newer).unwrap();
        let discovery = tree.find().unwrap();
        assert!(discovery.plugins[0].is_active());
        assert_eq!(codes(&discovery.plugins[1]), [Code::Shadowed]);
        assert_eq!(discovery.plugins[1].life.state(), State::Discovered);
        assert!(discovery.plugins[1].life.findings()[0].what.contains(&show_path(&winner)));
    }

    #[test]
    fn a_broken_plugin_in_a_higher_rank_shadows_nothing() {
        let mut tree = Tree::new();
        let (high, low) = (tree.folder("high", Rank::User), tree.folder("low", Rank::System));
        fs::write(high.join("backend-a.tensorfold.toml"), "manifest = 1\n").unwrap();
        sidecar_at(&low, "backend-a");
        let discovery = tree.find().unwrap();
        assert!(!discovery.plugins[0].is_active());
        assert!(discovery.plugins[1].is_active());
    }

    #[test]
    fn twice_in_one_rank_is_an_error_that_names_both() {
        let mut tree = Tree::new();
        let (first, second) = (tree.folder("first", Rank::Local), tree.folder("second", Rank::Local));
        let (first, second) = (sidecar_at(&first, "backend-a"), sidecar_at(&second, "backend-a"));
        let discovery = tree.find().unwrap();
        for (plugin, other) in discovery.plugins.iter().zip([second, first]) {
            assert_eq!(codes(plugin), [Code::Duplicate]);
            assert!(plugin.life.findings()[0].what.contains(&show_path(&other)));
            assert!(!plugin.is_active());
        }
    }

    #[test]
    fn variants_of_one_id_stand_side_by_side() {
        let mut tree = Tree::new();
        let folder = tree.folder("a", Rank::System);
        sidecar_at(&folder, "backend-a");
        let variant = manifest_text("backend-a").replace("version =", "variant = \"gfx1151\"\nversion =");
        fs::write(folder.join("backend-a-gfx1151.tensorfold.toml"), variant).unwrap();
        let discovery = tree.find().unwrap();
        assert!(discovery.plugins.iter().all(Plugin::is_active));
        assert!(discovery.plugins.iter().any(|plugin| plugin.name() == "backend-a/gfx1151"));
    }

    #[test]
    fn one_folder_under_two_names_holds_no_duplicates() {
        let mut tree = Tree::new();
        let folder = tree.folder("lib", Rank::System);
        sidecar_at(&folder, "backend-a");
        let link = tree.folder.path().join("lib64");
        symlink(&folder, &link).unwrap();
        tree.places.push(Place {
            rank: Rank::System,
            kind: Kind::Folder,
            path: link,
            origin: "lib64".into(),
        });
        let discovery = tree.find().unwrap();
        assert_eq!(discovery.plugins.len(), 1);
        assert!(discovery.plugins[0].is_active());
    }

    #[test]
    fn an_empty_file_or_a_link_to_null_hides_the_same_name_below() {
        for link in [false, true] {
            let mut tree = Tree::new();
            let (high, low) = (tree.folder("high", Rank::User), tree.folder("low", Rank::System));
            sidecar_at(&low, "backend-a");
            sidecar_at(&low, "backend-b");
            let mask = high.join("backend-a.tensorfold.toml");
            if link {
                symlink("/dev/null", &mask).unwrap()
            } else {
                fs::write(&mask, "").unwrap()
            }
            let discovery = tree.find().unwrap();
            assert_eq!(discovery.plugins.len(), 2, "a mask is no plugin");
            assert_eq!(codes(&discovery.plugins[0]), [Code::Masked]);
            assert!(discovery.plugins[0].life.findings()[0].what.contains(&show_path(&mask)));
            assert!(discovery.plugins[1].is_active());
        }
    }

    #[test]
    fn an_empty_file_that_was_named_is_no_mask_but_a_broken_plugin() {
        let mut tree = Tree::new();
        let path = tree.folder.path().join("a.so");
        fs::write(&path, "").unwrap();
        tree.places.push(Place { rank: Rank::Option, kind: Kind::File, path, origin: "--plugin".into() });
        assert_eq!(codes(&tree.find().unwrap().plugins[0]), [Code::NotAPlugin]);
    }

    #[test]
    fn a_mask_does_not_hide_what_ranks_higher() {
        let mut tree = Tree::new();
        let (high, low) = (tree.folder("high", Rank::User), tree.folder("low", Rank::System));
        sidecar_at(&high, "backend-a");
        fs::write(low.join("backend-a.tensorfold.toml"), "").unwrap();
        assert!(tree.find().unwrap().plugins[0].is_active());
    }

    #[test]
    fn a_plugin_that_is_switched_off_names_what_did_it() {
        let mut tree = Tree::new();
        let folder = tree.folder("a", Rank::System);
        sidecar_at(&folder, "backend-a");
        let file = tree.folder.path().join("plugins.toml");
        fs::write(&file, "[plugin.backend-a]\nenabled = false\n").unwrap();
        let environment = super::super::environment::Environment::default();
        let mut checker = Checker::new(Process::current(false));
        let configuration =
            super::super::configuration::read(&environment, Some(&file), tree.folder.path(), &mut checker)
                .unwrap();
        let discovery = tree.find_with(&configuration, &Globs::default()).unwrap();
        assert_eq!(codes(&discovery.plugins[0]), [Code::Disabled]);
        assert!(discovery.plugins[0].life.findings()[0].what.contains(&show_path(&file)));

        let environment = super::super::environment::Environment {
            plugin_disable: Some("*-a.tensorfold.toml".into()),
            ..Default::default()
        };
        let globs = Globs::read(&environment, &mut Vec::new());
        let discovery = tree.find_with(&Configuration::default(), &globs).unwrap();
        assert!(discovery.plugins[0].life.findings()[0].what.contains("TENSORFOLD_PLUGIN_DISABLE"));
    }

    #[test]
    fn a_bad_manifest_names_line_key_found_and_allowed() {
        let mut tree = Tree::new();
        let folder = tree.folder("a", Rank::System);
        let text = manifest_text("backend-a").replace("\"1.2.3\"", "\"one\"");
        fs::write(folder.join("backend-a.tensorfold.toml"), text).unwrap();
        let discovery = tree.find().unwrap();
        let text = discovery.plugins[0].life.error().unwrap().to_string();
        assert!(text.contains("line 5: plugin.version") && text.contains("one"), "{text}");
        assert!(text.contains("backend-a.tensorfold.toml"), "{text}");
    }

    #[test]
    fn unsafe_sidecars_and_folders_are_not_read() {
        let mut tree = Tree::new();
        let (files, open) = (tree.folder("files", Rank::User), tree.folder("open", Rank::System));
        let file = sidecar_at(&files, "backend-a");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        sidecar_at(&open, "backend-b");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let discovery = tree.find().unwrap();
        assert_eq!(discovery.plugins.len(), 1);
        assert_eq!(codes(&discovery.plugins[0]), [Code::UnsafePath]);
        assert!(discovery.plugins[0].manifest.is_none());
        assert!(discovery.notes[0].contains("open"), "{:?}", discovery.notes);
        tree.places[1].rank = Rank::Option;
        assert!(matches!(tree.find(), Err(DiscoverError::Unusable(_))), "asked for by name");
    }

    #[test]
    fn what_was_named_on_the_command_line_must_be_there_and_other_places_need_not() {
        let mut tree = Tree::new();
        let path = tree.folder.path().join("none");
        tree.places.push(Place {
            rank: Rank::System,
            kind: Kind::Folder,
            path: path.clone(),
            origin: "x".into(),
        });
        assert_eq!(tree.find().unwrap().places[0].found, None);
        for kind in [Kind::Folder, Kind::File] {
            tree.places[0] =
                Place { rank: Rank::Option, kind, path: path.clone(), origin: "--plugin".into() };
            let error = tree.find().unwrap_err().to_string();
            assert!(error.contains("--plugin") && error.contains("none"), "{error}");
        }
    }

    #[test]
    fn a_library_named_directly_is_read_without_a_sidecar() {
        let mut tree = Tree::new();
        let path = Library::new("backend-direct").build(tree.folder.path());
        tree.places.push(Place {
            rank: Rank::Option,
            kind: Kind::File,
            path: path.clone(),
            origin: "--plugin".into(),
        });
        let discovery = tree.find().unwrap();
        let plugin = &discovery.plugins[0];
        assert!(plugin.is_active() && plugin.embedded);
        assert_eq!((plugin.name().as_str(), plugin.library.as_ref()), ("backend-direct", Some(&path)));
    }

    #[test]
    fn files_that_are_no_plugins_say_what_they_are() {
        let mut tree = Tree::new();
        let plain = Library::new("plain").source("int nothing(void) { return 0; }").build(tree.folder.path());
        let script = tree.folder.path().join("script.so");
        fs::write(&script, "#!/bin/sh\necho this is no library at all\n").unwrap();
        for path in [plain, script, tree.folder.path().join("missing.so")] {
            tree.places.push(Place {
                rank: Rank::Workspace,
                kind: Kind::Library,
                path,
                origin: "plugins.toml".into(),
            });
        }
        let discovery = tree.find().unwrap();
        let found: Vec<_> = discovery.plugins.iter().map(|plugin| codes(plugin)[0]).collect();
        assert_eq!(found, [Code::NotAPlugin, Code::NotAPlugin, Code::LibraryMissing]);
        let text = discovery.plugins[2].life.error().unwrap().to_string();
        assert!(text.contains("plugins.toml") && text.contains("cargo build"), "{text}");
    }
}
