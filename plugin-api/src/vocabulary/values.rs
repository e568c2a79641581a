//! How the value of a flag is read, and the words in which a wrong one is
//! refused.

use thiserror::Error;

/// A command line that can not be read. Shown after the usage line; the
/// command ends with status 2.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl UsageError {
    fn argument(flag: &str, what: &str, text: &str) -> UsageError {
        UsageError(format!("argument {flag}: {what}: '{text}'"))
    }
}

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    /// No value.
    Switch,
    /// Any text.
    Text,
    /// A file or folder.
    Path,
    /// A TCP port; 0 lets the system choose.
    Port,
    /// A whole number, negative ones too.
    Integer,
    /// A whole number within bounds.
    Count {
        /// The least.
        least: i64,
        /// The most, if there is one.
        most: Option<i64>,
    },
    /// A finite number.
    Number,
    /// A number from 0 to 1.
    Probability,
    /// A size in GiB: finite, from 0, below 2^34.
    Gibibytes,
    /// A time in seconds: finite, from 0.
    Seconds,
    /// `auto`, or a whole number from 1.
    AutoOrCount,
    /// `auto`, or a number above 0 and not above 1.
    AutoOrFraction,
    /// One of these.
    Choice(&'static [&'static str]),
    /// One of these whole numbers.
    NumberChoice(&'static [&'static str]),
    /// `key=value`, several joined by commas; or nothing.
    Assignments,
    /// `key=value`.
    Assignment,
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum FlagValue {
    /// A switch that was given.
    On,
    /// The word `auto` where a number may stand.
    Auto,
    /// Text, a path, a choice.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
}

impl FlagValue {
    /// The text, for texts, paths and choices.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            FlagValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            FlagValue::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// The number, whole or not.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            FlagValue::Number(value) => Some(*value),
            FlagValue::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }
}

impl ValueKind {
    /// Reads the text that stands after `flag`.
    pub fn read(self, flag: &str, text: &str) -> Result<FlagValue, UsageError> {
        let refuse = |what: &str| UsageError::argument(flag, what, text);
        match self {
            ValueKind::Switch => {
                Err(UsageError(format!("argument {flag}: ignored explicit argument '{text}'")))
            }
            ValueKind::Text | ValueKind::Path => Ok(FlagValue::Text(text.to_owned())),
            ValueKind::Port => match text.parse::<u16>() {
                Ok(port) => Ok(FlagValue::Integer(port.into())),
                Err(_) => Err(refuse("invalid port")),
            },
            ValueKind::Integer => match text.parse() {
                Ok(value) => Ok(FlagValue::Integer(value)),
                Err(_) => Err(refuse("invalid int value")),
            },
            ValueKind::Count { least, most } => match text.parse::<i64>() {
                Ok(value) if value >= least && most.is_none_or(|most| value <= most) => {
                    Ok(FlagValue::Integer(value))
                }
                _ => Err(refuse(&match most {
                    Some(most) => format!("a count from {least} to {most}"),
                    None => format!("a count from {least}"),
                })),
            },
            ValueKind::Number => match finite(text) {
                Some(value) => Ok(FlagValue::Number(value)),
                None => Err(refuse("invalid float value")),
            },
            ValueKind::Probability => match finite(text) {
                Some(value) if (0.0..=1.0).contains(&value) => Ok(FlagValue::Number(value)),
                _ => Err(refuse("a probability in [0, 1]")),
            },
            ValueKind::Gibibytes => match finite(text) {
                Some(value) if (0.0..GIBIBYTES_LIMIT).contains(&value) => Ok(FlagValue::Number(value)),
                _ => Err(refuse("a size in GiB from 0, below 2^34")),
            },
            ValueKind::Seconds => match finite(text) {
                Some(value) if value >= 0.0 => Ok(FlagValue::Number(value)),
                _ => Err(refuse("a number of seconds from 0")),
            },
            ValueKind::AutoOrCount => match text.parse::<i64>() {
                _ if text == "auto" => Ok(FlagValue::Auto),
                Ok(value) if value >= 1 => Ok(FlagValue::Integer(value)),
                _ => Err(refuse("expected auto or a count from 1")),
            },
            ValueKind::AutoOrFraction => match finite(text) {
                _ if text == "auto" => Ok(FlagValue::Auto),
                Some(value) if value > 0.0 && value <= 1.0 => Ok(FlagValue::Number(value)),
                _ => Err(refuse("expected auto or a fraction in (0, 1]")),
            },
            ValueKind::Choice(choices) => match choices.contains(&text) {
                true => Ok(FlagValue::Text(text.to_owned())),
                false => Err(refuse("invalid choice")),
            },
            ValueKind::NumberChoice(choices) => match text.parse::<i64>() {
                Ok(value) if choices.iter().any(|choice| choice.parse() == Ok(value)) => {
                    Ok(FlagValue::Integer(value))
                }
                Ok(_) => Err(refuse("invalid choice")),
                Err(_) => Err(refuse("invalid int value")),
            },
            ValueKind::Assignment => match is_assignment(text) {
                true => Ok(FlagValue::Text(text.to_owned())),
                false => Err(refuse("expected key=value")),
            },
            ValueKind::Assignments => match text.is_empty() || text.split(',').all(is_assignment) {
                true => Ok(FlagValue::Text(text.to_owned())),
                false => Err(refuse("expected key=value")),
            },
        }
    }
}

