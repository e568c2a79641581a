//! The contract between tensorfold and its backend plugins.

pub mod abi;
pub mod manifest;
pub mod model_spec;
#[cfg(all(unix, feature = "runtime-library"))]
pub mod runtime_library;
pub mod sampling;
pub mod vocabulary;
