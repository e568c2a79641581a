//! What can be said of a checkpoint without touching its weights.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::config::Config;
use super::describe;
use super::element::ElementType;
use super::error::CheckpointError;
use super::families::{self, Family};
use super::folder::Folder;
use super::quantization::{Declared, Packing, QuantizationTable};
use super::shards::Shards;

/// Facts of a checkpoint, from `config.json` and the headers of its files.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The model's name, as [`super::Checkpoint::name`].
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
    /// `model_type`: the family as manifests spell it, where it is supported.
    pub family: String,
    /// Whether a model of this family can be opened by this build.
    pub supported: bool,
    /// Formats of the matrices, spelt as in manifests, sorted.
    pub formats: Vec<String>,
    /// Formats of the multi-token prediction head; empty where there is none.
    pub mtp_formats: Vec<String>,
    /// Whether the files hold a multi-token prediction head.
    pub mtp: bool,
    /// Whether that head lies in a file of its own.
    pub mtp_in_side_file: bool,
    /// Positions that the model was made for, where `config.json` says so.
    pub context_window: Option<u32>,
    /// Parameters, the prediction head's included.
    pub parameters: u64,
    /// Bytes of all weight files.
    pub weight_bytes: u64,
}

/// Reads the facts of the checkpoint in a folder. For a family that this build
/// does not support they are what headers alone can tell.
///
/// # Errors
/// When `config.json` or the headers cannot be read, or contradict each other.
pub fn read_facts(path: &Path) -> Result<Facts, CheckpointError> {
    let (facts, problem) = survey(path)?;
    problem.map_or(Ok(facts), Err)
}

/// As [`read_facts`], for commands that only look: facts that `config.json`
/// alone can tell come with what is wrong with the weights.
///
/// # Errors
/// When `config.json` cannot be read.
pub fn survey(path: &Path) -> Result<(Facts, Option<CheckpointError>), CheckpointError> {
    let folder = Folder::open(path)?;
    let config = Config::read(&folder)?;
    let model_type = config.model_type()?.to_owned();
    let family = families::lookup(&model_type).filter(|_| families::find(&config).is_ok());
    let mut facts = Facts {
        name: folder.name(),
        directory: path.into(),
        family: family.map_or(model_type, |family| family.name.into()),
        supported: family.is_some(),
        formats: Vec::new(),
        mtp_formats: Vec::new(),
        mtp: false,
        mtp_in_side_file: false,
        context_window: config.context_window()?,
        parameters: 0,
        weight_bytes: 0,
    };
    let problem = read_weights(&mut facts, &folder, &config, family).err();
    Ok((facts, families::refuse_drafter(&config).err().or(problem)))
}

fn read_weights(
    facts: &mut Facts,
    folder: &Folder,
    config: &Config,
    family: Option<&Family>,
) -> Result<(), CheckpointError> {
    let shards = Shards::open(folder)?;
    facts.weight_bytes = shards.bytes();
    let Some(family) = family else {
        from_headers(facts, config, &shards);
        return Ok(());
    };
    let (spec, tensors) = describe(folder, config, family, &shards, None)?;
    facts.parameters = tensors.iter().map(|tensor| tensor.parameters()).sum();
    facts.formats = spec.formats;
    facts.mtp = spec.mtp.is_some();
    facts.mtp_in_side_file = facts.mtp && shards.files.len() > shards.first_side_file;
    facts.mtp_formats = spec.mtp.map(|mtp| mtp.formats).unwrap_or_default();
    Ok(())
}

/// Formats and counts from shapes alone.
fn from_headers(facts: &mut Facts, config: &Config, shards: &Shards) {
    let table = QuantizationTable::read(config).unwrap_or_default();
    let head_alone = families::prediction_head_of(config).is_some();
    let (mut formats, mut mtp_formats) = (BTreeSet::new(), BTreeSet::new());
    for (index, file) in shards.files.iter().enumerate() {
        let scales = |module: &str| {
            let name = format!("{module}.scales");
            file.tensors.iter().find(|tensor| tensor.name == name)
        };
        for tensor in &file.tensors {
            let in_mtp = head_alone || index >= shards.first_side_file || tensor.name.contains("mtp.");
            facts.mtp |= in_mtp;
            facts.mtp_in_side_file |= index >= shards.first_side_file;
            let elements: u64 = tensor.shape.iter().fold(1, |product, &axis| product.saturating_mul(axis));
            let module = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
            let element = ElementType::from_safetensors(tensor.dtype);
            let format = match (element, scales(module)) {
                _ if tensor.name.ends_with(".scales") || tensor.name.ends_with(".biases") => continue,
                (Some(ElementType::U32), Some(_)) => {
                    let declared = match table.module(module) {
                        Some(Declared::Packed(packing)) => Some(packing),
                        _ => table.global(),
                    };
                    let bits = declared.map_or(32, |packing| u64::from(packing.bits));
                    facts.parameters = facts.parameters.saturating_add(elements.saturating_mul(32) / bits);
                    declared.map_or_else(|| "u32".into(), Packing::format)
                }
                (element, _) => {
                    facts.parameters = facts.parameters.saturating_add(elements);
                    if tensor.shape.len() < 2 {
                        continue;
                    }
                    match element {
                        Some(element) => element.format().into(),
                        None => format!("{:?}", tensor.dtype).to_ascii_lowercase(),
                    }
                }
            };
            if in_mtp {
                mtp_formats.insert(format)
            } else {
                formats.insert(format)
            };
        }
    }
    facts.formats = formats.into_iter().collect();
    facts.mtp_formats = mtp_formats.into_iter().collect();
}
