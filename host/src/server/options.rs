//! How a server is set up: options, environment, and what follows from both.

use std::ffi::OsString;
use std::path::PathBuf;

use tensorfold_plugin_api::sampling::Sampling;

use super::ServeError;
use super::thinking::Thinking;

/// Port where none is given.
pub const DEFAULT_PORT: u16 = 8080;
/// Reply limit where neither request nor command line gives one.
pub const DEFAULT_MAX_TOKENS: u32 = 4096;
/// Largest request body taken. A prompt of a million tokens is a few MiB of JSON.
pub const DEFAULT_BODY_LIMIT_BYTES: usize = 32 << 20;

/// What the command line says about serving.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Name or address to listen at.
    pub host: String,
    /// Port to listen at; 0 takes a free one.
    pub port: u16,
    /// Model id that is advertised.
    pub name: String,
    /// Further ids that are answered.
    pub aliases: Vec<String>,
    /// Keys that open the gated routes.
    pub api_keys: Vec<String>,
    /// File of further keys.
    pub api_key_file: Option<PathBuf>,
    /// Reply limit of requests that give none.
    pub max_tokens: u32,
    /// Sampling of requests that say nothing about it; its seed is not used.
    pub sampling: Sampling,
    /// Whether models think unless told otherwise.
    pub thinking: bool,
    /// Level of effort unless told otherwise; `None`: the template's own.
    pub reasoning_effort: Option<String>,
    /// Reply token at which thinking is cut off; 0: never.
    pub thinking_budget: u32,
    /// Largest request body taken.
    pub body_limit_bytes: usize,
}

impl ServeOptions {
    /// The defaults, for a model that is advertised as `name`.
    pub fn new(name: impl Into<String>) -> Self {
        ServeOptions {
            host: "127.0.0.1".to_owned(),
            port: DEFAULT_PORT,
            name: name.into(),
            aliases: Vec::new(),
            api_keys: Vec::new(),
            api_key_file: None,
            max_tokens: DEFAULT_MAX_TOKENS,
            sampling: Sampling::GREEDY,
            thinking: true,
            reasoning_effort: None,
            thinking_budget: 0,
            body_limit_bytes: DEFAULT_BODY_LIMIT_BYTES,
        }
    }
}

/// The environment variables that concern serving, as found.
#[derive(Clone, Debug, Default)]
pub struct ServeEnvironment {
    /// `TENSORFOLD_API_KEY`: further keys, separated by commas.
    pub api_key: Option<OsString>,
    /// `TENSORFOLD_SEED_SALT`: mixed into seeds that come from prompts.
    pub seed_salt: Option<OsString>,
    /// `TENSORFOLD_REQUEST_LOG`: file that receives request bodies.
    pub request_log: Option<OsString>,
}

impl ServeEnvironment {
    /// Reads the variables of this process; an empty one counts as not set.
    pub fn read() -> Self {
        let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        ServeEnvironment {
            api_key: read("TENSORFOLD_API_KEY"),
            seed_salt: read("TENSORFOLD_SEED_SALT"),
            request_log: read("TENSORFOLD_REQUEST_LOG"),
        }
    }

    /// The salt; 0 where none is set.
    pub(super) fn salt(&self) -> Result<i64, ServeError> {
        let Some(value) = &self.seed_salt else { return Ok(0) };
        value
            .to_str()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| ServeError::SeedSalt { found: value.to_string_lossy().into_owned() })
    }

    /// The keys as text.
    pub(super) fn keys(&self) -> Result<Option<&str>, ServeError> {
        match &self.api_key {
            None => Ok(None),
            Some(value) => value.to_str().map(Some).ok_or(ServeError::KeyNotText),
        }
    }
}

/// What requests are read with.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Model ids: the name first, then aliases, each once.
    pub(super) models: Vec<String>,
    /// Unix seconds at which the model was loaded.
    pub(super) created: u64,
    pub(super) max_tokens: u32,
    pub(super) sampling: Sampling,
    pub(super) thinking: Thinking,
    /// Levels that the template names.
    pub(super) effort_levels: Vec<&'static str>,
    pub(super) thinking_budget: u32,
    pub(super) seed_salt: i64,
    pub(super) body_limit_bytes: usize,
    /// Bytes beyond which a prompt cannot fit the context, however it is tokenized.
    pub(super) prompt_limit_bytes: usize,
    /// Tokens that prompt and reply may have together.
    pub(super) context: u32,
}

impl Settings {
    /// The id to answer with: the one asked for when it is ours, else our name.
    pub(super) fn model_id(&self, asked: Option<&str>) -> &str {
        let known = asked.and_then(|asked| self.models.iter().find(|model| *model == asked));
        known.unwrap_or(&self.models[0])
    }
}

/// The name and then the aliases, each once.
pub(super) fn model_ids(options: &ServeOptions) -> Result<Vec<String>, ServeError> {
    let mut ids: Vec<String> = Vec::new();
    for (option, id) in
        [("--name", &options.name)].into_iter().chain(options.aliases.iter().map(|alias| ("--alias", alias)))
    {
        if id.trim().is_empty() {
            return Err(ServeError::EmptyName { option });
        }
        if !ids.contains(id) {
            ids.push(id.clone());
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_order_and_once() {
        let mut options = ServeOptions::new("demo");
        options.aliases = vec!["gpt".to_owned(), "demo".to_owned(), "gpt".to_owned()];
        assert_eq!(model_ids(&options).unwrap(), ["demo", "gpt"]);
        options.aliases = vec![" ".to_owned()];
        assert_eq!(model_ids(&options).unwrap_err().to_string(), "--alias must not be empty");
    }

    #[test]
    fn a_salt_is_a_whole_number_with_or_without_a_sign() {
        let salt = |text: &str| {
            ServeEnvironment { seed_salt: Some(text.into()), ..ServeEnvironment::default() }.salt()
        };
        assert_eq!(ServeEnvironment::default().salt().unwrap(), 0);
        assert_eq!(salt("-7").unwrap(), -7);
        assert_eq!(
            salt("seven").unwrap_err().to_string(),
            "TENSORFOLD_SEED_SALT must be a whole number, not \"seven\""
        );
    }
}
