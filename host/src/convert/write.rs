//! Writes the weight files of a plan, a block of rows at a time.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::error::ConvertError;
use super::layout::Layout;
use super::plan::{BadWeight, Failed, Job, Scratch};
use super::{Progress, Stop};

/// Bytes of the source that a thread takes at a time: the memory that a conversion needs, with what comes of them.
const BLOCK_BYTES: u64 = 1 << 20;
/// More threads than this wait for the disk.
const MOST_THREADS: usize = 16;

/// Rows of one tensor.
#[derive(Clone, Debug)]
struct Block {
    job: usize,
    rows: std::ops::Range<u64>,
}

/// Writes all files of a layout into a folder. Gives how many floats were rounded, for each job.
///
/// # Errors
/// When a weight cannot be written, the disk refuses, or `stop` was asked for.
pub(super) fn write_weights(
    folder: &Path,
    layout: &Layout,
    jobs: &[Job<'_>],
    progress: &dyn Progress,
    stop: &Stop,
) -> Result<Vec<u64>, ConvertError> {
    let files = layout
        .files
        .iter()
        .map(|file| {
            let path = folder.join(&file.name);
            let open = File::create_new(&path).and_then(|open| {
                open.write_all_at(&file.head, 0)?;
                open.set_len(file.length)?;
                Ok(open)
            });
            open.map_err(ConvertError::file(&path, "written"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let blocks = blocks(jobs);
    let rounded: Vec<AtomicU64> = jobs.iter().map(|_| AtomicU64::new(0)).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failure: Mutex<Option<ConvertError>> = Mutex::new(None);
    let work = || {
        let mut scratch = Scratch::default();
        while !failed.load(Ordering::Relaxed) {
            let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let job = &jobs[block.job];
            let done = stop.check().and_then(|()| {
                let write = |target: usize, offset: u64, bytes: &[u8]| {
                    let place = layout.places[block.job][target];
                    let path = folder.join(&layout.files[place.file].name);
                    files[place.file]
                        .write_all_at(bytes, place.offset + offset)
                        .map_err(ConvertError::file(&path, "written"))
                };
                job.convert(block.rows.clone(), &mut scratch, write).map_err(|failed| refuse(job, failed))
            });
            match done {
                Ok(losses) => {
                    rounded[block.job].fetch_add(losses.rounded, Ordering::Relaxed);
                    progress.advance((block.rows.end - block.rows.start) * job.rows.row_bytes());
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Err(error);
    }
    for (file, planned) in files.iter().zip(&layout.files) {
        stop.check()?;
        file.sync_all().map_err(ConvertError::file(&folder.join(&planned.name), "written"))?;
    }
    Ok(rounded.into_iter().map(AtomicU64::into_inner).collect())
}

fn blocks(jobs: &[Job<'_>]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (job, rows) in jobs.iter().map(|job| &job.rows).enumerate() {
        let step = (BLOCK_BYTES / rows.row_bytes().max(1)).max(1);
        let mut start = 0;
        while start < rows.count() {
            let end = (start + step).min(rows.count());
            blocks.push(Block { job, rows: start..end });
            start = end;
        }
    }
    blocks
}

fn refuse(job: &Job<'_>, failed: Failed<ConvertError>) -> ConvertError {
    match failed {
        Failed::Write(error) => error,
        Failed::Weight(BadWeight::NotFinite(value)) => ConvertError::Weights {
            problem: format!(
                "{} holds the weight {value}, which cannot be quantized; the checkpoint is damaged",
                job.name
            ),
        },
        Failed::Weight(BadWeight::TooLarge(value)) => ConvertError::Weights {
            problem: format!(
                "{} holds the weight {value}, which 16 bits of this type do not reach; use --dtype bf16 or f32",
                job.name
            ),
        },
    }
}
