//! `config.json`, read with positions of faults.
//!
//! Nothing here knows a family: [`Config`] answers where a key stands and
//! whether it has the type that was asked for.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::CheckpointError;
use super::folder::Folder;
use super::foreign;

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    path: PathBuf,
    root: Map<String, Value>,
}

impl Config {
    /// Reads the `config.json` of a folder.
    ///
    /// # Errors
    /// When it is absent, cannot be read, or is not a JSON object.
    pub(crate) fn read(folder: &Folder) -> Result<Config, CheckpointError> {
        let path = folder.join("config.json");
        let Some(text) = folder.read_limited("config.json", Folder::METADATA_LIMIT)? else {
            let fix = match foreign::advice(&folder.names()?) {
                Some(advice) => advice,
                None => {
                    "a checkpoint is a folder with config.json, tokenizer.json and *.safetensors files".into()
                }
            };
            return Err(CheckpointError::Missing { path, fix });
        };
        Config::parse(&path, &text)
    }

    /// Parses the text of a `config.json`; `path` is for messages.
    ///
    /// # Errors
    /// When it is not a JSON object.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Config, CheckpointError> {
        let root = serde_json::from_slice(text)
            .map_err(|source| CheckpointError::Json { path: path.into(), source })?;
        Ok(Config { path: path.into(), root })
    }

    /// Where it was read from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The top level.
    pub(crate) fn top(&self) -> Section<'_> {
        Section { path: &self.path, prefix: String::new(), map: &self.root }
    }

    /// The text model's section: `text_config` where there is one, else the
    /// top level.
    pub(crate) fn text(&self) -> Section<'_> {
        match self.root.get("text_config") {
            Some(Value::Object(map)) => Section { path: &self.path, prefix: "text_config.".into(), map },
            _ => self.top(),
        }
    }

    /// `model_type`, the family as the checkpoint spells it.
    ///
    /// # Errors
    /// When it is absent or not a string.
    pub(crate) fn model_type(&self) -> Result<&str, CheckpointError> {
        let problem = match self.root.get("model_type") {
            Some(Value::String(name)) => return Ok(name),
            None | Some(Value::Null) => "is missing; it names the model's family".to_owned(),
            Some(other) => format!("is {}; a string that names the model's family is needed", brief(other)),
        };
        Err(CheckpointError::value(&self.path, "model_type", problem))
    }

    /// The longest context, in tokens: `max_position_embeddings` of the text
    /// section, else of the top level.
    ///
    /// # Errors
    /// When it is not a positive integer.
    pub(crate) fn context_window(&self) -> Result<Option<u32>, CheckpointError> {
        let text = self.text().integer("max_position_embeddings")?;
        Ok(if text.is_some() { text } else { self.top().integer("max_position_embeddings")? })
    }
}

/// One object of a config. A key that is `null` counts as absent.
#[derive(Clone, Debug)]
pub(crate) struct Section<'a> {
    path: &'a Path,
    prefix: String,
    map: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    /// A key as it is.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// All keys and values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// A nested object.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn section(&self, key: &str) -> Result<Option<Section<'a>>, CheckpointError> {
        let prefix = format!("{}{key}.", self.prefix);
        self.typed(key, "an object", |value| {
            value.as_object().map(|map| Section { path: self.path, prefix, map })
        })
    }

    /// A positive integer below 2^32.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        self.typed(key, "a positive integer", |value| {
            value.as_u64().and_then(|value| u32::try_from(value).ok()).filter(|&value| value > 0)
        })
    }

    /// A finite number.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        self.typed(key, "a number", |value| value.as_f64().filter(|value| value.is_finite()))
    }

    /// A boolean.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a [Value]>, CheckpointError> {
        self.typed(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// An integer that has no sensible default.
    ///
    /// # Errors
    /// When it is absent too.
    pub(crate) fn required_integer(&self, key: &str) -> Result<u32, CheckpointError> {
        self.integer(key)?.ok_or_else(|| self.fault(key, "is missing; a positive integer is needed"))
    }

    /// A number that has no sensible default.
    ///
    /// # Errors
    /// When it is absent too.
    pub(crate) fn required_number(&self, key: &str) -> Result<f64, CheckpointError> {
        self.number(key)?.ok_or_else(|| self.fault(key, "is missing; a number is needed"))
    }

    /// A fault at a key.
    pub(crate) fn fault(&self, key: &str, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::value(self.path, format!("{}{key}", self.prefix), problem)
    }

    /// A key whose value asks for what this build does not compute.
    pub(crate) fn unsupported(&self, key: &str, needed: impl Into<String>) -> CheckpointError {
        let value = self.get(key).map(brief).unwrap_or_else(|| "absent".into());
        CheckpointError::unsupported(self.path, format!("{}{key} is {value}", self.prefix), needed)
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.fault(key, format!("is {}; {wanted} is needed", brief(value)))),
        }
    }
}

/// A value for a message, cut where it is long.
pub(crate) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse("config.json".as_ref(), text.as_bytes()).unwrap()
    }

    #[test]
    fn the_text_section_is_preferred_and_optional() {
        let nested = config(r#"{"hidden_size": 1, "text_config": {"hidden_size": 2}}"#);
        assert_eq!(nested.text().integer("hidden_size").unwrap(), Some(2));
        assert_eq!(config(r#"{"hidden_size": 1}"#).text().integer("hidden_size").unwrap(), Some(1));
    }

    #[test]
    fn a_wrong_type_is_named_with_its_position() {
        let config = config(r#"{"text_config": {"hidden_size": -3, "eps": "x", "layers": null}}"#);
        let text = config.text();
        assert_eq!(
            text.integer("hidden_size").unwrap_err().to_string(),
            "config.json: text_config.hidden_size is -3; a positive integer is needed"
        );
        assert!(text.number("eps").is_err());
        assert_eq!(text.integer("layers").unwrap(), None);
        assert_eq!(
            text.required_integer("layers").unwrap_err().to_string(),
            "config.json: text_config.layers is missing; a positive integer is needed"
        );
    }

    #[test]
    fn a_family_that_is_no_name_is_not_called_missing() {
        let error = |text: &str| config(text).model_type().unwrap_err().to_string();
        assert!(error("{}").contains("model_type is missing"));
        assert!(error(r#"{"model_type": null}"#).contains("model_type is missing"));
        assert!(error(r#"{"model_type": 5}"#).contains("model_type is 5; a string"));
    }

    #[test]
    fn the_context_window_may_stand_at_either_level() {
        let nested = r#"{"max_position_embeddings": 9, "text_config": {"max_position_embeddings": 7}}"#;
        assert_eq!(config(nested).context_window().unwrap(), Some(7));
        let flat = r#"{"max_position_embeddings": 9, "text_config": {}}"#;
        assert_eq!(config(flat).context_window().unwrap(), Some(9));
    }
}
