//! The output's folder: written beside its place, then put there whole.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::ConvertError;

/// Room that stays free on the disk besides what is written.
const SPARE_BYTES: u64 = 16 << 20;

/// Where a conversion's output will stand, looked at before anything is read.
#[derive(Debug)]
pub(super) struct OutputPlace {
    output: PathBuf,
    parent: PathBuf,
    replaces: bool,
}

/// A folder in the making. Dropped, it is gone with all that is in it.
#[derive(Debug)]
pub(super) struct NewFolder {
    place: OutputPlace,
    temporary: TempDir,
}

impl OutputPlace {
    /// Checks that a folder may be made, or with `force` replaced, at `output`.
    ///
    /// # Errors
    /// When something else stands there, or the source would be lost.
    pub(super) fn check(output: &Path, source: &Path, force: bool) -> Result<OutputPlace, ConvertError> {
        if output.file_name().is_none() {
            return Err(ConvertError::output(output, "it is no name of a new folder"));
        }
        let parent = match output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        if !parent.is_dir() {
            let problem = format!("there is no folder {} to make it in; make that first", parent.display());
            return Err(ConvertError::output(output, problem));
        }
        let replaces = match fs::symlink_metadata(output) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(ConvertError::file(output, "looked at")(error)),
            Ok(_) if !force => {
                let problem = "it exists already; name another folder, or replace a checkpoint with --force";
                return Err(ConvertError::output(output, problem));
            }
            Ok(found) => {
                if !found.is_dir() || !is_checkpoint(output)? {
                    let problem = "it exists and is no checkpoint folder (config.json, *.safetensors, no folders inside), so --force does not replace it";
                    return Err(ConvertError::output(output, problem));
                }
                true
            }
        };
        if replaces && same_or_inside(source, output) {
            return Err(ConvertError::output(output, "it holds the source, which --force would delete"));
        }
        Ok(OutputPlace { output: output.into(), parent, replaces })
    }

    /// Makes the folder that is written, after a look at the room on the disk.
    ///
    /// # Errors
    /// When there is too little room, or the folder cannot be made.
    pub(super) fn start(self, bytes: u64) -> Result<NewFolder, ConvertError> {
        let available = available_bytes(&self.parent)?;
        let wanted = bytes.saturating_add(SPARE_BYTES);
        if available < wanted {
            let problem = format!(
                "it needs {wanted} bytes, and {available} are free there; free some, or name a folder on another disk"
            );
            return Err(ConvertError::output(&self.output, problem));
        }
        let name = self.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let temporary = tempfile::Builder::new()
            .prefix(&format!(".{name}.converting-"))
            // As any new folder has, less what the user's mask takes.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(&self.parent)
            .map_err(ConvertError::file(&self.parent, "written in"))?;
        Ok(NewFolder { place: self, temporary })
    }
}

impl NewFolder {
    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ConvertError> {
        let path = self.path().join(name);
        fs::write(&path, bytes).map_err(ConvertError::file(&self.place.output.join(name), "written"))
    }

