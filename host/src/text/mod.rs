//! Text: from messages to ids, and from ids to what a client sees.
//!
//! [`TextModel`] is a checkpoint's tokenizer and chat template. It renders
//! conversations, encodes text, and makes the streams that turn a reply's ids
//! into text. It knows nothing of HTTP and nothing of an engine.
//!
//! What this module guarantees:
//!
//! - Streamed pieces join to the text that decoding at once gives; no piece
//!   ends inside a character.
//! - Text depends on ids alone, never on how they were grouped into rounds.
//! - A template or tokenizer from a stranger cannot reach a file or end the
//!   process by a fault. What a template may take is bounded; what of it is
//!   not, `budget` says.

mod budget;
mod detokenizer;
mod json;
mod reply;
mod stop;
mod template;
#[cfg(test)]
mod testing;
mod tool_calls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::{DecoderWrapper, Tokenizer};

pub use self::detokenizer::Detokenizer;
pub use self::reply::{Piece, ReplyOptions, ReplyStream, ThinkTokens, ToolCall};
pub use self::stop::StopMatcher;
pub use self::tool_calls::{ToolCallParser, ToolEvent, ToolTypes};

use self::detokenizer::Decoding;
use self::template::{ChatTemplate, TemplateFault};
use crate::checkpoint::{CheckpointError, Folder, TOKENIZER_LIMIT};

/// Why a checkpoint's text files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// `tokenizer.json` is no tokenizer.
    #[error("{} is not a usable tokenizer: {problem}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What the tokenizer library said.
        problem: String,
    },
    /// The chat template does not compile.
    #[error("the chat template in {} does not compile: {problem}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// What and where.
        problem: String,
    },
}

/// Why a conversation or a text cannot become a prompt. The request is at
/// fault, or asks for what the model's template cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The checkpoint brings no chat template.
    #[error("this model has no chat template; send plain text, or serve it with --chat-template FILE")]
    NoTemplate,
    /// The template refused the messages, in its own words.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed on the messages.
    #[error("the model's chat template cannot render these messages: {0}")]
    Failed(String),
    /// The tokenizer failed on the text.
    #[error("the text cannot be encoded: {0}")]
    Encoding(String),
}

/// A conversation and how it is to be rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt<'a> {
    /// The messages, as templates expect them: objects with `role`, `content`
    /// as a string, and of assistants `reasoning_content` and `tool_calls`,
    /// whose arguments are objects.
    pub messages: &'a [Value],
    /// Tools that the model may call, in the form of OpenAI's chat API.
    pub tools: &'a [Value],
    /// Whether the model thinks first; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// One of [`TextModel::effort_levels`].
    pub reasoning_effort: Option<&'a str>,
    /// Further variables for the template. They do not replace those above.
    pub variables: Map<String, Value>,
    /// Whether the prompt ends where the model's reply begins.
    pub add_generation_prompt: bool,
}

impl<'a> ChatPrompt<'a> {
    /// A conversation that asks for a reply, everything else left to the template.
    pub fn new(messages: &'a [Value]) -> ChatPrompt<'a> {
        ChatPrompt {
            messages,
            tools: &[],
            enable_thinking: None,
            reasoning_effort: None,
            variables: Map::new(),
            add_generation_prompt: true,
        }
    }
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text. Its special tokens are written out: encode it as
    /// [`TextModel::encode`] does with `add_special_tokens` off.
    pub text: String,
    /// Whether the text ends inside a think block, so that the reply begins
    /// with reasoning.
    pub ends_in_reasoning: bool,
}

/// A checkpoint's tokenizer and chat template. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    /// `bos_token` and its kin, as templates see them.
    special: Arc<Map<String, Value>>,
    decoding: Decoding,
    think: Option<ThinkTokens>,
    /// The id of `<tool_call>`.
    call_mark: Option<u32>,
    /// Length of the longest token, as the tokenizer writes it.
    longest_token_bytes: usize,
}

