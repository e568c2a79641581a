//! `tensorfold convert`: other forms of a checkpoint into the one that is served.

pub mod gguf;
