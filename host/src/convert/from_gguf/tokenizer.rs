//! The tokenizer of a file as `tokenizer.json` and `tokenizer_config.json`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value as Json, json};
use tokenizers::Tokenizer;

use super::super::gguf::Value;
use super::keys::Keys;
use super::sentencepiece;
use super::splitting::Splitting;

/// The files, and what `config.json` says of ids.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    /// `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub(super) config: Json,
    pub(super) begin: Option<u32>,
    /// Ids that end a reply; at least one.
    pub(super) ends: Vec<u32>,
    pub(super) padding: Option<u32>,
}

/// What a token is, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Never written to the user, and recognised where a text spells it out.
    Special,
    /// Recognised where a text spells it out.
    Added,
    /// A row of the vocabulary that no text has.
    Unused,
}

/// How text becomes tokens.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    /// Bytes are merged, within pieces that rules cut.
    ByteLevel(Splitting),
    /// Characters are merged by the scores of what they make; what is in no token is written as bytes.
    SentencePiece {
        /// Whether a text gets a space before it.
        begins_with_space: bool,
    },
}

impl Algorithm {
    fn read(keys: &Keys<'_>) -> Result<Algorithm, String> {
        match keys.text("tokenizer.ggml.model")? {
            Some("gpt2") => Ok(Algorithm::ByteLevel(Splitting::named(keys.text("tokenizer.ggml.pre")?)?)),
            Some("llama") => {
                let key = "tokenizer.ggml.remove_extra_whitespaces";
                if keys.boolean(key)? == Some(true) {
                    return Err(format!("{key} is true, which is not implemented"));
                }
                let begins_with_space = keys.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                Ok(Algorithm::SentencePiece { begins_with_space })
            }
            Some(other) => Err(format!(
                "tokenizer.ggml.model is {other:?}; \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE) are converted: take the model's original weights with their tokenizer.json"
            )),
            None => {
                Err("tokenizer.ggml.model is missing; a model without its tokenizer is not converted".into())
            }
        }
    }

    /// Whether a prompt begins with the model's first token where the file does not say.
    fn begins(self) -> bool {
        match self {
            Algorithm::ByteLevel(splitting) => splitting.begins,
            Algorithm::SentencePiece { .. } => true,
        }
    }
}

impl TokenizerFiles {
    /// Reads the tokenizer of a model whose vocabulary has `rows` rows.
    ///
    /// # Errors
    /// When it is of another kind, or does not fit together.
    pub(super) fn read(keys: &Keys<'_>, rows: u64) -> Result<TokenizerFiles, String> {
        let algorithm = Algorithm::read(keys)?;
        let tokens = keys.texts("tokenizer.ggml.tokens")?.ok_or("tokenizer.ggml.tokens is missing")?;
        if tokens.is_empty() || tokens.len() as u64 > rows {
            return Err(format!("it has {} tokens and a vocabulary of {rows} rows", tokens.len()));
        }
        let kinds = kinds(keys, tokens)?;
        let id = |name: &str| -> Result<Option<u32>, String> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match keys.integer(&key)? {
                Some(id) if id as usize >= tokens.len() => {
                    Err(format!("{key} is {id}, and there are {} tokens", tokens.len()))
                }
                id => Ok(id),
            }
        };
        let (begin, padding) = (id("bos")?, id("padding")?);
        let mut ends = Vec::new();
        for end in [id("eos")?, id("eot")?, id("eom")?].into_iter().flatten() {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        if ends.is_empty() {
            return Err("tokenizer.ggml.eos_token_id is missing, so that no reply would end".into());
        }
        let begins = keys.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(algorithm.begins());
        if begins && begin.is_none() {
            return Err("tokenizer.ggml.bos_token_id is missing, and every prompt is to begin with it".into());
        }
        if keys.boolean("tokenizer.ggml.add_eos_token")? == Some(true) {
            return Err(
                "tokenizer.ggml.add_eos_token is true; a prompt that ends itself is not served".into()
            );
        }
        let document = document(keys, algorithm, tokens, &kinds, begin.filter(|_| begins))?;
        let tokenizer = serde_json::to_vec(&document).map_err(|error| error.to_string())?;
        check(&tokenizer, tokens, &kinds)?;

        let text = |id: Option<u32>| id.map_or(Json::Null, |id| tokens[id as usize].into());
        let mut config = json!({
            "add_bos_token": begins,
            "add_prefix_space": false,
            "bos_token": text(begin),
            "clean_up_tokenization_spaces": false,
            "eos_token": text(Some(ends[0])),
            "pad_token": text(padding),
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": text(id("unknown")?),
        });
        if let Some(context) = keys.integer(&keys.name("context_length"))? {
            config["model_max_length"] = context.into();
        }
        if let Some(template) = keys.text("tokenizer.chat_template")? {
            config["chat_template"] = template.into();
        }
        Ok(TokenizerFiles { tokenizer, config, begin, ends, padding })
    }
}

