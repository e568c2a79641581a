//! tensorfold's HIP backend.
