//! Model executors over a small device trait, and the kernels of tensorfold's own backends.

pub mod cpu;
pub mod device;
pub mod executor;
pub mod weights;
