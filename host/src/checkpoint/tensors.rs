//! From the tensors in the files to those that a model asks for.

use std::collections::{BTreeMap, BTreeSet};

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::element::ElementType;
use super::error::{CheckpointError, TensorFaults};
use super::expected::{Expected, Kind, expected_tensors};
use super::header::{StoredTensor, TensorFile};
use super::names::{Meaning, NameRules};
use super::quantization::{Declared, Packing, QuantizationTable};
use super::shards::Shards;

/// One tensor of a model: where its bytes are and what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Canonical name, as in `tensorfold_plugin_api::model_spec`.
    pub name: String,
    /// Type of the stored elements.
    pub element: ElementType,
    /// Shape of the stored elements, row-major. A packed matrix has fewer
    /// columns than its logical shape; a convolution is `[channels, kernel]`.
    pub shape: Vec<u64>,
    /// For the codes of a packed matrix, how they are packed.
    pub packing: Option<Packing>,
    /// Index into the checkpoint's files.
    pub file: usize,
    /// First byte, from the start of the file. Aligned to nothing.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Tensor {
    /// The shape that the mathematics sees: unpacked.
    pub fn logical_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let (Some(packing), Some(columns)) = (self.packing, shape.last_mut()) {
            *columns = *columns * 32 / u64::from(packing.bits);
        }
        shape
    }

    /// Parameters of the model that this tensor holds; scales and biases of a
    /// packed matrix are none.
    pub fn parameters(&self) -> u64 {
        if self.is_scale_or_bias() {
            return 0;
        }
        self.logical_shape().iter().product()
    }

    /// Whether it belongs to the codes of a packed matrix.
    pub fn is_scale_or_bias(&self) -> bool {
        self.name.ends_with(".scales") || self.name.ends_with(".biases")
    }

    /// Whether it belongs to the multi-token prediction head.
    pub fn is_mtp(&self) -> bool {
        self.name.starts_with("mtp.")
    }
}

/// The tensors of all files under their canonical names.
#[derive(Debug)]
pub(crate) struct NamedTensors<'a> {
    files: &'a [TensorFile],
    tensors: BTreeMap<String, (usize, &'a StoredTensor)>,
    faults: TensorFaults,
}

impl<'a> NamedTensors<'a> {
    /// Names the tensors of all files. What cannot be named is a fault, told
    /// when the tensors are matched.
    pub(super) fn new(shards: &'a Shards, rules: &NameRules) -> NamedTensors<'a> {
        let mut named =
            NamedTensors { files: &shards.files, tensors: BTreeMap::new(), faults: TensorFaults::default() };
        let (main, side) = shards.files.split_at(shards.first_side_file);
        for (index, file) in main.iter().enumerate() {
            named.add(index, file, |name| rules.meaning(name));
        }
        if side.iter().any(|file| !file.tensors.is_empty()) {
            // A side file was put there on purpose: it wins as a whole.
            let before = named.tensors.len();
            named.tensors.retain(|name, _| !name.starts_with("mtp."));
            if named.tensors.len() < before {
                tracing::info!(
                    file = side[0].name,
                    "the prediction head of the side file replaces the other"
                );
            }
        }
        for (index, file) in side.iter().enumerate() {
            named.add(main.len() + index, file, |name| rules.side_meaning(name));
        }
        named
    }

    /// Names the tensors of a checkpoint that is no model: all its files hold one thing.
    pub(crate) fn of_one_kind(shards: &'a Shards, meaning: impl Fn(&str) -> Meaning) -> NamedTensors<'a> {
        let mut named =
            NamedTensors { files: &shards.files, tensors: BTreeMap::new(), faults: TensorFaults::default() };
        for (index, file) in shards.files.iter().enumerate() {
            named.add(index, file, &meaning);
        }
        named
    }

    /// What is stored under a canonical name.
    pub(crate) fn stored(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name).map(|(_, tensor)| *tensor)
    }

    /// Canonical names and stored tensors.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.tensors.iter().map(|(name, (_, tensor))| (name.as_str(), *tensor))
    }

