//! Routed experts: choosing them, multiplying by them, adding them up.
//!
//! Slots lie expert by expert, so that an expert's rows are one block that the
//! ordinary product takes. That product gives a row the same bits in any
//! company, and a row adds up its slots in its own order; hence it does not
//! matter which rows meet at an expert.

use std::ops::Range;

use super::matmul::{self, Arithmetic};
use super::pool::Pool;
use super::simd::{Kernel, LANES, Simd};
use super::tiles::Tiles;
use crate::weights::MatrixView;

/// Outputs of an expert that one task computes.
const TASK_OUTPUTS: usize = 128;
/// Slots times inputs times outputs from which on other threads are woken.
const PARALLEL_WORK: usize = 1 << 18;

/// Which experts run for which rows, and how strongly they count.
pub struct Routes {
    rows: usize,
    per_row: usize,
    /// Expert and weight, row by row from the first slot on.
    chosen: Vec<(u32, f32)>,
    /// Where each of them lies among the slots.
    places: Vec<u32>,
    /// The row of each place.
    row_of: Vec<u32>,
    /// Places of each expert that was chosen at all, by expert.
    blocks: Vec<(u32, Range<usize>)>,
    /// How often each expert was chosen; then, its next free place.
    counts: Vec<u32>,
}

impl Routes {
    /// Room for `rows` rows.
    pub(crate) fn new(rows: usize, experts: usize, per_row: usize) -> Routes {
        let slots = rows * per_row;
        Routes {
            rows: 0,
            per_row: 0,
            chosen: Vec::with_capacity(slots),
            places: Vec::with_capacity(slots),
            row_of: Vec::with_capacity(slots),
            blocks: Vec::with_capacity(experts.min(slots)),
            counts: Vec::with_capacity(experts),
        }
    }

    /// Expert and weight of every slot, row by row.
    pub(crate) fn chosen(&self) -> &[(u32, f32)] {
        &self.chosen
    }

    /// Rows that were routed.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Chooses for each row of `experts` logits the `per_row` largest.
    pub(crate) fn route(&mut self, rows: usize, experts: usize, per_row: usize, logits: &[f32]) {
        (self.rows, self.per_row) = (rows, per_row);
        self.chosen.clear();
        for logits in logits[..rows * experts].chunks_exact(experts.max(1)) {
            choose(logits, per_row, &mut self.chosen);
        }
        self.sort(experts);
    }

    /// Gives every slot a place: by expert, and among those by row.
    fn sort(&mut self, experts: usize) {
        self.counts.clear();
        self.counts.resize(experts, 0);
        for &(expert, _) in &self.chosen {
            self.counts[expert as usize] += 1;
        }
        self.blocks.clear();
        let mut start = 0;
        for (expert, count) in self.counts.iter_mut().enumerate() {
            let end = start + *count as usize;
            if end > start {
                self.blocks.push((expert as u32, start..end));
            }
            *count = start as u32;
            start = end;
        }
        self.places.clear();
        self.row_of.clear();
        self.row_of.resize(self.chosen.len(), 0);
        for (slot, &(expert, _)) in self.chosen.iter().enumerate() {
            let next = &mut self.counts[expert as usize];
            self.row_of[*next as usize] = (slot / self.per_row) as u32;
            self.places.push(*next);
            *next += 1;
        }
    }
}

/// The largest `count` of `logits`, equal ones in their order, and their
/// softmax.
fn choose(logits: &[f32], count: usize, chosen: &mut Vec<(u32, f32)>) {
    let first = chosen.len();
    for _ in 0..count.min(logits.len()) {
        let mut best: Option<(u32, f32)> = None;
        for (expert, &logit) in logits.iter().enumerate() {
            let expert = expert as u32;
            // What is not a number is never larger, and comes last in its order.
            let larger = best.is_none_or(|(_, best)| logit > best || (best.is_nan() && !logit.is_nan()));
            if larger && chosen[first..].iter().all(|(taken, _)| *taken != expert) {
                best = Some((expert, logit));
            }
        }
        chosen.extend(best);
    }
    let chosen = &mut chosen[first..];
    let Some(&(_, largest)) = chosen.first() else { return };
    let mut sum = 0.0;
    for (_, weight) in chosen.iter_mut() {
        *weight = (*weight - largest).exp();
        sum += *weight;
    }
    chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
}