/// GiB values stay below this, so that they fit into bytes.
const GIBIBYTES_LIMIT: f64 = (1_u64 << 34) as f64;

fn finite(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(key, _)| !key.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: ValueKind, text: &str) -> String {
        kind.read("--flag", text).expect_err(text).to_string()
    }

    #[test]
    fn wrong_values_are_refused_in_the_known_words() {
        let count = ValueKind::Count { least: 0, most: Some(64) };
        for (kind, text, wanted) in [
            (ValueKind::Switch, "yes", "argument --flag: ignored explicit argument 'yes'"),
            (ValueKind::Port, "65536", "argument --flag: invalid port: '65536'"),
            (ValueKind::Port, "-1", "argument --flag: invalid port: '-1'"),
            (ValueKind::Integer, "1.5", "argument --flag: invalid int value: '1.5'"),
            (count, "65", "argument --flag: a count from 0 to 64: '65'"),
            (count, "three", "argument --flag: a count from 0 to 64: 'three'"),
            (ValueKind::Count { least: 0, most: None }, "-1", "argument --flag: a count from 0: '-1'"),
            (ValueKind::Number, "warm", "argument --flag: invalid float value: 'warm'"),
            (ValueKind::Number, "nan", "argument --flag: invalid float value: 'nan'"),
            (ValueKind::Probability, "1.1", "argument --flag: a probability in [0, 1]: '1.1'"),
            (ValueKind::AutoOrFraction, "0", "argument --flag: expected auto or a fraction in (0, 1]: '0'"),
            (ValueKind::AutoOrCount, "0", "argument --flag: expected auto or a count from 1: '0'"),
            (ValueKind::Choice(&["a", "b"]), "c", "argument --flag: invalid choice: 'c'"),
            (ValueKind::NumberChoice(&["1", "2"]), "3", "argument --flag: invalid choice: '3'"),
            (ValueKind::NumberChoice(&["1", "2"]), "x", "argument --flag: invalid int value: 'x'"),
            (ValueKind::Assignment, "", "argument --flag: expected key=value: ''"),
            (ValueKind::Assignments, "a=1,b", "argument --flag: expected key=value: 'a=1,b'"),
            (
                ValueKind::Gibibytes,
                "17179869184",
                "argument --flag: a size in GiB from 0, below 2^34: '17179869184'",
            ),
            (ValueKind::Gibibytes, "inf", "argument --flag: a size in GiB from 0, below 2^34: 'inf'"),
        ] {
            assert_eq!(message(kind, text), wanted);
        }
    }

    #[test]
    fn right_values_are_read() {
        let read = |kind: ValueKind, text: &str| kind.read("--flag", text).expect(text);
        assert_eq!(read(ValueKind::Port, "0"), FlagValue::Integer(0));
        assert_eq!(read(ValueKind::AutoOrCount, "auto"), FlagValue::Auto);
        assert_eq!(read(ValueKind::AutoOrCount, "8"), FlagValue::Integer(8));
        assert_eq!(read(ValueKind::AutoOrFraction, "1"), FlagValue::Number(1.0));
        assert_eq!(read(ValueKind::Probability, "0.30"), FlagValue::Number(0.3));
        assert_eq!(read(ValueKind::NumberChoice(&["1", "2"]), "2"), FlagValue::Integer(2));
        assert_eq!(read(ValueKind::Integer, "-3"), FlagValue::Integer(-3));
        assert_eq!(read(ValueKind::Assignments, "").as_text(), Some(""));
        assert_eq!(read(ValueKind::Assignments, "a=1,b=").as_text(), Some("a=1,b="));
        assert_eq!(read(ValueKind::Text, "").as_text(), Some(""));
    }
}
