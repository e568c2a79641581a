//! What earlier probes found, so that a plugin is not probed at each start and a crashing one not tried again.
//!
//! The cache is never needed for correctness: it is keyed by everything that could change the answer, any change
//! voids an entry, and a file that cannot be read or written is as good as an empty one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::image::FileIdentity;
use super::lock;
use super::probe::ProbeReport;

const FORMAT: u32 = 1;
/// Entries kept; the oldest go first.
const ENTRIES_MAX: usize = 200;
const FILE_MAX: u64 = 16 << 20;
/// Time limits passed before a plugin is quarantined.
const TIMEOUTS_MAX: u32 = 2;

/// Everything that could change a probe's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The library.
    pub library: PathBuf,
    /// Which file it was.
    pub identity: FileIdentity,
    /// SHA-256 of the library.
    pub sha256: String,
    /// The host's version.
    pub host_version: String,
    /// Interface version, `major.minor`.
    pub abi: String,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The driver versions.
    pub drivers: Vec<String>,
    /// Identifies the boot: device lists change with it.
    pub boot_id: Option<String>,
    /// Variables that hide devices, with their values.
    pub visibility: BTreeMap<String, String>,
}

impl Key {
    fn digest(&self) -> String {
        // A struct of strings and numbers always serialises.
        lock::digest_bytes(serde_json::to_string(self).unwrap_or_default().as_bytes())
    }
}

/// How a probe ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Verdict {
    /// It answered; the answer may be a refusal.
    Answered {
        /// The answer.
        report: Box<ProbeReport>,
    },
    /// It was ended by a signal, or ended itself without an answer.
    Crashed {
        /// What happened, as one line.
        what: String,
    },
    /// It did not answer in time.
    TimedOut {
        /// How often in a row.
        times: u32,
        /// What it was doing, as one line.
        what: String,
    },
}

impl Verdict {
    /// Why the plugin is not tried again, when it is not.
    pub fn quarantine(&self) -> Option<&str> {
        match self {
            Self::Answered { .. } => None,
            Self::Crashed { what } => Some(what),
            Self::TimedOut { times, what } => (*times >= TIMEOUTS_MAX).then_some(what),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    verdict: Verdict,
    library: PathBuf,
    unix_seconds: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Digest {
    identity: FileIdentity,
    sha256: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    format: u32,
    verdicts: BTreeMap<String, Entry>,
    digests: BTreeMap<PathBuf, Digest>,
}

/// The cache.
#[derive(Debug)]
pub struct Verdicts {
    path: Option<PathBuf>,
    content: Content,
    changed: bool,
}

impl Verdicts {
    /// Reads the user's cache; an elevated process uses none, since its user could have written it.
    pub fn read(environment: &Environment) -> Self {
        let folder = environment.cache_folder().filter(|_| !environment.elevated);
        let path = folder.map(|folder| folder.join("plugins.json"));
        let content = path.as_deref().and_then(read_file).unwrap_or_default();
        Self { path, content, changed: false }
    }

    /// What is known under a key, and when it was found, in seconds since 1970.
    pub fn get(&self, key: &Key) -> Option<(&Verdict, u64)> {
        self.content.verdicts.get(&key.digest()).map(|entry| (&entry.verdict, entry.unix_seconds))
    }

    /// Remembers how a probe ended. Time limits in a row are counted.
    pub fn put(&mut self, key: &Key, mut verdict: Verdict) {
        let digest = key.digest();
        if let (
            Verdict::TimedOut { times, .. },
            Some(Entry { verdict: Verdict::TimedOut { times: before, .. }, .. }),
        ) = (&mut verdict, self.content.verdicts.get(&digest))
        {
            *times += *before;
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_seconds = now.map_or(0, |now| now.as_secs());
        self.content.verdicts.insert(digest, Entry { verdict, library: key.library.clone(), unix_seconds });
        while self.content.verdicts.len() > ENTRIES_MAX {
            let oldest = self.content.verdicts.iter().min_by_key(|(_, entry)| entry.unix_seconds);
            let Some(oldest) = oldest.map(|(digest, _)| digest.clone()) else { break };
            self.content.verdicts.remove(&oldest);
        }
        self.changed = true;
    }

    /// Forgets everything about a library.
    pub fn clear(&mut self, library: &Path) {
        self.content.verdicts.retain(|_, entry| entry.library != library);
        self.changed = true;
    }

    /// SHA-256 of a library, from the cache when the very same file was hashed before.
    ///
    /// # Errors
    /// What the system said about reading the file.
    pub fn digest(&mut self, library: &Path, identity: FileIdentity) -> std::io::Result<String> {
        if let Some(known) = self.content.digests.get(library).filter(|known| known.identity == identity) {
            return Ok(known.sha256.clone());
        }
        let sha256 = lock::digest_file(library)?;
        if self.content.digests.len() >= ENTRIES_MAX {
            self.content.digests.clear();
        }
        self.content.digests.insert(library.to_path_buf(), Digest { identity, sha256: sha256.clone() });
        self.changed = true;
        Ok(sha256)
    }

    /// SHA-256 of a library, only if this very file was hashed before.
    pub fn known_digest(&self, library: &Path, identity: FileIdentity) -> Option<String> {
        let known = self.content.digests.get(library).filter(|known| known.identity == identity)?;
        Some(known.sha256.clone())
    }

    /// Writes the cache if it changed. A failure is one line for the log and nothing else.
    pub fn save(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| self.changed) else { return };
        self.content.format = FORMAT;
        let written = serde_json::to_vec(&self.content)
            .map_err(std::io::Error::from)
            .and_then(|bytes| super::write_atomically(path, &bytes));
        match written {
            Ok(()) => self.changed = false,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "the plugin cache cannot be written")
            }
        }
    }
}

fn read_file(path: &Path) -> Option<Content> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut text = Vec::new();
    // Opening a pipe would wait for a writer.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice::<Content>(&text).ok().filter(|content| content.format == FORMAT)
}

