//! Digests of contents, which are also their names in the cache.

use std::fmt;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// What the Hub says a file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// SHA-256 of the content, for large files.
    Sha256([u8; 32]),
    /// git's name of the content, for small files: SHA-1 of `blob LENGTH`, a zero byte, and the content.
    GitBlob([u8; 20]),
}

impl Digest {
    /// Reads 64 hexadecimal digits as SHA-256 and 40 as git's name; anything else is none.
    pub fn parse(text: &str) -> Option<Digest> {
        match text.len() {
            64 => unhex(text).map(Digest::Sha256),
            40 => unhex(text).map(Digest::GitBlob),
            _ => None,
        }
    }

    /// Begins to compute a digest of this kind over a content of `bytes` bytes.
    pub(crate) fn start(&self, bytes: u64) -> Hasher {
        match self {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {bytes}\0"))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Digest::Sha256(bytes) => bytes,
            Digest::GitBlob(bytes) => bytes,
        };
        bytes.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A digest that is being computed.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest::Sha256(hasher.finalize().into()),
            Hasher::GitBlob(hasher) => Digest::GitBlob(hasher.finalize().into()),
        }
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Digest, content: &[u8]) -> String {
        let mut hasher = kind.start(content.len() as u64);
        content.chunks(2).for_each(|chunk| hasher.update(chunk));
        hasher.finish().to_string()
    }

    #[test]
    fn digests_are_those_of_git_and_of_lfs() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        assert_eq!(of(Digest::GitBlob([0; 20]), b"hello"), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
        assert_eq!(
            of(Digest::Sha256([0; 32]), b"hello"),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }

    #[test]
    fn only_whole_digests_are_read() {
        let text = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert_eq!(Digest::parse(text).unwrap().to_string(), text);
        for other in ["", "b6", &text[1..], &text.replace('c', "g"), &"ü".repeat(20), "../../../../x"] {
            assert_eq!(Digest::parse(other), None, "{other:?}");
        }
    }
}
