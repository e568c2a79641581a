//! Checks a document against the tables of the vocabulary: known names, kinds
//! of values, bounds, required keys.
//!
//! What holds between keys is checked where the manifest is built.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::MANIFEST_FORMAT;
use super::error::{ManifestErrors, NoteKind};
use super::source::{Report, is_invisible, printable};
use crate::vocabulary::{
    AnsweredBy, DrafterKind, KeyKind, TABLES, TableShape, TableSpec, Words, alternatives, flag,
    is_vendor_name, table,
};

/// Checks the whole document. Returns early where the rest can not be judged;
/// everything else goes into the report.
pub(super) fn check_document(document: &DeTable<'_>, report: &mut Report<'_>) -> Result<(), ManifestErrors> {
    check_format(document, report)?;
    check_requires(document, report)?;
    let root = table("").expect("the top of the file is in the vocabulary");
    let names = || {
        let tables = TABLES.iter().filter(|spec| spec.shape != TableShape::Inline);
        let tables = tables.filter_map(|spec| spec.name.split('.').next()).filter(|name| !name.is_empty());
        tables.chain(root.keys.iter().map(|key| key.name))
    };
    for (key, value) in document.iter() {
        let name: &str = key.get_ref();
        if let Some(spec) = root.key(name) {
            check_value(report, name, value, spec.kind);
        } else if name == "drafters" {
            check_drafters(report, value, document);
        } else if let Some(spec) = table(name).filter(|spec| spec.shape != TableShape::Inline) {
            check_shape(report, spec, value);
        } else {
            let kind = match value.get_ref() {
                DeValue::Table(_) | DeValue::Array(_) => NoteKind::UnknownTable,
                _ => NoteKind::UnknownKey,
            };
            report.unknown(kind, key.span(), name, name, names());
        }
    }
    for key in root.keys.iter().filter(|key| key.required && document.get(key.name).is_none()) {
        report.wrong(None, key.name, "nothing", allowed(key.kind));
    }
    for spec in TABLES.iter().filter(|spec| spec.required && !spec.name.is_empty()) {
        if document.get(spec.name).is_none() {
            report.wrong(None, spec.name, "nothing", format!("the table {}", spec.heading));
        }
    }
    Ok(())
}

/// A later format ends the reading: its rules are not known here.
fn check_format(document: &DeTable<'_>, report: &Report<'_>) -> Result<(), ManifestErrors> {
    let Some(value) = document.get("manifest") else { return Ok(()) };
    match integer(value.get_ref()) {
        Some(format) if format > i64::from(MANIFEST_FORMAT) => {
            Err(report.too_new(value.span(), &format.to_string()))
        }
        _ => Ok(()),
    }
}

/// An unknown requirement ends the reading: it may change what any key means.
fn check_requires(document: &DeTable<'_>, report: &Report<'_>) -> Result<(), ManifestErrors> {
    let Some(DeValue::Array(items)) = document.get("requires").map(Spanned::get_ref) else { return Ok(()) };
    for item in items.iter() {
        if let Some(name) = item.get_ref().as_str()
            && !Words::Requirable.knows(name)
        {
            let known = alternatives(Words::Requirable.words().iter().map(|word| word.name));
            return Err(report.requires(item.span(), name, &known));
        }
    }
    Ok(())
}

