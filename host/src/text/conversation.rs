//! Messages of a chat, in the one shape that templates are given.

use serde_json::{Map, Value};

/// A checked list of messages.
///
/// Every message has a `role` of system, user, assistant or tool and a string
/// as `content`; the arguments of a call are an object. Leading system
/// messages are merged into one.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Map<String, Value>>,
}

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("messages{place} {problem}")]
pub struct MessageError {
    /// `[2].content`, or nothing where the list as a whole is meant.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

fn fault<T>(place: impl Into<String>, problem: impl Into<String>) -> Result<T, MessageError> {
    Err(MessageError { place: place.into(), problem: problem.into() })
}

impl Conversation {
    /// Checks and normalises messages in the form of OpenAI's chat API.
    ///
    /// # Errors
    /// With the place of the first message that cannot be used.
    pub fn new(messages: Vec<Value>) -> Result<Conversation, MessageError> {
        if messages.is_empty() {
            return fault("", "is empty; at least one message is needed");
        }
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| normalise(index, message))
            .collect::<Result<_, _>>()?;
        Ok(Conversation { messages: merge_leading_system(messages) })
    }

    /// The messages.
    pub fn messages(&self) -> &[Map<String, Value>] {
        &self.messages
    }

    /// For templates that allow a system message at the front only: later ones
    /// become user messages. `None` where there is no later one.
    pub(super) fn with_late_system_as_user(&self) -> Option<Conversation> {
        let mut changed = false;
        let mut messages = self.messages.clone();
        for message in messages.iter_mut().skip(1).filter(|message| is_system(message)) {
            message.insert("role".into(), "user".into());
            changed = true;
        }
        changed.then_some(Conversation { messages })
    }
}

fn is_system(message: &Map<String, Value>) -> bool {
    message.get("role").and_then(Value::as_str) == Some("system")
}

fn merge_leading_system(messages: Vec<Map<String, Value>>) -> Vec<Map<String, Value>> {
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let mut messages = messages;
    if leading > 1 {
        let texts: Vec<String> = messages
            .drain(1..leading)
            .filter_map(|message| message.get("content").and_then(Value::as_str).map(str::to_owned))
            .collect();
        if let Some(Value::String(content)) = messages[0].get_mut("content") {
            for text in texts {
                content.push_str("\n\n");
                content.push_str(&text);
            }
        }
    }
    messages
}

fn normalise(index: usize, message: Value) -> Result<Map<String, Value>, MessageError> {
    let Value::Object(mut message) = message else { return fault(format!("[{index}]"), "is not an object") };
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        Some(other) => {
            return fault(
                format!("[{index}].role"),
                format!("is {other:?}; system, developer, user, assistant and tool are known"),
            );
        }
        None => return fault(format!("[{index}].role"), "is missing"),
    };
    let content = content(index, role, &message)?;
    message.insert("role".into(), role.into());
    message.insert("content".into(), content.into());
    if role == "assistant" {
        reasoning(index, &mut message)?;
        tool_calls(index, &mut message)?;
    }
    Ok(message)
}

/// The text of a message: a string, or the text of its parts one after another.
fn content(index: usize, role: &str, message: &Map<String, Value>) -> Result<String, MessageError> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        // Only an assistant may have nothing to say: it may have called.
        None | Some(Value::Null) if role == "assistant" => Ok(String::new()),
        None | Some(Value::Null) => fault(format!("[{index}].content"), "is missing"),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (part_index, part) in parts.iter().enumerate() {
                let place = || format!("[{index}].content[{part_index}]");
                let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
                match (kind, part.get("text").and_then(Value::as_str)) {
                    ("text" | "input_text" | "output_text", Some(part)) => text.push_str(part),
                    ("text" | "input_text" | "output_text", None) => return fault(place(), "has no text"),
                    (other, _) => {
                        return fault(place(), format!("is of the type {other:?}; only text is read"));
                    }
                }
            }
            Ok(text)
        }
        Some(_) => fault(format!("[{index}].content"), "is neither a string nor a list of parts"),
    }
}

/// `reasoning_content`, under which name clients send back what they got;
/// some say `reasoning`.
fn reasoning(index: usize, message: &mut Map<String, Value>) -> Result<(), MessageError> {
    let sent = match message.get("reasoning_content") {
        None | Some(Value::Null) => message.get("reasoning"),
        sent => sent,
    };
    match sent.cloned() {
        Some(Value::String(text)) => message.insert("reasoning_content".into(), text.into()),
        None | Some(Value::Null) => message.remove("reasoning_content"),
        Some(_) => return fault(format!("[{index}].reasoning_content"), "is not a string"),
    };
    Ok(())
}

