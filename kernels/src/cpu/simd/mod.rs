//! Vectors of sixteen floats, written once and run on what the machine has.
//!
//! Every kernel is generic over [`Simd`]. The three implementations, AVX-512,
//! AVX2 with FMA, and portable code, do the same operations in the same order
//! with the same roundings (every multiply-add is fused, sums over lanes use
//! one tree), so their results are equal bit for bit. The portable one is
//! therefore both the fallback and the reference that the tests compare with.
//!
//! Values of the two vector types can only be made by detection: holding one
//! is the proof that its instructions exist, on which the `unsafe` blocks of
//! those two modules rest. Kernels themselves are safe code over slices.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod integer;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use integer::{IntegerKernel, Integers};
pub(crate) use portable::Portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A computation that is compiled once for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Implementations must be `#[inline(always)]`, and so must what they call
    /// in inner loops, without closures: only then is it compiled with the
    /// instruction set's features.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Operations on sixteen lanes.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen floats.
    type F: Copy;
    /// What [`Simd::table`] prepares.
    type Table: Copy;
    /// Registers of the machine, for the choice of tiles; none where code is
    /// portable.
    const REGISTERS: usize;

    /// Runs `kernel` compiled for this instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, value: f32) -> Self::F;
    fn load(self, values: &[f32; LANES]) -> Self::F;
    fn store(self, vector: Self::F, values: &mut [f32; LANES]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` where either is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` where either is not a number.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// Two to the power of `a`, an integer in -126..=127.
    fn pow2(self, a: Self::F) -> Self::F;
    /// The sum of all lanes: lane `i` and `i + 8`, then 4, 2, 1 apart.
    fn sum(self, a: Self::F) -> f32;

    /// Four sums as [`Simd::sum`] forms them.
    fn sum_four(self, vectors: [Self::F; 4]) -> [f32; 4];

    /// The largest lane; none may be not a number.
    fn largest(self, a: Self::F) -> f32;
    /// To the nearest integers from -127 to 127, ties to even; what is not a
    /// number becomes zero.
    fn to_bytes(self, a: Self::F) -> [i8; LANES];
    /// Four times four floats side by side.
    fn quarters(self, parts: [&[f32; 4]; 4]) -> Self::F;
    /// Four floats, four times.
    fn repeat(self, four: &[f32; 4]) -> Self::F;

    /// Asks for the cache line at `address`, whatever is there.
    fn prefetch(self, address: *const u8);

    /// Prepares `scale * code + bias`, rounded once, for codes of four bits.
    fn table(self, scale: f32, bias: f32) -> Self::Table;
    /// The table's values for the lower halves of the bytes, then for the
    /// upper ones.
    fn nibbles(self, bytes: &[u8; LANES], table: Self::Table) -> (Self::F, Self::F);
    /// Sixteen bytes as floats.
    fn bytes(self, bytes: &[u8; LANES]) -> Self::F;
    /// The first sixteen codes of `BITS` bits, at most 6, as floats; the low
    /// bits of a byte come first.
    fn codes<const BITS: usize>(self, bytes: &[u8; LANES]) -> Self::F;

    /// Sixteen little-endian floats at any address.
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F;
    /// Sixteen little-endian bfloats at any address.
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F;
    /// Sixteen little-endian half floats at any address.
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F;

    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// `e^a` to about one unit in the last place; arguments are clamped to
    /// what a normal float can hold.
    #[inline(always)]
    fn exp(self, a: Self::F) -> Self::F {
        // e^a = 2^n e^r with |r| <= ln(2)/2; ln(2) in two parts keeps r exact.
        // The polynomial is the one of Cephes' expf.
        let a = self.max(self.min(a, self.splat(88.0)), self.splat(-87.0));
        let n = self.round(self.mul(a, self.splat(std::f32::consts::LOG2_E)));
        let r = self.fma(n, self.splat(-0.693_359_4), a);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        p = self.fma(p, r, self.splat(1.398_199_9e-3));
        p = self.fma(p, r, self.splat(8.333_452e-3));
        p = self.fma(p, r, self.splat(4.166_579_6e-2));
        p = self.fma(p, r, self.splat(1.666_666_5e-1));
        p = self.fma(p, r, self.splat(0.5));
        p = self.fma(p, self.mul(r, r), r);
        p = self.add(p, self.splat(1.0));
        self.mul(p, self.pow2(n))
    }

    /// `1 / (1 + e^-a)`.
    #[inline(always)]
    fn sigmoid(self, a: Self::F) -> Self::F {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.zero(), a))))
    }

    /// `a * sigmoid(a)`.
    #[inline(always)]
    fn silu(self, a: Self::F) -> Self::F {
        self.mul(a, self.sigmoid(a))
    }
}

/// For each lane, the two bytes of a code within its 16 bytes, and 0x80 for
/// the zeros above; for the byte shuffle, which works in quarters of a register.
#[cfg(target_arch = "x86_64")]
const fn code_bytes<const BITS: usize>() -> [u8; 4 * LANES] {
    let mut bytes = [0x80; 4 * LANES];
    let mut lane = 0;
    while lane < LANES {
        let first = (lane * BITS / 8) as u8;
        bytes[4 * lane] = first;
        bytes[4 * lane + 1] = first + 1;
        lane += 1;
    }
    bytes
}

