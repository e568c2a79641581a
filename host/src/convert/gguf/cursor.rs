//! Little-endian reads that never leave the file.

use super::error::GgufError;

/// Most elements of all lists together; those of vocabularies in use have about a million.
const MOST_ELEMENTS: u64 = 1 << 24;

/// A place in a file's bytes.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    /// How many more elements of lists may be kept.
    elements: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, position: 0, elements: MOST_ELEMENTS }
    }

    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    /// How many bytes follow.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    pub(super) fn fault<T>(&self, problem: impl Into<String>) -> Result<T, GgufError> {
        Err(GgufError { problem: problem.into(), position: self.position() })
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        if count > left {
            return self
                .fault(format!("{what} needs {count} bytes, {left} are left; the file may be incomplete"));
        }
        // At most what is left, which is a length in memory.
        let end = self.position + count as usize;
        let found = &self.bytes[self.position..end];
        self.position = end;
        Ok(found)
    }

    /// Takes note of elements that will be kept in memory, where each may need more than its bytes in the file.
    pub(super) fn keep_elements(&mut self, count: u64, what: &str) -> Result<(), GgufError> {
        match self.elements.checked_sub(count) {
            Some(left) => {
                self.elements = left;
                Ok(())
            }
            None => {
                self.fault(format!("{what} has {count} elements; at most {MOST_ELEMENTS} are read of a file"))
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut found = [0; N];
        found.copy_from_slice(self.take(N as u64, what)?);
        Ok(found)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length in 64 bits, then UTF-8.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let length = self.u64(what)?;
        let start = self.position();
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes)
            .map_err(|_| GgufError { problem: format!("{what} is not UTF-8"), position: start })
    }
}
