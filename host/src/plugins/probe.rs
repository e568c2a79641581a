//! Trying a plugin in a child process, so that a crash, a hang or an `exit` costs nothing but an answer.
//!
//! The child is this very executable with a hidden verb. It opens one plugin, verifies it, initialises it, lists its
//! devices, shuts it down, and prints one JSON document. The parent keeps what the child writes, ends it and all its
//! children when time is up, and allows no core files.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorfold_plugin_api::device::DeviceInfo;
use tensorfold_plugin_api::host::InitOptions;

use super::attest::Layout;
use super::catalog::Catalog;
use super::environment::Environment;
use super::inspect::Inspection;
use super::lifecycle::{Code, Finding, State, one_line};
use super::load;
use super::open;
use super::search::SearchOptions;
use super::verdicts::Verdict;

/// How long a probe may take.
pub const PROBE_LIMIT: Duration = Duration::from_secs(30);
/// Identifies the child's document.
pub const PROBE_SCHEMA: &str = "tensorfold.plugins.probe/1";
/// What is kept of the child's standard error, from its end, in bytes.
const STDERR_MAX: usize = 64 << 10;
/// Largest document, in bytes.
const STDOUT_MAX: usize = 4 << 20;
/// The child says what it is about to do with lines that begin so.
const STAGE_MARK: &str = "tensorfold-probe: ";

/// A device that the plugin listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbedDevice {
    /// `cpu`, `gpu`, `npu` or `accel`.
    pub kind: String,
    /// Name for people.
    pub name: String,
    /// PCI address, or empty.
    pub pci_address: String,
    /// The vendor's id, or empty.
    pub uuid: String,
    /// Position in the plugin's list.
    pub index: u32,
    /// Architecture, as manifests spell it.
    pub arch: String,
    /// All memory in bytes, when known.
    pub memory_bytes: Option<u64>,
    /// Free memory in bytes, when known.
    pub free_memory_bytes: Option<u64>,
    /// The driver's version, or empty.
    pub driver: String,
    /// Whether the plugin can use it.
    pub usable: bool,
    /// Why not.
    pub reason: String,
}

/// A finding of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbedFinding {
    /// The code's name.
    pub code: String,
    /// What is the matter.
    pub what: String,
    /// What would have been right.
    #[serde(default)]
    pub wanted: Option<String>,
    /// What is there.
    #[serde(default)]
    pub found: Option<String>,
    /// What to do.
    #[serde(default)]
    pub fix: Option<String>,
    /// An error, and not a warning.
    pub error: bool,
}

/// The child's document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// [`PROBE_SCHEMA`].
    pub schema: String,
    /// The state that was reached.
    pub state: String,
    /// `attested` or `declared`, once verified.
    pub layout: Option<String>,
    /// What tells builds apart.
    pub build_id: Option<String>,
    /// What the plugin listed.
    pub devices: Vec<ProbedDevice>,
    /// Run-time libraries that were mapped.
    pub runtimes: Vec<PathBuf>,
    /// What was found.
    pub findings: Vec<ProbedFinding>,
    /// Time from opening to the device list, in milliseconds.
    pub milliseconds: u64,
}

impl ProbeReport {
    fn new() -> Self {
        Self {
            schema: PROBE_SCHEMA.into(),
            state: State::Admitted.as_str().into(),
            layout: None,
            build_id: None,
            devices: Vec::new(),
            runtimes: Vec::new(),
            findings: Vec::new(),
            milliseconds: 0,
        }
    }

    /// The findings as the host's own.
    pub fn findings(&self) -> Vec<Finding> {
        self.findings
            .iter()
            .map(|probed| {
                let code = Code::ALL.iter().find(|code| code.as_str() == probed.code).copied();
                let code = code.unwrap_or(Code::InitFailed);
                let mut finding = if probed.error {
                    Finding::error(code, &probed.what)
                } else {
                    Finding::warning(code, &probed.what)
                };
                finding.wanted.clone_from(&probed.wanted);
                finding.found.clone_from(&probed.found);
                finding.fix.clone_from(&probed.fix);
                finding
            })
            .collect()
    }
}

