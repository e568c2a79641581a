//! Sixteen lanes in two AVX registers.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

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
    type I = (__m256i, __m256i);

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
    fn load_words(self, bytes: &[u8; 64]) -> Self::I {
        intrinsics!((
            _mm256_loadu_si256(bytes.as_ptr().cast()),
            _mm256_loadu_si256(bytes.as_ptr().add(32).cast()),
        ))
    }

    #[inline(always)]
    fn low_nibbles(self, words: Self::I) -> Self::F {
        intrinsics!({
            let mask = _mm256_set1_epi32(15);
            (
                _mm256_cvtepi32_ps(_mm256_and_si256(words.0, mask)),
                _mm256_cvtepi32_ps(_mm256_and_si256(words.1, mask)),
            )
        })
    }

    #[inline(always)]
    fn low_bytes(self, words: Self::I) -> Self::F {
        intrinsics!({
            let mask = _mm256_set1_epi32(255);
            (
                _mm256_cvtepi32_ps(_mm256_and_si256(words.0, mask)),
                _mm256_cvtepi32_ps(_mm256_and_si256(words.1, mask)),
            )
        })
    }

    #[inline(always)]
    fn shift_4(self, words: Self::I) -> Self::I {
        intrinsics!((_mm256_srli_epi32::<4>(words.0), _mm256_srli_epi32::<4>(words.1)))
    }

    #[inline(always)]
    fn shift_8(self, words: Self::I) -> Self::I {
        intrinsics!((_mm256_srli_epi32::<8>(words.0), _mm256_srli_epi32::<8>(words.1)))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        let words = self.load_words(bytes);
        intrinsics!((_mm256_castsi256_ps(words.0), _mm256_castsi256_ps(words.1)))
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

    #[inline(always)]
    fn spread(self, values: &[f32; 4], per_value: usize) -> Self::F {
        let (low, high) = match per_value {
            4 => ([0, 1], [2, 3]),
            8 => ([0, 0], [1, 1]),
            _ => ([0, 0], [0, 0]),
        };
        intrinsics!((
            _mm256_set_m128(_mm_set1_ps(values[low[1]]), _mm_set1_ps(values[low[0]])),
            _mm256_set_m128(_mm_set1_ps(values[high[1]]), _mm_set1_ps(values[high[0]])),
        ))
    }
}
