//! From a MODEL argument to a folder.
//!
//! An existing folder first, else `owner/name[@revision]` in the Hub's cache,
//! which is only read: nothing here downloads or writes.

use std::path::{Path, PathBuf};

use tensorfold_hub::{Malformed, Reference, RepositoryFolder, Revision};

use super::folder::Folder;
use super::{foreign, shards};

/// Where the Hub's tools keep what they downloaded.
pub use tensorfold_hub::Cache as HubCache;

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

/// How a repository gets into the cache.
const FETCH: &str = if cfg!(feature = "hub") { "tensorfold pull" } else { "hf download" };

/// Why a MODEL argument names nothing that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Not a folder and not spelt as a repository.
    #[error("{model} is neither a directory nor a Hugging Face repo id (owner/name)")]
    Neither {
        /// The argument.
        model: String,
    },
    /// A repository at something that is spelt like no revision.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A file where a folder is wanted.
    #[error("{advice}")]
    File {
        /// What it is and what to do.
        advice: String,
    },
    /// Spelt as a repository, which the cache does not hold.
    #[error("{model} is not in the Hugging Face cache: run {FETCH} {model} first")]
    NotCached {
        /// The argument.
        model: String,
    },
    /// The cache has the repository, but not what the revision is.
    #[error("{model}'s cached ref does not name a revision; run {FETCH} {model}")]
    NoRevision {
        /// The argument.
        model: String,
    },
    /// The cache knows what the revision is, but not its files.
    #[error("{model}'s cached snapshot is missing; run {FETCH} {model}")]
    NoSnapshot {
        /// The argument.
        model: String,
    },
    /// The cache has some of the files.
    #[error("{model}'s cached snapshot is not complete, it lacks {missing}; run {FETCH} {model}")]
    Incomplete {
        /// The argument.
        model: String,
        /// The first file that is not there, and how many more.
        missing: String,
    },
}

impl ResolveError {
    /// Whether the Hub may have what this machine has not.
    pub fn may_be_at_the_hub(&self) -> bool {
        matches!(
            self,
            ResolveError::NotCached { .. }
                | ResolveError::NoRevision { .. }
                | ResolveError::NoSnapshot { .. }
                | ResolveError::Incomplete { .. }
        )
    }
}

/// The folder of a model that is to be served.
///
/// # Errors
/// See [`ResolveError`]; each message says what to do.
pub fn resolve(model: &str, cache: &HubCache) -> Result<Resolved, ResolveError> {
    match find(model, cache)? {
        Found::Folder(resolved) => Ok(resolved),
        Found::Repository(reference) => resolve_repository(&reference, cache),
    }
}

/// The complete snapshot of a repository in the cache.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_repository(reference: &Reference, cache: &HubCache) -> Result<Resolved, ResolveError> {
    let found = snapshot(reference, cache)?;
    let missing = match Folder::open(&found.directory) {
        Ok(folder) => shards::missing(&folder),
        Err(_) => vec!["config.json".into()],
    };
    match missing.as_slice() {
        [] => Ok(found),
        [first, more @ ..] => {
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            Err(ResolveError::Incomplete { model: reference.to_string(), missing: format!("{first}{more}") })
        }
    }
}

/// As [`resolve`], for commands that only look: a snapshot that is not complete
/// will do, and where the cache does not say what `main` is, the newest one
/// that holds a `config.json`.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_for_reading(model: &str, cache: &HubCache) -> Result<Resolved, ResolveError> {
    let reference = match find(model, cache)? {
        Found::Folder(resolved) => return Ok(resolved),
        Found::Repository(reference) => reference,
    };
    let error = match snapshot(&reference, cache) {
        Ok(found) if found.directory.join("config.json").is_file() => return Ok(found),
        Ok(_) => ResolveError::NoSnapshot { model: model.into() },
        Err(error) => error,
    };
    // Of a revision that was named no other will do.
    let newest = cached_repository(&reference, cache)
        .ok()
        .filter(|_| reference.revision == Revision::main())
        .and_then(|repository| repository.newest_snapshot());
    let (directory, commit) = newest.ok_or(error)?;
    Ok(from_cache(&reference, directory, commit))
}

enum Found {
    Folder(Resolved),
    Repository(Reference),
}

/// What an argument names, whether or not it is there.
fn find(model: &str, cache: &HubCache) -> Result<Found, ResolveError> {
    if let Some(resolved) = existing_folder(model, cache) {
        return Ok(Found::Folder(resolved));
    }
    refuse_file(model, cache)?;
    match model.parse() {
        Ok(reference) => Ok(Found::Repository(reference)),
        Err(error @ Malformed::Revision { .. }) => Err(error.into()),
        Err(Malformed::Repository { .. }) => Err(ResolveError::Neither { model: model.into() }),
    }
}

