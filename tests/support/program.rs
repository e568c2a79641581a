//! Runs the program in a sandbox.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Far more than anything here takes, so that a hang becomes a failure and not a stuck test run.
const LIMIT: Duration = Duration::from_secs(120);

/// A home of its own for each test, and an empty folder to stand in.
pub(crate) struct Sandbox {
    folder: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        for name in ["home", "here", "tmp", "plugins"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        // In place of the workspace's own file: only the plugins that a test names are there.
        std::fs::write(folder.path().join("plugins.toml"), "").unwrap();
        Sandbox { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// The folder that the program stands in.
    pub(crate) fn here(&self) -> PathBuf {
        self.path().join("here")
    }

    /// A folder for plugins that nothing searches by itself.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.path().join("plugins")
    }

    /// A new folder.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// The user's data folder for plugins, made on the first call.
    pub(crate) fn user_plugins(&self) -> PathBuf {
        self.folder("home/.local/share/tensorfold/backends0")
    }

    /// A file with this content.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The program with arguments, to be run or changed further.
    pub(crate) fn tensorfold<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Invocation {
        self.invoke(super::program(), arguments)
    }

    /// Any program, in the same surroundings.
    pub(crate) fn invoke<A: AsRef<OsStr>>(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Invocation {
        let mut command = Command::new(program);
        command.args(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        command.env_clear().current_dir(self.here()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
        command.env("HOME", self.home());
        command.env("TMPDIR", self.path().join("tmp"));
        command.env("HF_HUB_OFFLINE", "1");
        command.env("TENSORFOLD_PLUGINS_FILE", self.path().join("plugins.toml"));
        with_signals_at_their_defaults(&mut command);
        Invocation { command, limit: LIMIT }
    }

    /// Everything below the home and the folder the program stands in, sorted.
    pub(crate) fn traces_left(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for folder in [self.home(), self.here()] {
            list(&folder, &mut found);
        }
        found.sort();
        found
    }
}

/// A shell that runs the tests in the background, or `nohup`, has signals ignored, and a program inherits that and
/// rightly leaves it so. What these tests show is what happens in a terminal.
fn with_signals_at_their_defaults(command: &mut Command) {
    let defaults = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: `signal` takes no pointer here and may be called between fork and exec.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and calls nothing but `signal`, which is safe in a handler.
    unsafe { command.pre_exec(defaults) };
}

fn list(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, found);
        }
        found.push(path);
    }
}

/// A program about to be run.
pub(crate) struct Invocation {
    command: Command,
    limit: Duration,
}

impl Invocation {
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Invocation {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Invocation {
        self.command.args(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Invocation {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Invocation {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn in_folder(mut self, folder: &Path) -> Invocation {
        self.command.current_dir(folder);
        self
    }

    /// The command itself, for what this type does not cover.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// The command's program and arguments, for messages.
    fn words(&self) -> Vec<OsString> {
        std::iter::once(self.command.get_program())
            .chain(self.command.get_args())
            .map(OsStr::to_owned)
            .collect()
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Outcome {
        let words = self.words();
        // A group of its own, so that what a plugin leaves behind ends with it when time is up.
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let start = Instant::now();
        let mut child =
            self.command.spawn().unwrap_or_else(|error| panic!("{words:?} does not start: {error}"));
        let group = i32::try_from(child.id()).unwrap();
        let stdout = read_all(child.stdout.take().unwrap());
        let stderr = read_all(child.stderr.take().unwrap());
        let (sender, ended) = channel();
        let waiting = std::thread::spawn(move || {
            let status = child.wait();
            let _ = sender.send((status, start.elapsed()));
        });
        let end = ended.recv_timeout(self.limit);
        if end.is_err() {
            // SAFETY: signals the process group that this function made.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        waiting.join().unwrap();
        let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
        let Ok((status, elapsed)) = end else {
            panic!("{words:?} did not end within {:?}\nstdout:\n{stdout}\nstderr:\n{stderr}", self.limit)
        };
        Outcome { words, status: status.unwrap(), stdout, stderr, elapsed }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    words: Vec<OsString>,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

impl Outcome {
    /// Fails the test with everything that is known.
    #[track_caller]
    pub(crate) fn fail(&self, why: impl Debug) -> ! {
        let Outcome { words, status, stdout, stderr, .. } = self;
        panic!("{why:?}\n{words:?}\n{status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }

    /// Ended by itself, and never by a signal, with this code.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Outcome {
        if let Some(signal) = self.status.signal() {
            self.fail(format!("ended by signal {signal}, wanted exit code {code}"));
        }
        if self.status.code() != Some(code) {
            self.fail(format!("wanted exit code {code}"));
        }
        self
    }

    /// Said exactly this on stderr and nothing on stdout.
    #[track_caller]
    pub(crate) fn says_only(&self, line: &str) -> &Outcome {
        if self.stderr != format!("{line}\n") || !self.stdout.is_empty() {
            self.fail(format!("wanted only the line: {line}"));
        }
        self
    }

    /// Was refused: exit code 1, one line on stderr, with the program's name before it. Gives the line without it.
    #[track_caller]
    pub(crate) fn refusal(&self) -> &str {
        self.exits(1);
        match self.stderr.strip_suffix('\n').and_then(|text| text.strip_prefix("tensorfold: ")) {
            Some(line) if !line.contains('\n') && !line.is_empty() && is_plain(line) => line,
            _ => self.fail("wanted one plain line `tensorfold: MESSAGE` on stderr"),
        }
    }

    /// Was refused with a line that holds all of these.
    #[track_caller]
    pub(crate) fn refused_with(&self, parts: &[&str]) -> &Outcome {
        let line = self.refusal();
        if let Some(missing) = parts.iter().find(|part| !line.contains(**part)) {
            self.fail(format!("the message lacks {missing:?}"));
        }
        self
    }

    /// Ended well with a JSON document on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        self.exits(0);
        self.document()
    }

    /// The JSON document on stdout, however it ended.
    #[track_caller]
    pub(crate) fn document(&self) -> serde_json::Value {
        match serde_json::from_str(&self.stdout) {
            Ok(document) => document,
            Err(error) => self.fail(format!("no JSON on stdout: {error}")),
        }
    }
}

/// Nothing that could move a terminal's cursor or paint.
fn is_plain(line: &str) -> bool {
    !line.chars().any(char::is_control)
}
