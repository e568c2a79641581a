//! How a checkpoint says that its matrices are packed.
//!
//! MLX's affine form: a matrix `[out, in]` is codes `[out, in * bits / 32]`
//! with `scales` and `biases` `[out, in / group]`. The table in `config.json`
//! names bits and group for all modules and, by path, for single ones. A
//! module's own entry that contradicts its shapes is refused. For a module
//! without one the shapes say how it is packed, as for MLX's own reader:
//! conversions that mix widths do not list every module.

use std::collections::HashMap;

use serde_json::Value;

use super::config::{Config, Section, brief};
use super::error::CheckpointError;

/// Bits and group size of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Bits of a code.
    pub bits: u32,
    /// Neighbouring inputs that share a scale and a bias.
    pub group_size: u32,
}

impl Packing {
    const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
    const GROUPS: [u32; 3] = [32, 64, 128];
    /// What an absent key of a module's own entry means.
    const DEFAULT: Packing = Packing { bits: 4, group_size: 64 };

    /// The format's name as in manifests: `mlx-q4g64`.
    pub fn format(self) -> String {
        format!("mlx-q{}g{}", self.bits, self.group_size)
    }

    /// The packing of a matrix with `inputs` columns whose codes have
    /// `code_columns` words and whose scales have `scale_columns`; `None`
    /// where no packing fits.
    pub(super) fn from_columns(inputs: u64, code_columns: u64, scale_columns: u64) -> Option<Packing> {
        let exact = |numerator: u64, denominator: u64| {
            (denominator != 0 && numerator.is_multiple_of(denominator)).then(|| numerator / denominator)
        };
        let bits = exact(code_columns.checked_mul(32)?, inputs)?;
        let group = exact(inputs, scale_columns)?;
        Packing { bits: u32::try_from(bits).ok()?, group_size: u32::try_from(group).ok()? }.known()
    }

    fn known(self) -> Option<Packing> {
        (Self::BITS.contains(&self.bits) && Self::GROUPS.contains(&self.group_size)).then_some(self)
    }
}

/// What a module's entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// Its own bits and group.
    Packed(Packing),
    /// Not packed.
    Plain,
}

/// The quantization table of a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuantizationTable {
    global: Option<Packing>,
    modules: HashMap<String, Declared>,
}

impl QuantizationTable {
    /// Reads `quantization`, else `quantization_config`.
    ///
    /// # Errors
    /// When the table is malformed, or of a form that is not read.
    pub(crate) fn read(config: &Config) -> Result<QuantizationTable, CheckpointError> {
        let top = config.top();
        let key = if top.get("quantization").is_some() { "quantization" } else { "quantization_config" };
        // Some exports keep the table in the text section.
        let nested = config.text().section(key)?;
        let Some(table) = top.section(key)?.or(nested) else { return Ok(QuantizationTable::default()) };
        if let Some(method) = table.string("quant_method")?
            && method != "affine"
            && method != "mlx"
        {
            return Err(table.unsupported("quant_method", READABLE));
        }
        check_mode(&table)?;
        let global = match (table.integer("bits")?, table.integer("group_size")?) {
            (None, None) => None,
            (bits, group) => Some(packing(&table, bits, group)?),
        };
        let mut modules = HashMap::new();
        for (path, entry) in table.entries() {
            let declared = match entry {
                Value::Bool(false) => Declared::Plain,
                Value::Object(entry) if entry.is_empty() => Declared::Plain,
                Value::Bool(true) => match global {
                    Some(packing) => Declared::Packed(packing),
                    None => return Err(table.fault(path, "is true, but the table names no bits for all")),
                },
                Value::Object(_) => {
                    let entry = table.section(path)?.expect("an object is a section");
                    check_mode(&entry)?;
                    let (bits, group) = (entry.integer("bits")?, entry.integer("group_size")?);
                    Declared::Packed(packing(&entry, bits, group)?)
                }
                Value::String(_) | Value::Number(_) | Value::Null | Value::Array(_) => continue,
            };
            modules.insert(path.clone(), declared);
        }
        Ok(QuantizationTable { global, modules })
    }

