//! From ids to text, one id at a time.
//!
//! The pieces of a [`Detokenizer`] join to the text that decoding all ids at
//! once gives. A character that spans several tokens comes in one piece, when
//! its last byte is there. Special tokens have no text.

use std::sync::Arc;

use tokenizers::{Decoder as _, DecoderWrapper, Model as _, Tokenizer};

use super::guarded;

/// How a tokenizer's tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Every token is a run of bytes, whatever stands beside it.
    Bytes,
    /// A token's text depends on its neighbours.
    Window,
}

impl Decoding {
    /// The way that a tokenizer needs.
    pub(super) fn of(tokenizer: &Tokenizer) -> Decoding {
        match tokenizer.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Decoding::Bytes,
            _ => Decoding::Window,
        }
    }
}

/// Turns the ids of one reply into text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Bytes that are not a whole character yet.
    Bytes(Vec<u8>),
    /// The ids since `start` are decoded together; the text of those before
    /// `told` is told.
    Window { tokens: Vec<String>, told: usize },
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, decoding: Decoding) -> Detokenizer {
        let state = match decoding {
            Decoding::Bytes => State::Bytes(Vec::new()),
            Decoding::Window => State::Window { tokens: Vec::new(), told: 0 },
        };
        Detokenizer { tokenizer, state }
    }

    /// The text that this id completes; often empty, when a character is not
    /// complete. Ids that the tokenizer does not know have no text.
    pub fn push(&mut self, id: u32) -> String {
        let Some(token) = visible_token(&self.tokenizer, id) else { return String::new() };
        match &mut self.state {
            State::Bytes(held) => {
                append_bytes(held, &token);
                take_characters(held)
            }
            State::Window { tokens, told } => {
                // Bytes are decoded as a run: the last one decides for them all.
                let in_run = is_byte(&token);
                tokens.push(token);
                if in_run {
                    return String::new();
                }
                let text = untold(&self.tokenizer, tokens, *told);
                // The replacement character may be half of a character.
                let Some(text) = text.filter(|text| !text.is_empty() && !text.ends_with('\u{fffd}')) else {
                    return String::new();
                };
                tokens.drain(..*told);
                *told = tokens.len();
                text
            }
        }
    }

    /// The text of what was held back. A character that never became whole is
    /// U+FFFD. What is pushed later starts anew.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(held) => String::from_utf8_lossy(&std::mem::take(held)).into_owned(),
            State::Window { tokens, told } => {
                let text = untold(&self.tokenizer, tokens, *told).unwrap_or_default();
                tokens.drain(..*told);
                *told = tokens.len();
                text
            }
        }
    }
}

/// An id's token, unless it is special or unknown. As `Tokenizer::decode`.
fn visible_token(tokenizer: &Tokenizer, id: u32) -> Option<String> {
    let added = tokenizer.get_added_vocabulary();
    added
        .simple_id_to_token(id)
        .or_else(|| tokenizer.get_model().id_to_token(id))
        .filter(|token| !added.is_special_token(token))
}

/// Whether a token stands for one byte: `<0x0A>`.
fn is_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
}

/// The text of all tokens beyond that of the first `told`.
fn untold(tokenizer: &Tokenizer, tokens: &[String], told: usize) -> Option<String> {
    let decode = |tokens: &[String]| match tokenizer.get_decoder() {
        Some(decoder) => guarded(|| decoder.decode(tokens.to_vec())).ok(),
        None => Some(tokens.join(" ")),
    };
    let (before, all) = (decode(&tokens[..told])?, decode(tokens)?);
    Some(all.strip_prefix(&before)?.to_owned())
}

/// Appends the bytes of a byte-level token: each character stands for a byte;
/// a token with any other character is its own text.
fn append_bytes(held: &mut Vec<u8>, token: &str) {
    let start = held.len();
    for character in token.chars() {
        match byte_of(character) {
            Some(byte) => held.push(byte),
            None => {
                held.truncate(start);
                held.extend(token.as_bytes());
                return;
            }
        }
    }
}

