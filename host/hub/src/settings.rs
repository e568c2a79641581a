//! What the environment says about the Hub, and the limits of every transfer.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use crate::cache::{expand, tools_folder};
use crate::error::HubError;

const ENDPOINT: &str = "https://huggingface.co";

/// How requests are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Hub's address, `HF_ENDPOINT`.
    pub endpoint: Url,
    /// Whether nothing may be asked at all, `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// Bounds of every request.
    pub limits: Limits,
    /// Sent as `User-Agent`.
    pub user_agent: String,
    pub(crate) token: Option<Token>,
}

/// Bounds of requests. The defaults suit the real Hub.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A server that sends fewer than [`Limits::least`] bytes in this time has stalled. `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub stall: Duration,
    /// Bytes that must arrive within [`Limits::stall`]; also the progress after which failures are counted anew.
    pub least: u64,
    /// Attempts at one request before it has failed.
    pub attempts: u32,
    /// The wait after the first failure; doubled after each further one.
    pub first_wait: Duration,
    /// The longest wait that an answer may ask for with `Retry-After`.
    pub longest_wait: Duration,
    /// Bytes of a large file that one request asks for. Files up to this size are asked for whole.
    pub piece: u64,
    /// Pieces that are under way at once. They arrive in memory, at most `piece` bytes each.
    pub pieces: usize,
    /// Most bytes of one answer that is read as a document.
    pub document: u64,
    /// Most files of a repository.
    pub files: usize,
    /// Most bytes of a file that is read for a model's metadata, or of a safetensors header.
    pub metadata: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            stall: Duration::from_secs(30),
            least: 16 << 10,
            attempts: 5,
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(120),
            piece: 8 << 20,
            pieces: 8,
            document: 16 << 20,
            files: 100_000,
            metadata: 64 << 20,
        }
    }
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// When a variable's value cannot be meant.
    pub fn from_environment() -> Result<Settings, HubError> {
        Settings::from_variables(|name| std::env::var_os(name))
    }

    /// As [`Settings::from_environment`], with the variables given.
    ///
    /// # Errors
    /// When a variable's value cannot be meant.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings, HubError> {
        let text = |name: &str| -> Result<Option<String>, HubError> {
            let value = variable(name).filter(|value| !value.is_empty()).map(OsString::into_string);
            value.transpose().map_err(|_| setting(name, "is not UTF-8"))
        };
        let switch = |name: &str| text(name).map(|value| value.is_some_and(|value| is_true(&value)));
        let mut limits = Limits::default();
        if let Some(seconds) = text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            limits.stall = seconds
                .parse()
                .ok()
                .filter(|seconds| (1..=3600).contains(seconds))
                .map(Duration::from_secs)
                .ok_or_else(|| {
                    setting("HF_HUB_DOWNLOAD_TIMEOUT", "is not a count of seconds from 1 to 3600")
                })?;
        }
        let offline = switch("HF_HUB_OFFLINE")?;
        let token = match offline || switch("HF_HUB_DISABLE_IMPLICIT_TOKEN")? {
            true => None,
            false => match text("HF_TOKEN")? {
                Some(token) => Token::parse(&token, "HF_TOKEN")?,
                None => token_from_file(&variable)?,
            },
        };
        Ok(Settings {
            endpoint: endpoint(text("HF_ENDPOINT")?.as_deref().unwrap_or(ENDPOINT))?,
            offline,
            limits,
            user_agent: concat!("tensorfold/", env!("CARGO_PKG_VERSION")).into(),
            token,
        })
    }
}

/// The values that Python's tools take for yes.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

fn setting(name: &str, problem: impl Into<String>) -> HubError {
    HubError::Setting { name: name.into(), problem: problem.into() }
}

