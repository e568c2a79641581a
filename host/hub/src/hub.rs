//! The Hub, for code that waits for its answers.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::blob::{Store, write_whole};
use crate::cache::Cache;
use crate::error::{HubError, size};
use crate::http::Client;
use crate::listing::{self, Listing, RemoteFile};
use crate::path::RepoPath;
use crate::preview;
use crate::reference::Reference;
use crate::select::{self, CONFIG, INDEX};
use crate::settings::Settings;

/// The Hub at one endpoint, and the cache that downloads go to.
pub struct Hub {
    client: Arc<Client>,
    cache: Cache,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

/// Something that happened to a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The weights are next: so many files, and so many bytes that are still to come.
    Weights {
        /// Files, those that are there included.
        files: usize,
        /// Bytes to come.
        bytes: u64,
    },
    /// A file's content was there already.
    Cached {
        /// The file.
        path: &'a RepoPath,
    },
    /// Another process is downloading the same content.
    Waiting {
        /// The file.
        path: &'a RepoPath,
    },
    /// A file begins. A second time for the same file when it has to be read anew.
    Begin {
        /// The file.
        path: &'a RepoPath,
        /// Its length.
        bytes: u64,
        /// Bytes of it that an earlier download left.
        there: u64,
    },
    /// Bytes of the file that began last.
    Arrived {
        /// How many.
        bytes: u64,
    },
    /// A file is complete and verified.
    Done {
        /// The file.
        path: &'a RepoPath,
        /// Its length.
        bytes: u64,
    },
}

/// Whoever wants to know how a download goes.
pub trait Watch {
    /// The configuration has arrived, in this folder, and nothing else is asked for before this returns.
    ///
    /// # Errors
    /// What speaks against the rest; the download ends with it.
    fn config(&mut self, snapshot: &Path) -> Result<(), String>;

    /// Something happened.
    fn event(&mut self, event: Event<'_>);
}

impl Hub {
    /// Opens no connection.
    ///
    /// # Errors
    /// [`HubError::Offline`] where no network is to be used; else when the machine has no room for a client.
    pub fn new(settings: &Settings, cache: Cache) -> Result<Hub, HubError> {
        if settings.offline {
            return Err(HubError::Offline);
        }
        let client = Arc::new(Client::new(settings)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // Enough for decryption beside the thread that writes and computes digests.
            .worker_threads(4)
            .thread_name("hub")
            .enable_all()
            .build()
            .map_err(|error| HubError::Setting {
                name: "the HTTP client".into(),
                problem: format!("got no threads: {error}"),
            })?;
        Ok(Hub { client, cache, runtime: Some(runtime) })
    }

    /// What a repository holds at a revision.
    ///
    /// # Errors
    /// When there is no such thing, it may not be seen, or its list cannot be trusted.
    pub fn list(&self, reference: &Reference) -> Result<Listing, HubError> {
        self.wait(listing::list(&self.client, reference))
    }

    /// Puts a model's metadata into an existing empty folder: configuration, index, card, and of every weight file the
    /// header in a file of the right length. The cache is neither read nor written.
    ///
    /// # Errors
    /// When the repository cannot be a checkpoint, or a part of its metadata cannot be had.
    pub fn preview(&self, listing: &Listing, folder: &Path) -> Result<(), HubError> {
        self.wait(preview::preview(&self.client, listing, folder))
    }

    /// Brings everything that a model needs into the cache and gives the folder of the snapshot. What is there is
    /// kept, what was begun is gone on with. Only when all of it is there the revision gets its name in the cache.
    ///
    /// # Errors
    /// The first file that cannot be had; a further call goes on from there.
    pub fn download(&self, listing: &Listing, watch: &mut dyn Watch) -> Result<PathBuf, HubError> {
        self.wait(self.download_all(listing, watch))
    }

    async fn download_all(&self, listing: &Listing, watch: &mut dyn Watch) -> Result<PathBuf, HubError> {
        let config = select::config(listing)?;
        let folder = self.cache.repository(&listing.reference.repository).ok_or(HubError::NoCache)?;
        let store = Store { client: &self.client, listing, folder: &folder };
        store.prepare()?;
        let snapshot = store.snapshot();
        store.fetch(config, watch).await?;
        watch.config(&snapshot).map_err(HubError::Refused)?;
        let limit = self.client.limits.metadata;
        for file in select::text_files(listing, limit).filter(|file| file.path.as_str() != CONFIG) {
            store.fetch(file, watch).await?;
        }
        let index = match listing.file(INDEX) {
            Some(file) if file.bytes > limit => {
                let problem = format!("has an {INDEX} of {} bytes; at most {limit} are read", file.bytes);
                return Err(HubError::Contents { repository: listing.reference.to_string(), problem });
            }
            Some(_) => Some(read(&snapshot.join(INDEX), limit)?),
            None => None,
        };
        let weights = select::weight_files(listing, index.as_deref())?;
        let needed = room(&store, &weights, folder.root())?;
        watch.event(Event::Weights { files: weights.len(), bytes: needed });
        for file in weights {
            store.fetch(file, watch).await?;
        }
        // Last, and for this revision alone: what others are pinned to is not ours to move.
        let revision = &listing.reference.revision;
        if revision.commit().is_none() {
            write_whole(&folder.reference(revision), listing.commit.as_str())?;
        }
        Ok(snapshot)
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, HubError>>) -> Result<T, HubError> {
        // Gone only while `self` is being dropped.
        let runtime = self.runtime.as_ref().ok_or(HubError::Offline)?;
        runtime.block_on(work)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // A look-up of a name that hangs must not keep anybody waiting.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, HubError> {
    let mut content = Vec::new();
    let file = fs::File::open(path).map_err(HubError::disk(path))?;
    file.take(limit).read_to_end(&mut content).map_err(HubError::disk(path))?;
    Ok(content)
}

/// Bytes that are still to come, for which there is room.
fn room(store: &Store<'_>, files: &[&RemoteFile], root: &Path) -> Result<u64, HubError> {
    let needed = files.iter().fold(0u64, |sum, file| sum.saturating_add(store.missing(file)));
    let space = rustix::fs::statvfs(root).map_err(|error| HubError::disk(root)(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if needed > free {
        let (free, needed) = (size(free), size(needed));
        return Err(HubError::Space { folder: root.into(), free, needed });
    }
    Ok(needed)
}
