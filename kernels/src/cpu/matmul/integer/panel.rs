//! Many rows: the codes of some outputs are laid out once, side by side.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use super::super::ZERO;
use super::{CHAINS, Span, UNIT, Vector, add};
use crate::cpu::simd::{Integers, LANES, Simd};

/// Vectors of outputs of a panel: as many as leave room for rows in registers.
const VECTORS: usize = 2;
/// Outputs of a panel.
pub(super) const OUTPUTS: usize = VECTORS * LANES;
/// Steps of a unit: four codes of each output at a time.
const STEPS: usize = UNIT / 4;

/// A unit of sixteen outputs: for each step, four codes of each output.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Codes([[[u8; 4]; LANES]; STEPS]);

/// What tasks of a thread use one after the other.
pub(in super::super) struct Room {
    /// A panel: codes of sixteen outputs, then of the next, their units chain
    /// by chain.
    codes: Vec<Codes>,
    /// Its scales and biases.
    scales: Vec<[Vector; 2]>,
    /// Outputs whose last block reaches over the end of the matrix.
    pub(super) lines: Vec<u8>,
}

impl Room {
    pub(in super::super) const fn new() -> Room {
        Room { codes: Vec::new(), scales: Vec::new(), lines: Vec::new() }
    }
}

impl Span<'_, '_> {
    #[inline(always)]
    pub(super) fn panel<I: Integers>(&mut self, i: I) {
        // Taken, so that `self` is free; given back at the end.
        let mut room = std::mem::replace(self.room, Room::new());
        let units = CHAINS * self.x.blocks;
        room.codes.resize(VECTORS * units, Codes([[[0; 4]; LANES]; STEPS]));
        room.scales.resize(VECTORS * units, [ZERO; 2]);
        for output in 0..self.outputs {
            // What an earlier panel left in other lanes is computed with and not stored.
            self.lay_out(output, output % LANES, output / LANES * units, &mut room);
        }
        if self.outputs > LANES {
            self.panel_rows::<I, VECTORS>(i, &room);
        } else {
            self.panel_rows::<I, 1>(i, &room);
        }
        *self.room = room;
    }

    /// Puts an output's units into a lane of those from `first` on.
    #[inline(always)]
    fn lay_out(&self, output: usize, lane: usize, first: usize, room: &mut Room) {
        let bytes = self.weights.from(output);
        let (scales, biases) = self.weights.scales.row(output);
        let group = self.weights.scales.units;
        let (mut chain, mut block) = (0, 0);
        for unit in 0..self.x.units {
            let place = first + chain * self.x.blocks + block;
            let steps = &mut room.codes[place].0;
            if self.x.nibbles {
                let packed: &[u8; UNIT / 2] =
                    bytes[unit * UNIT / 2..].first_chunk().expect("a unit has sixteen bytes");
                for (step, four) in packed.as_chunks::<4>().0.iter().enumerate() {
                    let packed = u32::from_le_bytes(*four);
                    steps[step][lane] = (packed & 0x0f0f_0f0f).to_le_bytes();
                    steps[STEPS / 2 + step][lane] = (packed >> 4 & 0x0f0f_0f0f).to_le_bytes();
                }
            } else {
                let codes: &[u8; UNIT] = bytes[unit * UNIT..].first_chunk().expect("a unit has 32 bytes");
                for (step, four) in codes.as_chunks::<4>().0.iter().enumerate() {
                    steps[step][lane] = *four;
                }
            }
            let [scale, bias] = &mut room.scales[place];
            (scale.0[lane], bias.0[lane]) = (scales[unit / group], biases[unit / group]);
            chain += 1;
            if chain == CHAINS {
                (chain, block) = (0, block + 1);
            }
        }
    }

