//! The tensorfold host.
pub mod plugins;