/// What the experts multiply.
pub(crate) enum Input<'a> {
    /// Rows of activations.
    Rows(&'a [f32]),
    /// Rows of slots, in their places.
    Slots(&'a [f32]),
}

/// One product: `out[place] = matrices[expert of place] * input`.
pub(crate) struct Product<'a, 'w> {
    pub(crate) matrices: &'a [MatrixView<'w>],
    pub(crate) out: &'a mut [f32],
}

/// A block's outputs in one product.
struct Block<'a, 'w> {
    places: Range<usize>,
    matrix: MatrixView<'w>,
    out: Tiles<'a>,
}

/// Multiplies every slot's row by the matrices of its expert.
pub(crate) fn multiply(
    arithmetic: Arithmetic,
    pool: &mut Pool,
    routes: &Routes,
    x: Input<'_>,
    products: &mut [Product<'_, '_>],
) {
    let mut work = 0;
    let mut blocks = Vec::new();
    for product in products.iter_mut() {
        let mut left = &mut *product.out;
        for (expert, places) in &routes.blocks {
            let matrix = product.matrices[*expert as usize];
            let (out, rest) = std::mem::take(&mut left).split_at_mut(places.len() * matrix.rows);
            left = rest;
            work += places.len() * matrix.rows * matrix.columns;
            let out = Tiles::new(out, places.len(), matrix.rows, places.len(), TASK_OUTPUTS);
            blocks.push(Block { places: places.clone(), matrix, out });
        }
    }
    let tasks: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(block, part)| (0..part.out.count()).map(move |tile| (block, tile)))
        .collect();
    pool.run(work >= PARALLEL_WORK, tasks.len(), |task| {
        let (block, tile) = tasks[task];
        let Block { places, matrix, out } = &blocks[block];
        let outputs = tile * TASK_OUTPUTS..matrix.rows.min((tile + 1) * TASK_OUTPUTS);
        let (rows, width) = (places.len(), matrix.columns);
        let gathered: Vec<f32>;
        let x = match x {
            Input::Slots(slots) => &slots[places.start * width..places.end * width],
            Input::Rows(x) => {
                let rows = routes.row_of[places.clone()].iter();
                gathered = rows.flat_map(|&row| &x[row as usize * width..][..width]).copied().collect();
                &gathered
            }
        };
        let mut y = vec![0.0; rows * outputs.len()];
        let product = matmul::Product { weights: &matrix.outputs(outputs.clone()), bias: None, out: &mut y };
        let mut alone = Pool::new(1).expect("a pool of one thread starts none");
        matmul::multiply(arithmetic, &mut alone, x, rows, &mut [product]);
        let mut out = out.take(tile);
        for (row, y) in y.chunks_exact(outputs.len()).enumerate() {
            out.row(row).copy_from_slice(y);
        }
    });
}

/// The slots of some rows, each times its weight, added in their order.
pub(crate) struct Combine<'a> {
    pub(crate) routes: &'a Routes,
    /// The rows that `out` holds.
    pub(crate) rows: Range<usize>,
    pub(crate) slots: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.rows.is_empty() {
            return;
        }
        let (width, per_row) = (self.out.len() / self.rows.len(), self.routes.per_row);
        for (row, out) in self.rows.zip(self.out.chunks_exact_mut(width)) {
            out.fill(0.0);
            for slot in row * per_row..(row + 1) * per_row {
                let weight = s.splat(self.routes.chosen[slot].1);
                let place = self.routes.places[slot] as usize;
                let y: &[[f32; LANES]] = self.slots[place * width..][..width].as_chunks().0;
                let out: &mut [[f32; LANES]] = out.as_chunks_mut().0;
                for (y, out) in y.iter().zip(out) {
                    s.store(s.fma(weight, s.load(y), s.load(out)), out);
                }
            }
        }
    }
}

/// `x = x + sigmoid(gate) * y`, with one gate for each row.
pub(crate) struct AddGated<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) y: &'a [f32],
    pub(crate) gate: &'a [f32],
}

