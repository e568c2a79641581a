//! Softmax attention over a cache in pages.
//!
//! Keys and values lie in pages of 64 positions. A query works through the
//! pages in order with a running maximum. After every 512 positions, counted
//! from the start of the text, it starts afresh, and the parts are merged in
//! order. Where the cuts are depends on absolute positions alone, so the bits
//! of a row do not depend on the other rows, on how the text was split into
//! calls, or on whether one thread did all parts or several shared them.

use std::sync::Arc;

use super::pool::Pool;
use super::simd::{InstructionSet, Kernel, LANES, Simd};
use super::tiles::Tiles;

/// Positions of a page.
pub(crate) const PAGE: usize = 64;
/// Pages of a part.
const PART_PAGES: usize = 8;
/// Vectors that hold a page's scores.
const PAGE_VECTORS: usize = PAGE / LANES;
/// Multiply-adds from which on other threads are woken.
const PARALLEL_WORK: usize = 1 << 18;

/// Shape of an attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) queries: usize,
    /// Key/value heads.
    pub(crate) keys: usize,
    /// Dimensions of a head.
    pub(crate) size: usize,
}

impl Heads {
    /// Query heads that share a key/value head.
    fn group(self) -> usize {
        self.queries / self.keys
    }

    /// Floats of a page: for each key head, keys dimension by dimension, then
    /// values position by position.
    pub(crate) fn page_floats(self) -> usize {
        2 * self.keys * PAGE * self.size
    }
}

/// Keys and values of one lane in one layer.
///
/// A fork shares pages; a page is copied when it is written to while shared.
#[derive(Clone)]
pub struct KeyValues {
    heads: Heads,
    pages: Vec<Arc<Vec<f32>>>,
    tokens: usize,
}

impl KeyValues {
    pub(crate) fn new(heads: Heads) -> KeyValues {
        KeyValues { heads, pages: Vec::new(), tokens: 0 }
    }

    /// Positions held.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes held; pages that forks share count in full.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.heads.page_floats() * size_of::<f32>()
    }

    /// The rotated key of one position and head.
    ///
    /// # Panics
    /// When there is no such position or head.
    pub fn key(&self, position: usize, head: usize) -> Vec<f32> {
        assert!(position < self.tokens, "position {position} of {}", self.tokens);
        let (keys, _) = self.page(position / PAGE, head);
        keys.chunks_exact(PAGE).map(|column| column[position % PAGE]).collect()
    }

    /// The value of one position and head.
    ///
    /// # Panics
    /// When there is no such position or head.
    pub fn value(&self, position: usize, head: usize) -> &[f32] {
        assert!(position < self.tokens, "position {position} of {}", self.tokens);
        let (_, values) = self.page(position / PAGE, head);
        &values[position % PAGE * self.heads.size..][..self.heads.size]
    }

    /// Forgets everything from position `tokens` on.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
        self.pages.truncate(self.tokens.div_ceil(PAGE));
    }

    /// Appends rotated keys and values, row by row.
    fn append(&mut self, keys: &[f32], values: &[f32]) {
        let Heads { keys: heads, size, .. } = self.heads;
        let width = heads * size;
        for (key, value) in keys.chunks_exact(width).zip(values.chunks_exact(width)) {
            let slot = self.tokens % PAGE;
            if slot == 0 {
                self.pages.push(Arc::new(vec![0.0; self.heads.page_floats()]));
            }
            let page = Arc::make_mut(self.pages.last_mut().expect("a page was pushed at its first slot"));
            for head in 0..heads {
                let part = &mut page[head * 2 * PAGE * size..][..2 * PAGE * size];
                let (page_keys, page_values) = part.split_at_mut(PAGE * size);
                for (column, &x) in page_keys.chunks_exact_mut(PAGE).zip(&key[head * size..]) {
                    column[slot] = x;
                }
                page_values[slot * size..][..size].copy_from_slice(&value[head * size..][..size]);
            }
            self.tokens += 1;
        }
    }

    /// Keys and values of one head in one page.
    fn page(&self, page: usize, head: usize) -> (&[f32], &[f32]) {
        let size = self.heads.size;
        self.pages[page][head * 2 * PAGE * size..][..2 * PAGE * size].split_at(PAGE * size)
    }
}

