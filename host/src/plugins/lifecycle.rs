//! The life of a plugin: its states, the codes of everything that can go wrong, and the one shape of message.
//!
//! A transition either completes or leaves the previous state plus a recorded [`Finding`]; nothing half-made is
//! visible to others. Nothing in this file touches a file, a library or a device.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

pub use tensorfold_plugin_api::vocabulary::{Code, State};

/// The states that may follow `state`.
pub fn successors(state: State) -> &'static [State] {
    use State::*;
    match state {
        Discovered => &[ManifestRead],
        ManifestRead => &[Admitted, Refused, Quarantined],
        Admitted => &[Opened, Refused, Quarantined],
        Refused | ShutDown => &[],
        Opened => &[CrossChecked],
        CrossChecked => &[Verified],
        Verified => &[Initialised, ShutDown],
        Initialised => &[DeviceOpen, ShutDown],
        DeviceOpen => &[EngineOpen, ShutDown],
        EngineOpen => &[Serving, Draining, ShutDown],
        Serving => &[Draining],
        Draining => &[ShutDown],
        Quarantined => &[Admitted],
    }
}

/// Whether code of a plugin in this state may have run.
pub fn plugin_code_ran(state: State) -> bool {
    !matches!(
        state,
        State::Discovered | State::ManifestRead | State::Admitted | State::Refused | State::Quarantined
    )
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
        if !successors(self.state).contains(&to) {
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
        assert!(successors(State::Refused).is_empty());
        let before_opened = [State::Discovered, State::ManifestRead, State::Admitted, State::Refused];
        assert!(before_opened.iter().all(|state| !plugin_code_ran(*state)));
        assert!(plugin_code_ran(State::Opened));
        assert!(plugin_code_ran(State::ShutDown));
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let mut life = Lifecycle::new();
        life.record(Finding::warning(Code::NeedsLibrary, "w"));
        life.record(Finding::error(Code::NoDevice, "first"));
        life.record(Finding::error(Code::DriverTooOld, "second"));
        assert_eq!(life.error().unwrap().what, "first");
        assert_eq!(life.findings().len(), 3);
    }
}
