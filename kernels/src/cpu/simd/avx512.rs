//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd, code_bytes, code_shifts};

/// Proof that the machine has AVX-512 F and BW, and the operations on it.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The operations, where the machine has them.
    pub(crate) fn detect() -> Option<Avx512> {
        // The narrower sets are part of every machine with AVX-512; they are
        // asked for because kernels are compiled with them as well.
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
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
    type Table = __m512;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
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
    fn sum_four(self, [a, b, c, d]: [Self::F; 4]) -> [f32; 4] {
        intrinsics!({
            // Halves of two vectors side by side, then quarters of four; what is added to what is
            // the same as in `sum`.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
            );
            let four = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b11_10_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b01_01_01_01>(two));
            let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        })
    }

    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        intrinsics!(_mm512_reduce_max_ps(a))
    }

    #[inline(always)]
    fn to_bytes(self, a: Self::F) -> [i8; LANES] {
        intrinsics!({
            let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a);
            let near = _mm512_max_ps(_mm512_min_ps(a, _mm512_set1_ps(127.0)), _mm512_set1_ps(-127.0));
            let words = _mm512_maskz_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
                numbers, near,
            );
            let mut bytes = [0; LANES];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(words));
            bytes
        })
    }

    #[inline(always)]
    fn quarters(self, [a, b, c, d]: [&[f32; 4]; 4]) -> Self::F {
        intrinsics!({
            let ab = _mm256_insertf128_ps::<1>(
                _mm256_castps128_ps256(_mm_loadu_ps(a.as_ptr())),
                _mm_loadu_ps(b.as_ptr()),
            );
            let cd = _mm256_insertf128_ps::<1>(
                _mm256_castps128_ps256(_mm_loadu_ps(c.as_ptr())),
                _mm_loadu_ps(d.as_ptr()),
            );
            let ab = _mm512_castps_pd(_mm512_castps256_ps512(ab));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(ab, _mm256_castps_pd(cd)))
        })
    }

    #[inline(always)]
    fn repeat(self, four: &[f32; 4]) -> Self::F {
        intrinsics!(_mm512_broadcast_f32x4(_mm_loadu_ps(four.as_ptr())))
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // A prefetch is a hint: it never faults and reads nothing that a program could see.
        intrinsics!(_mm_prefetch::<_MM_HINT_T0>(address.cast()));
    }

    #[inline(always)]
    fn table(self, scale: f32, bias: f32) -> __m512 {
        intrinsics!({
            let codes = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            _mm512_fmadd_ps(codes, _mm512_set1_ps(scale), _mm512_set1_ps(bias))
        })
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; LANES], table: __m512) -> (Self::F, Self::F) {
        intrinsics!({
            let words = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            // The permutation looks at the lowest four bits of each index alone.
            let low = _mm512_permutexvar_ps(words, table);
            (low, _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(words), table))
        })
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; LANES]) -> Self::F {
        intrinsics!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))))
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, bytes: &[u8; LANES]) -> Self::F {
        intrinsics!({
            let spread = const { code_bytes::<BITS>() };
            let shifts = const { code_shifts::<BITS>() };
            let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()));
            let words = _mm512_shuffle_epi8(bytes, _mm512_loadu_si512(spread.as_ptr().cast()));
            let words = _mm512_srlv_epi32(words, _mm512_loadu_si512(shifts.as_ptr().cast()));
            _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32((1 << BITS) - 1)))
        })
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
}
