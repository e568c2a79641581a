//! All plugins of this process, found in one go: environment, configuration, places, manifests, pins.
//!
//! What every command that looks at plugins begins with. Nothing here opens a library for execution, and the hardware
//! is looked at only when somebody asks for it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::configuration::{self, Configuration, ConfigurationError};
use super::discover::{self, DiscoverError, Discovery};
use super::environment::Environment;
use super::globs::Globs;
use super::hardware::Hardware;
use super::inspect::{Inspection, Surroundings, inspect};
use super::lifecycle::Finding;
use super::lock::{self, Lock, LockError};
use super::machine::HostRelease;
use super::plugin::Plugin;
use super::safety::{Checker, Process};
use super::search::{self, Search, SearchError, SearchOptions};
use super::select::{self, AutoChoice, SelectError};
use super::trial;
use super::verdicts::Verdicts;

/// Why there is no catalog. Each ends the command with status 1.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A configuration file cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// A place cannot be used.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// Something named on the command line is not there.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The pins cannot be read.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Plugins and everything that decides about them.
pub struct Catalog {
    /// The environment it was made from.
    pub environment: Environment,
    /// The options it was made from.
    pub options: SearchOptions,
    /// The configuration files.
    pub configuration: Configuration,
    /// Where was looked.
    pub search: Search,
    /// What was found.
    pub discovery: Discovery,
    /// The pins.
    pub lock: Lock,
    host: HostRelease,
    checker: Checker,
    root: PathBuf,
    hardware: OnceCell<Hardware>,
    inspections: BTreeMap<usize, Inspection>,
}

impl Catalog {
    /// Finds the plugins. `root` is `/` except in tests.
    ///
    /// # Errors
    /// [`CatalogError`], one line that names the file, option or variable.
    pub fn find(
        options: &SearchOptions,
        environment: &Environment,
        host: HostRelease,
        root: &Path,
    ) -> Result<Self, CatalogError> {
        let mut checker = Checker::new(Process::current(environment.elevated));
        let configuration =
            configuration::read(environment, options.plugins_file.as_deref(), root, &mut checker)?;
        let mut search = search::places(options, environment, &configuration, root)?;
        let globs = Globs::read(environment, &mut search.notes);
        let lock = lock::read(environment, root, &checker)?;
        let discovery = discover::discover(&search, &configuration, &globs, &checker)?;
        Ok(Self {
            environment: environment.clone(),
            options: options.clone(),
            configuration,
            search,
            discovery,
            lock,
            host,
            checker,
            root: root.to_path_buf(),
            hardware: OnceCell::new(),
            inspections: BTreeMap::new(),
        })
    }

    /// The plugins, in order of rank, place and name.
    pub fn plugins(&self) -> &[Plugin] {
        &self.discovery.plugins
    }

    /// One plugin, to go on with it.
    pub fn plugin_mut(&mut self, index: usize) -> &mut Plugin {
        &mut self.discovery.plugins[index]
    }

    /// What is in the machine; looked at on the first call.
    pub fn hardware(&self) -> &Hardware {
        self.hardware.get_or_init(|| Hardware::read(&self.root))
    }

    /// The host's release and interface versions.
    pub fn host(&self) -> &HostRelease {
        &self.host
    }

    /// The root folder, `/` except in tests.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The plugin that answers to a name; see [`select::by_name`].
    ///
    /// # Errors
    /// [`SelectError`].
    pub fn by_name(&self, name: &str) -> Result<usize, SelectError> {
        select::by_name(self.plugins(), name, || self.hardware())
    }

    /// Inspects every plugin, leaves out what crashed or hung before, and lets `auto` decide; see [`select::auto`].
    ///
    /// # Errors
    /// [`SelectError`].
    pub fn auto(&mut self, allow_fallback: bool) -> Result<AutoChoice, SelectError> {
        let verdicts = Verdicts::read(&self.environment);
        for index in 0..self.discovery.plugins.len() {
            let inspection = self.inspect(index);
            if let Some(image) = &inspection.image {
                trial::recall(self, index, image, &verdicts);
            }
        }
        select::auto(self.plugins(), self.hardware(), allow_fallback, &self.searched())
    }

    /// The plugin for the processor, once [`auto`](Self::auto) has looked at all; see [`select::processor`].
    pub fn processor(&self) -> Option<usize> {
        select::processor(self.plugins())
    }

    /// The places that were searched, for messages.
    pub fn searched(&self) -> Vec<String> {
        self.search.places.iter().map(|place| super::lifecycle::show_path(&place.path)).collect()
    }