/// For each lane, how far its code lies above the first of these bytes.
#[cfg(target_arch = "x86_64")]
const fn code_shifts<const BITS: usize>() -> [u32; LANES] {
    let mut shifts = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        shifts[lane] = (lane * BITS % 8) as u32;
        lane += 1;
    }
    shifts
}

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// Code for any machine.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl InstructionSet {
    /// Every set that this machine has, the best one last.
    pub fn available() -> Vec<InstructionSet> {
        let mut found = vec![InstructionSet::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if Avx2::detect().is_some() {
                found.push(InstructionSet::Avx2);
            }
            if Avx512::detect().is_some() {
                found.push(InstructionSet::Avx512);
            }
        }
        found
    }

    /// The best set that this machine has.
    pub fn best() -> InstructionSet {
        *InstructionSet::available().last().expect("portable code is always there")
    }

    /// The name used in logs and as a device's architecture.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }

    /// Runs `kernel`. A set that the machine lacks is run by portable code,
    /// which gives the same bits.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => match Avx512::detect() {
                Some(simd) => simd.run(kernel),
                None => Portable.run(kernel),
            },
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => match Avx2::detect() {
                Some(simd) => simd.run(kernel),
                None => Portable.run(kernel),
            },
            _ => Portable.run(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every operation on one input, as bits.
    struct Everything<'a> {
        a: &'a [f32; 16],
        b: &'a [f32; 16],
        bytes: &'a [u8; 64],
    }

    impl Kernel for Everything<'_> {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<u32> {
            let (a, b) = (s.load(self.a), s.load(self.b));
            let sixteen: &[u8; 16] = self.bytes[3..19].try_into().unwrap();
            let (low, high) = s.nibbles(sixteen, s.table(self.a[0], self.b[0]));
            let half: &[u8; 32] = self.bytes[7..39].try_into().unwrap();
            let small = s.round(s.max(s.min(a, s.splat(120.0)), s.splat(-120.0)));
            let vectors = [
                s.add(a, b),
                s.sub(a, b),
                s.mul(a, b),
                s.div(a, b),
                s.fma(a, b, a),
                s.max(a, b),
                s.min(a, b),
                s.round(a),
                s.pow2(small),
                s.exp(a),
                s.sigmoid(b),
                s.silu(b),
                low,
                high,
                s.bytes(sixteen),
                s.codes::<2>(sixteen),
                s.codes::<3>(sixteen),
                s.codes::<5>(sixteen),
                s.codes::<6>(sixteen),
                s.load_f32(self.bytes),
                s.load_bf16(half),
                s.load_f16(half),
            ];
            let four = [a, b, s.mul(a, b), s.add(a, b)];
            let quarters = self.a.as_chunks::<4>().0;
            let vectors = vectors.into_iter().chain([
                s.quarters([&quarters[2], &quarters[0], &quarters[3], &quarters[1]]),
                s.repeat(&quarters[1]),
            ]);
            let mut out: Vec<u32> = s.sum_four(four).map(f32::to_bits).into();
            out.extend(four.map(|vector| s.sum(vector).to_bits()));
            assert_eq!(out[..4], out[4..]);
            out.extend([s.largest(a).to_bits(), s.largest(b).to_bits()]);
            let not_a_number = s.div(s.zero(), s.zero());
            for vector in [a, b, s.mul(a, a), s.splat(0.5), s.div(a, s.zero()), not_a_number] {
                out.extend(s.to_bytes(vector).map(|byte| byte as u32));
            }
            for vector in vectors {
                let mut lanes = [0.0; 16];
                s.store(vector, &mut lanes);
                out.extend(lanes.map(f32::to_bits));
            }
            out
        }
    }

    proptest! {
        #[test]
        fn instruction_sets_agree_bit_for_bit(
            a in prop::array::uniform16(-200.0f32..200.0),
            b in prop::array::uniform16(-4.0f32..4.0),
            bytes in prop::array::uniform32(0u8..120),
        ) {
            // Bytes below 120 make no NaN, whose payload is not defined.
            let mut doubled = [0; 64];
            doubled[..32].copy_from_slice(&bytes);
            doubled[32..].copy_from_slice(&bytes);
            let run = |set: InstructionSet| set.run(Everything { a: &a, b: &b, bytes: &doubled });
            let portable = run(InstructionSet::Portable);
            for set in InstructionSet::available() {
                prop_assert_eq!(&run(set), &portable, "{:?}", set);
            }
        }
    }

    #[test]
    fn the_exponential_is_good_to_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -8_600..8_790 {
            let x = i as f32 * 0.01;
            let mut lanes = [0.0; 16];
            Portable.store(Portable.exp(Portable.splat(x)), &mut lanes);
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(lanes[0]) - exact) / exact).abs());
        }
        assert!(worst < 2.4e-7, "{worst:e}");
        let mut lanes = [1.0; 16];
        Portable.store(Portable.exp(Portable.splat(f32::NEG_INFINITY)), &mut lanes);
        assert!(lanes[0] < 1e-37, "far below, nothing is left");
    }
}
