//! What only block drafters do: attention within a block and before it, and
//! the mixing of a block's rows.

use std::ops::Range;

use super::attention::{Heads, KeyValues, PAGE, page_scores, page_values};
use super::pool::Pool;
use super::simd::{InstructionSet, Kernel, LANES, Simd};
use super::tiles::Tiles;
use super::{CpuDevice, select};
use crate::device::{AttentionLane, BlockDevice, BlockLane, DeviceResult, Mix, SelectLane, Selector, Sight};

/// Multiply-adds from which on other threads are woken.
const PARALLEL_WORK: usize = 1 << 18;

/// The queries of one row that share a key/value head.
struct Query<'a> {
    cache: &'a KeyValues,
    query: &'a [f32],
    head: usize,
    /// Positions of the cache that the row sees.
    context: Range<usize>,
    /// Keys and values of the block's rows that it sees, for this head, `stride` apart.
    keys: &'a [f32],
    values: &'a [f32],
    stride: usize,
    /// How many of them.
    own: usize,
    tile: usize,
}

/// Positions before a block, and rows of it, that its row `row` sees; the block begins at position `first`.
fn seen(sight: Sight, first: usize, row: usize, rows: usize) -> (Range<usize>, Range<usize>) {
    let window = sight.window.unwrap_or(usize::MAX);
    let context = (first + row + 1).saturating_sub(window).min(first)..first;
    let end = if sight.causal { row + 1 } else { rows.min(row.saturating_add(window)) };
    (context, (row + 1).saturating_sub(window)..end)
}

/// Lets every row of the lanes' blocks attend.
fn attend(
    set: InstructionSet,
    pool: &mut Pool,
    lanes: &[BlockLane<'_, CpuDevice>],
    sight: Sight,
    [queries, keys, values]: [&[f32]; 3],
    out: &mut [f32],
) {
    let Some(heads) = lanes.first().map(|lane| lane.cache.heads()) else { return };
    let (group, width) = (heads.group() * heads.size, heads.keys * heads.size);
    let mut tasks = Vec::new();
    let (mut work, mut count) = (0, 0);
    for lane in lanes {
        count = count.max(lane.rows.end);
        for (offset, row) in lane.rows.clone().enumerate() {
            let (context, own) = seen(sight, lane.cache.tokens(), offset, lane.rows.len());
            work += (context.len() + own.len()) * heads.queries * heads.size * 2;
            for head in 0..heads.keys {
                let tile = row * heads.keys + head;
                let from = (lane.rows.start + own.start) * width + head * heads.size;
                tasks.push(Query {
                    cache: lane.cache,
                    query: &queries[tile * group..][..group],
                    head,
                    context: context.clone(),
                    keys: &keys[from..],
                    values: &values[from..],
                    stride: width,
                    own: own.len(),
                    tile,
                });
            }
        }
    }
    let tiles = Tiles::new(out, count, heads.queries * heads.size, 1, group);
    pool.run(work >= PARALLEL_WORK, tasks.len(), |index| {
        let query = &tasks[index];
        set.run(Attend { heads, query, out: tiles.take(query.tile).row(0) });
    });
}

struct Attend<'a, 'q> {
    heads: Heads,
    query: &'a Query<'q>,
    out: &'a mut [f32],
}

impl Kernel for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attend { heads, query, out } = self;
        let (size, group) = (heads.size, heads.group());
        let scale = 1.0 / (size as f32).sqrt();
        let scaled: Vec<f32> = query.query.iter().map(|x| x * scale).collect();
        let pages = query.context.start / PAGE..query.context.end.div_ceil(PAGE);
        // For each page, the scores of every query head; then those of the block.
        let mut scores = vec![[f32::NEG_INFINITY; PAGE]; pages.len() * group];
        for (page, scores) in pages.clone().zip(scores.chunks_exact_mut(group)) {
            let (keys, _) = query.cache.page(page, query.head);
            for head in 0..group {
                page_scores::<S, 1>(s, &scaled, keys, size, head, scores);
                let seen = slots(&query.context, page);
                scores[head][..seen.start].fill(f32::NEG_INFINITY);
                scores[head][seen.end..].fill(f32::NEG_INFINITY);
            }
        }
        let mut own = vec![0.0; query.own * group];
        for (row, own) in own.chunks_exact_mut(group).enumerate() {
            let key = &query.keys[row * query.stride..][..size];
            for (score, q) in own.iter_mut().zip(scaled.chunks_exact(size)) {
                *score = q.iter().zip(key).map(|(q, k)| q * k).sum();
            }
        }
        out.fill(0.0);
        for head in 0..group {
            let context = || scores.iter().skip(head).step_by(group).flatten();
            let block = || own.iter().skip(head).step_by(group);
            let largest = context().chain(block()).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
            let mut total = 0.0;
            let mut weigh = |score: &mut f32| {
                *score = if *score == f32::NEG_INFINITY { 0.0 } else { (*score - largest).exp() };
                total += *score;
            };
            scores.iter_mut().skip(head).step_by(group).flatten().for_each(&mut weigh);
            own.iter_mut().skip(head).step_by(group).for_each(&mut weigh);
            let weight = 1.0 / total;
            for (page, scores) in pages.clone().zip(scores.chunks_exact(group)) {
                let (_, values) = query.cache.page(page, query.head);
                let end = slots(&query.context, page).end;
                page_values::<S, 1>(s, scores, values, size, end, head, out);
            }
            let out = out[head * size..][..size].as_chunks_mut::<LANES>().0;
            for (row, own) in own.chunks_exact(group).enumerate() {
                let weight = s.splat(own[head]);
                let value = query.values[row * query.stride..][..size].as_chunks::<LANES>().0;
                for (out, value) in out.iter_mut().zip(value) {
                    s.store(s.fma(weight, s.load(value), s.load(out)), out);
                }
            }
            for out in out {
                s.store(s.mul(s.load(out), s.splat(weight)), out);
            }
        }
    }
}

