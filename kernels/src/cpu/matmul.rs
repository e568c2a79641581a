//! Activations times weights, the bulk of all work.
//!
//! A dot product over the inputs is cut into blocks whose length depends on
//! the storage of the weights alone. Inside a block sixteen lanes accumulate
//! in storage order; after it the block's sums join the running ones, for
//! packed weights through the group's scale and bias; at the end the lanes are
//! summed by one tree. Each output of each row has its own lanes, so tiles
//! share the loading and unpacking of weights between rows without any
//! influence on the bits of a row: one row alone, many rows, any tile and any
//! number of threads give the same result.
//!
//! Packed codes are used as they lie: word `l` of a block feeds lane `l`, and
//! the activations are laid out once per call so that the `n`-th code of each
//! word meets its activation ([`Layout`]). Hence no code is ever shuffled.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use super::pool::Pool;
use super::simd::{InstructionSet, Kernel, LANES, Simd};
use super::tiles::{Tile, Tiles};
use crate::weights::{ElementType, MatrixView, Storage, floats_into};

/// Outputs that one task computes.
const TASK_OUTPUTS: usize = 32;
/// Rows times inputs times outputs from which on other threads are woken.
const PARALLEL_WORK: usize = 1 << 20;

/// How activations are laid out to meet a kind of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// In order, in blocks of 128.
    Plain,
    /// Blocks of 128 inputs in 16 words of 8 codes: vector `n`, lane `l` holds
    /// input `8 l + n`. A last vector holds the sum over each lane's word.
    Nibbles,
    /// Blocks of 64 inputs in 16 words of 4 codes, with sums likewise.
    Bytes,
}

impl Layout {
    fn of(weights: &MatrixView<'_>) -> Layout {
        match weights.storage {
            Storage::Plain { .. } => Layout::Plain,
            Storage::Affine { packing, .. } if packing.bits == 4 => Layout::Nibbles,
            Storage::Affine { .. } => Layout::Bytes,
        }
    }

    /// Inputs of a block.
    fn inputs(self) -> usize {
        match self {
            Layout::Plain | Layout::Nibbles => 8 * LANES,
            Layout::Bytes => 4 * LANES,
        }
    }

    /// Floats that a block of activations takes.
    fn floats(self) -> usize {
        match self {
            Layout::Plain => self.inputs(),
            Layout::Nibbles | Layout::Bytes => self.inputs() + LANES,
        }
    }
}

/// Rows of activations, laid out.
struct Activations {
    layout: Layout,
    /// Blocks of a row.
    blocks: usize,
    data: Vec<f32>,
}

impl Activations {
    fn new(layout: Layout, x: &[f32], rows: usize, columns: usize) -> Activations {
        let blocks = columns.div_ceil(layout.inputs());
        let mut data = vec![0.0; rows * blocks * layout.floats()];
        for (row, out) in x.chunks_exact(columns).take(rows).zip(data.chunks_mut(blocks * layout.floats())) {
            for (x, out) in row.chunks(layout.inputs()).zip(out.chunks_mut(layout.floats())) {
                match layout {
                    Layout::Plain => out[..x.len()].copy_from_slice(x),
                    Layout::Nibbles => lay_out::<8>(x, out),
                    Layout::Bytes => lay_out::<4>(x, out),
                }
            }
        }
        Activations { layout, blocks, data }
    }

    fn row(&self, row: usize) -> &[f32] {
        let stride = self.blocks * self.layout.floats();
        &self.data[row * stride..][..stride]
    }
}

/// Lays out one block for words of `CODES` codes.
fn lay_out<const CODES: usize>(x: &[f32], out: &mut [f32]) {
    let (words, _) = x.as_chunks::<CODES>();
    for (lane, word) in words.iter().enumerate() {
        let mut sum = 0.0;
        for (code, &value) in word.iter().enumerate() {
            out[code * LANES + lane] = value;
            sum += value;
        }
        out[CODES * LANES + lane] = sum;
    }
}

