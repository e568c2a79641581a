//! What can be said of a checkpoint without touching its weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::card::licence;
use super::config::Config;
use super::describe;
use super::element::ElementType;
use super::error::CheckpointError;
use super::families::{self, Family};
use super::folder::Folder;
use super::generation::GenerationConfig;
use super::quantization::{Declared, Packing, QuantizationTable};
use super::shards::Shards;
use super::tensors::Tensor;
use super::vocabulary::Vocabulary;
use crate::drafter;

/// Facts of a checkpoint, from `config.json` and the headers of its files.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The model's name, as [`super::Checkpoint::name`].
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
    /// What the folder holds.
    pub kind: Kind,
    /// `model_type`: the family as manifests spell it, where it is supported.
    pub family: String,
    /// Whether a model of this family can be opened by this build.
    pub supported: bool,
    /// The description that a plugin would get; `None` where there is a problem
    /// that keeps it from being made. Without a tokenizer every row of the
    /// vocabulary counts as selectable.
    pub spec: Option<ModelSpec>,
    /// Ids that the tokenizer knows, where it was looked at.
    pub tokenizer_size: Option<u32>,
    /// Formats of the matrices, spelt as in manifests, sorted.
    pub formats: Vec<String>,
    /// Bytes that the matrices of each of these formats take.
    pub format_bytes: BTreeMap<String, u64>,
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
    /// The licence that the card names.
    pub licence: Option<String>,
}

/// What a folder with a `config.json` holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model, of whatever family.
    Model,
    /// A drafter that another model is served with.
    Drafter,
    /// The multi-token prediction head of a model, without the model.
    PredictionHead {
        /// The family that it was made for.
        family: &'static str,
    },
}

/// Reads the facts of the checkpoint in a folder. The tokenizer is not looked at.
///
/// # Errors
/// When `config.json` or the headers cannot be read, contradict each other, or
/// ask for what this build does not read.
pub fn read_facts(path: &Path) -> Result<Facts, CheckpointError> {
    let folder = Folder::open(path)?;
    let (facts, problem) = gather(path, &folder, Ok(None))?;
    problem.map_or(Ok(facts), Err)
}

