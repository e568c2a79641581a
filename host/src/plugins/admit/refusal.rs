//! A refusal: a finding, and the sentence that the user reads.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use tensorfold_plugin_api::vocabulary::{Code, State};

use crate::plugins::lifecycle::Finding;

/// Why a request is not served.
///
/// Prints as one line without the program's name: the sentence where the host has one for the case, else
/// `plugin ID VERSION (PATH): WHAT; wanted W, found F; FIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The facts of it, for documents.
    pub finding: Finding,
    /// The sentence, where its wording is fixed.
    pub sentence: Option<String>,
}

impl Refusal {
    /// Prints this sentence and nothing else.
    pub(super) fn saying(mut self, sentence: String) -> Self {
        self.sentence = Some(sentence);
        self
    }

    pub(super) fn wanted(mut self, wanted: impl Into<String>) -> Self {
        self.finding = self.finding.wanted(wanted);
        self
    }

    pub(super) fn found(mut self, found: impl Into<String>) -> Self {
        self.finding = self.finding.found(found);
        self
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.finding = self.finding.fix(fix);
        self
    }

    /// The machine code.
    pub fn code(&self) -> Code {
        self.finding.code
    }

    /// The state that the plugin did not reach.
    pub fn state(&self) -> State {
        self.code().state()
    }

    /// The status that the command ends with.
    pub fn exit_code(&self) -> u8 {
        self.code().exit_code()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sentence {
            Some(sentence) => formatter.write_str(&crate::plugins::lifecycle::one_line(sentence)),
            None => self.finding.fmt(formatter),
        }
    }
}

impl std::error::Error for Refusal {}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let finding = &self.finding;
        let mut fields = serializer.serialize_struct("Refusal", 11)?;
        fields.serialize_field("code", &finding.code)?;
        fields.serialize_field("level", &finding.level)?;
        fields.serialize_field("state", &self.state())?;
        fields.serialize_field("plugin", &finding.plugin)?;
        fields.serialize_field("version", &finding.version)?;
        fields.serialize_field("path", &finding.path)?;
        fields.serialize_field("wanted", &finding.wanted)?;
        fields.serialize_field("found", &finding.found)?;
        fields.serialize_field("fix", &finding.fix)?;
        fields.serialize_field("message", &self.to_string())?;
        fields.serialize_field("exit", &self.exit_code())?;
        fields.end()
    }
}
