//! Typed access to a file's metadata.

use super::super::gguf::{Gguf, Value};

/// The metadata of a file, with the keys of its architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys<'a> {
    file: &'a Gguf<'a>,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a Gguf<'a>, architecture: &'a str) -> Keys<'a> {
        Keys { file, architecture }
    }

    /// The full name of a key of the architecture.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value<'a>> {
        self.file.metadata.get(key)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(format!("{key} is {}; text is needed", other.kind())),
        }
    }

    /// An unsigned integer of at most 32 bits.
    pub(super) fn integer(&self, key: &str) -> Result<Option<u32>, String> {
        let wide = match self.get(key) {
            None => return Ok(None),
            Some(&Value::Unsigned(value)) => Some(value),
            Some(&Value::Signed(value)) => u64::try_from(value).ok(),
            Some(other) => return Err(format!("{key} is {}; an integer is needed", other.kind())),
        };
        match wide.and_then(|value| u32::try_from(value).ok()) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{key} is no integer between 0 and {}", u32::MAX)),
        }
    }

    /// A positive integer of the architecture.
    pub(super) fn required(&self, key: &str) -> Result<u32, String> {
        let name = self.name(key);
        match self.integer(&name)? {
            Some(value @ 1..) => Ok(value),
            Some(_) => Err(format!("{name} is 0; a positive integer is needed")),
            None => Err(format!("{name} is missing; a positive integer is needed")),
        }
    }

    /// A number. A float of 32 bits is read as the shortest decimal that gives it, as it was meant: 1e-5 is stored
    /// as 9.99999975e-6.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let value = match self.get(key) {
            None => return Ok(None),
            Some(&Value::Float(value)) => value.to_string().parse().unwrap_or(f64::from(value)),
            Some(&Value::Double(value)) => value,
            Some(&Value::Unsigned(value)) => value as f64,
            Some(other) => return Err(format!("{key} is {}; a number is needed", other.kind())),
        };
        if value.is_finite() { Ok(Some(value)) } else { Err(format!("{key} is {value}; a number is needed")) }
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Boolean(value)) => Ok(Some(value)),
            Some(other) => Err(format!("{key} is {}; true or false is needed", other.kind())),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<&'a [&'a str]>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            Some(other) => Err(format!("{key} is {}; a list of texts is needed", other.kind())),
        }
    }
}
