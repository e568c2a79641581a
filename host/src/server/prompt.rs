//! From a request body to a prompt: everything between JSON and token ids.
//!
//! This is the part of a request that computes (parsing, rendering,
//! tokenizing), so it runs apart from the threads that answer connections.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, wanted};
use super::messages::{later_systems_are_in, later_systems_as_users, read_messages};
use super::options::Settings;
use super::reply_fields::ReplyFields;
use super::thinking::Thinking;
use crate::engine::prompt_seed;
use crate::text::{ChatPrompt, PromptError, RenderedPrompt, ReplyOptions, TextModel, ToolTypes};

/// Which interface a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// A request that is understood and whose prompt is made.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) interface: Interface,
    /// The model id to answer with.
    pub(super) model: String,
    pub(super) fields: ReplyFields,
    pub(super) prompt: Vec<u32>,
    /// Whether the model was asked to think.
    pub(super) thinking: bool,
    pub(super) effort: Option<String>,
    /// The reply ends with its first call of a tool.
    pub(super) one_call: bool,
    pub(super) text: ReplyOptions,
}

/// Understands a body that came to `route`.
pub(super) fn prepare(
    route: Interface,
    body: &Map<String, Value>,
    settings: &Settings,
    text: &TextModel,
) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    let model = settings.model_id(fields.text("model")?).to_owned();
    let reply = ReplyFields::read(fields, &settings.sampling)?;
    let has_messages = fields.get("messages").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let mut prepared = if route == Interface::Chat || has_messages {
        chat(fields, model, reply, settings, text)?
    } else {
        completion(fields, model, reply, settings, text)?
    };
    let given = prepared.fields.seed;
    prepared.fields.sampling.seed =
        given.unwrap_or_else(|| prompt_seed(&prepared.prompt, settings.seed_salt));
    Ok(prepared)
}

fn completion(
    fields: Fields<'_>,
    model: String,
    reply: ReplyFields,
    settings: &Settings,
    text: &TextModel,
) -> Result<Prepared, ApiError> {
    let prompt = completion_prompt(fields, settings, text)?;
    if prompt.is_empty() {
        return Err(ApiError::bad_request("prompt is empty: it needs at least one token"));
    }
    let options = ReplyOptions { stops: reply.stop.clone(), ..ReplyOptions::default() };
    Ok(Prepared {
        interface: Interface::Completion,
        model,
        fields: reply,
        prompt,
        thinking: false,
        effort: None,
        one_call: false,
        text: options,
    })
}

fn chat(
    fields: Fields<'_>,
    model: String,
    reply: ReplyFields,
    settings: &Settings,
    text: &TextModel,
) -> Result<Prepared, ApiError> {
    let messages = match fields.get("messages") {
        Some(messages) => read_messages(messages)?,
        None => return Err(ApiError::bad_request("messages is missing: it holds the conversation")),
    };
    let one_call = fields.boolean("parallel_tool_calls")? == Some(false);
    let tools = read_tools(fields, text)?;
    let (thinking, variables) = Thinking::read(fields, &settings.thinking, &settings.effort_levels)?;
    let has_switch = text.has_thinking_switch();
    let chat = ChatPrompt {
        tools: &tools,
        enable_thinking: has_switch.then_some(thinking.enabled),
        reasoning_effort: thinking.effort.as_deref().filter(|_| thinking.enabled),
        variables,
        ..ChatPrompt::new(&messages)
    };
    let rendered = render(text, &chat).map_err(|error| ApiError::bad_request(error.to_string()))?;
    refuse_hopeless("messages", &rendered.text, settings)?;
    let prompt =
        text.encode(&rendered.text, false).map_err(|error| ApiError::bad_request(error.to_string()))?;
    if prompt.is_empty() {
        return Err(ApiError::bad_request("the rendered prompt is empty: the messages hold no text"));
    }
    let options = ReplyOptions {
        stops: reply.stop.clone(),
        split_reasoning: true,
        starts_in_reasoning: rendered.ends_in_reasoning,
        tools: (!tools.is_empty()).then(|| ToolTypes::new(&tools)),
    };
    Ok(Prepared {
        interface: Interface::Chat,
        model,
        fields: reply,
        prompt,
        thinking: rendered.ends_in_reasoning || (thinking.enabled && has_switch),
        effort: thinking.effort.filter(|_| thinking.enabled),
        one_call: one_call && options.tools.is_some(),
        text: options,
    })
}

