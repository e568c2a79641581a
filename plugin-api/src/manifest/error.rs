//! What is wrong with a manifest, and what in it is only unknown.

use std::fmt;

use serde::Serialize;

use crate::vocabulary::{Code, is_vendor_name};

/// One thing wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestError {
    /// The machine code.
    pub code: Code,
    /// The file, as the reader was told.
    pub file: String,
    /// Line in it, from 1; none where no line is to blame.
    pub line: Option<u32>,
    /// The key with its path, such as `plugin.id`; empty for the whole file.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What is allowed there.
    pub allowed: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(formatter, ": {}", self.key)?;
        }
        write!(formatter, ": found {}; allowed: {}", self.found, self.allowed)
    }
}

impl std::error::Error for ManifestError {}

/// Everything wrong with a manifest: at least one error, in the order of the
/// lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ManifestErrors(Vec<ManifestError>);

impl ManifestErrors {
    /// An error by itself.
    pub(super) fn one(error: ManifestError) -> ManifestErrors {
        ManifestErrors(vec![error])
    }

    /// Nothing when there is no error.
    pub(super) fn none_or(mut errors: Vec<ManifestError>) -> Result<(), ManifestErrors> {
        errors.sort_by_key(|error| error.line);
        match errors.is_empty() {
            true => Ok(()),
            false => Err(ManifestErrors(errors)),
        }
    }

    /// The one to show when only one is shown.
    pub fn first(&self) -> &ManifestError {
        &self.0[0]
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, ManifestError> {
        self.0.iter()
    }
}

impl fmt::Display for ManifestErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.first())?;
        match self.0.len() - 1 {
            0 => Ok(()),
            1 => write!(formatter, " (and 1 more error)"),
            more => write!(formatter, " (and {more} more errors)"),
        }
    }
}

impl std::error::Error for ManifestErrors {}

/// Something in a manifest that this host does not know, or does not need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What kind of thing it is.
    pub kind: NoteKind,
    /// The file, as the reader was told.
    pub file: String,
    /// Line in it, from 1.
    pub line: Option<u32>,
    /// The key with its path, such as `caps.formats`.
    pub key: String,
    /// The unknown name.
    pub name: String,
    /// The known name that it may have been meant to be.
    pub nearest: Option<String>,
}

/// Kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteKind {
    /// A table that is ignored.
    UnknownTable,
    /// A key that is ignored.
    UnknownKey,
    /// A word that is kept and never matches.
    UnknownWord,
    /// A flag that another key answers for: listing it changes nothing.
    IdleFlag,
}

impl Note {
    /// The note as an error for vendors; none for names in the vendors' own
    /// space.
    pub fn as_error(&self) -> Option<ManifestError> {
        if is_vendor_name(&self.name) {
            return None;
        }
        let allowed = match (&self.nearest, self.kind) {
            (_, NoteKind::IdleFlag) => "flags that no other key answers for".to_owned(),
            (Some(nearest), _) => format!("known names, of which `{nearest}` is nearest, or x-<vendor>-..."),
            (None, _) => "known names, or x-<vendor>-...".to_owned(),
        };
        Some(ManifestError {
            code: Code::ManifestField,
            file: self.file.clone(),
            line: self.line,
            key: self.key.clone(),
            found: match self.kind {
                NoteKind::UnknownTable => format!("the unknown table `{}`", self.name),
                NoteKind::UnknownKey => format!("the unknown key `{}`", self.name),
                NoteKind::UnknownWord => format!("the unknown word `{}`", self.name),
                NoteKind::IdleFlag => format!("`{}`", self.name),
            },
            allowed,
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        let what = match self.kind {
            NoteKind::UnknownTable => "a table unknown to this host, ignored",
            NoteKind::UnknownKey => "a key unknown to this host, ignored",
            NoteKind::UnknownWord => "unknown to this host, never matches",
            NoteKind::IdleFlag => "another key answers for this flag, ignored",
        };
        write!(formatter, ": {}: `{}`: {what}", self.key, self.name)?;
        match &self.nearest {
            Some(nearest) => write!(formatter, "; the nearest known name is `{nearest}`"),
            None => Ok(()),
        }
    }
}
