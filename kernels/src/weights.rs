//! Tensors of a checkpoint, as bytes in place.
//!
//! Nothing here copies weights: a [`TensorView`] borrows bytes that somebody
//! else mapped, at any alignment.

mod experts;

use std::collections::HashMap;

pub use experts::{ExpertShape, ExpertViews};

/// Element type of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit bfloat.
    Bf16,
    /// 32-bit words of packed codes.
    U32,
}

impl ElementType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::F32 | ElementType::U32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
        }
    }
}

/// One tensor: shape, element type and little-endian bytes, row-major.
#[derive(Clone, Debug)]
pub struct TensorView<'w> {
    /// Type of the elements.
    pub element: ElementType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Bits of a code and weights that share a scale, of packed tensors.
    pub packed: Option<Packing>,
    /// The bytes.
    pub bytes: &'w [u8],
}

/// How MLX's affine form packs codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bits of a code.
    pub bits: u32,
    /// Weights that share a scale and a bias, along the input.
    pub group: u32,
}

/// All tensors of a model under canonical names.
#[derive(Clone, Debug, Default)]
pub struct Tensors<'w> {
    views: HashMap<String, TensorView<'w>>,
    /// Views carry no bytes: only shapes and formats can be checked.
    described: bool,
}

/// A tensor that is missing or does not fit.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// The model needs a tensor that was not handed over.
    #[error("tensor `{name}` is missing")]
    Missing {
        /// Its canonical name.
        name: String,
    },
    /// Another shape than the model's facts ask for.
    #[error("tensor `{name}` has shape {found:?}; the model needs {wanted:?}")]
    Shape {
        /// Its canonical name.
        name: String,
        /// The shape it has; of a packed matrix, unpacked.
        found: Vec<usize>,
        /// The shape it should have.
        wanted: Vec<usize>,
    },
    /// Fewer or more bytes than the shape takes.
    #[error("tensor `{name}` has {found} bytes; its shape takes {wanted}")]
    Bytes {
        /// Its canonical name.
        name: String,
        /// The bytes it has.
        found: usize,
        /// The bytes it should have.
        wanted: usize,
    },
    /// A way of storing weights that is not implemented.
    #[error("tensor `{name}` is stored as {format}, which this engine does not read")]
    Format {
        /// Its canonical name.
        name: String,
        /// What was found.
        format: String,
    },
}

/// A matrix `[rows, columns]` that multiplies activations from the right,
/// checked: every length fits the shape.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'w> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// How the weights are stored.
    pub storage: Storage<'w>,
}

/// How the weights of a matrix are stored.
#[derive(Clone, Copy, Debug)]
pub enum Storage<'w> {
    /// One float after the other.
    Plain {
        /// Type of the floats.
        element: ElementType,
        /// The floats.
        bytes: &'w [u8],
    },
    /// MLX's affine form: `weight = scale * code + bias`.
    Affine {
        /// Bits of a code and size of a group.
        packing: Packing,
        /// Codes, low bits first.
        codes: &'w [u8],
        /// Type of scales and biases.
        element: ElementType,
        /// A scale for each group.
        scales: &'w [u8],
        /// A bias for each group.
        biases: &'w [u8],
    },
}

impl MatrixView<'_> {
    /// Bytes that the weights take.
    pub fn bytes(&self) -> usize {
        match self.storage {
            Storage::Plain { bytes, .. } => bytes.len(),
            Storage::Affine { codes, scales, biases, .. } => codes.len() + scales.len() + biases.len(),
        }
    }
}

impl<'w> Tensors<'w> {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// No tensors; those to come are descriptions without bytes, with which a
    /// model can be checked and not loaded.
    pub fn described() -> Self {
        Tensors { described: true, ..Self::default() }
    }

    /// Adds a tensor; one of the same name is replaced.
    pub fn insert(&mut self, name: impl Into<String>, view: TensorView<'w>) {
        self.views.insert(name.into(), view);
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Option<TensorView<'w>> {
        self.views.remove(name)
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorView<'w>> {
        self.views.get(name)
    }

