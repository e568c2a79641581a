//! Backend plugins: discover, read the manifest, admit, open, verify, talk.
//!
//! The only part of the host that opens libraries. Everything up to and including admission works on bytes of files
//! and never maps a plugin for execution.

pub mod environment;
pub mod lifecycle;