fn check_shape(report: &mut Report<'_>, spec: &TableSpec, value: &Spanned<DeValue<'_>>) {
    match (spec.shape, value.get_ref()) {
        (TableShape::Ignored, _) => {}
        (TableShape::Single, DeValue::Table(table)) => {
            check_table(report, spec.name, value.span(), table, spec)
        }
        (TableShape::Free(kind), DeValue::Table(table)) => {
            for (key, value) in table.iter() {
                check_name(report, spec.name, key);
                check_value(report, &format!("{}.{}", spec.name, key.get_ref()), value, kind);
                if spec.name == "unsupported" && !Words::Drafters.knows(key.get_ref()) {
                    note_word(report, spec.name, key.span(), key.get_ref(), Words::Drafters);
                }
            }
        }
        (TableShape::Named, DeValue::Table(tables)) => {
            for (key, value) in tables.iter() {
                check_name(report, spec.name, key);
                let path = format!("{}.{}", spec.name, key.get_ref());
                match value.get_ref() {
                    DeValue::Table(table) => check_table(report, &path, value.span(), table, spec),
                    other => report.wrong(Some(value.span()), &path, found(other), "a table"),
                }
            }
        }
        (TableShape::List, DeValue::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{}[{}]", spec.name, index + 1);
                match item.get_ref() {
                    DeValue::Table(table) => check_table(report, &path, item.span(), table, spec),
                    other => report.wrong(Some(item.span()), &path, found(other), "a table"),
                }
            }
        }
        (_, other) => {
            report.wrong(Some(value.span()), spec.name, found(other), format!("the table {}", spec.heading));
        }
    }
}

/// Known kinds are checked; the tables of unknown ones are let be, since a
/// later vocabulary may give them other keys.
fn check_drafters(report: &mut Report<'_>, value: &Spanned<DeValue<'_>>, document: &DeTable<'_>) {
    let DeValue::Table(kinds) = value.get_ref() else {
        report.wrong(Some(value.span()), "drafters", found(value.get_ref()), "tables `[drafters.KIND]`");
        return;
    };
    for (key, value) in kinds.iter() {
        let name: &str = key.get_ref();
        check_name(report, "drafters", key);
        let path = format!("drafters.{name}");
        let DeValue::Table(keys) = value.get_ref() else {
            report.wrong(Some(value.span()), &path, found(value.get_ref()), "a table");
            continue;
        };
        match DrafterKind::from_id(name) {
            Some(kind) => {
                check_table(report, &path, value.span(), keys, drafter_table(kind));
                check_interface(report, &path, value.span(), kind, document);
            }
            None => note_word(report, "drafters", key.span(), name, Words::Drafters),
        }
    }
}

/// A drafter without the interface that it is driven by would be a promise
/// that nobody can keep.
fn check_interface(
    report: &mut Report<'_>,
    path: &str,
    span: Range<usize>,
    kind: DrafterKind,
    document: &DeTable<'_>,
) {
    let Some(interface) = kind.interface() else { return };
    let listed = document.get("abi").and_then(|abi| abi.get_ref().get("interfaces"));
    let Some(DeValue::Array(listed)) = listed.map(Spanned::get_ref) else { return };
    let family = interface.split('/').next().unwrap_or(interface);
    let offers = |id: &str| id.split('/').next() == Some(family);
    if !listed.iter().any(|id| matches!(id.get_ref(), DeValue::String(id) if offers(id))) {
        let wanted = format!("\"{interface}\" among abi.interfaces");
        report.wrong(Some(span), path, "no interface that drives it", wanted);
    }
}

/// The table that describes a drafter kind.
fn drafter_table(kind: DrafterKind) -> &'static TableSpec {
    let name = match kind {
        DrafterKind::Mtp => "drafters.mtp",
        DrafterKind::Copy => "drafters.copy",
        _ => "drafters.EXTERNAL",
    };
    table(name).expect("every drafter kind is in the vocabulary")
}

fn check_table(
    report: &mut Report<'_>,
    path: &str,
    span: Range<usize>,
    keys: &DeTable<'_>,
    spec: &TableSpec,
) {
    for (key, value) in keys.iter() {
        let name: &str = key.get_ref();
        let path = format!("{path}.{name}");
        match spec.key(name) {
            Some(known) => check_value(report, &path, value, known.kind),
            None => {
                let known = spec.keys.iter().map(|key| key.name);
                report.unknown(NoteKind::UnknownKey, key.span(), &path, name, known);
            }
        }
    }
    for key in spec.keys.iter().filter(|key| key.required && keys.get(key.name).is_none()) {
        report.wrong(Some(span.clone()), &format!("{path}.{}", key.name), "nothing", allowed(key.kind));
    }
}

