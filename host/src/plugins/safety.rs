//! Unsafe places: could somebody else change this file, or a folder above it?
//!
//! The rules are a pure function over what `stat` says ([`judge`]); [`Checker`] walks real paths, follows links one
//! by one, and looks at each component once. Nothing in this file opens a file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::lifecycle::{Code, Finding, show_path};

/// Most links that one path may go through; the kernel's own limit.
const LINKS_MAX: usize = 40;

/// What a path component is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The file itself: a library, a sidecar, a configuration file.
    File,
    /// The folder that holds it. A stranger who can write here can add files.
    Folder,
    /// A folder above that.
    Parent,
    /// A symbolic link on the way. Its mode means nothing; its owner can point it elsewhere.
    Link,
}

/// What `stat` says about one component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Permission bits, with the sticky bit (`0o1000`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Who is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Effective user.
    pub uid: u32,
    /// The user's own primary group.
    pub gid: u32,
    /// The process has more rights than the user who started it.
    pub elevated: bool,
}

impl Process {
    /// This process.
    pub fn current(elevated: bool) -> Self {
        // SAFETY: both calls cannot fail and have no preconditions.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Self { uid, gid, elevated }
    }
}

/// The answer of [`judge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nobody else can change it.
    Safe,
    /// Accepted, and worth a line.
    Questionable(String),
    /// Refused: what was wanted and what was found.
    Unsafe {
        /// What would have been right.
        wanted: String,
        /// Owner or mode found.
        found: String,
    },
}

/// Whether a component in `role` with these facts can be trusted by `process`.
pub fn judge(role: Role, facts: Facts, process: Process) -> Judgement {
    // With borrowed rights the starting user's own files are a stranger's files.
    let trusted_owner = facts.uid == 0 || (facts.uid == process.uid && !process.elevated);
    if !trusted_owner {
        let wanted = if process.elevated || process.uid == 0 {
            "owner root".to_owned()
        } else {
            format!("owner root or user {}", process.uid)
        };
        return Judgement::Unsafe {
            wanted,
            found: format!("owner {}, mode {:04o}", facts.uid, facts.mode & 0o7777),
        };
    }
    if role == Role::Link {
        return Judgement::Safe;
    }
    let found = format!("mode {:04o}, owner {}, group {}", facts.mode & 0o7777, facts.uid, facts.gid);
    let sticky_parent = role == Role::Parent && facts.mode & 0o1000 != 0;
    if facts.mode & 0o002 != 0 && !sticky_parent {
        return Judgement::Unsafe { wanted: "no write permission for others".to_owned(), found };
    }
    if facts.mode & 0o020 != 0 && !sticky_parent {
        let privileged = process.uid == 0 || process.elevated;
        if privileged && facts.gid != 0 {
            return Judgement::Unsafe {
                wanted: "no write permission for a group other than 0".to_owned(),
                found,
            };
        }
        if !privileged && facts.gid != process.gid {
            return Judgement::Questionable(format!("group {} may write here ({found})", facts.gid));
        }
    }
    Judgement::Safe
}

/// Checks paths, component by component, remembering what it saw.
#[derive(Debug)]
pub struct Checker {
    process: Process,
    allowed: Vec<PathBuf>,
    seen: RefCell<HashMap<PathBuf, Result<Entry, String>>>,
}

#[derive(Clone, Debug)]
struct Entry {
    facts: Facts,
    link: Option<PathBuf>,
    regular: bool,
    folder: bool,
}

/// What was found about a path that may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The path with every link resolved.
    pub resolved: PathBuf,
    /// Warnings about it.
    pub warnings: Vec<Finding>,
}

impl Checker {
    /// A checker for `process` that excuses nothing.
    pub fn new(process: Process) -> Self {
        Self { process, allowed: Vec::new(), seen: RefCell::default() }
    }

    /// Excuses these exact folders, and the files directly in them (`[policy] allow_unsafe_paths`).
    pub fn allow(&mut self, folders: impl IntoIterator<Item = PathBuf>) {
        self.allowed.extend(folders);
    }

    /// The process the checks are made for.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Checks a file that must be a regular one, its folder, and every folder above, through every link.
    ///
    /// # Errors
    /// A finding `unsafe-path` that names the first failing component with its mode and owner, or the one that cannot
    /// be looked at.
    pub fn check_file(&self, path: &Path) -> Result<Checked, Box<Finding>> {
        self.check(path, true)
    }

    /// Checks a folder and every folder above it.
    ///
    /// # Errors
    /// As [`Self::check_file`].
    pub fn check_folder(&self, path: &Path) -> Result<Checked, Box<Finding>> {
        self.check(path, false)
    }