    /// The panel's outputs, `V` vectors of them, for all rows.
    #[inline(always)]
    fn panel_rows<I: Integers, const V: usize>(&mut self, i: I, room: &Room) {
        let mut row = 0;
        while row < self.rows {
            // As many accumulators as registers hold beside codes, and as it takes to keep the
            // multipliers busy: each sum waits for the one before it.
            row += if const { I::Floats::REGISTERS >= 32 } {
                match self.rows - row {
                    6.. => self.panel_tile::<I, V, 6>(i, room, row),
                    2.. => self.panel_tile::<I, V, 2>(i, room, row),
                    _ => self.panel_tile::<I, V, 1>(i, room, row),
                }
            } else if const { I::Floats::REGISTERS >= 16 } {
                match self.rows - row {
                    2.. => self.panel_tile::<I, V, 2>(i, room, row),
                    _ => self.panel_tile::<I, V, 1>(i, room, row),
                }
            } else {
                self.panel_tile::<I, V, 1>(i, room, row)
            };
        }
    }

    /// The panel's outputs for `R` rows; returns `R`.
    #[inline(always)]
    fn panel_tile<I: Integers, const V: usize, const R: usize>(
        &mut self,
        i: I,
        room: &Room,
        row: usize,
    ) -> usize {
        let s = i.floats();
        let (units, blocks) = (self.x.units, self.x.blocks);
        let mut numbers: [&[[i8; UNIT]]; R] = [&[]; R];
        let mut x_scales: [&[[f32; 2]]; R] = [&[]; R];
        for r in 0..R {
            (numbers[r], x_scales[r]) = self.x.row(self.first_row + row + r);
        }
        let mut chains = [[[s.zero(); R]; V]; CHAINS];
        for chain in 0..CHAINS {
            // The last chains may have a unit less.
            let there = (units + CHAINS - 1 - chain) / CHAINS;
            let range = chain * blocks..chain * blocks + there;
            let mut codes: [&[Codes]; V] = [&[]; V];
            let mut scales: [&[[Vector; 2]]; V] = [&[]; V];
            for v in 0..V {
                codes[v] = &room.codes[v * CHAINS * blocks..][range.clone()];
                scales[v] = &room.scales[v * CHAINS * blocks..][range.clone()];
            }
            let (mut numbers, mut x_scales) = (numbers, x_scales);
            for r in 0..R {
                (numbers[r], x_scales[r]) = (&numbers[r][range.clone()], &x_scales[r][range.clone()]);
            }
            let mut total = [[s.zero(); R]; V];
            for unit in 0..there {
                let mut sums = [[i.zero(); R]; V];
                for step in 0..STEPS {
                    let mut four = [i.zero(); V];
                    for v in 0..V {
                        let codes = codes[v][unit].0[step].as_flattened();
                        four[v] = i.load_codes(codes.first_chunk().expect("four of sixteen"));
                    }
                    for r in 0..R {
                        let x = i.splat_x(&numbers[r][unit].as_chunks::<4>().0[step]);
                        for v in 0..V {
                            sums[v][r] = i.dot(sums[v][r], four[v], x);
                        }
                    }
                }
                for v in 0..V {
                    let [scale, bias] = &scales[v][unit];
                    let scale = (s.load(&scale.0), s.load(&bias.0));
                    for r in 0..R {
                        let x = &x_scales[r][unit];
                        let x = (s.splat(x[0]), s.splat(x[1]));
                        total[v][r] = add(s, total[v][r], i.to_floats(sums[v][r]), scale, x);
                    }
                }
            }
            for v in 0..V {
                for r in 0..R {
                    chains[chain][v][r] = s.add(total[v][r], s.zero());
                }
            }
        }
        for r in 0..R {
            let out = &mut self.out.row(row + r)[self.column..][..self.outputs];
            for v in 0..V {
                let even = s.add(chains[0][v][r], chains[2][v][r]);
                let sum = s.add(even, s.add(chains[1][v][r], chains[3][v][r]));
                match out[v * LANES..].first_chunk_mut() {
                    Some(out) => s.store(sum, out),
                    None => {
                        let mut lanes = [0.0; LANES];
                        s.store(sum, &mut lanes);
                        let out = &mut out[v * LANES..];
                        out.copy_from_slice(&lanes[..out.len()]);
                    }
                }
            }
        }
        R
    }
}