    /// Decides everything about one plugin that needs no code of it, and records it. A plugin is inspected once;
    /// asking again gives the same answer.
    pub fn inspect(&mut self, index: usize) -> Inspection {
        if let Some(known) = self.inspections.get(&index) {
            return known.clone();
        }
        let hardware = self.hardware.get_or_init(|| Hardware::read(&self.root));
        let surroundings = Surroundings {
            configuration: &self.configuration,
            lock: &self.lock,
            checker: &self.checker,
            hardware,
            host: &self.host,
        };
        let inspection = inspect(&mut self.discovery.plugins[index], &surroundings);
        self.inspections.insert(index, inspection.clone());
        inspection
    }

    /// The plugin's own options from `plugins.toml`, as they stand there.
    pub fn configured_options(&self, index: usize) -> BTreeMap<String, toml::Value> {
        let manifest = self.discovery.plugins[index].manifest.as_ref();
        let settings = manifest.and_then(|manifest| self.configuration.plugins.get(&manifest.plugin.id));
        settings.map(|settings| settings.options.clone()).unwrap_or_default()
    }

    /// The same as text.
    pub fn options_of(&self, index: usize) -> Vec<(String, String)> {
        let text = |value: toml::Value| match value {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        self.configured_options(index).into_iter().map(|(name, value)| (name, text(value))).collect()
    }

    /// The folder for long reports.
    pub fn reports_folder(&self) -> Option<PathBuf> {
        self.environment.cache_folder().map(|cache| cache.join("reports"))
    }

    /// Everything that was ignored and why, one line each.
    pub fn notes(&self) -> &[String] {
        &self.discovery.notes
    }

    /// The first error of a plugin that was inspected.
    pub fn refusal(&self, index: usize) -> Option<&Finding> {
        self.discovery.plugins[index].life.error()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::discover::SIDECAR_SUFFIX;
    use super::super::lifecycle::State;
    use super::super::testing::{CPlugin, manifest_text};
    use super::*;

    /// A root folder with the plugins of these ids in the system's folder.
    pub(crate) fn installed(ids: &[&str]) -> (tempfile::TempDir, PathBuf) {
        installed_with(&ids.iter().map(|id| (*id, manifest_text(id))).collect::<Vec<_>>())
    }

    /// The same with manifests that were changed.
    pub(crate) fn installed_with(plugins: &[(&str, String)]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/tensorfold/backends0");
        std::fs::create_dir_all(&folder).unwrap();
        for (id, manifest) in plugins {
            std::fs::write(folder.join(format!("{id}{SIDECAR_SUFFIX}")), manifest).unwrap();
            CPlugin::new(id).manifest(manifest).build(&folder);
        }
        (root, folder)
    }

    pub(crate) fn find(root: &Path) -> Catalog {
        let environment = Environment {
            cache_home: Some(root.join("cache")),
            config_home: Some(root.join("conf")),
            ..Environment::default()
        };
        Catalog::find(&SearchOptions::default(), &environment, HostRelease::current(false), root).unwrap()
    }

    #[test]
    fn installed_plugins_are_found_inspected_and_chosen() {
        let (root, _) = installed(&["backend-one", "backend-two"]);
        let mut catalog = find(root.path());
        assert_eq!(catalog.by_name("two"), Ok(1));
        assert!(catalog.hardware.get().is_none(), "a name alone needs no look at the hardware");
        let choice = catalog.auto(false).unwrap();
        assert_eq!(choice.index, 0);
        assert!(catalog.plugins().iter().all(|plugin| plugin.life.state() == State::Admitted));
    }

    #[test]
    fn what_auto_inspected_can_be_asked_again() {
        let (root, _) = installed(&["backend-one"]);
        let mut catalog = find(root.path());
        let choice = catalog.auto(false).unwrap();
        let inspection = catalog.inspect(choice.index);
        assert!(inspection.image.is_some() && inspection.agreement.is_some());
    }

    #[test]
    fn finding_plugins_makes_no_file() {
        let (root, _) = installed(&["backend-one"]);
        let mut catalog = find(root.path());
        catalog.inspect(0);
        assert!(!root.path().join("cache").exists() && !root.path().join("conf").exists());
    }

    #[test]
    fn options_of_the_configuration_reach_the_plugin_as_text() {
        let (root, _) = installed(&["backend-one"]);
        let file = root.path().join("etc/tensorfold/plugins.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "[plugin.backend-one.options]\nthreads = 3\nname = \"x\"\nfast = true\n")
            .unwrap();
        let options = find(root.path()).options_of(0);
        let expected = [("fast", "true"), ("name", "x"), ("threads", "3")];
        assert_eq!(options, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