    fn check(&self, path: &Path, is_file: bool) -> Result<Checked, Box<Finding>> {
        let components = self.walk(path)?;
        let (resolved, last) = match components.iter().rev().find(|(_, entry)| entry.link.is_none()) {
            Some((path, entry)) => (path.clone(), entry.clone()),
            None => return Err(unreadable(path, "it has no components")),
        };
        if is_file && !last.regular {
            return Err(Box::new(
                Finding::error(Code::UnsafePath, "not a regular file")
                    .at(path)
                    .fix("replace it with the plugin's own file"),
            ));
        }
        if !is_file && !last.folder {
            return Err(unreadable(path, "not a folder"));
        }
        let holder = if is_file { resolved.parent() } else { Some(resolved.as_path()) };
        let mut warnings = Vec::new();
        for (component, entry) in &components {
            let role = if entry.link.is_some() {
                Role::Link
            } else if is_file && *component == resolved {
                Role::File
            } else if Some(component.as_path()) == holder
                || (is_file && Some(component.as_path()) == path.parent())
            {
                Role::Folder
            } else {
                Role::Parent
            };
            if self.is_allowed(component, entry) {
                continue;
            }
            match judge(role, entry.facts, self.process) {
                Judgement::Safe => {}
                Judgement::Questionable(what) => {
                    warnings.push(Finding::warning(Code::UnsafePath, what).at(component))
                }
                Judgement::Unsafe { wanted, found } => {
                    let line_folder = if entry.folder {
                        component.as_path()
                    } else {
                        component.parent().unwrap_or(component)
                    };
                    let mut finding = Finding::error(Code::UnsafePath, "somebody else could change this path")
                        .at(path)
                        .wanted(wanted)
                        .found(found)
                        .fix(format!(
                            "change owner or mode, or put `[policy] allow_unsafe_paths = [\"{}\"]` into plugins.toml",
                            show_path(line_folder)
                        ));
                    if component != path {
                        finding.what = format!("somebody else could change {}", show_path(component));
                    }
                    return Err(Box::new(finding));
                }
            }
        }
        Ok(Checked { resolved, warnings })
    }

    fn is_allowed(&self, component: &Path, entry: &Entry) -> bool {
        let folder = if entry.folder { Some(component) } else { component.parent() };
        folder.is_some_and(|folder| self.allowed.iter().any(|allowed| allowed == folder))
    }

    /// Every component from the root down, links included, in the order the kernel would visit them.
    fn walk(&self, path: &Path) -> Result<Vec<(PathBuf, Entry)>, Box<Finding>> {
        if !path.is_absolute() {
            return Err(unreadable(path, "not an absolute path"));
        }
        let mut pending: Vec<OsString> = Vec::new();
        push_reversed(&mut pending, path);
        let mut at = PathBuf::from("/");
        let mut visited = vec![(at.clone(), self.entry(&at, path)?)];
        let mut links = 0;
        while let Some(name) = pending.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let entry = self.entry(&next, path)?;
            if let Some(target) = &entry.link {
                links += 1;
                if links > LINKS_MAX {
                    return Err(unreadable(path, "too many links"));
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                push_reversed(&mut pending, target);
            } else {
                at = next.clone();
            }
            visited.push((next, entry));
        }
        Ok(visited)
    }

    fn entry(&self, component: &Path, whole: &Path) -> Result<Entry, Box<Finding>> {
        if let Some(known) = self.seen.borrow().get(component) {
            return known.clone().map_err(|reason| unreadable(whole, &reason));
        }
        let looked = look(component);
        self.seen.borrow_mut().insert(component.to_path_buf(), looked.clone());
        looked.map_err(|reason| unreadable(whole, &reason))
    }
}

fn look(component: &Path) -> Result<Entry, String> {
    let describe = |error: std::io::Error| format!("{}: {error}", show_path(component));
    let metadata = std::fs::symlink_metadata(component).map_err(describe)?;
    let kind = metadata.file_type();
    let link = if kind.is_symlink() { Some(std::fs::read_link(component).map_err(describe)?) } else { None };
    Ok(Entry {
        facts: Facts { mode: metadata.mode(), uid: metadata.uid(), gid: metadata.gid() },
        link,
        regular: kind.is_file(),
        folder: kind.is_dir(),
    })
}

fn push_reversed(pending: &mut Vec<OsString>, path: &Path) {
    let names: Vec<_> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect();
    pending.extend(names.into_iter().rev());
}

fn unreadable(path: &Path, reason: &str) -> Box<Finding> {
    Box::new(Finding::error(Code::UnsafePath, format!("cannot be looked at: {reason}")).at(path))
}

