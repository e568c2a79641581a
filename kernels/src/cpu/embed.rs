//! Rows of a table, looked up.

use crate::weights::{MatrixView, Storage, floats_into};

/// `out[i] = table[tokens[i]]`.
///
/// # Panics
/// When a token is not in the table.
pub(crate) fn embed(table: &MatrixView<'_>, tokens: &[u32], out: &mut [f32]) {
    let width = table.columns;
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
        let token = token as usize;
        match table.storage {
            Storage::Plain { element, bytes } => {
                let row = width * element.bytes();
                floats_into(element, &bytes[token * row..(token + 1) * row], out);
            }
            Storage::Affine { packing, codes, element, scales, biases } => {
                let groups = width / packing.group as usize;
                let (mut scale, mut bias) = (vec![0.0; groups], vec![0.0; groups]);
                let part = token * groups * element.bytes()..(token + 1) * groups * element.bytes();
                floats_into(element, &scales[part.clone()], &mut scale);
                floats_into(element, &biases[part], &mut bias);
                let bits = packing.bits as usize;
                let row = width * bits / 8;
                let codes = &codes[token * row..(token + 1) * row];
                for (i, out) in out.iter_mut().enumerate() {
                    let group = i / packing.group as usize;
                    *out = scale[group] * f32::from(code(codes, i, bits)) + bias[group];
                }
            }
        }
    }
}

/// Code `index` of `bits` bits, at most 8, in a stream of little-endian bits.
fn code(codes: &[u8], index: usize, bits: usize) -> u8 {
    let bit = index * bits;
    // A code reaches into the next byte at most, and the last one into none.
    let next = codes.get(bit / 8 + 1).copied().unwrap_or(0);
    let pair = u16::from_le_bytes([codes[bit / 8], next]);
    (pair >> (bit % 8) & ((1 << bits) - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_every_width_come_from_one_stream_of_bits() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let wanted: Vec<u8> = (0..32u32).map(|i| (i * 37 % (1 << bits)) as u8).collect();
            let mut bytes = vec![0u8; 4 * bits];
            for (i, code) in wanted.iter().enumerate() {
                for bit in 0..bits {
                    bytes[(i * bits + bit) / 8] |= (code >> bit & 1) << ((i * bits + bit) % 8);
                }
            }
            let found: Vec<u8> = (0..32).map(|i| code(&bytes, i, bits)).collect();
            assert_eq!(found, wanted, "{bits} bits");
        }
    }
}