fn kinds(keys: &Keys<'_>, tokens: &[&str]) -> Result<Vec<Kind>, String> {
    let key = "tokenizer.ggml.token_type";
    let Some(Value::Numbers(numbers)) = keys.get(key) else {
        return Err(format!(
            "{key} is missing or no list of numbers; without it, special tokens are not known"
        ));
    };
    if numbers.len() != tokens.len() {
        return Err(format!("{key} has {} entries for {} tokens", numbers.len(), tokens.len()));
    }
    numbers
        .iter()
        .zip(tokens)
        .enumerate()
        .map(|(id, (number, token))| match number.unsigned() {
            Some(1 | 6) => Ok(Kind::Normal),
            Some(2 | 3) => Ok(Kind::Special),
            Some(4) => Ok(Kind::Added),
            // Rows that pad the vocabulary have such names; others that are unused are spelt like any token.
            Some(5) if **token == format!("[PAD{id}]") => Ok(Kind::Unused),
            Some(5) => Ok(Kind::Normal),
            _ => Err(format!("{key} of token {id} is {number:?}; 1 to 6 are known")),
        })
        .collect()
}

fn document(
    keys: &Keys<'_>,
    algorithm: Algorithm,
    tokens: &[&str],
    kinds: &[Kind],
    begin: Option<u32>,
) -> Result<Json, String> {
    let mut vocabulary = Map::new();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(kinds).enumerate() {
        if *kind == Kind::Unused {
            continue;
        }
        if let Some(other) = vocabulary.insert((*token).into(), id.into()) {
            return Err(format!("tokens {other} and {id} are both {token:?}"));
        }
        if *kind != Kind::Normal {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == Kind::Special,
            }));
        }
    }
    let beginning = begin.map(|begin| beginning(tokens[begin as usize], begin));
    let mut model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocabulary,
    });
    let mut document = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "pre_tokenizer": null,
    });
    match algorithm {
        Algorithm::ByteLevel(splitting) => {
            let bytes = |trim: bool| json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": trim, "use_regex": true });
            document["normalizer"] = splitting.normalizer();
            document["pre_tokenizer"] = splitting.pre_tokenizer();
            document["post_processor"] = match beginning {
                None => bytes(false),
                Some(beginning) => json!({ "type": "Sequence", "processors": [bytes(false), beginning] }),
            };
            document["decoder"] = bytes(true);
            model["ignore_merges"] = splitting.takes_whole_tokens().into();
            model["merges"] = merges(keys)?.into();
        }
        Algorithm::SentencePiece { begins_with_space } => {
            document["normalizer"] = sentencepiece::normalizer(begins_with_space);
            document["post_processor"] = beginning.unwrap_or(Json::Null);
            document["decoder"] = sentencepiece::decoder(begins_with_space);
            model["byte_fallback"] = true.into();
            model["fuse_unk"] = true.into();
            let unknown = keys.integer("tokenizer.ggml.unknown_token_id")?.unwrap_or(0) as usize;
            model["unk_token"] = tokens.get(unknown).map_or(Json::Null, |token| (*token).into());
            model["merges"] = sentencepiece::merges(keys, tokens)?.into();
        }
    }
    document["model"] = model;
    Ok(document)
}

/// The merges of a byte-level model, which the file lists.
fn merges(keys: &Keys<'_>) -> Result<Vec<Json>, String> {
    let merges = keys.texts("tokenizer.ggml.merges")?.ok_or("tokenizer.ggml.merges is missing")?;
    let pair = |merge: &&str| {
        // The first part may itself begin with the character that parts them.
        let parts = merge.char_indices().skip(1).find(|&(_, character)| character == ' ');
        parts
            .map(|(at, _)| json!([merge[..at], merge[at + 1..]]))
            .ok_or(format!("tokenizer.ggml.merges holds {merge:?}, which is no pair"))
    };
    merges.iter().map(pair).collect()
}

/// The step that puts the model's first token before a prompt.
fn beginning(token: &str, id: u32) -> Json {
    let special = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let sequence = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let mut first = Map::new();
    first.insert(token.into(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    json!({
        "type": "TemplateProcessing",
        "single": [special, sequence("A", 0)],
        "pair": [special, sequence("A", 0), special, sequence("B", 1)],
        "special_tokens": first,
    })
}

/// Loads the tokenizer and compares every id.
fn check(document: &[u8], tokens: &[&str], kinds: &[Kind]) -> Result<(), String> {
    // The library is not free of panics on what it does not expect.
    let loaded = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_bytes(document)));
    let tokenizer = match loaded {
        Ok(loaded) => loaded.map_err(|error| format!("its tokenizer cannot be used: {error}"))?,
        Err(_) => return Err("its tokenizer cannot be used: the tokenizer library failed on it".into()),
    };
    let ids: HashMap<String, u32> = tokenizer.get_vocab(true);
    for (id, (token, kind)) in tokens.iter().zip(kinds).enumerate() {
        if *kind != Kind::Unused && ids.get(*token).copied() != Some(id as u32) {
            return Err(format!("its token {id}, {token:?}, would get another id"));
        }
    }
    Ok(())
}
