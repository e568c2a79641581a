//! SentencePiece's byte-pair vocabularies, whose tokens have scores, as a
//! byte-pair model with merges.
//!
//! SentencePiece joins, again and again, the two neighbours that make the
//! token of the highest score. A byte-pair model joins the two that stand
//! first in its list of merges. So the list holds every way to make every
//! token of two, those of higher scores first. This is how the tokenizers of
//! these models are published by their makers, too.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::super::gguf::{Number, Value};
use super::keys::Keys;

/// A longer token is of no honest vocabulary; all its parts would be looked up.
const LONGEST_TOKEN: usize = 1 << 10;

/// All merges of a vocabulary in their order.
///
/// # Errors
/// When scores are missing or no numbers.
pub(super) fn merges(keys: &Keys<'_>, tokens: &[&str]) -> Result<Vec<Json>, String> {
    let scores = scores(keys, tokens.len())?;
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut ways = Vec::new();
    for (token, &score) in tokens.iter().zip(&scores) {
        if token.len() > LONGEST_TOKEN {
            return Err(format!("it has a token of {} bytes; at most {LONGEST_TOKEN} are read", token.len()));
        }
        let mut own = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                own.push((*left_id, *right_id, left, right));
            }
        }
        own.sort_unstable();
        let counted = |text: &str| text.chars().count();
        ways.extend(
            own.into_iter().map(|(_, _, left, right)| (score, counted(left), counted(right), left, right)),
        );
    }
    // Of ways with one score, the longer left part first. The sort keeps the order of those that are equal in all.
    ways.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    Ok(ways.into_iter().map(|(.., left, right)| json!([left, right])).collect())
}

fn scores(keys: &Keys<'_>, count: usize) -> Result<Vec<f64>, String> {
    let key = "tokenizer.ggml.scores";
    let Some(Value::Numbers(numbers)) = keys.get(key) else {
        return Err(format!(
            "{key} is missing or no list of numbers; without it, the order of merges is not known"
        ));
    };
    if numbers.len() != count {
        return Err(format!("{key} has {} entries for {count} tokens", numbers.len()));
    }
    numbers
        .iter()
        .map(|number| match number {
            // Zero has two signs, and they are one score.
            Number::Float(score) if score.is_finite() => Ok(score + 0.0),
            other => Err(format!("{key} holds {other:?}; numbers are needed")),
        })
        .collect()
}

/// `normalizer` of `tokenizer.json`: spaces are written as `▁`, and a text begins with one.
pub(super) fn normalizer(begins_with_space: bool) -> Json {
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    match begins_with_space {
        true => json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, spaces] }),
        false => spaces,
    }
}

/// `decoder` of `tokenizer.json`: the reverse, with bytes that were written as tokens put together.
pub(super) fn decoder(begins_with_space: bool) -> Json {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if begins_with_space {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}
