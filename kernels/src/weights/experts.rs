//! The matrices of routed experts, in every form that checkpoints store.
//!
//! A file may stack the experts of a layer in one tensor, stack them with gate
//! and up rows joined, or hold a tensor for each expert. All of them become
//! one view per expert; nothing is copied.

use std::ops::Range;

use super::{MatrixView, Storage, TensorError, TensorView, Tensors};

/// How large the routed experts of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Routed experts.
    pub experts: usize,
    /// Width of what goes in and comes out.
    pub hidden: usize,
    /// Rows of an expert's `gate` and `up`.
    pub intermediate: usize,
}

/// The routed experts of a layer: a view for each expert.
#[derive(Clone, Debug)]
pub struct ExpertViews<'w> {
    /// `[intermediate, hidden]` each.
    pub gate: Vec<MatrixView<'w>>,
    /// `[intermediate, hidden]` each.
    pub up: Vec<MatrixView<'w>>,
    /// `[hidden, intermediate]` each.
    pub down: Vec<MatrixView<'w>>,
}

impl<'w> MatrixView<'w> {
    /// The matrix of some of the outputs.
    ///
    /// # Panics
    /// When there are fewer outputs.
    pub fn outputs(&self, outputs: Range<usize>) -> MatrixView<'w> {
        assert!(outputs.start <= outputs.end && outputs.end <= self.rows);
        let part = |bytes: &'w [u8]| match self.rows {
            0 => bytes,
            // The bytes of a description are absent, and so are those of its parts.
            rows => &bytes[bytes.len() / rows * outputs.start..bytes.len() / rows * outputs.end],
        };
        let storage = match self.storage {
            Storage::Plain { element, bytes } => Storage::Plain { element, bytes: part(bytes) },
            Storage::Affine { packing, codes, element, scales, biases } => Storage::Affine {
                packing,
                codes: part(codes),
                element,
                scales: part(scales),
                biases: part(biases),
            },
        };
        MatrixView { rows: outputs.len(), columns: self.columns, storage }
    }
}

