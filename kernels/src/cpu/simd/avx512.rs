//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// Proof that the machine has AVX-512 F, and the operations on it.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The operations, where the machine has them.
    pub(crate) fn detect() -> Option<Avx512> {
        // The narrower sets are part of every machine with AVX-512; they are
        // asked for because kernels are compiled with them as well.
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx512(()))
    }
}

/// Evaluates intrinsics.
macro_rules! intrinsics {
    ($body:expr) => {{
        // SAFETY: `self` exists, so `detect` found every feature used in this file; loads and
        // stores are the unaligned ones, through references to arrays of exactly their size.
        unsafe { $body }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        intrinsics!(compiled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        intrinsics!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        intrinsics!(_mm512_loadu_ps(values.as_ptr()))
    }

    #[inline(always)]
    fn store(self, vector: Self::F, values: &mut [f32; LANES]) {
        intrinsics!(_mm512_storeu_ps(values.as_mut_ptr(), vector))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        intrinsics!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        intrinsics!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }

    #[inline(always)]
    fn pow2(self, a: Self::F) -> Self::F {
        intrinsics!({
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        intrinsics!({
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a)));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn load_words(self, bytes: &[u8; 64]) -> Self::I {
        intrinsics!(_mm512_loadu_si512(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn low_nibbles(self, words: Self::I) -> Self::F {
        intrinsics!({
            // The permutation looks at the lowest four bits of each index alone.
            let codes = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            _mm512_permutexvar_ps(words, codes)
        })
    }

    #[inline(always)]
    fn low_bytes(self, words: Self::I) -> Self::F {
        intrinsics!(_mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(255))))
    }

    #[inline(always)]
    fn shift_4(self, words: Self::I) -> Self::I {
        intrinsics!(_mm512_srli_epi32::<4>(words))
    }

    #[inline(always)]
    fn shift_8(self, words: Self::I) -> Self::I {
        intrinsics!(_mm512_srli_epi32::<8>(words))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        intrinsics!(_mm512_castsi512_ps(_mm512_loadu_si512(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        intrinsics!({
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        })
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        intrinsics!(_mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn spread(self, values: &[f32; 4], per_value: usize) -> Self::F {
        intrinsics!({
            let values = _mm512_castps128_ps512(_mm_loadu_ps(values.as_ptr()));
            let lanes = match per_value {
                4 => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                8 => _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                _ => _mm512_setzero_si512(),
            };
            _mm512_permutexvar_ps(lanes, values)
        })
    }
}