    /// Whether a tensor of this canonical name is stored.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// How many layers the multi-token prediction head has; `None` where no
    /// file holds one. A configuration that promises one is only a hint.
    pub(super) fn mtp_layers(&self) -> Option<u32> {
        if !self.tensors.keys().any(|name| name.starts_with("mtp.")) {
            return None;
        }
        let layers = self
            .tensors
            .keys()
            .filter_map(|name| name.strip_prefix("mtp.layers.")?.split_once('.')?.0.parse::<u32>().ok())
            .max();
        Some(layers.map_or(1, |last| last + 1))
    }

    /// The mean of a small float tensor; `None` where it is no such thing.
    pub(super) fn mean(&self, name: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(&(file, tensor)) = self.tensors.get(name) else { return Ok(None) };
        let Some(element) = ElementType::from_safetensors(tensor.dtype).filter(|e| e.is_float()) else {
            return Ok(None);
        };
        if tensor.length == 0 || tensor.length > 1 << 20 {
            return Ok(None);
        }
        let values = element.decode(&self.files[file].read(tensor)?);
        Ok(Some(values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64))
    }

    fn add(&mut self, index: usize, file: &'a TensorFile, meaning: impl Fn(&str) -> Meaning) {
        for tensor in &file.tensors {
            match meaning(&tensor.name) {
                Meaning::Ignored => {}
                Meaning::Unknown => self.faults.unexpected.push(tensor.name.clone()),
                Meaning::Canonical(name) => {
                    if let Some((other, twin)) = self.tensors.insert(name.clone(), (index, tensor)) {
                        let first = format!("{} in {}", twin.name, self.files[other].name);
                        let second = format!("{} in {}", tensor.name, file.name);
                        self.faults
                            .malformed
                            .push(format!("{name} is stored twice, as {first} and as {second}"));
                    }
                }
            }
        }
    }
}

/// Finds every tensor that `spec` asks for and fills in its formats.
///
/// # Errors
/// All faults together.
pub(super) fn match_tensors(
    spec: &mut ModelSpec,
    named: NamedTensors<'_>,
    table: &QuantizationTable,
) -> Result<Vec<Tensor>, TensorFaults> {
    let expected = expected_tensors(spec, &|name| named.contains(name));
    let matched = match_expected(&expected, named, table)?;
    spec.formats = matched.formats;
    if let Some(mtp) = &mut spec.mtp {
        mtp.formats = matched.mtp_formats;
    }
    Ok(matched.tensors)
}

/// Every tensor that was expected.
#[derive(Debug)]
pub(crate) struct Matched {
    /// In the order of what was expected; the parts of a packed matrix follow each other.
    pub(crate) tensors: Vec<Tensor>,
    /// Formats of the matrices, spelt as in manifests, sorted.
    pub(crate) formats: Vec<String>,
    /// The same of a multi-token prediction head.
    pub(crate) mtp_formats: Vec<String>,
}

/// Finds every tensor that is expected, and refuses those that are not.
///
/// # Errors
/// All faults together.
pub(crate) fn match_expected(
    expected: &[Expected],
    named: NamedTensors<'_>,
    table: &QuantizationTable,
) -> Result<Matched, TensorFaults> {
    let mut matching = Matching {
        left: named.tensors,
        table,
        found: Vec::new(),
        faults: named.faults,
        formats: BTreeSet::new(),
        mtp_formats: BTreeSet::new(),
    };
    for expected in expected {
        matching.take(expected);
    }
    let Matching { left, found, mut faults, formats, mtp_formats, .. } = matching;
    faults.unexpected.extend(left.into_values().map(|(_, tensor)| tensor.name.clone()));
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Matched {
        tensors: found,
        formats: formats.into_iter().collect(),
        mtp_formats: mtp_formats.into_iter().collect(),
    })
}

struct Matching<'a> {
    left: BTreeMap<String, (usize, &'a StoredTensor)>,
    table: &'a QuantizationTable,
    found: Vec<Tensor>,
    faults: TensorFaults,
    formats: BTreeSet<String>,
    mtp_formats: BTreeSet<String>,
}

