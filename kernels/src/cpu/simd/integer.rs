//! Exact dot products of small integers.
//!
//! Codes of weights are unsigned bytes, activations signed ones. All sums are
//! formed in 32 bits without rounding or saturation, so every implementation
//! and every order gives the same numbers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{InstructionSet, LANES, Portable, Simd};

/// A computation that is compiled once for each implementation.
pub(crate) trait IntegerKernel {
    /// As [`Kernel::run`](super::Kernel::run).
    fn run<I: Integers>(self, integers: I);
}

/// Sixteen sums of products of four codes and four activations.
pub(crate) trait Integers: Copy + Send + Sync + 'static {
    /// The operations on floats beside them.
    type Floats: Simd;
    /// Sixteen 32-bit integers, or 64 bytes.
    type I: Copy;

    fn floats(self) -> Self::Floats;
    fn zero(self) -> Self::I;
    fn load_codes(self, codes: &[u8; 64]) -> Self::I;
    /// The lower halves of 64 bytes, then the upper ones.
    fn load_nibbles(self, codes: &[u8; 64]) -> (Self::I, Self::I);
    fn load_x(self, x: &[i8; 64]) -> Self::I;
    /// Four activations, sixteen times.
    fn splat_x(self, x: &[i8; 4]) -> Self::I;
    /// Adds to each lane the products of its four codes and activations.
    fn dot(self, sum: Self::I, codes: Self::I, x: Self::I) -> Self::I;
    /// The sums of the first and second, and of the third and last quarter of
    /// `first`, then of `second`.
    fn join_halves(self, first: Self::I, second: Self::I) -> Self::I;
    /// The sums of the quarters of the first vector, then of the others.
    fn sum_quarters(self, vectors: [Self::I; 4]) -> Self::I;
    fn to_floats(self, sums: Self::I) -> <Self::Floats as Simd>::F;
}

impl InstructionSet {
    /// Runs `kernel` on the set's exact integers; sets without instructions
    /// for them take the next best, with the same results.
    pub(crate) fn run_integers<K: IntegerKernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 if let Some(integers) = Vnni::detect() => integers.run(kernel),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 | InstructionSet::Avx2 if let Some(floats) = Avx2::detect() => {
                Avx2Integers(floats).run(kernel);
            }
            _ => kernel.run(Portable),
        }
    }
}

/// Sixteen integers as the 64 bytes that they were loaded from.
fn bytes_of(lanes: [i32; LANES]) -> [[u8; 4]; LANES] {
    lanes.map(i32::to_le_bytes)
}

impl Integers for Portable {
    type Floats = Portable;
    type I = [i32; LANES];

    #[inline(always)]
    fn floats(self) -> Portable {
        self
    }

    #[inline(always)]
    fn zero(self) -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    fn load_codes(self, codes: &[u8; 64]) -> Self::I {
        let words = codes.as_chunks().0;
        std::array::from_fn(|lane| i32::from_le_bytes(words[lane]))
    }

    #[inline(always)]
    fn load_nibbles(self, codes: &[u8; 64]) -> (Self::I, Self::I) {
        (self.load_codes(&codes.map(|byte| byte & 15)), self.load_codes(&codes.map(|byte| byte >> 4)))
    }

    #[inline(always)]
    fn load_x(self, x: &[i8; 64]) -> Self::I {
        self.load_codes(&x.map(|x| x as u8))
    }

    #[inline(always)]
    fn splat_x(self, x: &[i8; 4]) -> Self::I {
        [i32::from_le_bytes(x.map(|x| x as u8)); LANES]
    }

    #[inline(always)]
    fn dot(self, sum: Self::I, codes: Self::I, x: Self::I) -> Self::I {
        let (codes, x) = (bytes_of(codes), bytes_of(x));
        std::array::from_fn(|lane| {
            let pairs = codes[lane].iter().zip(&x[lane]);
            sum[lane] + pairs.map(|(&code, &x)| i32::from(code) * i32::from(x as i8)).sum::<i32>()
        })
    }

    #[inline(always)]
    fn join_halves(self, first: Self::I, second: Self::I) -> Self::I {
        std::array::from_fn(|lane| {
            let (vector, half) = (if lane < 8 { first } else { second }, lane % 8 / 4 * 8);
            vector[half + lane % 4] + vector[half + 4 + lane % 4]
        })
    }

    #[inline(always)]
    fn sum_quarters(self, vectors: [Self::I; 4]) -> Self::I {
        std::array::from_fn(|lane| vectors[lane / 4].as_chunks::<4>().0[lane % 4].iter().sum())
    }

    #[inline(always)]
    fn to_floats(self, sums: Self::I) -> [f32; LANES] {
        sums.map(|sum| sum as f32)
    }
}

/// Evaluates intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($body:expr) => {{
        // SAFETY: `self` exists, so detection found every feature used here; loads are the
        // unaligned ones, inside arrays that references prove to be there.
        unsafe { $body }
    }};
}

/// AVX2: products of sixteen bits, which cannot saturate in pairs.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2Integers(Avx2);

#[cfg(target_arch = "x86_64")]
impl Avx2Integers {
    #[inline(always)]
    fn run<K: IntegerKernel>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: IntegerKernel>(integers: Avx2Integers, kernel: K) {
            kernel.run(integers);
        }
        intrinsics!(compiled(self, kernel));
    }
}