/// How a probe ended, with what the child wrote.
#[derive(Clone, Debug)]
pub struct Probe {
    /// How it ended.
    pub verdict: Verdict,
    /// The end of the child's standard error, without the host's own lines.
    pub stderr: String,
    /// The stage that the child was in.
    pub stage: State,
}

impl Probe {
    /// What the probe says about the plugin.
    pub fn findings(&self) -> Vec<Finding> {
        let what_failed = |code: Code, what: &str| {
            let finding = Finding::error(code, what);
            match self.stderr.lines().rfind(|line| !line.trim().is_empty()) {
                Some(line) => finding.found(format!("last words: {}", one_line(line))),
                None => finding,
            }
        };
        match &self.verdict {
            Verdict::Answered { report } => report.findings(),
            Verdict::Crashed { what } => {
                vec![what_failed(stage_code(self.stage), what).fix("report it to the plugin's vendor")]
            }
            Verdict::TimedOut { what, .. } => {
                let code = match self.stage {
                    State::Verified | State::Initialised => Code::InitTimeout,
                    stage => stage_code(stage),
                };
                vec![what_failed(code, what).fix("see whether the device is in use or its driver hangs")]
            }
        }
    }
}

/// The code for a child that ended while it was about to leave `stage`.
fn stage_code(stage: State) -> Code {
    match stage {
        State::Opened => Code::BadMagic,
        State::CrossChecked => Code::LayoutMismatch,
        State::Verified | State::Initialised => Code::InitFailed,
        State::Draining => Code::ShutdownFailed,
        _ => Code::DlopenFailed,
    }
}

/// The arguments with which the child finds the same plugins as the parent.
pub fn child_arguments(
    options: &SearchOptions,
    manifest: &Path,
    allow_untested: bool,
) -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<std::ffi::OsString> =
        vec!["plugins".into(), "probe-child".into(), manifest.into()];
    let mut add = |name: &str, value: &Path| arguments.extend([name.into(), value.as_os_str().to_owned()]);
    options.plugins.iter().for_each(|path| add("--plugin", path));
    options.plugin_paths.iter().for_each(|path| add("--plugin-path", path));
    options.plugins_file.iter().for_each(|path| add("--plugins-file", path));
    if allow_untested {
        arguments.push("--allow-untested-host".into());
    }
    arguments
}

/// Tries a plugin in a child process.
///
/// # Errors
/// What the system said when no child could be started: then nothing is known about the plugin.
pub fn probe(
    environment: &Environment,
    options: &SearchOptions,
    manifest: &Path,
    allow_untested: bool,
    limit: Duration,
) -> std::io::Result<Probe> {
    let executable = environment.executable.clone().unwrap_or_else(|| "/proc/self/exe".into());
    let mut command = Command::new(executable);
    command.args(child_arguments(options, manifest, allow_untested));
    run(command, limit)
}

/// Runs a child to its end or to the limit.
fn run(mut command: Command, limit: Duration) -> std::io::Result<Probe> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only two system calls are made, both async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let stdout = keep(child.stdout.take(), STDOUT_MAX, false);
    let stderr = keep(child.stderr.take(), STDERR_MAX, true);
    let status = wait(&mut child, limit)?;
    end_group(&child);
    // A grandchild in a group of its own could hold the pipes; what came by then is what counts.
    let patience = Duration::from_secs(2);
    let stdout = stdout.recv_timeout(patience).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.recv_timeout(patience).unwrap_or_default()).into_owned();
    let (stage, stderr) = split_stages(&stderr);
    let verdict = match status {
        None => Verdict::TimedOut {
            times: 1,
            what: format!("{} took longer than {} seconds", doing(stage), limit.as_secs_f32()),
        },
        Some(status) => match serde_json::from_slice::<ProbeReport>(&stdout) {
            Ok(report) if status.success() && report.schema == PROBE_SCHEMA => {
                Verdict::Answered { report: Box::new(report) }
            }
            _ => Verdict::Crashed { what: format!("{}: {}", doing(stage), ended(status)) },
        },
    };
    Ok(Probe { verdict, stderr, stage })
}

