//! From the ids of a reply to the text that a client sees: characters whole,
//! reasoning apart, stop strings cut.
//!
//! What comes out depends on the ids alone, not on how they were grouped into
//! rounds.

use super::detokenizer::Detokenizer;
use super::stop::StopMatcher;

/// The ids between which a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkTokens {
    /// Opens a think block.
    pub open: u32,
    /// Closes it.
    pub close: u32,
}

/// A piece of a reply. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Thought, in a think block.
    Reasoning(String),
    /// Said.
    Content(String),
}

/// Turns the ids of one reply into pieces.
///
/// The markers of think blocks, the line breaks beside them inside the block,
/// and those between a block and what follows belong to neither text. Stop
/// strings are looked for in the content only.
#[derive(Clone, Debug)]
pub struct ReplyStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    think: Option<ThinkTokens>,
    reasoning: bool,
    /// Line breaks of the reasoning that may be its last.
    breaks: usize,
    /// Line breaks are dropped until something else comes.
    at_border: bool,
    reasoning_tokens: u32,
}

impl ReplyStream {
    /// `think` is `None` where reasoning is not told apart; `reasoning` says
    /// whether the prompt ended inside a think block.
    pub(super) fn new(
        detokenizer: Detokenizer,
        think: Option<ThinkTokens>,
        reasoning: bool,
        stops: impl IntoIterator<Item = String>,
    ) -> ReplyStream {
        let reasoning = reasoning && think.is_some();
        ReplyStream {
            detokenizer,
            stops: StopMatcher::new(stops),
            think,
            reasoning,
            breaks: 0,
            at_border: reasoning,
            reasoning_tokens: 0,
        }
    }

    /// The pieces that this id completes. After a stop string there are none.
    pub fn push(&mut self, id: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.stopped().is_some() {
            return pieces;
        }
        if self.reasoning {
            self.reasoning_tokens += 1;
        }
        match self.think {
            Some(think) if id == think.open || id == think.close => {
                let rest = self.detokenizer.finish();
                self.text(&rest, &mut pieces);
                if self.stopped().is_some() {
                    return pieces;
                }
                let opens = id == think.open;
                if opens && !self.reasoning {
                    // The marker parts the texts: no stop string spans it.
                    let held = self.stops.finish();
                    push_text(&mut pieces, held, Piece::Content);
                    self.reasoning_tokens += 1;
                }
                if opens || self.reasoning {
                    self.at_border = true;
                    self.breaks = 0;
                }
                self.reasoning = opens;
            }
            _ => {
                let text = self.detokenizer.push(id);
                self.text(&text, &mut pieces);
            }
        }
        pieces
    }

    /// The pieces that were held back, at the end of the reply.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.stopped().is_none() {
            let rest = self.detokenizer.finish();
            self.text(&rest, &mut pieces);
            let held = self.stops.finish();
            if self.stopped().is_none() {
                push_text(&mut pieces, held, Piece::Content);
            }
        }
        pieces
    }

    /// The stop string that ended the reply. Nothing after it counts.
    pub fn stopped(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// Whether the reply is inside a think block.
    pub fn is_reasoning(&self) -> bool {
        self.reasoning
    }

    /// Ids so far that belong to think blocks, markers included.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let mut text = text;
        if self.at_border {
            text = text.trim_start_matches('\n');
        }
        if text.is_empty() {
            return;
        }
        self.at_border = false;
        if !self.reasoning {
            let certain = self.stops.push(text);
            return push_text(pieces, certain, Piece::Content);
        }
        let kept = text.trim_end_matches('\n');
        if kept.is_empty() {
            self.breaks += text.len();
            return;
        }
        let mut told = "\n".repeat(std::mem::take(&mut self.breaks));
        told.push_str(kept);
        self.breaks = text.len() - kept.len();
        push_text(pieces, told, Piece::Reasoning);
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: String, piece: fn(String) -> Piece) {
    if !text.is_empty() {
        pieces.push(piece(text));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::detokenizer::Decoding;
    use super::super::testing::{QWEN, tokenizer};
    use super::*;

    const THINK: ThinkTokens = ThinkTokens { open: 1007, close: 1008 };

    fn stream(think: Option<ThinkTokens>, reasoning: bool, stops: &[&str]) -> ReplyStream {
        let detokenizer = Detokenizer::new(tokenizer(QWEN), Decoding::Bytes);
        ReplyStream::new(detokenizer, think, reasoning, stops.iter().map(|stop| (*stop).to_owned()))
    }

    fn ids(text: &str) -> Vec<u32> {
        tokenizer(QWEN).encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Reasoning, content, stop string.
    fn run(mut stream: ReplyStream, ids: &[u32]) -> (String, String, Option<String>) {
        let mut pieces: Vec<Piece> = ids.iter().flat_map(|&id| stream.push(id)).collect();
        pieces.extend(stream.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning += &text,
                Piece::Content(text) => content += &text,
            }
        }
        (reasoning, content, stream.stopped().map(str::to_owned))
    }

    #[test]
    fn a_reply_that_begins_inside_a_think_block_is_split() {
        let reply = ids("first\n\nsecond\n</think>\n\nAnswer\n");
        let (reasoning, content, _) = run(stream(Some(THINK), true, &[]), &reply);
        assert_eq!((reasoning.as_str(), content.as_str()), ("first\n\nsecond", "Answer\n"));
        let mut counting = stream(Some(THINK), true, &[]);
        reply.iter().for_each(|&id| drop(counting.push(id)));
        let close = reply.iter().position(|&id| id == THINK.close).unwrap();
        assert_eq!(counting.reasoning_tokens() as usize, close + 1);
    }

    #[test]
    fn a_block_inside_the_content_is_reasoning_too() {
        let (reasoning, content, _) =
            run(stream(Some(THINK), false, &[]), &ids("\nA<think>\nB\n</think>\n\nC</think>D"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("B", "\nACD"));
    }

    #[test]
    fn a_block_that_never_ends_is_all_reasoning() {
        let (reasoning, content, _) = run(stream(Some(THINK), true, &["END"]), &ids("a END b\n"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("a END b", ""));
    }

    #[test]
    fn without_splitting_the_markers_are_text() {
        let (reasoning, content, _) = run(stream(None, true, &[]), &ids("a<think>b"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("", "a<think>b"));
    }

    #[test]
    fn a_stop_string_ends_the_content() {
        let (_, content, stop) = run(stream(Some(THINK), false, &["\nUser"]), &ids("Fine.\nUser: more"));
        assert_eq!((content.as_str(), stop.as_deref()), ("Fine.", Some("\nUser")));
    }

    proptest! {
        #[test]
        fn no_text_is_lost(ids in prop::collection::vec(0u32..1010, 0..60), reasoning: bool) {
            let (thought, said, _) = run(stream(Some(THINK), reasoning, &[]), &ids);
            let plain: Vec<u32> = ids.iter().copied().filter(|&id| id != THINK.open && id != THINK.close).collect();
            let mut whole = Detokenizer::new(Arc::clone(&tokenizer(QWEN)), Decoding::Bytes);
            let mut text: String = plain.iter().map(|&id| whole.push(id)).collect();
            text.push_str(&whole.finish());
            let letters = |text: &str| {
                let mut letters: Vec<char> = text.chars().filter(|c| *c != '\n' && *c != '\u{fffd}').collect();
                letters.sort_unstable();
                letters
            };
            if !text.contains('\u{fffd}') && plain.len() == ids.len() {
                prop_assert_eq!(letters(&(thought + &said)), letters(&text));
            }
        }
    }
}
