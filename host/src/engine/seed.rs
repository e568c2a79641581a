//! Numbers derived from token ids: the seed of a request that brings none, and
//! the digest by which two replies are compared.

use sha2::{Digest, Sha256};

/// The seed of a request without one.
///
/// The first 8 bytes, little-endian, of SHA-256 over the prompt's token ids in
/// decimal joined by commas, `|` and the salt; the top bit is cleared. So equal
/// prompts give equal replies on one server, and another salt gives others.
pub fn prompt_seed(prompt: &[u32], salt: i64) -> u64 {
    let mut hasher = Sha256::new();
    hash_ids(&mut hasher, prompt);
    hasher.update(format!("|{salt}"));
    let digest = hasher.finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(bytes) & (u64::MAX >> 1)
}

/// The first 12 hex digits of SHA-256 over the token ids in decimal joined by commas.
pub fn token_digest(tokens: &[u32]) -> String {
    let mut hasher = Sha256::new();
    hash_ids(&mut hasher, tokens);
    hasher.finalize()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_ids(hasher: &mut Sha256, ids: &[u32]) {
    for (index, id) in ids.iter().enumerate() {
        if index > 0 {
            hasher.update(b",");
        }
        hasher.update(id.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_follow_the_published_vectors() {
        assert_eq!(prompt_seed(&[1, 2, 3], 0), 2418267834652783048);
        assert_eq!(prompt_seed(&[1, 2, 3], 7), 7438332421110491853);
        assert_eq!(prompt_seed(&[1, 2, 3], -1), 6140073184765904346);
        assert_eq!(prompt_seed(&[248044, 198], 0), 6277279278927878146);
    }

    #[test]
    fn digests_follow_the_published_vectors() {
        assert_eq!(token_digest(&[]), "e3b0c44298fc");
        assert_eq!(token_digest(&[1]), "6b86b273ff34");
        assert_eq!(token_digest(&[1, 2, 3]), "8a6ae1512200");
        assert_eq!(token_digest(&[151643, 8, 248319]), "f4d2ca0c04b2");
    }
}