/// One lane's rows in a call of [`attend`].
pub(crate) struct AttentionLane<'a> {
    /// First row and number of rows.
    pub(crate) rows: std::ops::Range<usize>,
    pub(crate) cache: &'a mut KeyValues,
}

/// Appends the rows' keys and values to their lanes' caches, then lets every
/// row attend to its own and all earlier positions of its lane.
pub(crate) fn attend(
    set: InstructionSet,
    pool: &mut Pool,
    lanes: &mut [AttentionLane<'_>],
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    out: &mut [f32],
) {
    let Some(heads) = lanes.first().map(|lane| lane.cache.heads) else { return };
    let width = heads.keys * heads.size;
    // (row, its lane, positions that it sees)
    let mut rows = Vec::new();
    let mut work = 0;
    for (index, lane) in lanes.iter_mut().enumerate() {
        let first = lane.cache.tokens;
        let range = lane.rows.start * width..lane.rows.end * width;
        lane.cache.append(&keys[range.clone()], &values[range]);
        for (offset, row) in lane.rows.clone().enumerate() {
            rows.push((row, index, first + offset + 1));
            work += (first + offset + 1) * heads.queries * heads.size * 2;
        }
    }
    let caches: Vec<&KeyValues> = lanes.iter().map(|lane| &*lane.cache).collect();
    let group_width = heads.group() * heads.size;
    let count = rows.iter().map(|row| row.0 + 1).max().unwrap_or(0);
    let tiles = Tiles::new(out, count, heads.queries * heads.size, 1, group_width);
    let task = |index: usize| {
        let (row, lane, seen) = rows[index / heads.keys];
        let head = index % heads.keys;
        let tile = row * heads.keys + head;
        let query = &queries[tile * group_width..][..group_width];
        Query { cache: caches[lane], query, head, seen, tile }
    };
    let tasks = rows.len() * heads.keys;
    let parallel = work >= PARALLEL_WORK;
    let parts = rows.iter().map(|row| row.2.div_ceil(PART_PAGES * PAGE)).max().unwrap_or(0);
    if !parallel || tasks >= pool.threads() || parts < 2 {
        pool.run(parallel, tasks, |index| {
            let query = task(index);
            let mut result = Part::new(heads);
            for part in 0..query.parts() {
                let mut next = Part::new(heads);
                set.run(Attend { query: &query, part, out: &mut next });
                result.merge(set, &next);
            }
            result.finish(tiles.take(query.tile).row(0));
        });
        return;
    }
    // Few rows and a long text: threads share the parts of a row.
    let slots: Vec<std::sync::OnceLock<Part>> =
        (0..tasks * parts).map(|_| std::sync::OnceLock::new()).collect();
    pool.run(true, slots.len(), |slot| {
        let (query, part) = (task(slot / parts), slot % parts);
        if part < query.parts() {
            let mut next = Part::new(heads);
            set.run(Attend { query: &query, part, out: &mut next });
            let _ = slots[slot].set(next);
        }
    });
    for index in 0..tasks {
        let mut result = Part::new(heads);
        for part in slots[index * parts..][..parts].iter().filter_map(|slot| slot.get()) {
            result.merge(set, part);
        }
        result.finish(tiles.take(task(index).tile).row(0));
    }
}

/// The queries of one row that share a key/value head.
struct Query<'a> {
    cache: &'a KeyValues,
    query: &'a [f32],
    head: usize,
    /// Positions that the row sees.
    seen: usize,
    tile: usize,
}

impl Query<'_> {
    fn parts(&self) -> usize {
        self.seen.div_ceil(PART_PAGES * PAGE)
    }
}

