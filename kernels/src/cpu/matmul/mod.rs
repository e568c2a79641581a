//! Activations times weights, the bulk of all work.
//!
//! Inputs are taken in units of 32, two vectors of sixteen lanes. A weight is
//! first turned into a float, packed ones by `scale * code + bias` in one
//! rounding; then each lane adds its products unit by unit in one chain of
//! fused multiply-adds, and at the end the lanes are summed by one tree. Each
//! output of each row has its own lanes, so tiles share the loading and
//! unpacking of weights between rows without any influence on the bits of a
//! row: one row alone, many rows, any tile and any number of threads give the
//! same result.
//!
//! Few rows unpack weights in registers, as they are met ([`direct`]); many
//! rows unpack the weights of some outputs once into a buffer that stays in
//! the cache and multiply from there ([`panel`]). Weights themselves stay
//! where they are mapped; no copy of a whole matrix is ever made.

mod decoders;
mod direct;
mod integer;
mod layout;
mod panel;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::pool::Pool;
use super::simd::{InstructionSet, Kernel, LANES, Simd};
use super::tiles::{Tile, Tiles};
use crate::weights::{ElementType, MatrixView, Storage};
use decoders::{Bf16, Bits, Bytes, Decoder, F16, F32, Nibbles, ReadScales, Scales};
use direct::Direct;
use integer::{Integer, Room, Rounded};
use layout::{LaidOut, Layout};
use panel::{Panel, Unpack};

/// Inputs of a unit.
const UNIT: usize = 2 * LANES;
/// Rows from which on weights are unpacked into a panel.
const PANEL_ROWS: usize = 4;
/// Floats of a panel: it shares the second-level cache with activations.
const PANEL_FLOATS: usize = 1 << 16;
/// Most outputs that one task computes.
const TASK_OUTPUTS: usize = 256;
/// Outputs of a task are a multiple of this, that tiles come out even.
const TILE_OUTPUTS: usize = 4;
/// Tasks for each thread, so that a thread that is held up delays nobody.
const TASKS_PER_THREAD: usize = 4;
/// Tasks for each thread below which rows are shared out as well, and the fewest
/// rows of a task then: each task lays out its outputs anew.
const BALANCED_TASKS: usize = 3;
const SHARED_ROWS: usize = 48;
/// Rows times inputs times outputs from which on other threads help.
const PARALLEL_WORK: usize = 1 << 16;

/// Sixteen floats that lie in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Vector([f32; LANES]);

const ZERO: Vector = Vector([0.0; LANES]);

thread_local! {
    /// Room that tasks of this thread use one after the other.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { scales: Vec::new(), panel: Vec::new(), room: Room::new() }) };
}

struct Scratch {
    scales: Vec<f32>,
    panel: Vec<Vector>,
    /// A panel of codes.
    room: Room,
}

/// One product: `out[row][output] = x[row] . weights[output] + bias[output]`.
pub(crate) struct Product<'a, 'w> {
    pub(crate) weights: &'a MatrixView<'w>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

/// What activations are multiplied as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Floats of 32 bits.
    #[default]
    F32,
    /// Whole numbers of eight bits with a scale for 32 of them, where weights
    /// are packed codes of 4 or 8 bits; floats where not.
    Int8,
}

impl Activations {
    /// The name used in options and logs.
    pub fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

/// How products are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) set: InstructionSet,
    pub(crate) activations: Activations,
}

impl Arithmetic {
    /// That of floats.
    #[cfg(test)]
    pub(crate) fn floats(set: InstructionSet) -> Arithmetic {
        Arithmetic { set, activations: Activations::F32 }
    }

