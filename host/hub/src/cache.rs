//! The cache on disk: where it lies and what it holds. Nothing here writes.
//!
//! ```text
//! ROOT/models--OWNER--NAME/refs/REVISION            the commit, as text
//! ROOT/models--OWNER--NAME/snapshots/COMMIT/PATH    a relative link into blobs
//! ROOT/models--OWNER--NAME/blobs/DIGEST             the content, and DIGEST.incomplete while it arrives
//! ROOT/.locks/models--OWNER--NAME/DIGEST.lock       held by who downloads DIGEST
//! ```

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::reference::{Commit, RepoId, Revision};

/// Where the Hub's tools keep what they downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    root: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Cache {
    /// The cache of this process's environment: `HF_HUB_CACHE`, else `HF_HOME/hub`, else `huggingface/hub` in the
    /// user's cache folder.
    pub fn from_environment() -> Cache {
        Cache::from_variables(|name| env::var_os(name))
    }

    /// As [`Cache::from_environment`], with the variables given.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Cache {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = path("HOME");
        let root = path("HF_HUB_CACHE")
            .map(|path| expand(&path, home.as_deref()))
            .or_else(|| tools_folder(&path).map(|folder| folder.join("hub")));
        Cache { root, home }
    }

    /// The folder of the cache; `None` where the environment does not even name a home.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Replaces a leading `~` by the home folder.
    pub fn expand(&self, path: &Path) -> PathBuf {
        expand(path, self.home.as_deref())
    }

    /// The folder of a repository, whether or not it is there.
    pub fn repository(&self, id: &RepoId) -> Option<RepositoryFolder> {
        let root = self.root.clone()?;
        Some(RepositoryFolder { path: root.join(id.folder_name()), root, name: id.folder_name() })
    }
}

/// The folder of all of the Hub's tools: `HF_HOME`, else `huggingface` in the user's cache folder.
pub(crate) fn tools_folder(path: &impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let home = path("HOME");
    let expanded = |name: &str| path(name).map(|path| expand(&path, home.as_deref()));
    expanded("HF_HOME")
        .or_else(|| expanded("XDG_CACHE_HOME").map(|folder| folder.join("huggingface")))
        .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface")))
}

/// Replaces a leading `~` by the home folder.
pub(crate) fn expand(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

/// The folder of one repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryFolder {
    root: PathBuf,
    path: PathBuf,
    name: String,
}

impl RepositoryFolder {
    /// Whether anything of the repository is there.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The commit that a revision was when it was last looked up: the revision itself where it is spelt as a commit.
    pub fn commit(&self, revision: &Revision) -> Option<Commit> {
        if let Some(commit) = revision.commit() {
            return Some(commit);
        }
        let path = self.reference(revision);
        // An honest ref has 40 or 41 bytes; do not read what is no ref.
        if fs::metadata(&path).ok()?.len() > 1024 {
            return None;
        }
        Commit::parse(fs::read_to_string(path).ok()?.trim())
    }

    /// The folder of a commit's files, whether or not it is there.
    pub fn snapshot(&self, commit: &Commit) -> PathBuf {
        self.path.join("snapshots").join(commit.as_str())
    }

    /// The newest snapshot that holds a `config.json`.
    pub fn newest_snapshot(&self) -> Option<(PathBuf, String)> {
        let modified = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
        let entries = fs::read_dir(self.path.join("snapshots")).into_iter().flatten().flatten();
        let newest = entries
            .filter(|entry| entry.path().join("config.json").is_file())
            .filter_map(|entry| Some((modified(&entry.path())?, entry.file_name().into_string().ok()?)))
            .max();
        let (_, commit) = newest?;
        Some((self.path.join("snapshots").join(&commit), commit))
    }

    /// The file that says what a revision is.
    pub(crate) fn reference(&self, revision: &Revision) -> PathBuf {
        self.path.join("refs").join(revision.as_str())
    }

    /// The folder of contents.
    #[cfg(feature = "download")]
    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// The folder of this repository's locks.
    #[cfg(feature = "download")]
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join(".locks").join(&self.name)
    }

    /// The folder of the whole cache.
    #[cfg(feature = "download")]
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        Cache::from_variables(find).root
    }

    #[test]
    fn the_variables_have_the_order_of_the_hubs_tools() {
        let all = [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/u")];
        let wanted = ["/c", "/h/hub", "/x/huggingface/hub", "/u/.cache/huggingface/hub"];
        for (first, wanted) in wanted.iter().enumerate() {
            assert_eq!(root_with(&all[first..]), Some(PathBuf::from(wanted)));
        }
        assert_eq!(root_with(&[]), None);
        assert_eq!(root_with(&[("HF_HUB_CACHE", ""), ("HF_HOME", "~/m"), ("HOME", "/u")]), {
            Some(PathBuf::from("/u/m/hub"))
        });
    }

    #[test]
    fn a_ref_that_is_no_commit_is_no_answer() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let cache = Cache::from_variables(|name| (name == "HF_HUB_CACHE").then(|| path.clone().into()));
        let repository = cache.repository(&"o/n".parse().unwrap()).unwrap();
        let refs = root.path().join("models--o--n/refs");
        fs::create_dir_all(refs.join("refs/pr")).unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for (content, wanted) in [
            ("../../../etc", None),
            (&"a".repeat(2000), None),
            (&format!("{commit}\n"), Commit::parse(commit)),
        ] {
            fs::write(refs.join("main"), content).unwrap();
            assert_eq!(repository.commit(&Revision::main()), wanted);
        }
        fs::write(refs.join("refs/pr/1"), commit).unwrap();
        assert_eq!(repository.commit(&"refs/pr/1".parse().unwrap()), Commit::parse(commit));
        assert_eq!(repository.commit(&"other".parse().unwrap()), None);
        assert_eq!(repository.commit(&commit.parse().unwrap()), Commit::parse(commit));
    }
}
