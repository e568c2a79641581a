//! From the ids of a reply to the text that a client sees: characters whole,
//! reasoning apart, calls of tools apart, stop strings cut.
//!
//! What comes out depends on the ids alone, not on how they were grouped into
//! rounds.

use super::detokenizer::Detokenizer;
use super::stop::StopMatcher;
use super::tool_calls::{ToolCallParser, ToolEvent, ToolTypes};

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
    /// A complete call of a tool.
    Call(ToolCall),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments: the JSON text of an object.
    pub arguments: String,
}

/// How a reply is read.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// Strings that end the reply and are not part of it.
    pub stops: Vec<String>,
    /// Whether think blocks are told apart from content.
    pub split_reasoning: bool,
    /// Whether the prompt ended inside a think block.
    pub starts_in_reasoning: bool,
    /// The tools on offer, where calls are told apart from content.
    pub tools: Option<ToolTypes>,
}

/// Turns the ids of one reply into pieces.
///
/// The markers of think blocks, the line breaks beside them inside the block,
/// and those between a block and what follows belong to neither text. Stop
/// strings are looked for in the content only, calls included. A call that
/// begins inside a think block ends the block; one that is never completed
/// comes out as the text that it is.
#[derive(Clone, Debug)]
pub struct ReplyStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    think: Option<ThinkTokens>,
    /// The id that opens a call, where calls are told apart.
    call_mark: Option<u32>,
    calls: Option<ToolCallParser>,
    /// The call that is being read.
    call: Option<ToolCall>,
    reasoning: bool,
    /// Line breaks of the reasoning that may be its last.
    breaks: usize,
    /// Line breaks are dropped until something else comes.
    at_border: bool,
    reasoning_tokens: u32,
}

impl ReplyStream {
    /// `think` and `call_mark` are the model's, where it has such.
    pub(super) fn new(
        detokenizer: Detokenizer,
        think: Option<ThinkTokens>,
        call_mark: Option<u32>,
        options: ReplyOptions,
    ) -> ReplyStream {
        let think = think.filter(|_| options.split_reasoning);
        let reasoning = options.starts_in_reasoning && think.is_some();
        ReplyStream {
            detokenizer,
            stops: StopMatcher::new(options.stops),
            think,
            call_mark: call_mark.filter(|_| options.tools.is_some()),
            calls: options.tools.map(ToolCallParser::new),
            call: None,
            reasoning,
            breaks: 0,
            at_border: reasoning,
            reasoning_tokens: 0,
        }
    }

    /// Appends the pieces that this id completes. After a stop string there
    /// are none.
    pub fn push(&mut self, id: u32, pieces: &mut Vec<Piece>) {
        if self.stopped().is_some() {
            return;
        }
        let opens = self.think.is_some_and(|think| id == think.open);
        let closes = self.think.is_some_and(|think| id == think.close);
        if opens || closes {
            if opens || self.reasoning {
                self.reasoning_tokens += 1;
            }
            return self.border(opens, pieces);
        }
        if self.reasoning && self.call_mark == Some(id) {
            self.border(false, pieces);
        }
        if self.reasoning {
            self.reasoning_tokens += 1;
        }
        let text = self.detokenizer.push(id);
        self.text(&text, pieces);
    }

    /// Appends the pieces that were held back, at the end of the reply.
    pub fn finish(&mut self, pieces: &mut Vec<Piece>) {
        if self.stopped().is_none() {
            let rest = self.detokenizer.finish();
            self.text(&rest, pieces);
        }
        if self.stopped().is_none() {
            let held = self.stops.finish();
            self.content(held, pieces);
        }
        if let Some(calls) = &mut self.calls {
            let events = calls.finish();
            self.call_events(events, pieces);
        }
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

    /// Enters a think block, or leaves it. No character, no stop string and
    /// no call spans the border.
    fn border(&mut self, reasoning: bool, pieces: &mut Vec<Piece>) {
        let rest = self.detokenizer.finish();
        self.text(&rest, pieces);
        if self.stopped().is_some() {
            return;
        }
        if reasoning && !self.reasoning {
            let held = self.stops.finish();
            self.content(held, pieces);
        }
        if reasoning || self.reasoning {
            self.at_border = true;
            self.breaks = 0;
        }
        self.reasoning = reasoning;
    }

    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let text = if self.at_border { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.at_border = false;
        if !self.reasoning {
            let certain = self.stops.push(text);
            return self.content(certain, pieces);
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

    /// Content that holds no stop string.
    fn content(&mut self, text: String, pieces: &mut Vec<Piece>) {
        match &mut self.calls {
            None => push_text(pieces, text, Piece::Content),
            Some(calls) => {
                let events = calls.push(&text);
                self.call_events(events, pieces);
            }
        }
    }

    fn call_events(&mut self, events: Vec<ToolEvent>, pieces: &mut Vec<Piece>) {
        for event in events {
            match event {
                ToolEvent::Text(text) => push_text(pieces, text, Piece::Content),
                ToolEvent::Start { name } => self.call = Some(ToolCall { name, arguments: String::new() }),
                ToolEvent::Arguments(part) => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&part);
                    }
                }
                ToolEvent::End => pieces.extend(self.call.take().map(Piece::Call)),
                ToolEvent::Abandoned { text } => {
                    self.call = None;
                    push_text(pieces, text, Piece::Content);
                }
            }
        }
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
    use serde_json::json;

    use super::super::detokenizer::Decoding;
    use super::super::testing::{QWEN, tokenizer};
    use super::*;

    const THINK: ThinkTokens = ThinkTokens { open: 1007, close: 1008 };

    fn stream(split_reasoning: bool, starts_in_reasoning: bool, stops: &[&str]) -> ReplyStream {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        with(ReplyOptions { stops, split_reasoning, starts_in_reasoning, tools: None })
    }

    fn with(options: ReplyOptions) -> ReplyStream {
        let detokenizer = Detokenizer::new(tokenizer(QWEN), Decoding::Bytes);
        ReplyStream::new(detokenizer, Some(THINK), Some(1003), options)
    }

    fn pieces(mut stream: ReplyStream, ids: &[u32]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        ids.iter().for_each(|&id| stream.push(id, &mut pieces));
        stream.finish(&mut pieces);
        pieces
    }

    fn ids(text: &str) -> Vec<u32> {
        tokenizer(QWEN).encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Reasoning, content, stop string.
    fn run(mut stream: ReplyStream, ids: &[u32]) -> (String, String, Option<String>) {
        let mut pieces = Vec::new();
        ids.iter().for_each(|&id| stream.push(id, &mut pieces));
        stream.finish(&mut pieces);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning += &text,
                Piece::Content(text) => content += &text,
                Piece::Call(call) => panic!("{call:?}"),
            }
        }
        (reasoning, content, stream.stopped().map(str::to_owned))
    }

