//! The one table of names: what a manifest may declare, what `serve` may be
//! asked for, and what is said when the two do not meet.
//!
//! Parsing of manifests and of the command line, help, refusals,
//! `capabilities --json` and the reference pages in `docs/reference` are all
//! made from the tables in this module. There is no second list, so an option
//! can not be half documented and a capability can not be half refused.
//!
//! Nothing in here reads a file, an environment variable or a clock.

mod codes;
mod flag_table;
mod flags;
mod given;
mod keys;
mod names;
pub mod reference;
pub mod sentences;
mod values;

pub use codes::{Code, State};
pub use flag_table::FLAGS;
pub use flags::{AnsweredBy, Capability, FlagGroup, FlagSpec, Neutral, Support, flag};
pub use given::{Given, GivenFlags};
pub use keys::{KeyKind, KeySpec, TABLES, TableShape, TableSpec, table};
pub use names::{DrafterKind, DrafterOrigin, Word, Words, format_covers, kv_dtype_name};
pub use values::{FlagValue, UsageError, ValueKind};

/// Whether `name` lies in the space that vendors may use without asking:
/// `x-<vendor>-<anything>`. Such names never collide with later standard ones.
pub fn is_vendor_name(name: &str) -> bool {
    let Some((vendor, rest)) = name.strip_prefix("x-").and_then(|tail| tail.split_once('-')) else {
        return false;
    };
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    !vendor.is_empty() && plain(vendor) && !rest.is_empty()
}

/// The known name that `wrong` was most likely meant to be, if any is near.
///
/// Near means that at most a third of the letters differ, and never more than
/// three; the first of the nearest names wins.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A stranger's name may be as long as a file; no known one is.
    if wrong.len() > 64 {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let distance = edit_distance(wrong, candidate);
        let limit = (candidate.chars().count().max(wrong.chars().count()) / 3).clamp(1, 3);
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, name)| name)
}

/// Levenshtein's distance, counting letters that are inserted, dropped or
/// replaced.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

/// `a`, `a or b`, `a, b or c`: how choices are listed in a sentence.
pub fn alternatives<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendor_name_needs_a_vendor_and_a_name() {
        assert!(is_vendor_name("x-acme-q5"));
        assert!(is_vendor_name("x-acme-very-long.name"));
        for wrong in ["x-", "x-acme", "x--q5", "x-acme-", "acme-q5", "x-Acme-q5", "xacme-q5"] {
            assert!(!is_vendor_name(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_finds_none() {
        let known = ["engine_name", "backend", "aliases", "library"];
        assert_eq!(nearest("engine-name", known), Some("engine_name"));
        assert_eq!(nearest("alias", known), Some("aliases"));
        assert_eq!(nearest("libary", known), Some("library"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest(&"b".repeat(70_000), known), None);
    }

    #[test]
    fn choices_read_as_a_sentence_does() {
        assert_eq!(alternatives([1, 2, 4, 8]), "1, 2, 4 or 8");
        assert_eq!(alternatives(["bf16", "q8"]), "bf16 or q8");
        assert_eq!(alternatives([1]), "1");
        assert_eq!(alternatives::<u32>([]), "nothing");
    }
}