/// An address to which paths are appended.
fn endpoint(text: &str) -> Result<Url, HubError> {
    let unfit =
        |problem: &str| setting("HF_ENDPOINT", format!("{problem}: an address such as {ENDPOINT} is wanted"));
    let url = Url::parse(text).map_err(|error| unfit(&format!("is no address ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(unfit("is not an http or https address"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(setting("HF_ENDPOINT", "holds a password: it would be shown in messages; use HF_TOKEN"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(unfit("has more than a path"));
    }
    Ok(url)
}

/// The token that a log-in of the Hub's tools has left: at `HF_TOKEN_PATH`, else `token` in their folder.
fn token_from_file(variable: &impl Fn(&str) -> Option<OsString>) -> Result<Option<Token>, HubError> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = path("HF_TOKEN_PATH").map(|file| expand(&file, path("HOME").as_deref()));
    let Some(file) = named.or_else(|| tools_folder(&path).map(|folder| folder.join("token"))) else {
        return Ok(None);
    };
    match read_token(&file) {
        Ok(text) => Token::parse(&text, &file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HubError::Disk { path: file, source }),
    }
}

fn read_token(file: &Path) -> std::io::Result<String> {
    // Looked at before opening: opening a pipe would wait for a writer.
    if !fs::metadata(file)?.is_file() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let mut text = String::new();
    fs::File::open(file)?.take(4096).read_to_string(&mut text)?;
    Ok(text)
}

/// A secret. Neither shown nor logged.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// The token in a text; none where it is blank.
    fn parse(text: &str, from: &str) -> Result<Option<Token>, HubError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > 1024 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(setting(from, "holds no token: one word of visible ASCII characters is wanted"));
        }
        Ok(Some(Token(text.into())))
    }

    /// The value of an `Authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Settings::from_variables(find).map_err(|error| error.to_string())
    }

    fn token(variables: &[(&str, &str)]) -> Option<String> {
        settings(variables).unwrap().token.map(|token| token.0)
    }

    #[test]
    fn without_variables_it_is_the_public_hub_without_a_token() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.endpoint.as_str(), "https://huggingface.co/");
        assert!(settings.token.is_none() && !settings.offline);
    }

    #[test]
    fn the_token_comes_from_the_variable_then_from_a_file() {
        let home = tempfile::tempdir().unwrap();
        let at_home = home.path().display().to_string();
        let own = home.path().join("own");
        fs::create_dir_all(home.path().join(".cache/huggingface")).unwrap();
        fs::write(home.path().join(".cache/huggingface/token"), "hf_file\n").unwrap();
        fs::write(&own, "hf_own").unwrap();
        let own = own.display().to_string();
        let all = [("HF_TOKEN", "hf_variable"), ("HF_TOKEN_PATH", own.as_str()), ("HOME", at_home.as_str())];
        assert_eq!(token(&all).as_deref(), Some("hf_variable"));
        assert_eq!(token(&all[1..]).as_deref(), Some("hf_own"));
        assert_eq!(token(&all[2..]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HOME", "/nowhere")]), None);
        for off in ["1", "YES", "true", "On"] {
            assert_eq!(token(&[all[0], ("HF_HUB_DISABLE_IMPLICIT_TOKEN", off)]), None, "{off}");
        }
        assert!(token(&[all[0], ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")]).is_some());
    }

    #[test]
    fn a_token_is_never_shown() {
        let settings = settings(&[("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(settings.token.is_some());
        assert!(!format!("{settings:?}").contains("secret"));
        for text in ["two words", "line\nline", "ü"] {
            let error = self::settings(&[("HF_TOKEN", text)]).unwrap_err();
            assert!(error.starts_with("HF_TOKEN holds no token") && !error.contains(text), "{error}");
        }
    }

    #[test]
    fn values_that_cannot_be_meant_are_refused_by_name() {
        for (name, value, wanted) in [
            ("HF_ENDPOINT", "huggingface.co", "HF_ENDPOINT is no address"),
            ("HF_ENDPOINT", "ftp://huggingface.co", "not an http or https address"),
            ("HF_ENDPOINT", "https://me:pw@hub.example", "holds a password"),
            ("HF_ENDPOINT", "https://hub.example/?x=1", "has more than a path"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", "HF_HUB_DOWNLOAD_TIMEOUT is not a count"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0", "from 1 to 3600"),
        ] {
            let error = settings(&[(name, value)]).unwrap_err();
            assert!(error.contains(wanted) && !error.contains("pw"), "{error}");
        }
        let timed = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7"), ("HF_HUB_OFFLINE", "1")]).unwrap();
        assert_eq!((timed.limits.stall, timed.offline), (Duration::from_secs(7), true));
    }
}
