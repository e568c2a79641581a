//! Attention against sums in double precision, and by splits of the same text.

use super::*;

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin() * 3.0).collect()
}

struct Case {
    heads: Heads,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(heads: Heads, tokens: usize) -> Case {
        Case {
            heads,
            queries: wave(tokens * heads.queries * heads.size, 0.37),
            keys: wave(tokens * heads.keys * heads.size, 0.73),
            values: wave(tokens * heads.keys * heads.size, 1.19),
        }
    }

    /// Feeds the text in pieces of `step` rows.
    fn run(&self, set: InstructionSet, threads: usize, step: usize) -> Vec<f32> {
        let (q, kv) = (self.heads.queries * self.heads.size, self.heads.keys * self.heads.size);
        let mut pool = Pool::new(threads).unwrap();
        let mut cache = KeyValues::new(self.heads);
        let mut out = Vec::new();
        for ((queries, keys), values) in
            self.queries.chunks(step * q).zip(self.keys.chunks(step * kv)).zip(self.values.chunks(step * kv))
        {
            let mut piece = vec![0.0; queries.len()];
            let mut lanes = [AttentionLane { rows: 0..queries.len() / q, cache: &mut cache }];
            attend(set, &mut pool, &mut lanes, queries, keys, values, &mut piece);
            out.extend(piece);
        }
        out
    }

    fn exact(&self, row: usize, head: usize) -> Vec<f64> {
        let Heads { queries, keys, size } = self.heads;
        let kv = head / (queries / keys);
        let at = |data: &[f32], row: usize, heads: usize, head: usize, i: usize| {
            f64::from(data[(row * heads + head) * size + i])
        };
        let scores: Vec<f64> = (0..=row)
            .map(|key| {
                let dot: f64 = (0..size)
                    .map(|i| at(&self.queries, row, queries, head, i) * at(&self.keys, key, keys, kv, i))
                    .sum();
                dot / (size as f64).sqrt()
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        (0..size)
            .map(|i| {
                let sum: f64 =
                    weights.iter().enumerate().map(|(key, w)| w * at(&self.values, key, keys, kv, i)).sum();
                sum / total
            })
            .collect()
    }
}

#[test]
fn attention_is_right_for_every_grouping_of_heads() {
    for (queries, keys, size) in [(1, 1, 16), (3, 1, 80), (6, 2, 64), (14, 2, 32)] {
        let case = Case::new(Heads { queries, keys, size }, 130);
        let out = case.run(InstructionSet::best(), 1, 130);
        for row in [0, 1, 63, 64, 129] {
            for head in 0..queries {
                let got = &out[(row * queries + head) * size..][..size];
                for (got, exact) in got.iter().zip(case.exact(row, head)) {
                    assert!((f64::from(*got) - exact).abs() < 2e-5, "{got} for {exact}");
                }
            }
        }
    }
}

#[test]
fn no_split_of_rows_threads_or_parts_changes_a_bit() {
    let tokens = if cfg!(miri) { 70 } else { 1100 };
    let case = Case::new(Heads { queries: 3, keys: 1, size: 64 }, tokens);
    let expected = case.run(InstructionSet::best(), 1, tokens);
    for step in [1, 7, 64, 600] {
        // One row at a time with several threads takes the way that shares parts.
        for threads in [1, 2, 4] {
            assert!(case.run(InstructionSet::best(), threads, step) == expected, "{step} {threads}");
        }
    }
    for set in InstructionSet::available() {
        assert!(case.run(set, 1, 64) == expected, "{set:?}");
    }
}

#[test]
fn a_fork_and_a_truncated_cache_do_not_see_each_other() {
    let heads = Heads { queries: 1, keys: 1, size: 16 };
    let rows = |seed: f32, count: usize| wave(count * 16, seed);
    let mut cache = KeyValues::new(heads);
    cache.append(&rows(0.1, 70), &rows(0.2, 70));
    let mut fork = cache.clone();
    fork.append(&rows(0.3, 4), &rows(0.4, 4));
    cache.append(&rows(0.5, 4), &rows(0.6, 4));
    assert!(Arc::ptr_eq(&cache.pages[0], &fork.pages[0]), "whole pages are shared");
    assert_ne!(cache.pages[1], fork.pages[1]);
    fork.truncate(70);
    fork.append(&rows(0.5, 4), &rows(0.6, 4));
    assert_eq!(cache.pages[1], fork.pages[1], "what was rolled back is gone");
    fork.truncate(64);
    assert_eq!((fork.tokens(), fork.pages.len()), (64, 1));
}
