//! From a MODEL argument to a folder.
//!
//! An existing folder first, else `owner/name` in the Hub's cache, which is
//! only read: nothing here downloads or writes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::folder::Folder;
use super::foreign;

/// What a MODEL argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The folder.
    pub directory: PathBuf,
    /// The model's name: the last part of the repository or of the folder.
    pub name: String,
    /// `owner/name`, where the argument named a repository.
    pub repository: Option<String>,
    /// The commit, where the argument named a repository.
    pub revision: Option<String>,
}

/// Why a MODEL argument names nothing that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Not a folder and not spelt as a repository.
    #[error("{model} is neither a directory nor a Hugging Face repo id (owner/name)")]
    Neither {
        /// The argument.
        model: String,
    },
    /// A file where a folder is wanted.
    #[error("{advice}")]
    File {
        /// What it is and what to do.
        advice: String,
    },
    /// Spelt as a repository, which the cache does not hold.
    #[error(
        "{model} is not in the Hugging Face cache; tensorfold does not download: run hf download {model} first"
    )]
    NotCached {
        /// The argument.
        model: String,
    },
    /// The cache has the repository, but not what `main` is.
    #[error("{model}'s cached ref does not name a revision; run hf download {model}")]
    NoRevision {
        /// The argument.
        model: String,
    },
    /// The cache knows what `main` is, but not its files.
    #[error("{model}'s cached snapshot is missing; run hf download {model}")]
    NoSnapshot {
        /// The argument.
        model: String,
    },
}

/// Where the Hub's tools keep what they downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubCache {
    root: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl HubCache {
    /// The cache of this process's environment: `HF_HUB_CACHE`, else
    /// `HF_HOME/hub`, else `huggingface/hub` in the user's cache folder.
    pub fn from_environment() -> HubCache {
        HubCache::from_variables(|name| env::var_os(name))
    }

    /// As [`HubCache::from_environment`], with the variables given.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> HubCache {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = path("HOME");
        let expanded = |name: &str| path(name).map(|path| expand(&path, home.as_deref()));
        let root = expanded("HF_HUB_CACHE")
            .or_else(|| expanded("HF_HOME").map(|folder| folder.join("hub")))
            .or_else(|| expanded("XDG_CACHE_HOME").map(|folder| folder.join("huggingface/hub")))
            .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface/hub")));
        HubCache { root, home }
    }

    fn repository(&self, model: &str) -> Option<PathBuf> {
        let folder = format!("models--{}", model.replace('/', "--"));
        self.root.as_ref().map(|root| root.join(folder)).filter(|path| path.is_dir())
    }
}

/// The folder of a model that is to be served.
///
/// # Errors
/// See [`ResolveError`]; each message says what to do.
pub fn resolve(model: &str, cache: &HubCache) -> Result<Resolved, ResolveError> {
    if let Some(resolved) = existing_folder(model, cache) {
        return Ok(resolved);
    }
    refuse_file(model, cache)?;
    let repository = cached_repository(model, cache)?;
    let revision =
        pinned_revision(&repository).ok_or_else(|| ResolveError::NoRevision { model: model.into() })?;
    let directory = repository.join("snapshots").join(&revision);
    if !directory.is_dir() {
        return Err(ResolveError::NoSnapshot { model: model.into() });
    }
    Ok(from_cache(model, directory, revision))
}

/// As [`resolve`], for commands that only look: where the cache does not say
/// what `main` is, the newest snapshot that holds a `config.json` will do.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_for_reading(model: &str, cache: &HubCache) -> Result<Resolved, ResolveError> {
    resolve(model, cache).or_else(|error| {
        let repository = match error {
            ResolveError::NoRevision { .. } | ResolveError::NoSnapshot { .. } => {
                cached_repository(model, cache)?
            }
            error => return Err(error),
        };
        let snapshots = fs::read_dir(repository.join("snapshots")).into_iter().flatten().flatten();
        let newest = snapshots
            .filter(|entry| entry.path().join("config.json").is_file())
            .filter_map(|entry| Some((modified(&entry.path())?, entry.file_name().into_string().ok()?)))
            .max();
        let (_, revision) = newest.ok_or(error)?;
        Ok(from_cache(model, repository.join("snapshots").join(&revision), revision))
    })
}

fn existing_folder(model: &str, cache: &HubCache) -> Option<Resolved> {
    let path = expand(Path::new(model), cache.home.as_deref());
    if model.is_empty() || !path.is_dir() {
        return None;
    }
    let name = Folder::open(&path).map(|folder| folder.name()).unwrap_or_else(|_| model.to_owned());
    Some(Resolved { directory: path, name, repository: None, revision: None })
}

/// Says what to do with a file that was named for a model.
fn refuse_file(model: &str, cache: &HubCache) -> Result<(), ResolveError> {
    let path = expand(Path::new(model), cache.home.as_deref());
    if !path.is_file() {
        return Ok(());
    }
    let advice = match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        true => foreign::gguf(model),
        false => format!("{model} is a file; name the folder of the model, with its config.json"),
    };
    Err(ResolveError::File { advice })
}

fn cached_repository(model: &str, cache: &HubCache) -> Result<PathBuf, ResolveError> {
    if !is_repository_id(model) {
        return Err(ResolveError::Neither { model: model.into() });
    }
    cache.repository(model).ok_or_else(|| ResolveError::NotCached { model: model.into() })
}

fn from_cache(model: &str, directory: PathBuf, revision: String) -> Resolved {
    let name = model.rsplit('/').next().unwrap_or(model).to_owned();
    Resolved { directory, name, repository: Some(model.into()), revision: Some(revision) }
}

