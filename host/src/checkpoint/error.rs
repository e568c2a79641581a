//! Why a checkpoint cannot be used, one sentence each.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be used. Every message names the file, what was
/// wanted and what was found.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file that every checkpoint needs is absent.
    #[error("{} is missing: {fix}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What to do.
        fix: String,
    },
    /// The operating system refused.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Neither a regular file nor a link to one.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A link points out of the checkpoint, elsewhere than into the blobs of
    /// the Hub cache that the checkpoint lies in.
    #[error(
        "{} is a link that leaves the checkpoint, to {}; copy the file into the folder",
        path.display(), target.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A metadata file is larger than any honest one.
    #[error("{} has {bytes} bytes; at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A metadata file does not parse.
    #[error("{} does not parse: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A key is absent, of the wrong type, or contradicts something.
    #[error("{}: {key} {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, with the keys of the objects around it.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The checkpoint is sound, but asks for something that this build does
    /// not compute.
    #[error("{}: {found}; {needed}", path.display())]
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// What the checkpoint asks for.
        found: String,
        /// What would be needed, and what is supported.
        needed: String,
    },
    /// A safetensors file whose header does not describe it.
    #[error("{} is not a sound safetensors file: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The files together do not make one set of weights.
    #[error("{}: {problem}", path.display())]
    Files {
        /// The folder or the index file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The tensors are not those that the configuration asks for.
    #[error("{}: {faults}", path.display())]
    Tensors {
        /// The folder.
        path: PathBuf,
        /// All of them.
        faults: TensorFaults,
    },
}

impl CheckpointError {
    pub(super) fn value(path: &Path, key: impl Into<String>, problem: impl Into<String>) -> Self {
        CheckpointError::Value { path: path.into(), key: key.into(), problem: problem.into() }
    }

    pub(super) fn unsupported(path: &Path, found: impl Into<String>, needed: impl Into<String>) -> Self {
        CheckpointError::Unsupported { path: path.into(), found: found.into(), needed: needed.into() }
    }
}

/// Everything that is wrong with a checkpoint's tensors. Its text counts all
/// faults and lists the first few of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorFaults {
    /// Canonical names that the configuration asks for and no file holds.
    pub missing: Vec<String>,
    /// Stored names that mean nothing for this family.
    pub unexpected: Vec<String>,
    /// Tensors of the wrong shape, type or packing, a sentence each.
    pub malformed: Vec<String>,
}

impl TensorFaults {
    const LISTED: usize = 4;

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.malformed.is_empty()
    }
}

impl std::fmt::Display for TensorFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = [
            ("missing", &self.missing, ", "),
            ("not known to this family", &self.unexpected, ", "),
            ("malformed", &self.malformed, "; "),
        ];
        let mut text = String::new();
        for (what, names, separator) in kinds {
            if names.is_empty() {
                continue;
            }
            if !text.is_empty() {
                text.push_str(". ");
            }
            let noun = if names.len() == 1 { "tensor is" } else { "tensors are" };
            let listed = names.iter().take(Self::LISTED).map(String::as_str).collect::<Vec<_>>();
            write!(text, "{} {noun} {what}: {}", names.len(), listed.join(separator))?;
            if names.len() > Self::LISTED {
                write!(text, " and {} more", names.len() - Self::LISTED)?;
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_counted_and_the_first_few_listed() {
        let faults = TensorFaults {
            missing: (0..6).map(|i| format!("layers.{i}.ffn.up")).collect(),
            unexpected: vec!["surprise".into()],
            malformed: vec![],
        };
        assert_eq!(
            faults.to_string(),
            "6 tensors are missing: layers.0.ffn.up, layers.1.ffn.up, layers.2.ffn.up, layers.3.ffn.up and 2 more. \
             1 tensor is not known to this family: surprise"
        );
    }
}
