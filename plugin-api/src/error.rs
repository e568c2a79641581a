//! The error of a call across the border, on either side of it.

use crate::abi::Status;

/// Why a call into a plugin failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PluginError {
    /// What kind of failure it is.
    pub status: Status,
    /// One line: what was wanted, what was found, what to do.
    pub message: String,
    /// Further facts, such as `free_bytes`.
    pub details: Vec<(String, String)>,
}

impl PluginError {
    /// An error without further facts.
    pub fn new(status: Status, message: impl Into<String>) -> PluginError {
        PluginError { status, message: message.into(), details: Vec::new() }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl std::fmt::Display) -> PluginError {
        self.details.push((key.to_owned(), value.to_string()));
        self
    }

    /// The value of a fact.
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.details.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// An argument that breaks the contract.
    pub fn invalid(message: impl Into<String>) -> PluginError {
        PluginError::new(Status::InvalidArgument, message)
    }

    /// Something that the plugin does not do.
    pub fn unsupported(message: impl Into<String>) -> PluginError {
        PluginError::new(Status::Unsupported, message)
    }

    /// A defect or unforeseen state.
    pub fn internal(message: impl Into<String>) -> PluginError {
        PluginError::new(Status::Internal, message)
    }
}