    /// Names and tensors, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorView<'w>)> {
        self.views.iter().map(|(name, view)| (name.as_str(), view))
    }

    /// The matrix of that name, plain or packed.
    ///
    /// # Errors
    /// [`TensorError`] when it is missing or is not `rows` by `columns`.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<MatrixView<'w>, TensorError> {
        let view = self.views.get(name).ok_or_else(|| TensorError::Missing { name: name.into() })?;
        let storage = match view.packed {
            None => {
                self.expect(name, view, &[rows, columns])?;
                Storage::Plain { element: view.element, bytes: view.bytes }
            }
            Some(packing) => self.affine(name, view, packing, rows, columns)?,
        };
        Ok(MatrixView { rows, columns, storage })
    }

    /// The floats of a small tensor of any float type.
    ///
    /// # Errors
    /// [`TensorError`] when it is missing or of another shape.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, TensorError> {
        let view = self.views.get(name).ok_or_else(|| TensorError::Missing { name: name.into() })?;
        self.expect(name, view, shape)?;
        Ok(floats(view.element, view.bytes))
    }

    fn affine(
        &self,
        name: &str,
        view: &TensorView<'w>,
        packing: Packing,
        rows: usize,
        columns: usize,
    ) -> Result<Storage<'w>, TensorError> {
        let format = |what: String| TensorError::Format { name: name.into(), format: what };
        let Packing { bits, group } = packing;
        if !matches!(bits, 2..=6 | 8) || !matches!(group, 32 | 64 | 128) || view.element != ElementType::U32 {
            return Err(format(format!("MLX codes of {bits} bits in groups of {group}")));
        }
        let (words, groups) = (columns * bits as usize / 32, columns / group as usize);
        if !columns.is_multiple_of(group as usize) || view.shape != [rows, words] {
            let found = view.shape.iter().rev().enumerate().map(|(axis, &extent)| {
                if axis == 0 { extent.saturating_mul(32) / bits as usize } else { extent }
            });
            let mut found: Vec<usize> = found.collect();
            found.reverse();
            return Err(TensorError::Shape { name: name.into(), found, wanted: vec![rows, columns] });
        }
        self.expect_bytes(name, view, rows * words * 4)?;
        let part = |suffix: &str| {
            let name = format!("{name}.{suffix}");
            let view = self.views.get(&name).ok_or(TensorError::Missing { name: name.clone() })?;
            self.expect(&name, view, &[rows, groups])?;
            Ok(view)
        };
        let (scales, biases) = (part("scales")?, part("biases")?);
        if scales.element != biases.element {
            return Err(format("scales and biases of different types".into()));
        }
        Ok(Storage::Affine {
            packing,
            codes: view.bytes,
            element: scales.element,
            scales: scales.bytes,
            biases: biases.bytes,
        })
    }

    /// Checks that a plain tensor of floats has this shape and its bytes.
    fn expect(&self, name: &str, view: &TensorView<'_>, shape: &[usize]) -> Result<(), TensorError> {
        if view.element == ElementType::U32 || view.packed.is_some() {
            return Err(TensorError::Format { name: name.into(), format: "packed codes".into() });
        }
        if view.shape != shape {
            let (found, wanted) = (view.shape.clone(), shape.to_vec());
            return Err(TensorError::Shape { name: name.into(), found, wanted });
        }
        self.expect_bytes(name, view, shape.iter().product::<usize>() * view.element.bytes())
    }

    fn expect_bytes(&self, name: &str, view: &TensorView<'_>, wanted: usize) -> Result<(), TensorError> {
        let found = view.bytes.len();
        if found != wanted && !self.described {
            return Err(TensorError::Bytes { name: name.into(), found, wanted });
        }
        Ok(())
    }
}

/// Little-endian floats of any type as `f32`; empty for codes.
pub(crate) fn floats(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / element.bytes()];
    floats_into(element, bytes, &mut out);
    out
}