/// Identifies this boot.
pub fn boot_id(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(library: &str, size: u64) -> Key {
        Key {
            library: library.into(),
            identity: FileIdentity { device: 1, inode: 2, size, modified_ns: 3, changed_ns: 4 },
            sha256: "0".repeat(64),
            host_version: "0.1.0".into(),
            abi: "0.1".into(),
            kernel: None,
            drivers: Vec::new(),
            boot_id: None,
            visibility: BTreeMap::new(),
        }
    }

    fn environment(folder: &Path) -> Environment {
        Environment { cache_home: Some(folder.into()), ..Environment::default() }
    }

    fn timed_out() -> Verdict {
        Verdict::TimedOut { times: 1, what: "init did not return".into() }
    }

    #[test]
    fn a_verdict_is_found_again_until_anything_changes() {
        let folder = tempfile::tempdir().unwrap();
        let mut verdicts = Verdicts::read(&environment(folder.path()));
        verdicts.put(&key("/a.so", 1), Verdict::Crashed { what: "signal 11".into() });
        verdicts.save();
        let verdicts = Verdicts::read(&environment(folder.path()));
        assert!(verdicts.get(&key("/a.so", 1)).is_some());
        assert!(verdicts.get(&key("/a.so", 2)).is_none());
        let hidden =
            Key { visibility: [("CUDA_VISIBLE_DEVICES".into(), String::new())].into(), ..key("/a.so", 1) };
        assert!(verdicts.get(&hidden).is_none());
    }

    #[test]
    fn a_crash_or_a_second_time_limit_is_quarantine() {
        let folder = tempfile::tempdir().unwrap();
        let mut verdicts = Verdicts::read(&environment(folder.path()));
        let quarantined =
            |verdicts: &Verdicts| verdicts.get(&key("/a.so", 1)).unwrap().0.quarantine().is_some();
        verdicts.put(&key("/a.so", 1), timed_out());
        assert!(!quarantined(&verdicts));
        verdicts.put(&key("/a.so", 1), timed_out());
        assert!(quarantined(&verdicts));
        verdicts.clear(Path::new("/a.so"));
        assert!(verdicts.get(&key("/a.so", 1)).is_none());
        verdicts.put(&key("/a.so", 1), Verdict::Crashed { what: "signal 11".into() });
        assert!(quarantined(&verdicts));
    }

    #[test]
    fn damage_and_unwritable_folders_are_as_good_as_an_empty_cache() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tensorfold/plugins.json");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        for text in ["", "{", "{\"format\":99,\"verdicts\":{},\"digests\":{}}", "[]"] {
            std::fs::write(&file, text).unwrap();
            assert!(Verdicts::read(&environment(folder.path())).content.verdicts.is_empty(), "{text}");
        }
        let blocked = folder.path().join("blocked");
        std::fs::write(&blocked, "a file in place of a folder").unwrap();
        let mut verdicts = Verdicts::read(&environment(&blocked));
        verdicts.put(&key("/a.so", 1), timed_out());
        verdicts.save();
    }

    #[test]
    fn reading_makes_no_folder_and_saving_nothing_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        Verdicts::read(&environment(folder.path())).save();
        assert!(!folder.path().join("tensorfold").exists());
    }

    #[test]
    fn a_home_that_is_not_there_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let save = |cache: &str| {
            let mut verdicts = Verdicts::read(&environment(&folder.path().join(cache)));
            verdicts.put(&key("/a.so", 1), timed_out());
            verdicts.save();
        };
        save("no-home/.cache");
        assert!(!folder.path().join("no-home").exists());
        save(".cache");
        assert!(folder.path().join(".cache/tensorfold/plugins.json").exists());
    }

    #[test]
    fn a_digest_is_remembered_by_identity() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("a.so");
        std::fs::write(&library, "one").unwrap();
        let identity = FileIdentity::of(&std::fs::metadata(&library).unwrap());
        let mut verdicts = Verdicts::read(&environment(folder.path()));
        let first = verdicts.digest(&library, identity).unwrap();
        assert_eq!(first, lock::digest_bytes(b"one"));
        std::fs::write(&library, "two").unwrap();
        assert_eq!(
            verdicts.digest(&library, identity).unwrap(),
            first,
            "the caller says it is the same file"
        );
        let changed = FileIdentity { size: 99, ..identity };
        assert_eq!(verdicts.digest(&library, changed).unwrap(), lock::digest_bytes(b"two"));
    }

    #[test]
    fn the_cache_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut verdicts = Verdicts::read(&environment(folder.path()));
        for size in 0..ENTRIES_MAX as u64 + 20 {
            verdicts.put(&key("/a.so", size), timed_out());
        }
        assert_eq!(verdicts.content.verdicts.len(), ENTRIES_MAX);
    }

    #[test]
    fn a_pipe_in_place_of_the_cache_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("tensorfold")).unwrap();
        let path = folder.path().join("tensorfold/plugins.json");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(Verdicts::read(&environment(folder.path())).content.verdicts.is_empty());
    }
}
