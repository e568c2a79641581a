//! Products with activations of eight bits.
//!
//! The units of a row of activations, 32 inputs each, are rounded to whole
//! numbers from -127 to 127 times a scale of their own. What remains to be
//! summed within a unit is products of whole numbers, exactly. A unit's sum
//! then takes part as `sum * weight scale * unit scale`, and its bias as
//! `bias * unit sum`; lane `l` of an output adds up units `l`, `l + 16` and so
//! on in order, and one tree adds the lanes. So the bits of a row depend
//! neither on its company nor on threads or instructions, as with floats.
//!
//! Weights of 4 and 8 bits are multiplied so; others are with floats.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use super::decoders::Scales;
use super::{Rows, TILE_OUTPUTS, UNIT, Vector, ZERO, store_sums};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{BLOCK, InstructionSet, IntegerKernel, Integers, Kernel, LANES, Simd};
use crate::cpu::tiles::{Chunks, Tile};

/// Rows from which on codes are laid out in a panel.
pub(super) const PANEL_ROWS: usize = 6;
/// Rows of activations that one task rounds.
const TASK_ROWS: usize = 8;

/// A block's codes or activations, in cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bytes<T>([T; BLOCK]);

/// Rows of activations as whole numbers.
pub(super) struct Rounded {
    /// Whether codes are of four bits.
    nibbles: bool,
    /// Whether a panel is to be met.
    panel: bool,
    /// Units of a row.
    pub(super) units: usize,
    /// Blocks of sixteen units of a row; zeros fill the last one.
    blocks: usize,
    data: Vec<Bytes<i8>>,
    /// For each block, the units' scales, then their sums times these.
    scales: Vec<[Vector; 2]>,
}

impl Rounded {
    pub(super) fn new(
        set: InstructionSet,
        nibbles: bool,
        pool: &mut Pool,
        x: &[f32],
        rows: usize,
        columns: usize,
    ) -> Rounded {
        let units = columns / UNIT;
        let blocks = units.div_ceil(LANES).max(1);
        let panel = rows >= PANEL_ROWS;
        let mut data = vec![Bytes([0; BLOCK]); rows * blocks];
        let mut scales = vec![[ZERO; 2]; rows * blocks];
        let whole = Chunks::new(&mut data, TASK_ROWS * blocks);
        let parts = Chunks::new(&mut scales, TASK_ROWS * blocks);
        pool.run(rows > TASK_ROWS, whole.count(), |task| {
            let first = task * TASK_ROWS;
            let (data, scales) = (whole.take(task), parts.take(task));
            let x = &x[first * columns..][..data.len() / blocks * columns];
            set.run(RoundRows { x, columns, nibbles, panel, data, scales });
        });
        drop((whole, parts));
        Rounded { nibbles, panel, units, blocks, data, scales }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> (&[Bytes<i8>], &[[Vector; 2]]) {
        let range = row * self.blocks..(row + 1) * self.blocks;
        (&self.data[range.clone()], &self.scales[range])
    }

    pub(super) fn of_nibbles(&self) -> bool {
        self.nibbles
    }
}

/// Rounds some rows.
struct RoundRows<'a> {
    x: &'a [f32],
    columns: usize,
    nibbles: bool,
    panel: bool,
    data: &'a mut [Bytes<i8>],
    scales: &'a mut [[Vector; 2]],
}

impl Kernel for RoundRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = (self.columns / UNIT).div_ceil(LANES).max(1);
        let rows = self.data.chunks_exact_mut(blocks).zip(self.scales.chunks_exact_mut(blocks));
        for (x, (data, scales)) in self.x.chunks_exact(self.columns.max(1)).zip(rows) {
            for (unit, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
                let (block, lane) = (unit / LANES, unit % LANES);
                let (numbers, scale, sum) = round(s, x);
                place(&mut data[block].0, lane, &numbers, self.nibbles, self.panel);
                scales[block][0].0[lane] = scale;
                scales[block][1].0[lane] = scale * sum as f32;
            }
        }
    }
}

/// A unit as whole numbers, their scale, and their sum.
#[inline(always)]
fn round<S: Simd>(s: S, x: &[f32; UNIT]) -> ([i8; UNIT], f32, i32) {
    let halves = x.as_chunks::<LANES>().0;
    let (first, second) = (s.load(&halves[0]), s.load(&halves[1]));
    // What is not a number is larger than nothing.
    let mut largest = s.max(s.max(first, s.sub(s.zero(), first)), s.zero());
    largest = s.max(s.max(second, s.sub(s.zero(), second)), largest);
    let mut lanes = [0.0; LANES];
    s.store(largest, &mut lanes);
    let mut largest = 0.0;
    for lane in lanes {
        largest = if lane > largest { lane } else { largest };
    }
    let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    let mut rounded = [[0.0; LANES]; 2];
    s.store(s.round(s.mul(first, inverse)), &mut rounded[0]);
    s.store(s.round(s.mul(second, inverse)), &mut rounded[1]);
    let (mut numbers, mut sum) = ([0; UNIT], 0);
    for (number, &rounded) in numbers.iter_mut().zip(rounded.as_flattened()) {
        // The conversion saturates, and what is not a number becomes zero.
        *number = rounded as i8;
        sum += i32::from(*number);
    }
    (numbers, largest / 127.0, sum)
}

