//! Traces of system calls: what a command really did.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{Invocation, Outcome, Sandbox, program};

/// What a command and its children asked the system for.
pub(crate) struct Trace {
    pub(crate) outcome: Outcome,
    calls: Vec<String>,
}

/// Runs the program under `strace`. Every test that proves an absence has a control that shows the presence.
pub(crate) fn traced(sandbox: &Sandbox, change: impl FnOnce(Invocation) -> Invocation) -> Trace {
    let log = sandbox.path().join("trace.txt");
    let calls = "open,openat,openat2,creat,mmap,mprotect,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,\
                 symlink,symlinkat,socket,connect,bind,execve";
    // -y writes the path behind each descriptor; without -v the arguments are short enough to stay on one line.
    let invocation = sandbox.invoke(
        Path::new("strace"),
        ["-f", "-y", "-s", "4096", "-e", &format!("trace={calls}"), "-e", "signal=none", "-o"]
            .map(String::from),
    );
    let command = change(invocation.arg(&log).arg("--").arg(program()));
    assert!(
        std::process::Command::new("strace").arg("-V").output().is_ok(),
        "these tests need strace; install it (Debian: apt-get install strace)"
    );
    let outcome = command.run();
    let text =
        std::fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if !text.contains("execve(") {
        outcome.fail("strace traced nothing; is tracing allowed here (ptrace)?");
    }
    Trace { outcome, calls: text.lines().map(str::to_owned).collect() }
}

impl Trace {
    fn of(&self, name: &str) -> impl Iterator<Item = &str> {
        let start = format!("{name}(");
        // Each line begins with the number of the process.
        self.calls.iter().filter_map(move |line| {
            let call = line.split_once(' ')?.1.trim_start();
            call.strip_prefix(&start)
        })
    }

    /// Files that were mapped for execution.
    pub(crate) fn executable_files(&self) -> Vec<PathBuf> {
        let mapped = self.of("mmap").filter(|call| call.contains("PROT_EXEC"));
        mapped.filter_map(described_path).collect()
    }

    /// Paths that were opened, or that somebody tried to open.
    pub(crate) fn opened(&self) -> Vec<PathBuf> {
        ["open", "openat", "openat2", "creat"]
            .iter()
            .flat_map(|name| self.of(name))
            .filter_map(quoted_path)
            .collect()
    }

    /// Calls that make, rename or remove something in the file system.
    pub(crate) fn changes_to_files(&self) -> Vec<String> {
        let names = [
            "mkdir",
            "mkdirat",
            "rename",
            "renameat",
            "renameat2",
            "unlink",
            "unlinkat",
            "symlink",
            "symlinkat",
        ];
        let mut changes: Vec<String> =
            names.iter().flat_map(|name| self.of(name).map(move |call| format!("{name}({call}"))).collect();
        let creating = ["open", "openat", "openat2"].iter().flat_map(|name| self.of(name));
        changes.extend(
            creating.filter(|call| call.contains("O_CREAT") || call.contains("O_TMPFILE")).map(str::to_owned),
        );
        changes.extend(self.of("creat").map(str::to_owned));
        changes
    }

    /// Sockets of any kind but those between processes of this machine.
    pub(crate) fn network(&self) -> Vec<&str> {
        self.of("socket").filter(|call| !call.starts_with("AF_UNIX")).collect()
    }

    /// Programs that were started, the first one included.
    pub(crate) fn programs(&self) -> Vec<PathBuf> {
        self.of("execve").filter_map(quoted_path).collect()
    }

    /// Fails when a driver's device node was opened or even tried. The folder of nodes may be listed.
    #[track_caller]
    pub(crate) fn touched_no_device(&self) {
        let touched = self.devices();
        assert!(touched.iter().all(|path| path == Path::new("/dev/dri")), "opened {touched:?}");
    }

    /// Fails when devices were as much as looked for.
    #[track_caller]
    pub(crate) fn looked_for_no_device(&self) {
        assert_eq!(self.devices(), Vec::<PathBuf>::new());
    }

    fn devices(&self) -> Vec<PathBuf> {
        let nodes = ["/dev/kfd", "/dev/dri", "/dev/nvidia", "/dev/accel"];
        let is_device = |path: &PathBuf| {
            nodes.iter().any(|node| path.as_os_str().as_bytes().starts_with(node.as_bytes()))
        };
        self.opened().into_iter().filter(is_device).collect()
    }
}

/// The path that `-y` puts behind a descriptor: `3</path>`.
fn described_path(call: &str) -> Option<PathBuf> {
    let (_, rest) = call.split_once("</")?;
    Some(Path::new("/").join(rest.split_once('>')?.0))
}

/// The first text in quotes.
fn quoted_path(call: &str) -> Option<PathBuf> {
    let (_, rest) = call.split_once('"')?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}