    /// Puts the folder in its place.
    ///
    /// # Errors
    /// The operating system's. What stood there before is then there still.
    pub(super) fn finish(self) -> Result<(), ConvertError> {
        let NewFolder { place: OutputPlace { output, parent, replaces }, temporary } = self;
        let failed = |error| ConvertError::file(&output, "put in place")(error);
        let old = if replaces {
            let aside = tempfile::Builder::new().prefix(".replaced-").tempdir_in(&parent).map_err(failed)?;
            fs::rename(&output, aside.path().join("old")).map_err(failed)?;
            Some(aside)
        } else if output.symlink_metadata().is_ok() {
            // Renaming would silently take the place of an empty folder.
            return Err(ConvertError::output(&output, "something was put there meanwhile; convert again"));
        } else {
            None
        };
        if let Err(error) = fs::rename(temporary.path(), &output) {
            if let Some(old) = &old {
                let _ = fs::rename(old.path().join("old"), &output);
            }
            return Err(failed(error));
        }
        // Its name is taken by the rename; nothing is left to delete.
        let _ = temporary.keep();
        // Not every file system lets folders be synced; the files are.
        let _ = File::open(&parent).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Whether a folder holds a checkpoint and nothing that could be lost besides.
fn is_checkpoint(folder: &Path) -> Result<bool, ConvertError> {
    let (mut config, mut weights) = (false, false);
    for entry in fs::read_dir(folder).map_err(ConvertError::file(folder, "listed"))? {
        let entry = entry.map_err(ConvertError::file(folder, "listed"))?;
        if entry.file_type().map_err(ConvertError::file(folder, "listed"))?.is_dir() {
            return Ok(false);
        }
        let name = entry.file_name();
        config |= name == "config.json";
        weights |= Path::new(&name).extension().is_some_and(|extension| extension == "safetensors");
    }
    Ok(config && weights)
}

fn same_or_inside(source: &Path, output: &Path) -> bool {
    match (fs::canonicalize(source), fs::canonicalize(output)) {
        (Ok(source), Ok(output)) => source.starts_with(output),
        _ => false,
    }
}

/// Bytes that this user may still write to a folder's file system.
fn available_bytes(folder: &Path) -> Result<u64, ConvertError> {
    let found =
        rustix::fs::statvfs(folder).map_err(|error| ConvertError::file(folder, "looked at")(error.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn check(output: &Path, force: bool) -> Result<OutputPlace, ConvertError> {
        OutputPlace::check(output, Path::new("/absent"), force)
    }

    #[test]
    fn a_new_folder_appears_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let output = root.path().join("new");
        let folder = check(&output, false).unwrap().start(10).unwrap();
        folder.write("config.json", b"{}").unwrap();
        assert!(!output.exists());
        drop(folder);
        assert!(listed(root.path()).is_empty());
        let folder = check(&output, false).unwrap().start(10).unwrap();
        folder.write("config.json", b"{}").unwrap();
        folder.finish().unwrap();
        assert_eq!(listed(root.path()), ["new"]);
        assert_eq!(listed(&output), ["config.json"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let plain = root.path().join("plain");
        fs::create_dir(&plain).unwrap();
        assert_eq!(mode(&output), mode(&plain), "as any folder of this user");
    }

    #[test]
    fn what_exists_is_replaced_only_by_force_and_only_a_checkpoint() {
        let root = tempfile::tempdir().unwrap();
        let output = root.path().join("old");
        fs::create_dir(&output).unwrap();
        let refused = |force| check(&output, force).unwrap_err().to_string();
        assert!(refused(false).contains("it exists already"));
        assert!(refused(true).contains("no checkpoint folder"));
        fs::write(output.join("config.json"), "{}").unwrap();
        assert!(refused(true).contains("no checkpoint folder"));
        fs::write(output.join("model.safetensors"), "x").unwrap();
        fs::create_dir(output.join("photos")).unwrap();
        assert!(refused(true).contains("no checkpoint folder"), "a folder inside may hold anything");
        fs::remove_dir(output.join("photos")).unwrap();
        assert!(refused(false).contains("it exists already"));
        let folder = check(&output, true).unwrap().start(10).unwrap();
        folder.write("new.json", b"{}").unwrap();
        folder.finish().unwrap();
        assert_eq!(listed(&output), ["new.json"]);
        assert_eq!(listed(root.path()), ["old"], "the old one is gone and nothing else is left");
    }

    #[test]
    fn the_source_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "model.gguf"] {
            fs::write(root.path().join(name), "{}").unwrap();
        }
        for source in [root.path().to_owned(), root.path().join("model.gguf")] {
            let error = OutputPlace::check(root.path(), &source, true).unwrap_err().to_string();
            assert!(error.contains("holds the source"), "{error}");
        }
    }

    #[test]
    fn places_that_cannot_be_are_refused_before_anything_is_read() {
        let root = tempfile::tempdir().unwrap();
        let refused = |path: &Path| check(path, true).unwrap_err().to_string();
        assert!(refused(Path::new("/")).contains("no name of a new folder"));
        assert!(refused(&root.path().join("..")).contains("no name of a new folder"));
        assert!(refused(&root.path().join("a/b")).contains("make that first"));
        fs::write(root.path().join("file"), "x").unwrap();
        assert!(refused(&root.path().join("file")).contains("no checkpoint folder"));
    }

    #[test]
    fn a_disk_without_room_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let place = check(&root.path().join("new"), false).unwrap();
        let error = place.start(u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("are free there"), "{error}");
        assert!(listed(root.path()).is_empty());
    }

    #[test]
    fn what_appears_meanwhile_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let output = root.path().join("new");
        let folder = check(&output, false).unwrap().start(10).unwrap();
        fs::create_dir(&output).unwrap();
        assert!(folder.finish().unwrap_err().to_string().contains("meanwhile"));
        assert_eq!(listed(root.path()), ["new"]);
    }
}
