//! Checkpoints: from a folder of files to facts and mapped tensors.
//!
//! [`resolve()`] finds the folder that a MODEL argument names. [`read_facts`]
//! reads what a decision about a model needs, from metadata alone.
//! [`Checkpoint::open`] makes the normalised description that a plugin gets
//! and maps the weights.
//!
//! Everything in a checkpoint is a stranger's word: sizes are bounded before
//! memory is taken for them, links that leave the folder are refused, every
//! tensor's range is checked against its file, and nothing in this module
//! panics on any content. Nothing here runs code of a checkpoint, writes a
//! file, or touches the network.
//!
//! A new family is one file in `families/`.

mod card;
mod config;
mod element;
mod error;
mod expected;
mod facts;
mod families;
mod folder;
mod foreign;
mod generation;
mod header;
mod kind;
mod names;
mod quantization;
mod resolve;
mod shards;
mod source;
mod tensors;
mod vocabulary;

use std::path::{Path, PathBuf};

use memmap2::Mmap;
use tensorfold_plugin_api::model_spec::ModelSpec;

pub use self::card::{base_models, licence};
pub use self::element::ElementType;
pub use self::error::{CheckpointError, TensorFaults};
pub use self::facts::{Facts, Kind, read_facts, survey};
pub use self::folder::Folder;
pub use self::generation::GenerationDefaults;
pub use self::kind::{ConfigKind, read_kind};
pub use self::quantization::Packing;
pub use self::resolve::{HubCache, ResolveError, Resolved, resolve, resolve_for_reading, resolve_repository};
pub use self::source::CheckpointSource;
pub use self::tensors::Tensor;
pub(crate) use self::vocabulary::TOKENIZER_LIMIT;

/// What reading another kind of checkpoint shares with reading a model's.
pub(crate) mod parts {
    pub(crate) use super::config::{Config, Section, brief};
    pub(crate) use super::expected::{Expected, Kind};
    pub(crate) use super::families::rope;
    pub(crate) use super::map;
    pub(crate) use super::names::{Meaning, is_index, split_parameter};
    pub(crate) use super::quantization::QuantizationTable;
    pub(crate) use super::shards::Shards;
    pub(crate) use super::source::handed_on;
    pub(crate) use super::tensors::{NamedTensors, match_expected};
}

use self::config::Config;
use self::families::Family;
use self::generation::{GenerationConfig, stop_tokens};
use self::quantization::QuantizationTable;
use self::shards::Shards;
use self::tensors::{NamedTensors, match_tensors};
use self::vocabulary::Vocabulary;

/// Whether this host reads checkpoints of a family, spelt as in manifests.
pub fn reads_family(name: &str) -> bool {
    families::FAMILIES.iter().any(|family| family.name == name)
}

/// An open checkpoint: facts, and weights mapped into memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// The model's name: the repository's for a snapshot in the Hub cache,
    /// else the folder's.
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
    /// The description that crosses the border.
    pub spec: ModelSpec,
    /// All tensors that the description asks for, from the embedding up.
    pub tensors: Vec<Tensor>,
    /// Sampling parameters that the checkpoint wants.
    pub generation: GenerationDefaults,
    /// Ids that end a reply, sorted. Empty where the checkpoint names none.
    pub stop_tokens: Vec<u32>,
    files: Vec<MappedFile>,
}

/// A weight file, mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    /// Its path, for messages.
    pub path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// The whole file. The start is aligned to a page; tensors inside are
    /// aligned to nothing.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Checkpoint {
    /// Opens the checkpoint in a folder and maps its weight files read-only.
    ///
    /// No weight is read; pages come in when they are touched. A file that
    /// another process truncates while it is mapped ends this process with
    /// SIGBUS on the next access beyond its end: replace a checkpoint's files
    /// by renaming, never by writing into them.
    ///
    /// # Errors
    /// A [`CheckpointError`] for the first thing that is missing, unsound or
    /// not supported; faults of tensors are gathered.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let folder = Folder::open(path)?;
        let config = Config::read(&folder)?;
        let family = families::find(&config)?;
        let vocabulary = Vocabulary::read(&folder)?;
        let generation = GenerationConfig::read(&folder)?;
        let stop_tokens = stop_tokens(&generation, &vocabulary, &config)?;
        let shards = Shards::open(&folder)?;
        let (spec, tensors) = describe(&folder, &config, family, &shards, Some(vocabulary.size))?;
        let files = shards.files.into_iter().map(map).collect::<Result<_, _>>()?;
        Ok(Checkpoint {
            name: folder.name(),
            directory: path.into(),
            spec,
            tensors,
            generation: generation.defaults,
            stop_tokens,
            files,
        })
    }

    /// The mapped files; [`Tensor::file`] indexes them.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// A tensor by canonical name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The stored bytes of one of this checkpoint's tensors, little-endian,
    /// aligned to nothing.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        let start = tensor.offset as usize;
        &self.files[tensor.file].bytes()[start..start + tensor.length as usize]
    }

    /// Whether the checkpoint holds a multi-token prediction head.
    pub fn has_mtp(&self) -> bool {
        self.spec.mtp.is_some()
    }

    /// Bytes of all tensors that the model uses.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.length).sum()
    }
}

/// The description of a checkpoint and its tensors. `selectable` is the
/// tokenizer's size; without it every row of the vocabulary counts.
fn describe(
    folder: &Folder,
    config: &Config,
    family: &Family,
    shards: &Shards,
    selectable: Option<u32>,
) -> Result<(ModelSpec, Vec<Tensor>), CheckpointError> {
    let table = QuantizationTable::read(config)?;
    let named = NamedTensors::new(shards, family.names);
    let mut spec = (family.describe)(config, &named, selectable)?;
    if let Some(size) = selectable.filter(|&size| size > spec.vocabulary_rows) {
        let problem = format!(
            "has {} rows, but tokenizer.json knows ids up to {}; the tokenizer belongs to another model",
            spec.vocabulary_rows,
            size - 1
        );
        return Err(CheckpointError::value(config.path(), "vocab_size", problem));
    }
    spec.validate()
        .map_err(|error| CheckpointError::Files { path: config.path().into(), problem: error.to_string() })?;
    let tensors = match_tensors(&mut spec, named, &table)
        .map_err(|faults| CheckpointError::Tensors { path: folder.path().into(), faults })?;
    Ok((spec, tensors))
}

pub(crate) fn map(file: header::TensorFile) -> Result<MappedFile, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: file.path.clone(), source };
    // SAFETY: the map is read-only and private to this process, which never
    // writes the file. That another process may change or truncate the file is
    // documented at `Checkpoint::open`; bytes are only ever read as plain
    // numbers, for which every bit pattern is a value.
    let map = unsafe { Mmap::map(&file.file) }.map_err(failed)?;
    if map.len() as u64 != file.length {
        let problem = format!("it had {} bytes when it was checked and has {} now", file.length, map.len());
        return Err(CheckpointError::Safetensors { path: file.path, problem });
    }
    Ok(MappedFile { path: file.path, map })
}

#[cfg(test)]
mod tests;