fn check_name(report: &mut Report<'_>, path: &str, key: &Spanned<std::borrow::Cow<'_, str>>) {
    let name: &str = key.get_ref();
    if !is_identifier(name) {
        let found = format!("the name `{}`", printable(name));
        report.wrong(Some(key.span()), path, found, allowed(KeyKind::Identifier));
    }
}

fn check_value(report: &mut Report<'_>, path: &str, value: &Spanned<DeValue<'_>>, kind: KeyKind) {
    let content = value.get_ref();
    match kind {
        KeyKind::Identifiers
        | KeyKind::FileNames
        | KeyKind::WordSet(_)
        | KeyKind::Interfaces
        | KeyKind::Texts
        | KeyKind::Numbers { .. } => check_list(report, path, value, kind),
        KeyKind::Inline(name) => match (content, table(name)) {
            (DeValue::Table(keys), Some(spec)) => check_table(report, path, value.span(), keys, spec),
            _ => report.wrong(Some(value.span()), path, found(content), allowed(kind)),
        },
        _ => check_scalar(report, path, value, kind),
    }
}

fn check_list(report: &mut Report<'_>, path: &str, value: &Spanned<DeValue<'_>>, kind: KeyKind) {
    let Some(items) = value.get_ref().as_array() else {
        report.wrong(Some(value.span()), path, found(value.get_ref()), allowed(kind));
        return;
    };
    let item_kind = match kind {
        KeyKind::Identifiers => KeyKind::Identifier,
        KeyKind::FileNames => KeyKind::FileName,
        KeyKind::WordSet(words) => KeyKind::Word(words),
        KeyKind::Numbers { least, most } => KeyKind::Number { least, most },
        KeyKind::Texts => KeyKind::Text { longest: 64 },
        other => other,
    };
    let mut seen: Vec<String> = Vec::new();
    for item in items.iter() {
        check_scalar(report, path, item, item_kind);
        let shown = match integer(item.get_ref()) {
            Some(number) => number.to_string(),
            None => found(item.get_ref()),
        };
        match seen.contains(&shown) {
            true => report.wrong(Some(item.span()), path, format!("{shown} twice"), "each item once"),
            false => seen.push(shown),
        }
    }
    if kind == KeyKind::FileNames && items.is_empty() {
        report.wrong(Some(value.span()), path, "an empty list", "at least one file name");
    }
}

