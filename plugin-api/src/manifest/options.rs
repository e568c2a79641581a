//! Options of a plugin's own, typed by its manifest.
//!
//! A value may come from `--opt BACKEND.NAME=VALUE` as text or from
//! `plugins.toml` as TOML; both are judged by the same [`OptionSpec`], so a
//! plugin never receives a value that its manifest does not allow.

use std::fmt;

use serde::Serialize;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

use super::check::{found, integer};
use super::source::{Report, is_invisible, printable};
use crate::vocabulary::alternatives;

/// One option.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptionSpec {
    /// Type and bounds of its value.
    #[serde(flatten)]
    pub kind: OptionKind,
    /// Value when nothing is set; none leaves it to the plugin.
    pub default: Option<OptionValue>,
    /// One line for the help.
    pub help: String,
}

/// Type and bounds of an option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OptionKind {
    /// A whole number, both bounds included.
    Integer {
        /// The least.
        least: Option<i64>,
        /// The greatest.
        most: Option<i64>,
    },
    /// `true` or `false`.
    Boolean,
    /// One of these.
    Choice {
        /// The values.
        choices: Vec<String>,
    },
    /// Any text of one line.
    String,
    /// A file or folder.
    Path,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// A whole number.
    Integer(i64),
    /// `true` or `false`.
    Boolean(bool),
    /// A choice, a text, a path.
    Text(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Integer(value) => write!(formatter, "{value}"),
            OptionValue::Boolean(value) => write!(formatter, "{value}"),
            OptionValue::Text(value) => formatter.write_str(value),
        }
    }
}

/// A value that an option does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("found {found}; allowed: {allowed}")]
pub struct OptionError {
    /// What was found.
    pub found: String,
    /// What is allowed.
    pub allowed: String,
}

impl OptionKind {
    /// What is allowed, for messages and help.
    pub fn allowed(&self) -> String {
        match self {
            OptionKind::Integer { least: Some(least), most: Some(most) } => {
                format!("a whole number from {least} to {most}")
            }
            OptionKind::Integer { least: Some(least), most: None } => format!("a whole number from {least}"),
            OptionKind::Integer { least: None, most: Some(most) } => format!("a whole number up to {most}"),
            OptionKind::Integer { least: None, most: None } => "a whole number".to_owned(),
            OptionKind::Boolean => "true or false".to_owned(),
            OptionKind::Choice { choices } => alternatives(choices),
            OptionKind::String => "one line of text".to_owned(),
            OptionKind::Path => "a path".to_owned(),
        }
    }

    /// Takes a value that has its type already.
    pub fn take(&self, value: OptionValue) -> Result<OptionValue, OptionError> {
        let one_line = |text: &str| !text.chars().any(|letter| letter.is_control() || is_invisible(letter));
        let fits = match (self, &value) {
            (OptionKind::Integer { least, most }, OptionValue::Integer(number)) => {
                least.is_none_or(|least| *number >= least) && most.is_none_or(|most| *number <= most)
            }
            (OptionKind::Boolean, OptionValue::Boolean(_)) => true,
            (OptionKind::Choice { choices }, OptionValue::Text(text)) => choices.contains(text),
            (OptionKind::String, OptionValue::Text(text)) => one_line(text),
            (OptionKind::Path, OptionValue::Text(text)) => !text.is_empty() && !text.contains('\0'),
            _ => false,
        };
        match fits {
            true => Ok(value),
            false => Err(OptionError {
                found: match &value {
                    OptionValue::Text(text) => format!("\"{}\"", printable(text)),
                    other => other.to_string(),
                },
                allowed: self.allowed(),
            }),
        }
    }

    /// Reads a value that was typed on a command line.
    pub fn read(&self, text: &str) -> Result<OptionValue, OptionError> {
        let typed = match self {
            OptionKind::Integer { .. } => text.parse().map(OptionValue::Integer).ok(),
            OptionKind::Boolean => text.parse().map(OptionValue::Boolean).ok(),
            _ => None,
        };
        self.take(typed.unwrap_or_else(|| OptionValue::Text(text.to_owned())))
    }
}