    /// What the table says of a module, by its stored path.
    pub(super) fn module(&self, path: &str) -> Option<Declared> {
        self.modules.get(path).copied()
    }

    /// Bits and group of modules without an entry.
    pub(super) fn global(&self) -> Option<Packing> {
        self.global
    }
}

const READABLE: &str = "weights are read as bf16, f16 or f32 and in MLX's affine form; take such a version of the model, or pack its bf16 \
     version with tensorfold convert";

fn check_mode(section: &Section<'_>) -> Result<(), CheckpointError> {
    match section.string("mode")? {
        None | Some("affine") => Ok(()),
        Some(_) => Err(section.unsupported("mode", READABLE)),
    }
}

fn packing(
    section: &Section<'_>,
    bits: Option<u32>,
    group_size: Option<u32>,
) -> Result<Packing, CheckpointError> {
    let found = Packing {
        bits: bits.unwrap_or(Packing::DEFAULT.bits),
        group_size: group_size.unwrap_or(Packing::DEFAULT.group_size),
    };
    found.known().ok_or_else(|| {
        let known = if Packing::BITS.contains(&found.bits) { "group_size" } else { "bits" };
        let value = section.get(known).map(brief).unwrap_or_default();
        section.fault(known, format!("is {value}; bits are 2, 3, 4, 5, 6 or 8 and groups 32, 64 or 128"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::folder::Folder;
    use super::*;

    fn table(quantization: &str) -> Result<QuantizationTable, CheckpointError> {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("config.json"), quantization).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        QuantizationTable::read(&Config::read(&folder).unwrap())
    }

    #[test]
    fn a_modules_entry_carries_its_own_defaults() {
        let table = table(
            r#"{"quantization": {"group_size": 32, "bits": 8, "mode": "affine",
                "a": {"bits": 6}, "b": false, "c": {}, "d": true}, "quantization_config": {"bits": 2}}"#,
        )
        .unwrap();
        assert_eq!(table.global(), Some(Packing { bits: 8, group_size: 32 }));
        assert_eq!(table.module("a"), Some(Declared::Packed(Packing { bits: 6, group_size: 64 })));
        assert_eq!(table.module("b"), Some(Declared::Plain));
        assert_eq!(table.module("c"), Some(Declared::Plain));
        assert_eq!(table.module("d"), Some(Declared::Packed(Packing { bits: 8, group_size: 32 })));
        assert_eq!(table.module("e"), None);
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        let gptq = table(r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#);
        let error = gptq.unwrap_err().to_string();
        assert!(
            error.contains(r#"quantization_config.quant_method is "gptq"; weights are read as"#),
            "{error}"
        );
        let mxfp4 = table(r#"{"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}"#);
        assert!(mxfp4.unwrap_err().to_string().contains(r#"quantization.mode is "mxfp4""#));
        let odd = table(r#"{"quantization": {"bits": 7, "group_size": 64}}"#);
        assert!(odd.unwrap_err().to_string().contains("quantization.bits is 7"));
        let module = table(r#"{"quantization": {"bits": 4, "x": {"group_size": 48}}}"#);
        assert!(module.unwrap_err().to_string().contains("quantization.x.group_size is 48"));
    }

    #[test]
    fn shapes_give_bits_and_group() {
        assert_eq!(Packing::from_columns(384, 48, 6), Some(Packing { bits: 4, group_size: 64 }));
        assert_eq!(Packing::from_columns(384, 36, 12), Some(Packing { bits: 3, group_size: 32 }));
        assert_eq!(Packing::from_columns(384, 47, 6), None);
        assert_eq!(Packing::from_columns(384, 48, 0), None);
        assert_eq!(Packing::from_columns(0, 48, 6), None);
        assert_eq!(Packing::from_columns(384, u64::MAX, 6), None);
    }
}
