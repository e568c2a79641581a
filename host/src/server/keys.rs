//! API keys: where they come from and how a request's key is checked.
//!
//! Keys are kept as SHA-256 digests and never logged; logs name labels. Every
//! digest is compared on every check, without an early end, so that the time
//! taken tells nothing. A key file that turns unreadable or empty while the
//! server runs closes the gated routes: nobody gets in by breaking a file.

use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

/// A key file is looked at again at most this often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// More than any sensible file of keys.
const FILE_LIMIT_BYTES: u64 = 1 << 20;
const LABEL_LIMIT: usize = 64;

/// The keys that open the gated routes.
pub(super) struct Keys {
    fixed: Vec<Key>,
    file: Option<Mutex<KeyFile>>,
}

/// Why keys could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// An empty key was given.
    #[error("{origin}: a key must not be empty")]
    Empty {
        /// Option or variable.
        origin: &'static str,
    },
    /// The file cannot be read.
    #[error("--api-key-file {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Others may read the file.
    #[error("--api-key-file {}: mode {mode:04o} lets others read the keys; run chmod 600 {}", .path.display(), .path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is not one of keys.
    #[error("--api-key-file {}{}: {problem}", .path.display(), .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Content {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Clone)]
struct Key {
    label: String,
    digest: [u8; 32],
}

struct KeyFile {
    path: PathBuf,
    stamp: Option<Stamp>,
    checked: Instant,
    /// Empty after a bad replacement.
    keys: Vec<Key>,
    broken: bool,
}

/// By what a changed file is noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified_seconds: i64,
    modified_nanoseconds: i64,
    inode: u64,
    bytes: u64,
    mode: u32,
}

impl Keys {
    /// Collects the keys of the command line, of the environment (separated by
    /// commas) and of a file.
    pub(super) fn collect(
        command_line: &[String],
        environment: Option<&str>,
        file: Option<&Path>,
    ) -> Result<Keys, KeyError> {
        let mut fixed = Vec::new();
        for (index, key) in command_line.iter().enumerate() {
            if key.trim().is_empty() {
                return Err(KeyError::Empty { origin: "--api-key" });
            }
            fixed.push(Key::new(format!("cli-{}", index + 1), key.trim()));
        }
        let environment = environment.into_iter().flat_map(|keys| keys.split(',')).map(str::trim);
        for (index, key) in environment.filter(|key| !key.is_empty()).enumerate() {
            fixed.push(Key::new(format!("env-{}", index + 1), key));
        }
        let file = match file {
            None => None,
            Some(path) => {
                let (keys, stamp) = read_file(path)?;
                let stamp = Some(stamp);
                let checked = Instant::now();
                Some(Mutex::new(KeyFile { path: path.to_owned(), stamp, checked, keys, broken: false }))
            }
        };
        Ok(Keys { fixed, file })
    }

    /// Whether a key is needed at all.
    pub(super) fn are_required(&self) -> bool {
        !self.fixed.is_empty() || self.file.is_some()
    }

    /// The label of the key that came with a request; `None` when it is missing or wrong.
    pub(super) fn check(&self, headers: &HeaderMap) -> Option<String> {
        let presented: [u8; 32] = Sha256::digest(presented_key(headers)?).into();
        let mut found = None;
        let mut compare = |keys: &[Key]| {
            for key in keys {
                if equal(&key.digest, &presented) {
                    found = Some(key.label.clone());
                }
            }
        };
        if let Some(file) = &self.file {
            let mut file = lock(file);
            file.refresh(Instant::now(), false);
            if file.broken {
                return None;
            }
            compare(&file.keys);
        }
        compare(&self.fixed);
        found
    }

    /// Reads the key file again, now.
    pub(super) fn reload(&self) {
        if let Some(file) = &self.file {
            lock(file).refresh(Instant::now(), true);
        }
    }
}

impl Key {
    fn new(label: String, key: &str) -> Key {
        Key { label, digest: Sha256::digest(key).into() }
    }
}

impl KeyFile {
    fn refresh(&mut self, now: Instant, force: bool) {
        if !force && now.duration_since(self.checked) < CHECK_INTERVAL {
            return;
        }
        self.checked = now;
        let stamp = fs::metadata(&self.path).ok().map(|metadata| Stamp::of(&metadata));
        if !force && stamp.is_some() && stamp == self.stamp {
            return;
        }
        let was_broken = self.broken;
        match read_file(&self.path) {
            Ok((keys, stamp)) => {
                tracing::info!(keys = keys.len(), "read {} again", self.path.display());
                (self.keys, self.stamp, self.broken) = (keys, Some(stamp), false);
            }
            Err(error) => {
                if !was_broken || force {
                    tracing::error!("{error}; every gated route is closed until the file is mended");
                }
                (self.keys, self.stamp, self.broken) = (Vec::new(), None, true);
            }
        }
    }
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Stamp {
        Stamp {
            modified_seconds: metadata.mtime(),
            modified_nanoseconds: metadata.mtime_nsec(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            mode: metadata.mode(),
        }
    }
}

fn lock(file: &Mutex<KeyFile>) -> MutexGuard<'_, KeyFile> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key in `Authorization: Bearer KEY` or `x-api-key: KEY`.
fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        if scheme.eq_ignore_ascii_case(b"bearer ") {
            return Some(key.trim_ascii());
        }
    }
    headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii())
}

/// Compares all bytes whatever they are.
fn equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |sum, (left, right)| black_box(sum | (left ^ right)));
    black_box(difference) == 0
}