/// Builds `[options.NAME]` from a table whose keys have been checked, and
/// checks what holds between them.
pub(super) fn build_option(path: &str, table: &DeTable<'_>, report: &mut Report<'_>) -> Option<OptionSpec> {
    let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str()).map(str::to_owned);
    let number = |key: &str| table.get(key).and_then(|value| integer(value.get_ref()));
    let span = |key: &str| table.get(key).map(|value| value.span());
    let type_name = text("type")?;
    for (key, owner) in [("least", "integer"), ("most", "integer"), ("choices", "choice")] {
        if table.get(key).is_some() && type_name != owner {
            let allowed = format!("`{key}` only with type \"{owner}\"");
            report.wrong(
                span(key),
                &format!("{path}.{key}"),
                format!("it with type \"{type_name}\""),
                allowed,
            );
        }
    }
    let kind = match type_name.as_str() {
        "integer" => OptionKind::Integer { least: number("least"), most: number("most") },
        "boolean" => OptionKind::Boolean,
        "string" => OptionKind::String,
        "path" => OptionKind::Path,
        "choice" => {
            let items = table.get("choices").and_then(|value| value.get_ref().as_array());
            let choices: Vec<String> = items
                .map(|items| {
                    items.iter().filter_map(|item| item.get_ref().as_str()).map(str::to_owned).collect()
                })
                .unwrap_or_default();
            if choices.is_empty() {
                report.wrong(span("type"), &format!("{path}.choices"), "nothing", "at least one choice");
            }
            OptionKind::Choice { choices }
        }
        _ => return None,
    };
    if let OptionKind::Integer { least: Some(least), most: Some(most) } = &kind
        && least > most
    {
        let allowed = format!("a number from {least}");
        report.wrong(span("most"), &format!("{path}.most"), most.to_string(), allowed);
        return None;
    }
    let default = table.get("default").and_then(|value| {
        let given = match value.get_ref() {
            DeValue::String(text) => OptionValue::Text(text.clone().into_owned()),
            DeValue::Boolean(value) => OptionValue::Boolean(*value),
            other => OptionValue::Integer(integer(other)?),
        };
        match kind.take(given) {
            Ok(default) => Some(default),
            Err(error) => {
                let found = found(value.get_ref());
                report.wrong(Some(value.span()), &format!("{path}.default"), found, error.allowed);
                None
            }
        }
    });
    Some(OptionSpec { kind, default, help: text("help")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_by_type_and_bounds() {
        let threads = OptionKind::Integer { least: Some(0), most: Some(64) };
        assert_eq!(threads.read("8"), Ok(OptionValue::Integer(8)));
        assert_eq!(
            threads.read("65").unwrap_err().to_string(),
            "found 65; allowed: a whole number from 0 to 64"
        );
        assert_eq!(
            threads.read("many").unwrap_err().to_string(),
            "found \"many\"; allowed: a whole number from 0 to 64"
        );
        assert_eq!(OptionKind::Boolean.read("true"), Ok(OptionValue::Boolean(true)));
        assert!(OptionKind::Boolean.read("yes").is_err());
        let choice = OptionKind::Choice { choices: vec!["f32".into(), "int8".into()] };
        assert_eq!(choice.read("int8"), Ok(OptionValue::Text("int8".into())));
        assert_eq!(choice.read("int4").unwrap_err().allowed, "f32 or int8");
        assert!(OptionKind::Path.read("").is_err());
        assert!(OptionKind::String.read("").is_ok());
        assert!(OptionKind::String.read("two\nlines").is_err());
    }

    #[test]
    fn a_text_is_never_taken_for_a_number() {
        assert_eq!(OptionKind::String.read("8"), Ok(OptionValue::Text("8".into())));
        assert!(OptionKind::String.take(OptionValue::Integer(8)).is_err());
    }
}
