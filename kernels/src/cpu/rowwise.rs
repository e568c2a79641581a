//! What is done to each row by itself: norms, rotation, gates, activations.
//!
//! All widths are multiples of sixteen; the executor's plan sees to it.

use super::simd::{Kernel, LANES, Simd};

/// Vectors of a row.
#[inline(always)]
fn vectors(row: &[f32]) -> &[[f32; LANES]] {
    row.as_chunks().0
}

/// As [`vectors`], writable.
#[inline(always)]
fn vectors_mut(row: &mut [f32]) -> &mut [[f32; LANES]] {
    row.as_chunks_mut().0
}

/// `1 / sqrt(sum(row^2) * factor + epsilon)`.
#[inline(always)]
fn inverse_root<S: Simd>(s: S, row: &[f32], factor: f32, epsilon: f32) -> f32 {
    let mut sum = s.zero();
    for x in vectors(row) {
        let x = s.load(x);
        sum = s.fma(x, x, sum);
    }
    1.0 / (s.sum(sum) * factor + epsilon).sqrt()
}

/// RMS norm: `out = x / sqrt(mean(x^2) + epsilon) * weight`, row by row.
pub(crate) struct Norm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let scale = s.splat(inverse_root(s, x, 1.0 / width as f32, self.epsilon));
            for ((x, weight), out) in vectors(x).iter().zip(vectors(self.weight)).zip(vectors_mut(out)) {
                s.store(s.mul(s.mul(s.load(x), scale), s.load(weight)), out);
            }
        }
    }
}

/// [`Norm`] of each head in place.
pub(crate) struct NormHeads<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
}

impl Kernel for NormHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for x in self.x.chunks_exact_mut(width) {
            let scale = s.splat(inverse_root(s, x, 1.0 / width as f32, self.epsilon));
            for (x, weight) in vectors_mut(x).iter_mut().zip(vectors(self.weight)) {
                s.store(s.mul(s.mul(s.load(x), scale), s.load(weight)), x);
            }
        }
    }
}

/// [`NormHeads`], then times `silu(gate)`.
pub(crate) struct GatedNorm<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) gate: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
}

impl Kernel for GatedNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, gate) in self.x.chunks_exact_mut(width).zip(self.gate.chunks_exact(width)) {
            let scale = s.splat(inverse_root(s, x, 1.0 / width as f32, self.epsilon));
            let parts = vectors_mut(x).iter_mut().zip(vectors(gate)).zip(vectors(self.weight));
            for ((x, gate), weight) in parts {
                let normed = s.mul(s.mul(s.load(x), scale), s.load(weight));
                s.store(s.mul(normed, s.silu(s.load(gate))), x);
            }
        }
    }
}

/// `x / sqrt(sum(x^2) + epsilon) * factor` for each head of `size` in place.
pub(crate) struct UnitHeads<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) size: usize,
    pub(crate) epsilon: f32,
    pub(crate) factor: f32,
}

impl Kernel for UnitHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_exact_mut(self.size) {
            let scale = s.splat(inverse_root(s, x, 1.0, self.epsilon) * self.factor);
            for x in vectors_mut(x) {
                s.store(s.mul(s.load(x), scale), x);
            }
        }
    }
}

/// `gate = silu(gate) * up`.
pub(crate) struct SwiGlu<'a> {
    pub(crate) gate: &'a mut [f32],
    pub(crate) up: &'a [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (gate, up) in vectors_mut(self.gate).iter_mut().zip(vectors(self.up)) {
            s.store(s.mul(s.silu(s.load(gate)), s.load(up)), gate);
        }
    }
}

/// `x = x * sigmoid(gate)`.
pub(crate) struct Gate<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) gate: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, gate) in vectors_mut(self.x).iter_mut().zip(vectors(self.gate)) {
            s.store(s.mul(s.load(x), s.sigmoid(s.load(gate))), x);
        }
    }
}

/// `x = x + y`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Cosines, then sines, of `position * frequency`, for each position.
///
/// Angles are formed in `f64`: far positions lose nothing.
pub(crate) fn rotary_angles(positions: &[usize], frequencies: &[f64], out: &mut [f32]) {
    let half = frequencies.len();
    for (&position, out) in positions.iter().zip(out.chunks_exact_mut((2 * half).max(1))) {
        let (cosines, sines) = out.split_at_mut(half);
        for ((&frequency, cosine), sine) in frequencies.iter().zip(cosines).zip(sines) {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (*cosine, *sine) = (cos as f32, sin as f32);
        }
    }
}

