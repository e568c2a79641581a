//! `tensorfold convert`: other forms of a checkpoint into the one that is served.
//!
//! [`convert`] makes a folder in MLX's form from a GGUF file, or from a folder
//! of floats. It first makes a plan of every tensor from metadata alone, so
//! that whatever is refused is refused before anything is written; then it
//! converts a block of rows at a time from the mapped source; then it opens
//! what it wrote as the server would; and only then does the folder get its
//! name. A conversion that ends early leaves nothing behind.

mod affine;
mod blocks;
mod config;
mod error;
mod float;
mod from_gguf;
pub mod gguf;
mod huggingface;
mod layout;
mod names;
mod output;
mod plan;
mod rows;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

use memmap2::Mmap;

pub use self::error::ConvertError;
use self::layout::Layout;
use self::output::{NewFolder, OutputPlace};
use self::plan::{Form, Plan};
use crate::checkpoint::{Checkpoint, ElementType, Folder, Packing, TOKENIZER_LIMIT};
use crate::text::TextModel;

/// Data of one weight file, at most; MLX's tools divide models at the same size.
const SHARD_LIMIT: u64 = 5 << 30;

/// How to convert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The packing of matrices. Without one, matrices keep the form that they have.
    pub packing: Option<Packing>,
    /// The type of floats. Without one, that which the source names or has.
    pub element: Option<ElementType>,
    /// Whether a checkpoint that stands at the output's place is replaced.
    pub force: bool,
}

/// Told how far a conversion is. Called by several threads.
pub trait Progress: Sync {
    /// The plan is made: this many bytes of the source will be read.
    fn begin(&self, bytes: u64);
    /// This many more were converted.
    fn advance(&self, bytes: u64);
}

/// A wish to end, from a signal to the threads at work.
#[derive(Debug, Default)]
pub struct Stop(AtomicI32);

impl Stop {
    /// Ends the conversion at the next block of rows.
    pub fn request(&self, signal: i32) {
        self.0.store(signal, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), ConvertError> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(ConvertError::Stopped { signal }),
        }
    }
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The model's family.
    pub family: String,
    /// Names of the weight files.
    pub files: Vec<String>,
    /// Bytes of the weight files.
    pub bytes: u64,
    /// Weights, in the count that people use.
    pub parameters: u64,
    /// Tensors that hold exactly what the source holds.
    pub lossless: usize,
    /// Tensors of which some floats were rounded to another type, and how many floats.
    pub rounded: (usize, u64),
    /// Matrices that were quantised.
    pub quantized: usize,
    /// What else the user should know, a clause each.
    pub notes: Vec<String>,
}

/// Converts the checkpoint in a folder, or the GGUF file, at `source` into a new folder.
///
/// # Errors
/// [`ConvertError`], whose text is one line. Nothing is left behind.
pub fn convert(
    source: &Path,
    output: &Path,
    options: &Options,
    progress: &dyn Progress,
    stop: &Stop,
) -> Result<Summary, ConvertError> {
    let place = OutputPlace::check(output, source, options.force)?;
    if source.is_file() {
        let map = map(source)?;
        let sound = |error| ConvertError::Gguf { path: source.into(), error };
        let file = gguf::Gguf::parse(&map).map_err(sound)?;
        let plan = from_gguf::plan(source, &file, options)?;
        refuse_idle_packing(source, &plan, options)?;
        return finish(place, plan, None, progress, stop);
    }
    let folder = Folder::open(source)?;
    let checkpoint = Checkpoint::open(source)?;
    let plan = huggingface::plan(&folder, &checkpoint, options)?;
    refuse_idle_packing(source, &plan, options)?;
    finish(place, plan, Some(&folder), progress, stop)
}

/// Refuses a packing that no matrix of the model can take, rather than write a model that is not packed at all.
fn refuse_idle_packing(source: &Path, plan: &Plan<'_>, options: &Options) -> Result<(), ConvertError> {
    match options.packing {
        Some(packing) if !plan.jobs.iter().any(plan::Job::is_lossy_packing) => Err(ConvertError::source(
            source,
            format!(
                "none of its matrices has rows of whole groups of {}, so nothing would be quantized; \
                 choose a smaller group size, or leave --bits out",
                packing.group_size
            ),
        )),
        _ => Ok(()),
    }
}