/// As [`floats`], into a buffer of the right length.
#[inline(always)]
pub(crate) fn floats_into(element: ElementType, bytes: &[u8], out: &mut [f32]) {
    match element {
        ElementType::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        ElementType::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                // The upper half of a float; no number is special.
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        ElementType::F16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        ElementType::U32 => out.fill(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(shape: [usize; 2], bits: u32, group: u32, bytes: &[u8]) -> TensorView<'_> {
        TensorView {
            element: ElementType::U32,
            shape: shape.to_vec(),
            packed: Some(Packing { bits, group }),
            bytes,
        }
    }

    fn plain(element: ElementType, shape: [usize; 2], bytes: &[u8]) -> TensorView<'_> {
        TensorView { element, shape: shape.to_vec(), packed: None, bytes }
    }

    #[test]
    fn a_packed_matrix_needs_all_three_parts_in_matching_shapes() {
        let bytes = [0u8; 256];
        let mut tensors = Tensors::new();
        tensors.insert("w", packed([2, 8], 4, 32, &bytes[..64]));
        let error = |tensors: &Tensors<'_>| tensors.matrix("w", 2, 64).unwrap_err().to_string();
        assert_eq!(error(&tensors), "tensor `w.scales` is missing");
        tensors.insert("w.scales", plain(ElementType::Bf16, [2, 2], &bytes[..8]));
        tensors.insert("w.biases", plain(ElementType::Bf16, [2, 1], &bytes[..4]));
        assert!(error(&tensors).contains("`w.biases` has shape [2, 1]; the model needs [2, 2]"));
        tensors.insert("w.biases", plain(ElementType::F16, [2, 2], &bytes[..8]));
        assert!(error(&tensors).contains("scales and biases of different types"));
        tensors.insert("w.biases", plain(ElementType::Bf16, [2, 2], &bytes[..7]));
        assert!(error(&tensors).contains("7 bytes; its shape takes 8"));
        tensors.insert("w.biases", plain(ElementType::Bf16, [2, 2], &bytes[..8]));
        assert!(tensors.matrix("w", 2, 64).is_ok());
        assert!(
            tensors.matrix("w", 2, 32).unwrap_err().to_string().contains("[2, 64]; the model needs [2, 32]")
        );
        for (bits, group) in [(0, 32), (1, 32), (7, 32), (16, 32), (4, 0), (4, 16), (4, 256)] {
            tensors.insert("w", packed([2, 8], bits, group, &bytes[..64]));
            let wanted = format!("MLX codes of {bits} bits in groups of {group}");
            assert!(error(&tensors).contains(&wanted), "{wanted}");
        }
    }

    #[test]
    fn every_width_of_codes_has_its_own_number_of_words() {
        let bytes = [0u8; 256];
        for (bits, words) in [(2, 4), (3, 6), (4, 8), (5, 10), (6, 12), (8, 16)] {
            for group in [32, 64] {
                let mut tensors = Tensors::new();
                let groups = 64 / group;
                tensors.insert("w", packed([2, words], bits, group as u32, &bytes[..8 * words]));
                for part in ["w.scales", "w.biases"] {
                    tensors.insert(part, plain(ElementType::F16, [2, groups], &bytes[..4 * groups]));
                }
                assert!(tensors.matrix("w", 2, 64).is_ok(), "{bits} bits in groups of {group}");
                assert!(tensors.matrix("w", 2, 128).is_err());
                tensors.insert("w", packed([2, words], bits, group as u32, &bytes[..8 * words - 4]));
                assert!(tensors.matrix("w", 2, 64).unwrap_err().to_string().contains("bytes; its shape"));
            }
        }
    }

    #[test]
    fn floats_of_every_type_are_read() {
        assert_eq!(floats(ElementType::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(floats(ElementType::Bf16, &half::bf16::from_f32(-2.5).to_le_bytes()), [-2.5]);
        assert_eq!(floats(ElementType::F16, &half::f16::from_f32(0.125).to_le_bytes()), [0.125]);
    }
}
