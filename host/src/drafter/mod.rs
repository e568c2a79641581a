//! External drafters: recognised, described, and held against the model that they are to draft for.
//!
//! [`survey`] reads a folder's `config.json` and the headers of its weight files and tells everything that is wrong at
//! once. [`Survey::faults_with`] adds what does not fit a target. [`Drafter::open`] maps the weights of a drafter that
//! nothing speaks against. No weight is read by any of them.
//!
//! A configuration is a claim. What it claims is proven with the names and shapes of the tensors, and a tensor that is
//! not expected refuses the drafter: it is another architecture's, which would run without it and draft nonsense.

mod expected;
mod fault;
mod fields;
mod fit;
mod names;
mod reading;
mod recognise;
mod source;

use std::path::{Path, PathBuf};

use tensorfold_plugin_api::drafter_spec::DrafterSpec;

pub use self::fault::{Fault, FaultCode, one_line};
pub use self::fit::Target;
pub use self::recognise::{Class, Recognition};
pub use self::source::DrafterFiles;

use self::reading::Reading;
use crate::checkpoint::parts::{Config, NamedTensors, QuantizationTable, Shards, map, match_expected};
use crate::checkpoint::{CheckpointError, Folder, MappedFile, Tensor, base_models, licence};

/// What can be said of a drafter without touching its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// Its name: the repository's for a snapshot in the Hub cache, else the folder's.
    pub name: String,
    /// What it is.
    pub class: Class,
    /// Its description, where nothing speaks against it.
    pub spec: Option<DrafterSpec>,
    /// Formats of its matrices, spelt as in manifests, sorted; empty where tensors are not what was expected.
    pub formats: Vec<String>,
    /// Its parameters; 0 where tensors are not what was expected.
    pub parameters: u64,
    /// Bytes of its weight files; 0 where there are none that can be read.
    pub weight_bytes: u64,
    /// The licence that its card names.
    pub licence: Option<String>,
    /// The models that its card names as its own, as they are spelt there.
    pub base_models: Vec<String>,
    /// Depth of the model that it was made for, where its configuration says so.
    pub target_layers: Option<u32>,
    /// Whether its vocabulary is a part of the target's.
    pub pruned_vocabulary: bool,
    /// Oddities that change nothing, one clause each.
    pub warnings: Vec<String>,
    /// Why it is of no kind that is read.
    refusal: Option<Fault>,
    reading: Reading,
    /// Faults of the tensors and their files.
    weights: Vec<Fault>,
}

impl Survey {
    /// Why it is of no kind that is read; nothing else is known of it then.
    pub fn refusal(&self) -> Option<&Fault> {
        self.refusal.as_ref()
    }

    /// Rows of a block.
    pub fn block_size(&self) -> Option<u32> {
        self.reading.block_size
    }

    /// How many layers of the target it reads.
    pub fn taps(&self) -> Option<u32> {
        self.reading.taps.as_ref().and_then(|taps| u32::try_from(taps.len()).ok())
    }

    /// Everything that keeps it from being used with any target.
    pub fn faults(&self) -> Vec<Fault> {
        self.all(None, None)
    }

    /// Everything that keeps it from being used with this target. `drafts` is how many a round were asked for.
    pub fn faults_with(&self, target: Target, drafts: Option<u32>) -> Vec<Fault> {
        self.all(Some(target), drafts)
    }

    fn all(&self, target: Option<Target>, drafts: Option<u32>) -> Vec<Fault> {
        let mut faults = Vec::from_iter(self.refusal.clone());
        faults.extend(fit::faults(&self.reading, target, drafts));
        faults.extend_from_slice(&self.weights);
        faults
    }
}

/// Why a drafter is not opened.
#[derive(Debug, thiserror::Error)]
pub enum DrafterError {
    /// Its configuration or its files cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// It can be read, and is none that can be used.
    #[error("{name}: {}", one_line(faults))]
    Unfit {
        /// The drafter.
        name: String,
        /// Everything that was found.
        faults: Vec<Fault>,
    },
}

/// An open drafter: facts, and weights mapped into memory.
#[derive(Debug)]
pub struct Drafter {
    /// Its name, as [`Survey::name`].
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
    /// The description that crosses the border.
    pub spec: DrafterSpec,
    /// All tensors that the description asks for.
    pub tensors: Vec<Tensor>,
    files: Vec<MappedFile>,
}

