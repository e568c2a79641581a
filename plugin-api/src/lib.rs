//! The contract between tensorfold and its backend plugins.

pub mod abi;
pub mod model_spec;
pub mod sampling;
