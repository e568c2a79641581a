//! Backend plugins: discover, read the manifest, admit, open, verify, talk.
//!
//! The only part of the host that opens libraries. Everything up to and including admission works on bytes of files
//! and never maps a plugin for execution.

pub mod admit;
pub mod configuration;
pub mod environment;
pub mod lifecycle;
pub mod lock;
pub mod safety;

use std::io::Write as _;
use std::path::Path;

/// Writes a file aside and renames it, so that readers see the old or the new content and nothing between. Missing
/// folders are made, for this user alone.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?.to_string_lossy();
    let aside = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&aside);
    }
    written
}
pub mod attest;
pub mod catalog;
mod configuration_file;
pub mod cross_check;
pub mod discover;
pub mod globs;
pub mod hardware;
pub mod image;
pub mod inspect;
pub mod load;
pub mod log_bridge;
pub mod machine;
pub mod memory_map;
pub mod open;
pub mod plugin;
pub mod probe;
pub mod search;
pub mod select;
#[cfg(test)]
pub(crate) mod testing;
pub mod trial;
pub mod verdicts;
