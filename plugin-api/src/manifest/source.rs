//! The text of a manifest with its lines, and the collected findings.
//!
//! Every finding gets its line from here, and every piece of the text that is
//! shown to a person is made printable here.

use std::ops::Range;

use toml::de::DeTable;

use super::error::{ManifestError, ManifestErrors, Note, NoteKind};
use super::{MANIFEST_BYTES_MAX, MANIFEST_FORMAT};
use crate::vocabulary::{Code, nearest};

/// A manifest's text.
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    /// Takes bytes that are short enough and UTF-8.
    pub(super) fn new(bytes: &'a [u8], file: &'a str) -> Result<Source<'a>, ManifestErrors> {
        let refuse = |found: String, allowed: String| {
            ManifestErrors::one(ManifestError {
                code: Code::ManifestSyntax,
                file: file.to_owned(),
                line: None,
                key: String::new(),
                found,
                allowed,
            })
        };
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(refuse(
                format!("{} bytes", bytes.len()),
                format!("a manifest of at most {MANIFEST_BYTES_MAX} bytes"),
            ));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Source { file, text }),
            Err(error) => Err(refuse(
                format!("a byte at offset {} that is not UTF-8", error.valid_up_to()),
                "UTF-8 text".to_owned(),
            )),
        }
    }

    /// Parses the text as TOML, where a key that stands twice is an error.
    pub(super) fn document(&self) -> Result<DeTable<'a>, ManifestErrors> {
        match DeTable::parse(self.text) {
            Ok(document) => Ok(document.into_inner()),
            Err(error) => Err(ManifestErrors::one(ManifestError {
                code: Code::ManifestSyntax,
                file: self.file.to_owned(),
                line: error.span().map(|span| line_of(self.text, span.start)),
                key: String::new(),
                found: printable(error.message()),
                allowed: "TOML without repeated keys".to_owned(),
            })),
        }
    }

    /// A place for findings.
    pub(super) fn report(&self) -> Report<'a> {
        Report { file: self.file, text: self.text, errors: Vec::new(), notes: Vec::new() }
    }
}

/// Findings, with the lines they belong to.
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    errors: Vec<ManifestError>,
    notes: Vec<Note>,
}

impl Report<'_> {
    fn finding(
        &self,
        code: Code,
        span: Option<Range<usize>>,
        key: &str,
        found: String,
        allowed: String,
    ) -> ManifestError {
        ManifestError {
            code,
            file: self.file.to_owned(),
            line: span.map(|span| line_of(self.text, span.start)),
            key: printable(key),
            found,
            allowed,
        }
    }

    /// A key that holds what it must not.
    pub(super) fn wrong(
        &mut self,
        span: Option<Range<usize>>,
        key: &str,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let error = self.finding(Code::ManifestField, span, key, found.into(), allowed.into());
        self.errors.push(error);
    }

    /// A name that this host does not know.
    pub(super) fn unknown<'k>(
        &mut self,
        kind: NoteKind,
        span: Range<usize>,
        key: &str,
        name: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) {
        self.notes.push(Note {
            kind,
            file: self.file.to_owned(),
            line: Some(line_of(self.text, span.start)),
            key: printable(key),
            name: printable(name),
            nearest: nearest(name, known).map(str::to_owned),
        });
    }

    /// A manifest of a later format: nothing else in it can be judged.
    pub(super) fn too_new(&self, span: Range<usize>, found: &str) -> ManifestErrors {
        ManifestErrors::one(self.finding(
            Code::ManifestTooNew,
            Some(span),
            "manifest",
            format!("format {found}"),
            format!("up to format {MANIFEST_FORMAT}; a later tensorfold reads it"),
        ))
    }

    /// A requirement that this host does not know.
    pub(super) fn requires(&self, span: Range<usize>, name: &str, known: &str) -> ManifestErrors {
        ManifestErrors::one(self.finding(
            Code::RequiresUnknown,
            Some(span),
            "requires",
            format!("`{}`, which this host does not know", printable(name)),
            format!("{known}; a later tensorfold may know it"),
        ))
    }

    /// Whether anything was wrong so far.
    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// The notes, or everything that is wrong.
    pub(super) fn finish(self) -> Result<Vec<Note>, ManifestErrors> {
        ManifestErrors::none_or(self.errors)?;
        let mut notes = self.notes;
        notes.sort_by_key(|note| note.line);
        Ok(notes)
    }
}

/// Line of a byte, from 1.
fn line_of(text: &str, offset: usize) -> u32 {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count() as u32
}

/// Text of a stranger, fit for one line of a terminal: control characters are
/// escaped, and what is long is cut.
pub(super) fn printable(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut shown = String::new();
    for (index, letter) in text.chars().enumerate() {
        if index == LONGEST {
            shown.push('…');
            break;
        }
        match letter.is_control() || is_invisible(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Characters that change how a line is read without being seen: marks of
/// direction, joiners, line and paragraph separators.
pub(super) fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        assert_eq!(line_of("a\nb\nc", 0), 1);
        assert_eq!(line_of("a\nb\nc", 2), 2);
        assert_eq!(line_of("a\nb\nc", 99), 3);
    }

    #[test]
    fn a_stranger_can_not_write_to_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(printable(&"x".repeat(100)).chars().count(), 81);
    }
}