/// One slash, each part 1 to 96 letters, digits, `-`, `_` or `.`.
fn is_repository_id(model: &str) -> bool {
    let part = |part: &str| {
        (1..=96).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            && part.bytes().any(|b| b != b'.')
    };
    model.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

/// The commit in `refs/main`: 40 hexadecimal digits.
fn pinned_revision(repository: &Path) -> Option<String> {
    let path = repository.join("refs/main");
    // An honest ref has 40 or 41 bytes; do not read what is no ref.
    if fs::metadata(&path).ok()?.len() > 1024 {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let revision = text.trim();
    (revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())).then(|| revision.to_owned())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Replaces a leading `~` by the home folder.
fn expand(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache() -> (tempfile::TempDir, HubCache) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().as_os_str().to_owned();
        let cache =
            HubCache::from_variables(|name| (name == "HF_HUB_CACHE" || name == "HOME").then(|| path.clone()));
        (root, cache)
    }

    #[test]
    fn the_cache_is_where_the_hubs_tools_keep_it() {
        let root = |variables: &[(&str, &str)]| {
            let find =
                |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            HubCache::from_variables(find).root.map(|root| root.to_str().unwrap().to_owned())
        };
        assert_eq!(root(&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("HOME", "/h")]).unwrap(), "/a");
        assert_eq!(root(&[("HF_HUB_CACHE", ""), ("HF_HOME", "~/b"), ("HOME", "/h")]).unwrap(), "/h/b/hub");
        assert_eq!(root(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]).unwrap(), "/x/huggingface/hub");
        assert_eq!(root(&[("HOME", "/h")]).unwrap(), "/h/.cache/huggingface/hub");
        assert_eq!(root(&[]), None);
    }

    #[test]
    fn a_folder_comes_before_the_cache() {
        let (root, cache) = cache();
        fs::create_dir(root.path().join("my-model")).unwrap();
        let by_path = resolve(root.path().join("my-model").to_str().unwrap(), &cache).unwrap();
        assert_eq!((by_path.name.as_str(), by_path.repository), ("my-model", None));
        let by_home = resolve("~/my-model", &cache).unwrap();
        assert_eq!(by_home.directory, root.path().join("my-model"));
    }

    #[test]
    fn a_file_in_place_of_a_folder_says_what_to_do() {
        let (root, cache) = cache();
        for name in ["m.gguf", "M.GGUF", "model.safetensors"] {
            fs::write(root.path().join(name), "x").unwrap();
        }
        let message =
            |name: &str| resolve(root.path().join(name).to_str().unwrap(), &cache).unwrap_err().to_string();
        for name in ["m.gguf", "M.GGUF"] {
            assert!(message(name).ends_with(&format!("{name} OUTPUT")), "{}", message(name));
            assert!(message(name).contains("is a GGUF file, which is not served as it is"));
        }
        assert!(message("model.safetensors").contains("is a file; name the folder of the model"));
        assert!(message("absent.gguf").contains("is neither a directory nor"));
        assert!(resolve("~/m.gguf", &cache).unwrap_err().to_string().contains("tensorfold convert ~/m.gguf"));
    }

    #[test]
    fn every_state_of_the_cache_has_its_sentence() {
        let (root, cache) = cache();
        let message = |model: &str| resolve(model, &cache).unwrap_err().to_string();
        for model in ["", "one", "a/b/c", "/absent/path", "../x", "a/..", "o/n@main", "o/n m", "~/absent"] {
            assert_eq!(
                message(model),
                format!("{model} is neither a directory nor a Hugging Face repo id (owner/name)")
            );
        }
        assert_eq!(
            message("acme/m"),
            "acme/m is not in the Hugging Face cache; tensorfold does not download: run hf download acme/m first"
        );
        let repository = root.path().join("models--acme--m");
        fs::create_dir_all(repository.join("refs")).unwrap();
        let no_revision = "acme/m's cached ref does not name a revision; run hf download acme/m";
        assert_eq!(message("acme/m"), no_revision);
        fs::write(repository.join("refs/main"), "../../../etc").unwrap();
        assert_eq!(message("acme/m"), no_revision);
        fs::write(repository.join("refs/main"), COMMIT).unwrap();
        assert_eq!(message("acme/m"), "acme/m's cached snapshot is missing; run hf download acme/m");
        fs::create_dir_all(repository.join("snapshots").join(COMMIT)).unwrap();
        let resolved = resolve("acme/m", &cache).unwrap();
        assert_eq!(resolved.directory, repository.join("snapshots").join(COMMIT));
        assert_eq!((resolved.name.as_str(), resolved.revision.as_deref()), ("m", Some(COMMIT)));
    }

    #[test]
    fn looking_takes_the_newest_snapshot_that_has_a_config() {
        let (root, cache) = cache();
        let snapshots = root.path().join("models--acme--m/snapshots");
        for (commit, config) in [("old", true), ("new", true), ("empty", false)] {
            fs::create_dir_all(snapshots.join(commit)).unwrap();
            if config {
                fs::write(snapshots.join(commit).join("config.json"), "{}").unwrap();
            }
        }
        let early = SystemTime::UNIX_EPOCH;
        fs::File::open(snapshots.join("old")).unwrap().set_modified(early).unwrap();
        assert_eq!(resolve_for_reading("acme/m", &cache).unwrap().revision.as_deref(), Some("new"));
        assert!(matches!(resolve("acme/m", &cache), Err(ResolveError::NoRevision { .. })));
        let nothing = resolve_for_reading("acme/n", &cache);
        assert!(matches!(nothing, Err(ResolveError::NotCached { .. })));
    }
}
