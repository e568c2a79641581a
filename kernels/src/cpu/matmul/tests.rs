//! Products of every storage, by size, company, threads and instructions.

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
            Some(packing) => Storage::Affine { packing, codes: main, element: self.element, scales, biases },
        };
        MatrixView { rows: self.rows, columns: self.columns, storage }
    }

    /// The weights in full.
    fn dense(&self) -> Vec<f64> {
        let view = self.view();
        match view.storage {
            Storage::Plain { element, bytes } => floats(element, bytes).into_iter().map(f64::from).collect(),
            Storage::Affine { packing, codes, element, scales, biases } => {
                let (scales, biases) = (floats(element, scales), floats(element, biases));
                (0..self.rows * self.columns)
                    .map(|i| {
                        let bit = i * packing.bits as usize;
                        let next = codes.get(bit / 8 + 1).copied().unwrap_or(0);
                        let pair = u16::from_le_bytes([codes[bit / 8], next]);
                        let code = pair >> (bit % 8) & ((1 << packing.bits) - 1);
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

fn matrix(rows: usize, columns: usize, element: ElementType, packing: Option<Packing>, seed: u64) -> Owned {
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
    run_as(Arithmetic::floats(set), threads, owned, x, rows)
}

fn run_as(arithmetic: Arithmetic, threads: usize, owned: &Owned, x: &[f32], rows: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * owned.rows];
    let mut pool = Pool::new(threads).unwrap();
    let product = Product { weights: &owned.view(), bias: None, out: &mut out };
    multiply(arithmetic, &mut pool, x, rows, &mut [product]);
    out
}

fn storages() -> impl Strategy<Value = (ElementType, Option<Packing>)> {
    let element = prop::sample::select(vec![ElementType::F32, ElementType::F16, ElementType::Bf16]);
    let packing = (prop::sample::select(vec![2, 3, 4, 5, 6, 8]), prop::sample::select(vec![32, 64, 128]))
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
    let expected = [run(InstructionSet::best(), 1, &a, &x, 20), run(InstructionSet::best(), 1, &b, &x, 20)];
    for threads in [1, 2, 3] {
        let mut pool = Pool::new(threads).unwrap();
        let mut out = [vec![0.0; 300 * 20], vec![0.0; 77 * 20]];
        let [out_a, out_b] = &mut out;
        let bias = vec![1.0; 77];
        multiply(
            Arithmetic::floats(InstructionSet::best()),
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

#[test]
fn rows_that_threads_share_keep_their_bits() {
    let owned = matrix(40, 96, ElementType::F16, Some(Packing { bits: 4, group: 32 }), 7);
    let mut state = 8;
    let x: Vec<f32> = (0..200 * 96).map(|_| noise(&mut state)).collect();
    assert_eq!(task_rows(200, 2, 4), 50, "so few outputs leave threads idle");
    assert_eq!((task_rows(200, 2, 1), task_rows(95, 2, 4), task_rows(0, 2, 4)), (200, 95, 1));
    for activations in [Activations::F32, Activations::Int8] {
        let arithmetic = Arithmetic { set: InstructionSet::best(), activations };
        let expected = run_as(arithmetic, 1, &owned, &x, 200);
        assert_eq!(run_as(arithmetic, 4, &owned, &x, 200), expected, "{activations:?}");
    }
}

/// The product by the definition of [`super::integer`], in plain arithmetic.
fn rounded_product(owned: &Owned, x: &[f32], rows: usize) -> Vec<f32> {
    let packing = owned.packing.unwrap();
    let view = owned.view();
    let Storage::Affine { codes, element, scales, biases, .. } = view.storage else { unreachable!() };
    let (scales, biases) = (floats(element, scales), floats(element, biases));
    let mut out = Vec::new();
    for x in x.chunks_exact(owned.columns).take(rows) {
        for output in 0..owned.rows {
            let mut chains = [0.0f32; 4];
            for (unit, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
                let largest = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let numbers = x.map(|x| (x * inverse).round_ties_even() as i32);
                let mut sum = 0;
                for (i, number) in numbers.iter().enumerate() {
                    let index = output * owned.columns + unit * UNIT + i;
                    let code = match packing.bits {
                        4 => codes[index / 2] >> (index % 2 * 4) & 15,
                        _ => codes[index],
                    };
                    sum += i32::from(code) * number;
                }
                let all: i32 = numbers.iter().sum();
                let group = (output * owned.columns + unit * UNIT) / packing.group as usize;
                let scale = largest / 127.0;
                let chain = &mut chains[unit % 4];
                *chain = (sum as f32 * scales[group]).mul_add(scale, *chain);
                *chain = biases[group].mul_add(scale * all as f32, *chain);
            }
            let [a, b, c, d] = chains.map(|chain| chain + 0.0);
            out.push((a + c) + (b + d));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
    #[test]
    fn rounded_products_have_the_bits_of_their_definition_on_every_path(
        bits in prop::sample::select(vec![4, 8]),
        group in prop::sample::select(vec![32, 64, 128]),
        rows in prop::sample::select(vec![1usize, 2, 3, 4, 7, 15, 16, 17, 25]),
        outputs in 1usize..70,
        groups in prop::sample::select(vec![1usize, 2, 3, 5, 9, 12, 18, 22, 48]),
        seed: u64,
    ) {
        // Among these inputs are 32, 64, 96, 576 and 1536.
        let columns = groups * group as usize;
        let owned = matrix(outputs, columns, ElementType::F16, Some(Packing { bits, group }), seed);
        let mut state = !seed;
        let mut x: Vec<f32> = (0..rows * columns).map(|_| noise(&mut state)).collect();
        x[..UNIT].fill(0.0);
        let wanted = rounded_product(&owned, &x, rows);
        for set in InstructionSet::available() {
            let arithmetic = Arithmetic { set, activations: Activations::Int8 };
            for threads in [1, 3] {
                prop_assert_eq!(&run_as(arithmetic, threads, &owned, &x, rows), &wanted, "{:?}", set);
            }
            for row in 0..rows {
                let alone = run_as(arithmetic, 1, &owned, &x[row * columns..][..columns], 1);
                prop_assert_eq!(&alone[..], &wanted[row * outputs..][..outputs], "{:?}", set);
            }
        }
    }

    #[test]
    fn rounded_products_are_near_those_of_floats(
        bits in prop::sample::select(vec![4, 8]),
        groups in 1usize..22,
        seed: u64,
    ) {
        let columns = groups * 64;
        let owned = matrix(8, columns, ElementType::F32, Some(Packing { bits, group: 64 }), seed);
        let mut state = !seed;
        let x: Vec<f32> = (0..columns).map(|_| noise(&mut state)).collect();
        let set = InstructionSet::best();
        let rounded = run_as(Arithmetic { set, activations: Activations::Int8 }, 1, &owned, &x, 1);
        let dense = owned.dense();
        for (output, (got, exact)) in rounded.iter().zip(run(set, 1, &owned, &x, 1)).enumerate() {
            // Half a step of 1/127 of a unit's largest input, at most 1, for each weight.
            let weights = &dense[output * columns..][..columns];
            let bound = weights.iter().map(|weight| weight.abs()).sum::<f64>() * 0.5 / 127.0 + 1e-3;
            prop_assert!(f64::from((got - exact).abs()) <= bound, "{} for {}", got, exact);
        }
    }
}

#[test]
fn other_weights_stay_with_floats() {
    for packing in [None, Some(Packing { bits: 5, group: 32 })] {
        let owned = matrix(9, 96, ElementType::Bf16, packing, 5);
        let mut state = 6;
        let x: Vec<f32> = (0..7 * 96).map(|_| noise(&mut state)).collect();
        let set = InstructionSet::best();
        let rounded = run_as(Arithmetic { set, activations: Activations::Int8 }, 2, &owned, &x, 7);
        assert_eq!(rounded, run(set, 2, &owned, &x, 7));
    }
}

#[test]
fn what_is_no_number_reaches_the_rounded_product_alike_everywhere() {
    let owned = matrix(5, 64, ElementType::F32, Some(Packing { bits: 4, group: 32 }), 9);
    let mut x = vec![0.5; 17 * 64];
    (x[3], x[70], x[130]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let bits = |set| -> Vec<bool> {
        let arithmetic = Arithmetic { set, activations: Activations::Int8 };
        let few = run_as(arithmetic, 1, &owned, &x, 7);
        // Few rows and many take different ways.
        let many = run_as(arithmetic, 1, &owned, &x, 17);
        let finite = |all: &[f32]| all.iter().map(|y| y.is_finite()).collect::<Vec<bool>>();
        assert_eq!(finite(&few), finite(&many)[..few.len()]);
        finite(&few)
    };
    let portable = bits(InstructionSet::Portable);
    assert!(portable[..5].iter().all(|finite| *finite), "not a number counts as zero");
    assert!(portable[5..15].iter().all(|finite| !finite), "infinity is not lost");
    for set in InstructionSet::available() {
        assert_eq!(bits(set), portable, "{set:?}");
    }
}
