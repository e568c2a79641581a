//! What a checkpoint's text files say about ids: how many the tokenizer knows
//! and which one ends a turn. Reads `tokenizer.json` without building a
//! tokenizer.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::error::CheckpointError;
use super::folder::Folder;

/// Largest `tokenizer.json` that is read; the largest in use have some 35 MB.
pub(crate) const TOKENIZER_LIMIT: u64 = 512 << 20;

/// Facts of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vocabulary {
    /// Ids below this exist.
    pub(super) size: u32,
    /// The end-of-turn token that `tokenizer_config.json` names.
    pub(super) end_token: Option<u32>,
}

impl Vocabulary {
    /// Reads `tokenizer.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// When the former is absent or either does not parse.
    pub(super) fn read(folder: &Folder) -> Result<Vocabulary, CheckpointError> {
        let path = folder.join("tokenizer.json");
        let Some(document) = folder.read_json::<Document>("tokenizer.json", TOKENIZER_LIMIT)? else {
            let fix = "the tokenizer is read from it; download the checkpoint's tokenizer.json".into();
            return Err(CheckpointError::Missing { path, fix });
        };
        let added = document.added_tokens.iter().map(|token| token.id.checked_add(1));
        let size =
            added.chain([Some(document.model.vocab.0)]).try_fold(0, |size, next| Some(size.max(next?)));
        let Some(size @ 1..) = size else {
            return Err(CheckpointError::value(&path, "model.vocab", "holds no usable ids"));
        };
        let end = end_token_text(folder)?;
        let end_token = end.and_then(|text| {
            document.added_tokens.iter().find(|token| token.content == text).map(|token| token.id)
        });
        Ok(Vocabulary { size, end_token })
    }
}

/// `eos_token` of `tokenizer_config.json`: a string, or an object around one.
fn end_token_text(folder: &Folder) -> Result<Option<String>, CheckpointError> {
    let config: Option<Value> = folder.read_json("tokenizer_config.json", Folder::METADATA_LIMIT)?;
    let end = config.as_ref().and_then(|config| config.get("eos_token"));
    let text = end.and_then(|end| end.as_str().or_else(|| end.get("content")?.as_str()));
    Ok(text.map(str::to_owned))
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: IdLimit,
}

/// One more than the largest id of a vocabulary, whose entries are not kept:
/// an object from token to id, or a list of tokens with scores.
struct IdLimit(u32);

impl<'de> Deserialize<'de> for IdLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = IdLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IdLimit, A::Error> {
                let mut limit = 0u32;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u32>()? {
                    limit = limit.max(id.checked_add(1).ok_or_else(|| {
                        serde::de::Error::invalid_value(serde::de::Unexpected::Unsigned(id.into()), &"an id")
                    })?);
                }
                Ok(IdLimit(limit))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<IdLimit, A::Error> {
                let mut count = 0u32;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count = count.saturating_add(1);
                }
                Ok(IdLimit(count))
            }
        }
        deserializer.deserialize_any(Ids)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(tokenizer: &str, config: Option<&str>) -> Result<Vocabulary, CheckpointError> {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("tokenizer.json"), tokenizer).unwrap();
        if let Some(config) = config {
            fs::write(root.path().join("tokenizer_config.json"), config).unwrap();
        }
        Vocabulary::read(&Folder::open(root.path()).unwrap())
    }

    #[test]
    fn the_size_counts_added_tokens() {
        let tokenizer =
            r#"{"model": {"vocab": {"a": 0, "b": 4}}, "added_tokens": [{"id": 7, "content": "<end>"}]}"#;
        let vocabulary = read(tokenizer, Some(r#"{"eos_token": {"content": "<end>"}}"#)).unwrap();
        assert_eq!(vocabulary, Vocabulary { size: 8, end_token: Some(7) });
        assert_eq!(read(tokenizer, Some(r#"{"eos_token": "?"}"#)).unwrap().end_token, None);
        assert_eq!(read(tokenizer, None).unwrap().end_token, None);
        assert_eq!(read(r#"{"model": {"vocab": [["a", 0.5], ["b", 1]]}}"#, None).unwrap().size, 2);
    }

    #[test]
    fn a_vocabulary_without_usable_ids_is_refused() {
        assert!(read(r#"{"model": {"vocab": {}}}"#, None).is_err());
        assert!(read(r#"{"model": {"vocab": {"a": -1}}}"#, None).is_err());
        assert!(read(r#"{"model": {"vocab": {"a": 4294967295}}}"#, None).is_err());
        assert!(read(r#"{"model": {}}"#, None).is_err());
        assert!(read("[", None).is_err());
    }
}
