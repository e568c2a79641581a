//! In place of the Hub, in a build without it.

use std::path::{Path, PathBuf};

use tensorfold_hub::Reference;

use crate::checkpoint::ResolveError;
use crate::cli::Failure;

/// A model at the Hub, which this build never finds.
pub(in crate::cli) enum Remote {}

impl Remote {
    pub(super) fn look(_model: &str, error: &ResolveError) -> Result<Remote, Failure> {
        Err(Failure::new(error.to_string()))
    }

    pub(in crate::cli) fn directory(&self) -> &Path {
        match *self {}
    }

    pub(in crate::cli) fn forget_metadata(&mut self) {
        match *self {}
    }

    pub(super) fn lists(&self, _name: &str) -> bool {
        match *self {}
    }

    pub(in crate::cli) fn name(&self) -> &str {
        match *self {}
    }

    pub(super) fn repository(&self) -> &str {
        match *self {}
    }

    pub(in crate::cli) fn place(&self) -> &str {
        match *self {}
    }

    pub(in crate::cli) fn download(self) -> Result<PathBuf, Failure> {
        match self {}
    }
}

/// `tensorfold pull`.
///
/// # Errors
/// Always: this build cannot.
pub(in crate::cli) fn pull(_references: &[Reference]) -> Result<(), Failure> {
    Err(Failure::new(
        "this build of tensorfold does not download (it lacks the feature hub): use hf download",
    ))
}
