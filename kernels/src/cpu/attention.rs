//! Softmax attention over a cache in pages.
//!
//! Keys and values lie in pages of 64 positions. A query works through the
//! pages in order with a running maximum. After every 512 positions, counted
//! from the start of the text, it starts afresh, and the parts are merged in
//! order. Where the cuts are depends on absolute positions alone, so the bits
//! of a row do not depend on the other rows, on how the text was split into
//! calls, or on whether one thread did all parts or several shared them.

#[cfg(test)]
mod tests;

use std::ops::Range;
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
/// Most rows that work through the pages together.
const BLOCK_ROWS: usize = 16;
/// Tasks for each thread, so that a thread that is held up delays nobody.
const TASKS_PER_THREAD: usize = 4;
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
    pub(super) fn group(self) -> usize {
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
    /// Those that were forgotten hold nothing.
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
        self.pages.iter().map(|page| page.len() * size_of::<f32>()).sum()
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

    /// The shape.
    pub(super) fn heads(&self) -> Heads {
        self.heads
    }

    /// Frees the pages that hold only positions before `position`.
    pub(super) fn forget(&mut self, position: usize) {
        let whole = position.min(self.tokens) / PAGE;
        // What was forgotten before is at the front.
        for page in self.pages[..whole].iter_mut().rev().take_while(|page| !page.is_empty()) {
            *page = Arc::default();
        }
    }

    /// Appends rotated keys and values, row by row.
    pub(super) fn append(&mut self, keys: &[f32], values: &[f32]) {
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
    pub(super) fn page(&self, page: usize, head: usize) -> (&[f32], &[f32]) {
        let size = self.heads.size;
        self.pages[page][head * 2 * PAGE * size..][..2 * PAGE * size].split_at(PAGE * size)
    }
}

/// One lane's rows in a call of [`attend`].
pub(crate) struct AttentionLane<'a> {
    /// First row and number of rows.
    pub(crate) rows: Range<usize>,
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
    let count: usize = lanes.iter().map(|lane| lane.rows.len()).sum();
    let most = (count * heads.keys / (pool.threads() * TASKS_PER_THREAD)).clamp(1, BLOCK_ROWS);
    let mut blocks = Vec::new();
    let mut work = 0;
    for (lane, part) in lanes.iter_mut().enumerate() {
        let mut seen = part.cache.tokens + 1;
        let range = part.rows.start * width..part.rows.end * width;
        part.cache.append(&keys[range.clone()], &values[range]);
        let mut row = part.rows.start;
        while row < part.rows.end {
            let same_page = PAGE - (seen - 1) % PAGE;
            let rows = most.min(same_page).min(part.rows.end - row);
            blocks.push(Block { lane, row, rows, seen });
            work += (seen..seen + rows).sum::<usize>() * heads.queries * heads.size * 2;
            (row, seen) = (row + rows, seen + rows);
        }
    }
    let caches: Vec<&KeyValues> = lanes.iter().map(|lane| &*lane.cache).collect();
    let group_width = heads.group() * heads.size;
    let last = blocks.iter().map(|block| block.row + block.rows).max().unwrap_or(0);
    let tiles = Tiles::new(out, last, heads.queries * heads.size, 1, group_width);
    let task = |index: usize| {
        let block = blocks[index / heads.keys];
        Query { cache: caches[block.lane], queries, head: index % heads.keys, block }
    };
    let finish = |query: &Query<'_>, result: &Part| {
        let rows = result.values.chunks_exact(group_width).zip(result.sum.chunks_exact(heads.group()));
        for (offset, (values, sums)) in rows.enumerate() {
            let mut tile = tiles.take((query.block.row + offset) * heads.keys + query.head);
            let out = tile.row(0).chunks_exact_mut(heads.size);
            for ((out, values), &sum) in out.zip(values.chunks_exact(heads.size)).zip(sums) {
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value / sum);
            }
        }
    };
    let tasks = blocks.len() * heads.keys;
    let parallel = work >= PARALLEL_WORK;
    let parts = blocks.iter().map(|block| block.parts()).max().unwrap_or(0);
    if !parallel || tasks >= pool.threads() || parts < 2 {
        pool.run(parallel, tasks, |index| {
            let query = task(index);
            let mut result = Part::new(heads, query.block.rows);
            for part in 0..query.block.parts() {
                let mut next = Part::new(heads, query.block.rows);
                set.run(Attend { query: &query, part, out: &mut next });
                result.merge(set, &next);
            }
            finish(&query, &result);
        });
        return;
    }
    // Few rows and a long text: threads share the parts of a block.
    let slots: Vec<std::sync::OnceLock<Part>> =
        (0..tasks * parts).map(|_| std::sync::OnceLock::new()).collect();
    pool.run(true, slots.len(), |slot| {
        let (query, part) = (task(slot / parts), slot % parts);
        if part < query.block.parts() {
            let mut next = Part::new(heads, query.block.rows);
            set.run(Attend { query: &query, part, out: &mut next });
            let _ = slots[slot].set(next);
        }
    });
    for index in 0..tasks {
        let query = task(index);
        let mut result = Part::new(heads, query.block.rows);
        for part in slots[index * parts..][..parts].iter().filter_map(|slot| slot.get()) {
            result.merge(set, part);
        }
        finish(&query, &result);
    }
}