    #[test]
    fn a_reply_that_begins_inside_a_think_block_is_split() {
        let reply = ids("first\n\nsecond\n</think>\n\nAnswer\n");
        let (reasoning, content, _) = run(stream(true, true, &[]), &reply);
        assert_eq!((reasoning.as_str(), content.as_str()), ("first\n\nsecond", "Answer\n"));
        let mut counting = stream(true, true, &[]);
        reply.iter().for_each(|&id| counting.push(id, &mut Vec::new()));
        let close = reply.iter().position(|&id| id == THINK.close).unwrap();
        assert_eq!(counting.reasoning_tokens() as usize, close + 1);
    }

    #[test]
    fn a_block_inside_the_content_is_reasoning_too() {
        let (reasoning, content, _) =
            run(stream(true, false, &[]), &ids("\nA<think>\nB\n</think>\n\nC</think>D"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("B", "\nACD"));
    }

    #[test]
    fn a_block_that_never_ends_is_all_reasoning() {
        let (reasoning, content, _) = run(stream(true, true, &["END"]), &ids("a END b\n"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("a END b", ""));
    }

    #[test]
    fn without_splitting_the_markers_are_text() {
        let (reasoning, content, _) = run(stream(false, true, &[]), &ids("a<think>b"));
        assert_eq!((reasoning.as_str(), content.as_str()), ("", "a<think>b"));
    }

    #[test]
    fn a_stop_string_ends_the_content() {
        let (_, content, stop) = run(stream(true, false, &["\nUser"]), &ids("Fine.\nUser: more"));
        assert_eq!((content.as_str(), stop.as_deref()), ("Fine.", Some("\nUser")));
    }

    fn weather() -> ReplyOptions {
        let tool = json!({ "function": { "name": "f", "parameters": { "properties": { "i": { "type": "integer" } } } } });
        ReplyOptions {
            split_reasoning: true,
            tools: Some(ToolTypes::new(&[tool])),
            ..ReplyOptions::default()
        }
    }

    const CALL: &str = "<tool_call>\n<function=f>\n<parameter=i>\n7\n</parameter>\n</function>\n</tool_call>";

    #[test]
    fn calls_are_told_apart_from_content() {
        let call = Piece::Call(ToolCall { name: "f".into(), arguments: "{\"i\": 7}".into() });
        let found = pieces(with(weather()), &ids(&format!("Now.\n\n{CALL}\n{CALL}")));
        let (text, calls): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|piece| matches!(piece, Piece::Content(_)));
        assert_eq!(calls, [call.clone(), call]);
        let text: String =
            text.iter().map(|piece| if let Piece::Content(text) = piece { text } else { "" }).collect();
        assert_eq!(text, "Now.");
        let plain = ReplyOptions { tools: None, ..weather() };
        assert!(pieces(with(plain), &ids(CALL)).iter().all(|piece| matches!(piece, Piece::Content(_))));
    }

    #[test]
    fn a_call_ends_an_open_think_block() {
        let options = ReplyOptions { starts_in_reasoning: true, ..weather() };
        let found = pieces(with(options), &ids(&format!("hm\n{CALL}")));
        assert!(matches!(&found[..], [.., Piece::Reasoning(_), Piece::Call(_)]), "{found:?}");
    }

    #[test]
    fn a_call_that_is_cut_is_told_as_text() {
        let cut = CALL.strip_suffix("\n</function>\n</tool_call>").unwrap();
        assert_eq!(pieces(with(weather()), &ids(cut)), [Piece::Content(cut.into())]);
    }

    proptest! {
        #[test]
        fn no_text_is_lost(ids in prop::collection::vec(0u32..1010, 0..60), reasoning: bool) {
            let (thought, said, _) = run(stream(true, reasoning, &[]), &ids);
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
