//! A model at the Hub.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use tensorfold_hub::{Hub, HubError, Listing, Reference, Settings};

use super::interrupt::EndsWell;
use super::passing::PassingFolder;
use super::progress::Progress;
use crate::checkpoint::{self, ConfigKind, HubCache, ResolveError};
use crate::cli::{Failure, hint};
use crate::plugins::lifecycle::one_line;

/// A model at the Hub, with its metadata in a folder that goes away with this.
pub(in crate::cli) struct Remote {
    hub: Hub,
    listing: Listing,
    /// Until nobody reads it any more.
    folder: Option<PassingFolder>,
    directory: PathBuf,
    repository: String,
    place: String,
}

impl Remote {
    /// Reads the metadata of a model that the cache cannot serve, for the reason given. Nothing is stored.
    pub(super) fn look(model: &str, reason: &ResolveError) -> Result<Remote, Failure> {
        let reference: Reference = model.parse()?;
        let settings = Settings::from_environment()?;
        if settings.offline {
            return Err(Failure::new(format!(
                "{reason}; HF_HUB_OFFLINE is set, so it is not downloaded now"
            )));
        }
        let failed = |error: HubError| {
            let advice = match error.is_of_the_way() {
                true => format!("; {reason}"),
                false => String::new(),
            };
            Failure::new(format!("{error}{advice}"))
        };
        let hub = Hub::new(&settings, HubCache::from_environment()).map_err(failed)?;
        hint(&format!("{reference} is not complete in the Hugging Face cache; reading its metadata first"));
        let listing = hub.list(&reference).map_err(failed)?;
        let folder = PassingFolder::new()
            .map_err(|error| Failure::new(format!("no folder for the metadata of {reference}: {error}")))?;
        hub.preview(&listing, folder.path()).map_err(failed)?;
        let place = format!(
            "not downloaded: commit {} at the Hub; tensorfold pull {reference} downloads it",
            listing.commit
        );
        let directory = folder.path().to_owned();
        let repository = reference.to_string();
        Ok(Remote { hub, listing, folder: Some(folder), directory, repository, place })
    }

    /// The folder, which reads like the checkpoint as far as metadata goes.
    pub(in crate::cli) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes that folder.
    pub(in crate::cli) fn forget_metadata(&mut self) {
        self.folder = None;
    }

    /// Whether the repository has a file of this name.
    pub(super) fn lists(&self, name: &str) -> bool {
        self.listing.file(name).is_some()
    }

    /// The model's name.
    pub(in crate::cli) fn name(&self) -> &str {
        self.listing.reference.repository.name()
    }

    /// `owner/name[@revision]`, as it was given.
    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    /// Where it is, in words.
    pub(in crate::cli) fn place(&self) -> &str {
        &self.place
    }

    /// Downloads it and gives the folder of its snapshot. Lines and bars go to stderr.
    pub(in crate::cli) fn download(self) -> Result<PathBuf, Failure> {
        let Remote { hub, listing, folder, .. } = self;
        drop(folder);
        let mut check = |_: &Path| Ok(());
        let mut progress = Progress::new(&mut check, false);
        let reference = &listing.reference;
        announce(reference);
        let _ends_well = EndsWell::new(progress.is_on_a_terminal());
        let directory = hub.download(&listing, &mut progress).map_err(|error| {
            Failure::new(format!("{error}; tensorfold pull {reference} goes on from here"))
        })?;
        progress.end(&stored(&listing, &directory));
        Ok(directory)
    }
}

/// `tensorfold pull`: one after the other.
///
/// # Errors
/// The first that cannot be had.
pub(in crate::cli) fn pull(references: &[Reference]) -> Result<(), Failure> {
    let settings = Settings::from_environment()?;
    let cache = HubCache::from_environment();
    if settings.offline {
        return references.iter().try_for_each(|reference| look_offline(reference, &cache));
    }
    let hub = Hub::new(&settings, cache)?;
    references.iter().try_for_each(|reference| pull_one(&hub, reference))
}

/// Without a network a model is complete, or it is said what it lacks.
fn look_offline(reference: &Reference, cache: &HubCache) -> Result<(), Failure> {
    match checkpoint::resolve_repository(reference, cache) {
        Ok(found) => {
            let commit = found.revision.unwrap_or_default();
            print(&format!("{}@{commit} is at {}", reference.repository, found.directory.display()));
            Ok(())
        }
        Err(error) => {
            Err(Failure::new(format!("{error}; HF_HUB_OFFLINE is set, so nothing is downloaded: unset it")))
        }
    }
}

fn pull_one(hub: &Hub, reference: &Reference) -> Result<(), Failure> {
    announce(reference);
    let mut kind = None;
    let mut check = |snapshot: &Path| {
        kind = Some(checkpoint::read_kind(snapshot).map_err(|error| error.to_string())?);
        Ok(())
    };
    let mut progress = Progress::new(&mut check, true);
    let ends_well = EndsWell::new(progress.is_on_a_terminal());
    let listing = hub.list(reference)?;
    let directory = hub.download(&listing, &mut progress)?;
    progress.end(&stored(&listing, &directory));
    drop(ends_well);
    let folder = checkpoint::Folder::open(&directory)?;
    let licence = checkpoint::licence(&folder).unwrap_or_else(|| "not stated in its README.md".into());
    print(&format!("licence: {licence}"));
    match kind {
        Some(ConfigKind::Drafter { name }) => {
            print(&format!("{reference} is a {name} drafter: name it with serve MODEL --drafter {reference}"))
        }
        Some(ConfigKind::PredictionHead { family }) => {
            print(&format!(
                "{reference} is the multi-token prediction head of a {family} model, without the model"
            ));
        }
        Some(ConfigKind::Model) | None => {}
    }
    Ok(())
}

fn announce(reference: &Reference) {
    hint(&format!("downloading {}@{} from Hugging Face", reference.repository, reference.revision));
}

fn stored(listing: &Listing, directory: &Path) -> String {
    format!("stored {}@{} at {}", listing.reference.repository, listing.commit, directory.display())
}

/// A line of the result. A reader that has gone is no failure: the work is done.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", one_line(line));
}
