//! Copies from the context: where the last tokens stood before, what followed
//! them there is a good guess of what follows now.
//!
//! The rule is that of the stored vectors: the earlier occurrences of the last
//! `length` tokens are looked for; of those with enough tokens behind them the
//! latest counts, and where none has enough, the earliest, which has the most.
//!
//! An index of ends by their last tokens makes a look cheap: occurrences are
//! chained from the latest back, and the walk ends at the first that has enough
//! behind it, after at most as many steps as tokens are wanted.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// Tokens that must repeat.
pub(super) const MATCH: usize = 8;

/// How far back occurrences are looked for, in tokens.
pub(super) const WINDOW: usize = 65_536;

/// No earlier occurrence.
const NONE: u32 = u32::MAX;

/// An index of one growing context.
pub(super) struct Copies {
    length: usize,
    window: usize,
    /// Keyed, so that nobody can write a prompt whose runs collide.
    keys: RandomState,
    /// The latest end of each run of `length` tokens, by its hash.
    latest: HashMap<u64, u32>,
    /// For each end from `first` on: the end before it with the same hash.
    previous: VecDeque<u32>,
    first: usize,
}

impl Copies {
    /// An empty index over runs of `length` tokens, at least 1, among the last `window` tokens.
    pub(super) fn new(length: usize, window: usize) -> Self {
        Copies {
            length,
            window,
            keys: RandomState::new(),
            latest: HashMap::new(),
            previous: VecDeque::new(),
            first: length,
        }
    }

    /// Takes in what `context` has more than at the last call. Earlier tokens are the same.
    pub(super) fn extend(&mut self, context: &[u32]) {
        let oldest = context.len().saturating_sub(self.window) + self.length;
        if self.previous.is_empty() {
            self.first = self.first.max(oldest);
        }
        for end in self.first + self.previous.len()..=context.len() {
            let hash = self.hash(context, end);
            let before = self.latest.insert(hash, end as u32);
            self.previous.push_back(before.unwrap_or(NONE));
        }
        while self.first < oldest && !self.previous.is_empty() {
            let hash = self.hash(context, self.first);
            if self.latest.get(&hash) == Some(&(self.first as u32)) {
                self.latest.remove(&hash);
            }
            self.previous.pop_front();
            self.first += 1;
        }
    }

    /// At most `want` tokens that may follow; empty where nothing repeats.
    /// `context` is the one of the last [`extend`](Self::extend).
    pub(super) fn find<'a>(&self, context: &'a [u32], want: usize) -> &'a [u32] {
        let length = context.len();
        if want == 0 || length < self.first + 1 {
            return &[];
        }
        let tail = &context[length - self.length..];
        let mut earliest = length;
        let mut end = self.before(length);
        while let Some(at) = end {
            // Equal hashes of unequal runs are all but impossible, and are told apart here.
            if &context[at - self.length..at] == tail {
                if length - at >= want {
                    return &context[at..at + want];
                }
                earliest = at;
            }
            end = self.before(at);
        }
        &context[earliest..]
    }

    /// The end before `end` with the same hash, unless it is too far back.
    fn before(&self, end: usize) -> Option<usize> {
        let before = *self.previous.get(end.checked_sub(self.first)?)? as usize;
        (before != NONE as usize && before >= self.first).then_some(before)
    }

    fn hash(&self, context: &[u32], end: usize) -> u64 {
        self.keys.hash_one(&context[end - self.length..end])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        context: Vec<u32>,
        #[serde(rename = "match")]
        length: usize,
        most: usize,
        room: Option<usize>,
        drafts: Vec<u32>,
    }

    #[test]
    fn copies_follow_the_stored_vectors() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/dflash/unit/copy.json");
        let vectors: Vec<Vector> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(vectors.len(), 10);
        for vector in vectors {
            let mut copies = Copies::new(vector.length, WINDOW);
            copies.extend(&vector.context);
            let want = vector.most.min(vector.room.unwrap_or(usize::MAX));
            assert_eq!(copies.find(&vector.context, want), vector.drafts, "{}", vector.name);
        }
    }

    /// The rule, looked up token by token.
    fn by_search(context: &[u32], length: usize, window: usize, want: usize) -> Vec<u32> {
        if context.len() <= length || want == 0 {
            return Vec::new();
        }
        let tail = &context[context.len() - length..];
        let from = context.len().saturating_sub(window);
        let ends: Vec<usize> =
            (from + length..context.len()).filter(|&end| &context[end - length..end] == tail).collect();
        let with_room = ends.iter().rev().find(|&&end| context.len() - end >= want);
        with_room
            .or(ends.first())
            .map_or(Vec::new(), |&end| context[end..].iter().take(want).copied().collect())
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_finds(
            context in prop::collection::vec(0..3u32, 0..120),
            steps in prop::collection::vec(1..20usize, 1..10),
            length in 1..5usize,
            spare in 1..60usize,
            want in 0..12usize,
        ) {
            let window = length + spare;
            let mut copies = Copies::new(length, window);
            let mut known = 0;
            for step in steps {
                known = (known + step).min(context.len());
                let context = &context[..known];
                copies.extend(context);
                prop_assert_eq!(copies.find(context, want), by_search(context, length, window, want));
            }
        }
    }

    #[test]
    fn what_lies_too_far_back_is_forgotten() {
        let mut context: Vec<u32> = Vec::new();
        let mut copies = Copies::new(2, 100);
        for token in 0..10_000 {
            context.push(token);
            copies.extend(&context);
        }
        assert!(copies.latest.len() <= 100 && copies.previous.len() <= 100);
    }
}