/// Renders, with later system messages as user messages where the template
/// refuses them or leaves them out.
fn render(text: &TextModel, chat: &ChatPrompt<'_>) -> Result<RenderedPrompt, PromptError> {
    let rendered = text.render(chat);
    if rendered.as_ref().is_ok_and(|rendered| later_systems_are_in(chat.messages, &rendered.text)) {
        return rendered;
    }
    match later_systems_as_users(chat.messages) {
        Some(messages) => text.render(&ChatPrompt { messages: &messages, ..chat.clone() }).or(rendered),
        None => rendered,
    }
}

/// The tools on offer; empty when none are or when the request hides them.
fn read_tools(fields: Fields<'_>, text: &TextModel) -> Result<Vec<Value>, ApiError> {
    let tools = match fields.get("tools") {
        None => &[][..],
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(wanted("tools", "a list", other)),
    };
    for (index, tool) in tools.iter().enumerate() {
        let is_function = tool.get("type").and_then(Value::as_str) == Some("function");
        if !is_function || tool.pointer("/function/name").and_then(Value::as_str).is_none() {
            return Err(ApiError::bad_request(format!(
                "tools[{index}] must be an object of type \"function\" with a function that has a name"
            )));
        }
    }
    let hidden = match fields.get("tool_choice") {
        None => false,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => false,
            "none" => true,
            "required" => {
                return Err(ApiError::bad_request(
                    "tool_choice \"required\" is not supported: this engine cannot force a call yet; use \"auto\"",
                ));
            }
            other => {
                return Err(ApiError::bad_request(format!(
                    "tool_choice must be \"none\", \"auto\", \"required\" or a function, not {other:?}"
                )));
            }
        },
        Some(Value::Object(_)) => {
            return Err(ApiError::bad_request(
                "tool_choice with a named function is not supported: this engine cannot force a call yet; use \"auto\"",
            ));
        }
        Some(other) => return Err(wanted("tool_choice", "a string or an object", other)),
    };
    if hidden || tools.is_empty() {
        return Ok(Vec::new());
    }
    if !text.has_tools() {
        return Err(ApiError::bad_request(
            "tools are not supported: the chat template of this model renders none, or marks calls in a way that is not known here",
        ));
    }
    Ok(tools.to_vec())
}

/// The prompt of a completion: text, or token ids run as given.
fn completion_prompt(
    fields: Fields<'_>,
    settings: &Settings,
    text: &TextModel,
) -> Result<Vec<u32>, ApiError> {
    let Some(prompt) = fields.get("prompt") else {
        return Err(ApiError::bad_request("prompt is missing: it is a string or a list of token ids"));
    };
    match prompt {
        Value::String(prompt) => encode(text, settings, prompt),
        Value::Array(list) if list.iter().any(|item| item.is_string() || item.is_array()) => {
            match &list[..] {
                [Value::String(prompt)] => encode(text, settings, prompt),
                [Value::Array(ids)] => token_ids(ids),
                _ => Err(ApiError::bad_request(format!(
                    "prompt holds {} prompts; this server takes one a request",
                    list.len()
                ))),
            }
        }
        Value::Array(ids) => token_ids(ids),
        other => Err(wanted("prompt", "a string or a list of token ids", other)),
    }
}

fn encode(text: &TextModel, settings: &Settings, prompt: &str) -> Result<Vec<u32>, ApiError> {
    refuse_hopeless("prompt", prompt, settings)?;
    text.encode(prompt, true).map_err(|error| ApiError::bad_request(format!("prompt: {error}")))
}

/// Tokenizing takes many times the text's size in memory: not for a text that cannot fit.
fn refuse_hopeless(param: &'static str, text: &str, settings: &Settings) -> Result<(), ApiError> {
    match text.len() > settings.prompt_limit_bytes {
        true => Err(ApiError::context_far_exceeded(param, settings.context, text.len())),
        false => Ok(()),
    }
}

fn token_ids(ids: &[Value]) -> Result<Vec<u32>, ApiError> {
    ids.iter()
        .enumerate()
        .map(|(index, id)| {
            let number = id.as_u64().ok_or_else(|| wanted(&format!("prompt[{index}]"), "a token id", id))?;
            // Whether the model has the id is for the engine to say, with the valid range.
            Ok(u32::try_from(number).unwrap_or(u32::MAX))
        })
        .collect()
}
