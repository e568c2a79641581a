//! GGUF's blocks of 32 weights as MLX's affine groups of 32.
//!
//! | type | block | weight | scale | bias | code |
//! | --- | --- | --- | --- | --- | --- |
//! | `Q4_0` | f16 `d`, 16 bytes | `d * (q - 8)` | `d` | `-8 d` | `q` |
//! | `Q4_1` | f16 `d`, f16 `m`, 16 bytes | `d * q + m` | `d` | `m` | `q` |
//! | `Q8_0` | f16 `d`, 32 signed bytes | `d * q` | `d` | `-128 d` | `q + 128` |
//!
//! Of 4-bit codes, byte `i` holds weight `i` in its low half and weight
//! `i + 16` in its high one. Nothing is lost: a multiple of `d` by a power of
//! two has the same digits. It can only be too large for 16 bits, and then
//! scales and biases are stored in 32.

use half::f16;

use super::affine::{PackedRows, pack};
use super::float;
use super::gguf::GgmlType;
use crate::checkpoint::{ElementType, Packing};

/// A block type that MLX's affine form can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockType {
    Q4_0,
    Q4_1,
    Q8_0,
}

impl BlockType {
    pub(super) const WEIGHTS: u64 = 32;

    /// `None` for a type that is no such block.
    pub(super) fn of(element: GgmlType) -> Option<BlockType> {
        match element {
            GgmlType::Q4_0 => Some(BlockType::Q4_0),
            GgmlType::Q4_1 => Some(BlockType::Q4_1),
            GgmlType::Q8_0 => Some(BlockType::Q8_0),
            _ => None,
        }
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> u64 {
        match self {
            BlockType::Q4_0 => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q8_0 => 34,
        }
    }

    pub(super) fn packing(self) -> Packing {
        let bits = if self == BlockType::Q8_0 { 8 } else { 4 };
        Packing { bits, group_size: 32 }
    }

    /// The narrowest type that holds all scales and biases of these blocks exactly; `None` where one is not finite.
    pub(super) fn scale_element(self, blocks: &[u8]) -> Option<ElementType> {
        let mut element = ElementType::F16;
        for block in blocks.chunks_exact(self.bytes() as usize) {
            let (scale, bias) = self.scale_and_bias(block);
            if !scale.is_finite() || !bias.is_finite() {
                return None;
            }
            if !f16::from_f32(bias).is_finite() {
                element = ElementType::F32;
            }
        }
        Some(element)
    }

    /// Appends blocks, with scales and biases stored as `element`. Gives how many of them were rounded for that.
    ///
    /// # Errors
    /// A scale or bias that is too large for the type.
    pub(super) fn append(
        self,
        blocks: &[u8],
        element: ElementType,
        rows: &mut PackedRows,
    ) -> Result<u64, f32> {
        let mut rounded = 0;
        for block in blocks.chunks_exact(self.bytes() as usize) {
            let (scale, bias) = self.scale_and_bias(block);
            for value in [scale, bias] {
                let kept = float::round(element, value);
                if kept.is_infinite() {
                    return Err(value);
                }
                rounded += u64::from(kept.to_bits() != value.to_bits());
            }
            float::encode(element, scale, &mut rows.scales);
            float::encode(element, bias, &mut rows.biases);
            match self {
                // A signed byte plus 128 is the same byte with its highest bit turned.
                BlockType::Q8_0 => rows.codes.extend(block[2..].iter().map(|code| code ^ 0x80)),
                BlockType::Q4_0 | BlockType::Q4_1 => {
                    let codes = &block[self.bytes() as usize - 16..];
                    let (low, high) =
                        (codes.iter().map(|byte| byte & 15), codes.iter().map(|byte| byte >> 4));
                    pack(low.chain(high), 4, &mut rows.codes);
                }
            }
        }
        Ok(rounded)
    }

    fn scale_and_bias(self, block: &[u8]) -> (f32, f32) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let scale = half(0);
        let bias = match self {
            BlockType::Q4_0 => -8.0 * scale,
            BlockType::Q4_1 => half(2),
            BlockType::Q8_0 => -128.0 * scale,
        };
        (scale, bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::testing::Vectors;

    /// The weights of packed rows.
    fn unpacked(rows: &PackedRows, packing: Packing, element: ElementType) -> Vec<f32> {
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        float::decode(element, &rows.scales, &mut scales);
        float::decode(element, &rows.biases, &mut biases);
        let codes: Vec<u8> = match packing.bits {
            8 => rows.codes.clone(),
            _ => rows.codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
        };
        let weight = |(i, code): (usize, &u8)| scales[i / 32] * f32::from(*code) + biases[i / 32];
        codes.iter().enumerate().map(weight).collect()
    }

    fn floats(vectors: &Vectors, name: &str) -> Vec<f32> {
        let mut values = Vec::new();
        float::decode(ElementType::F32, vectors.bytes(name), &mut values);
        values
    }

    #[test]
    fn blocks_have_the_words_of_the_vectors() {
        let vectors = Vectors::open("gguf.safetensors");
        let mut rows = PackedRows::default();
        assert_eq!(BlockType::Q4_1.append(vectors.bytes("q4_1.blocks"), ElementType::F16, &mut rows), Ok(0));
        assert_eq!(rows.codes, vectors.bytes("q4_1.mlx_words"));
        assert_eq!(rows.scales, vectors.bytes("q4_1.mlx_scales"));
        assert_eq!(rows.biases, vectors.bytes("q4_1.mlx_biases"));
        let packing = BlockType::Q4_1.packing();
        assert_eq!(unpacked(&rows, packing, ElementType::F16), floats(&vectors, "q4_1.values"));

        let mut rows = PackedRows::default();
        assert_eq!(BlockType::Q8_0.append(vectors.bytes("q8_0.blocks"), ElementType::F16, &mut rows), Ok(0));
        let packing = BlockType::Q8_0.packing();
        assert_eq!(unpacked(&rows, packing, ElementType::F16), floats(&vectors, "q8_0.values"));
    }

    #[test]
    fn a_q4_0_weight_is_its_code_around_eight() {
        let scale = f16::from_f32(-0.0371);
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let block = [scale.to_le_bytes().as_slice(), &codes].concat();
        let mut rows = PackedRows::default();
        assert_eq!(BlockType::Q4_0.append(&block, ElementType::F16, &mut rows), Ok(0));
        let weights = unpacked(&rows, BlockType::Q4_0.packing(), ElementType::F16);
        for i in 0..16 {
            assert_eq!(weights[i], scale.to_f32() * (i as f32 - 8.0));
            assert_eq!(weights[16 + i], scale.to_f32() * (7.0 - i as f32));
        }
    }

    #[test]
    fn a_bias_beyond_sixteen_bits_asks_for_thirty_two() {
        let block = |scale: f32| [f16::from_f32(scale).to_le_bytes().as_slice(), &[1; 32]].concat();
        let (small, large) = (block(2.0), block(600.0));
        assert_eq!(BlockType::Q8_0.scale_element(&small), Some(ElementType::F16));
        assert_eq!(BlockType::Q8_0.scale_element(&[small, large.clone()].concat()), Some(ElementType::F32));
        assert_eq!(BlockType::Q8_0.scale_element(&block(f32::INFINITY)), None);
        let mut rows = PackedRows::default();
        assert_eq!(BlockType::Q8_0.append(&large, ElementType::F16, &mut rows), Err(-76_800.0));
        rows.clear();
        assert_eq!(BlockType::Q8_0.append(&large, ElementType::F32, &mut rows), Ok(0));
        let weights = unpacked(&rows, BlockType::Q8_0.packing(), ElementType::F32);
        assert_eq!(weights, [600.0; 32]);
    }
}
