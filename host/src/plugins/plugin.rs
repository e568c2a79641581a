//! One plugin that was found, with everything known about it.

use std::path::PathBuf;

use tensorfold_plugin_api::manifest::{Manifest, Note};

use super::lifecycle::{Code, Finding, Lifecycle, State, one_line};
use super::search::{Place, Rank};

/// One plugin that was found.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Where the place that held it ranks.
    pub rank: Rank,
    /// The option, variable or file that named the place.
    pub origin: String,
    /// The sidecar, or the library whose own manifest was read.
    pub manifest_path: PathBuf,
    /// The manifest was read from the library itself: there is no sidecar.
    pub embedded: bool,
    /// The library, which may not be there.
    pub library: Option<PathBuf>,
    /// What it says about itself, once that was read.
    pub manifest: Option<Manifest>,
    /// What in the manifest this host does not know.
    pub notes: Vec<Note>,
    /// Where it stands and what was found.
    pub life: Lifecycle,
}

impl Plugin {
    pub(crate) fn new(place: &Place, manifest_path: PathBuf, embedded: bool) -> Self {
        Self {
            rank: place.rank,
            origin: place.origin.clone(),
            library: embedded.then(|| manifest_path.clone()),
            manifest_path,
            embedded,
            manifest: None,
            notes: Vec::new(),
            life: Lifecycle::new(),
        }
    }

    /// Whether it takes part: its manifest was read, and nothing hides it or speaks against it so far.
    pub fn is_active(&self) -> bool {
        self.life.state() != State::Discovered && self.life.error().is_none()
    }

    /// Whether it is hidden: masked, shadowed or switched off.
    pub fn is_hidden(&self) -> bool {
        self.life
            .findings()
            .iter()
            .any(|finding| matches!(finding.code, Code::Masked | Code::Shadowed | Code::Disabled))
    }

    /// Its id, or the file's name while the id is not known.
    pub fn name(&self) -> String {
        match &self.manifest {
            Some(manifest) => match &manifest.plugin.variant {
                Some(variant) => format!("{}/{variant}", manifest.plugin.id),
                None => manifest.plugin.id.clone(),
            },
            None => one_line(&self.manifest_path.file_name().unwrap_or_default().to_string_lossy()),
        }
    }

    /// Records a finding with the plugin's name in it.
    pub fn record(&mut self, mut finding: Finding) {
        if let Some(manifest) = &self.manifest
            && finding.plugin.is_none()
        {
            finding = finding.plugin(manifest.plugin.id.clone(), manifest.plugin.version.to_string());
        }
        if finding.path.is_none() {
            finding.path = Some(self.library.clone().unwrap_or_else(|| self.manifest_path.clone()));
        }
        self.life.record(finding);
    }

    /// What there may be one of: id and variant.
    pub(crate) fn key(&self) -> Option<(String, Option<String>)> {
        let plugin = &self.manifest.as_ref()?.plugin;
        Some((plugin.id.clone(), plugin.variant.clone()))
    }
}
