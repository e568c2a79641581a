//! What a conversion writes, tensor by tensor, before anything is written.

use super::affine::PackedRows;
use super::blocks::BlockType;
use super::float;
use super::rows::Rows;
use crate::checkpoint::{ElementType, Packing};

/// Everything that one conversion writes.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    /// The model's family, spelt as in `config.json`.
    pub(super) family: String,
    /// Tensors, from the embedding up.
    pub(super) jobs: Vec<Job<'a>>,
    /// Small files, by name.
    pub(super) texts: Vec<(String, Vec<u8>)>,
    /// What the user should know of the result, a clause each.
    pub(super) notes: Vec<String>,
}

/// One tensor, or the three of a packed matrix.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// The name under which it is stored. Of a packed matrix, that of its codes.
    pub(super) name: String,
    /// Its logical shape.
    pub(super) shape: Vec<u64>,
    /// What its rows hold in the source.
    pub(super) content: Content,
    /// Its rows in the source, in the order in which they are written.
    pub(super) rows: Rows<'a>,
    /// How it is written.
    pub(super) form: Form,
    /// The file that it belongs to.
    pub(super) part: Part,
}

/// Which of the output's weight files a tensor goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The model proper.
    Model,
    /// The file beside it that holds the multi-token prediction head.
    PredictionHead,
}

/// What rows hold in the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Content {
    /// Floats; `offset` is added to each, in their own type.
    Floats { element: ElementType, offset: f32 },
    /// Blocks of 32 weights.
    Blocks(BlockType),
}

/// How a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Floats.
    Plain(ElementType),
    /// Codes, with scales and biases of type `element`.
    Affine { packing: Packing, element: ElementType },
}

/// A tensor of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) element: ElementType,
    pub(super) shape: Vec<u64>,
}

impl Target {
    /// Bytes of one of `rows` rows into which the tensor is divided.
    fn row_bytes(&self, rows: u64) -> u64 {
        self.bytes() / rows
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element.bytes()
    }
}

/// What became of the numbers of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Floats that the new type does not hold exactly.
    pub(super) rounded: u64,
}

/// A weight that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BadWeight {
    /// Infinite, or no number.
    NotFinite(f32),
    /// Larger than the new type's largest.
    TooLarge(f32),
}

/// Memory that a thread uses again for each block of rows.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    values: Vec<f32>,
    plain: Vec<u8>,
    packed: PackedRows,
}

impl Job<'_> {
    /// Columns of a row: the last axis.
    pub(super) fn columns(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Weights.
    pub(super) fn parameters(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The module's path, as the quantization table names it.
    pub(super) fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// The tensors that it becomes: one, or codes, scales and biases.
    pub(super) fn targets(&self) -> Vec<Target> {
        let with_columns = |columns: u64| {
            let mut shape = self.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = columns;
            }
            shape
        };
        match self.form {
            Form::Plain(element) => {
                vec![Target { name: self.name.clone(), element, shape: self.shape.clone() }]
            }
            Form::Affine { packing, element } => {
                let (bits, group) = (u64::from(packing.bits), u64::from(packing.group_size));
                let groups = with_columns(self.columns() / group);
                let part = |part: &str| format!("{}.{part}", self.module());
                vec![
                    Target {
                        name: self.name.clone(),
                        element: ElementType::U32,
                        shape: with_columns(self.columns() * bits / 32),
                    },
                    Target { name: part("scales"), element, shape: groups.clone() },
                    Target { name: part("biases"), element, shape: groups },
                ]
            }
        }
    }

    /// Converts some rows. `write` gets, for each of [`Job::targets`], its index, where in the tensor the rows begin
    /// in bytes, and their bytes.
    ///
    /// # Errors
    /// The first weight that cannot be written, or the first error of `write`.
    pub(super) fn convert<E>(
        &self,
        rows: std::ops::Range<u64>,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, u64, &[u8]) -> Result<(), E>,
    ) -> Result<Losses, Failed<E>> {
        let mut losses = Losses::default();
        scratch.packed.clear();
        scratch.plain.clear();
        match (self.content, self.form) {
            (Content::Floats { element, offset }, Form::Plain(stored)) => {
                for row in rows.clone() {
                    let bytes = self.rows.row(row);
                    if element == stored && offset == 0.0 {
                        scratch.plain.extend(bytes);
                        continue;
                    }
                    losses.rounded += self.read_floats(row, element, offset, &mut scratch.values);
                    for &value in &scratch.values {
                        let kept = float::round(stored, value);
                        if kept.is_infinite() && value.is_finite() {
                            return Err(Failed::Weight(BadWeight::TooLarge(value)));
                        }
                        losses.rounded += u64::from(kept.to_bits() != value.to_bits());
                        float::encode(stored, value, &mut scratch.plain);
                    }
                }
            }
            (Content::Floats { element, offset }, Form::Affine { packing, element: stored }) => {
                for row in rows.clone() {
                    self.read_floats(row, element, offset, &mut scratch.values);
                    for value in &mut scratch.values {
                        if !value.is_finite() {
                            return Err(Failed::Weight(BadWeight::NotFinite(*value)));
                        }
                        // MLX casts a model before it quantises it.
                        let kept = float::round(stored, *value);
                        if kept.is_infinite() {
                            return Err(Failed::Weight(BadWeight::TooLarge(*value)));
                        }
                        *value = kept;
                    }
                    scratch.packed.quantize(&scratch.values, packing, stored);
                }
            }
            (Content::Blocks(block), Form::Affine { element, .. }) => {
                for row in rows.clone() {
                    losses.rounded += block
                        .append(self.rows.row(row), element, &mut scratch.packed)
                        .map_err(|value| Failed::Weight(BadWeight::TooLarge(value)))?;
                }
            }
            (Content::Blocks(_), Form::Plain(_)) => unreachable!("no plan unpacks blocks"),
        }
        let all = self.rows.count();
        for (index, target) in self.targets().iter().enumerate() {
            let bytes = match (self.form, index) {
                (Form::Plain(_), _) => &scratch.plain,
                (Form::Affine { .. }, 0) => &scratch.packed.codes,
                (Form::Affine { .. }, 1) => &scratch.packed.scales,
                (Form::Affine { .. }, _) => &scratch.packed.biases,
            };
            debug_assert_eq!(bytes.len() as u64, target.row_bytes(all) * (rows.end - rows.start));
            write(index, target.row_bytes(all) * rows.start, bytes).map_err(Failed::Write)?;
        }
        Ok(losses)
    }

    /// Reads a row, the offset added in the source's own type. Gives how many sums were rounded for that.
    fn read_floats(&self, row: u64, element: ElementType, offset: f32, values: &mut Vec<f32>) -> u64 {
        values.clear();
        float::decode(element, self.rows.row(row), values);
        if offset == 0.0 {
            return 0;
        }
        let mut rounded = 0;
        for value in values {
            let exact = f64::from(*value) + f64::from(offset);
            *value = float::round(element, *value + offset);
            rounded += u64::from(f64::from(*value) != exact);
        }
        rounded
    }
}

/// Why rows were not converted.
#[derive(Debug)]
pub(super) enum Failed<E> {
    Weight(BadWeight),
    Write(E),
}
