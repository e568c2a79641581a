//! What can go wrong, each as one line that says what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::reference::Malformed;

/// Why something of the Hub could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No network is to be used.
    #[error(
        "HF_HUB_OFFLINE is set, so nothing is looked up or downloaded: unset it, or use what the cache holds"
    )]
    Offline,
    /// A name that is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A variable of the environment that cannot be meant.
    #[error("{name} {problem}")]
    Setting {
        /// The variable, or what it names.
        name: String,
        /// What is wrong, and what is wanted.
        problem: String,
    },
    /// The endpoint knows no such repository, or does not tell strangers of it.
    #[error("{repository} is not at {endpoint}, or it is private: check the spelling; {advice}")]
    NotFound {
        /// `owner/name`.
        repository: String,
        /// The Hub's address.
        endpoint: String,
        /// What else to check.
        advice: &'static str,
    },
    /// A licence has to be accepted first.
    #[error(
        "{repository} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
    )]
    Gated {
        /// `owner/name`.
        repository: String,
        /// Where.
        page: String,
    },
    /// The token is refused.
    #[error(
        "{endpoint} does not accept the token (HTTP {status}): set HF_TOKEN to a valid one that may read {repository}"
    )]
    Unauthorised {
        /// The Hub's address.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// `owner/name`.
        repository: String,
    },
    /// Too many requests, for longer than is waited.
    #[error("{endpoint} limits requests (HTTP 429){when}; a request with HF_TOKEN set is allowed more")]
    RateLimited {
        /// The Hub's address.
        endpoint: String,
        /// When to try again, where the answer says so.
        when: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error(
        "{repository} has no revision {revision}: name a branch, a tag or a commit that it has, see {page}"
    )]
    NoRevision {
        /// `owner/name`.
        repository: String,
        /// The revision.
        revision: String,
        /// Where its revisions are listed.
        page: String,
    },
    /// No connection, or none that lasted.
    #[error("{host} cannot be reached: {cause}")]
    Unreachable {
        /// Where the connection went.
        host: String,
        /// What the system says.
        cause: String,
    },
    /// The server is not who it says it is.
    #[error("{host} cannot be trusted: {cause}; is a proxy in between whose certificate this machine lacks?")]
    Certificate {
        /// Where the connection went.
        host: String,
        /// What is wrong with its certificate.
        cause: String,
    },
    /// An answer that is not what the Hub says.
    #[error("{host} answered with what cannot be used: {problem}")]
    Answer {
        /// Who answered.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// The repository cannot be used as it is.
    #[error("{repository} {problem}")]
    Contents {
        /// `owner/name`.
        repository: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file did not arrive as it was announced.
    #[error("{path}: {problem}")]
    File {
        /// The file in its repository.
        path: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Not enough room.
    #[error(
        "{} has {free} free and {needed} more are needed: make room, or set HF_HUB_CACHE to a folder on a larger disk",
        .folder.display()
    )]
    Space {
        /// The cache.
        folder: PathBuf,
        /// What is free, in words.
        free: String,
        /// What is needed, in words.
        needed: String,
    },
    /// The environment names no folder for the cache.
    #[error("no folder for downloads: set HF_HUB_CACHE or HOME")]
    NoCache,
    /// The disk.
    #[error("{}: {}", .path.display(), disk_problem(.source))]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Whoever looked at the configuration does not want the rest.
    #[error("{0}")]
    Refused(String),
}

impl HubError {
    /// Whether the repository may be as sound as any: what failed is the way to it.
    pub fn is_of_the_way(&self) -> bool {
        matches!(
            self,
            HubError::Offline
                | HubError::RateLimited { .. }
                | HubError::Unreachable { .. }
                | HubError::Certificate { .. }
                | HubError::Answer { .. }
        )
    }

    /// For `map_err` of calls that concern a file.
    pub(crate) fn disk(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |source| HubError::Disk { path: path.into(), source }
    }
}

fn disk_problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full: make room and run the command again, it goes on where it stopped".into()
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}: set HF_HUB_CACHE to a folder that you may write to")
        }
        _ => error.to_string(),
    }
}

/// A size as people say it.
pub(crate) fn size(bytes: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    const MIB: f64 = (1u64 << 20) as f64;
    let value = bytes as f64;
    if value >= GIB { format!("{:.2} GiB", value / GIB) } else { format!("{:.2} MiB", value / MIB) }
}

/// A stranger's text for a message: one line, cut where it is long.
pub(crate) fn brief(text: &str) -> String {
    let mut brief: String = text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(200).is_some() {
        brief.push_str("...");
    }
    brief
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_cache_that_is_read_only_have_their_advice() {
        let message = |kind: io::ErrorKind| HubError::disk(Path::new("/c"))(kind.into()).to_string();
        assert!(message(io::ErrorKind::StorageFull).starts_with("/c: the disk is full"));
        assert!(
            message(io::ErrorKind::PermissionDenied)
                .ends_with("set HF_HUB_CACHE to a folder that you may write to")
        );
    }

    #[test]
    fn a_strangers_text_is_one_short_line() {
        assert_eq!(brief("a\nb\u{1b}"), "a b ");
        assert_eq!(brief(&"x".repeat(300)).len(), 203);
    }
}
