//! tensorfold's CUDA backend.

mod driver;
mod ffi;
