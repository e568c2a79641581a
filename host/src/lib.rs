//! The tensorfold host.

pub mod checkpoint;
pub mod engine;
pub mod plugins;
pub mod text;
