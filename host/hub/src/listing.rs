//! What a repository holds at a revision.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::digest::Digest;
use crate::error::{HubError, brief};
use crate::http::{Client, Subject, host};
use crate::path::RepoPath;
use crate::reference::{Commit, Reference};

/// The files of a repository at one commit.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What was asked for.
    pub reference: Reference,
    /// What the revision is at the moment.
    pub commit: Commit,
    /// All files, by path.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Where it lies in the repository.
    pub path: RepoPath,
    /// Its length.
    pub bytes: u64,
    /// What its content is; `None` where the endpoint does not say.
    pub digest: Option<Digest>,
}

impl Listing {
    /// The file at a path.
    pub fn file(&self, path: &str) -> Option<&RemoteFile> {
        let found = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        self.files.get(found)
    }
}

#[derive(Deserialize)]
struct RevisionAnswer {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    size: Option<u64>,
    oid: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: Option<String>,
    size: Option<u64>,
}

/// Looks up the revision and reads the list of files, all of its pages.
pub(crate) async fn list(client: &Client, reference: &Reference) -> Result<Listing, HubError> {
    let id = &reference.repository;
    let subject = Subject { repository: id, revision: Some(&reference.revision), path: None };
    let api = ["api", "models", id.owner(), id.name()];
    let url = client.url(api.into_iter().chain(["revision", reference.revision.as_str()]));
    let unusable = |problem: String| HubError::Answer { host: host(&url), problem };
    let (answer, _) = client.document::<RevisionAnswer>(&url, subject).await?;
    let Some(commit) = Commit::parse(&answer.sha) else {
        return Err(unusable(format!("{} is no commit", brief(&answer.sha))));
    };
    // A commit that was asked for by name cannot be another one.
    if reference.revision.commit().is_some_and(|asked| asked != commit) {
        return Err(unusable(format!("{commit} in place of the commit {}", reference.revision)));
    }
    let mut page = client.url(api.into_iter().chain(["tree", commit.as_str()]));
    page.set_query(Some("recursive=true"));
    let mut files: Vec<RemoteFile> = Vec::new();
    let mut seen = BTreeSet::new();
    loop {
        if !seen.insert(page.to_string()) {
            return Err(unusable("its list of files goes in a circle".into()));
        }
        let (entries, next) = client.document::<Vec<Entry>>(&page, subject).await?;
        // Counted by pages too: empty ones could follow each other for ever.
        if files.len() + entries.len() > client.limits.files || seen.len() > client.limits.files {
            return Err(unusable(format!("it lists more than {} files", client.limits.files)));
        }
        for entry in entries {
            files.extend(checked(entry, reference)?);
        }
        match next {
            Some(next) => page = next,
            None => break,
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if let Some(twice) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(unusable(format!("it lists {} twice", twice[0].path)));
    }
    Ok(Listing { reference: reference.clone(), commit, files })
}

/// An entry as a file. Paths of everything are checked, also of what is not wanted.
fn checked(entry: Entry, reference: &Reference) -> Result<Option<RemoteFile>, HubError> {
    let contents = |problem: String| HubError::Contents { repository: reference.to_string(), problem };
    let Some(path) = RepoPath::parse(&entry.path) else {
        return Err(contents(format!(
            "lists a file at {:?}, which would leave the folder of its files: nothing of it is downloaded",
            brief(&entry.path)
        )));
    };
    if entry.r#type != "file" {
        return Ok(None);
    }
    let (lfs_oid, lfs_size) = entry.lfs.map_or((None, None), |lfs| (lfs.oid, lfs.size));
    let Some(bytes) = lfs_size.or(entry.size) else {
        return Err(contents(format!("does not say how long {path} is: nothing of it is downloaded")));
    };
    let digest = match &lfs_oid {
        Some(oid) => Digest::parse(oid.trim_start_matches("sha256:")),
        None => entry.oid.as_deref().and_then(Digest::parse),
    };
    Ok(Some(RemoteFile { path, bytes, digest }))
}