fn tool_calls(index: usize, message: &mut Map<String, Value>) -> Result<(), MessageError> {
    let calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => {
            message.remove("tool_calls");
            return Ok(());
        }
        Some(Value::Array(calls)) => calls,
        Some(_) => return fault(format!("[{index}].tool_calls"), "is not a list"),
    };
    for (call_index, call) in calls.iter_mut().enumerate() {
        let place = format!("[{index}].tool_calls[{call_index}].function");
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return fault(place, "is missing");
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return fault(format!("{place}.name"), "is missing");
        }
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Some(Map::new()),
            Some(Value::Object(arguments)) => Some(arguments.clone()),
            Some(Value::String(text)) if text.trim().is_empty() => Some(Map::new()),
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            Some(_) => None,
        };
        let Some(arguments) = arguments else {
            return fault(format!("{place}.arguments"), "is not the JSON of an object");
        };
        function.insert("arguments".into(), Value::Object(arguments));
    }
    if calls.is_empty() {
        message.remove("tool_calls");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(messages: Value) -> Result<Vec<Value>, String> {
        let Value::Array(messages) = messages else { unreachable!() };
        let conversation = Conversation::new(messages).map_err(|error| error.to_string())?;
        Ok(conversation.messages.into_iter().map(Value::Object).collect())
    }

    #[test]
    fn leading_system_and_developer_messages_are_one() {
        let merged = conversation(json!([
            { "role": "system", "content": "a" },
            { "role": "developer", "content": [{ "type": "text", "text": "b" }, { "type": "text", "text": "c" }] },
            { "role": "user", "content": "d" },
            { "role": "system", "content": "e" },
        ]))
        .unwrap();
        assert_eq!(merged.len(), 3);
        assert_eq!(merged[0], json!({ "role": "system", "content": "a\n\nbc" }));
        assert_eq!(merged[2]["role"], "system");
    }

    #[test]
    fn late_system_messages_can_become_user_messages() {
        let messages = vec![
            json!({ "role": "system", "content": "a" }),
            json!({ "role": "user", "content": "b" }),
            json!({ "role": "system", "content": "c" }),
        ];
        let all = Conversation::new(messages.clone()).unwrap().with_late_system_as_user().unwrap();
        let roles: Vec<_> = all.messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "user"]);
        assert!(Conversation::new(messages[..2].to_vec()).unwrap().with_late_system_as_user().is_none());
    }

    #[test]
    fn calls_carry_objects() {
        let call = |arguments: Value| {
            json!([{ "role": "assistant", "content": null, "reasoning": "r",
            "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": arguments } }] }])
        };
        let parsed = conversation(call(json!("{\"b\": 1, \"a\": 2}"))).unwrap();
        let arguments = &parsed[0]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(arguments.to_string(), r#"{"b":1,"a":2}"#);
        assert_eq!((&parsed[0]["content"], &parsed[0]["reasoning_content"]), (&json!(""), &json!("r")));
        assert_eq!(
            conversation(call(json!(""))).unwrap()[0]["tool_calls"][0]["function"]["arguments"],
            json!({})
        );
        assert_eq!(
            conversation(call(json!("[1]"))).unwrap_err(),
            "messages[0].tool_calls[0].function.arguments is not the JSON of an object"
        );
    }

    #[test]
    fn what_cannot_be_used_is_placed() {
        for (messages, wanted) in [
            (json!([]), "messages is empty"),
            (json!(["x"]), "messages[0] is not an object"),
            (json!([{ "content": "x" }]), "messages[0].role is missing"),
            (json!([{ "role": "robot", "content": "x" }]), "messages[0].role is \"robot\""),
            (json!([{ "role": "user" }]), "messages[0].content is missing"),
            (json!([{ "role": "user", "content": 3 }]), "messages[0].content is neither"),
            (
                json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
                "messages[0].content[0] is of the type \"image_url\"; only text is read",
            ),
            (json!([{ "role": "assistant", "tool_calls": {} }]), "messages[0].tool_calls is not a list"),
            (
                json!([{ "role": "assistant", "tool_calls": [{}] }]),
                "messages[0].tool_calls[0].function is missing",
            ),
        ] {
            let error = conversation(messages).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