/// A softmax over some positions that is not normalised yet.
struct Part {
    size: usize,
    /// Largest score, for each query head.
    largest: Vec<f32>,
    /// Sum of `e^(score - largest)`.
    sum: Vec<f32>,
    /// Sum of the values with these weights.
    values: Vec<f32>,
}

impl Part {
    fn new(heads: Heads) -> Part {
        let group = heads.group();
        Part {
            size: heads.size,
            largest: vec![f32::NEG_INFINITY; group],
            sum: vec![0.0; group],
            values: vec![0.0; group * heads.size],
        }
    }

    /// Joins a later part.
    fn merge(&mut self, set: InstructionSet, later: &Part) {
        set.run(Merge { into: self, later });
    }

    fn finish(&self, out: &mut [f32]) {
        let heads = out.chunks_exact_mut(self.size).zip(self.values.chunks_exact(self.size));
        for ((out, values), &sum) in heads.zip(&self.sum) {
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value / sum);
        }
    }
}

struct Merge<'a> {
    into: &'a mut Part,
    later: &'a Part,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let size = self.into.size;
        for head in 0..self.into.sum.len() {
            let (old, new) = (self.into.largest[head], self.later.largest[head]);
            let largest = if new > old { new } else { old };
            let (keep, join) = (exp_one(s, old - largest), exp_one(s, new - largest));
            self.into.largest[head] = largest;
            self.into.sum[head] = self.into.sum[head] * keep + self.later.sum[head] * join;
            let (keep, join) = (s.splat(keep), s.splat(join));
            let into = self.into.values[head * size..][..size].as_chunks_mut().0;
            let later = self.later.values[head * size..][..size].as_chunks().0;
            for (into, later) in into.iter_mut().zip(later) {
                s.store(s.fma(s.load(later), join, s.mul(s.load(into), keep)), into);
            }
        }
    }
}

#[inline(always)]
fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(s.exp(s.splat(x)), &mut lanes);
    lanes[0]
}

/// One part of one [`Query`].
struct Attend<'a, 'q> {
    query: &'a Query<'q>,
    part: usize,
    out: &'a mut Part,
}

impl Kernel for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let size = self.out.size;
        let group = self.out.sum.len();
        // The scale of the scores, folded into the query.
        let scale = 1.0 / (size as f32).sqrt();
        let mut query = vec![0.0; group * size];
        for (to, from) in query.iter_mut().zip(self.query.query) {
            *to = from * scale;
        }
        let mut scores = vec![[0.0; PAGE]; group];
        let first = self.part * PART_PAGES;
        let pages = first..(first + PART_PAGES).min(self.query.seen.div_ceil(PAGE));
        for page in pages {
            let (keys, values) = self.query.cache.page(page, self.query.head);
            let seen = (self.query.seen - page * PAGE).min(PAGE);
            let mut head = 0;
            while head < group {
                head += match group - head {
                    4.. => page_scores::<S, 4>(s, &query, keys, size, head, &mut scores),
                    2.. => page_scores::<S, 2>(s, &query, keys, size, head, &mut scores),
                    _ => page_scores::<S, 1>(s, &query, keys, size, head, &mut scores),
                };
            }
            for (head, scores) in scores.iter_mut().enumerate() {
                let keep =
                    page_weights(s, scores, seen, &mut self.out.largest[head], &mut self.out.sum[head]);
                let keep = s.splat(keep);
                for values in self.out.values[head * size..][..size].as_chunks_mut().0 {
                    s.store(s.mul(s.load(values), keep), values);
                }
            }
            let mut head = 0;
            while head < group {
                head += match group - head {
                    4.. => page_values::<S, 4>(s, &scores, values, size, seen, head, &mut self.out.values),
                    2.. => page_values::<S, 2>(s, &scores, values, size, seen, head, &mut self.out.values),
                    _ => page_values::<S, 1>(s, &scores, values, size, seen, head, &mut self.out.values),
                };
            }
        }
    }
}

