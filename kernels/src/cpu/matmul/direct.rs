//! Few rows: weights are unpacked in registers.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use std::marker::PhantomData;
use std::ops::Range;

use super::decoders::Decoder;
use super::layout::LaidOut;
use super::{Rows, TILE_OUTPUTS, Vector, store_sums};
use crate::cpu::simd::{Kernel, Simd};
use crate::cpu::tiles::Tile;

/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;
/// How far ahead weights are asked for. The streams of a tile lie in one page
/// and take turns, which hides them from the machine's own prefetcher; what
/// follows a tile in memory is the next one.
pub(super) const PREFETCH: usize = 4096;

/// All outputs of a task for `rows` rows, fewer than [`PANEL_ROWS`](super::PANEL_ROWS).
pub(super) struct Direct<'a, 'o, D> {
    pub(super) weights: &'a Rows<'a>,
    pub(super) x: &'a LaidOut,
    pub(super) rows: Range<usize>,
    pub(super) outputs: usize,
    pub(super) out: &'a mut Tile<'o>,
    pub(super) decoder: PhantomData<D>,
}

impl<D: Decoder> Kernel for Direct<'_, '_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut row = 0;
        let count = self.rows.len();
        while row < count {
            // Without vector registers larger tiles only make code longer.
            row += if const { S::REGISTERS == 0 } {
                self.rows_of::<S, 1, 1>(s, row)
            } else if count - row >= 2 {
                self.rows_of::<S, TILE_OUTPUTS, 2>(s, row)
            } else {
                self.rows_of::<S, TILE_OUTPUTS, 1>(s, row)
            };
        }
    }
}

impl<D: Decoder> Direct<'_, '_, D> {
    /// All outputs for `R` rows, `O` at a time; returns `R`.
    #[inline(always)]
    fn rows_of<S: Simd, const O: usize, const R: usize>(&mut self, s: S, row: usize) -> usize {
        let mut rows: [&[Vector]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = self.x.row(self.rows.start + row + r);
        }
        let mut output = 0;
        while output + O <= self.outputs {
            let total = tile::<S, D, O, R>(s, self.weights, &rows, output);
            store_sums(s, &total, self.out, row, output);
            output += O;
        }
        while output < self.outputs {
            for r in 0..R {
                let total = tile::<S, D, 1, 1>(s, self.weights, &[rows[r]], output);
                self.out.row(row + r)[output] = s.sum(total[0][0]);
            }
            output += 1;
        }
        R
    }
}

/// The lanes of `O` outputs from `output` on for `R` rows.
#[inline(always)]
fn tile<S: Simd, D: Decoder, const O: usize, const R: usize>(
    s: S,
    weights: &Rows<'_>,
    x: &[&[Vector]; R],
    output: usize,
) -> [[S::F; R]; O] {
    let whole = weights.whole::<D>();
    let mut bytes: [&[u8]; O] = [&[]; O];
    for o in 0..O {
        bytes[o] = weights.from(output + o);
    }
    let mut total = [[s.zero(); R]; O];
    let mut unit = 0;
    for group in 0..weights.scales.groups {
        let mut groups = [D::group(s, 0.0, 0.0); O];
        for o in 0..O {
            let (scale, bias) = weights.scales.of(output + o, group);
            groups[o] = D::group(s, scale, bias);
        }
        let end = unit + weights.scales.units.min(whole - unit);
        while unit < end {
            let mut here: [&[u8]; O] = [&[]; O];
            for o in 0..O {
                here[o] = &bytes[o][unit * D::BYTES..];
            }
            if unit * D::BYTES % CACHE_LINE < D::BYTES {
                for o in 0..O {
                    s.prefetch(here[o].as_ptr().wrapping_add(PREFETCH));
                }
            }
            add_unit::<S, D, O, R>(s, &groups, &here, x, unit, &mut total);
            unit += 1;
        }
    }
    if whole < weights.units {
        let mut padded = [[0u8; 128]; O];
        let mut here: [&[u8]; O] = [&[]; O];
        for (o, (padded, here)) in padded.iter_mut().zip(&mut here).enumerate() {
            *padded = weights.rest::<D>(output + o);
            *here = padded;
        }
        let groups = [D::group(s, 0.0, 0.0); O];
        add_unit::<S, D, O, R>(s, &groups, &here, x, whole, &mut total);
    }
    total
}

#[inline(always)]
fn add_unit<S: Simd, D: Decoder, const O: usize, const R: usize>(
    s: S,
    groups: &[D::Group<S>; O],
    bytes: &[&[u8]; O],
    x: &[&[Vector]; R],
    unit: usize,
    total: &mut [[S::F; R]; O],
) {
    let mut inputs = [(s.zero(), s.zero()); R];
    for r in 0..R {
        let unit = &x[r][2 * unit..2 * unit + 2];
        inputs[r] = (s.load(&unit[0].0), s.load(&unit[1].0));
    }
    for o in 0..O {
        let (first, second) = D::unit(s, groups[o], bytes[o]);
        for r in 0..R {
            total[o][r] = s.fma(first, inputs[r].0, total[o][r]);
            total[o][r] = s.fma(second, inputs[r].1, total[o][r]);
        }
    }
}
