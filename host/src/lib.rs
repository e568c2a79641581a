//! The tensorfold host.
pub mod engine;
pub mod plugins;
