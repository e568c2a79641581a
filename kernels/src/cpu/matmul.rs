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

    /// Vectors that a block of activations takes.
    fn vectors(self) -> usize {
        self.inputs() / LANES + usize::from(self != Layout::Plain)
    }
}

/// Rows of a tile when so many are left.
#[inline(always)]
fn tile_rows(left: usize) -> usize {
    match left {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Sixteen floats that lie in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Vector([f32; LANES]);

/// Rows of activations, laid out for tiles: a tile's rows lie together, block
/// by block.
struct Activations {
    layout: Layout,
    /// Blocks of a row.
    blocks: usize,
    data: Vec<Vector>,
}

impl Activations {
    fn new(layout: Layout, x: &[f32], rows: usize, columns: usize) -> Activations {
        let blocks = columns.div_ceil(layout.inputs());
        let data = vec![Vector([0.0; LANES]); rows * blocks * layout.vectors()];
        let mut activations = Activations { layout, blocks, data };
        let mut first = 0;
        while first < rows {
            let count = tile_rows(rows - first);
            let tile = activations.tile_range(first, count);
            let tile = &mut activations.data[tile];
            for row in 0..count {
                let x = &x[(first + row) * columns..][..columns];
                let blocks = tile.chunks_exact_mut(layout.vectors()).skip(row).step_by(count);
                for (x, out) in x.chunks(layout.inputs()).zip(blocks) {
                    match layout {
                        Layout::Plain => {
                            for (x, out) in x.chunks(LANES).zip(out) {
                                out.0[..x.len()].copy_from_slice(x);
                            }
                        }
                        Layout::Nibbles => lay_out::<8>(x, out),
                        Layout::Bytes => lay_out::<4>(x, out),
                    }
                }
            }
            first += count;
        }
        activations
    }

    fn tile_range(&self, first: usize, rows: usize) -> std::ops::Range<usize> {
        let row = self.blocks * self.layout.vectors();
        first * row..(first + rows) * row
    }

    /// The tile of `rows` rows that begins at row `first`.
    #[inline(always)]
    fn tile(&self, first: usize, rows: usize) -> &[Vector] {
        &self.data[self.tile_range(first, rows)]
    }
}

/// Lays out one block for words of `CODES` codes.
fn lay_out<const CODES: usize>(x: &[f32], out: &mut [Vector]) {
    let (words, _) = x.as_chunks::<CODES>();
    for (lane, word) in words.iter().enumerate() {
        let mut sum = 0.0;
        for (code, &value) in word.iter().enumerate() {
            out[code].0[lane] = value;
            sum += value;
        }
        out[CODES].0[lane] = sum;
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

/// Scales and biases of the outputs of a task, as floats.
struct Groups {
    /// Lanes that share a group.
    lanes: usize,
    /// Groups of a block are `block * per_block >> shift` and on.
    per_block: usize,
    shift: u32,
    /// Groups of an output.
    stride: usize,
    /// All outputs, and room for reading four at the last group.
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Groups {
    #[inline(always)]
    fn new(weights: &MatrixView<'_>, outputs: std::ops::Range<usize>) -> Groups {
        let Storage::Affine { packing, element, scales, biases, .. } = weights.storage else {
            return Groups {
                lanes: LANES,
                per_block: 1,
                shift: 0,
                stride: 0,
                scales: Vec::new(),
                biases: Vec::new(),
            };
        };
        let words = (packing.group * packing.bits / 32) as usize;
        let stride = weights.columns / packing.group as usize;
        let bytes = stride * element.bytes();
        let count = outputs.len() * stride;
        let mut groups = Groups {
            lanes: words.min(LANES),
            per_block: LANES.div_ceil(words),
            shift: words.div_ceil(LANES).ilog2(),
            stride,
            scales: vec![0.0; count + 4],
            biases: vec![0.0; count + 4],
        };
        let range = outputs.start * bytes..outputs.end * bytes;
        floats_into(element, &scales[range.clone()], &mut groups.scales[..count]);
        floats_into(element, &biases[range], &mut groups.biases[..count]);
        groups
    }

    /// Scale and bias of each lane; `output` counts from the task's first.
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, output: usize, block: usize) -> (S::F, S::F) {
        let first = output * self.stride + ((block * self.per_block) >> self.shift);
        let scales = self.scales[first..].first_chunk::<4>().expect("the end is padded");
        let biases = self.biases[first..].first_chunk::<4>().expect("the end is padded");
        (s.spread(scales, self.lanes), s.spread(biases, self.lanes))
    }
}

/// All outputs and rows of a task, tile by tile.
#[inline(always)]
fn tiles<S: Simd, D: Decoder>(s: S, task: &mut Task<'_, '_, '_>, bytes: &[u8]) {
    let groups = Groups::new(task.weights, task.outputs.clone());
    let row_bytes = bytes.len() / task.weights.rows;
    let mut row = 0;
    while row < task.rows {
        let left = task.rows - row;
        let mut output = task.outputs.start;
        while output < task.outputs.end {
            let outputs = task.outputs.end - output;
            let place = Place { row, output, row_bytes };
            output += match (left, outputs) {
                (8.., _) => tile::<S, D, 1, 8>(s, task, bytes, &groups, place),
                (4.., 2..) => tile::<S, D, 2, 4>(s, task, bytes, &groups, place),
                (4.., _) => tile::<S, D, 1, 4>(s, task, bytes, &groups, place),
                (2.., 2..) => tile::<S, D, 2, 2>(s, task, bytes, &groups, place),
                (2.., _) => tile::<S, D, 1, 2>(s, task, bytes, &groups, place),
                (_, 4..) => tile::<S, D, 4, 1>(s, task, bytes, &groups, place),
                _ => tile::<S, D, 1, 1>(s, task, bytes, &groups, place),
            };
        }
        row += tile_rows(left);
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
    groups: &Groups,
    place: Place,
) -> usize {
    let column = place.output - task.outputs.start;
    let mut weights: [&[u8]; O] = [&[]; O];
    for (o, weights) in weights.iter_mut().enumerate() {
        *weights = &bytes[(place.output + o) * place.row_bytes..][..place.row_bytes];
    }
    let vectors = D::VECTORS + usize::from(D::AFFINE);
    let x = task.x.tile(place.row, R);
    let mut total = [[s.zero(); R]; O];
    let whole = place.row_bytes / D::BYTES;
    for (block, x) in x.chunks_exact(R * vectors).take(whole).enumerate() {
        let mut here: [&[u8]; O] = [&[]; O];
        for o in 0..O {
            here[o] = &weights[o][block * D::BYTES..][..D::BYTES];
        }
        add_block::<S, D, O, R>(s, here, x, groups, (column, block), &mut total);
    }
    if whole < task.x.blocks {
        let x = &x[whole * R * vectors..][..R * vectors];
        // The last block is shorter: zeros fill it, and meet zeros of `x`.
        let mut padded = [[0u8; 512]; O];
        let mut here: [&[u8]; O] = [&[]; O];
        for (o, (padded, here)) in padded.iter_mut().zip(&mut here).enumerate() {
            let rest = &weights[o][whole * D::BYTES..];
            padded[..rest.len()].copy_from_slice(rest);
            *here = &padded[..D::BYTES];
        }
        add_block::<S, D, O, R>(s, here, x, groups, (column, whole), &mut total);
    }
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
    x: &[Vector],
    groups: &Groups,
    (column, block): (usize, usize),
    total: &mut [[S::F; R]; O],
) {
    let stride = D::VECTORS + usize::from(D::AFFINE);
    let x = &x[..R * stride];
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
            let x = s.load(&x[r * stride + vector].0);
            for o in 0..O {
                sums[o][r] = s.fma(unpacked[o], x, sums[o][r]);
            }
        }
    }
    for o in 0..O {
        if D::AFFINE {
            let (scale, bias) = groups.lanes(s, column + o, block);
            for r in 0..R {
                let lane_sums = s.load(&x[r * stride + D::VECTORS].0);
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
