//! The folder of one checkpoint, and the only way its files are opened.
//!
//! A checkpoint may come from a stranger. A file is opened only when it is a
//! regular file that lies in the folder, or in the `blobs` of the repository in
//! the Hub cache whose `snapshots` the folder stands in, or in the store that
//! the repositories of that cache share: a link to anywhere else is refused.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;

/// A checkpoint's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    real: PathBuf,
    blobs: Option<PathBuf>,
}

impl Folder {
    /// Metadata files that are read whole may be this large.
    pub const METADATA_LIMIT: u64 = 64 << 20;

    /// Opens a folder.
    ///
    /// # Errors
    /// When the path is not a folder that can be read.
    pub fn open(path: &Path) -> Result<Folder, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: path.into(), source };
        let real = fs::canonicalize(path).map_err(failed)?;
        if !real.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        // models--OWNER--NAME/snapshots/COMMIT
        let blobs = real
            .parent()
            .filter(|snapshots| snapshots.file_name().is_some_and(|name| name == "snapshots"))
            .and_then(Path::parent)
            .map(|repository| repository.join("blobs"));
        Ok(Folder { path: path.into(), real, blobs })
    }

    /// The folder as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's name: the repository's for a snapshot in the Hub cache,
    /// else the folder's.
    pub fn name(&self) -> String {
        let repository = self.blobs.as_deref().and_then(Path::parent).and_then(Path::file_name);
        let from_hub = repository
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("models--"))
            .and_then(|name| name.split_once("--"))
            .map(|(_, name)| name.to_owned());
        from_hub
            .or_else(|| self.real.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "model".to_owned())
    }

    /// The path of a file in the folder, for messages.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a file of this name exists. A dangling link does not.
    pub fn has(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// The names of all entries, sorted; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: self.path.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a regular file for reading; `None` where there is none.
    ///
    /// # Errors
    /// [`CheckpointError::Link`], [`CheckpointError::NotAFile`] or
    /// [`CheckpointError::Read`].
    pub fn open_file(&self, name: &str) -> Result<Option<(File, u64)>, CheckpointError> {
        let path = self.join(name);
        let failed = |source| CheckpointError::Read { path: path.clone(), source };
        let real = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let in_blobs = || self.blobs.as_deref().is_some_and(|blobs| is_blob(&real, blobs));
        if !real.starts_with(&self.real) && !in_blobs() {
            return Err(CheckpointError::Link { path, target: real });
        }
        // Looked at before opening: opening a pipe would wait for a writer.
        if !fs::metadata(&real).map_err(failed)?.is_file() {
            return Err(CheckpointError::NotAFile { path });
        }
        let file = File::open(&real).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Some((file, bytes)))
    }

    /// Reads a whole metadata file of at most `limit` bytes; `None` where
    /// there is none.
    ///
    /// # Errors
    /// As [`Folder::open_file`], and [`CheckpointError::TooLarge`].
    pub fn read_limited(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some((file, bytes)) = self.open_file(name)? else { return Ok(None) };
        let path = self.join(name);
        if bytes > limit {
            return Err(CheckpointError::TooLarge { path, bytes, limit });
        }
        let mut content = Vec::with_capacity(bytes as usize);
        file.take(limit)
            .read_to_end(&mut content)
            .map_err(|source| CheckpointError::Read { path, source })?;
        Ok(Some(content))
    }

    /// Reads a whole file that the user named, wherever it lies: a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// [`CheckpointError::NotAFile`], [`CheckpointError::TooLarge`] or [`CheckpointError::Read`].
    pub fn read_named(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: path.into(), source };
        // Looked at before opening: opening a pipe would wait for a writer, and a device may never end.
        let metadata = fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(CheckpointError::NotAFile { path: path.into() });
        }
        if metadata.len() > limit {
            return Err(CheckpointError::TooLarge { path: path.into(), bytes: metadata.len(), limit });
        }
        let mut content = Vec::new();
        File::open(path).map_err(failed)?.take(limit).read_to_end(&mut content).map_err(failed)?;
        Ok(content)
    }

    /// Reads and parses a JSON file; `None` where there is none.
    ///
    /// # Errors
    /// As [`Folder::read_limited`], and [`CheckpointError::Json`].
    pub fn read_json<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        limit: u64,
    ) -> Result<Option<T>, CheckpointError> {
        let Some(content) = self.read_limited(name, limit)? else { return Ok(None) };
        serde_json::from_slice(&content)
            .map(Some)
            .map_err(|source| CheckpointError::Json { path: self.join(name), source })
    }
}

