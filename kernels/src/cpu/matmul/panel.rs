//! Many rows: weights are unpacked once into a buffer.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use std::marker::PhantomData;
use std::ops::Range;

use super::decoders::Decoder;
use super::layout::LaidOut;
use super::{Rows, Vector, ZERO, store_sums};
use crate::cpu::simd::{Kernel, Simd};
use crate::cpu::tiles::Tile;

/// Unpacks the weights of a task's outputs into `panel`.
pub(super) struct Unpack<'a, D> {
    pub(super) weights: &'a Rows<'a>,
    pub(super) outputs: usize,
    pub(super) panel: &'a mut Vec<Vector>,
    pub(super) decoder: PhantomData<D>,
}

impl<D: Decoder> Kernel for Unpack<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let vectors = 2 * self.weights.units;
        self.panel.resize(self.outputs * vectors, ZERO);
        for output in 0..self.outputs {
            unpack::<S, D>(s, self.weights, output, &mut self.panel[output * vectors..][..vectors]);
        }
    }
}

/// Multiplies an unpacked panel with all rows.
pub(super) struct Panel<'a, 'o> {
    pub(super) panel: &'a [Vector],
    /// Vectors of an output.
    pub(super) vectors: usize,
    pub(super) x: &'a LaidOut,
    pub(super) rows: Range<usize>,
    pub(super) outputs: usize,
    pub(super) out: &'a mut Tile<'o>,
}

impl Kernel for Panel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut row = 0;
        let count = self.rows.len();
        while row < count {
            // As many accumulators as registers hold beside the weights.
            row += if const { S::REGISTERS >= 32 } {
                match count - row {
                    4.. => self.rows_of::<S, 4, 4>(s, row),
                    2.. => self.rows_of::<S, 4, 2>(s, row),
                    _ => self.rows_of::<S, 4, 1>(s, row),
                }
            } else if const { S::REGISTERS >= 16 } {
                match count - row {
                    3.. => self.rows_of::<S, 2, 3>(s, row),
                    _ => self.rows_of::<S, 2, 1>(s, row),
                }
            } else {
                self.rows_of::<S, 1, 1>(s, row)
            };
        }
    }
}

impl Panel<'_, '_> {
    /// All outputs for `R` rows, `O` at a time; returns `R`.
    #[inline(always)]
    fn rows_of<S: Simd, const O: usize, const R: usize>(&mut self, s: S, row: usize) -> usize {
        let (vectors, outputs) = (self.vectors, self.outputs);
        let mut rows: [&[Vector]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = self.x.row(self.rows.start + row + r);
        }
        let mut output = 0;
        while output + O <= outputs {
            let total = tile::<S, O, R>(s, &self.panel[output * vectors..], vectors, &rows);
            store_sums(s, &total, self.out, row, output);
            output += O;
        }
        while output < outputs {
            for r in 0..R {
                let total = tile::<S, 1, 1>(s, &self.panel[output * vectors..], vectors, &[rows[r]]);
                self.out.row(row + r)[output] = s.sum(total[0][0]);
            }
            output += 1;
        }
        R
    }
}

/// The weights of one output as floats.
#[inline(always)]
fn unpack<S: Simd, D: Decoder>(s: S, weights: &Rows<'_>, output: usize, out: &mut [Vector]) {
    let whole = weights.whole::<D>();
    let bytes = weights.from(output);
    let out = out.as_chunks_mut::<2>().0;
    let mut unit = 0;
    for group in 0..weights.scales.groups {
        let (scale, bias) = weights.scales.of(output, group);
        let group = D::group(s, scale, bias);
        let end = unit + weights.scales.units.min(whole - unit);
        while unit < end {
            let (first, second) = D::unit(s, group, &bytes[unit * D::BYTES..]);
            s.store(first, &mut out[unit][0].0);
            s.store(second, &mut out[unit][1].0);
            unit += 1;
        }
    }
    if whole < weights.units {
        let (first, second) = D::unit(s, D::group(s, 0.0, 0.0), &weights.rest::<D>(output));
        s.store(first, &mut out[whole][0].0);
        s.store(second, &mut out[whole][1].0);
    }
}

/// The lanes of the panel's first `O` outputs for `R` rows.
#[inline(always)]
fn tile<S: Simd, const O: usize, const R: usize>(
    s: S,
    panel: &[Vector],
    vectors: usize,
    x: &[&[Vector]; R],
) -> [[S::F; R]; O] {
    let mut weights: [&[Vector]; O] = [&[]; O];
    for o in 0..O {
        weights[o] = &panel[o * vectors..][..vectors];
    }
    let mut inputs = *x;
    for r in 0..R {
        inputs[r] = &inputs[r][..vectors];
    }
    let mut total = [[s.zero(); R]; O];
    for vector in 0..vectors {
        let mut unpacked = [s.zero(); O];
        for o in 0..O {
            unpacked[o] = s.load(&weights[o][vector].0);
        }
        for r in 0..R {
            let x = s.load(&inputs[r][vector].0);
            for o in 0..O {
                total[o][r] = s.fma(unpacked[o], x, total[o][r]);
            }
        }
    }
    total
}