fn doing(stage: State) -> &'static str {
    match stage {
        State::Opened => "reading the descriptor",
        State::CrossChecked => "fetching the interfaces",
        State::Verified => "init",
        State::Initialised => "list_devices",
        State::Draining => "shutdown",
        _ => "opening the library",
    }
}

fn ended(status: std::process::ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the probe was ended by signal {signal}"),
        (None, Some(code)) => format!("the probe ended with status {code} and without an answer"),
        (None, None) => "the probe ended without an answer".into(),
    }
}

/// Waits for the child; `None` when time is up.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() >= limit {
            end_group(child);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause.min(limit.saturating_sub(begin.elapsed())));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Ends the child's process group: whatever the plugin started ends with it.
fn end_group(child: &Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // SAFETY: a plain system call; the group was made for this child, and a group that is gone is an error that
        // changes nothing.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// Reads a pipe to its end on a thread of its own, keeping the first or the last `most` bytes.
fn keep(pipe: Option<impl Read + Send + 'static>, most: usize, last: bool) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = [0_u8; 8192];
        if let Some(mut pipe) = pipe {
            while let Ok(length @ 1..) = pipe.read(&mut piece) {
                if last || kept.len() < most {
                    kept.extend_from_slice(&piece[..length]);
                }
                if last && kept.len() > 2 * most {
                    kept.drain(..kept.len() - most);
                }
            }
        }
        let excess = kept.len().saturating_sub(most);
        if last {
            kept.drain(..excess);
        } else {
            kept.truncate(most);
        }
        // Nobody waits any more when time was up.
        let _ = sender.send(kept);
    });
    receiver
}