/// The folder of a revision's files, as far as they are there.
fn snapshot(reference: &Reference, cache: &HubCache) -> Result<Resolved, ResolveError> {
    let model = || reference.to_string();
    let repository = cached_repository(reference, cache)?;
    let commit =
        repository.commit(&reference.revision).ok_or_else(|| ResolveError::NoRevision { model: model() })?;
    let directory = repository.snapshot(&commit);
    if !directory.is_dir() {
        return Err(ResolveError::NoSnapshot { model: model() });
    }
    Ok(from_cache(reference, directory, commit.to_string()))
}

fn existing_folder(model: &str, cache: &HubCache) -> Option<Resolved> {
    let path = cache.expand(Path::new(model));
    if model.is_empty() || !path.is_dir() {
        return None;
    }
    let name = Folder::open(&path).map(|folder| folder.name()).unwrap_or_else(|_| model.to_owned());
    Some(Resolved { directory: path, name, repository: None, revision: None })
}

/// Says what to do with a file that was named for a model.
fn refuse_file(model: &str, cache: &HubCache) -> Result<(), ResolveError> {
    let path = cache.expand(Path::new(model));
    if !path.is_file() {
        return Ok(());
    }
    let advice = match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        true => foreign::gguf(model),
        false => format!("{model} is a file; name the folder of the model, with its config.json"),
    };
    Err(ResolveError::File { advice })
}

fn cached_repository(reference: &Reference, cache: &HubCache) -> Result<RepositoryFolder, ResolveError> {
    let folder = cache.repository(&reference.repository).filter(RepositoryFolder::exists);
    folder.ok_or_else(|| ResolveError::NotCached { model: reference.to_string() })
}

fn from_cache(reference: &Reference, directory: PathBuf, commit: String) -> Resolved {
    Resolved {
        directory,
        name: reference.repository.name().to_owned(),
        repository: Some(reference.repository.to_string()),
        revision: Some(commit),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

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
        for model in ["", "one", "a/b/c", "/absent/path", "../x", "a/..", "o@v/n", "o/n m", "~/absent"] {
            assert_eq!(
                message(model),
                format!("{model} is neither a directory nor a Hugging Face repo id (owner/name)")
            );
        }
        assert!(message("acme/m@../x").starts_with("'../x' is not a revision"));
        for (model, file) in [("acme/m", "refs/main"), ("acme/n@refs/pr/1", "refs/refs/pr/1")] {
            let name = model.split('@').next().unwrap();
            let wanted = format!("{model} is not in the Hugging Face cache: run {FETCH} {model} first");
            assert_eq!(message(model), wanted);
            let repository = root.path().join(format!("models--{}", name.replace('/', "--")));
            let file = repository.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let no_revision = format!("{model}'s cached ref does not name a revision; run {FETCH} {model}");
            assert_eq!(message(model), no_revision);
            fs::write(&file, "../../../etc").unwrap();
            assert_eq!(message(model), no_revision);
            fs::write(&file, COMMIT).unwrap();
            assert_eq!(message(model), format!("{model}'s cached snapshot is missing; run {FETCH} {model}"));
            let snapshot = repository.join("snapshots").join(COMMIT);
            fs::create_dir_all(&snapshot).unwrap();
            let lacks = |what: &str| {
                format!("{model}'s cached snapshot is not complete, it lacks {what}; run {FETCH} {model}")
            };
            assert_eq!(message(model), lacks("config.json and 1 more"));
            fs::write(snapshot.join("config.json"), "{}").unwrap();
            assert_eq!(message(model), lacks("model.safetensors"));
            // What a process that was killed has left is no file.
            std::os::unix::fs::symlink("../../blobs/absent", snapshot.join("model.safetensors")).unwrap();
            assert_eq!(message(model), lacks("model.safetensors"));
            fs::remove_file(snapshot.join("model.safetensors")).unwrap();
            fs::write(snapshot.join("model.safetensors"), "").unwrap();
            let resolved = resolve(model, &cache).unwrap();
            assert_eq!(resolved.directory, snapshot);
            assert_eq!((resolved.name.as_str(), resolved.repository.as_deref()), (&name[5..], Some(name)));
            assert_eq!(resolved.revision.as_deref(), Some(COMMIT));
            let by_commit = resolve(&format!("{name}@{COMMIT}"), &cache).unwrap();
            assert_eq!(by_commit, resolved);
        }
    }

    #[test]
    fn shards_that_did_not_arrive_are_counted() {
        let (root, cache) = cache();
        let snapshot = root.path().join("models--acme--m/snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        let model = format!("acme/m@{COMMIT}");
        let missing = || match resolve(&model, &cache) {
            Err(ResolveError::Incomplete { missing, .. }) => missing,
            other => panic!("{other:?}"),
        };
        for file in ["config.json", "model-00002-of-00004.safetensors"] {
            fs::write(snapshot.join(file), "{}").unwrap();
        }
        assert_eq!(missing(), "model-00001-of-00004.safetensors and 2 more");
        let index = r#"{"weight_map": {"a": "model-00002-of-00004.safetensors", "b": "other.safetensors"}}"#;
        fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
        assert_eq!(missing(), "other.safetensors");
        assert!(resolve_for_reading(&model, &cache).is_ok(), "enough to look at");
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