/// One product: `out[row][output] = x[row] . weights[output] + bias[output]`.
pub(crate) struct Product<'a, 'w> {
    pub(crate) weights: &'a MatrixView<'w>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

/// Multiplies `rows` rows of `x` with several matrices of equal width.
pub(crate) fn multiply(
    set: InstructionSet,
    pool: &mut Pool,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_, '_>],
) {
    let Some(first) = products.first() else { return };
    let columns = first.weights.columns;
    let mut laid_out: Vec<Activations> = Vec::new();
    for product in products.iter() {
        let layout = Layout::of(product.weights);
        if !laid_out.iter().any(|x| x.layout == layout) {
            laid_out.push(Activations::new(layout, x, rows, columns));
        }
    }
    let mut work = 0;
    let mut parts = Vec::new();
    for product in products.iter_mut() {
        let weights = product.weights;
        assert_eq!(weights.columns, columns, "matrices of one call have equal widths");
        let x = laid_out.iter().find(|x| x.layout == Layout::of(weights)).expect("laid out above");
        let tiles = Tiles::new(product.out, rows, weights.rows, rows.max(1), TASK_OUTPUTS);
        work += rows * weights.rows * columns;
        parts.push((weights, x, product.bias, tiles));
    }
    let tasks = parts.iter().map(|part| part.3.count()).sum();
    pool.run(work >= PARALLEL_WORK, tasks, |task| {
        let mut index = task;
        for (weights, x, bias, tiles) in &parts {
            if index < tiles.count() {
                let outputs = index * TASK_OUTPUTS..weights.rows.min((index + 1) * TASK_OUTPUTS);
                let mut out = tiles.take(index);
                set.run(Task { weights, x, rows, outputs: outputs.clone(), out: &mut out });
                if let Some(bias) = bias {
                    for row in 0..rows {
                        out.row(row).iter_mut().zip(&bias[outputs.clone()]).for_each(|(y, b)| *y += b);
                    }
                }
                return;
            }
            index -= tiles.count();
        }
    });
}

/// Some outputs for all rows.
struct Task<'a, 'w, 'o> {
    weights: &'a MatrixView<'w>,
    x: &'a Activations,
    rows: usize,
    outputs: std::ops::Range<usize>,
    out: &'a mut Tile<'o>,
}

impl Kernel for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.weights.storage {
            Storage::Plain { element, bytes } => match element {
                ElementType::F32 => tiles::<S, F32>(s, &mut self, bytes),
                ElementType::Bf16 => tiles::<S, Bf16>(s, &mut self, bytes),
                ElementType::F16 => tiles::<S, F16>(s, &mut self, bytes),
                ElementType::U32 => unreachable!("a plain matrix holds floats"),
            },
            Storage::Affine { packing, codes, .. } if packing.bits == 4 => {
                tiles::<S, Nibbles>(s, &mut self, codes);
            }
            Storage::Affine { codes, .. } => tiles::<S, Bytes>(s, &mut self, codes),
        }
    }
}

