//! A folder for the files of one input.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A folder whose files are written anew for every input.
///
/// It lies where temporary files lie: `TMPDIR` should name a folder in memory.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// An empty folder.
    ///
    /// # Panics
    /// When none can be made.
    #[allow(clippy::new_without_default, reason = "it touches the disk")]
    pub fn new() -> Scratch {
        Scratch(tempfile::Builder::new().prefix("tensorfold-fuzz-").tempdir().expect("a temporary folder"))
    }

    /// Makes the folder hold exactly these files, and no folder.
    pub(crate) fn fill(&self, files: &[(&str, &[u8])]) -> &Path {
        let path = self.0.path();
        for entry in fs::read_dir(path).expect("the folder is there") {
            let entry = entry.expect("the folder is there");
            if !files.iter().any(|(name, _)| entry.file_name() == *name) {
                let path = entry.path();
                let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
                removed.expect("something of an earlier input");
            }
        }
        for (name, content) in files {
            fs::write(path.join(name), content).expect("room for the input");
        }
        path
    }
}