/// Whether a file is one of a repository's contents, or of those that the repositories of its cache share: newer
/// tools of the Hub keep `CACHE/blobs/XX/HASH` once, where HASH has 64 digits and XX is the first two of them.
fn is_blob(file: &Path, blobs: &Path) -> bool {
    let Some(parent) = file.parent() else { return false };
    if parent == blobs {
        return true;
    }
    let shared = blobs.parent().and_then(Path::parent).map(|cache| cache.join("blobs"));
    let hash = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_hash && shared.is_some_and(|shared| parent == shared.join(&hash[..2]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_out_of_the_folder_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("model");
        fs::create_dir(&folder).unwrap();
        fs::write(root.path().join("secret"), "x").unwrap();
        symlink(root.path().join("secret"), folder.join("config.json")).unwrap();
        let error = Folder::open(&folder).unwrap().read_limited("config.json", 10).unwrap_err();
        assert!(matches!(error, CheckpointError::Link { .. }), "{error}");
    }

    #[test]
    fn a_snapshot_links_into_the_blobs_of_its_own_repository_only() {
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().join("models--acme--small-model");
        let snapshot = repository.join("snapshots/0123");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(repository.join("blobs")).unwrap();
        fs::create_dir_all(root.path().join("models--other--x/blobs")).unwrap();
        fs::write(repository.join("blobs/aa"), "mine").unwrap();
        fs::write(root.path().join("models--other--x/blobs/bb"), "theirs").unwrap();
        symlink("../../blobs/aa", snapshot.join("a")).unwrap();
        symlink("../../../models--other--x/blobs/bb", snapshot.join("b")).unwrap();
        let folder = Folder::open(&snapshot).unwrap();
        assert_eq!(folder.read_limited("a", 10).unwrap().unwrap(), b"mine");
        assert!(matches!(folder.read_limited("b", 10), Err(CheckpointError::Link { .. })));
        assert!(folder.read_limited("c", 10).unwrap().is_none());
        assert_eq!(folder.name(), "small-model");
    }

    #[test]
    fn a_snapshot_leads_into_the_store_that_its_cache_shares() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("models--acme--m");
        let snapshot = repository.join("snapshots/0123");
        let hash = "ab".repeat(32);
        for folder in [&snapshot, &repository.join("blobs"), &cache.path().join("blobs/ab")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(cache.path().join("blobs/ab").join(&hash), "shared").unwrap();
        fs::write(cache.path().join("blobs/ab/other"), "no content").unwrap();
        symlink(format!("../../blobs/ab/{hash}"), repository.join("blobs/cc")).unwrap();
        symlink("../../blobs/ab/other", repository.join("blobs/dd")).unwrap();
        symlink("../../blobs/cc", snapshot.join("a")).unwrap();
        symlink("../../blobs/dd", snapshot.join("b")).unwrap();
        let folder = Folder::open(&snapshot).unwrap();
        assert_eq!(folder.read_limited("a", 10).unwrap().unwrap(), b"shared");
        assert!(matches!(folder.read_limited("b", 10), Err(CheckpointError::Link { .. })));
    }

    #[test]
    fn a_file_over_the_limit_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("config.json"), "0123456789").unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let error = folder.read_limited("config.json", 9).unwrap_err();
        assert!(matches!(error, CheckpointError::TooLarge { bytes: 10, limit: 9, .. }), "{error}");
    }

    #[test]
    fn a_named_file_is_a_regular_one_within_the_limit() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("chat.jinja");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(Folder::read_named(&file, 10).unwrap(), b"0123456789");
        assert!(matches!(Folder::read_named(&file, 9), Err(CheckpointError::TooLarge { .. })));
        for endless in ["/dev/zero", "/"] {
            let error = Folder::read_named(Path::new(endless), 10).unwrap_err();
            assert!(matches!(error, CheckpointError::NotAFile { .. }), "{error}");
        }
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("config.json")).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        assert!(matches!(folder.open_file("config.json"), Err(CheckpointError::NotAFile { .. })));
    }
}
