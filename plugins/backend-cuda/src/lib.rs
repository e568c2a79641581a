//! tensorfold's CUDA backend.