impl<'w> Tensors<'w> {
    /// The routed experts under `name`, which is `layers.{i}.moe.experts` or
    /// the like: `{name}.gate_up` or `{name}.gate` and `{name}.up`, each with
    /// the expert as its first axis, or `{name}.{e}.gate` and so on.
    ///
    /// # Errors
    /// [`TensorError`] when one is missing or of another shape.
    pub fn experts(&self, name: &str, shape: ExpertShape) -> Result<ExpertViews<'w>, TensorError> {
        let ExpertShape { experts, hidden, intermediate } = shape;
        let fused = format!("{name}.gate_up");
        let (gate, up) = if self.get(&fused).is_some() {
            let all = self.stack(&fused, experts, 2 * intermediate, hidden)?;
            // Halves of each expert, gates first.
            let half = |which: usize| {
                let start = move |expert: usize| (2 * expert + which) * intermediate;
                (0..experts).map(|e| all.outputs(start(e)..start(e) + intermediate)).collect()
            };
            (half(0), half(1))
        } else {
            let part = |part: &str| self.expert_part(name, part, experts, intermediate, hidden);
            (part("gate")?, part("up")?)
        };
        let down = self.expert_part(name, "down", experts, hidden, intermediate)?;
        Ok(ExpertViews { gate, up, down })
    }

    /// One matrix of every expert, stacked or one by one.
    fn expert_part(
        &self,
        name: &str,
        part: &str,
        experts: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Vec<MatrixView<'w>>, TensorError> {
        let stacked = format!("{name}.{part}");
        if self.get(&stacked).is_none() && self.get(&format!("{name}.0.{part}")).is_some() {
            return (0..experts).map(|e| self.matrix(&format!("{name}.{e}.{part}"), rows, columns)).collect();
        }
        let all = self.stack(&stacked, experts, rows, columns)?;
        Ok((0..experts).map(|e| all.outputs(e * rows..(e + 1) * rows)).collect())
    }

    /// A tensor `[experts, rows, columns]` as the matrix of all its rows.
    fn stack(
        &self,
        name: &str,
        experts: usize,
        rows: usize,
        columns: usize,
    ) -> Result<MatrixView<'w>, TensorError> {
        // The same bytes with the first two axes joined are a matrix, whose
        // checks hold for the stack once those axes have been looked at.
        let mut flat = Tensors { described: self.described, ..Tensors::default() };
        for part in [name.to_owned(), format!("{name}.scales"), format!("{name}.biases")] {
            let Some(view) = self.get(&part) else { continue };
            let [first, second, last] = view.shape[..] else {
                let (found, wanted) = (view.shape.clone(), vec![experts, rows, columns]);
                return Err(TensorError::Shape { name: part, found, wanted });
            };
            if (first, second) != (experts, rows) {
                let (found, wanted) = (view.shape.clone(), vec![experts, rows, last]);
                return Err(TensorError::Shape { name: part, found, wanted });
            }
            flat.insert(part, TensorView { shape: vec![experts * rows, last], ..view.clone() });
        }
        if self.get(name).is_none() {
            return Err(TensorError::Missing { name: name.into() });
        }
        flat.matrix(name, experts * rows, columns).map_err(|error| match error {
            TensorError::Shape { name, found, wanted } => {
                let stack = |shape: Vec<usize>| [vec![experts, rows], shape[1..].to_vec()].concat();
                TensorError::Shape { name, found: stack(found), wanted: stack(wanted) }
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{ElementType, Packing};

    const SHAPE: ExpertShape = ExpertShape { experts: 3, hidden: 32, intermediate: 2 };

    fn plain<'w>(shape: &[usize], bytes: &'w [u8]) -> TensorView<'w> {
        TensorView { element: ElementType::Bf16, shape: shape.to_vec(), packed: None, bytes }
    }

    fn bytes_of(view: &MatrixView<'_>) -> Vec<u8> {
        match view.storage {
            Storage::Plain { bytes, .. } => bytes.to_vec(),
            Storage::Affine { codes, scales, biases, .. } => [codes, scales, biases].concat(),
        }
    }

    /// All matrices, expert by expert: gate, up, down.
    fn all(views: &ExpertViews<'_>) -> Vec<(usize, usize, Vec<u8>)> {
        (0..3)
            .flat_map(|e| [views.gate[e], views.up[e], views.down[e]])
            .map(|view| (view.rows, view.columns, bytes_of(&view)))
            .collect()
    }

    #[test]
    fn every_form_gives_the_same_matrices() {
        // Gate, up and down of one expert take 128 bytes each.
        let whole: Vec<u8> = (0..3 * 384).map(|i| (i * 7 + i / 251) as u8).collect();
        let part = |expert: usize, which: usize| &whole[expert * 384 + which * 128..][..128];
        let stack = |which: usize| (0..3).flat_map(|e| part(e, which).to_vec()).collect::<Vec<u8>>();
        let [gate, up, down] = [0, 1, 2].map(stack);
        let joined: Vec<u8> = (0..3).flat_map(|e| [part(e, 0), part(e, 1)].concat()).collect();

        let mut single = Tensors::new();
        for expert in 0..3 {
            single.insert(format!("x.{expert}.gate"), plain(&[2, 32], part(expert, 0)));
            single.insert(format!("x.{expert}.up"), plain(&[2, 32], part(expert, 1)));
            single.insert(format!("x.{expert}.down"), plain(&[32, 2], part(expert, 2)));
        }
        let mut split = Tensors::new();
        split.insert("x.gate", plain(&[3, 2, 32], &gate));
        split.insert("x.up", plain(&[3, 2, 32], &up));
        split.insert("x.down", plain(&[3, 32, 2], &down));
        let mut fused = Tensors::new();
        fused.insert("x.gate_up", plain(&[3, 4, 32], &joined));
        fused.insert("x.down", plain(&[3, 32, 2], &down));

        let expected = all(&single.experts("x", SHAPE).unwrap());
        assert_eq!(expected[0], (2, 32, part(0, 0).to_vec()));
        assert_eq!(expected[8], (32, 2, part(2, 2).to_vec()));
        assert_eq!(all(&split.experts("x", SHAPE).unwrap()), expected);
        assert_eq!(all(&fused.experts("x", SHAPE).unwrap()), expected);
    }

    #[test]
    fn packed_stacks_are_cut_at_experts_in_all_three_parts() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut tensors = Tensors::new();
        let packed = TensorView {
            element: ElementType::U32,
            shape: vec![3, 2, 4],
            packed: Some(Packing { bits: 4, group: 32 }),
            bytes: &bytes[..96],
        };
        for (part, start) in [("gate", 0), ("up", 7)] {
            tensors.insert(format!("x.{part}"), packed.clone());
            tensors.insert(format!("x.{part}.scales"), plain(&[3, 2, 1], &bytes[start..start + 12]));
            tensors.insert(format!("x.{part}.biases"), plain(&[3, 2, 1], &bytes[100..112]));
        }
        let down = vec![0; 3 * 64 * 2];
        tensors.insert("x.down", plain(&[3, 32, 2], &down));
        let views = tensors.experts("x", SHAPE).unwrap();
        assert_eq!(bytes_of(&views.gate[1]), [&bytes[32..64], &bytes[4..8], &bytes[104..108]].concat());
        assert_eq!(bytes_of(&views.up[2]), [&bytes[64..96], &bytes[15..19], &bytes[108..112]].concat());
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_three_axes() {
        let bytes = vec![0; 4096];
        let error = |insert: &[(&str, &[usize])]| {
            let mut tensors = Tensors::described();
            tensors.insert("x.down", plain(&[3, 32, 2], &[]));
            for (name, shape) in insert {
                tensors.insert(*name, plain(shape, &[]));
            }
            tensors.experts("x", SHAPE).unwrap_err().to_string()
        };
        assert_eq!(error(&[]), "tensor `x.gate` is missing");
        assert_eq!(error(&[("x.gate", &[3, 2, 32])]), "tensor `x.up` is missing");
        assert_eq!(error(&[("x.0.gate", &[2, 32])]), "tensor `x.1.gate` is missing");
        let wrong = error(&[("x.gate_up", &[3, 2, 32])]);
        assert_eq!(wrong, "tensor `x.gate_up` has shape [3, 2, 32]; the model needs [3, 4, 32]");
        let wrong = error(&[("x.gate_up", &[3, 4, 31])]);
        assert_eq!(wrong, "tensor `x.gate_up` has shape [3, 4, 31]; the model needs [3, 4, 32]");
        let wrong = error(&[("x.gate_up", &[12, 32])]);
        assert_eq!(wrong, "tensor `x.gate_up` has shape [12, 32]; the model needs [3, 4, 32]");
        let wrong = error(&[("x.gate_up", &[2, 4, 32])]);
        assert_eq!(wrong, "tensor `x.gate_up` has shape [2, 4, 32]; the model needs [3, 4, 32]");

        // Of a stack that is there, the bytes count as well.
        let mut tensors = Tensors::new();
        tensors.insert("x.gate_up", plain(&[3, 4, 32], &bytes[..767]));
        let short = tensors.experts("x", SHAPE).unwrap_err().to_string();
        assert_eq!(short, "tensor `x.gate_up` has 767 bytes; its shape takes 768");
        tensors.insert("x.gate_up", plain(&[3, 4, 32], &bytes[..768]));
        tensors.insert("x.down", plain(&[3, 32, 2], &bytes[..384]));
        assert!(tensors.experts("x", SHAPE).is_ok());
    }

    #[test]
    fn sizes_beyond_any_file_are_missing_tensors() {
        let shape = ExpertShape { experts: u32::MAX as usize, hidden: 32, intermediate: u32::MAX as usize };
        let error = Tensors::described().experts("x", shape).unwrap_err();
        assert_eq!(error.to_string(), "tensor `x.gate` is missing");
    }
}
