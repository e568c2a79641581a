//! How each storage of weights becomes floats.

use std::ops::Range;

use super::UNIT;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::weights::{ElementType, MatrixView, Storage};

/// How far ahead scales are asked for: a task reads so few of them that the
/// machine's own prefetcher has hardly begun.
const PREFETCH: usize = 2048;

/// Unpacks the weights of a unit of 32 inputs.
pub(super) trait Decoder {
    /// Bytes of a unit.
    const BYTES: usize;
    /// What is computed once for a group.
    type Group<S: Simd>: Copy;
    /// Prepares a group's scale and bias.
    fn group<S: Simd>(s: S, scale: f32, bias: f32) -> Self::Group<S>;
    /// The unit at the start of `bytes`, which may go on behind it, in the
    /// order of the storage's [`Layout`](super::layout::Layout).
    fn unit<S: Simd>(s: S, group: Self::Group<S>, bytes: &[u8]) -> (S::F, S::F);
}

macro_rules! plain_decoder {
    ($name:ident, $size:literal, $load:ident) => {
        pub(super) struct $name;

        impl Decoder for $name {
            const BYTES: usize = UNIT * $size;
            type Group<S: Simd> = ();

            #[inline(always)]
            fn group<S: Simd>(_: S, _: f32, _: f32) {}

            #[inline(always)]
            fn unit<S: Simd>(s: S, (): (), bytes: &[u8]) -> (S::F, S::F) {
                let vectors = bytes[..Self::BYTES].as_chunks().0;
                (s.$load(&vectors[0]), s.$load(&vectors[1]))
            }
        }
    };
}

plain_decoder!(F32, 4, load_f32);
plain_decoder!(Bf16, 2, load_bf16);
plain_decoder!(F16, 2, load_f16);

/// Codes of 4 bits: the even ones of a unit, then the odd ones.
pub(super) struct Nibbles;

impl Decoder for Nibbles {
    const BYTES: usize = UNIT / 2;
    type Group<S: Simd> = S::Table;

    #[inline(always)]
    fn group<S: Simd>(s: S, scale: f32, bias: f32) -> S::Table {
        s.table(scale, bias)
    }

    #[inline(always)]
    fn unit<S: Simd>(s: S, group: S::Table, bytes: &[u8]) -> (S::F, S::F) {
        s.nibbles(bytes.first_chunk().expect("a unit has sixteen bytes"), group)
    }
}

/// Codes of 8 bits.
pub(super) struct Bytes;

impl Decoder for Bytes {
    const BYTES: usize = UNIT;
    type Group<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn group<S: Simd>(s: S, scale: f32, bias: f32) -> (S::F, S::F) {
        (s.splat(scale), s.splat(bias))
    }

    #[inline(always)]
    fn unit<S: Simd>(s: S, (scale, bias): (S::F, S::F), bytes: &[u8]) -> (S::F, S::F) {
        let vectors = bytes[..UNIT].as_chunks().0;
        (s.fma(s.bytes(&vectors[0]), scale, bias), s.fma(s.bytes(&vectors[1]), scale, bias))
    }
}

/// Codes of 2, 3, 5 or 6 bits, which may cross the borders of bytes.
pub(super) struct Bits<const BITS: usize>;

impl<const BITS: usize> Decoder for Bits<BITS> {
    const BYTES: usize = UNIT * BITS / 8;
    type Group<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn group<S: Simd>(s: S, scale: f32, bias: f32) -> (S::F, S::F) {
        (s.splat(scale), s.splat(bias))
    }

    #[inline(always)]
    fn unit<S: Simd>(s: S, (scale, bias): (S::F, S::F), bytes: &[u8]) -> (S::F, S::F) {
        let first = s.codes::<BITS>(&window(bytes));
        let second = s.codes::<BITS>(&window(&bytes[LANES * BITS / 8..]));
        (s.fma(first, scale, bias), s.fma(second, scale, bias))
    }
}

/// Sixteen bytes, zeros after the last one of a matrix.
#[inline(always)]
pub(super) fn window(bytes: &[u8]) -> [u8; LANES] {
    match bytes.first_chunk() {
        Some(window) => *window,
        None => {
            let mut padded = [0; LANES];
            padded[..bytes.len()].copy_from_slice(bytes);
            padded
        }
    }
}

/// Scales and biases of the outputs of a task, as floats.
pub(super) struct Scales<'a> {
    /// Groups of an output; one of everything where weights are plain.
    pub(super) groups: usize,
    /// Units of a group.
    pub(super) units: usize,
    scales: &'a [f32],
    biases: &'a [f32],
}

impl<'a> Scales<'a> {
    /// Those that [`ReadScales`] left in `read`.
    pub(super) fn new(weights: &MatrixView<'_>, read: &'a [f32]) -> Scales<'a> {
        let Storage::Affine { packing, .. } = weights.storage else {
            return Scales { groups: 1, units: usize::MAX, scales: &[], biases: &[] };
        };
        let group = packing.group as usize;
        let (scales, biases) = read.split_at(read.len() / 2);
        Scales { groups: weights.columns / group, units: group / UNIT, scales, biases }
    }

    /// Scales and biases of a task's output.
    #[inline(always)]
    pub(super) fn row(&self, output: usize) -> (&[f32], &[f32]) {
        let row = output * self.groups..(output + 1) * self.groups;
        (&self.scales[row.clone()], &self.biases[row])
    }

    /// Scale and bias of a group of a task's output.
    #[inline(always)]
    pub(super) fn of(&self, output: usize, group: usize) -> (f32, f32) {
        match self.scales.get(output * self.groups + group) {
            Some(&scale) => (scale, self.biases[output * self.groups + group]),
            None => (0.0, 0.0),
        }
    }
}

/// Reads scales, then biases, of the outputs of a task as floats.
pub(super) struct ReadScales<'a, 'w> {
    pub(super) weights: &'a MatrixView<'w>,
    pub(super) outputs: Range<usize>,
    pub(super) room: &'a mut Vec<f32>,
}

impl Kernel for ReadScales<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Storage::Affine { packing, element, scales, biases, .. } = self.weights.storage else {
            self.room.clear();
            return;
        };
        let groups = self.weights.columns / packing.group as usize;
        let count = self.outputs.len() * groups;
        self.room.resize(2 * count, 0.0);
        let range =
            self.outputs.start * groups * element.bytes()..self.outputs.end * groups * element.bytes();
        for (bytes, out) in [scales, biases].into_iter().zip(self.room.chunks_exact_mut(count)) {
            floats_into(s, element, &bytes[range.clone()], out);
        }
    }
}

/// Little-endian floats of any type as `f32`.
#[inline(always)]
fn floats_into<S: Simd>(s: S, element: ElementType, bytes: &[u8], out: &mut [f32]) {
    macro_rules! convert {
        ($load:ident, $size:literal) => {{
            let (whole, rest) = bytes.as_chunks::<{ $size * LANES }>();
            let (vectors, last) = out.as_chunks_mut::<LANES>();
            for (bytes, out) in whole.iter().zip(vectors) {
                s.prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
                s.store(s.$load(bytes), out);
            }
            let mut padded = [0; $size * LANES];
            padded[..rest.len()].copy_from_slice(rest);
            let mut lanes = [0.0; LANES];
            s.store(s.$load(&padded), &mut lanes);
            last.copy_from_slice(&lanes[..last.len()]);
        }};
    }
    match element {
        ElementType::F32 => convert!(load_f32, 4),
        ElementType::Bf16 => convert!(load_bf16, 2),
        ElementType::F16 => convert!(load_f16, 2),
        ElementType::U32 => out.fill(0.0),
    }
}
