//! MLX's affine quantiser, bit for bit, and the order of its codes.
//!
//! A group of neighbouring weights shares a scale `s` and a bias `b`, and a
//! weight is `s * code + b`. The edge of the group that is larger in magnitude
//! is met exactly (the other only nearly), and so is zero; the scale is
//! therefore negative wherever that edge is positive.

use super::float;
use crate::checkpoint::{ElementType, Packing};

/// Rows of codes with their scales and biases, as they are stored.
#[derive(Debug, Default)]
pub(super) struct PackedRows {
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) biases: Vec<u8>,
}

impl PackedRows {
    pub(super) fn clear(&mut self) {
        self.codes.clear();
        self.scales.clear();
        self.biases.clear();
    }

    /// Appends quantised weights, a whole number of groups.
    ///
    /// The arithmetic is that of MLX in `f32`: codes follow from the scale and bias before these are rounded to
    /// `element`, the type in which they are stored.
    pub(super) fn quantize(&mut self, weights: &[f32], packing: Packing, element: ElementType) {
        let most = ((1u32 << packing.bits) - 1) as f32;
        for group in weights.chunks_exact(packing.group_size as usize) {
            let (scale, bias) = scale_and_bias(group, most);
            let codes = group.iter().map(|weight| {
                // Within 0 and 255, so the conversion is exact.
                ((weight - bias) / scale).round_ties_even().clamp(0.0, most) as u8
            });
            pack(codes, packing.bits, &mut self.codes);
            float::encode(element, scale, &mut self.scales);
            float::encode(element, bias, &mut self.biases);
        }
    }
}

fn scale_and_bias(group: &[f32], most: f32) -> (f32, f32) {
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let from_low = low.abs() > high.abs();
    let step = ((high - low) / most).max(1e-7);
    let scale = if from_low { step } else { -step };
    let edge = if from_low { low } else { high };
    let steps = (edge / scale).round_ties_even();
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

/// Packs codes of `bits` bits one after another, the lowest bits first. A group's codes fill whole bytes: groups are
/// of 32 codes or a multiple.
pub(super) fn pack(codes: impl Iterator<Item = u8>, bits: u32, bytes: &mut Vec<u8>) {
    let (mut held, mut count) = (0u32, 0);
    for code in codes {
        held |= u32::from(code) << count;
        count += bits;
        while count >= 8 {
            bytes.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    debug_assert_eq!(count, 0, "codes of a group fill whole bytes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::testing::Vectors;

    #[test]
    fn codes_scales_and_biases_are_those_of_mlx_bit_for_bit() {
        let vectors = Vectors::open("quant.safetensors");
        let mut weights = Vec::new();
        float::decode(ElementType::Bf16, vectors.bytes("w"), &mut weights);
        assert_eq!(weights.len(), 5 * 256);
        let mut checked = 0;
        for bits in [2, 3, 4, 5, 6, 8] {
            for group_size in [32, 64, 128] {
                let mut rows = PackedRows::default();
                rows.quantize(&weights, Packing { bits, group_size }, ElementType::Bf16);
                let wanted = |part: &str| vectors.bytes(&format!("affine.b{bits}.g{group_size}.{part}"));
                assert!(rows.codes == wanted("weight"), "codes of {bits} bits, groups of {group_size}");
                assert!(rows.scales == wanted("scales"), "scales of {bits} bits, groups of {group_size}");
                assert!(rows.biases == wanted("biases"), "biases of {bits} bits, groups of {group_size}");
                checked += 1;
            }
        }
        assert_eq!(checked, 18);
    }

    #[test]
    fn a_group_of_one_value_and_a_group_of_zeros_come_back_exactly() {
        let packing = Packing { bits: 4, group_size: 32 };
        for value in [0.0f32, 0.375, -2.5] {
            let mut rows = PackedRows::default();
            rows.quantize(&[value; 32], packing, ElementType::F32);
            let (mut scales, mut biases) = (Vec::new(), Vec::new());
            float::decode(ElementType::F32, &rows.scales, &mut scales);
            float::decode(ElementType::F32, &rows.biases, &mut biases);
            for code in rows.codes.iter().flat_map(|byte| [byte & 15, byte >> 4]) {
                assert_eq!(scales[0] * f32::from(code) + biases[0], value);
            }
        }
    }
}