/// Puts a unit where the products look for it.
#[inline(always)]
fn place(block: &mut [i8; BLOCK], unit: usize, numbers: &[i8; UNIT], nibbles: bool, panel: bool) {
    let mut ordered = *numbers;
    if nibbles {
        // Even ones, then odd ones: a byte holds the codes of two.
        for (pair, [even, odd]) in numbers.as_chunks::<2>().0.iter().enumerate() {
            (ordered[pair], ordered[LANES + pair]) = (*even, *odd);
        }
    }
    if panel {
        for (step, four) in ordered.as_chunks::<4>().0.iter().enumerate() {
            block[step * 64 + unit * 4..][..4].copy_from_slice(four);
        }
    } else if nibbles {
        let pair = &mut block[unit / 2 * 64..][..64];
        pair[unit % 2 * LANES..][..LANES].copy_from_slice(&ordered[..LANES]);
        pair[32 + unit % 2 * LANES..][..LANES].copy_from_slice(&ordered[LANES..]);
    } else {
        block[unit * UNIT..][..UNIT].copy_from_slice(&ordered);
    }
}

/// A panel: codes, and scales and biases of their units.
pub(super) struct Room {
    codes: Vec<Bytes<u8>>,
    scales: Vec<[Vector; 2]>,
}

impl Room {
    pub(super) const fn new() -> Room {
        Room { codes: Vec::new(), scales: Vec::new() }
    }
}

/// Some outputs for all rows.
pub(super) struct Integer<'a, 'o> {
    pub(super) weights: &'a Rows<'a>,
    pub(super) x: &'a Rounded,
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) room: &'a mut Room,
    pub(super) out: &'a mut Tile<'o>,
}

impl IntegerKernel for Integer<'_, '_> {
    #[inline(always)]
    fn run<I: Integers>(mut self, i: I) {
        if self.x.panel {
            self.panel(i);
        } else if self.x.nibbles {
            self.direct::<I, true>(i);
        } else {
            self.direct::<I, false>(i);
        }
    }
}

impl Integer<'_, '_> {
    #[inline(always)]
    fn direct<I: Integers, const NIBBLES: bool>(&mut self, i: I) {
        let s = i.floats();
        let unit_bytes = if NIBBLES { UNIT / 2 } else { UNIT };
        for output in 0..self.outputs {
            let bytes = self.weights.from(output);
            s.prefetch(bytes.as_ptr().wrapping_add(super::direct::PREFETCH));
            for row in 0..self.rows {
                let (x, x_scales) = self.x.row(row);
                let mut total = s.zero();
                for block in 0..self.x.blocks {
                    let units = (self.x.units - block * LANES).min(LANES);
                    let at = &bytes[block * LANES * unit_bytes..];
                    let mut padded;
                    let sums = if NIBBLES {
                        let codes = match at.first_chunk() {
                            Some(codes) => codes,
                            None => {
                                padded = [0; BLOCK];
                                padded[..at.len()].copy_from_slice(at);
                                padded.first_chunk().expect("half a block")
                            }
                        };
                        i.nibbles(units.div_ceil(2), codes, &x[block].0)
                    } else {
                        let codes = match at.first_chunk() {
                            Some(codes) => codes,
                            None => {
                                padded = [0; BLOCK];
                                padded[..at.len()].copy_from_slice(at);
                                &padded
                            }
                        };
                        i.bytes(units.div_ceil(2), codes, &x[block].0)
                    };
                    if row == 0 && block > 0 {
                        s.prefetch(at.as_ptr().wrapping_add(super::direct::PREFETCH));
                    }
                    let (scale, bias) = unit_scales(s, &self.weights.scales, output, block, units);
                    total = add(s, total, i.to_floats(sums), (scale, bias), &x_scales[block]);
                }
                self.out.row(row)[output] = s.sum(total);
            }
        }
    }

    #[inline(always)]
    fn panel<I: Integers>(&mut self, i: I) {
        let s = i.floats();
        // Taken, so that `self` is free; given back at the end.
        let Room { mut codes, mut scales } = std::mem::replace(self.room, Room::new());
        let blocks = self.x.blocks;
        codes.clear();
        codes.resize(self.outputs * blocks, Bytes([0; BLOCK]));
        scales.clear();
        scales.resize(self.outputs * blocks, [ZERO; 2]);
        for output in 0..self.outputs {
            lay_out(self.weights.from(output), self.x, &mut codes[output * blocks..][..blocks]);
            for block in 0..blocks {
                let units = (self.x.units - block * LANES).min(LANES);
                let (scale, bias) = unit_scales(s, &self.weights.scales, output, block, units);
                let [scales, biases] = &mut scales[output * blocks + block];
                s.store(scale, &mut scales.0);
                s.store(bias, &mut biases.0);
            }
        }
        let mut row = 0;
        while row < self.rows {
            row += if const { I::Floats::REGISTERS >= 32 } && self.rows - row >= 2 {
                self.panel_rows::<I, TILE_OUTPUTS, 2>(i, &codes, &scales, row)
            } else if const { I::Floats::REGISTERS >= 16 } {
                self.panel_rows::<I, 2, 1>(i, &codes, &scales, row)
            } else {
                self.panel_rows::<I, 1, 1>(i, &codes, &scales, row)
            };
        }
        *self.room = Room { codes, scales };
    }

