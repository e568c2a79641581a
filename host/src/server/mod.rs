//! The HTTP side of the host: OpenAI's completion routes over text and engine.
//!
//! What this module guarantees:
//!
//! - A request is either answered as it was meant or refused with a message
//!   that names the field; nothing that would change a reply is passed over.
//! - Every answer is JSON, also to unknown routes and broken requests, and a
//!   refused request leaves its connection usable.
//! - A client that leaves frees the engine; a client that reads slowly holds
//!   up nobody else and misses nothing.
//! - Keys are compared by digest, in constant time, and never logged.
//!
//! It knows text and engine, and nothing of plugins or checkpoints.
//!
//! A request's way: `routes` -> `prompt` (fields, messages, template, ids)
//! -> `reply` (engine, events, text) -> `answer` (document or events).

mod answer;
mod body;
mod connections;
mod error;
mod fields;
mod health;
mod identity;
mod keys;
mod lines;
mod listen;
mod messages;
mod options;
mod prompt;
mod reply;
mod reply_fields;
mod request_log;
mod routes;
mod serve;
mod stopping;
#[cfg(test)]
mod tests;
mod thinking;
mod watch;

use std::io;
use std::path::PathBuf;

pub use keys::KeyError;
pub use options::{
    DEFAULT_BODY_LIMIT_BYTES, DEFAULT_MAX_TOKENS, DEFAULT_PORT, ServeEnvironment, ServeOptions,
};
pub use serve::{ServedModel, Server};

/// Why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The host is no address of this machine.
    #[error("--host {host}: {error}; give a name or an address of this machine")]
    Host {
        /// As given.
        host: String,
        /// What the system said.
        error: io::Error,
    },
    /// Another program has the port.
    #[error(
        "port {port} on {host} is already in use; stop the other program or choose another port with --port"
    )]
    PortInUse {
        /// As given.
        host: String,
        /// The port.
        port: u16,
    },
    /// The address cannot be had.
    #[error("cannot listen at {host}, port {port}: {error}")]
    Bind {
        /// As given.
        host: String,
        /// The port.
        port: u16,
        /// What the system said.
        error: io::Error,
    },
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The environment's keys are no text.
    #[error("TENSORFOLD_API_KEY must be text in UTF-8")]
    KeyNotText,
    /// The salt is no number.
    #[error("TENSORFOLD_SEED_SALT must be a whole number, not {found:?}")]
    SeedSalt {
        /// The value found.
        found: String,
    },
    /// The request log cannot be opened.
    #[error("TENSORFOLD_REQUEST_LOG {}: {error}", .path.display())]
    RequestLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A model id is empty.
    #[error("{option} must not be empty")]
    EmptyName {
        /// The option that gave it.
        option: &'static str,
    },
    /// The system gave no threads, signals or sockets.
    #[error("cannot serve: {0}")]
    Runtime(io::Error),
}
