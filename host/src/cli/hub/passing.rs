//! A folder that is here for the moment, and does not stay when a signal ends the process.
//!
//! A signal handler cannot remove a folder: it may not even allocate. So it tells a thread, which removes what there
//! is and then lets the signal do what it would have done.

use std::io::{PipeReader, PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::c_int;
use tempfile::TempDir;

use super::interrupt::Handlers;

/// Something else in the process may be writing into a folder that is being removed; each try takes away what came.
const TRIES: usize = 100;

/// Where the handler writes. Once set it stays open for the life of the process, so a handler that runs late on some
/// other thread writes to nothing else.
static TO_THE_THREAD: AtomicI32 = AtomicI32::new(-1);

static HERE: Mutex<Here> = Mutex::new(Here { folders: Vec::new(), handlers: None, writer: None });

/// What is to be removed, and who sees to it.
struct Here {
    folders: Vec<PathBuf>,
    /// While there are folders.
    handlers: Option<Handlers>,
    /// There since the first folder.
    writer: Option<PipeWriter>,
}

impl Here {
    fn end_if_empty(&mut self) {
        if self.folders.is_empty() {
            self.handlers = None;
        }
    }
}

/// The folder.
pub(super) struct PassingFolder(TempDir);

impl PassingFolder {
    /// Makes an empty one where the system keeps what is temporary.
    ///
    /// # Errors
    /// When there is no room for it, or no thread.
    pub(super) fn new() -> std::io::Result<PassingFolder> {
        let mut here = here();
        if here.writer.is_none() {
            let (reader, writer) = std::io::pipe()?;
            std::thread::Builder::new().name("signals".into()).spawn(move || remove_on_signal(reader))?;
            TO_THE_THREAD.store(writer.as_raw_fd(), Ordering::Relaxed);
            here.writer = Some(writer);
        }
        // First, so that there is no moment in which the folder is there and would stay.
        here.handlers.get_or_insert_with(|| Handlers::install(tell));
        let made = tempfile::Builder::new().prefix("tensorfold-metadata-").tempdir();
        here.folders.extend(made.as_ref().ok().map(|folder| folder.path().into()));
        here.end_if_empty();
        Ok(PassingFolder(made?))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for PassingFolder {
    fn drop(&mut self) {
        // Does not return once a signal has come, so nobody goes on in a process that is about to end.
        let mut here = here();
        let path = self.0.path();
        let _ = std::fs::remove_dir_all(path);
        here.folders.retain(|folder| folder != path);
        here.end_if_empty();
    }
}

fn here() -> MutexGuard<'static, Here> {
    // Nothing that holds the lock can panic half-way through a change.
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn tell(signal: c_int) {
    let [number, ..] = signal.to_le_bytes();
    // SAFETY: write is safe in a signal handler and reads one byte of this frame. A pipe that is all but empty takes it,
    // so errno stays as whatever call was interrupted left it.
    unsafe { libc::write(TO_THE_THREAD.load(Ordering::Relaxed), (&raw const number).cast(), 1) };
}

fn remove_on_signal(mut reader: PipeReader) {
    let mut number = [0];
    if reader.read_exact(&mut number).is_err() {
        return;
    }
    // Held to the end: see `drop`.
    let here = here();
    for folder in &here.folders {
        let _ = (0..TRIES).any(|_| std::fs::remove_dir_all(folder).is_ok());
    }
    let signal = c_int::from(number[0]);
    // SAFETY: both take a number alone. Nothing in this process relies on the signal's handler from here on.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // Its default is to end the process; should it be blocked here, this does.
    std::process::exit(128 + signal);
}