fn read_file(path: &Path) -> Result<(Vec<Key>, Stamp), KeyError> {
    let unreadable = |error| KeyError::Unreadable { path: path.to_owned(), error };
    // Opening a pipe would wait for a writer.
    let mut file =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let content =
        |line, problem: &str| KeyError::Content { path: path.to_owned(), line, problem: problem.to_owned() };
    if !metadata.is_file() {
        return Err(content(None, "is not a file"));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Mode { path: path.to_owned(), mode });
    }
    if metadata.len() > FILE_LIMIT_BYTES {
        return Err(content(None, "is larger than 1 MiB, so it is no file of keys"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (label, key) = match line.split_once(':') {
            Some((label, key)) if key.is_empty() || key.starts_with([' ', '\t']) => {
                let label = label.trim();
                if !is_label(label) {
                    let problem =
                        "a label has 1 to 64 letters, digits, dots, dashes or underscores, as in `name: key`";
                    return Err(content(Some(index + 1), problem));
                }
                (label.to_owned(), key.trim())
            }
            _ => (format!("file-{}", keys.len() + 1), line),
        };
        if key.is_empty() {
            return Err(content(Some(index + 1), "no key follows the label"));
        }
        keys.push(Key::new(label, key));
    }
    if keys.is_empty() {
        return Err(content(None, "holds no key; put one on each line"));
    }
    Ok((keys, Stamp::of(&metadata)))
}

fn is_label(text: &str) -> bool {
    (1..=LABEL_LIMIT).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        headers
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn keys_of_all_three_sources_add_up_and_have_labels() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        write(&path, "# ours\n\nalice: secret-a\nsecret-b\n", 0o600);
        let keys =
            Keys::collect(&["secret-c".to_owned()], Some(" secret-d ,,secret-e"), Some(&path)).unwrap();
        let labels: Vec<Option<String>> =
            ["secret-a", "secret-b", "secret-c", "secret-d", "secret-e", "secret"]
                .iter()
                .map(|key| keys.check(&bearer(key)))
                .collect();
        let names = ["alice", "file-2", "cli-1", "env-1", "env-2"];
        let wanted: Vec<Option<String>> =
            names.iter().map(|name| Some(name.to_string())).chain([None]).collect();
        assert_eq!(labels, wanted);
    }

    #[test]
    fn both_headers_carry_a_key_and_nothing_else_does() {
        let keys = Keys::collect(&["k".to_owned()], None, None).unwrap();
        assert!(keys.are_required());
        let mut headers = HeaderMap::new();
        assert_eq!(keys.check(&headers), None);
        headers.insert("x-api-key", "k".parse().unwrap());
        assert_eq!(keys.check(&headers).as_deref(), Some("cli-1"));
        for wrong in ["Basic k", "k", "Bearer", "Bearer kk", ""] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, wrong.parse().unwrap());
            assert_eq!(keys.check(&headers), None, "{wrong}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "bearer  k ".parse().unwrap());
        assert_eq!(keys.check(&headers).as_deref(), Some("cli-1"));
    }

    #[test]
    fn without_keys_none_is_needed() {
        assert!(!Keys::collect(&[], Some(""), None).unwrap().are_required());
        assert!(matches!(Keys::collect(&[" ".to_owned()], None, None), Err(KeyError::Empty { .. })));
    }

    #[test]
    fn a_file_that_others_can_read_or_that_holds_no_key_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let refusal = |text: &str, mode| {
            write(&path, text, mode);
            Keys::collect(&[], None, Some(&path)).err().expect("a refusal").to_string()
        };
        assert!(refusal("k\n", 0o644).contains("mode 0644 lets others read the keys; run chmod 600"));
        assert!(refusal("# nothing\n", 0o600).ends_with("holds no key; put one on each line"));
        assert!(refusal("a b: k\n", 0o600).contains(", line 1: a label has"));
        assert!(refusal("k\nalice: \n", 0o600).contains(", line 2: no key follows"));
        let missing = Keys::collect(&[], None, Some(&folder.path().join("none"))).err().unwrap();
        assert!(missing.to_string().starts_with("--api-key-file "));
    }

    #[test]
    fn a_replaced_file_counts_and_a_broken_one_closes_everything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        write(&path, "old\n", 0o600);
        let keys = Keys::collect(&["fixed".to_owned()], None, Some(&path)).unwrap();
        write(&path, "new-key\n", 0o600);
        keys.reload();
        assert_eq!(keys.check(&bearer("old")), None);
        assert_eq!(keys.check(&bearer("new-key")).as_deref(), Some("file-1"));

        write(&path, "", 0o600);
        keys.reload();
        assert_eq!(keys.check(&bearer("new-key")), None);
        assert_eq!(keys.check(&bearer("fixed")), None);
        assert!(keys.are_required());

        write(&path, "mended\n", 0o600);
        keys.reload();
        assert!(keys.check(&bearer("mended")).is_some() && keys.check(&bearer("fixed")).is_some());
    }

    #[test]
    fn a_change_is_noticed_without_a_signal_at_most_once_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        write(&path, "old\n", 0o600);
        let (keys, stamp) = read_file(&path).unwrap();
        let start = Instant::now();
        let mut file =
            KeyFile { path: path.clone(), stamp: Some(stamp), checked: start, keys, broken: false };
        write(&path, "another\n", 0o600);
        file.refresh(start + Duration::from_millis(900), false);
        assert!(equal(&file.keys[0].digest, &Key::new(String::new(), "old").digest));
        file.refresh(start + Duration::from_millis(1100), false);
        assert!(equal(&file.keys[0].digest, &Key::new(String::new(), "another").digest));
    }

    #[test]
    fn a_pipe_in_place_of_the_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(read_file(&path).err().unwrap().to_string().contains("is not a file"));
    }
}