/// The slots of a page that hold positions of a range.
fn slots(range: &Range<usize>, page: usize) -> Range<usize> {
    let first = page * PAGE;
    range.start.saturating_sub(first).min(PAGE)..(range.end - first).min(PAGE)
}

/// See [`BlockDevice::mix`].
fn mix_row(mix: Mix, width: usize, row: usize, x: &[f32], added: &[f32], base: &[f32], out: &mut [f32]) {
    let groups = width / mix.group;
    out.fill(0.0);
    for tap in 0..mix.kernel.min(row + 1) {
        let at = mix.side * mix.kernel + tap;
        let base = &base[at * width..][..width];
        let added = &added[(row * 2 * mix.kernel + at) * groups..][..groups];
        let x = &x[(row - tap) * width..][..width];
        for (channel, (out, (base, x))) in out.iter_mut().zip(base.iter().zip(x)).enumerate() {
            *out += (base + added[channel / mix.group]) * x;
        }
    }
}

impl BlockDevice for CpuDevice {
    fn append(
        &mut self,
        lanes: &mut [AttentionLane<'_, Self>],
        keys: &Vec<f32>,
        values: &Vec<f32>,
    ) -> DeviceResult {
        for lane in lanes {
            let heads = lane.cache.heads();
            let width = heads.keys * heads.size;
            let range = lane.rows.start * width..lane.rows.end * width;
            lane.cache.append(&keys[range.clone()], &values[range]);
        }
        Ok(())
    }

    fn forget(&mut self, cache: &mut KeyValues, position: usize) -> DeviceResult {
        cache.forget(position);
        Ok(())
    }

    fn attend_block(
        &mut self,
        lanes: &[BlockLane<'_, Self>],
        sight: Sight,
        queries: &Vec<f32>,
        keys: &Vec<f32>,
        values: &Vec<f32>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        attend(self.set, &mut self.pool, lanes, sight, [queries, keys, values], out);
        Ok(())
    }

    fn mix(
        &mut self,
        blocks: &[Range<usize>],
        width: usize,
        mix: Mix,
        x: &Vec<f32>,
        added: &Vec<f32>,
        base: &Vec<f32>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let coefficients = 2 * mix.kernel * (width / mix.group);
        for block in blocks {
            let (x, added) = (&x[block.start * width..], &added[block.start * coefficients..]);
            let rows = out[block.start * width..block.end * width].chunks_exact_mut(width);
            for (row, out) in rows.enumerate() {
                mix_row(mix, width, row, x, added, base, out);
            }
        }
        Ok(())
    }

    fn adjust(
        &mut self,
        rows: usize,
        width: usize,
        x: &mut Vec<f32>,
        multiplier: f32,
        cap: Option<f32>,
    ) -> DeviceResult {
        self.by_rows(rows, width, x, |_, _, x| {
            for x in x {
                *x *= multiplier;
                if let Some(cap) = cap {
                    *x = cap * (*x / cap).tanh();
                }
            }
        });
        Ok(())
    }

    fn select(
        &mut self,
        lanes: &[SelectLane],
        selector: &Selector<'_, '_, Self>,
        logits: &Vec<f32>,
        width: usize,
        selectable: u32,
        projected: &Vec<f32>,
    ) -> DeviceResult<Vec<Vec<(u32, f32)>>> {
        let walk = |lane: &SelectLane| {
            let slots = lane.rows.clone().map(|row| {
                let logits = &logits[row * width..(row + 1) * width];
                let logits = &logits[..width.min(selectable as usize)];
                (
                    select::best(logits, selector.candidates),
                    &projected[row * selector.rank..][..selector.rank],
                )
            });
            select::walk(selector, lane, slots)
        };
        Ok(lanes.iter().map(walk).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(sight: Sight, q: usize, k: usize) -> bool {
        (!sight.causal || k <= q) && sight.window.is_none_or(|window| q.abs_diff(k) < window)
    }

    #[test]
    fn rows_see_what_the_rule_says() {
        for window in [None, Some(2), Some(3), Some(16), Some(70)] {
            for causal in [false, true] {
                let sight = Sight { window, causal };
                for (first, rows) in [(0, 1), (0, 5), (3, 8), (40, 8), (130, 8)] {
                    for row in 0..rows {
                        let (context, own) = seen(sight, first, row, rows);
                        for k in 0..first + rows {
                            let found = context.contains(&k) || k >= first && own.contains(&(k - first));
                            assert_eq!(found, visible(sight, first + row, k), "{sight:?} {first} {row} {k}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn forgotten_pages_hold_nothing_and_later_ones_stay() {
        let heads = Heads { queries: 1, keys: 1, size: 16 };
        let mut cache = KeyValues::new(heads);
        let rows: Vec<f32> = (0..200 * 16).map(|i| i as f32).collect();
        cache.append(&rows, &rows);
        let all = cache.bytes();
        cache.forget(63);
        assert_eq!(cache.bytes(), all);
        cache.forget(130);
        cache.forget(130);
        assert_eq!(cache.bytes(), all / 2);
        assert_eq!((cache.tokens(), cache.value(150, 0)[0]), (200, 2400.0));
        cache.append(&rows[..16], &rows[..16]);
        assert_eq!(cache.tokens(), 201);
    }
}