/// Rotates the leading dimensions of each head of one row: dimension `i` with
/// dimension `i + half`.
pub(crate) fn rotate(row: &mut [f32], head_size: usize, angles: &[f32]) {
    let half = angles.len() / 2;
    let (cosines, sines) = angles.split_at(half);
    for head in row.chunks_exact_mut(head_size) {
        let (first, rest) = head.split_at_mut(half);
        for (((a, b), cos), sin) in first.iter_mut().zip(&mut rest[..half]).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{InstructionSet, Portable};

    fn wave(count: usize, step: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * step).sin() * 2.0).collect()
    }

    #[test]
    fn norms_follow_their_formula_on_every_instruction_set() {
        let (x, gate, weight) = (wave(96, 0.7), wave(96, 1.3), wave(48, 0.1));
        let mut portable = Vec::new();
        for set in InstructionSet::available() {
            let mut plain = vec![0.0; 96];
            set.run(Norm { x: &x, weight: &weight, epsilon: 1e-6, out: &mut plain });
            let mut heads = x.clone();
            set.run(NormHeads { x: &mut heads, weight: &weight, epsilon: 1e-6 });
            assert_eq!(plain, heads);
            let mut gated = x.clone();
            set.run(GatedNorm { x: &mut gated, gate: &gate, weight: &weight, epsilon: 1e-6 });
            let mut unit = x.clone();
            set.run(UnitHeads { x: &mut unit, size: 48, epsilon: 1e-6, factor: 0.5 });
            for i in 0..96 {
                let head = &x[i / 48 * 48..][..48];
                let squares: f64 = head.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                let (x, w, z) = (f64::from(x[i]), f64::from(weight[i % 48]), f64::from(gate[i]));
                let normed = x / (squares / 48.0 + 1e-6).sqrt() * w;
                assert!((f64::from(plain[i]) - normed).abs() < 1e-6);
                assert!((f64::from(gated[i]) - normed * z / (1.0 + (-z).exp())).abs() < 2e-6);
                assert!((f64::from(unit[i]) - x / (squares + 1e-6).sqrt() * 0.5).abs() < 1e-6);
            }
            portable.push((plain, gated, unit));
        }
        assert!(portable.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn gates_follow_their_formula() {
        let (x, gate) = (wave(32, 0.3), wave(32, 0.9));
        let mut gated = x.clone();
        Portable.run(Gate { x: &mut gated, gate: &gate });
        let mut swiglu = gate.clone();
        Portable.run(SwiGlu { gate: &mut swiglu, up: &x });
        for i in 0..32 {
            let sigmoid = 1.0 / (1.0 + (-f64::from(gate[i])).exp());
            assert!((f64::from(gated[i]) - f64::from(x[i]) * sigmoid).abs() < 1e-6);
            assert!((f64::from(swiglu[i]) - f64::from(gate[i]) * sigmoid * f64::from(x[i])).abs() < 1e-6);
        }
    }

    #[test]
    fn rotation_keeps_length_and_leaves_the_rest() {
        let mut row = wave(32, 0.4);
        let before = row.clone();
        let mut angles = vec![0.0; 8];
        rotary_angles(&[100_000], &[1.0, 0.1, 0.01, 0.001], &mut angles);
        rotate(&mut row, 16, &angles);
        for head in 0..2 {
            for i in 0..4 {
                let pair = |row: &[f32]| row[head * 16 + i].hypot(row[head * 16 + i + 4]);
                assert!((pair(&row) - pair(&before)).abs() < 1e-5);
            }
            assert_eq!(row[head * 16 + 8..head * 16 + 16], before[head * 16 + 8..head * 16 + 16]);
        }
        rotary_angles(&[0], &[1.0, 0.1, 0.01, 0.001], &mut angles);
        let mut unmoved = before.clone();
        rotate(&mut unmoved, 16, &angles);
        assert_eq!(unmoved, before);
    }
}
