//! One file into the cache: locked, resumed, verified, and only then given its name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::cache::RepositoryFolder;
use crate::digest::{Digest, Hasher};
use crate::error::HubError;
use crate::http::Client;
use crate::hub::{Event, Watch};
use crate::listing::{Listing, RemoteFile};
use crate::retry::Fault;
use crate::transfer::Source;

/// Ends the name of a content while it arrives.
const INCOMPLETE: &str = ".incomplete";

/// The folders of one repository at one commit.
pub(crate) struct Store<'a> {
    pub(crate) client: &'a Arc<Client>,
    pub(crate) listing: &'a Listing,
    pub(crate) folder: &'a RepositoryFolder,
}

impl Store<'_> {
    /// Makes the folders.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(crate) fn prepare(&self) -> Result<(), HubError> {
        for folder in [self.folder.blobs(), self.snapshot(), self.folder.locks()] {
            fs::create_dir_all(&folder).map_err(HubError::disk(&folder))?;
        }
        Ok(())
    }

    /// The folder of links.
    pub(crate) fn snapshot(&self) -> PathBuf {
        self.folder.snapshot(&self.listing.commit)
    }

    /// Bytes of a file that are still to come.
    pub(crate) fn missing(&self, file: &RemoteFile) -> u64 {
        let Some(digest) = file.digest else { return file.bytes };
        let blob = self.folder.blobs().join(digest.to_string());
        if has(&self.snapshot().join(file.path.as_str()), file) || has(&blob, file) {
            return 0;
        }
        let there = fs::metadata(incomplete(&blob)).map_or(0, |metadata| metadata.len());
        if there > file.bytes { file.bytes } else { file.bytes - there }
    }

    /// Brings a file into the snapshot, by linking where its content is there.
    ///
    /// # Errors
    /// When it cannot be had as it is listed. What arrived of it is kept for the next time.
    pub(crate) async fn fetch(&self, file: &RemoteFile, watch: &mut dyn Watch) -> Result<(), HubError> {
        let link = self.snapshot().join(file.path.as_str());
        if has(&link, file) {
            watch.event(Event::Cached { path: &file.path });
            return Ok(());
        }
        let source = Arc::new(Source::new(self.client, self.listing, file));
        let (name, digest) = self.identify(file, &source).await?;
        let blob = self.folder.blobs().join(&name);
        if !has(&blob, file) {
            let _lock = self.lock(&name, file, watch)?;
            // Whoever held it may have done the work.
            if !has(&blob, file) {
                self.download(file, digest, &source, &blob, watch).await?;
                place(&file.path.link_to_blob(&name), &link)?;
                watch.event(Event::Done { path: &file.path, bytes: file.bytes });
                return Ok(());
            }
        }
        place(&file.path.link_to_blob(&name), &link)?;
        watch.event(Event::Cached { path: &file.path });
        Ok(())
    }

    /// What the content is called, and its digest: the listed one, else what the endpoint calls it, which may be one.
    async fn identify(
        &self,
        file: &RemoteFile,
        source: &Source,
    ) -> Result<(String, Option<Digest>), HubError> {
        if let Some(digest) = file.digest {
            return Ok((digest.to_string(), Some(digest)));
        }
        let is_name = |etag: &String| {
            (1..=128).contains(&etag.len())
                && !etag.starts_with('.')
                && !etag.ends_with(INCOMPLETE)
                && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let etag = source.etag().await?.filter(is_name);
        let etag =
            etag.ok_or_else(|| source.problem("the endpoint has neither a digest nor a name for it"))?;
        // What is called by a digest is taken for verified by whoever finds it.
        let digest = Digest::parse(&etag);
        Ok((etag, digest))
    }

    /// The lock that Python's tools take too. The system releases it when its holder ends, however it ends.
    fn lock(&self, name: &str, file: &RemoteFile, watch: &mut dyn Watch) -> Result<File, HubError> {
        let path = self.folder.locks().join(format!("{name}.lock"));
        let mut told = false;
        loop {
            let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let lock = lock.map_err(HubError::disk(&path))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        watch.event(Event::Waiting { path: &file.path });
                        told = true;
                    }
                    lock.lock().map_err(HubError::disk(&path))?;
                }
                Err(TryLockError::Error(error)) => return Err(HubError::disk(&path)(error)),
            }
            // Some tools remove the file when they are done; a lock on a removed file locks nobody out.
            let held = lock.metadata().map_err(HubError::disk(&path))?;
            let named = fs::metadata(&path);
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
                return Ok(lock);
            }
        }
    }

    async fn download(
        &self,
        file: &RemoteFile,
        digest: Option<Digest>,
        source: &Arc<Source>,
        blob: &Path,
        watch: &mut dyn Watch,
    ) -> Result<(), HubError> {
        let path = incomplete(blob);
        let failed = |error| HubError::disk(&path)(error);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut partial = open.map_err(failed)?;
        if partial.metadata().map_err(failed)?.len() > file.bytes {
            partial.set_len(0).map_err(failed)?;
        }
        // Once more from the start when what was there, or what came, was not the file.
        let mut again = false;
        loop {
            let mut hasher = digest.map(|digest| digest.start(file.bytes));
            let there = read_prefix(&mut partial, &mut hasher).map_err(failed)?;
            watch.event(Event::Begin { path: &file.path, bytes: file.bytes, there });
            let mut take = |chunk: Bytes| {
                partial.write_all(&chunk).map_err(failed)?;
                if let Some(hasher) = &mut hasher {
                    hasher.update(&chunk);
                }
                watch.event(Event::Arrived { bytes: chunk.len() as u64 });
                Ok(())
            };
            let problem = match source.stream(there, &mut take).await {
                Ok(()) if hasher.map(Hasher::finish) == digest => break,
                Ok(()) => source.problem(
                    "its content is not what its digest says, twice: the copy at the server is damaged, or something \
                     in between changes it",
                ),
                Err(Fault::Changed) => source.ended(Fault::Changed),
                Err(fault) => return Err(source.ended(fault)),
            };
            partial.set_len(0).map_err(failed)?;
            source.forget();
            if again {
                // Nothing of it is worth going on with.
                fs::remove_file(&path).map_err(failed)?;
                return Err(problem);
            }
            again = true;
        }
        partial.sync_all().map_err(failed)?;
        fs::rename(&path, blob).map_err(failed)?;
        sync_folder(blob);
        Ok(())
    }
}

