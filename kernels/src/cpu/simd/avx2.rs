//! Sixteen lanes in two AVX registers.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd, code_bytes, code_shifts};

/// Proof that the machine has AVX2, FMA and F16C, and the operations on them.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The operations, where the machine has them.
    pub(crate) fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }
}

/// Evaluates intrinsics.
macro_rules! intrinsics {
    ($body:expr) => {{
        // SAFETY: `self` exists, so `detect` found every feature used in this file; loads and
        // stores are the unaligned ones, inside arrays that references prove to be there.
        unsafe { $body }
    }};
}

/// The same intrinsic on both halves.
macro_rules! halves {
    ($intrinsic:ident, $($argument:expr),+) => {
        intrinsics!(($intrinsic($($argument.0),+), $intrinsic($($argument.1),+)))
    };
}

impl Simd for Avx2 {
    type F = (__m256, __m256);
    type Table = (f32, f32);
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        intrinsics!(compiled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        intrinsics!((_mm256_set1_ps(value), _mm256_set1_ps(value)))
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        intrinsics!((_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))))
    }

    #[inline(always)]
    fn store(self, vector: Self::F, values: &mut [f32; LANES]) {
        intrinsics!({
            _mm256_storeu_ps(values.as_mut_ptr(), vector.0);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), vector.1);
        })
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        halves!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        intrinsics!((
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.0),
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.1),
        ))
    }

    #[inline(always)]
    fn pow2(self, a: Self::F) -> Self::F {
        intrinsics!({
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(a.0), bias));
            let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(a.1), bias));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        })
    }

    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        intrinsics!({
            let eight = _mm256_add_ps(a.0, a.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [Self::F; 4]) -> [f32; 4] {
        intrinsics!({
            // Quarters of two vectors side by side; what is added to what is the same as in `sum`.
            let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
            let (c, d) = (_mm256_add_ps(c.0, c.1), _mm256_add_ps(d.0, d.1));
            let ac =
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, c), _mm256_permute2f128_ps::<0x31>(a, c));
            let bd =
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(b, d), _mm256_permute2f128_ps::<0x31>(b, d));
            // Lanes 0 and 2, then 1 and 3, of a and b, and of c and d.
            let two = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ac, bd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ac, bd),
            );
            let one = _mm256_add_ps(two, _mm256_permute_ps::<0b11_11_01_01>(two));
            let mut lanes = [0.0; 8];
            _mm256_storeu_ps(lanes.as_mut_ptr(), one);
            [lanes[0], lanes[2], lanes[4], lanes[6]]
        })
    }

    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        intrinsics!({
            let eight = _mm256_max_ps(a.0, a.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn to_bytes(self, a: Self::F) -> [i8; LANES] {
        intrinsics!({
            let (low, high) = (near_words(a.0), near_words(a.1));
            // Packing takes quarters in turn: the order is put right between the two.
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let packed =
                _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            let mut bytes = [0; LANES];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
            bytes
        })
    }

    #[inline(always)]
    fn quarters(self, [a, b, c, d]: [&[f32; 4]; 4]) -> Self::F {
        intrinsics!((
            _mm256_set_m128(_mm_loadu_ps(b.as_ptr()), _mm_loadu_ps(a.as_ptr())),
            _mm256_set_m128(_mm_loadu_ps(d.as_ptr()), _mm_loadu_ps(c.as_ptr())),
        ))
    }

    #[inline(always)]
    fn repeat(self, four: &[f32; 4]) -> Self::F {
        intrinsics!({
            let two = _mm256_broadcast_ps(&_mm_loadu_ps(four.as_ptr()));
            (two, two)
        })
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // A prefetch is a hint: it never faults and reads nothing that a program could see.
        intrinsics!(_mm_prefetch::<_MM_HINT_T0>(address.cast()));
    }

    #[inline(always)]
    fn table(self, scale: f32, bias: f32) -> (f32, f32) {
        (scale, bias)
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; LANES], (scale, bias): (f32, f32)) -> (Self::F, Self::F) {
        let (scale, bias) = (self.splat(scale), self.splat(bias));
        intrinsics!({
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let mask = _mm_set1_epi8(15);
            let low = _mm_and_si128(bytes, mask);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
            (self.fma(widen(low), scale, bias), self.fma(widen(high), scale, bias))
        })
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; LANES]) -> Self::F {
        intrinsics!(widen(_mm_loadu_si128(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, bytes: &[u8; LANES]) -> Self::F {
        intrinsics!((eight_codes::<BITS, 0>(bytes), eight_codes::<BITS, 1>(bytes)))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        intrinsics!((_mm256_loadu_ps(bytes.as_ptr().cast()), _mm256_loadu_ps(bytes.as_ptr().add(32).cast()),))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        intrinsics!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().add(16).cast()));
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        })
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        intrinsics!((
            _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(16).cast())),
        ))
    }
}

/// The nearest integers from -127 to 127, zero for what is not a number.
#[target_feature(enable = "avx2")]
#[inline]
fn near_words(a: __m256) -> __m256i {
    let near = _mm256_max_ps(_mm256_min_ps(a, _mm256_set1_ps(127.0)), _mm256_set1_ps(-127.0));
    let rounded = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(near);
    let numbers = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(a, a));
    _mm256_and_si256(_mm256_cvtps_epi32(rounded), numbers)
}

/// Sixteen bytes as floats.
#[target_feature(enable = "avx2")]
#[inline]
fn widen(bytes: __m128i) -> (__m256, __m256) {
    let high = _mm_unpackhi_epi64(bytes, bytes);
    (_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)))
}

/// The codes of lanes 0 to 7, or from lane 8 on, as floats.
#[target_feature(enable = "avx2")]
#[inline]
fn eight_codes<const BITS: usize, const HALF: usize>(bytes: &[u8; LANES]) -> __m256 {
    let spread = const { code_bytes::<BITS>() };
    let shifts = const { code_shifts::<BITS>() };
    // SAFETY: the loads are inside the three arrays: 16 bytes of 16, and half HALF of each of the
    // other two.
    let (bytes, spread, shifts) = unsafe {
        (
            _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())),
            _mm256_loadu_si256(spread.as_ptr().add(32 * HALF).cast()),
            _mm256_loadu_si256(shifts.as_ptr().add(8 * HALF).cast()),
        )
    };
    let words = _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, spread), shifts);
    _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32((1 << BITS) - 1)))
}
