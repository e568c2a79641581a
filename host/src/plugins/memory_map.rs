//! What is mapped into this process, as `/proc/self/maps` tells.
//!
//! Used to prove that the file that was opened is the file that was checked, and to record which run-time libraries
//! a plugin really uses. On systems without that file nothing is known, and nothing is claimed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Mapped for execution.
    pub executable: bool,
    /// Device, as the kernel writes it here; on some file systems not what `stat` says.
    pub device: String,
    /// Inode.
    pub inode: u64,
    /// The file; with ` (deleted)` at its end when it is gone.
    pub path: PathBuf,
}

impl Mapping {
    /// Whether both map the same file.
    pub fn same_file(&self, other: &Self) -> bool {
        self.device == other.device && self.inode == other.inode
    }
}

/// The file mappings of this process; `None` where the system does not tell.
pub fn current() -> Option<Vec<Mapping>> {
    let text = std::fs::read("/proc/self/maps").ok()?;
    Some(parse(&text))
}

/// Every mapped file whose name begins with one of these library names, each once, in order of path: for
/// `libamdhip64.so.7` also `libamdhip64.so.7.2.0` counts.
pub fn mapped_files(mappings: &[Mapping], names: &[&str]) -> Vec<PathBuf> {
    let wanted = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        names.iter().any(|wanted| {
            name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut paths: Vec<_> =
        mappings.iter().map(|mapping| &mapping.path).filter(|path| wanted(path)).cloned().collect();
    paths.sort();
    paths.dedup();
    paths
}

fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `7f00-7f10 r-xp 00000000 08:01 1234   /usr/lib/x.so`; lines without a file have inode 0.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || -> Option<String> {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let end =
            rest[start..].iter().position(|byte| *byte == b' ').map_or(rest.len(), |length| start + length);
        let field = String::from_utf8(rest[start..end].to_vec()).ok()?;
        rest = &rest[end..];
        Some(field)
    };
    let (range, flags, _offset, device, inode) = (field()?, field()?, field()?, field()?, field()?);
    let path = rest.iter().position(|byte| *byte != b' ').map(|start| rest[start..].to_vec())?;
    let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
    let (start, end) = range.split_once('-')?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        executable: flags.contains('x'),
        device,
        inode,
        path: OsString::from_vec(unescape(&path)).into(),
    })
}

/// The kernel writes a line break in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        if path[at..].starts_with(b"\\012") {
            plain.push(b'\n');
            at += 4;
        } else {
            plain.push(path[at]);
            at += 1;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a program
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000001000-7f0000002000 r--p 00000000 fd:00 42                         /opt/rocm/lib/libamdhip64.so.7.2.0
7f0000002000-7f0000003000 r-xp 00001000 fd:00 42                         /opt/rocm/lib/libamdhip64.so.7.2.0
7f0000003000-7f0000004000 r--p 00000000 fd:00 43                         /opt/rocm/lib/libamdhip64.so.70
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
garbage
";

    #[test]
    fn only_files_are_kept_and_paths_may_hold_spaces() {
        let mappings = parse(TEXT);
        assert_eq!(mappings.len(), 4);
        assert_eq!(mappings[0].path, Path::new("/usr/bin/a program"));
        assert!(mappings[0].executable && !mappings[1].executable);
        assert!(mappings[1].same_file(&mappings[2]) && !mappings[1].same_file(&mappings[3]));
    }

    #[test]
    fn a_library_is_found_by_its_versioned_name_and_not_by_a_longer_number() {
        let found = mapped_files(&parse(TEXT), &["libamdhip64.so.7"]);
        assert_eq!(found, [Path::new("/opt/rocm/lib/libamdhip64.so.7.2.0")]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_running_program_is_mapped_for_execution() {
        let program = std::env::current_exe().unwrap();
        let mappings = current().unwrap();
        assert!(mappings.iter().any(|mapping| mapping.executable && mapping.path == program));
    }
}
