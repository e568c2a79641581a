//! The life of a plugin: its states, the codes of everything that can go wrong, and the one shape of message.
//!
//! A transition either completes or leaves the previous state plus a recorded [`Finding`]; nothing half-made is
//! visible to others. Nothing in this file touches a file, a library or a device.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Where a plugin stands. Plugin code may have run only from [`State::Opened`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A sidecar or a named library was seen.
    Discovered,
    /// Its manifest was read and is valid.
    ManifestRead,
    /// Everything decidable without its code speaks for it.
    Admitted,
    /// Something decidable without its code speaks against it.
    Refused,
    /// Mapped for execution; its constructors have run.
    Opened,
    /// Its descriptor agrees with its manifest.
    CrossChecked,
    /// Its interfaces are there and their layouts agree.
    Verified,
    /// `init` returned.
    Initialised,
    /// A device is open.
    DeviceOpen,
    /// A model is loaded.
    EngineOpen,
    /// It answers requests.
    Serving,
    /// It finishes what it has and takes no more.
    Draining,
    /// `shutdown` returned. The library stays mapped.
    ShutDown,
    /// It crashed or hung before and is not tried again until something about it changes.
    Quarantined,
}

impl State {
    /// The name used in documents and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Discovered => "discovered",
            Self::ManifestRead => "manifest-read",
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Opened => "opened",
            Self::CrossChecked => "cross-checked",
            Self::Verified => "verified",
            Self::Initialised => "initialised",
            Self::DeviceOpen => "device-open",
            Self::EngineOpen => "engine-open",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::ShutDown => "shut-down",
            Self::Quarantined => "quarantined",
        }
    }

    /// The states that may follow this one.
    pub fn next(self) -> &'static [Self] {
        use State::*;
        match self {
            Discovered => &[ManifestRead],
            ManifestRead => &[Admitted, Refused, Quarantined],
            Admitted => &[Opened, Refused, Quarantined],
            Refused | ShutDown => &[],
            Opened => &[CrossChecked],
            CrossChecked => &[Verified],
            Verified => &[Initialised],
            Initialised => &[DeviceOpen, ShutDown],
            DeviceOpen => &[EngineOpen, ShutDown],
            EngineOpen => &[Serving, Draining, ShutDown],
            Serving => &[Draining],
            Draining => &[ShutDown],
            Quarantined => &[Admitted],
        }
    }

    /// Whether code of the plugin may have run in this state.
    pub fn plugin_code_ran(self) -> bool {
        !matches!(
            self,
            Self::Discovered | Self::ManifestRead | Self::Admitted | Self::Refused | Self::Quarantined
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Declares [`Code`] with the name of each code and the state a plugin is in when it can occur.
macro_rules! codes {
    ($($variant:ident = $name:literal, $state:ident, $text:literal;)*) => {
        /// What went wrong, as a stable name for documents and tests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $text] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the life cycle.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name used in documents and messages.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The state that could not be reached (or, for findings about places, the one that was kept).
            pub fn state(self) -> State {
                match self { $(Self::$variant => State::$state,)* }
            }
        }
    };
}

codes! {
    UnsafePath = "unsafe-path", Discovered, "Somebody else could change the file or a folder above it.";
    Masked = "masked", Discovered, "An empty file of the same name in a higher place hides it.";
    Shadowed = "shadowed", Discovered, "A plugin of the same id and variant in a higher place wins.";
    Disabled = "disabled", Discovered, "A variable or a configuration file switched it off.";
    Duplicate = "duplicate", Discovered, "The same id and variant twice within one rank.";
    Unreadable = "unreadable", Discovered, "The file cannot be read.";
    ManifestSyntax = "manifest-syntax", ManifestRead, "The manifest is not valid TOML.";
    ManifestTooNew = "manifest-too-new", ManifestRead, "The manifest's format is newer than this host.";
    ManifestField = "manifest-field", ManifestRead, "A key of the manifest has a value that is not allowed.";
    RequiresUnknown = "requires-unknown", ManifestRead, "The manifest requires something this host lacks.";
    LibraryMissing = "library-missing", Refused, "The manifest is there and its library is not.";
    NotAPlugin = "not-a-plugin", Refused, "The library holds no manifest or no descriptor.";
    WrongArch = "wrong-arch", Refused, "Built for another processor or operating system.";
    LibcTooOld = "libc-too-old", Refused, "Needs a newer C library.";
    CpuFeature = "cpu-feature", Refused, "Needs a processor feature that is not usable here.";
    ExecutableStack = "executable-stack", Refused, "Asks for an executable stack.";
    TextRelocations = "text-relocations", Refused, "Needs its code patched at load time.";
    StaticTls = "static-tls", Refused, "Uses static thread-local storage, of which there is little.";
    AbiMismatch = "abi-mismatch", Refused, "Built for another version of the interface.";
    HostRange = "host-range", Refused, "Not tested with this release of the host.";
    PinMismatch = "pin-mismatch", Refused, "Its bytes differ from the pinned ones.";
    Signature = "signature", Refused, "Its signature is missing or wrong.";
    NoDevice = "no-device", Refused, "No device it can use is in this machine.";
    DevicePermission = "device-permission", Refused, "A device node cannot be opened by this user.";
    DriverTooOld = "driver-too-old", Refused, "The driver is older than the plugin's floor.";
    NeedsLibrary = "needs-library", Refused, "A library it is linked with cannot be found.";
    BackendUnknown = "backend-unknown", Refused, "No plugin answers to the name.";
    BackendAmbiguous = "backend-ambiguous", Refused, "Two plugins answer to the name.";
    DrafterUnsupported = "drafter-unsupported", Refused, "It runs no such drafter.";
    FlagUnsupported = "flag-unsupported", Refused, "It does not serve the option.";
    WorldUnsupported = "world-unsupported", Refused, "It does not run on so many ranks.";
    FamilyUnsupported = "family-unsupported", Refused, "It does not run the model's family.";
    FormatUnsupported = "format-unsupported", Refused, "It does not read the checkpoint's weight format.";
    KvUnsupported = "kv-unsupported", Refused, "It has no such cache type.";
    DlopenFailed = "dlopen-failed", Opened, "The dynamic linker refused it.";
    FileChanged = "file-changed", Opened, "The mapped file is not the one that was checked.";
    BadMagic = "bad-magic", CrossChecked, "The descriptor does not begin as one.";
    ManifestMismatch = "manifest-mismatch", CrossChecked, "Two statements of the manifest differ.";
    DescriptorMismatch = "descriptor-mismatch", CrossChecked, "Descriptor and manifest do not belong together.";
    LayoutMismatch = "layout-mismatch", Verified, "A table's layout is not the host's.";
    InterfaceMissing = "interface-missing", Verified, "A declared interface is not offered.";
    InitFailed = "init-failed", Initialised, "`init` returned an error.";
    InitTimeout = "init-timeout", Initialised, "`init` did not return in time.";
    RuntimeMissing = "runtime-missing", Initialised, "A run-time library cannot be opened.";
    RuntimeMixed = "runtime-mixed", Initialised, "Two majors of one run-time library are in the process.";
    StubDriver = "stub-driver", Initialised, "A toolkit's stub was found in place of the driver.";
    Crashed = "crashed", Initialised, "The probe ended by a signal or without an answer.";
    DeviceGone = "device-gone", DeviceOpen, "The device is not there any more.";
    DeviceBusy = "device-busy", DeviceOpen, "Somebody else has the device.";
    ArchUnsupported = "arch-unsupported", DeviceOpen, "The plugin has no code for the device.";
    OutOfMemory = "out-of-memory", DeviceOpen, "The device has too little free memory.";
    Checkpoint = "checkpoint", EngineOpen, "The checkpoint cannot be used.";
    MemoryPlan = "memory-plan", EngineOpen, "The model does not fit.";
    CapabilityLied = "capability-lied", EngineOpen, "Declared in the manifest and refused now.";
    EngineFailed = "engine-failed", Serving, "The engine failed.";
    Watchdog = "watchdog", Serving, "The engine did not answer in time.";
    DrainTimeout = "drain-timeout", Draining, "Requests were left when time was up.";
    ShutdownFailed = "shutdown-failed", ShutDown, "`shutdown` returned an error.";
    Quarantined = "quarantined", Quarantined, "It crashed or hung before.";
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Worth knowing.
    Note,
    /// Works now and may bite later.
    Warning,
    /// The plugin cannot be used.
    Error,
}

impl Level {
    /// The name used in documents and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing found out about a plugin, with what was wanted, what was found and what to do.
///
/// Prints as `plugin ID VERSION (PATH): WHAT; wanted W, found F; FIX`, on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The stable name of the problem.
    pub code: Code,
    /// How much it matters.
    pub level: Level,
    /// The plugin's id, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// The plugin's version, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The file or folder it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// What is the matter.
    pub what: String,
    /// What would have been right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// What is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What the reader can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// An error.
    pub fn error(code: Code, what: impl Into<String>) -> Self {
        Self::new(Level::Error, code, what)
    }

    /// A warning.
    pub fn warning(code: Code, what: impl Into<String>) -> Self {
        Self::new(Level::Warning, code, what)
    }

    /// A note.
    pub fn note(code: Code, what: impl Into<String>) -> Self {
        Self::new(Level::Note, code, what)
    }

    fn new(level: Level, code: Code, what: impl Into<String>) -> Self {
        Self {
            code,
            level,
            plugin: None,
            version: None,
            path: None,
            what: what.into(),
            wanted: None,
            found: None,
            fix: None,
        }
    }

    /// Names the plugin.
    pub fn plugin(mut self, id: impl Into<String>, version: impl Into<String>) -> Self {
        self.plugin = Some(id.into());
        self.version = Some(version.into());
        self
    }

    /// Names the file or folder.
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_path_buf());
        self
    }

    /// States what would have been right.
    pub fn wanted(mut self, wanted: impl Into<String>) -> Self {
        self.wanted = Some(wanted.into());
        self
    }

    /// States what is there.
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    /// Says what to do.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// The part after plugin and path: `WHAT; wanted W, found F; FIX`.
    pub fn reason(&self) -> String {
        let mut text = self.what.clone();
        match (&self.wanted, &self.found) {
            (Some(wanted), Some(found)) => text.push_str(&format!("; wanted {wanted}, found {found}")),
            (Some(wanted), None) => text.push_str(&format!("; wanted {wanted}")),
            (None, Some(found)) => text.push_str(&format!("; found {found}")),
            (None, None) => {}
        }
        if let Some(fix) = &self.fix {
            text.push_str("; ");
            text.push_str(fix);
        }
        one_line(&text)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(plugin) = &self.plugin {
            write!(formatter, "plugin {}", one_line(plugin))?;
            if let Some(version) = &self.version {
                write!(formatter, " {}", one_line(version))?;
            }
            if let Some(path) = &self.path {
                write!(formatter, " ({})", show_path(path))?;
            }
            formatter.write_str(": ")?;
        } else if let Some(path) = &self.path {
            write!(formatter, "{}: ", show_path(path))?;
        }
        formatter.write_str(&self.reason())
    }
}