impl TextModel {
    /// Loads the tokenizer and the chat template of the checkpoint in a folder.
    ///
    /// # Errors
    /// When `tokenizer.json` is missing, or a file cannot be read or used.
    /// A checkpoint without a chat template loads.
    pub fn load(path: &Path) -> Result<TextModel, TextError> {
        let folder = Folder::open(path)?;
        let tokenizer = load_tokenizer(&folder)?;
        let config: Map<String, Value> =
            folder.read_json("tokenizer_config.json", Folder::METADATA_LIMIT)?.unwrap_or_default();
        let template = match find_template(&folder, &config)? {
            None => None,
            Some((path, source)) => Some(compile(path, &source)?),
        };
        let id = |token: &str| tokenizer.get_added_vocabulary().get_vocab().get(token).copied();
        let call_mark = id("<tool_call>");
        let think = id("<think>").zip(id("</think>")).map(|(open, close)| ThinkTokens { open, close });
        let longest_token_bytes = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(1);
        Ok(TextModel {
            longest_token_bytes,
            decoding: Decoding::of(&tokenizer),
            tokenizer: Arc::new(tokenizer),
            template,
            special: Arc::new(special_tokens(&config)),
            call_mark,
            think,
        })
    }

    /// The same model with another chat template, from a file.
    ///
    /// # Errors
    /// When the file cannot be read or does not compile.
    pub fn with_template_file(mut self, path: &Path) -> Result<TextModel, TextError> {
        let bytes = Folder::read_named(path, Folder::METADATA_LIMIT)?;
        let source = String::from_utf8(bytes)
            .map_err(|_| TextError::Template { path: path.into(), problem: "it is not UTF-8".into() })?;
        self.template = Some(compile(path.into(), &source)?);
        Ok(self)
    }

    /// Whether conversations can be rendered.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether the template can switch thinking on and off.
    pub fn has_thinking_switch(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.reads("enable_thinking"))
    }

    /// Levels of effort that the template names, lowest first; empty where it
    /// knows none.
    pub fn effort_levels(&self) -> Vec<&'static str> {
        const LEVELS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];
        let template = self.template.as_ref().filter(|template| template.reads("reasoning_effort"));
        let named = template.map(|template| LEVELS.into_iter().filter(|level| template.has_literal(level)));
        named.into_iter().flatten().collect()
    }

    /// Whether the template renders tools, and the model marks calls in the
    /// way that [`ToolCallParser`] reads.
    pub fn has_tools(&self) -> bool {
        self.call_mark.is_some() && self.template.as_ref().is_some_and(|template| template.reads("tools"))
    }

    /// Ids that close a think block from within: a line break, the closing
    /// marker, a blank line. Empty where the model has no such block.
    pub fn thinking_close(&self) -> Vec<u32> {
        let Some(think) = self.think else { return Vec::new() };
        let text = |text| self.encode(text, false).unwrap_or_default();
        [text("\n"), vec![think.close], text("\n\n")].concat()
    }

    /// The ids between which the model thinks, where it has such.
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        self.think
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// See [`PromptError`].
    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<RenderedPrompt, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let mut variables = Map::clone(&self.special);
        variables.extend(prompt.variables.clone());
        if let Some(thinking) = prompt.enable_thinking {
            variables.insert("enable_thinking".into(), thinking.into());
        }
        if let Some(effort) = prompt.reasoning_effort {
            variables.insert("reasoning_effort".into(), effort.into());
        }
        let tools = if prompt.tools.is_empty() { Value::Null } else { Value::Array(prompt.tools.to_vec()) };
        variables.insert("tools".into(), tools);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), prompt.add_generation_prompt.into());

        variables.insert("messages".into(), Value::Array(prompt.messages.to_vec()));
        match template.render(&variables) {
            Ok(text) => Ok(RenderedPrompt { ends_in_reasoning: ends_in_reasoning(&text), text }),
            Err(TemplateFault::Raised(message)) => Err(PromptError::Refused(message)),
            Err(TemplateFault::Failed(message)) => Err(PromptError::Failed(message)),
        }
    }

    /// The ids of a text. Special tokens that are written out in it are
    /// recognised. `add_special_tokens` puts those around it that the
    /// tokenizer wants around plain text; a rendered conversation has its own.
    ///
    /// # Errors
    /// [`PromptError::Encoding`] when the tokenizer fails.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, add_special_tokens));
        Ok(encoding.map_err(PromptError::Encoding)?.get_ids().to_vec())
    }

    /// Bytes of text that so many tokens can stand for at the very most. Text may shrink before it is tokenized, by a
    /// normal form for one, so there is room to spare.
    pub fn most_bytes_of(&self, tokens: u32) -> usize {
        const ROOM: usize = 4;
        (tokens as usize).saturating_mul(self.longest_token_bytes).saturating_mul(ROOM)
    }

    /// The text of some ids, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.detokenizer();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// A stream from ids to plain text.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.tokenizer), self.decoding)
    }

    /// A stream from the ids of a reply to what a client sees.
    pub fn reply(&self, options: ReplyOptions) -> ReplyStream {
        ReplyStream::new(self.detokenizer(), self.think, self.call_mark, options)
    }
}

