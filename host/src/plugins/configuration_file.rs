//! The text of one `plugins.toml`, as it stands: keys, types and bounds. What files mean together is
//! [`super::configuration`]'s part.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};

use super::lifecycle::{one_line, show_path};
use super::safety::is_bare_file_name;

/// What is wrong with a file, and where.
pub(super) struct ContentError {
    /// Line, from 1.
    pub(super) line: usize,
    /// What was wanted and what was found.
    pub(super) what: String,
}

/// Reads one file's text.
pub(super) fn parse(text: &str) -> Result<RawFile, ContentError> {
    let content = |line: usize, what: String| ContentError { line, what };
    let file: RawFile = toml::from_str(text).map_err(|error| {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        content(line, one_line(error.message()))
    })?;
    file.validate().map_err(|(key, what)| {
        let line = text.lines().position(|line| line.contains(key.as_str())).map_or(1, |index| index + 1);
        content(line, what)
    })?;
    Ok(file)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawFile {
    pub(super) search: RawSearch,
    pub(super) plugin: RawPlugins,
    pub(super) policy: RawPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSearch {
    pub(super) paths: Vec<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPolicy {
    pub(super) require_lock: Option<bool>,
    pub(super) allow_unsafe_paths: Option<Vec<PathBuf>>,
}

/// `[[plugin]]` with `library` or `id` in each entry, or `[plugin."ID"]` tables.
#[derive(Debug, Default)]
pub(super) struct RawPlugins(pub(super) Vec<RawPlugin>);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPlugin {
    pub(super) library: Option<String>,
    pub(super) id: Option<String>,
    pub(super) enabled: Option<bool>,
    pub(super) options: BTreeMap<String, toml::Value>,
    pub(super) sha256: Option<String>,
}

impl<'de> Deserialize<'de> for RawPlugins {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawPlugins;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("[[plugin]] entries or [plugin.\"ID\"] tables")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<RawPlugins, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = sequence.next_element()? {
                    entries.push(entry);
                }
                Ok(RawPlugins(entries))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawPlugins, A::Error> {
                let mut entries = Vec::new();
                while let Some((id, mut entry)) = map.next_entry::<String, RawPlugin>()? {
                    if entry.id.is_some() || entry.library.is_some() {
                        return Err(serde::de::Error::custom(format!(
                            "[plugin.\"{id}\"] has its id in its name: `id` and `library` belong into [[plugin]]"
                        )));
                    }
                    entry.id = Some(id);
                    entries.push(entry);
                }
                Ok(RawPlugins(entries))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

impl RawFile {
    /// The first value that is not allowed: the text to find its line by, and the sentence.
    fn validate(&self) -> Result<(), (String, String)> {
        for (key, paths) in [
            ("paths", &self.search.paths),
            ("allow_unsafe_paths", self.policy.allow_unsafe_paths.as_ref().unwrap_or(&Vec::new())),
        ] {
            if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
                let shown = show_path(path);
                return Err((shown.clone(), format!("{key}: wanted absolute folders, found `{shown}`")));
            }
        }
        for entry in &self.plugin.0 {
            if let Some(library) = &entry.library
                && !is_bare_file_name(library)
            {
                return Err((
                    library.clone(),
                    format!(
                        "library: wanted a bare file name, found `{}`; name folders in [search] paths",
                        one_line(library)
                    ),
                ));
            }
            if entry.library.is_none() && entry.id.is_none() {
                return Err((
                    "[[plugin]]".into(),
                    "[[plugin]]: wanted `library` or `id`, found neither".into(),
                ));
            }
            if entry.id.is_none() && (!entry.options.is_empty() || entry.sha256.is_some()) {
                return Err((
                    "[[plugin]]".into(),
                    "[[plugin]]: `options` and `sha256` need the plugin's `id` beside them".into(),
                ));
            }
            if let Some(digest) = &entry.sha256
                && !super::lock::is_digest(digest)
            {
                return Err((
                    "sha256".into(),
                    format!("sha256: wanted 64 lower-case hexadecimal digits, found `{}`", one_line(digest)),
                ));
            }
            for (name, value) in &entry.options {
                if matches!(value, toml::Value::Array(_) | toml::Value::Table(_) | toml::Value::Datetime(_)) {
                    return Err((
                        name.clone(),
                        format!(
                            "options.{name}: wanted a string, number or boolean, found {}",
                            value.type_str()
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}
