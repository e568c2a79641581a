//! Activations, laid out to meet weights as they are unpacked.

use std::cell::RefCell;

use super::{UNIT, Vector, ZERO};
use crate::cpu::pool::Pool;
use crate::cpu::simd::LANES;
use crate::cpu::tiles::Chunks;
use crate::weights::{MatrixView, Storage};

/// Floats from which on threads share the work.
const PARALLEL_FLOATS: usize = 1 << 15;
/// Rows of a task.
const TASK_ROWS: usize = 8;

/// The order of a unit's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// As they are.
    Plain,
    /// The even ones, then the odd ones: a byte holds the codes of two.
    Pairs,
}

impl Layout {
    pub(super) fn of(weights: &MatrixView<'_>) -> Layout {
        match weights.storage {
            Storage::Affine { packing, .. } if packing.bits == 4 => Layout::Pairs,
            _ => Layout::Plain,
        }
    }
}

thread_local! {
    /// Buffers to use again: new memory costs more than filling it.
    static SPARE: RefCell<Vec<Vec<Vector>>> = const { RefCell::new(Vec::new()) };
}

/// Rows of activations in whole units; zeros fill the last one.
pub(super) struct LaidOut {
    pub(super) layout: Layout,
    /// Units of a row.
    pub(super) units: usize,
    data: Vec<Vector>,
}

impl LaidOut {
    pub(super) fn new(layout: Layout, pool: &mut Pool, x: &[f32], rows: usize, columns: usize) -> LaidOut {
        let units = columns.div_ceil(UNIT);
        let mut data = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        data.resize(rows * 2 * units, ZERO);
        let parallel = rows * columns >= PARALLEL_FLOATS;
        let task_rows = if parallel { TASK_ROWS } else { rows.max(1) };
        let chunks = Chunks::new(&mut data, task_rows * 2 * units.max(1));
        pool.run(parallel, chunks.count(), |task| {
            let rows = chunks.take(task).chunks_exact_mut(2 * units.max(1));
            for (x, out) in x[task * task_rows * columns..].chunks_exact(columns.max(1)).zip(rows) {
                lay_out(layout, x, out);
            }
        });
        drop(chunks);
        LaidOut { layout, units, data }
    }

    /// The vectors of a row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[Vector] {
        &self.data[row * 2 * self.units..][..2 * self.units]
    }
}

impl Drop for LaidOut {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        // Few, and not those of an uncommonly large call.
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < 2 {
                spare.push(data)
            }
        });
    }
}

fn lay_out(layout: Layout, x: &[f32], out: &mut [Vector]) {
    for (x, out) in x.chunks(UNIT).zip(out.as_chunks_mut::<2>().0) {
        let mut padded = [0.0; UNIT];
        let x = match x.first_chunk::<UNIT>() {
            Some(x) => x,
            None => {
                padded[..x.len()].copy_from_slice(x);
                &padded
            }
        };
        match layout {
            Layout::Plain => {
                out[0].0.copy_from_slice(&x[..LANES]);
                out[1].0.copy_from_slice(&x[LANES..]);
            }
            Layout::Pairs => {
                for (lane, [even, odd]) in x.as_chunks::<2>().0.iter().enumerate() {
                    out[0].0[lane] = *even;
                    out[1].0[lane] = *odd;
                }
            }
        }
    }
}