/// For each of eight lanes the products of four codes and activations.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn four_products(codes: __m256i, x: __m256i) -> __m256i {
    // Even and odd bytes apart, as 16-bit numbers: 255 * 127 * 2 fits into the 32 bits of a pair.
    let even = _mm256_madd_epi16(
        _mm256_and_si256(codes, _mm256_set1_epi16(255)),
        _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
    );
    let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), _mm256_srai_epi16::<8>(x));
    _mm256_add_epi32(even, odd)
}

/// The sums of quarters 0 and 1, then of 2 and 3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn join_pairs((low, high): (__m256i, __m256i)) -> __m256i {
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

#[cfg(target_arch = "x86_64")]
impl Integers for Avx2Integers {
    type Floats = Avx2;
    type I = (__m256i, __m256i);

    #[inline(always)]
    fn floats(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn zero(self) -> Self::I {
        intrinsics!((_mm256_setzero_si256(), _mm256_setzero_si256()))
    }

    #[inline(always)]
    fn load_codes(self, codes: &[u8; 64]) -> Self::I {
        let codes = codes.as_ptr().cast::<__m256i>();
        intrinsics!((_mm256_loadu_si256(codes), _mm256_loadu_si256(codes.add(1))))
    }

    #[inline(always)]
    fn load_nibbles(self, codes: &[u8; 64]) -> (Self::I, Self::I) {
        let (low, high) = self.load_codes(codes);
        intrinsics!({
            let mask = _mm256_set1_epi8(15);
            let upper = (_mm256_srli_epi16::<4>(low), _mm256_srli_epi16::<4>(high));
            (
                (_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)),
                (_mm256_and_si256(upper.0, mask), _mm256_and_si256(upper.1, mask)),
            )
        })
    }

    #[inline(always)]
    fn load_x(self, x: &[i8; 64]) -> Self::I {
        let x = x.as_ptr().cast::<__m256i>();
        intrinsics!((_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))))
    }

    #[inline(always)]
    fn splat_x(self, x: &[i8; 4]) -> Self::I {
        let x = intrinsics!(_mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))));
        (x, x)
    }

    #[inline(always)]
    fn dot(self, sum: Self::I, codes: Self::I, x: Self::I) -> Self::I {
        intrinsics!((
            _mm256_add_epi32(sum.0, four_products(codes.0, x.0)),
            _mm256_add_epi32(sum.1, four_products(codes.1, x.1))
        ))
    }

    #[inline(always)]
    fn join_halves(self, first: Self::I, second: Self::I) -> Self::I {
        intrinsics!((join_pairs(first), join_pairs(second)))
    }

    #[inline(always)]
    fn sum_quarters(self, [a, b, c, d]: [Self::I; 4]) -> Self::I {
        intrinsics!({
            // Each half holds the sums of one quarter of all four vectors: 0 and 1, then 2 and 3.
            let low = _mm256_hadd_epi32(_mm256_hadd_epi32(a.0, b.0), _mm256_hadd_epi32(c.0, d.0));
            let high = _mm256_hadd_epi32(_mm256_hadd_epi32(a.1, b.1), _mm256_hadd_epi32(c.1, d.1));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            (
                _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi32(low, high), order),
                _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi32(low, high), order),
            )
        })
    }

    #[inline(always)]
    fn to_floats(self, sums: Self::I) -> (__m256, __m256) {
        intrinsics!((_mm256_cvtepi32_ps(sums.0), _mm256_cvtepi32_ps(sums.1)))
    }
}

/// AVX-512 with VNNI: four products and their sum in one instruction, the one
/// that does not saturate.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Vnni(Avx512);

#[cfg(target_arch = "x86_64")]
impl Vnni {
    fn detect() -> Option<Vnni> {
        let floats = Avx512::detect()?;
        is_x86_feature_detected!("avx512vnni").then_some(Vnni(floats))
    }

    #[inline(always)]
    fn run<K: IntegerKernel>(self, kernel: K) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
        fn compiled<K: IntegerKernel>(integers: Vnni, kernel: K) {
            kernel.run(integers);
        }
        intrinsics!(compiled(self, kernel));
    }
}

#[cfg(target_arch = "x86_64")]
impl Integers for Vnni {
    type Floats = Avx512;
    type I = __m512i;

    #[inline(always)]
    fn floats(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        intrinsics!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn load_codes(self, codes: &[u8; 64]) -> __m512i {
        intrinsics!(_mm512_loadu_si512(codes.as_ptr().cast()))
    }

    #[inline(always)]
    fn load_nibbles(self, codes: &[u8; 64]) -> (__m512i, __m512i) {
        let codes = self.load_codes(codes);
        intrinsics!({
            let mask = _mm512_set1_epi8(15);
            (_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask))
        })
    }

    #[inline(always)]
    fn load_x(self, x: &[i8; 64]) -> __m512i {
        intrinsics!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn splat_x(self, x: &[i8; 4]) -> __m512i {
        intrinsics!(_mm512_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        intrinsics!(_mm512_dpbusd_epi32(sum, codes, x))
    }

    #[inline(always)]
    fn join_halves(self, first: __m512i, second: __m512i) -> __m512i {
        intrinsics!(_mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second),
        ))
    }

    #[inline(always)]
    fn sum_quarters(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        intrinsics!({
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            // Lane 4 q + v of this is the sum of quarter q of vector v.
            let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_permutexvar_epi32(order, sums)
        })
    }

    #[inline(always)]
    fn to_floats(self, sums: __m512i) -> __m512 {
        intrinsics!(_mm512_cvtepi32_ps(sums))
    }
}