    /// Whether a matrix meets whole numbers, and if so whether of nibbles.
    fn rounded(self, weights: &MatrixView<'_>) -> Option<bool> {
        match weights.storage {
            Storage::Affine { packing, .. } if self.activations == Activations::Int8 => match packing.bits {
                4 => Some(true),
                8 => Some(false),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Activations as a matrix meets them.
enum Input<'a> {
    Floats(&'a LaidOut),
    Rounded(&'a Rounded),
}

/// Multiplies `rows` rows of `x` with several matrices of equal width.
pub(crate) fn multiply(
    arithmetic: Arithmetic,
    pool: &mut Pool,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_, '_>],
) {
    let Some(first) = products.first() else { return };
    let columns = first.weights.columns;
    let outputs: usize = products.iter().map(|product| product.weights.rows).sum();
    let parallel = rows * columns * outputs >= PARALLEL_WORK;
    let panels = products.iter().any(|product| arithmetic.rounded(product.weights).is_some())
        && integer::takes_panel(rows);
    let task_outputs = match task_outputs(rows, columns, outputs, pool.threads()) {
        few if panels => few.next_multiple_of(integer::SPAN_OUTPUTS),
        few => few,
    };
    let mut laid_out: Vec<LaidOut> = Vec::new();
    let mut rounded: Vec<Rounded> = Vec::new();
    for product in products.iter() {
        if let Some(nibbles) = arithmetic.rounded(product.weights) {
            if !rounded.iter().any(|x| x.of_nibbles() == nibbles) {
                rounded.push(Rounded::new(arithmetic.set, nibbles, pool, x, rows, columns));
            }
            continue;
        }
        let layout = Layout::of(product.weights);
        if !laid_out.iter().any(|x| x.layout == layout) {
            laid_out.push(LaidOut::new(layout, pool, x, rows, columns));
        }
    }
    let tasks = products.iter().map(|product| product.weights.rows.div_ceil(task_outputs)).sum();
    let task_rows = task_rows(rows, tasks, pool.threads());
    let mut parts = Vec::new();
    for product in products.iter_mut() {
        let weights = product.weights;
        assert_eq!(weights.columns, columns, "matrices of one call have equal widths");
        let x = match arithmetic.rounded(weights) {
            Some(nibbles) => rounded.iter().find(|x| x.of_nibbles() == nibbles).map(Input::Rounded),
            None => laid_out.iter().find(|x| x.layout == Layout::of(weights)).map(Input::Floats),
        };
        let x = x.expect("every form was prepared above");
        let tiles = Tiles::new(product.out, rows, weights.rows, task_rows, task_outputs);
        parts.push((weights, x, product.bias, tiles));
    }
    let tasks = parts.iter().map(|part| part.3.count()).sum();
    pool.run(parallel, tasks, |task| {
        let mut index = task;
        for (weights, x, bias, tiles) in &parts {
            if index < tiles.count() {
                let across = weights.rows.div_ceil(task_outputs);
                let first = index % across * task_outputs;
                let outputs = first..weights.rows.min(first + task_outputs);
                let first_row = index / across * task_rows;
                let rows = first_row..rows.min(first_row + task_rows);
                let mut out = tiles.take(index);
                SCRATCH.with_borrow_mut(|scratch| {
                    let outputs = outputs.clone();
                    arithmetic.set.run(Task {
                        set: arithmetic.set,
                        weights,
                        x,
                        rows: rows.clone(),
                        outputs,
                        out: &mut out,
                        scratch,
                    });
                });
                if let Some(bias) = bias {
                    for row in 0..rows.len() {
                        out.row(row).iter_mut().zip(&bias[outputs.clone()]).for_each(|(y, b)| *y += b);
                    }
                }
                return;
            }
            index -= tiles.count();
        }
    });
}

/// Puts the sums of a tile's lanes, `O` outputs of `R` rows, where they belong.
#[expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]
#[inline(always)]
fn store_sums<S: Simd, const O: usize, const R: usize>(
    s: S,
    total: &[[S::F; R]; O],
    out: &mut Tile<'_>,
    row: usize,
    output: usize,
) {
    for r in 0..R {
        let mut lanes = [s.zero(); TILE_OUTPUTS];
        for o in 0..O {
            lanes[o] = total[o][r];
        }
        out.row(row + r)[output..output + O].copy_from_slice(&s.sum_four(lanes)[..O]);
    }
}

/// How many outputs a task computes: few enough to keep every thread busy and
/// a panel in the cache. The bits of results do not depend on it.
fn task_outputs(rows: usize, columns: usize, outputs: usize, threads: usize) -> usize {
    let cached = match rows {
        PANEL_ROWS.. => PANEL_FLOATS / columns.max(1),
        _ => TASK_OUTPUTS,
    };
    let shared = match threads {
        1 => TASK_OUTPUTS,
        _ => outputs.div_ceil(threads * TASKS_PER_THREAD),
    };
    cached.min(shared).min(TASK_OUTPUTS).next_multiple_of(TILE_OUTPUTS)
}

/// How many rows a task computes: all, unless there are too few tasks to keep
/// every thread busy. The bits of results do not depend on it.
fn task_rows(rows: usize, tasks: usize, threads: usize) -> usize {
    let pieces = match threads {
        1 => 1,
        _ => (threads * BALANCED_TASKS).div_ceil(tasks.max(1)).min(rows / SHARED_ROWS),
    };
    rows.max(1).div_ceil(pieces.max(1))
}

/// Some outputs for some rows.
struct Task<'a, 'w, 'o> {
    set: InstructionSet,
    weights: &'a MatrixView<'w>,
    x: &'a Input<'a>,
    rows: Range<usize>,
    outputs: Range<usize>,
    out: &'a mut Tile<'o>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Task { set, weights, x, rows, outputs, out, scratch } = self;
        let Scratch { scales, panel, room } = scratch;
        let x = match x {
            Input::Floats(x) => x,
            Input::Rounded(x) => {
                set.run_integers(Integer { weights, outputs, x, rows, scales, room, out });
                return;
            }
        };
        s.run(ReadScales { weights, outputs: outputs.clone(), room: scales });
        let weights_of = Rows::new(weights, scales, outputs.start);
        let job = Job { weights: &weights_of, x, rows, outputs: outputs.len(), panel, out };
        match weights.storage {
            Storage::Plain { element, .. } => match element {
                ElementType::F32 => job.run::<S, F32>(s),
                ElementType::Bf16 => job.run::<S, Bf16>(s),
                ElementType::F16 => job.run::<S, F16>(s),
                ElementType::U32 => unreachable!("a plain matrix holds floats"),
            },
            Storage::Affine { packing, .. } => match packing.bits {
                2 => job.run::<S, Bits<2>>(s),
                3 => job.run::<S, Bits<3>>(s),
                4 => job.run::<S, Nibbles>(s),
                5 => job.run::<S, Bits<5>>(s),
                6 => job.run::<S, Bits<6>>(s),
                _ => job.run::<S, Bytes>(s),
            },
        }
    }
}

/// A task whose weights' form is known.
struct Job<'a, 'o> {
    weights: &'a Rows<'a>,
    x: &'a LaidOut,
    rows: Range<usize>,
    outputs: usize,
    panel: &'a mut Vec<Vector>,
    out: &'a mut Tile<'o>,
}

impl Job<'_, '_> {
    #[inline(always)]
    fn run<S: Simd, D: Decoder>(self, s: S) {
        let Job { weights, x, rows, outputs, panel, out } = self;
        if rows.len() < PANEL_ROWS {
            s.run(Direct::<D> { weights, x, rows, outputs, out, decoder: PhantomData });
        } else {
            s.run(Unpack::<D> { weights, outputs, panel, decoder: PhantomData });
            s.run(Panel { panel, vectors: 2 * weights.units, x, rows, outputs, out });
        }
    }
}

/// The weights of a task's outputs.
struct Rows<'a> {
    /// Those of the whole matrix.
    bytes: &'a [u8],
    /// Bytes of one output.
    row_bytes: usize,
    scales: Scales<'a>,
    /// The task's first output; the others are counted from it.
    first: usize,
    /// Units of an output; the last one may be shorter.
    units: usize,
}

impl<'a> Rows<'a> {
    /// Those from output `first` on, whose scales [`ReadScales`] left in `scales`.
    fn new(weights: &MatrixView<'a>, scales: &'a [f32], first: usize) -> Rows<'a> {
        let (Storage::Plain { bytes, .. } | Storage::Affine { codes: bytes, .. }) = weights.storage;
        Rows {
            bytes,
            row_bytes: bytes.len() / weights.rows.max(1),
            scales: Scales::new(weights, scales),
            first,
            units: weights.columns.div_ceil(UNIT),
        }
    }

    /// The weights of output `output`, and whatever comes after them: units may
    /// be read in windows longer than they are.
    #[inline(always)]
    fn from(&self, output: usize) -> &[u8] {
        &self.bytes[(self.first + output) * self.row_bytes..]
    }

    /// Units that are there in full.
    #[inline(always)]
    fn whole<D: Decoder>(&self) -> usize {
        self.row_bytes / D::BYTES
    }

    /// The last unit when it is shorter than others, filled with zeros, which
    /// meet zeros of the activations.
    #[inline(always)]
    fn rest<D: Decoder>(&self, output: usize) -> [u8; 128] {
        let whole = self.whole::<D>() * D::BYTES;
        let mut padded = [0; 128];
        padded[..self.row_bytes - whole].copy_from_slice(&self.from(output)[whole..self.row_bytes]);
        padded
    }
}