/// As [`read_facts`], for commands that only look: what can be told, at least by
/// headers, comes with what is wrong with the rest, and the tokenizer is looked
/// at where there is one.
///
/// # Errors
/// When `config.json` cannot be read.
pub fn survey(path: &Path) -> Result<(Facts, Option<CheckpointError>), CheckpointError> {
    let folder = Folder::open(path)?;
    let vocabulary = match Vocabulary::read(&folder) {
        Ok(vocabulary) => Ok(Some(vocabulary.size)),
        Err(CheckpointError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let (mut facts, problem) = gather(path, &folder, vocabulary)?;
    facts.licence = licence(&folder);
    Ok((facts, problem))
}

/// `vocabulary` is the tokenizer's size, where there is a tokenizer.
fn gather(
    path: &Path,
    folder: &Folder,
    vocabulary: Result<Option<u32>, CheckpointError>,
) -> Result<(Facts, Option<CheckpointError>), CheckpointError> {
    let config = Config::read(folder)?;
    let model_type = config.model_type()?.to_owned();
    let family = families::find(&config);
    let kind = match families::prediction_head_of(&config) {
        Some(family) => Kind::PredictionHead { family },
        None if drafter::configured(&config).is_some() => Kind::Drafter,
        None => Kind::Model,
    };
    let mut facts = Facts {
        name: folder.name(),
        directory: path.into(),
        kind,
        family: family.as_ref().map_or(model_type, |family| family.name.into()),
        supported: family.is_ok(),
        spec: None,
        tokenizer_size: None,
        formats: Vec::new(),
        format_bytes: BTreeMap::new(),
        mtp_formats: Vec::new(),
        mtp: false,
        mtp_in_side_file: false,
        context_window: config.context_window()?,
        parameters: 0,
        weight_bytes: 0,
        licence: None,
    };
    let (selectable, tokenizer_problem) = match vocabulary {
        Ok(size) => (size, None),
        Err(error) => (None, Some(error)),
    };
    facts.tokenizer_size = selectable;
    let problem = match Shards::open(folder) {
        Err(error) => Some(family.err().unwrap_or(error)),
        Ok(shards) => {
            facts.weight_bytes = shards.bytes();
            let described = family.and_then(|family| {
                describe_weights(&mut facts, folder, &config, family, &shards, selectable)
            });
            if described.is_err() {
                from_headers(&mut facts, &config, &shards);
            }
            described.err()
        }
    };
    let problem = problem.or(tokenizer_problem).or_else(|| GenerationConfig::read(folder).err());
    Ok((facts, problem))
}

/// Everything, from a description that holds.
fn describe_weights(
    facts: &mut Facts,
    folder: &Folder,
    config: &Config,
    family: &Family,
    shards: &Shards,
    selectable: Option<u32>,
) -> Result<(), CheckpointError> {
    let (spec, tensors) = describe(folder, config, family, shards, selectable)?;
    facts.parameters = tensors.iter().map(Tensor::parameters).sum();
    facts.format_bytes = format_bytes(&spec, &tensors);
    facts.formats = spec.formats.clone();
    facts.mtp = spec.mtp.is_some();
    facts.mtp_in_side_file = facts.mtp && shards.files.len() > shards.first_side_file;
    facts.mtp_formats = spec.mtp.as_ref().map(|mtp| mtp.formats.clone()).unwrap_or_default();
    facts.spec = Some(spec);
    Ok(())
}

/// Bytes of the model's own matrices by format; scales and biases count to
/// their matrix, which they follow in the list.
fn format_bytes(spec: &ModelSpec, tensors: &[Tensor]) -> BTreeMap<String, u64> {
    let mut bytes: BTreeMap<String, u64> = spec.formats.iter().map(|format| (format.clone(), 0)).collect();
    let mut format = String::new();
    for tensor in tensors.iter().filter(|tensor| !tensor.is_mtp()) {
        if !tensor.is_scale_or_bias() {
            let plain = || tensor.element.format().to_owned();
            format = tensor.packing.map_or_else(plain, Packing::format);
        }
        if tensor.shape.len() > 1
            && let Some(sum) = bytes.get_mut(&format)
        {
            *sum += tensor.length;
        }
    }
    bytes
}

/// Formats and counts from shapes alone.
fn from_headers(facts: &mut Facts, config: &Config, shards: &Shards) {
    let table = QuantizationTable::read(config).unwrap_or_default();
    let head_alone = matches!(facts.kind, Kind::PredictionHead { .. });
    let mut mtp_formats = BTreeMap::new();
    for (index, file) in shards.files.iter().enumerate() {
        let lengths: BTreeMap<&str, u64> =
            file.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.length)).collect();
        for tensor in &file.tensors {
            let side = index >= shards.first_side_file;
            let in_mtp = head_alone || side || tensor.name.contains("mtp.");
            facts.mtp |= in_mtp;
            facts.mtp_in_side_file |= side;
            let elements: u64 = tensor.shape.iter().fold(1, |product, &axis| product.saturating_mul(axis));
            let module = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
            let part = |name: &str| lengths.get(format!("{module}.{name}").as_str()).copied();
            let element = ElementType::from_safetensors(tensor.dtype);
            let mut bytes = tensor.length;
            let format = match (element, part("scales")) {
                _ if tensor.name.ends_with(".scales") || tensor.name.ends_with(".biases") => continue,
                (Some(ElementType::U32), Some(scales)) => {
                    let declared = match table.module(module) {
                        Some(Declared::Packed(packing)) => Some(packing),
                        _ => table.global(),
                    };
                    let bits = declared.map_or(32, |packing| u64::from(packing.bits));
                    facts.parameters = facts.parameters.saturating_add(elements.saturating_mul(32) / bits);
                    bytes += scales + part("biases").unwrap_or(0);
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
            let formats = if in_mtp { &mut mtp_formats } else { &mut facts.format_bytes };
            *formats.entry(format).or_default() += bytes;
        }
    }
    facts.formats = facts.format_bytes.keys().cloned().collect();
    facts.mtp_formats = mtp_formats.into_keys().collect();
}