impl std::error::Error for Finding {}

/// A path for a message: control characters, which could redraw a terminal, are escaped.
pub fn show_path(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}

/// Text for a message: line breaks become spaces, other control characters are escaped.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.trim_end().chars() {
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            other if other.is_control() => line.extend(other.escape_default()),
            other => line.push(other),
        }
    }
    line
}

/// The state of one plugin, when each state was entered, and what was found on the way.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    state: State,
    history: Vec<(State, SystemTime)>,
    findings: Vec<Finding>,
}

/// An attempt to enter a state that does not follow the present one: a defect of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a plugin cannot go from {from} to {to}")]
pub struct WrongTransition {
    /// The present state.
    pub from: State,
    /// The state asked for.
    pub to: State,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// A plugin that was just discovered.
    pub fn new() -> Self {
        Self {
            state: State::Discovered,
            history: vec![(State::Discovered, SystemTime::now())],
            findings: Vec::new(),
        }
    }

    /// The present state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Each state with the time it was entered, oldest first.
    pub fn history(&self) -> &[(State, SystemTime)] {
        &self.history
    }

    /// What was found, in the order of finding.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The first error, which is the reason for a refusal.
    pub fn error(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.level == Level::Error)
    }

    /// Enters `to`.
    ///
    /// # Errors
    /// [`WrongTransition`] when `to` does not follow the present state, which is then kept.
    pub fn advance(&mut self, to: State) -> Result<(), WrongTransition> {
        if !self.state.next().contains(&to) {
            return Err(WrongTransition { from: self.state, to });
        }
        self.state = to;
        self.history.push((to, SystemTime::now()));
        Ok(())
    }

    /// Records a finding; the state stays as it is.
    pub fn record(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// The states with their times in whole milliseconds since 1970, for documents.
    pub fn times(&self) -> Vec<StateTime> {
        let milliseconds = |time: &SystemTime| {
            time.duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        };
        self.history
            .iter()
            .map(|(state, time)| StateTime { state: *state, unix_milliseconds: milliseconds(time) })
            .collect()
    }
}