/// Whether a path leads to a content of the file's length. No more is asked of what has its final name: whoever gave it
/// called it whole, and to read all of a model again before each use would take minutes. Not every tool has checked the
/// digest when it does so.
fn has(path: &Path, file: &RemoteFile) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
}

fn incomplete(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(INCOMPLETE);
    name.into()
}

/// Reads what is there into the digest and leaves the file at its end.
fn read_prefix(partial: &mut File, hasher: &mut Option<Hasher>) -> std::io::Result<u64> {
    let Some(hasher) = hasher else { return partial.seek(SeekFrom::End(0)) };
    partial.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 64 << 10];
    let mut there = 0;
    loop {
        let count = partial.read(&mut buffer)?;
        if count == 0 {
            return Ok(there);
        }
        hasher.update(&buffer[..count]);
        there += count as u64;
    }
}

/// Puts a link where nothing, or an older one, is. Whoever looks sees one of the two.
fn place(target: &Path, link: &Path) -> Result<(), HubError> {
    let Some(folder) = link.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(HubError::disk(folder))?;
    replace(link, |aside| symlink(target, aside))
}

/// Writes a small file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &str) -> Result<(), HubError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(HubError::disk(folder))?;
    replace(path, |aside| fs::write(aside, content))?;
    sync_folder(path);
    Ok(())
}

fn replace(path: &Path, make: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), HubError> {
    /// Tells threads of this process apart.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}.new", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let aside = PathBuf::from(name);
    // Left by a process of the same number that was killed here.
    let _ = fs::remove_file(&aside);
    let made = make(&aside).and_then(|()| fs::rename(&aside, path));
    made.map_err(|error| {
        let _ = fs::remove_file(&aside);
        HubError::disk(path)(error)
    })
}

/// Makes a rename last. A file system that cannot do it for folders still has the file.
fn sync_folder(path: &Path) {
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
}
