//! `generation_config.json`: how the makers of a model want it sampled, and
//! where a reply ends.

use serde_json::{Map, Value};

use super::config::{Config, brief};
use super::error::CheckpointError;
use super::folder::Folder;
use super::vocabulary::Vocabulary;

const FILE: &str = "generation_config.json";

/// Sampling parameters that hold where neither command line nor request says
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// 0 takes the best token.
    pub temperature: f64,
    /// Share of the probability to draw from, in (0, 1]; 1 is all.
    pub top_p: f64,
    /// How many of the best tokens to draw from; 0 is all.
    pub top_k: u32,
    /// Least probability, relative to the best token's; 0 is any.
    pub min_p: f64,
}

impl Default for GenerationDefaults {
    /// Greedy.
    fn default() -> Self {
        GenerationDefaults { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0 }
    }
}

/// What a checkpoint's `generation_config.json` says.
#[derive(Clone, Debug, Default)]
pub(super) struct GenerationConfig {
    pub(super) defaults: GenerationDefaults,
    end_tokens: Option<Vec<u32>>,
}

impl GenerationConfig {
    /// Reads the file; without one, everything is at its default.
    ///
    /// # Errors
    /// When the file does not parse or a value is out of range.
    pub(super) fn read(folder: &Folder) -> Result<GenerationConfig, CheckpointError> {
        let Some(map) = folder.read_json::<Map<String, Value>>(FILE, Folder::METADATA_LIMIT)? else {
            return Ok(GenerationConfig::default());
        };
        let fault = |key: &str, value: &Value, wanted: &str| {
            CheckpointError::value(
                &folder.join(FILE),
                key,
                format!("is {}; {wanted} is needed", brief(value)),
            )
        };
        let number = |key: &str, wanted: &str, good: fn(f64) -> bool| match map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_f64().filter(|&v| good(v)).map(Some).ok_or_else(|| fault(key, value, wanted))
            }
        };
        let sampling = match map.get("do_sample") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(sampling)) => Some(*sampling),
            Some(value) => return Err(fault("do_sample", value, "true or false")),
        };
        let temperature = number("temperature", "a number from 0 up", |v| v.is_finite() && v >= 0.0)?;
        let temperature = match sampling {
            Some(false) => 0.0,
            Some(true) => temperature.unwrap_or(1.0),
            None => temperature.unwrap_or(0.0),
        };
        let whole = |v: f64| v >= 0.0 && v.fract() == 0.0 && v <= f64::from(u32::MAX);
        let defaults = GenerationDefaults {
            temperature,
            top_p: number("top_p", "a number above 0, at most 1", |v| v > 0.0 && v <= 1.0)?.unwrap_or(1.0),
            top_k: number("top_k", "a whole number from 0 up", whole)?.unwrap_or(0.0) as u32,
            min_p: number("min_p", "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))?.unwrap_or(0.0),
        };
        let end_tokens = match map.get("eos_token_id") {
            None => None,
            Some(value) => {
                ids(value).ok_or_else(|| fault("eos_token_id", value, "a token id or a list of them"))?
            }
        };
        Ok(GenerationConfig { defaults, end_tokens })
    }
}

/// The ids that end a reply: those of `generation_config.json`, else the
/// tokenizer's, else those of `config.json`. Sorted, without repeats; ids that
/// no reply can hold are dropped.
///
/// # Errors
/// When `config.json` is asked and names something that is no id.
pub(super) fn stop_tokens(
    generation: &GenerationConfig,
    vocabulary: &Vocabulary,
    config: &Config,
) -> Result<Vec<u32>, CheckpointError> {
    let mut tokens = match (&generation.end_tokens, vocabulary.end_token) {
        (Some(tokens), _) => tokens.clone(),
        (None, Some(token)) => vec![token],
        (None, None) => {
            let (top, text) = (config.top(), config.text());
            let section = if top.get("eos_token_id").is_some() { top } else { text };
            match section.get("eos_token_id") {
                None => Vec::new(),
                Some(value) => match ids(value) {
                    Some(tokens) => tokens.unwrap_or_default(),
                    None => {
                        let problem = format!("is {}; a token id or a list of them is needed", brief(value));
                        return Err(section.fault("eos_token_id", problem));
                    }
                },
            }
        }
    };
    tokens.retain(|&token| token < vocabulary.size);
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

/// `Some(None)` for null, `None` for what is no id.
fn ids(value: &Value) -> Option<Option<Vec<u32>>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Null => Some(None),
        Value::Array(values) => values.iter().map(id).collect::<Option<Vec<_>>>().map(Some),
        value => id(value).map(|id| Some(vec![id])),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(root.path().join(name), text).unwrap();
        }
        let folder = Folder::open(root.path()).unwrap();
        (root, folder)
    }

    fn defaults(text: &str) -> Result<GenerationDefaults, CheckpointError> {
        let (_root, folder) = folder(&[(FILE, text)]);
        Ok(GenerationConfig::read(&folder)?.defaults)
    }

    #[test]
    fn sampling_follows_do_sample() {
        let (_root, empty) = folder(&[]);
        assert_eq!(GenerationConfig::read(&empty).unwrap().defaults, GenerationDefaults::default());
        assert_eq!(defaults(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap().temperature, 0.0);
        assert_eq!(defaults(r#"{"do_sample": true}"#).unwrap().temperature, 1.0);
        assert_eq!(defaults(r#"{"temperature": 0.6}"#).unwrap().temperature, 0.6);
        assert_eq!(defaults("{}").unwrap().temperature, 0.0);
        let full =
            defaults(r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": null}"#);
        let wanted = GenerationDefaults { temperature: 0.7, top_p: 0.8, top_k: 20, min_p: 0.0 };
        assert_eq!(full.unwrap(), wanted);
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, wanted) in [
            (r#"{"top_p": 0}"#, "top_p is 0"),
            (r#"{"top_k": 1.5}"#, "top_k is 1.5"),
            (r#"{"min_p": 2}"#, "min_p is 2"),
            (r#"{"temperature": "hot"}"#, "temperature is \"hot\""),
            (r#"{"do_sample": 1}"#, "do_sample is 1"),
            (r#"{"eos_token_id": -1}"#, "eos_token_id is -1"),
        ] {
            let error = defaults(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_stop_set_comes_from_the_first_place_that_names_one() {
        let config = r#"{"text_config": {"eos_token_id": 3}}"#;
        let vocabulary = |end_token| Vocabulary { size: 10, end_token };
        let stop = |generation: &str, end_token, config: &str| {
            let (_root, folder) = folder(&[(FILE, generation), ("config.json", config)]);
            let generation = GenerationConfig::read(&folder).unwrap();
            stop_tokens(&generation, &vocabulary(end_token), &Config::read(&folder).unwrap())
        };
        assert_eq!(stop(r#"{"eos_token_id": [7, 5, 7, 99]}"#, Some(1), config).unwrap(), [5, 7]);
        assert_eq!(stop(r#"{"eos_token_id": null}"#, Some(1), config).unwrap(), [1]);
        assert_eq!(stop("{}", None, config).unwrap(), [3]);
        assert_eq!(
            stop("{}", None, r#"{"eos_token_id": [2], "text_config": {"eos_token_id": 3}}"#).unwrap(),
            [2]
        );
        assert_eq!(stop("{}", None, "{}").unwrap(), [] as [u32; 0]);
        assert!(stop("{}", None, r#"{"eos_token_id": "x"}"#).is_err());
    }
}