/// When a state was entered.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StateTime {
    /// The state.
    pub state: State,
    /// Milliseconds since the start of 1970, UTC.
    pub unix_milliseconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_plugin_path_wanted_found_and_fix() {
        let finding = Finding::error(Code::LibcTooOld, "the C library is too old")
            .plugin("backend-hip", "0.4.2")
            .at("/usr/lib/x.so")
            .wanted("2.38 or newer")
            .found("2.36")
            .fix("install the build for this distribution");
        assert_eq!(
            finding.to_string(),
            "plugin backend-hip 0.4.2 (/usr/lib/x.so): the C library is too old; wanted 2.38 or newer, found 2.36; \
             install the build for this distribution"
        );
    }

    #[test]
    fn a_message_is_one_line_whatever_a_file_is_called() {
        let finding = Finding::error(Code::UnsafePath, "a\nb").at("/x\u{1b}[2J\n");
        assert_eq!(finding.to_string(), "/x\\u{1b}[2J: a b");
    }

    #[test]
    fn a_wrong_transition_keeps_the_state() {
        let mut life = Lifecycle::new();
        assert_eq!(
            life.advance(State::Opened),
            Err(WrongTransition { from: State::Discovered, to: State::Opened })
        );
        assert_eq!(life.state(), State::Discovered);
        life.advance(State::ManifestRead).unwrap();
        life.advance(State::Admitted).unwrap();
        life.advance(State::Opened).unwrap();
        assert_eq!(life.history().len(), 4);
        assert!(life.history().windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn nothing_leaves_refused_and_code_runs_only_after_opened() {
        assert!(State::Refused.next().is_empty());
        let before_opened = [State::Discovered, State::ManifestRead, State::Admitted, State::Refused];
        assert!(before_opened.iter().all(|state| !state.plugin_code_ran()));
        assert!(State::Opened.plugin_code_ran());
        assert!(State::ShutDown.plugin_code_ran());
    }

    #[test]
    fn codes_have_distinct_names() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let mut life = Lifecycle::new();
        life.record(Finding::warning(Code::StaticTls, "w"));
        life.record(Finding::error(Code::NoDevice, "first"));
        life.record(Finding::error(Code::DriverTooOld, "second"));
        assert_eq!(life.error().unwrap().what, "first");
        assert_eq!(life.findings().len(), 3);
    }
}