impl Kernel for AddGated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.gate.is_empty() {
            return;
        }
        let width = self.x.len() / self.gate.len();
        let rows = self.x.chunks_exact_mut(width).zip(self.y.chunks_exact(width));
        for ((x, y), &gate) in rows.zip(self.gate) {
            let gate = s.sigmoid(s.splat(gate));
            let (x, y): (&mut [[f32; LANES]], &[[f32; LANES]]) = (x.as_chunks_mut().0, y.as_chunks().0);
            for (x, y) in x.iter_mut().zip(y) {
                s.store(s.fma(gate, s.load(y), s.load(x)), x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::InstructionSet;
    use crate::weights::{ElementType, Storage, floats};

    fn wave(count: usize, step: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * step).sin()).collect()
    }

    fn route(logits: &[f32], experts: usize, per_row: usize) -> Routes {
        let rows = logits.len() / experts;
        let mut routes = Routes::new(rows, experts, per_row);
        routes.route(rows, experts, per_row, logits);
        routes
    }

    #[test]
    fn the_largest_are_chosen_and_their_weights_sum_to_one() {
        let routes = route(&[0.0, 2.0, 1.0, 2.0, -1.0, 0.5, 0.5, 0.5], 4, 3);
        let ids: Vec<u32> = routes.chosen().iter().map(|slot| slot.0).collect();
        assert_eq!(ids, [1, 3, 2, 1, 2, 3]);
        let weights: Vec<f32> = routes.chosen().iter().map(|slot| slot.1).collect();
        assert_eq!(weights[0], weights[1]);
        assert!((weights[2] / weights[0] - (-1.0f32).exp()).abs() < 1e-7);
        assert_eq!(weights[3..], [1.0 / 3.0; 3]);
    }

    #[test]
    fn logits_that_are_no_numbers_choose_each_expert_once() {
        let nan = f32::NAN;
        let ids =
            |logits: &[f32]| -> Vec<u32> { route(logits, 4, 3).chosen().iter().map(|slot| slot.0).collect() };
        assert_eq!(ids(&[nan, 1.0, nan, 2.0]), [3, 1, 0]);
        assert_eq!(ids(&[nan; 4]), [0, 1, 2]);
        assert_eq!(ids(&[f32::NEG_INFINITY, f32::INFINITY, nan, f32::NEG_INFINITY]), [1, 0, 3]);
    }

    /// Two products, an elementwise step between them and the sum, as a model
    /// does it.
    struct Model {
        experts: usize,
        per_row: usize,
        /// Up to 40 and 16 outputs of 16 and 40 inputs.
        first: Vec<Vec<u8>>,
        second: Vec<Vec<u8>>,
    }

    impl Model {
        fn new(experts: usize, per_row: usize) -> Model {
            let bytes = |step: f32| wave(640, step).iter().flat_map(|x| x.to_le_bytes()).collect();
            Model {
                experts,
                per_row,
                first: (0..experts).map(|e| bytes(0.3 + e as f32)).collect(),
                second: (0..experts).map(|e| bytes(0.7 + e as f32)).collect(),
            }
        }

        fn run(&self, set: InstructionSet, threads: usize, logits: &[f32], x: &[f32]) -> Vec<f32> {
            fn views(all: &[Vec<u8>], rows: usize, columns: usize) -> Vec<MatrixView<'_>> {
                let storage = |bytes| Storage::Plain { element: ElementType::F32, bytes };
                all.iter().map(|bytes| MatrixView { rows, columns, storage: storage(bytes) }).collect()
            }
            let mut pool = Pool::new(threads).unwrap();
            let routes = route(logits, self.experts, self.per_row);
            let slots = routes.rows() * self.per_row;
            let (mut inner, mut outer) = (vec![f32::NAN; slots * 40], vec![f32::NAN; slots * 16]);
            let product = Product { matrices: &views(&self.first, 40, 16), out: &mut inner };
            multiply(Arithmetic::floats(set), &mut pool, &routes, Input::Rows(x), &mut [product]);
            inner.iter_mut().for_each(|x| *x = x.max(0.0));
            let product = Product { matrices: &views(&self.second, 16, 40), out: &mut outer };
            multiply(Arithmetic::floats(set), &mut pool, &routes, Input::Slots(&inner), &mut [product]);
            let mut out = vec![f32::NAN; routes.rows() * 16];
            let rows = 0..routes.rows();
            set.run(Combine { routes: &routes, rows, slots: &outer, out: &mut out });
            out
        }

        /// One row in `f64`.
        fn exact(&self, logits: &[f32], x: &[f32]) -> Vec<f64> {
            let dot = |w: &[f32], x: &[f64]| -> f64 { w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let mut order: Vec<usize> = (0..self.experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let chosen = &order[..self.per_row];
            let sum: f64 = chosen.iter().map(|&e| f64::from(logits[e]).exp()).sum();
            let mut out = vec![0.0; 16];
            for &expert in chosen {
                let [first, second] =
                    [&self.first, &self.second].map(|all| floats(ElementType::F32, &all[expert]));
                let inner: Vec<f64> = first.chunks(16).map(|w| dot(w, &x).max(0.0)).collect();
                let weight = f64::from(logits[expert]).exp() / sum;
                out.iter_mut().zip(second.chunks(40)).for_each(|(out, w)| *out += weight * dot(w, &inner));
            }
            out
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 64 }))]
        #[test]
        fn a_row_is_right_and_does_not_depend_on_who_shares_its_experts(
            rows in 1usize..14,
            experts in 1usize..9,
            per_row in 1usize..5,
            step in 0.1f32..3.0,
        ) {
            let per_row = per_row.min(experts);
            let model = Model::new(experts, per_row);
            let (logits, x) = (wave(rows * experts, step), wave(rows * 16, step * 1.7));
            let together = model.run(InstructionSet::best(), 1, &logits, &x);
            for row in 0..rows {
                let (logits, x) = (&logits[row * experts..][..experts], &x[row * 16..][..16]);
                let alone = model.run(InstructionSet::best(), 1, logits, x);
                prop_assert_eq!(&alone[..], &together[row * 16..][..16]);
                for (got, exact) in alone.iter().zip(model.exact(logits, x)) {
                    prop_assert!((f64::from(*got) - exact).abs() < 2e-4, "{} for {}", got, exact);
                }
            }
            for set in InstructionSet::available() {
                for threads in [1, 3] {
                    prop_assert_eq!(&model.run(set, threads, &logits, &x), &together);
                }
            }
        }
    }

    #[test]
    fn wide_experts_are_cut_into_tasks_without_a_trace() {
        // More outputs than a task computes, and enough work to wake threads.
        let bytes: Vec<Vec<u8>> = (0..4)
            .map(|e| wave(300 * 256, 0.01 + e as f32).iter().flat_map(|x| x.to_le_bytes()).collect())
            .collect();
        let views: Vec<MatrixView<'_>> = bytes
            .iter()
            .map(|bytes| MatrixView {
                rows: 300,
                columns: 256,
                storage: Storage::Plain { element: ElementType::F32, bytes },
            })
            .collect();
        let (logits, x) = (wave(9 * 4, 0.9), wave(9 * 256, 0.2));
        let routes = route(&logits, 4, 2);
        let run = |threads| {
            let mut pool = Pool::new(threads).unwrap();
            let mut out = vec![f32::NAN; 18 * 300];
            let product = Product { matrices: &views, out: &mut out };
            multiply(
                Arithmetic::floats(InstructionSet::best()),
                &mut pool,
                &routes,
                Input::Rows(&x),
                &mut [product],
            );
            out
        };
        let out = run(1);
        assert_eq!(run(3), out);
        for (slot, &(expert, _)) in routes.chosen().iter().enumerate() {
            let mut alone = vec![0.0; 300];
            let product = matmul::Product { weights: &views[expert as usize], bias: None, out: &mut alone };
            let x = &x[slot / 2 * 256..][..256];
            matmul::multiply(
                Arithmetic::floats(InstructionSet::best()),
                &mut Pool::new(1).unwrap(),
                x,
                1,
                &mut [product],
            );
            assert_eq!(out[routes.places[slot] as usize * 300..][..300], alone);
        }
    }

    #[test]
    fn a_gated_sum_follows_its_formula() {
        let (x, y, gate) = (wave(64, 0.3), wave(64, 0.9), [0.7, -30.0]);
        let mut out = x.clone();
        InstructionSet::best().run(AddGated { x: &mut out, y: &y, gate: &gate });
        for i in 0..64 {
            let sigmoid = 1.0 / (1.0 + (-f64::from(gate[i / 32])).exp());
            assert!((f64::from(out[i]) - f64::from(x[i]) - sigmoid * f64::from(y[i])).abs() < 1e-6);
        }
        assert_eq!(out[32..], x[32..]);
    }
}