impl<'a> Matching<'a> {
    fn take(&mut self, expected: &Expected) {
        let name = &expected.name;
        let Some((file, stored)) = self.left.remove(name) else {
            self.faults.missing.push(name.clone());
            return;
        };
        match expected.kind {
            Kind::Small => {
                self.plain(name, &expected.shape, &expected.shape, file, stored);
            }
            Kind::Convolution => {
                let [channels, kernel] = expected.shape[..] else {
                    unreachable!("a convolution has two axes")
                };
                let shape = if stored.shape == [channels, kernel, 1] {
                    vec![channels, kernel, 1]
                } else {
                    vec![channels, 1, kernel]
                };
                self.plain(name, &shape, &expected.shape, file, stored);
            }
            Kind::Matrix => match self.left.remove(&format!("{name}.scales")) {
                Some(scales) => self.packed(expected, (file, stored), scales),
                None if ElementType::from_safetensors(stored.dtype) == Some(ElementType::U32) => {
                    self.left.remove(&format!("{name}.biases"));
                    self.faults.missing.push(format!("{name}.scales"));
                }
                None => {
                    if let Some(Declared::Packed(packing)) = self.table.module(module_of(stored)) {
                        let problem = format!("is not packed, but config.json says {}", packing.format());
                        return self.malformed(stored, problem);
                    }
                    if let Some(element) = self.plain(name, &expected.shape, &expected.shape, file, stored) {
                        self.format(name, element.format().into());
                    }
                }
            },
        };
    }

    fn format(&mut self, name: &str, format: String) {
        let formats = if name.starts_with("mtp.") { &mut self.mtp_formats } else { &mut self.formats };
        formats.insert(format);
    }

    /// A tensor of floats; `wanted` is its stored, `canonical` its handed-on shape.
    fn plain(
        &mut self,
        name: &str,
        wanted: &[u64],
        canonical: &[u64],
        file: usize,
        stored: &StoredTensor,
    ) -> Option<ElementType> {
        let element = ElementType::from_safetensors(stored.dtype).filter(|element| element.is_float());
        let Some(element) = element else {
            self.malformed(
                stored,
                format!("has elements of type {:?}; BF16, F16 or F32 are read", stored.dtype),
            );
            return None;
        };
        if stored.shape != wanted {
            self.malformed(stored, format!("has the shape {:?}; {wanted:?} is wanted", stored.shape));
            return None;
        }
        self.push(name.into(), element, canonical.to_vec(), None, file, stored);
        Some(element)
    }

