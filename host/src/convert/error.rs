//! Why a conversion ends without a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use super::gguf::GgufError;
use crate::checkpoint::CheckpointError;
use crate::text::TextError;

/// Why a conversion ends without a checkpoint. Whatever the reason, nothing of it is left on disk.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The source is a checkpoint that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The source's tokenizer cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The source is no sound GGUF file.
    #[error("{} is not a sound GGUF file: {error}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: GgufError,
    },
    /// The source cannot be converted.
    #[error("{}: {problem}", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What was found and what to do.
        problem: String,
    },
    /// The output's place cannot be used.
    #[error("{}: {problem}", path.display())]
    Output {
        /// The folder that was asked for.
        path: PathBuf,
        /// What was found and what to do.
        problem: String,
    },
    /// The operating system refused.
    #[error("{} cannot be {action}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// A weight cannot be written in the form that was asked for.
    #[error("{problem}")]
    Weights {
        /// Which, and what to do.
        problem: String,
    },
    /// What was written does not open. A fault of this program.
    #[error("the converted checkpoint does not open, which is a fault of tensorfold: {problem}")]
    Check {
        /// Why not.
        problem: String,
    },
    /// A signal asked for the end.
    #[error("stopped by signal {signal}; nothing was written")]
    Stopped {
        /// Its number.
        signal: i32,
    },
}

impl ConvertError {
    pub(super) fn source(path: &Path, problem: impl Into<String>) -> ConvertError {
        ConvertError::Source { path: path.into(), problem: problem.into() }
    }

    pub(super) fn output(path: &Path, problem: impl Into<String>) -> ConvertError {
        ConvertError::Output { path: path.into(), problem: problem.into() }
    }

    pub(super) fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> ConvertError {
        let path = path.to_owned();
        move |source| ConvertError::File { path, action, source }
    }
}