impl Drafter {
    /// Opens the drafter in a folder and maps its weight files read-only. See
    /// [`Checkpoint::open`](crate::checkpoint::Checkpoint::open) for what mapping means.
    ///
    /// # Errors
    /// [`DrafterError::Unfit`] with all faults, or what keeps the files from being read.
    pub fn open(path: &Path) -> Result<Drafter, DrafterError> {
        let looked = look(path)?;
        let faults = looked.survey.faults();
        let Survey { name, spec, .. } = looked.survey;
        match (spec, looked.weights) {
            (Some(spec), Some((tensors, shards))) if faults.is_empty() => {
                let files = shards.files.into_iter().map(map).collect::<Result<_, _>>()?;
                Ok(Drafter { name, directory: path.into(), spec, tensors, files })
            }
            _ => Err(DrafterError::Unfit { name, faults }),
        }
    }

    /// The stored bytes of one of this drafter's tensors, little-endian, aligned to nothing.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        let start = tensor.offset as usize;
        &self.files[tensor.file].bytes()[start..start + tensor.length as usize]
    }
}

/// What a folder holds, when it may be a drafter's: decided by its `config.json` alone.
///
/// # Errors
/// When that cannot be read.
pub fn recognise(path: &Path) -> Result<Recognition, CheckpointError> {
    Ok(recognise::recognise(&Config::read(&Folder::open(path)?)?))
}

/// The drafter that a configuration is of, or why it is not read; `None` where it is of no drafter.
pub(crate) fn configured(config: &Config) -> Option<Result<Class, Fault>> {
    let recognition = recognise::recognise(config);
    recognition.is_drafter().then(|| match refusal(&recognition, config) {
        None => Ok(recognition.class),
        Some(fault) => Err(fault),
    })
}

/// Reads what a decision about a drafter needs.
///
/// # Errors
/// When `config.json` cannot be read. Everything else is told by [`Survey::faults`].
pub fn survey(path: &Path) -> Result<Survey, CheckpointError> {
    look(path).map(|looked| looked.survey)
}

/// A survey, and the tensors where all of them are as expected.
struct Looked {
    survey: Survey,
    weights: Option<(Vec<Tensor>, Shards)>,
}

fn look(path: &Path) -> Result<Looked, CheckpointError> {
    let folder = Folder::open(path)?;
    let config = Config::read(&folder).map_err(|error| match error {
        // What is said of such a folder is meant for models.
        CheckpointError::Missing { path, fix } => {
            CheckpointError::Missing { path, fix: only_gguf(&folder).unwrap_or(fix) }
        }
        other => other,
    })?;
    let recognition = recognise::recognise(&config);
    let mut survey = Survey {
        name: folder.name(),
        class: recognition.class,
        spec: None,
        formats: Vec::new(),
        parameters: 0,
        weight_bytes: 0,
        licence: licence(&folder),
        base_models: base_models(&folder),
        target_layers: None,
        pruned_vocabulary: false,
        warnings: Vec::new(),
        refusal: refusal(&recognition, &config),
        reading: Reading::default(),
        weights: Vec::new(),
    };
    if survey.refusal.is_some() {
        return Ok(Looked { survey, weights: None });
    }
    let mut reading = Reading::of(&config, recognition.class);
    let table = QuantizationTable::read(&config).unwrap_or_else(|error| {
        reading.faults.push(Fault::of_config(error));
        QuantizationTable::default()
    });
    survey.target_layers = reading.target_layers;
    survey.pruned_vocabulary = reading.draft_vocabulary.is_some();
    survey.warnings.clone_from(&reading.warnings);
    survey.spec = reading.spec();
    survey.reading = reading;
    let shards = match Shards::open(&folder) {
        Ok(shards) => shards,
        Err(error) => {
            survey.weights.push(without_weights(&folder, &error));
            survey.spec = None;
            return Ok(Looked { survey, weights: None });
        }
    };
    survey.weight_bytes = shards.bytes();
    let weights = match prove(&mut survey, &folder, &shards, &table) {
        Ok(tensors) => tensors.map(|tensors| (tensors, shards)),
        Err(fault) => {
            survey.weights.push(fault);
            None
        }
    };
    if weights.is_none() || !survey.faults().is_empty() {
        survey.spec = None;
    }
    Ok(Looked { survey, weights })
}