    /// A packed matrix: codes, scales and biases.
    fn packed(
        &mut self,
        expected: &Expected,
        (file, codes): (usize, &'a StoredTensor),
        (scales_file, scales): (usize, &'a StoredTensor),
    ) {
        let name = &expected.name;
        let Some((biases_file, biases)) = self.left.remove(&format!("{name}.biases")) else {
            self.faults.missing.push(format!("{name}.biases"));
            return;
        };
        let (&inputs, rows) = expected.shape.split_last().expect("a matrix has columns");
        let columns = |tensor: &StoredTensor| match tensor.shape.split_last() {
            Some((&columns, leading)) if leading == rows => Some(columns),
            _ => None,
        };
        let packing = match (columns(codes), columns(scales)) {
            (Some(code_columns), Some(scale_columns)) => {
                Packing::from_columns(inputs, code_columns, scale_columns)
            }
            _ => None,
        };
        let Some(packing) = packing else {
            return self.malformed(
                codes,
                format!(
                    "has codes of the shape {:?} and scales of {:?}, which is no packing of {:?} with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128",
                    codes.shape, scales.shape, expected.shape
                ),
            );
        };
        match self.table.module(module_of(codes)) {
            Some(Declared::Plain) => {
                return self.malformed(codes, "is packed, but config.json says that it is not".into());
            }
            Some(Declared::Packed(declared)) if declared != packing => {
                return self.malformed(
                    codes,
                    format!("is packed as {}, but config.json says {}", packing.format(), declared.format()),
                );
            }
            // Without an entry of its own the shapes decide, as in MLX.
            _ => {}
        }
        if codes.dtype != safetensors::Dtype::U32 {
            return self
                .malformed(codes, format!("has scales and elements of type {:?}, not U32", codes.dtype));
        }
        let element = ElementType::from_safetensors(scales.dtype).filter(|element| element.is_float());
        let Some(element) = element.filter(|_| biases.dtype == scales.dtype && biases.shape == scales.shape)
        else {
            return self.malformed(
                codes,
                format!(
                    "has scales of type {:?} and shape {:?}, biases of type {:?} and shape {:?}; both must be the same, of BF16, F16 or F32",
                    scales.dtype, scales.shape, biases.dtype, biases.shape
                ),
            );
        };
        self.format(name, packing.format());
        self.push(name.clone(), ElementType::U32, codes.shape.clone(), Some(packing), file, codes);
        self.push(format!("{name}.scales"), element, scales.shape.clone(), None, scales_file, scales);
        self.push(format!("{name}.biases"), element, biases.shape.clone(), None, biases_file, biases);
    }

    fn malformed(&mut self, stored: &StoredTensor, problem: String) {
        self.faults.malformed.push(format!("{} {problem}", stored.name));
    }

    fn push(
        &mut self,
        name: String,
        element: ElementType,
        shape: Vec<u64>,
        packing: Option<Packing>,
        file: usize,
        stored: &StoredTensor,
    ) {
        let (offset, length) = (stored.offset, stored.length);
        self.found.push(Tensor { name, element, shape, packing, file, offset, length });
    }
}

/// The path of a matrix's module, as the table of packings spells it.
fn module_of(stored: &StoredTensor) -> &str {
    stored.name.strip_suffix(".weight").unwrap_or(&stored.name)
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    fn stored(name: &str, dtype: Dtype, shape: &[u64]) -> StoredTensor {
        let length = shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8;
        StoredTensor { name: name.into(), dtype, shape: shape.into(), offset: 0, length }
    }

    /// Matches one matrix `x` of [8, 128] against what is stored.
    fn take(tensors: &[(&str, StoredTensor)], table: QuantizationTable) -> (Vec<Tensor>, TensorFaults) {
        let mut matching = Matching {
            left: tensors.iter().map(|(name, tensor)| ((*name).to_owned(), (0, tensor))).collect(),
            table: &table,
            found: Vec::new(),
            faults: TensorFaults::default(),
            formats: BTreeSet::new(),
            mtp_formats: BTreeSet::new(),
        };
        matching.take(&Expected { name: "x".into(), shape: vec![8, 128], kind: Kind::Matrix });
        (matching.found, matching.faults)
    }

    fn packed(code_columns: u64) -> Vec<(&'static str, StoredTensor)> {
        vec![
            ("x", stored("m.weight", Dtype::U32, &[8, code_columns])),
            ("x.scales", stored("m.scales", Dtype::BF16, &[8, 2])),
            ("x.biases", stored("m.biases", Dtype::BF16, &[8, 2])),
        ]
    }

    #[test]
    fn a_packed_matrix_is_three_tensors_and_its_shapes_decide() {
        let (found, faults) = take(&packed(16), QuantizationTable::default());
        assert!(faults.is_empty(), "{faults}");
        assert_eq!(found[0].packing, Some(Packing { bits: 4, group_size: 64 }));
        assert_eq!((found[0].logical_shape(), found[0].parameters()), (vec![8, 128], 1024));
        assert_eq!(found.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["x", "x.scales", "x.biases"]);
        let (found, _) = take(&packed(32), QuantizationTable::default());
        assert_eq!(found[0].packing, Some(Packing { bits: 8, group_size: 64 }));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let fault =
            |tensors: &[(&str, StoredTensor)]| take(tensors, QuantizationTable::default()).1.to_string();
        assert!(fault(&packed(17)).contains("no packing of [8, 128]"));
        assert!(fault(&packed(16)[..2]).contains("missing: x.biases"));
        assert!(fault(&packed(16)[..1]).contains("missing: x.scales"));
        assert!(fault(&[]).contains("missing: x"));
        let wrong = [("x", stored("m.weight", Dtype::BF16, &[128, 8]))];
        assert!(fault(&wrong).contains("m.weight has the shape [128, 8]; [8, 128] is wanted"));
        let eight_bits = [("x", stored("m.weight", Dtype::F8_E4M3, &[8, 128]))];
        assert!(fault(&eight_bits).contains("elements of type F8_E4M3; BF16, F16 or F32 are read"));
        let mut mixed = packed(16);
        mixed[2].1 = stored("m.biases", Dtype::F32, &[8, 2]);
        assert!(fault(&mixed).contains("both must be the same"));
        let mut signed = packed(16);
        signed[0].1 = stored("m.weight", Dtype::I32, &[8, 16]);
        assert!(fault(&signed).contains("not U32"));
    }
}