fn check_scalar(report: &mut Report<'_>, path: &str, value: &Spanned<DeValue<'_>>, kind: KeyKind) {
    let content = value.get_ref();
    let text = content.as_str();
    let fits = match kind {
        KeyKind::Text { longest } => text.is_some_and(|text| is_line(text) && text.len() <= longest),
        KeyKind::Identifier => text.is_some_and(is_identifier),
        KeyKind::Version => text.is_some_and(|text| semver::Version::parse(text).is_ok()),
        KeyKind::VersionRange => text.is_some_and(|text| semver::VersionReq::parse(text).is_ok()),
        KeyKind::DottedNumber => text.is_some_and(|text| super::DottedNumber::parse(text).is_some()),
        KeyKind::FileName => text.is_some_and(is_file_name),
        KeyKind::Digest => {
            text.is_some_and(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        }
        KeyKind::Choice(words) => text.is_some_and(|text| words.knows(text)),
        KeyKind::Word(words) => match text {
            Some(text) if is_line(text) && text.len() <= 64 => {
                note_word(report, path, value.span(), text, words);
                true
            }
            _ => false,
        },
        KeyKind::Interfaces => text.is_some_and(is_interface),
        KeyKind::Number { least, most } => {
            integer(content).is_some_and(|number| (i64::from(least)..=i64::from(most)).contains(&number))
        }
        KeyKind::Wide => integer(content).is_some(),
        KeyKind::Boolean => content.is_bool(),
        KeyKind::OptionValue => match text {
            Some(text) => text.is_empty() || is_line(text),
            None => content.is_bool() || integer(content).is_some(),
        },
        _ => false,
    };
    if !fits {
        report.wrong(Some(value.span()), path, found(content), allowed(kind));
    }
}

/// Notes a word that this host does not know, and a flag that is listed in
/// vain.
fn note_word(report: &mut Report<'_>, path: &str, span: Range<usize>, name: &str, words: Words) {
    if words == Words::ServeFlags && flag(name).is_some_and(|flag| flag.answered_by != AnsweredBy::ServeFlags)
    {
        report.unknown(NoteKind::IdleFlag, span, path, name, []);
    } else if !words.knows(name) {
        let words = words.words();
        let near = words.iter().map(|word| word.name).filter(|_| !is_vendor_name(name));
        report.unknown(NoteKind::UnknownWord, span, path, name, near);
    }
}

/// A whole number within 64 bits.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// What a value is, for a message.
pub(super) fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", printable(text)),
        DeValue::Integer(number) => printable(number.as_str()),
        DeValue::Float(number) => format!("the number {}", printable(number.as_str())),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// What a kind of value allows, for messages and for the reference.
pub(crate) fn allowed(kind: KeyKind) -> String {
    let choices = |words: Words| alternatives(words.words().iter().map(|word| format!("\"{}\"", word.name)));
    match kind {
        KeyKind::Text { longest } => format!("one line of text, 1 to {longest} bytes"),
        KeyKind::Identifier => "a name of the form [a-z][a-z0-9-]{1,31}".to_owned(),
        KeyKind::Identifiers => "a list of names of the form [a-z][a-z0-9-]{1,31}".to_owned(),
        KeyKind::Version => "a semantic version such as \"1.2.3\"".to_owned(),
        KeyKind::VersionRange => "a range of versions such as \">=0.3, <0.5\"".to_owned(),
        KeyKind::DottedNumber => "numbers joined by dots such as \"2.35\"".to_owned(),
        KeyKind::FileName => "a file name without folder".to_owned(),
        KeyKind::FileNames => "a list of file names without folder".to_owned(),
        KeyKind::Digest => "64 hexadecimal digits".to_owned(),
        KeyKind::Choice(words) => choices(words),
        KeyKind::Word(Words::DeviceArchs) => "a word of at most 64 bytes".to_owned(),
        KeyKind::Word(words) => format!("{} or another word of at most 64 bytes", choices(words)),
        KeyKind::WordSet(_) => "a list of words".to_owned(),
        KeyKind::Interfaces => "interface ids such as \"tensorfold.engine/1\"".to_owned(),
        KeyKind::Numbers { least, most } => format!("a list of whole numbers from {least} to {most}"),
        KeyKind::Number { least, most } => format!("a whole number from {least} to {most}"),
        KeyKind::Boolean => "true or false".to_owned(),
        KeyKind::Inline(name) => match table(name) {
            Some(spec) => {
                let keys: Vec<&str> = spec.keys.iter().map(|key| key.name).collect();
                format!("a table {{ {} }}", keys.join(", "))
            }
            None => "a table".to_owned(),
        },
        KeyKind::OptionValue => "a value of the option's type".to_owned(),
        KeyKind::Wide => "a whole number".to_owned(),
        KeyKind::Texts => "a list of texts of at most 64 bytes".to_owned(),
    }
}

fn is_line(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(|letter| letter.is_control() || is_invisible(letter))
}

fn is_identifier(text: &str) -> bool {
    (2..=32).contains(&text.len())
        && text.as_bytes()[0].is_ascii_lowercase()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_file_name(text: &str) -> bool {
    is_line(text)
        && text.len() <= 255
        && !text.starts_with('.')
        && !text.contains("..")
        && !text.contains(['/', '\\'])
}

fn is_interface(text: &str) -> bool {
    let Some((name, number)) = text.split_once('/') else { return false };
    let named = name.len() <= 64
        && name.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-' || byte == b'_'
        });
    let numbered = (1..=4).contains(&number.len())
        && !number.starts_with('0')
        && number.bytes().all(|byte| byte.is_ascii_digit());
    named && numbered
}