/// Scores of `H` heads over a page; returns `H`.
#[inline(always)]
fn page_scores<S: Simd, const H: usize>(
    s: S,
    query: &[f32],
    keys: &[f32],
    size: usize,
    head: usize,
    scores: &mut [[f32; PAGE]],
) -> usize {
    let mut sums = [[s.zero(); PAGE_VECTORS]; H];
    for (dimension, column) in keys.as_chunks::<PAGE>().0.iter().enumerate() {
        let column = column.as_chunks::<LANES>().0;
        for h in 0..H {
            let q = s.splat(query[(head + h) * size + dimension]);
            for vector in 0..PAGE_VECTORS {
                sums[h][vector] = s.fma(q, s.load(&column[vector]), sums[h][vector]);
            }
        }
    }
    for h in 0..H {
        let out = scores[head + h].as_chunks_mut::<LANES>().0;
        for vector in 0..PAGE_VECTORS {
            s.store(sums[h][vector], &mut out[vector]);
        }
    }
    H
}

/// Turns scores into weights relative to the running maximum, joins their sum,
/// and returns the factor for what was summed before.
#[inline(always)]
fn page_weights<S: Simd>(
    s: S,
    scores: &mut [f32; PAGE],
    seen: usize,
    largest: &mut f32,
    sum: &mut f32,
) -> f32 {
    // Slots from `seen` on belong to the future or to nobody.
    let mut new = *largest;
    for &score in &scores[..seen] {
        new = if score > new { score } else { new };
    }
    let keep = exp_one(s, *largest - new);
    let offset = s.splat(new);
    for vector in scores.as_chunks_mut::<LANES>().0 {
        s.store(s.exp(s.sub(s.load(vector), offset)), vector);
    }
    scores[seen..].fill(0.0);
    let vectors = scores.as_chunks::<LANES>().0;
    let mut total = s.load(&vectors[0]);
    for vector in &vectors[1..] {
        total = s.add(total, s.load(vector));
    }
    *sum = *sum * keep + s.sum(total);
    *largest = new;
    keep
}

/// Adds a page's values for `H` heads; returns `H`.
#[inline(always)]
fn page_values<S: Simd, const H: usize>(
    s: S,
    weights: &[[f32; PAGE]],
    values: &[f32],
    size: usize,
    seen: usize,
    head: usize,
    out: &mut [f32],
) -> usize {
    let mut column = 0;
    while column < size {
        column += match size - column {
            64.. => value_columns::<S, H, 4>(s, weights, values, size, seen, head, column, out),
            _ => value_columns::<S, H, 1>(s, weights, values, size, seen, head, column, out),
        };
    }
    H
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one inner loop, cut out to be compiled for several shapes")]
fn value_columns<S: Simd, const H: usize, const C: usize>(
    s: S,
    weights: &[[f32; PAGE]],
    values: &[f32],
    size: usize,
    seen: usize,
    head: usize,
    column: usize,
    out: &mut [f32],
) -> usize {
    let mut sums = [[s.zero(); C]; H];
    for h in 0..H {
        let out = out[(head + h) * size + column..][..C * LANES].as_chunks::<LANES>().0;
        for c in 0..C {
            sums[h][c] = s.load(&out[c]);
        }
    }
    for position in 0..seen {
        let row = values[position * size + column..][..C * LANES].as_chunks::<LANES>().0;
        for h in 0..H {
            let weight = s.splat(weights[head + h][position]);
            for c in 0..C {
                sums[h][c] = s.fma(weight, s.load(&row[c]), sums[h][c]);
            }
        }
    }
    for h in 0..H {
        let out = out[(head + h) * size + column..][..C * LANES].as_chunks_mut::<LANES>().0;
        for c in 0..C {
            s.store(sums[h][c], &mut out[c]);
        }
    }
    C * LANES
}

#[cfg(test)]
mod tests {
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
            for ((queries, keys), values) in self
                .queries
                .chunks(step * q)
                .zip(self.keys.chunks(step * kv))
                .zip(self.values.chunks(step * kv))
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
                    let sum: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(key, w)| w * at(&self.values, key, keys, kv, i))
                        .sum();
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
}
