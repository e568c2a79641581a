//! `plugins.lock`: which bytes a plugin must have.
//!
//! A mismatch with an existing pin is always refused; a plugin without a pin only where the policy asks for pins.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::environment::Environment;
use super::lifecycle::{Code, Finding, one_line, show_path};
use super::safety::Checker;

/// Format number of the file.
const LOCK_FORMAT: u32 = 1;
/// Largest lock file that is read, in bytes.
const FILE_MAX: u64 = 4 << 20;

/// One pinned plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The plugin's id.
    pub id: String,
    /// Its variant, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The version that was pinned, for the reader.
    pub version: String,
    /// SHA-256 of the library, 64 hexadecimal digits.
    pub library_sha256: String,
    /// SHA-256 of the sidecar; absent for a library that was named directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_sha256: Option<String>,
}

/// All pins of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// The file, when there is one.
    pub path: Option<PathBuf>,
    /// Pins by id and variant.
    pub pins: BTreeMap<(String, Option<String>), Pin>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLock {
    lock: u32,
    #[serde(default)]
    plugin: Vec<Pin>,
}

/// Why a lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The system refused.
    #[error("{}: {doing}: {source}", show_path(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a lock file of this format.
    #[error("{}: not a lock file this host reads: {what}; write it anew with `tensorfold plugins lock --update`", show_path(.path))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Somebody else could change it.
    #[error("{0}")]
    Unsafe(Box<Finding>),
    /// No folder for it is known.
    #[error("no place for plugins.lock: neither XDG_CONFIG_HOME nor HOME names a folder; set one of them")]
    NoPlace,
}

/// Where pins are written: beside the user's `plugins.toml`.
pub fn user_path(environment: &Environment) -> Option<PathBuf> {
    environment.config_home.as_ref().map(|folder| folder.join("tensorfold/plugins.lock"))
}

/// Reads the pins: the system's `/etc/tensorfold/plugins.lock`, then the user's; the system's pin wins.
///
/// # Errors
/// [`LockError`] for a file that is there and cannot be used: pins that cannot be read are not skipped.
pub fn read(environment: &Environment, root: &Path, checker: &Checker) -> Result<Lock, LockError> {
    let mut lock = Lock::default();
    let user = if environment.elevated { None } else { user_path(environment) };
    for path in user.into_iter().chain([root.join("etc/tensorfold/plugins.lock")]) {
        if path.symlink_metadata().is_err() {
            continue;
        }
        checker.check_file(&path).map_err(LockError::Unsafe)?;
        for pin in read_file(&path)? {
            lock.pins.insert((pin.id.clone(), pin.variant.clone()), pin);
        }
        lock.path = Some(path);
    }
    Ok(lock)
}

fn read_file(path: &Path) -> Result<Vec<Pin>, LockError> {
    let io = |source| LockError::Io { path: path.to_path_buf(), doing: "cannot be read", source };
    let content = |what: String| LockError::Content { path: path.to_path_buf(), what };
    let mut text = String::new();
    std::fs::File::open(path).map_err(io)?.take(FILE_MAX + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > FILE_MAX {
        return Err(content(format!("more than {FILE_MAX} bytes")));
    }
    let raw: RawLock = toml::from_str(&text).map_err(|error| content(one_line(error.message())))?;
    if raw.lock != LOCK_FORMAT {
        return Err(content(format!("wanted `lock = {LOCK_FORMAT}`, found {}", raw.lock)));
    }
    for pin in &raw.plugin {
        for digest in std::iter::once(&pin.library_sha256).chain(&pin.sidecar_sha256) {
            if !is_digest(digest) {
                return Err(content(format!(
                    "plugin {}: wanted 64 lower-case hexadecimal digits, found `{}`",
                    one_line(&pin.id),
                    one_line(digest)
                )));
            }
        }
    }
    Ok(raw.plugin)
}

/// Writes the pins, aside and then renamed, so that the file is never half there.
///
/// # Errors
/// [`LockError::Io`] with what was tried.
pub fn write(path: &Path, pins: impl IntoIterator<Item = Pin>) -> Result<(), LockError> {
    let mut pins: Vec<Pin> = pins.into_iter().collect();
    pins.sort_by(|left, right| (&left.id, &left.variant).cmp(&(&right.id, &right.variant)));
    let mut text = String::from(
        "# Written by `tensorfold plugins lock`. A plugin whose bytes differ from its pin is refused.\n",
    );
    let raw = RawLock { lock: LOCK_FORMAT, plugin: pins };
    let body = toml::to_string(&raw).map_err(|error| LockError::Content {
        path: path.to_path_buf(),
        what: one_line(&error.to_string()),
    })?;
    text.push_str(&body);
    super::write_atomically(path, text.as_bytes()).map_err(|source| LockError::Io {
        path: path.to_path_buf(),
        doing: "cannot be written",
        source,
    })
}

/// The sentence for a plugin whose bytes are not the pinned ones. `of` says which file: "library" or "sidecar".
pub fn mismatch(lock: &Path, of: &str, pinned: &str, found: &str) -> Finding {
    let short = |digest: &str| digest.chars().take(12).collect::<String>();
    Finding::error(Code::PinMismatch, format!("the {of} is not the one pinned in {}", show_path(lock)))
        .wanted(short(pinned))
        .found(short(found))
        .fix("reinstall the plugin, or pin the new one with `tensorfold plugins lock --update`")
}

/// The sentence for a plugin without a pin where the policy asks for one.
pub fn not_pinned(policy: &Path) -> Finding {
    Finding::error(
        Code::PinMismatch,
        format!("not pinned, and {} says require_lock = true", show_path(policy)),
    )
    .fix("pin it with `tensorfold plugins lock --update`")
}

/// SHA-256 of a file, 64 lower-case hexadecimal digits. Reads in pieces; large libraries take a while (about 300 MB
/// a second).
///
/// # Errors
/// What the system said.
pub fn digest_file(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0_u8; 1 << 18];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Ok(hexadecimal(&hasher.finalize()));
        }
        hasher.update(&piece[..length]);
    }
}