/// The last stage that the child named, and the rest of what it wrote.
fn split_stages(stderr: &str) -> (State, String) {
    let mut stage = State::Admitted;
    let mut rest = String::new();
    for line in stderr.lines() {
        match line.strip_prefix(STAGE_MARK) {
            Some(name) => {
                let states = [
                    State::Opened,
                    State::CrossChecked,
                    State::Verified,
                    State::Initialised,
                    State::Draining,
                ];
                stage = states.into_iter().find(|state| state.as_str() == name).unwrap_or(stage);
            }
            None => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (stage, rest)
}

/// The child's side: tries the plugin and returns the document. Announces each stage on standard error.
pub fn run_child(catalog: &mut Catalog, index: usize) -> ProbeReport {
    let mut report = ProbeReport::new();
    let begin = Instant::now();
    let inspection = catalog.inspect(index);
    try_plugin(catalog, index, &inspection, &mut report);
    let plugin = &catalog.plugins()[index];
    report.state = plugin.life.state().as_str().into();
    report.findings = plugin
        .life
        .findings()
        .iter()
        .map(|finding| ProbedFinding {
            code: finding.code.as_str().into(),
            what: finding.what.clone(),
            wanted: finding.wanted.clone(),
            found: finding.found.clone(),
            fix: finding.fix.clone(),
            error: finding.level == super::lifecycle::Level::Error,
        })
        .collect();
    report.milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    report
}

fn try_plugin(catalog: &mut Catalog, index: usize, inspection: &Inspection, report: &mut ProbeReport) {
    let (Some(image), Some(agreement)) = (&inspection.image, &inspection.agreement) else { return };
    if catalog.plugins()[index].life.state() != State::Admitted {
        return;
    }
    let options = catalog.options_of(index);
    let reports = catalog.reports_folder();
    let host_version = catalog.host().version.to_string();
    let plugin = catalog.plugin_mut(index);
    let threads_before = threads();
    // The findings were recorded with the plugin.
    let Ok(verified) = load::open_and_verify(plugin, image, &options, reports.as_deref()) else {
        announce(plugin.life.state());
        return;
    };
    report.layout = Some(match verified.layout {
        Layout::Attested => "attested".into(),
        Layout::Declared => "declared".into(),
    });
    report.build_id = Some(verified.build_id.clone());
    announce(State::Verified);
    let init = InitOptions {
        host_version,
        agreed_abi_minor: agreement.abi.minor,
        configuration: options.into_iter().map(|(name, value)| (name, value, true)).collect(),
        log_level: tensorfold_plugin_api::abi::TF_LOG_WARN,
    };
    // The parent keeps the time.
    if load::init(plugin, &verified, init, Duration::from_secs(3600)).is_err() {
        return;
    }
    announce(State::Initialised);
    match verified.client.list_devices() {
        Ok(devices) => {
            if devices.is_empty() {
                plugin.record(Finding::error(Code::NoDevice, "the plugin sees no device"));
            }
            for device in devices {
                let fit = verified.client.fit_device(&device.identity);
                report.devices.push(probed_device(&device, fit));
            }
            if !report.devices.is_empty() && report.devices.iter().all(|device| !device.usable) {
                let reasons: Vec<&str> = report.devices.iter().map(|device| device.reason.as_str()).collect();
                plugin.record(
                    Finding::error(Code::NoDevice, "the plugin can use none of its devices")
                        .found(reasons.join("; ")),
                );
            }
        }
        Err(error) => plugin.record(
            Finding::error(Code::InitFailed, format!("list_devices: {}", one_line(&error.message)))
                .found(format!("status {}", error.status)),
        ),
    }
    if let Some(manifest) = &plugin.manifest {
        let names: Vec<&str> =
            manifest.runtimes.iter().flat_map(|runtime| runtime.soname.iter().map(String::as_str)).collect();
        report.runtimes = open::mapped_runtimes(&names);
    }
    announce(State::Draining);
    if let Err(error) = verified.client.shutdown() {
        plugin.record(Finding::warning(Code::ShutdownFailed, one_line(&error.message)));
    } else if let Some(left) = threads_left(threads_before) {
        plugin.record(
            Finding::warning(Code::ShutdownFailed, "threads of the plugin still run after shutdown")
                .wanted("none")
                .found(left.to_string()),
        );
    }
}

/// The threads of this process, when the system tells.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// How many threads the plugin has left behind, besides the host's one for control calls.
fn threads_left(before: Option<usize>) -> Option<usize> {
    let expected = before? + 1;
    let begin = Instant::now();
    loop {
        let left = threads()?.saturating_sub(expected);
        // A thread that was joined stays in the list for a moment.
        if left == 0 || begin.elapsed() > Duration::from_millis(500) {
            return (left > 0).then_some(left);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Keeps standard output for the document alone: whatever a plugin writes there from now on goes to standard error.
///
/// # Errors
/// What the system said.
pub fn keep_stdout() -> std::io::Result<std::fs::File> {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    let document = std::io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: both descriptors are open, and nothing else in this process has spoken on standard output yet.
    if unsafe { libc::dup2(std::io::stderr().as_raw_fd(), std::io::stdout().as_raw_fd()) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(document.into())
}

fn announce(state: State) {
    use std::io::Write as _;
    // Without a listener there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{STAGE_MARK}{state}");
}

fn probed_device(
    device: &DeviceInfo,
    fit: Result<tensorfold_plugin_api::device::DeviceFit, tensorfold_plugin_api::PluginError>,
) -> ProbedDevice {
    let (usable, reason) = match fit {
        Ok(fit) => (fit.reasons == 0, one_line(&fit.text)),
        Err(error) => (false, one_line(&error.message)),
    };
    ProbedDevice {
        kind: device.identity.kind.name().into(),
        name: device.identity.name.clone(),
        pci_address: device.identity.pci_address.clone(),
        uuid: device.identity.uuid.clone(),
        index: device.identity.index,
        arch: device.arch.clone(),
        memory_bytes: device.memory_bytes,
        free_memory_bytes: device.free_memory_bytes,
        driver: device.driver.clone(),
        usable,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Probe {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit).unwrap()
    }

    #[test]
    fn an_answer_is_read_and_its_findings_keep_their_codes() {
        let mut report = ProbeReport::new();
        report.findings.push(ProbedFinding {
            code: "runtime-missing".into(),
            what: "libcuda.so.1 is not there".into(),
            wanted: None,
            found: None,
            fix: Some("install the driver".into()),
            error: true,
        });
        let document = serde_json::to_string(&report).unwrap();
        let probe = shell(&format!("echo '{document}'; echo words >&2"), PROBE_LIMIT);
        assert_eq!(probe.verdict, Verdict::Answered { report: Box::new(report) });
        assert_eq!(probe.findings()[0].code, Code::RuntimeMissing);
        assert_eq!(probe.stderr, "words\n");
    }

    #[test]
    fn a_crash_is_named_with_signal_stage_and_last_words() {
        let probe = shell(
            "echo 'tensorfold-probe: verified' >&2; echo 'out of luck' >&2; kill -SEGV $$",
            PROBE_LIMIT,
        );
        let findings = probe.findings();
        assert_eq!(findings[0].code, Code::InitFailed);
        let text = findings[0].to_string();
        assert!(
            text.contains("init: the probe was ended by signal 11") && text.contains("out of luck"),
            "{text}"
        );
        assert!(probe.verdict.quarantine().is_some());
        let early = shell("kill -ABRT $$", PROBE_LIMIT);
        assert_eq!(early.findings()[0].code, Code::DlopenFailed);
    }

    #[test]
    fn an_exit_without_an_answer_is_a_crash() {
        for script in ["exit 0", "exit 3", "echo '{}'", "echo nonsense"] {
            let probe = shell(script, PROBE_LIMIT);
            assert!(matches!(probe.verdict, Verdict::Crashed { .. }), "{script}: {probe:?}");
        }
    }

    #[test]
    fn a_child_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("child");
        let script =
            format!("sleep 1000 & echo $! > {}; echo 'tensorfold-probe: verified' >&2; wait", file.display());
        let probe = shell(&script, Duration::from_millis(300));
        assert!(matches!(probe.verdict, Verdict::TimedOut { times: 1, .. }), "{probe:?}");
        assert_eq!(probe.findings()[0].code, Code::InitTimeout);
        assert!(probe.verdict.quarantine().is_none(), "once is no quarantine");
        let grandchild: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        // The group was told to end; being reaped by the system may take a moment longer.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) && is_running(grandchild) {
            std::thread::yield_now();
        }
        assert!(!is_running(grandchild));
    }

    fn is_running(process: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    }

    #[test]
    fn a_flood_on_standard_error_is_kept_from_its_end() {
        let probe = shell(
            "i=0; while [ $i -lt 20000 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo last >&2; exit 1",
            PROBE_LIMIT,
        );
        assert!(probe.stderr.len() <= STDERR_MAX + 1);
        assert!(probe.stderr.ends_with("last\n"));
    }

    #[test]
    fn the_child_is_told_where_the_parent_looked() {
        let options = SearchOptions {
            plugins: vec!["/p.so".into()],
            plugin_paths: vec!["/d".into()],
            plugins_file: Some("/f".into()),
        };
        let arguments = child_arguments(&options, Path::new("/m"), true);
        let text: Vec<_> = arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
        assert_eq!(
            text,
            [
                "plugins",
                "probe-child",
                "/m",
                "--plugin",
                "/p.so",
                "--plugin-path",
                "/d",
                "--plugins-file",
                "/f",
                "--allow-untested-host"
            ]
        );
    }
}
