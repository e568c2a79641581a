//! tensorfold's HIP backend.

mod driver;
mod ffi;
