//! Floats as they are stored, to `f32` and back.

use half::{bf16, f16};

use crate::checkpoint::ElementType;

/// Appends little-endian floats of a stored type; `bytes` is a whole number of elements.
pub(super) fn decode(element: ElementType, bytes: &[u8], values: &mut Vec<f32>) {
    match element {
        ElementType::Bf16 => {
            values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()));
        }
        ElementType::F16 => {
            values.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()));
        }
        ElementType::F32 => {
            values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        ElementType::U32 => unreachable!("codes are never read as floats"),
    }
}

/// The value that is stored for `value`: rounded to the nearest, ties to even.
pub(super) fn round(element: ElementType, value: f32) -> f32 {
    match element {
        ElementType::Bf16 => bf16::from_f32(value).to_f32(),
        ElementType::F16 => f16::from_f32(value).to_f32(),
        ElementType::F32 => value,
        ElementType::U32 => unreachable!("codes are never read as floats"),
    }
}

/// Appends a value as it is stored, rounded as by [`round`].
pub(super) fn encode(element: ElementType, value: f32, bytes: &mut Vec<u8>) {
    match element {
        ElementType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        ElementType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
        ElementType::F32 => bytes.extend(value.to_le_bytes()),
        ElementType::U32 => unreachable!("codes are never read as floats"),
    }
}

/// The spelling of `torch_dtype` in `config.json`.
pub(super) fn torch_name(element: ElementType) -> &'static str {
    match element {
        ElementType::Bf16 => "bfloat16",
        ElementType::F16 => "float16",
        ElementType::F32 => "float32",
        ElementType::U32 => unreachable!("codes are no floats"),
    }
}

/// The float type that `torch_dtype` names; `None` for others, such as those of 8 bits.
pub(super) fn from_torch_name(name: &str) -> Option<ElementType> {
    [ElementType::Bf16, ElementType::F16, ElementType::F32]
        .into_iter()
        .find(|&element| torch_name(element) == name.trim_start_matches("torch."))
}