/// Rows of a lane that follow each other and end in the same page: they see
/// the same pages, all but the last one in full, and share their loading.
#[derive(Clone, Copy)]
struct Block {
    lane: usize,
    row: usize,
    rows: usize,
    /// Positions that the first row sees; each next one sees one more.
    seen: usize,
}

impl Block {
    fn pages(&self) -> usize {
        self.seen.div_ceil(PAGE)
    }

    fn parts(&self) -> usize {
        self.pages().div_ceil(PART_PAGES)
    }
}

/// The queries of a block that share a key/value head.
struct Query<'a> {
    cache: &'a KeyValues,
    /// Those of all rows and heads.
    queries: &'a [f32],
    head: usize,
    block: Block,
}

/// A softmax over some positions that is not normalised yet.
struct Part {
    size: usize,
    /// Largest score, for each row and query head.
    largest: Vec<f32>,
    /// Sum of `e^(score - largest)`.
    sum: Vec<f32>,
    /// Sum of the values with these weights.
    values: Vec<f32>,
}

impl Part {
    fn new(heads: Heads, rows: usize) -> Part {
        let queries = rows * heads.group();
        Part {
            size: heads.size,
            largest: vec![f32::NEG_INFINITY; queries],
            sum: vec![0.0; queries],
            values: vec![0.0; queries * heads.size],
        }
    }

    /// Joins a later part.
    fn merge(&mut self, set: InstructionSet, later: &Part) {
        set.run(Merge { into: self, later });
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
pub(super) fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
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
        let Query { cache, queries, head, block } = self.query;
        let heads = cache.heads;
        let (size, group) = (heads.size, heads.group());
        // The scale of the scores, folded into the query.
        let scale = 1.0 / (size as f32).sqrt();
        let count = block.rows * group;
        let mut query = vec![0.0; count * size];
        for (row, query) in query.chunks_exact_mut(group * size).enumerate() {
            let from = ((block.row + row) * heads.keys + head) * group * size;
            for (to, from) in query.iter_mut().zip(&queries[from..]) {
                *to = from * scale;
            }
        }
        let mut scores = vec![[0.0; PAGE]; count];
        let first = self.part * PART_PAGES;
        let pages = first..(first + PART_PAGES).min(block.pages());
        for page in pages {
            let (keys, values) = cache.page(page, *head);
            let mut query_head = 0;
            while query_head < count {
                query_head += match count - query_head {
                    4.. => page_scores::<S, 4>(s, &query, keys, size, query_head, &mut scores),
                    3 => page_scores::<S, 3>(s, &query, keys, size, query_head, &mut scores),
                    2 => page_scores::<S, 2>(s, &query, keys, size, query_head, &mut scores),
                    _ => page_scores::<S, 1>(s, &query, keys, size, query_head, &mut scores),
                };
            }
            // Of the first row; a page that it sees in full is seen so by all.
            let seen = block.seen - page * PAGE;
            for (index, scores) in scores.iter_mut().enumerate() {
                let (largest, sum) = (&mut self.out.largest[index], &mut self.out.sum[index]);
                let keep = s.splat(page_weights(s, scores, PAGE.min(seen + index / group), largest, sum));
                for values in self.out.values[index * size..][..size].as_chunks_mut().0 {
                    s.store(s.mul(s.load(values), keep), values);
                }
            }
            let out = &mut self.out.values;
            if seen >= PAGE {
                page_heads(s, &scores, values, size, PAGE, 0..count, out);
                continue;
            }
            for row in 0..block.rows {
                page_heads(s, &scores, values, size, seen + row, row * group..(row + 1) * group, out);
            }
        }
    }
}

/// Scores of `H` heads over a page; returns `H`.
#[inline(always)]
pub(super) fn page_scores<S: Simd, const H: usize>(
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
    let (vectors, rest) = scores[..seen].as_chunks::<LANES>();
    let mut lanes = s.splat(*largest);
    for vector in vectors {
        lanes = s.max(s.load(vector), lanes);
    }
    let mut new = s.largest(lanes);
    for &score in rest {
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

/// Adds a page's first `seen` values for some queries.
#[inline(always)]
fn page_heads<S: Simd>(
    s: S,
    weights: &[[f32; PAGE]],
    values: &[f32],
    size: usize,
    seen: usize,
    heads: Range<usize>,
    out: &mut [f32],
) {
    let mut head = heads.start;
    while head < heads.end {
        head += match heads.end - head {
            4.. => page_values::<S, 4>(s, weights, values, size, seen, head, out),
            3 => page_values::<S, 3>(s, weights, values, size, seen, head, out),
            2 => page_values::<S, 2>(s, weights, values, size, seen, head, out),
            _ => page_values::<S, 1>(s, weights, values, size, seen, head, out),
        };
    }
}

/// Adds a page's values for `H` heads; returns `H`.
#[inline(always)]
pub(super) fn page_values<S: Simd, const H: usize>(
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
