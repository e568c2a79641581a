//! What the fuzz targets do with their bytes.
//!
//! Each function does to its input what the program does to such a file from a
//! stranger, through the same public functions, and says why the input was
//! refused, if it was. A fault is a panic, a sanitizer's report, or too much time or
//! memory. The test of the corpora calls the same functions.

#![allow(unreachable_pub, reason = "the test of the corpora has this as a module")]

mod checkpoint;
mod drafter;
mod gguf;
mod manifest;
mod scratch;
mod text;

pub use checkpoint::{config, safetensors};
pub use drafter::drafter;
pub use gguf::gguf;
pub use manifest::manifest;
pub use scratch::Scratch;
pub use text::tokenizer;
