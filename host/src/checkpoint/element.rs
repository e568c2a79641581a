//! Element types of stored tensors.

/// An element type that a backend may be handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Upper half of an `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// Words of packed codes.
    U32,
}

impl ElementType {
    /// From the spelling of a safetensors header; `None` for what no
    /// supported checkpoint holds.
    pub fn from_safetensors(dtype: safetensors::Dtype) -> Option<ElementType> {
        match dtype {
            safetensors::Dtype::BF16 => Some(ElementType::Bf16),
            safetensors::Dtype::F16 => Some(ElementType::F16),
            safetensors::Dtype::F32 => Some(ElementType::F32),
            safetensors::Dtype::U32 => Some(ElementType::U32),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            ElementType::Bf16 | ElementType::F16 => 2,
            ElementType::F32 | ElementType::U32 => 4,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        self != ElementType::U32
    }

    /// The name of a matrix format of this element type, spelt as in manifests.
    pub fn format(self) -> &'static str {
        match self {
            ElementType::Bf16 => "bf16",
            ElementType::F16 => "f16",
            ElementType::F32 => "f32",
            ElementType::U32 => "u32",
        }
    }

    /// Reads little-endian floats; `bytes` is a whole number of elements.
    pub(super) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            ElementType::Bf16 => {
                bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            ElementType::F16 => {
                bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            ElementType::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            ElementType::U32 => {
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32).collect()
            }
        }
    }
}