/// Maps a file read-only.
fn map(path: &Path) -> Result<Mmap, ConvertError> {
    let file = File::open(path).map_err(ConvertError::file(path, "read"))?;
    // SAFETY: the map is read-only and private to this process, which never writes the file. Should another process
    // truncate it meanwhile, an access beyond its new end ends this process by a signal and nothing worse; its bytes
    // are read as plain numbers, for which every bit pattern is a value, and every range was checked.
    unsafe { Mmap::map(&file) }.map_err(ConvertError::file(path, "read"))
}

/// Writes a plan and gives the folder its name.
fn finish(
    place: OutputPlace,
    plan: Plan<'_>,
    source: Option<&Folder>,
    progress: &dyn Progress,
    stop: &Stop,
) -> Result<Summary, ConvertError> {
    stop.check()?;
    let layout = Layout::new(&plan.jobs, SHARD_LIMIT);
    let folder = place.start(layout.bytes())?;
    progress.begin(plan.jobs.iter().map(|job| job.rows.count() * job.rows.row_bytes()).sum());
    if let Some(source) = source {
        copy_texts(source, &folder)?;
    }
    for (name, text) in &plan.texts {
        folder.write(name, text)?;
    }
    folder.write("model.safetensors.index.json", &layout.index(&plan.jobs))?;
    let rounded = write::write_weights(folder.path(), &layout, &plan.jobs, progress, stop)?;
    check(&folder, &plan)?;
    stop.check()?;
    folder.finish()?;

    let quantized = plan.jobs.iter().filter(|job| job.is_lossy_packing()).count();
    let changed = rounded.iter().filter(|&&count| count > 0).count();
    Ok(Summary {
        family: plan.family,
        files: layout.files.iter().map(|file| file.name.clone()).collect(),
        bytes: layout.bytes(),
        parameters: plan.jobs.iter().map(plan::Job::parameters).sum(),
        lossless: plan.jobs.len() - quantized - changed,
        rounded: (changed, rounded.iter().sum()),
        quantized,
        notes: plan.notes,
    })
}

/// Opens what was written as the server would.
fn check(folder: &NewFolder, plan: &Plan<'_>) -> Result<(), ConvertError> {
    let failed = |problem: String| ConvertError::Check { problem };
    let made = Checkpoint::open(folder.path()).map_err(|error| failed(error.to_string()))?;
    TextModel::load(folder.path()).map_err(|error| failed(error.to_string()))?;
    let head = made.spec.mtp.as_ref().map_or(0.0, |mtp| mtp.norm_weight_offset);
    if made.spec.norm_weight_offset != 0.0 || head != 0.0 {
        return Err(failed("its norms would be taken for zero-centred ones".into()));
    }
    let wanted = plan.jobs.iter().any(|job| job.part == plan::Part::PredictionHead);
    if wanted != made.has_mtp() {
        return Err(failed("its prediction head is not found".into()));
    }
    Ok(())
}

/// Copies the files beside the weights: tokenizer, template, licence and the like. Programs are left out, as
/// nothing runs them.
fn copy_texts(source: &Folder, folder: &NewFolder) -> Result<(), ConvertError> {
    const EXTENSIONS: [&str; 7] = ["json", "jinja", "txt", "model", "tiktoken", "md", "jsonl"];
    for name in source.names()? {
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
        let wanted = extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
            || name.starts_with("LICENSE")
            || name.starts_with("NOTICE");
        let made_anew = name == "config.json" || name.ends_with(".safetensors.index.json");
        if !wanted || made_anew || !source.has(&name) {
            continue;
        }
        let limit = if name == "tokenizer.json" { TOKENIZER_LIMIT } else { Folder::METADATA_LIMIT };
        if let Some(bytes) = source.read_limited(&name, limit)? {
            folder.write(&name, &bytes)?;
        }
    }
    Ok(())
}

impl plan::Job<'_> {
    /// Whether floats become codes, which do not hold them exactly.
    fn is_lossy_packing(&self) -> bool {
        matches!((self.content, self.form), (plan::Content::Floats { .. }, Form::Affine { .. }))
    }
}
