//! Models that the Hub has and this machine has not: looked at, and downloaded when nothing speaks against them.

#[cfg(feature = "hub")]
mod interrupt;
#[cfg(feature = "hub")]
mod passing;
#[cfg(feature = "hub")]
mod progress;
#[cfg(feature = "hub")]
mod remote;
#[cfg(not(feature = "hub"))]
#[path = "without.rs"]
mod remote;

use std::path::Path;

pub(in crate::cli) use self::remote::{Remote, pull};

use crate::checkpoint::{
    CheckpointError, HubCache, Kind, ResolveError, Resolved, resolve, resolve_for_reading,
};
use crate::cli::Failure;

/// Where a model is.
pub(in crate::cli) enum Located {
    /// On this machine.
    Here(Resolved),
    /// At the Hub, with its metadata in a folder that is here for the moment.
    There(Box<Remote>),
}

impl Located {
    /// The folder to read: all of the model, or its metadata.
    pub(in crate::cli) fn directory(&self) -> &Path {
        match self {
            Located::Here(resolved) => &resolved.directory,
            Located::There(remote) => remote.directory(),
        }
    }

    /// The model's name, where its folder does not say it.
    pub(in crate::cli) fn name(&self) -> Option<&str> {
        match self {
            Located::Here(_) => None,
            Located::There(remote) => Some(remote.name()),
        }
    }

    /// `owner/name`, where it is of the Hub.
    pub(in crate::cli) fn repository(&self) -> Option<&str> {
        match self {
            Located::Here(found) => found.repository.as_deref(),
            Located::There(remote) => Some(remote.repository()),
        }
    }

    /// Where a model is that is not on this machine.
    pub(in crate::cli) fn place(&self) -> Option<&str> {
        match self {
            Located::Here(_) => None,
            Located::There(remote) => Some(remote.place()),
        }
    }

    /// The refusal of a model without `tokenizer.json`. The folder of metadata never holds one, so that the Hub's list
    /// of files is asked for a model that is there.
    pub(in crate::cli) fn without_tokenizer(&self, kind: &Kind) -> Option<CheckpointError> {
        const NAME: &str = "tokenizer.json";
        let (there, fix) = match self {
            Located::Here(found) => {
                (found.directory.join(NAME).exists(), "download the checkpoint's tokenizer.json")
            }
            Located::There(remote) => (remote.lists(NAME), "take a version of the model that has one"),
        };
        let missing = || CheckpointError::Missing {
            path: self.directory().join(NAME),
            fix: format!("the tokenizer is read from it; {fix}"),
        };
        // Drafters and heads are served with the tokenizer of their model.
        (*kind == Kind::Model && !there).then(missing)
    }

    /// A message about files of the model. A folder that is here for the moment helps nobody who reads it.
    pub(in crate::cli) fn spoken(&self, message: &str) -> String {
        match self {
            Located::Here(_) => message.to_owned(),
            Located::There(remote) => {
                message.replace(&*remote.directory().to_string_lossy(), remote.repository())
            }
        }
    }
}

/// Finds a model that is to be run: a folder, or a repository in the cache that is complete, else at the Hub. Only
/// the last asks the network.
///
/// # Errors
/// When it is nowhere, with what to do.
pub(in crate::cli) fn locate(model: &str) -> Result<Located, Failure> {
    located(model, resolve(model, &HubCache::from_environment()))
}

/// As [`locate`], for commands that only look: what is in the cache will do, complete or not.
///
/// # Errors
/// When it is nowhere, with what to do.
pub(in crate::cli) fn locate_for_reading(model: &str) -> Result<Located, Failure> {
    located(model, resolve_for_reading(model, &HubCache::from_environment()))
}

fn located(model: &str, resolved: Result<Resolved, ResolveError>) -> Result<Located, Failure> {
    match resolved {
        Ok(resolved) => Ok(Located::Here(resolved)),
        Err(error) if error.may_be_at_the_hub() => Ok(Located::There(Box::new(Remote::look(model, &error)?))),
        Err(error) => Err(error.into()),
    }
}
