//! The tensorfold host.

pub mod checkpoint;
pub mod cli;
pub mod convert;
pub mod drafter;
pub mod engine;
pub mod plugins;
pub mod server;
pub mod text;
