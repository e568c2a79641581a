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

/// Bytes of sixteen units of 32 codes.
pub(crate) const BLOCK: usize = 32 * LANES;

/// A computation that is compiled once for each implementation.
pub(crate) trait IntegerKernel {
    /// As [`Kernel::run`](super::Kernel::run).
    fn run<I: Integers>(self, integers: I);
}

/// Dot products of sixteen units at a time: one sum in each lane.
pub(crate) trait Integers: Copy + Send + Sync + 'static {
    /// The operations on floats beside them.
    type Floats: Simd;
    /// Sixteen 32-bit integers.
    type I: Copy;

    fn floats(self) -> Self::Floats;
    fn zero(self) -> Self::I;
    /// Adds to each lane the products of its four codes and activations.
    fn add(self, sum: Self::I, codes: &[u8; 64], x: &[i8; 64]) -> Self::I;
    fn to_floats(self, sums: Self::I) -> <Self::Floats as Simd>::F;
    /// The sums of `pairs` times two units of packed codes of four bits.
    /// Activations lie pair by pair: the even ones of both, then the odd ones.
    fn nibbles(self, pairs: usize, codes: &[u8; BLOCK / 2], x: &[i8; BLOCK]) -> Self::I;
    /// The sums of `pairs` times two units of codes of eight bits.
    fn bytes(self, pairs: usize, codes: &[u8; BLOCK], x: &[i8; BLOCK]) -> Self::I;
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
    fn add(self, mut sum: Self::I, codes: &[u8; 64], x: &[i8; 64]) -> Self::I {
        let words = codes.as_chunks::<4>().0.iter().zip(x.as_chunks::<4>().0);
        for (sum, (codes, x)) in sum.iter_mut().zip(words) {
            for (&code, &x) in codes.iter().zip(x) {
                *sum += i32::from(code) * i32::from(x);
            }
        }
        sum
    }

    #[inline(always)]
    fn to_floats(self, sums: Self::I) -> [f32; LANES] {
        sums.map(|sum| sum as f32)
    }

    #[inline(always)]
    fn nibbles(self, pairs: usize, codes: &[u8; BLOCK / 2], x: &[i8; BLOCK]) -> Self::I {
        let mut sums = [0; LANES];
        let units = sums.chunks_exact_mut(2).zip(codes.as_chunks::<32>().0).zip(x.as_chunks::<64>().0);
        for ((sums, codes), x) in units.take(pairs) {
            for (byte, code) in codes.iter().enumerate() {
                sums[byte / 16] += i32::from(code & 15) * i32::from(x[byte]);
                sums[byte / 16] += i32::from(code >> 4) * i32::from(x[32 + byte]);
            }
        }
        sums
    }

    #[inline(always)]
    fn bytes(self, pairs: usize, codes: &[u8; BLOCK], x: &[i8; BLOCK]) -> Self::I {
        let mut sums = [0; LANES];
        let units = sums.iter_mut().zip(codes.as_chunks::<32>().0).zip(x.as_chunks::<32>().0);
        for ((sum, codes), x) in units.take(2 * pairs) {
            *sum = codes.iter().zip(x).map(|(&code, &x)| i32::from(code) * i32::from(x)).sum();
        }
        sums
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

/// The sum of each half's four lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn sum_halves(lanes: __m256i) -> [i32; 2] {
    let two = _mm256_add_epi32(lanes, _mm256_shuffle_epi32::<0b01_00_11_10>(lanes));
    let one = _mm256_add_epi32(two, _mm256_shuffle_epi32::<0b10_11_00_01>(two));
    [_mm256_extract_epi32::<0>(one), _mm256_extract_epi32::<4>(one)]
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
    fn add(self, sum: Self::I, codes: &[u8; 64], x: &[i8; 64]) -> Self::I {
        intrinsics!({
            let (codes, x) = (codes.as_ptr().cast::<__m256i>(), x.as_ptr().cast::<__m256i>());
            let low = four_products(_mm256_loadu_si256(codes), _mm256_loadu_si256(x));
            let high = four_products(_mm256_loadu_si256(codes.add(1)), _mm256_loadu_si256(x.add(1)));
            (_mm256_add_epi32(sum.0, low), _mm256_add_epi32(sum.1, high))
        })
    }

    #[inline(always)]
    fn to_floats(self, sums: Self::I) -> (__m256, __m256) {
        intrinsics!((_mm256_cvtepi32_ps(sums.0), _mm256_cvtepi32_ps(sums.1)))
    }

    #[inline(always)]
    fn nibbles(self, pairs: usize, codes: &[u8; BLOCK / 2], x: &[i8; BLOCK]) -> Self::I {
        let mut sums = [0; LANES];
        let units = sums.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<32>().0);
        for ((sums, codes), x) in units.zip(x.as_chunks::<64>().0).take(pairs) {
            *sums = intrinsics!({
                let codes = _mm256_loadu_si256(codes.as_ptr().cast());
                let mask = _mm256_set1_epi8(15);
                let (low, high) =
                    (_mm256_and_si256(codes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask));
                let x = x.as_ptr().cast::<__m256i>();
                sum_halves(_mm256_add_epi32(
                    four_products(low, _mm256_loadu_si256(x)),
                    four_products(high, _mm256_loadu_si256(x.add(1))),
                ))
            });
        }
        intrinsics!((
            _mm256_loadu_si256(sums.as_ptr().cast()),
            _mm256_loadu_si256(sums.as_ptr().add(8).cast())
        ))
    }

    #[inline(always)]
    fn bytes(self, pairs: usize, codes: &[u8; BLOCK], x: &[i8; BLOCK]) -> Self::I {
        let mut sums = [0; LANES];
        let units = sums.iter_mut().zip(codes.as_chunks::<32>().0).zip(x.as_chunks::<32>().0);
        for ((sum, codes), x) in units.take(2 * pairs) {
            *sum = intrinsics!({
                let codes = _mm256_loadu_si256(codes.as_ptr().cast());
                let [a, b] = sum_halves(four_products(codes, _mm256_loadu_si256(x.as_ptr().cast())));
                a + b
            });
        }
        intrinsics!((
            _mm256_loadu_si256(sums.as_ptr().cast()),
            _mm256_loadu_si256(sums.as_ptr().add(8).cast())
        ))
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

/// Sums of sixteen units, of which each quarter of a vector holds one: first
/// of `vectors[0]`, then of `vectors[1]` and so on.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn sum_quarters([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    // Lane 4 q + v of this is the sum of quarter q of vector v.
    let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, sums)
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
    fn add(self, sum: __m512i, codes: &[u8; 64], x: &[i8; 64]) -> __m512i {
        intrinsics!(_mm512_dpbusd_epi32(
            sum,
            _mm512_loadu_si512(codes.as_ptr().cast()),
            _mm512_loadu_si512(x.as_ptr().cast())
        ))
    }

    #[inline(always)]
    fn to_floats(self, sums: __m512i) -> __m512 {
        intrinsics!(_mm512_cvtepi32_ps(sums))
    }

    #[inline(always)]
    fn nibbles(self, pairs: usize, codes: &[u8; BLOCK / 2], x: &[i8; BLOCK]) -> __m512i {
        let mut quarters = [self.zero(); 4];
        let (codes, x) = (codes.as_chunks::<32>().0, x.as_chunks::<64>().0);
        for four in 0..4 {
            if 2 * four >= pairs {
                break;
            }
            quarters[four] = intrinsics!({
                // Quarters of a product: first unit even, second even, first odd, second odd.
                let mask = _mm512_set1_epi8(15);
                let zero = _mm512_setzero_si512();
                let a = _mm256_loadu_si256(codes[2 * four].as_ptr().cast());
                let b = _mm256_loadu_si256(codes[2 * four + 1].as_ptr().cast());
                let a = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), _mm256_srli_epi16::<4>(a));
                let b = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(b), _mm256_srli_epi16::<4>(b));
                let x_a = _mm512_loadu_si512(x[2 * four].as_ptr().cast());
                let x_b = _mm512_loadu_si512(x[2 * four + 1].as_ptr().cast());
                let a = _mm512_dpbusd_epi32(zero, _mm512_and_si512(a, mask), x_a);
                let b = _mm512_dpbusd_epi32(zero, _mm512_and_si512(b, mask), x_b);
                _mm512_add_epi32(
                    _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b),
                    _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b),
                )
            });
        }
        intrinsics!(sum_quarters(quarters))
    }

    #[inline(always)]
    fn bytes(self, pairs: usize, codes: &[u8; BLOCK], x: &[i8; BLOCK]) -> __m512i {
        let mut quarters = [self.zero(); 4];
        let (codes, x) = (codes.as_chunks::<64>().0, x.as_chunks::<64>().0);
        for four in 0..4 {
            if 2 * four >= pairs {
                break;
            }
            quarters[four] = intrinsics!({
                // Quarters of a product: first unit twice, second unit twice.
                let zero = _mm512_setzero_si512();
                let a = _mm512_loadu_si512(codes[2 * four].as_ptr().cast());
                let b = _mm512_loadu_si512(codes[2 * four + 1].as_ptr().cast());
                let a = _mm512_dpbusd_epi32(zero, a, _mm512_loadu_si512(x[2 * four].as_ptr().cast()));
                let b = _mm512_dpbusd_epi32(zero, b, _mm512_loadu_si512(x[2 * four + 1].as_ptr().cast()));
                _mm512_add_epi32(
                    _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                    _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
                )
            });
        }
        intrinsics!(sum_quarters(quarters))
    }
}
