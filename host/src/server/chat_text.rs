//! What the routes need of a model's text: the border between server and text.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A model's tokenizer, chat template and reply parsing.
pub trait ChatText: Send + Sync {
    /// Token ids of `text`; markers of special tokens in it become those tokens.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// The prompt of a conversation. The error is for the client and says what
    /// the template cannot render.
    fn render(&self, conversation: &Conversation) -> Result<RenderedPrompt, String>;

    /// A reader of one reply's tokens.
    fn reply(&self, options: &ReplyTextOptions) -> Box<dyn ReplyText>;

    /// Ids that end a reply.
    fn stop_tokens(&self) -> &BTreeSet<u32>;

    /// Whether the template can render with and without thinking.
    fn has_thinking_switch(&self) -> bool;

    /// Levels of effort that the template names, in any order; empty when it knows none.
    fn effort_levels(&self) -> &[String];

    /// Whether the template renders tools and calls of tools are understood in replies.
    fn has_tools(&self) -> bool;

    /// Tokens that close a think block from within: a line break, the end
    /// marker, a blank line. Empty when the model has no such block.
    fn thinking_close(&self) -> &[u32];
}

/// A conversation to render.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages as templates expect them: `role`, `content` as a string, and
    /// of assistants `reasoning_content` and `tool_calls` (arguments as an object).
    pub messages: Vec<Value>,
    /// Tools on offer, as in the request.
    pub tools: Vec<Value>,
    /// Whether the model is to think.
    pub enable_thinking: bool,
    /// Level of effort, one that the template names.
    pub reasoning_effort: Option<String>,
    /// Further variables for the template.
    pub variables: Map<String, Value>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// Whether the reply begins inside a think block.
    pub opens_thinking: bool,
}

/// How a reply is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyTextOptions {
    /// Strings that end the reply and are not part of it.
    pub stop: Vec<String>,
    /// Whether think blocks are told apart from content.
    pub split_reasoning: bool,
    /// Whether the reply begins inside a think block.
    pub opens_thinking: bool,
    /// Whether calls of tools are told apart from content.
    pub parse_calls: bool,
}

/// Turns a reply's tokens into text, piece by piece.
///
/// No piece ends inside a character, and no piece holds text that could still
/// turn out to be part of a stop string or a marker.
pub trait ReplyText: Send {
    /// Takes the next token and appends what has become certain. Nothing is
    /// appended after a stop string.
    fn push(&mut self, token: u32, pieces: &mut Vec<Piece>);

    /// Appends what was held back; the reply is over.
    fn finish(&mut self, pieces: &mut Vec<Piece>);

    /// The stop string that the tokens so far have completed.
    fn stopped(&self) -> Option<&str>;

    /// Whether the next token belongs to a think block.
    fn is_thinking(&self) -> bool;

    /// Tokens so far that belong to think blocks, the closing marker included.
    fn reasoning_tokens(&self) -> u32;
}

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text for the user.
    Content(String),
    /// Text of a think block.
    Reasoning(String),
    /// A complete call of a tool.
    Call(ToolCall),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments, as JSON text of an object.
    pub arguments: String,
}
