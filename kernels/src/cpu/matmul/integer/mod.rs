//! Products with activations of eight bits.
//!
//! The units of a row of activations, 32 inputs each, are rounded to whole
//! numbers from -127 to 127 times a scale of their own ([`rounded`]). What
//! remains to be summed within a unit is products of whole numbers, exactly. A
//! unit's sum then takes part as `sum * weight scale * unit scale`, and its
//! bias as `bias * unit sum`. Each output of each row has four chains of
//! additions: chain `c` takes units `c`, `c + 4` and so on in order and ends
//! with zero, which makes nothing of a negative zero; then chains two apart are
//! added, and the two sums. So the bits of a row depend neither on its company
//! nor on threads or instructions, as with floats.
//!
//! Few rows meet codes where they are mapped, four outputs and four units at a
//! time ([`direct`]); for many rows the codes of some outputs are laid out side
//! by side, in a buffer that stays in the first cache ([`panel`]).
//!
//! Weights of 4 and 8 bits are multiplied so; others are with floats.

mod direct;
mod panel;
mod rounded;

use std::ops::Range;

use super::decoders::ReadScales;
use super::{Rows, UNIT, Vector};
use crate::cpu::simd::{IntegerKernel, Integers, Kernel, Simd};
use crate::cpu::tiles::Tile;
use crate::weights::MatrixView;
pub(super) use panel::Room;
pub(super) use rounded::Rounded;

/// Chains of an output's additions, and units of a block.
const CHAINS: usize = 4;
/// Cache lines of a block of codes of four bits.
const NIBBLE_LINES: usize = CHAINS * UNIT / 2 / 64;
/// Cache lines of a block of codes of eight bits.
const BYTE_LINES: usize = CHAINS * UNIT / 64;
/// Rows from which on codes are laid out in a panel.
const PANEL_ROWS: usize = 16;
/// Outputs that are computed before the next: a panel, and few enough for their
/// scales to be read just ahead of their codes.
pub(super) const SPAN_OUTPUTS: usize = panel::OUTPUTS;

/// Whether so many rows meet a panel.
pub(super) fn takes_panel(rows: usize) -> bool {
    rows >= PANEL_ROWS
}

/// Some outputs for some rows.
pub(super) struct Integer<'a, 'w, 'o> {
    pub(super) weights: &'a MatrixView<'w>,
    pub(super) outputs: Range<usize>,
    pub(super) x: &'a Rounded,
    pub(super) rows: Range<usize>,
    /// Room for scales.
    pub(super) scales: &'a mut Vec<f32>,
    pub(super) room: &'a mut Room,
    pub(super) out: &'a mut Tile<'o>,
}

impl IntegerKernel for Integer<'_, '_, '_> {
    #[inline(always)]
    fn run<I: Integers>(self, i: I) {
        let Integer { weights, outputs, x, rows, scales, room, out } = self;
        let mut first = outputs.start;
        while first < outputs.end {
            let span = first..outputs.end.min(first + SPAN_OUTPUTS);
            ReadScales { weights, outputs: span.clone(), room: scales }.run(i.floats());
            let rows_of = Rows::new(weights, scales, first);
            let column = first - outputs.start;
            let outputs = span.len();
            let (first_row, rows) = (rows.start, rows.len());
            let mut span = Span { weights: &rows_of, outputs, x, first_row, rows, column, room, out };
            if x.panel {
                span.panel(i);
            } else if x.nibbles {
                span.direct::<I, NIBBLE_LINES>(i);
            } else {
                span.direct::<I, BYTE_LINES>(i);
            }
            first += SPAN_OUTPUTS;
        }
    }
}

/// Up to [`SPAN_OUTPUTS`] outputs for some rows.
struct Span<'a, 'o> {
    weights: &'a Rows<'a>,
    outputs: usize,
    x: &'a Rounded,
    /// The first row in `x`; in `out` it is row 0.
    first_row: usize,
    rows: usize,
    /// Where the outputs lie in `out`.
    column: usize,
    room: &'a mut Room,
    out: &'a mut Tile<'o>,
}

/// Adds units' sums to their chains. `scale` and `bias` are the weights',
/// `x_scale` and `x_sum` those of the activations.
#[inline(always)]
fn add<S: Simd>(s: S, total: S::F, sums: S::F, (scale, bias): (S::F, S::F), x: (S::F, S::F)) -> S::F {
    s.fma(bias, x.1, s.fma(s.mul(sums, scale), x.0, total))
}