/// Why a configuration is none of a drafter that is read.
fn refusal(recognition: &Recognition, config: &Config) -> Option<Fault> {
    if let Some(fault) = &recognition.fault {
        return Some(fault.clone());
    }
    let class = recognition.class;
    if recognition.speculators {
        let text = format!(
            "a {} drafter in the speculators format, which is not read; take the drafter as its makers publish it",
            class.name()
        );
        return Some(Fault::new(FaultCode::Format, text));
    }
    let kind = |text: String| Some(Fault::new(FaultCode::Kind, text));
    match class {
        Class::Dflash | Class::Dflash2 => None,
        Class::Mtp => kind(
            "a multi-token prediction head, which drafts from the folder of its model: copy its safetensors file there \
             as mtp.safetensors"
                .into(),
        ),
        Class::Model => {
            let text = config.text();
            let heads = ["mtp_num_hidden_layers", "num_nextn_predict_layers"];
            let own = heads.iter().any(|key| text.get(key).is_some_and(|count| count.as_u64() > Some(0)));
            kind(match own {
                true => "a whole model, which drafts for itself with its own head, and no drafter".into(),
                false => "a whole model and no drafter".into(),
            })
        }
        other => kind(format!("of the kind {}, which is not read; DFlash and DFlash2 drafters are", other.name())),
    }
}

/// Weights that cannot be had.
fn without_weights(folder: &Folder, error: &CheckpointError) -> Fault {
    match only_gguf(folder) {
        Some(text) => Fault::new(FaultCode::Format, text),
        None => Fault::new(FaultCode::Files, error.to_string()),
    }
}

/// What to do with a folder that holds a GGUF file in place of weights that are read. Of a model's a checkpoint can be
/// made; of a drafter's none.
fn only_gguf(folder: &Folder) -> Option<String> {
    let names = folder.names().ok()?;
    let ends = |end: &str| names.iter().find(|name| name.to_ascii_lowercase().ends_with(end));
    let name = ends(".gguf").filter(|_| ends(".safetensors").is_none())?;
    Some(format!("{name} is a GGUF file, of which drafters are not read; take its safetensors version"))
}

/// Proves a configuration with names and shapes. `None`: it is itself too faulty for that.
fn prove(
    survey: &mut Survey,
    folder: &Folder,
    shards: &Shards,
    table: &QuantizationTable,
) -> Result<Option<Vec<Tensor>>, Fault> {
    let fault = |text: String| Fault::new(FaultCode::Tensors, text);
    let stored = || shards.files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.name.as_str());
    if let Some((kind, name)) = stored().find_map(|name| Some((names::foreign_kind(name)?, name))) {
        let text =
            format!("configured as a {} drafter, with tensors of {kind} ({name})", survey.class.name());
        return Err(Fault::new(FaultCode::Kind, text));
    }
    if folder.has("mask_embedding.pt") {
        return Err(fault(
            "mask_embedding.pt holds an embedding of its mask, which is not implemented".into(),
        ));
    }
    let Some(spec) = &mut survey.spec else { return Ok(None) };
    let named = NamedTensors::of_one_kind(shards, names::meaning);
    let width = named.stored("fc").and_then(|fc| fc.shape.last().copied()).unwrap_or_default();
    let (hidden, taps) = (u64::from(spec.hidden_size), spec.taps.len() as u64);
    if named.stored("fc.scales").is_none()
        && width.is_multiple_of(hidden)
        && ![0, taps].contains(&(width / hidden))
    {
        let text =
            format!("its fc.weight reads {} layers of the target, its config lists {taps}", width / hidden);
        return Err(fault(text));
    }
    let matched = match_expected(&expected::expected_tensors(spec), named, table)
        .map_err(|faults| fault(faults.to_string()))?;
    spec.formats.clone_from(&matched.formats);
    survey.formats = matched.formats;
    survey.parameters = matched.tensors.iter().map(Tensor::parameters).sum();
    Ok(Some(matched.tensors))
}

#[cfg(test)]
mod tests;
