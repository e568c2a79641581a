//! Ids of replies and calls.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// `prefix` and 32 hex digits that no other call of this process returns.
pub(super) fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Keyed by the system's randomness, so that ids of different runs differ;
    // the count keeps those of one run apart.
    let noise = |count: u64| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(count);
        hasher.finish()
    };
    format!("{prefix}{:016x}{:016x}", noise(count), noise(!count) ^ count)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_have_32_hex_digits_and_differ() {
        let ids: HashSet<String> = (0..1000).map(|_| new_id("cmpl-")).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            let digits = id.strip_prefix("cmpl-").unwrap();
            assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }
}
