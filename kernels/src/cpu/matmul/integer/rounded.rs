//! Rows of activations as whole numbers.

use std::cell::RefCell;

use super::{CHAINS, UNIT, takes_panel};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{InstructionSet, Kernel, LANES, Simd};
use crate::cpu::tiles::Chunks;

/// Rows of activations that one task rounds.
const TASK_ROWS: usize = 8;

/// The numbers of a unit.
type Unit = [i8; UNIT];

thread_local! {
    /// A buffer to use again: new memory costs more than filling it.
    static SPARE: RefCell<(Vec<Unit>, Vec<[f32; 2]>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Rows of activations as whole numbers.
///
/// A row is a number of blocks of four units, zeros after the last unit. For a
/// panel, units lie chain by chain; otherwise in their order, where codes of
/// four bits meet the even inputs of a block's units, then the odd ones.
pub(in super::super) struct Rounded {
    /// Whether codes are of four bits.
    pub(super) nibbles: bool,
    /// Whether a panel is to be met.
    pub(super) panel: bool,
    /// Units of a row.
    pub(super) units: usize,
    /// Blocks of a row.
    pub(super) blocks: usize,
    numbers: Vec<Unit>,
    /// For a panel, each unit's scale and sum times it; otherwise the scales of
    /// a block's units, then their sums times these.
    scales: Vec<[f32; 2]>,
}

impl Rounded {
    pub(in super::super) fn new(
        set: InstructionSet,
        nibbles: bool,
        pool: &mut Pool,
        x: &[f32],
        rows: usize,
        columns: usize,
    ) -> Rounded {
        let units = columns / UNIT;
        let blocks = units.div_ceil(CHAINS).max(1);
        let panel = takes_panel(rows);
        let (mut numbers, mut scales) = SPARE.take();
        numbers.resize(rows * CHAINS * blocks, [0; UNIT]);
        scales.resize(rows * CHAINS * blocks, [0.0; 2]);
        let whole = Chunks::new(&mut numbers, TASK_ROWS * CHAINS * blocks);
        let parts = Chunks::new(&mut scales, TASK_ROWS * CHAINS * blocks);
        pool.run(rows > TASK_ROWS, whole.count(), |task| {
            let first = task * TASK_ROWS;
            let (numbers, scales) = (whole.take(task), parts.take(task));
            let x = &x[first * columns..][..numbers.len() / (CHAINS * blocks) * columns];
            set.run(RoundRows { x, columns, nibbles, panel, numbers, scales });
        });
        drop((whole, parts));
        Rounded { nibbles, panel, units, blocks, numbers, scales }
    }

    /// A row's units and their scales.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> (&[Unit], &[[f32; 2]]) {
        let units = CHAINS * self.blocks;
        let range = row * units..(row + 1) * units;
        (&self.numbers[range.clone()], &self.scales[range])
    }

    pub(in super::super) fn of_nibbles(&self) -> bool {
        self.nibbles
    }
}

impl Drop for Rounded {
    fn drop(&mut self) {
        SPARE.set((std::mem::take(&mut self.numbers), std::mem::take(&mut self.scales)));
    }
}

/// Rounds some rows.
struct RoundRows<'a> {
    x: &'a [f32],
    columns: usize,
    nibbles: bool,
    panel: bool,
    numbers: &'a mut [Unit],
    scales: &'a mut [[f32; 2]],
}

impl Kernel for RoundRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let units = self.columns / UNIT;
        let blocks = units.div_ceil(CHAINS).max(1);
        let row = CHAINS * blocks;
        let rows = self.numbers.chunks_exact_mut(row).zip(self.scales.chunks_exact_mut(row));
        for (x, (out, out_scales)) in self.x.chunks_exact(self.columns.max(1)).zip(rows) {
            let x = x.as_chunks::<UNIT>().0;
            for unit in 0..row {
                let (block, chain) = (unit / CHAINS, unit % CHAINS);
                let (numbers, scale, sum) = match x.get(unit) {
                    Some(x) => round(s, x),
                    None => ([[0; LANES]; 2], 0.0, 0.0),
                };
                let numbers = if self.nibbles { pairs_apart(numbers) } else { numbers };
                if self.panel {
                    let place = chain * blocks + block;
                    out[place].copy_from_slice(numbers.as_flattened());
                    out_scales[place] = [scale, sum];
                    continue;
                }
                let halves = out[block * CHAINS..][..CHAINS].as_flattened_mut().as_chunks_mut::<LANES>().0;
                let places = if self.nibbles { [chain, CHAINS + chain] } else { [2 * chain, 2 * chain + 1] };
                (halves[places[0]], halves[places[1]]) = (numbers[0], numbers[1]);
                let scales = out_scales[block * CHAINS..][..CHAINS].as_flattened_mut();
                (scales[chain], scales[CHAINS + chain]) = (scale, sum);
            }
        }
    }
}

/// A unit as whole numbers, their scale, and their sum times it.
#[inline(always)]
fn round<S: Simd>(s: S, x: &[f32; UNIT]) -> ([[i8; LANES]; 2], f32, f32) {
    let halves = x.as_chunks::<LANES>().0;
    let (first, second) = (s.load(&halves[0]), s.load(&halves[1]));
    // What is not a number is larger than nothing.
    let mut largest = s.max(s.max(first, s.sub(s.zero(), first)), s.zero());
    largest = s.max(s.max(second, s.sub(s.zero(), second)), largest);
    let largest = s.largest(largest);
    let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    let numbers = [s.to_bytes(s.mul(first, inverse)), s.to_bytes(s.mul(second, inverse))];
    let mut sum = 0;
    for number in numbers.as_flattened() {
        sum += i32::from(*number);
    }
    let scale = largest / 127.0;
    (numbers, scale, scale * sum as f32)
}

/// Even ones, then odd ones: a byte holds the codes of two.
#[inline(always)]
fn pairs_apart(numbers: [[i8; LANES]; 2]) -> [[i8; LANES]; 2] {
    let mut apart = [[0; LANES]; 2];
    for (pair, [even, odd]) in numbers.as_flattened().as_chunks::<2>().0.iter().enumerate() {
        (apart[0][pair], apart[1][pair]) = (*even, *odd);
    }
    apart
}
