//! Why bytes are no GGUF file.

/// Why bytes are no GGUF file that can be read: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} (at byte {position})")]
pub struct GgufError {
    /// One clause, without the file's name.
    pub problem: String,
    /// Where reading stopped, from the start of the file.
    pub position: u64,
}