/// Whether a file name is one plain component: no separator, no `..`, no NUL.
pub fn is_bare_file_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && !name.as_bytes().iter().any(|byte| matches!(byte, b'/' | b'\\' | 0))
        && std::ffi::OsStr::new(name).as_bytes().len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    const USER: Process = Process { uid: 1000, gid: 1000, elevated: false };
    const ROOT: Process = Process { uid: 0, gid: 0, elevated: false };
    const ELEVATED: Process = Process { uid: 1000, gid: 1000, elevated: true };

    fn facts(mode: u32, uid: u32, gid: u32) -> Facts {
        Facts { mode, uid, gid }
    }

    fn is_unsafe(role: Role, facts: Facts, process: Process) -> bool {
        matches!(judge(role, facts, process), Judgement::Unsafe { .. })
    }

    #[test]
    fn only_root_and_the_running_user_may_own_a_component() {
        for role in [Role::File, Role::Folder, Role::Parent, Role::Link] {
            assert_eq!(judge(role, facts(0o755, 0, 0), USER), Judgement::Safe);
            assert_eq!(judge(role, facts(0o755, 1000, 1000), USER), Judgement::Safe);
            assert!(is_unsafe(role, facts(0o755, 1001, 1001), USER));
            assert!(is_unsafe(role, facts(0o755, 1000, 1000), ROOT));
            assert!(is_unsafe(role, facts(0o755, 1000, 1000), ELEVATED), "the starting user is a stranger");
            assert_eq!(judge(role, facts(0o755, 0, 0), ELEVATED), Judgement::Safe);
        }
    }

    #[test]
    fn the_sticky_bit_excuses_a_parent_and_nothing_else() {
        assert_eq!(judge(Role::Parent, facts(0o1777, 0, 0), USER), Judgement::Safe);
        assert!(is_unsafe(Role::Folder, facts(0o1777, 0, 0), USER));
        assert!(is_unsafe(Role::File, facts(0o1777, 0, 0), USER));
        assert!(is_unsafe(Role::Parent, facts(0o777, 0, 0), USER));
        assert_eq!(
            judge(Role::Link, facts(0o777, 0, 0), USER),
            Judgement::Safe,
            "a link's mode means nothing"
        );
    }

    #[test]
    fn group_write_depends_on_who_runs_and_which_group() {
        assert_eq!(judge(Role::Folder, facts(0o775, 1000, 1000), USER), Judgement::Safe, "umask 002");
        assert!(matches!(judge(Role::Folder, facts(0o775, 1000, 50), USER), Judgement::Questionable(_)));
        assert!(is_unsafe(Role::Folder, facts(0o775, 0, 50), ROOT));
        assert!(is_unsafe(Role::Folder, facts(0o775, 0, 50), ELEVATED));
        assert_eq!(judge(Role::Folder, facts(0o775, 0, 0), ROOT), Judgement::Safe);
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn checker() -> Checker {
        Checker::new(Process::current(false))
    }

    #[test]
    fn a_world_writable_folder_is_refused_and_the_line_that_permits_it_works() {
        let folder = tempfile::tempdir().unwrap();
        let plugins = folder.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        let file = plugins.join("a.so");
        fs::write(&file, "x").unwrap();
        checker().check_file(&file).unwrap();
        mode(&plugins, 0o1777);
        let finding = checker().check_file(&file).unwrap_err();
        assert_eq!(finding.code, Code::UnsafePath);
        assert!(finding.what.contains("plugins"), "{finding}");
        assert!(finding.found.as_deref().unwrap().contains("mode 1777"), "{finding}");
        let line = format!("allow_unsafe_paths = [\"{}\"]", plugins.display());
        assert!(finding.fix.as_deref().unwrap().contains(&line), "{finding}");

        let mut allowing = checker();
        allowing.allow([plugins.clone()]);
        allowing.check_file(&file).unwrap();
        let mut other = checker();
        other.allow([folder.path().to_path_buf()]);
        other.check_file(&file).unwrap_err();
    }

    #[test]
    fn a_world_writable_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.so");
        fs::write(&file, "x").unwrap();
        mode(&file, 0o666);
        assert_eq!(checker().check_file(&file).unwrap_err().code, Code::UnsafePath);
    }

    #[test]
    fn a_link_is_followed_and_its_targets_folder_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let (plugins, elsewhere) = (folder.path().join("plugins"), folder.path().join("elsewhere"));
        fs::create_dir(&plugins).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("real.so"), "x").unwrap();
        symlink("../elsewhere/real.so", plugins.join("a.so")).unwrap();
        let checked = checker().check_file(&plugins.join("a.so")).unwrap();
        assert_eq!(checked.resolved, elsewhere.join("real.so").canonicalize().unwrap());
        mode(&elsewhere, 0o777);
        assert_eq!(checker().check_file(&plugins.join("a.so")).unwrap_err().code, Code::UnsafePath);
    }

    #[test]
    fn loops_missing_files_and_other_kinds_are_findings() {
        let folder = tempfile::tempdir().unwrap();
        let looped = folder.path().join("loop");
        symlink("loop", &looped).unwrap();
        assert!(checker().check_file(&looped).unwrap_err().what.contains("too many links"));
        assert_eq!(checker().check_file(&folder.path().join("none")).unwrap_err().code, Code::UnsafePath);
        assert_eq!(checker().check_file(folder.path()).unwrap_err().what, "not a regular file");
        assert_eq!(checker().check_file(Path::new("/dev/null")).unwrap_err().what, "not a regular file");
        assert_eq!(checker().check_file(Path::new("relative")).unwrap_err().code, Code::UnsafePath);
    }

    #[test]
    fn a_bare_file_name_has_no_way_out_of_its_folder() {
        assert!(is_bare_file_name("libtensorfold_backend_cpu.so"));
        for name in ["", ".", "..", "a/b", "/a", "a\\b", "a\0b"] {
            assert!(!is_bare_file_name(name), "{name:?}");
        }
    }
}