fn load_tokenizer(folder: &Folder) -> Result<Tokenizer, TextError> {
    let path = folder.join("tokenizer.json");
    let Some(bytes) = folder.read_limited("tokenizer.json", TOKENIZER_LIMIT)? else {
        let fix = "the tokenizer is read from it; download the checkpoint's tokenizer.json".into();
        return Err(CheckpointError::Missing { path, fix }.into());
    };
    let load = || {
        let mut tokenizer = Tokenizer::from_bytes(&bytes)?;
        // What was left from training would cut or pad prompts.
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        match tokenizer.get_decoder() {
            Some(decoder) if strips_ends(decoder) => {
                Err("its decoder strips characters off the ends of tokens, which the tokenizer library cannot do \
                     for short ones; a Strip decoder must have a stop of 0"
                    .into())
            }
            _ => Ok(tokenizer),
        }
    };
    guarded(load).map_err(|problem| TextError::Tokenizer { path, problem })
}

/// Whether a decoder counts characters off the ends of tokens, without a look at how many there are.
fn strips_ends(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::Strip(strip) => strip.stop > 0,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(strips_ends),
        _ => false,
    }
}

/// Runs the tokenizer library, which is not free of panics on bad files.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library failed on it".into()),
    }
}

fn compile(path: PathBuf, source: &str) -> Result<Arc<ChatTemplate>, TextError> {
    ChatTemplate::compile(source).map(Arc::new).map_err(|problem| TextError::Template { path, problem })
}

/// The chat template and the file that holds it: `chat_template.jinja`, else
/// the one in `tokenizer_config.json`, alone or named "default".
fn find_template(
    folder: &Folder,
    config: &Map<String, Value>,
) -> Result<Option<(PathBuf, String)>, TextError> {
    let name = "chat_template.jinja";
    if let Some(bytes) = folder.read_limited(name, Folder::METADATA_LIMIT)? {
        let source = String::from_utf8(bytes).map_err(|_| TextError::Template {
            path: folder.join(name),
            problem: "it is not UTF-8".into(),
        })?;
        return Ok(Some((folder.join(name), source)));
    }
    let source = match config.get("chat_template") {
        Some(Value::String(source)) => Some(source.as_str()),
        Some(Value::Array(templates)) => templates
            .iter()
            .find(|template| template.get("name").and_then(Value::as_str) == Some("default"))
            .or_else(|| templates.first())
            .and_then(|template| template.get("template")?.as_str()),
        _ => None,
    };
    Ok(source.map(|source| (folder.join("tokenizer_config.json"), source.to_owned())))
}

/// `bos_token` and its kin: strings, or objects around one.
fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let tokens = config.iter().filter(|(key, _)| key.ends_with("_token"));
    tokens
        .filter_map(|(key, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), text.into()))
        })
        .collect()
}

