//! Sixteen lanes in plain Rust.

use half::f16;

use super::{Kernel, LANES, Simd};

/// Code for any machine, and the reference of the other two.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    a.map(f)
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Portable {
    type F = [f32; LANES];
    type Table = (f32, f32);
    const REGISTERS: usize = 0;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        *values
    }

    #[inline(always)]
    fn store(self, vector: Self::F, values: &mut [f32; LANES]) {
        *values = vector;
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        map(a, f32::round_ties_even)
    }

    #[inline(always)]
    fn pow2(self, a: Self::F) -> Self::F {
        map(a, |a| f32::from_bits(((a as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        let mut lanes = a;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    #[inline(always)]
    fn sum_four(self, vectors: [Self::F; 4]) -> [f32; 4] {
        vectors.map(|vector| self.sum(vector))
    }

    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |largest, lane| if lane > largest { lane } else { largest })
    }

    #[inline(always)]
    fn to_bytes(self, a: Self::F) -> [i8; LANES] {
        // The conversion turns what is not a number into zero.
        a.map(|a| a.round_ties_even().clamp(-127.0, 127.0) as i8)
    }

    #[inline(always)]
    fn quarters(self, parts: [&[f32; 4]; 4]) -> Self::F {
        std::array::from_fn(|lane| parts[lane / 4][lane % 4])
    }

    #[inline(always)]
    fn repeat(self, four: &[f32; 4]) -> Self::F {
        std::array::from_fn(|lane| four[lane % 4])
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    fn table(self, scale: f32, bias: f32) -> (f32, f32) {
        (scale, bias)
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; LANES], (scale, bias): (f32, f32)) -> (Self::F, Self::F) {
        (
            bytes.map(|byte| f32::from(byte & 15).mul_add(scale, bias)),
            bytes.map(|byte| f32::from(byte >> 4).mul_add(scale, bias)),
        )
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; LANES]) -> Self::F {
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, bytes: &[u8; LANES]) -> Self::F {
        let bits = u128::from_le_bytes(*bytes);
        std::array::from_fn(|lane| ((bits >> (lane * BITS)) as u32 & ((1 << BITS) - 1)) as f32)
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        let (words, _) = bytes.as_chunks::<4>();
        std::array::from_fn(|lane| f32::from_le_bytes(words[lane]))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        let (words, _) = bytes.as_chunks::<2>();
        std::array::from_fn(|lane| f32::from_bits(u32::from(u16::from_le_bytes(words[lane])) << 16))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        let (words, _) = bytes.as_chunks::<2>();
        std::array::from_fn(|lane| f16::from_le_bytes(words[lane]).to_f32())
    }
}