/// The byte that a character of a byte-level vocabulary stands for: printable
/// Latin-1 characters stand for themselves, the other bytes follow from U+0100
/// in their order.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Takes all whole characters, with U+FFFD for what can never become one, and
/// leaves the bytes that may.
fn take_characters(held: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest: &[u8] = held;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                rest = after;
                let Some(invalid) = error.error_len() else { break };
                text.push('\u{fffd}');
                rest = &rest[invalid..];
            }
        }
    }
    let left = rest.len();
    held.drain(..held.len() - left);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{DEMO, QWEN, tokenizer};
    use super::*;

    fn pieces(tokenizer: &Arc<Tokenizer>, decoding: Decoding, ids: &[u32]) -> (String, Vec<String>) {
        let mut stream = Detokenizer::new(Arc::clone(tokenizer), decoding);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        pieces.push(stream.finish());
        (pieces.concat(), pieces)
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [false; 256];
        for code in 0..0x200 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(!seen[usize::from(byte)], "{byte}");
                seen[usize::from(byte)] = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn a_character_comes_whole_or_not_at_all() {
        let tokenizer = tokenizer(QWEN);
        // A rocket, four tokens of one byte each.
        let (text, pieces) = pieces(&tokenizer, Decoding::Bytes, &[172, 253, 248, 222]);
        assert_eq!(
            (text.as_str(), &pieces[..4]),
            ("🚀", &[""; 3].map(String::from).into_iter().chain(["🚀".to_owned()]).collect::<Vec<_>>()[..])
        );
    }

    #[test]
    fn half_a_character_at_the_end_is_one_replacement() {
        let tokenizer = tokenizer(QWEN);
        let (text, _) = pieces(&tokenizer, Decoding::Bytes, &[64, 172, 253, 248]);
        assert_eq!(text, "a\u{fffd}");
        // A new character begins where the old one was never finished.
        let (text, _) = pieces(&tokenizer, Decoding::Bytes, &[172, 253, 64]);
        assert_eq!(text, "\u{fffd}a");
    }

    #[test]
    fn special_tokens_have_no_text_and_other_added_ones_do() {
        let tokenizer = tokenizer(QWEN);
        let (text, _) = pieces(&tokenizer, Decoding::Bytes, &[1001, 64, 1007, 1002, 1000, 999_999]);
        assert_eq!(text, "a<think>");
    }

    /// A tokenizer whose tokens depend on their neighbours: spaces are written
    /// `▁`, the first one is dropped, and bytes have tokens of their own.
    fn metaspace() -> Arc<Tokenizer> {
        let mut vocabulary: serde_json::Map<String, serde_json::Value> =
            (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
        for (index, token) in ["▁", "▁a", "a", "é", "▁▁", "<s>"].iter().enumerate() {
            vocabulary.insert((*token).into(), (256 + index).into());
        }
        let tokenizer = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{ "id": 261, "content": "<s>", "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false }],
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
                { "type": "ByteFallback" },
                { "type": "Fuse" },
                { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
            ] },
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true },
        });
        Arc::new(Tokenizer::from_bytes(tokenizer.to_string()).unwrap())
    }

    #[test]
    fn neighbours_decide_and_a_character_still_comes_whole() {
        let tokenizer = metaspace();
        assert_eq!(Decoding::of(&tokenizer), Decoding::Window);
        // <s>, " a" at the start, " a", the four bytes of a rocket, two spaces.
        let ids = [261, 257, 257, 0xf0, 0x9f, 0x9a, 0x80, 260, 258];
        let (text, pieces) = pieces(&tokenizer, Decoding::Window, &ids);
        assert_eq!(text, "a a🚀  a");
        assert_eq!(
            pieces[..7].iter().map(String::as_str).collect::<Vec<_>>(),
            ["", "a", " a", "", "", "", ""]
        );
        assert!(pieces[7].starts_with("🚀"), "{pieces:?}");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_decoded_whole(ids in prop::collection::vec(0u32..1030, 0..40), demo: bool) {
            let tokenizer = tokenizer(if demo { DEMO } else { QWEN });
            let ids: Vec<u32> = ids.into_iter().map(|id| if demo { id * 8 } else { id }).collect();
            let whole = tokenizer.decode(&ids, true).unwrap();
            prop_assert_eq!(&pieces(&tokenizer, Decoding::Bytes, &ids).0, &whole);
            prop_assert_eq!(&pieces(&tokenizer, Decoding::Window, &ids).0, &whole);
        }

        #[test]
        fn pieces_join_where_neighbours_decide(
            ids in prop::collection::vec(prop_oneof![256u32..262, prop::sample::select(vec![0x41u32, 0xf0, 0x9f, 0x9a, 0x80])], 0..24),
        ) {
            let tokenizer = metaspace();
            let whole = tokenizer.decode(&ids, true).unwrap();
            prop_assert_eq!(&pieces(&tokenizer, Decoding::Window, &ids).0, &whole);
        }

        #[test]
        fn text_survives_a_round_trip_in_pieces(text in "\\PC{0,40}") {
            let tokenizer = tokenizer(QWEN);
            let ids = tokenizer.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            let (joined, pieces) = pieces(&tokenizer, Decoding::Bytes, &ids);
            prop_assert_eq!(joined, tokenizer.decode(&ids, true).unwrap());
            let whole = pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER));
            prop_assert!(whole || text.contains(char::REPLACEMENT_CHARACTER));
        }
    }
}