/// SHA-256 of bytes, as [`digest_file`].
pub fn digest_bytes(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Whether this is a SHA-256 as this module writes it.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::safety::Process;
    use super::*;
    use std::fs;

    fn pin(id: &str, digest: &str) -> Pin {
        Pin {
            id: id.into(),
            variant: None,
            version: "1.0.0".into(),
            library_sha256: digest_bytes(digest.as_bytes()),
            sidecar_sha256: None,
        }
    }

    fn read_tree(folder: &Path, elevated: bool) -> Result<Lock, LockError> {
        let environment =
            Environment { config_home: Some(folder.join("conf")), elevated, ..Environment::default() };
        read(&environment, folder, &Checker::new(Process::current(false)))
    }

    #[test]
    fn what_is_written_is_read_back_sorted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conf/tensorfold/plugins.lock");
        write(&path, [pin("b", "1"), pin("a", "2")]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.find("\"a\"") < text.find("\"b\""), "{text}");
        let lock = read_tree(folder.path(), false).unwrap();
        assert_eq!(lock.pins.len(), 2);
        assert_eq!(lock.pins[&("a".to_owned(), None)], pin("a", "2"));
        assert_eq!(lock.path, Some(path));
    }

    #[test]
    fn the_systems_pin_wins_and_borrowed_rights_ignore_the_users() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("conf/tensorfold/plugins.lock"), [pin("a", "user"), pin("b", "user")])
            .unwrap();
        write(&folder.path().join("etc/tensorfold/plugins.lock"), [pin("a", "system")]).unwrap();
        let lock = read_tree(folder.path(), false).unwrap();
        assert_eq!(lock.pins[&("a".to_owned(), None)], pin("a", "system"));
        assert_eq!(lock.pins[&("b".to_owned(), None)], pin("b", "user"));
        assert_eq!(read_tree(folder.path(), true).unwrap().pins.len(), 1);
    }

    #[test]
    fn an_unreadable_lock_is_an_error_and_never_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etc/tensorfold/plugins.lock");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for text in [
            "lock = 2\n",
            "lock = 1\nx = 1\n",
            "nonsense",
            "lock = 1\n[[plugin]]\nid = \"a\"\nversion = \"1\"\nlibrary_sha256 = \"12\"\n",
        ] {
            fs::write(&path, text).unwrap();
            let error = read_tree(folder.path(), false).unwrap_err();
            assert!(matches!(error, LockError::Content { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn a_mismatch_shows_the_first_twelve_digits_of_both() {
        let (left, right) = (digest_bytes(b"a"), digest_bytes(b"b"));
        let text = mismatch(Path::new("/etc/tensorfold/plugins.lock"), "library", &left, &right).to_string();
        assert!(
            text.contains(&left[..12]) && text.contains(&right[..12]) && !text.contains(&left[..13]),
            "{text}"
        );
        assert!(text.contains("/etc/tensorfold/plugins.lock"), "{text}");
    }

    #[test]
    fn a_file_and_its_bytes_have_one_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let bytes: Vec<u8> = (0..600_000_u32).map(|index| (index % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(digest_file(&path).unwrap(), digest_bytes(&bytes));
        assert!(is_digest(&digest_bytes(b"")));
        assert!(digest_bytes(b"").starts_with("e3b0c44298fc1c14"));
        assert!(!is_digest("E3"));
    }
}