    /// All outputs for `R` rows, `O` at a time; returns `R`.
    #[inline(always)]
    fn panel_rows<I: Integers, const O: usize, const R: usize>(
        &mut self,
        i: I,
        codes: &[Bytes<u8>],
        scales: &[[Vector; 2]],
        row: usize,
    ) -> usize {
        let s = i.floats();
        let mut output = 0;
        while output + O <= self.outputs {
            let total = self.tile::<I, O, R>(i, codes, scales, row, output);
            store_sums(s, &total, self.out, row, output);
            output += O;
        }
        while output < self.outputs {
            for r in 0..R {
                let total = self.tile::<I, 1, 1>(i, codes, scales, row + r, output);
                self.out.row(row + r)[output] = s.sum(total[0][0]);
            }
            output += 1;
        }
        R
    }

    #[inline(always)]
    fn tile<I: Integers, const O: usize, const R: usize>(
        &self,
        i: I,
        codes: &[Bytes<u8>],
        scales: &[[Vector; 2]],
        row: usize,
        output: usize,
    ) -> [[<I::Floats as Simd>::F; R]; O] {
        let s = i.floats();
        let blocks = self.x.blocks;
        let mut total = [[s.zero(); R]; O];
        for block in 0..blocks {
            let mut sums = [[i.zero(); R]; O];
            for step in 0..BLOCK / 64 {
                for r in 0..R {
                    let x = &self.x.data[(row + r) * blocks + block].0.as_chunks::<64>().0[step];
                    for o in 0..O {
                        let codes = &codes[(output + o) * blocks + block].0.as_chunks::<64>().0[step];
                        sums[o][r] = i.add(sums[o][r], codes, x);
                    }
                }
            }
            for o in 0..O {
                let [scale, bias] = &scales[(output + o) * blocks + block];
                let scale = (s.load(&scale.0), s.load(&bias.0));
                for r in 0..R {
                    let x_scales = &self.x.scales[(row + r) * blocks + block];
                    total[o][r] = add(s, total[o][r], i.to_floats(sums[o][r]), scale, x_scales);
                }
            }
        }
        total
    }
}

/// Adds a block's sums to an output's lanes.
#[inline(always)]
fn add<S: Simd>(s: S, total: S::F, sums: S::F, (scale, bias): (S::F, S::F), x: &[Vector; 2]) -> S::F {
    let total = s.fma(s.mul(sums, scale), s.load(&x[0].0), total);
    s.fma(bias, s.load(&x[1].0), total)
}

/// Scales and biases of a block's units, zeros after the last one.
#[inline(always)]
fn unit_scales<S: Simd>(
    s: S,
    scales: &Scales<'_>,
    output: usize,
    block: usize,
    units: usize,
) -> (S::F, S::F) {
    let (all_scales, all_biases) = scales.row(output);
    if scales.units == 1 && units == LANES {
        let at = block * LANES..(block + 1) * LANES;
        let scale = all_scales[at.clone()].first_chunk().expect("sixteen units");
        return (s.load(scale), s.load(all_biases[at].first_chunk().expect("sixteen units")));
    }
    let (mut scale, mut bias) = ([0.0; LANES], [0.0; LANES]);
    for unit in 0..units {
        let group = (block * LANES + unit) / scales.units;
        (scale[unit], bias[unit]) = (all_scales[group], all_biases[group]);
    }
    (s.load(&scale), s.load(&bias))
}

/// One output's codes as a panel: step `n` holds four codes of each unit.
#[inline(always)]
fn lay_out(bytes: &[u8], x: &Rounded, out: &mut [Bytes<u8>]) {
    for unit in 0..x.units {
        let mut codes = [0; UNIT];
        if x.nibbles {
            let packed: &[u8; LANES] = bytes[unit * LANES..].first_chunk().expect("a unit has sixteen bytes");
            for (byte, packed) in packed.iter().enumerate() {
                (codes[byte], codes[LANES + byte]) = (packed & 15, packed >> 4);
            }
        } else {
            codes = *bytes[unit * UNIT..].first_chunk().expect("a unit has 32 bytes");
        }
        let (block, lane) = (unit / LANES, unit % LANES);
        for (step, four) in codes.as_chunks::<4>().0.iter().enumerate() {
            out[block].0[step * 64 + lane * 4..][..4].copy_from_slice(four);
        }
    }
}