/// How the weights of a block are unpacked into vectors.
trait Decoder {
    /// Vectors of a block.
    const VECTORS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether a group's scale and bias follow.
    const AFFINE: bool;
    /// What is left to unpack of a block.
    type Cursor<'b, S: Simd>: Copy;
    /// The start of a block.
    fn start<S: Simd>(s: S, block: &[u8]) -> Self::Cursor<'_, S>;
    /// Vector `index`; called in order.
    fn next<S: Simd>(s: S, cursor: &mut Self::Cursor<'_, S>, index: usize) -> S::F;
}

macro_rules! plain_decoder {
    ($name:ident, $size:literal, $load:ident) => {
        struct $name;

        impl Decoder for $name {
            const VECTORS: usize = 8;
            const BYTES: usize = 8 * LANES * $size;
            const AFFINE: bool = false;
            type Cursor<'b, S: Simd> = &'b [[u8; LANES * $size]];

            #[inline(always)]
            fn start<S: Simd>(_: S, block: &[u8]) -> &[[u8; LANES * $size]] {
                block.as_chunks().0
            }

            #[inline(always)]
            fn next<S: Simd>(s: S, cursor: &mut Self::Cursor<'_, S>, index: usize) -> S::F {
                s.$load(&cursor[index])
            }
        }
    };
}

plain_decoder!(F32, 4, load_f32);
plain_decoder!(Bf16, 2, load_bf16);
plain_decoder!(F16, 2, load_f16);

macro_rules! packed_decoder {
    ($name:ident, $codes:literal, $low:ident, $shift:ident) => {
        struct $name;

        impl Decoder for $name {
            const VECTORS: usize = $codes;
            const BYTES: usize = 4 * LANES;
            const AFFINE: bool = true;
            type Cursor<'b, S: Simd> = S::I;

            #[inline(always)]
            fn start<S: Simd>(s: S, block: &[u8]) -> S::I {
                s.load_words(&block.as_chunks().0[0])
            }

            #[inline(always)]
            fn next<S: Simd>(s: S, cursor: &mut S::I, _: usize) -> S::F {
                let codes = s.$low(*cursor);
                *cursor = s.$shift(*cursor);
                codes
            }
        }
    };
}

packed_decoder!(Nibbles, 8, low_nibbles, shift_4);
packed_decoder!(Bytes, 4, low_bytes, shift_8);

/// Most outputs of a tile.
const MAX_OUTPUTS: usize = 4;

/// Scales and biases of the outputs of a tile, as floats.
struct Groups {
    /// Lanes that share a group.
    lanes: usize,
    /// Blocks that share a group, or 1.
    blocks: usize,
    /// Groups of a row, plus room for reading four at the last one.
    stride: usize,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Groups {
    #[inline(always)]
    fn new(weights: &MatrixView<'_>) -> Groups {
        let Storage::Affine { packing, .. } = weights.storage else {
            return Groups { lanes: LANES, blocks: 1, stride: 0, scales: Vec::new(), biases: Vec::new() };
        };
        let words = (packing.group * packing.bits / 32) as usize;
        let stride = weights.columns / packing.group as usize + 4;
        Groups {
            lanes: words.min(LANES),
            blocks: words.div_ceil(LANES),
            stride,
            scales: vec![0.0; stride * MAX_OUTPUTS],
            biases: vec![0.0; stride * MAX_OUTPUTS],
        }
    }

    /// Reads the groups of `outputs` outputs.
    #[inline(always)]
    fn read(&mut self, weights: &MatrixView<'_>, first: usize, outputs: usize) {
        let Storage::Affine { element, scales, biases, .. } = weights.storage else { return };
        let groups = self.stride - 4;
        let bytes = groups * element.bytes();
        for output in 0..outputs {
            let (from, to) = ((first + output) * bytes, output * self.stride);
            floats_into(element, &scales[from..from + bytes], &mut self.scales[to..to + groups]);
            floats_into(element, &biases[from..from + bytes], &mut self.biases[to..to + groups]);
        }
    }

    /// Scale and bias of each lane.
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, output: usize, block: usize) -> (S::F, S::F) {
        let first = output * self.stride
            + if self.blocks > 1 { block / self.blocks } else { block * (LANES / self.lanes) };
        let scales = self.scales[first..].first_chunk::<4>().expect("rows are padded");
        let biases = self.biases[first..].first_chunk::<4>().expect("rows are padded");
        (s.spread(scales, self.lanes), s.spread(biases, self.lanes))
    }
}

/// All outputs and rows of a task, tile by tile.
#[inline(always)]
fn tiles<S: Simd, D: Decoder>(s: S, task: &mut Task<'_, '_, '_>, bytes: &[u8]) {
    let mut groups = Groups::new(task.weights);
    let row_bytes = bytes.len() / task.weights.rows;
    let mut row = 0;
    while row < task.rows {
        let left = task.rows - row;
        let mut output = task.outputs.start;
        while output < task.outputs.end {
            let outputs = task.outputs.end - output;
            let place = Place { row, output, row_bytes };
            output += match (left, outputs) {
                (8.., _) => tile::<S, D, 1, 8>(s, task, bytes, &mut groups, place),
                (4.., 2..) => tile::<S, D, 2, 4>(s, task, bytes, &mut groups, place),
                (4.., _) => tile::<S, D, 1, 4>(s, task, bytes, &mut groups, place),
                (2.., 2..) => tile::<S, D, 2, 2>(s, task, bytes, &mut groups, place),
                (2.., _) => tile::<S, D, 1, 2>(s, task, bytes, &mut groups, place),
                (_, 4..) => tile::<S, D, 4, 1>(s, task, bytes, &mut groups, place),
                _ => tile::<S, D, 1, 1>(s, task, bytes, &mut groups, place),
            };
        }
        row += match left {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
    }
}

/// Where a tile stands.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    output: usize,
    /// Bytes of an output's weights.
    row_bytes: usize,
}

/// `R` rows of `O` outputs; returns `O`.
#[inline(always)]
fn tile<S: Simd, D: Decoder, const O: usize, const R: usize>(
    s: S,
    task: &mut Task<'_, '_, '_>,
    bytes: &[u8],
    groups: &mut Groups,
    place: Place,
) -> usize {
    if D::AFFINE {
        groups.read(task.weights, place.output, O);
    }
    let mut weights: [&[u8]; O] = [&[]; O];
    for (o, weights) in weights.iter_mut().enumerate() {
        *weights = &bytes[(place.output + o) * place.row_bytes..][..place.row_bytes];
    }
    let mut x: [&[f32]; R] = [&[]; R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = task.x.row(place.row + r);
    }
    let mut total = [[s.zero(); R]; O];
    let whole = place.row_bytes / D::BYTES;
    for block in 0..whole {
        let mut here: [&[u8]; O] = [&[]; O];
        for o in 0..O {
            here[o] = &weights[o][block * D::BYTES..][..D::BYTES];
        }
        add_block::<S, D, O, R>(s, here, x, groups, block, &mut total);
    }
    if whole < task.x.blocks {
        // The last block is shorter: zeros fill it, and meet zeros of `x`.
        let mut padded = [[0u8; 512]; O];
        let mut here: [&[u8]; O] = [&[]; O];
        for (o, (padded, here)) in padded.iter_mut().zip(&mut here).enumerate() {
            let rest = &weights[o][whole * D::BYTES..];
            padded[..rest.len()].copy_from_slice(rest);
            *here = &padded[..D::BYTES];
        }
        add_block::<S, D, O, R>(s, here, x, groups, whole, &mut total);
    }
    let column = place.output - task.outputs.start;
    for r in 0..R {
        let out = &mut task.out.row(place.row + r)[column..column + O];
        for o in 0..O {
            out[o] = s.sum(total[o][r]);
        }
    }
    O
}

#[inline(always)]
fn add_block<S: Simd, D: Decoder, const O: usize, const R: usize>(
    s: S,
    weights: [&[u8]; O],
    x: [&[f32]; R],
    groups: &Groups,
    block: usize,
    total: &mut [[S::F; R]; O],
) {
    let vectors = D::VECTORS + usize::from(D::AFFINE);
    let mut here: [&[[f32; LANES]]; R] = [&[]; R];
    for r in 0..R {
        here[r] = x[r][block * vectors * LANES..][..vectors * LANES].as_chunks().0;
    }
    let mut sums = [[s.zero(); R]; O];
    let mut cursors = [D::start(s, weights[0]); O];
    for o in 1..O {
        cursors[o] = D::start(s, weights[o]);
    }
    for vector in 0..D::VECTORS {
        let mut unpacked = [s.zero(); O];
        for o in 0..O {
            unpacked[o] = D::next(s, &mut cursors[o], vector);
        }
        for r in 0..R {
            let x = s.load(&here[r][vector]);
            for o in 0..O {
                sums[o][r] = s.fma(unpacked[o], x, sums[o][r]);
            }
        }
    }
    for o in 0..O {
        if D::AFFINE {
            let (scale, bias) = groups.lanes(s, o, block);
            for r in 0..R {
                let lane_sums = s.load(&here[r][D::VECTORS]);
                total[o][r] = s.fma(sums[o][r], scale, total[o][r]);
                total[o][r] = s.fma(lane_sums, bias, total[o][r]);
            }
        } else {
            for r in 0..R {
                total[o][r] = s.add(total[o][r], sums[o][r]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::weights::{Packing, floats};

    /// A matrix with its own bytes.
    struct Owned {
        rows: usize,
        columns: usize,
        packing: Option<Packing>,
        element: ElementType,
        parts: [Vec<u8>; 3],
    }

    impl Owned {
        fn view(&self) -> MatrixView<'_> {
            // One byte in: weights need no alignment.
            let [main, scales, biases] = self.parts.each_ref().map(|part| &part[1..]);
            let storage = match self.packing {
                None => Storage::Plain { element: self.element, bytes: main },
                Some(packing) => {
                    Storage::Affine { packing, codes: main, element: self.element, scales, biases }
                }
            };
            MatrixView { rows: self.rows, columns: self.columns, storage }
        }

        /// The weights in full.
        fn dense(&self) -> Vec<f64> {
            let view = self.view();
            match view.storage {
                Storage::Plain { element, bytes } => {
                    floats(element, bytes).into_iter().map(f64::from).collect()
                }
                Storage::Affine { packing, codes, element, scales, biases } => {
                    let (scales, biases) = (floats(element, scales), floats(element, biases));
                    (0..self.rows * self.columns)
                        .map(|i| {
                            let bit = i * packing.bits as usize;
                            let code = codes[bit / 8] >> (bit % 8) & ((1u16 << packing.bits) - 1) as u8;
                            let group = i / packing.group as usize;
                            f64::from(scales[group]) * f64::from(code) + f64::from(biases[group])
                        })
                        .collect()
                }
            }
        }
    }

    fn noise(seed: &mut u64) -> f32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn encode(element: ElementType, values: impl Iterator<Item = f32>) -> Vec<u8> {
        let mut out = vec![0];
        for value in values {
            match element {
                ElementType::F32 => out.extend(value.to_le_bytes()),
                ElementType::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
                _ => out.extend(half::bf16::from_f32(value).to_le_bytes()),
            }
        }
        out
    }

    fn matrix(
        rows: usize,
        columns: usize,
        element: ElementType,
        packing: Option<Packing>,
        seed: u64,
    ) -> Owned {
        let mut state = seed;
        let mut values = |count: usize| (0..count).map(|_| noise(&mut state)).collect::<Vec<f32>>();
        let parts = match packing {
            None => [encode(element, values(rows * columns).into_iter()), vec![0], vec![0]],
            Some(packing) => {
                let groups = rows * columns / packing.group as usize;
                let codes = values(1 + rows * columns * packing.bits as usize / 8);
                [
                    codes.iter().map(|x| (x * 1e5) as i32 as u8).collect(),
                    encode(element, values(groups).into_iter()),
                    encode(element, values(groups).into_iter()),
                ]
            }
        };
        Owned { rows, columns, packing, element, parts }
    }

    fn run(set: InstructionSet, threads: usize, owned: &Owned, x: &[f32], rows: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * owned.rows];
        let mut pool = Pool::new(threads).unwrap();
        let product = Product { weights: &owned.view(), bias: None, out: &mut out };
        multiply(set, &mut pool, x, rows, &mut [product]);
        out
    }

    fn storages() -> impl Strategy<Value = (ElementType, Option<Packing>)> {
        let element = prop::sample::select(vec![ElementType::F32, ElementType::F16, ElementType::Bf16]);
        let packing = (prop::sample::select(vec![4, 8]), prop::sample::select(vec![32, 64, 128]))
            .prop_map(|(bits, group)| Packing { bits, group });
        (element, prop::option::weighted(0.7, packing))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 96 }))]
        #[test]
        fn products_are_right_and_a_row_never_depends_on_its_company(
            (element, packing) in storages(),
            rows in 1usize..20,
            outputs in 1usize..70,
            groups in 1usize..7,
            odd in 0usize..32,
            seed: u64,
        ) {
            let columns = match packing {
                Some(packing) => groups * packing.group as usize,
                None => groups * 50 + odd,
            };
            let owned = matrix(outputs, columns, element, packing, seed);
            let mut state = !seed;
            let x: Vec<f32> = (0..rows * columns).map(|_| noise(&mut state)).collect();
            let best = run(InstructionSet::best(), 1, &owned, &x, rows);
            let dense = owned.dense();
            for row in 0..rows {
                for output in 0..outputs {
                    let pairs = || x[row * columns..].iter().zip(&dense[output * columns..]).take(columns);
                    let exact: f64 = pairs().map(|(&x, w)| f64::from(x) * w).sum();
                    let size: f64 = pairs().map(|(&x, w)| (f64::from(x) * w).abs()).sum();
                    // Codes are summed before their scale, so their size counts as well.
                    let bound = 1e-6 * size + 2e-5 * if packing.is_some() { 255.0 } else { 0.0 };
                    let got = f64::from(best[row * outputs + output]);
                    prop_assert!((got - exact).abs() <= bound + 1e-6, "{got} for {exact}");
                }
            }
            for row in 0..rows {
                let alone = run(InstructionSet::best(), 1, &owned, &x[row * columns..(row + 1) * columns], 1);
                prop_assert_eq!(&alone[..], &best[row * outputs..(row + 1) * outputs]);
            }
            for set in InstructionSet::available() {
                prop_assert_eq!(&run(set, 1, &owned, &x, rows), &best, "{:?}", set);
            }
        }
    }

    #[test]
    fn thread_count_and_company_of_other_matrices_do_not_matter() {
        let a = matrix(300, 512, ElementType::Bf16, Some(Packing { bits: 4, group: 64 }), 1);
        let b = matrix(77, 512, ElementType::F16, None, 2);
        let mut state = 3;
        let x: Vec<f32> = (0..20 * 512).map(|_| noise(&mut state)).collect();
        let expected =
            [run(InstructionSet::best(), 1, &a, &x, 20), run(InstructionSet::best(), 1, &b, &x, 20)];
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads).unwrap();
            let mut out = [vec![0.0; 300 * 20], vec![0.0; 77 * 20]];
            let [out_a, out_b] = &mut out;
            let bias = vec![1.0; 77];
            multiply(
                InstructionSet::best(),
                &mut pool,
                &x,
                20,
                &mut [
                    Product { weights: &a.view(), bias: None, out: out_a },
                    Product { weights: &b.view(), bias: Some(&bias), out: out_b },
                ],
            );
            assert_eq!(out[0], expected[0]);
            assert!(out[1].iter().zip(&expected[1]).all(|(y, x)| *y == x + 1.0));
        }
    }
}