/// Whether the last think block of a prompt is open and empty.
fn ends_in_reasoning(text: &str) -> bool {
    text.trim_end().ends_with("<think>")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use serde_json::json;

    use super::testing::{DEMO, QWEN};
    use super::*;

    const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/expect/text.json");
    const DEMO_EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo-goldens.json");

    fn load(folder: &str) -> TextModel {
        TextModel::load(Path::new(folder)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn json_file(path: &str) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn ids(value: &Value) -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    fn list(messages: Value) -> Vec<Value> {
        messages.as_array().unwrap().clone()
    }

    #[test]
    fn texts_encode_and_decode_as_the_reference_does() {
        let model = load(QWEN);
        let expected = json_file(EXPECTED);
        let cases = expected["qwen"]["encode"].as_array().unwrap();
        assert_eq!(cases.len(), 20);
        let tokenizer = testing::tokenizer(QWEN);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            assert_eq!(model.encode(text, false).unwrap(), ids(&case["ids"]), "{text:?}");
            let decoded = tokenizer.decode(&ids(&case["ids"]), false).unwrap();
            assert_eq!(decoded, case["decoded"].as_str().unwrap());
            if !text.contains("<|") {
                assert_eq!(model.decode(&ids(&case["ids"])), decoded);
            }
        }
    }

    #[test]
    fn conversations_render_as_the_reference_does() {
        let model = load(QWEN);
        let expected = json_file(EXPECTED);
        let cases = expected["qwen"]["chat"].as_array().unwrap();
        assert_eq!(cases.len(), 7);
        for case in cases {
            let messages = list(case["messages"].clone());
            let mut options = case["kwargs"].as_object().unwrap().clone();
            let tools = options.remove("tools").map_or(vec![], |tools| tools.as_array().unwrap().clone());
            let thinking = options.remove("enable_thinking").and_then(|value| value.as_bool());
            let prompt = ChatPrompt {
                tools: &tools,
                enable_thinking: thinking,
                variables: options,
                ..ChatPrompt::new(&messages)
            };
            let rendered = model.render(&prompt).unwrap();
            assert_eq!(rendered.text, case["rendered"].as_str().unwrap(), "{}", case["title"]);
            assert_eq!(model.encode(&rendered.text, false).unwrap(), ids(&case["ids"]), "{}", case["title"]);
            assert_eq!(rendered.ends_in_reasoning, thinking != Some(false));
        }
    }

    #[test]
    fn the_demo_models_prompts_have_their_ids() {
        let model = load(DEMO);
        let expected = json_file(DEMO_EXPECTED);
        let prompts = expected["prompts"].as_array().unwrap();
        assert_eq!(prompts.len(), 10);
        for case in prompts {
            let text = case["prompt"].as_str().unwrap();
            let wanted = ids(&case["prompt_ids"]);
            let plain = model.encode(text, true).unwrap();
            if plain != wanted {
                let (text, thinking) = match text.strip_suffix(" (thinking on)") {
                    Some(text) => (text, true),
                    None => (text, false),
                };
                let messages = list(json!([{ "role": "user", "content": text }]));
                let prompt = ChatPrompt { enable_thinking: Some(thinking), ..ChatPrompt::new(&messages) };
                let rendered = model.render(&prompt).unwrap();
                assert_eq!(model.encode(&rendered.text, false).unwrap(), wanted, "{text}");
                assert_eq!(rendered.ends_in_reasoning, thinking);
            }
            // The text of the goldens writes special tokens out.
            let reply = case["text"].as_str().unwrap().replace("<|im_end|>", "").replace("<|endoftext|>", "");
            assert_eq!(model.decode(&ids(&case["greedy"])), reply);
        }
    }

    #[test]
    fn a_template_refuses_in_its_own_words() {
        let messages = list(json!([{ "role": "system", "content": "alone" }]));
        let error = load(DEMO).render(&ChatPrompt::new(&messages)).unwrap_err();
        assert_eq!(error, PromptError::Refused("No user message".into()));
    }

    #[test]
    fn the_switches_of_a_template_are_known() {
        let model = load(QWEN);
        assert!(model.has_template() && model.has_thinking_switch() && model.has_tools());
        assert_eq!(model.effort_levels(), [] as [&str; 0]);
        assert_eq!(model.think_tokens(), Some(ThinkTokens { open: 1007, close: 1008 }));
        assert_eq!(model.thinking_close(), [198, 1008, 293]);
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("t.jinja");
        fs::write(&file, "{% if reasoning_effort in ['xhigh', \"medium\", 'low'] %}{% endif %}").unwrap();
        let other = model.with_template_file(&file).unwrap();
        assert!(!other.has_thinking_switch() && !other.has_tools());
        assert_eq!(other.effort_levels(), ["low", "medium", "xhigh"]);
    }

    #[test]
    fn a_reply_is_split_where_its_prompt_says() {
        let model = load(DEMO);
        let messages = list(json!([{ "role": "user", "content": "Who are you?" }]));
        let prompt = ChatPrompt { enable_thinking: Some(true), ..ChatPrompt::new(&messages) };
        let rendered = model.render(&prompt).unwrap();
        let mut stream = model.reply(ReplyOptions {
            stops: vec![".".into()],
            split_reasoning: true,
            starts_in_reasoning: rendered.ends_in_reasoning,
            tools: None,
        });
        let mut pieces = Vec::new();
        for id in model.encode("Hm.\n</think>\n\nA model. More", false).unwrap() {
            stream.push(id, &mut pieces);
        }
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning += &text,
                Piece::Content(text) => content += &text,
                Piece::Call(call) => panic!("{call:?}"),
            }
        }
        assert_eq!((reasoning.as_str(), content.as_str(), stream.stopped()), ("Hm.", "A model", Some(".")));
    }

    #[test]
    fn a_model_can_be_shared_between_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<TextModel>();
        shared::<ReplyStream>();
    }

    #[test]
    fn a_checkpoint_without_a_template_encodes_only() {
        let root = tempfile::tempdir().unwrap();
        fs::copy(Path::new(QWEN).join("tokenizer.json"), root.path().join("tokenizer.json")).unwrap();
        let model = TextModel::load(root.path()).unwrap();
        assert_eq!(model.encode("a", true).unwrap(), [64]);
        let messages = list(json!([{ "role": "user", "content": "a" }]));
        assert_eq!(model.render(&ChatPrompt::new(&messages)).unwrap_err(), PromptError::NoTemplate);
        fs::write(root.path().join("chat_template.jinja"), "{% for %}").unwrap();
        let error = TextModel::load(root.path()).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja does not compile"), "{error}");
        fs::write(root.path().join("tokenizer.json"), "{}").unwrap();
        let error = TextModel::load(root.path()).unwrap_err().to_string();
        assert!(error.contains("is not a usable tokenizer"), "{error}");
    }

    #[test]
    fn a_decoder_that_would_cut_more_than_a_token_has_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let mut tokenizer = json_file(&format!("{QWEN}/tokenizer.json"));
        let strip = |stop: u32| json!({ "type": "Strip", "content": "a", "start": 0, "stop": stop });
        for decoder in [strip(1), json!({ "type": "Sequence", "decoders": [{ "type": "Fuse" }, strip(2)] })] {
            tokenizer["decoder"] = decoder;
            fs::write(root.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
            let error = TextModel::load(root.path()).unwrap_err().to_string();
            assert!(error.contains("a Strip decoder must have a stop of 0"), "{error}");
        }
        tokenizer["decoder"] = strip(0);
        fs::write(root.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        assert!(TextModel::load(root.path()).is_ok());
    }

    #[test]
    fn truncation_left_from_training_cuts_no_prompt() {
        let root = tempfile::tempdir().unwrap();
        let mut tokenizer = json_file(&format!("{QWEN}/tokenizer.json"));
        tokenizer["truncation"] =
            json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
        fs::write(root.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        assert_eq!(TextModel::load(root.path()).unwrap().encode("1234567890", true).unwrap().len(), 10);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn mutated_text_files_never_panic(
            template: bool, position: prop::sample::Index, value: u8, cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let root = tempfile::tempdir().unwrap();
            for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
                fs::copy(Path::new(QWEN).join(name), root.path().join(name)).unwrap();
            }
            let file = root.path().join(if template { "chat_template.jinja" } else { "tokenizer.json" });
            let mut bytes = fs::read(&file).unwrap();
            let at = position.index(bytes.len());
            bytes[at] = value;
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            fs::write(&file, bytes).unwrap();
            if let Ok(model) = TextModel::load(root.path()) {
                let _ = model.encode("Hello, world! é", false);
                let messages = list(json!([{ "role": "user", "content": "a" }]));
                let _ = model.render(&ChatPrompt::new(&messages));
            }
        }
    }
}
