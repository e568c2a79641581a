//! Few rows: codes are met where they are mapped.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use super::super::direct::{CACHE_LINE, PREFETCH};
use super::{CHAINS, NIBBLE_LINES, Span, UNIT, add};
use crate::cpu::simd::{Integers, Simd};

/// Outputs of a tile: lane `4 o + c` of its sums is chain `c` of output `o`.
const OUTPUTS: usize = 4;

/// Blocks of one output, each of `LINES` cache lines.
type Codes<'a, const LINES: usize> = &'a [[[u8; CACHE_LINE]; LINES]];

/// Blocks of one row of activations, and their scales.
type Numbers<'a> = (&'a [[[i8; UNIT]; CHAINS]], &'a [[[f32; 2]; CHAINS]]);

impl Span<'_, '_> {
    #[inline(always)]
    pub(super) fn direct<I: Integers, const LINES: usize>(&mut self, i: I) {
        match self.weights.scales.units {
            1 => self.direct_groups::<I, LINES, 4>(i),
            2 => self.direct_groups::<I, LINES, 2>(i),
            _ => self.direct_groups::<I, LINES, 1>(i),
        }
    }

    /// With blocks of `GROUPS` groups.
    #[inline(always)]
    fn direct_groups<I: Integers, const LINES: usize, const GROUPS: usize>(&mut self, i: I) {
        let blocks = self.x.blocks;
        let mut room = std::mem::take(&mut self.room.lines);
        let mut output = 0;
        while output < self.outputs {
            // The last tile repeats the last output instead of going on behind it.
            let mut outputs = [0; OUTPUTS];
            let mut bytes: [&[u8]; OUTPUTS] = [&[]; OUTPUTS];
            for o in 0..OUTPUTS {
                outputs[o] = (output + o).min(self.outputs - 1);
                bytes[o] = self.weights.from(outputs[o]);
            }
            let row_bytes = blocks * LINES * CACHE_LINE;
            if bytes[OUTPUTS - 1].len() < row_bytes {
                // The matrix ends in the middle of a block.
                room.clear();
                room.resize(OUTPUTS * row_bytes, 0);
                for (o, padded) in room.chunks_exact_mut(row_bytes).enumerate() {
                    let row = &bytes[o][..self.weights.row_bytes];
                    padded[..row.len()].copy_from_slice(row);
                }
                for (o, padded) in room.chunks_exact(row_bytes).enumerate() {
                    bytes[o] = padded;
                }
            }
            let mut codes: [Codes<'_, LINES>; OUTPUTS] = [&[]; OUTPUTS];
            for o in 0..OUTPUTS {
                codes[o] = &bytes[o].as_chunks().0.as_chunks().0[..blocks];
            }
            let mut row = 0;
            while row < self.rows {
                row += match self.rows - row {
                    4.. => self.direct_rows::<I, LINES, GROUPS, 4>(i, outputs, codes, row),
                    2.. => self.direct_rows::<I, LINES, GROUPS, 2>(i, outputs, codes, row),
                    _ => self.direct_rows::<I, LINES, GROUPS, 1>(i, outputs, codes, row),
                };
            }
            output += OUTPUTS;
        }
        self.room.lines = room;
    }

    /// Four outputs for `R` rows; returns `R`.
    #[inline(always)]
    fn direct_rows<I: Integers, const LINES: usize, const GROUPS: usize, const R: usize>(
        &mut self,
        i: I,
        outputs: [usize; OUTPUTS],
        codes: [Codes<'_, LINES>; OUTPUTS],
        row: usize,
    ) -> usize {
        let s = i.floats();
        let total = self.direct_tile::<I, LINES, GROUPS, R>(i, outputs, codes, row);
        let there = OUTPUTS.min(self.outputs - outputs[0]);
        for r in 0..R {
            let mut lanes = [0.0; OUTPUTS * CHAINS];
            s.store(s.add(total[r], s.zero()), &mut lanes);
            let sums = lanes.as_chunks::<CHAINS>().0;
            let out = &mut self.out.row(row + r)[self.column + outputs[0]..][..there];
            for (out, [a, b, c, d]) in out.iter_mut().zip(sums) {
                *out = (a + c) + (b + d);
            }
        }
        R
    }

    #[inline(always)]
    fn direct_tile<I: Integers, const LINES: usize, const GROUPS: usize, const R: usize>(
        &self,
        i: I,
        outputs: [usize; OUTPUTS],
        codes: [Codes<'_, LINES>; OUTPUTS],
        row: usize,
    ) -> [<I::Floats as Simd>::F; R] {
        let s = i.floats();
        // All slices of the loop are cut to its length, which spares it their checks.
        let (whole, blocks) = (self.x.units / CHAINS, self.x.blocks);
        let mut x: [Numbers<'_>; R] = [(&[], &[]); R];
        let mut x_whole = x;
        for r in 0..R {
            let (numbers, scales) = self.x.row(self.first_row + row + r);
            x[r] = (&numbers.as_chunks().0[..blocks], &scales.as_chunks().0[..blocks]);
            x_whole[r] = (&x[r].0[..whole], &x[r].1[..whole]);
        }
        let mut codes_whole = codes;
        let mut scales: [&[f32]; OUTPUTS] = [&[]; OUTPUTS];
        let mut biases = scales;
        let mut scales_whole: [&[[f32; GROUPS]]; OUTPUTS] = [&[]; OUTPUTS];
        let mut biases_whole = scales_whole;
        for o in 0..OUTPUTS {
            codes_whole[o] = &codes[o][..whole];
            (scales[o], biases[o]) = self.weights.scales.row(outputs[o]);
            scales_whole[o] = &scales[o].as_chunks().0[..whole];
            biases_whole[o] = &biases[o].as_chunks().0[..whole];
        }
        let mut total = [s.zero(); R];
        for block in 0..whole {
            let scale = (whole_groups(s, &scales_whole, block), whole_groups(s, &biases_whole, block));
            add_block::<I, LINES, R>(i, &codes_whole, &x_whole, block, scale, &mut total);
        }
        if whole < blocks {
            let there = self.x.units - whole * CHAINS;
            let first = whole * GROUPS;
            let scale = (last_groups(s, &scales, first, there), last_groups(s, &biases, first, there));
            add_block::<I, LINES, R>(i, &codes, &x, whole, scale, &mut total);
        }
        total
    }
}

/// Adds a block of four outputs for `R` rows. What follows the last unit of a
/// row meets zeros of the activations.
#[inline(always)]
fn add_block<I: Integers, const LINES: usize, const R: usize>(
    i: I,
    codes: &[Codes<'_, LINES>; OUTPUTS],
    x: &[Numbers<'_>; R],
    block: usize,
    scale: (<I::Floats as Simd>::F, <I::Floats as Simd>::F),
    total: &mut [<I::Floats as Simd>::F; R],
) {
    let s = i.floats();
    let mut loaded = [(i.zero(), i.zero()); OUTPUTS];
    for o in 0..OUTPUTS {
        let lines = &codes[o][block];
        for line in lines {
            s.prefetch(line.as_ptr().wrapping_add(PREFETCH));
        }
        loaded[o] = if LINES == NIBBLE_LINES {
            i.load_nibbles(&lines[0])
        } else {
            (i.load_codes(&lines[0]), i.load_codes(&lines[1]))
        };
    }
    for r in 0..R {
        let numbers = x[r].0[block].as_flattened().as_chunks::<64>().0;
        let numbers = (i.load_x(&numbers[0]), i.load_x(&numbers[1]));
        let mut sums = [i.zero(); OUTPUTS];
        for o in 0..OUTPUTS {
            let first = i.dot(i.zero(), loaded[o].0, numbers.0);
            sums[o] = if LINES == NIBBLE_LINES {
                i.dot(first, loaded[o].1, numbers.1)
            } else {
                i.join_halves(first, i.dot(i.zero(), loaded[o].1, numbers.1))
            };
        }
        let x_scales = x[r].1[block].as_flattened().as_chunks::<CHAINS>().0;
        let x_scales = (s.repeat(&x_scales[0]), s.repeat(&x_scales[1]));
        total[r] = add(s, total[r], i.to_floats(i.sum_quarters(sums)), scale, x_scales);
    }
}

/// Scales or biases of all outputs for a block that is there in full.
#[inline(always)]
fn whole_groups<S: Simd, const GROUPS: usize>(
    s: S,
    rows: &[&[[f32; GROUPS]]; OUTPUTS],
    block: usize,
) -> S::F {
    let mut four = [[0.0; CHAINS]; OUTPUTS];
    for o in 0..OUTPUTS {
        let groups = &rows[o][block];
        for chain in 0..CHAINS {
            four[o][chain] = groups[chain * GROUPS / CHAINS];
        }
    }
    s.quarters([&four[0], &four[1], &four[2], &four[3]])
}

/// Scales or biases of all outputs for the `there` units of the last block,
/// whose first group is `first`, and zeros for the others.
#[inline(always)]
fn last_groups<S: Simd>(s: S, rows: &[&[f32]; OUTPUTS], first: usize, there: usize) -> S::F {
    let mut four = [[0.0; CHAINS]; OUTPUTS];
    for o in 0..OUTPUTS {
        let groups = &rows[o][first..];
        // Groups of one unit or of all that are there: of two, or of four, in which case there is
        // no such block.
        for unit in 0..there {
            four[o][unit] = groups[unit * groups.len() / there];
        }
    }
    s.quarters([&four[0], &four[1], &four[2], &four[3]])
}
