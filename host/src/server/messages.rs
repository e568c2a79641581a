//! The messages of a chat request, checked and brought into the form that
//! chat templates expect.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::wanted;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Checks `messages` and rewrites them: `developer` becomes `system`, system
/// messages at the start merge into one, lists of text parts become one
/// string, and the arguments of calls become objects.
pub(super) fn read_messages(messages: &Value) -> Result<Vec<Value>, ApiError> {
    let list = messages.as_array().ok_or_else(|| wanted("messages", "a list", messages))?;
    if list.is_empty() {
        return Err(ApiError::bad_request("messages must hold at least one message"));
    }
    let mut read: Vec<Value> = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let message = read_message(&format!("messages[{index}]"), message)?;
        let merges = read.len() == 1 && read[0]["role"] == "system" && message["role"] == "system";
        match (merges, read.first_mut()) {
            (true, Some(first)) => {
                let texts = [text_of(first).to_owned(), text_of(&message).to_owned()];
                let joined: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
                first["content"] = Value::String(joined.join("\n\n"));
            }
            _ => read.push(message),
        }
    }
    Ok(read)
}

/// The messages with every system message but a first one turned into a user
/// message, for templates that cannot render them; `None` when there is none.
pub(super) fn later_systems_as_users(messages: &[Value]) -> Option<Vec<Value>> {
    let is_later = |index: usize, message: &Value| index > 0 && message["role"] == "system";
    if !messages.iter().enumerate().any(|(index, message)| is_later(index, message)) {
        return None;
    }
    let rewrite = |(index, message): (usize, &Value)| {
        let mut message = message.clone();
        if is_later(index, &message) {
            message["role"] = json!("user");
        }
        message
    };
    Some(messages.iter().enumerate().map(rewrite).collect())
}

/// Whether a rendered prompt holds the text of every system message but a first one, in their order. Reads the prompt
/// once, however many messages there are.
pub(super) fn later_systems_are_in(messages: &[Value], prompt: &str) -> bool {
    let mut rest = prompt;
    messages.iter().skip(1).filter(|message| message["role"] == "system").all(|message| {
        let text = text_of(message).trim();
        match rest.find(text) {
            Some(at) => {
                rest = &rest[at + text.len()..];
                true
            }
            None => false,
        }
    })
}

fn text_of(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

fn read_message(place: &str, message: &Value) -> Result<Value, ApiError> {
    let fields = message.as_object().ok_or_else(|| wanted(place, "an object", message))?;
    let role = fields.get("role").unwrap_or(&Value::Null);
    let role = match role.as_str() {
        Some(role) if ROLES.contains(&role) => role,
        _ => return Err(wanted(&format!("{place}.role"), &format!("one of {}", ROLES.join(", ")), role)),
    };
    let mut read = Map::new();
    read.insert("role".to_owned(), json!(if role == "developer" { "system" } else { role }));
    let content = content(&format!("{place}.content"), fields.get("content").unwrap_or(&Value::Null))?;
    let calls = match fields.get("tool_calls") {
        Some(calls) if role == "assistant" && !calls.is_null() => {
            tool_calls(&format!("{place}.tool_calls"), calls)?
        }
        _ => Vec::new(),
    };
    match content {
        Some(content) => read.insert("content".to_owned(), Value::String(content)),
        None if role == "assistant" => read.insert("content".to_owned(), json!("")),
        None => {
            return Err(wanted(
                &format!("{place}.content"),
                "a string or a list of text parts",
                &Value::Null,
            ));
        }
    };
    if role == "assistant" {
        match fields.get("reasoning_content") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                read.insert("reasoning_content".to_owned(), json!(text));
            }
            Some(other) => return Err(wanted(&format!("{place}.reasoning_content"), "a string", other)),
        }
        if !calls.is_empty() {
            read.insert("tool_calls".to_owned(), Value::Array(calls));
        }
    }
    for name in ["name", "tool_call_id"] {
        match fields.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                read.insert(name.to_owned(), json!(text));
            }
            Some(other) => return Err(wanted(&format!("{place}.{name}"), "a string", other)),
        }
    }
    Ok(Value::Object(read))
}

/// The text of a message; `None` for null.
fn content(place: &str, content: &Value) -> Result<Option<String>, ApiError> {
    match content {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(parts) => {
            let mut joined = String::new();
            for (index, part) in parts.iter().enumerate() {
                let place = format!("{place}[{index}]");
                let kind = part.get("type").and_then(Value::as_str);
                let text = part.get("text").and_then(Value::as_str);
                match (kind, text) {
                    (Some("text" | "input_text" | "output_text"), Some(text)) => joined.push_str(text),
                    (Some("text" | "input_text" | "output_text"), None) => {
                        return Err(wanted(
                            &format!("{place}.text"),
                            "a string",
                            part.get("text").unwrap_or(&Value::Null),
                        ));
                    }
                    (Some(kind), _) => {
                        return Err(ApiError::bad_request(format!(
                            "{place}: parts of type {kind:?} are not supported; this model is served for text only"
                        )));
                    }
                    (None, _) => return Err(wanted(&place, "a part with a type, such as text", part)),
                }
            }
            Ok(Some(joined))
        }
        other => Err(wanted(place, "a string or a list of text parts", other)),
    }
}

fn tool_calls(place: &str, calls: &Value) -> Result<Vec<Value>, ApiError> {
    let list = calls.as_array().ok_or_else(|| wanted(place, "a list", calls))?;
    list.iter()
        .enumerate()
        .map(|(index, call)| {
            let place = format!("{place}[{index}].function");
            let function = call.get("function").unwrap_or(&Value::Null);
            let name = function
                .get("name")
                .and_then(Value::as_str)
                .ok_or_else(|| wanted(&place, "an object with a name and arguments", function))?;
            let arguments = match function.get("arguments").unwrap_or(&Value::Null) {
                Value::Null => json!({}),
                Value::Object(object) => Value::Object(object.clone()),
                Value::String(text) if text.trim().is_empty() => json!({}),
                Value::String(text) => match serde_json::from_str(text) {
                    Ok(Value::Object(object)) => Value::Object(object),
                    _ => {
                        return Err(ApiError::bad_request(format!(
                            "{place}.arguments must be the JSON text of an object"
                        )));
                    }
                },
                other => {
                    return Err(wanted(&format!("{place}.arguments"), "the JSON text of an object", other));
                }
            };
            let mut read = Map::new();
            if let Some(id) = call.get("id").and_then(Value::as_str) {
                read.insert("id".to_owned(), json!(id));
            }
            read.insert("type".to_owned(), json!("function"));
            read.insert("function".to_owned(), json!({ "name": name, "arguments": arguments }));
            Ok(Value::Object(read))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(messages: Value) -> String {
        read_messages(&messages).unwrap_err().message
    }

    #[test]
    fn leading_system_and_developer_messages_merge_and_later_ones_stay() {
        let messages = json!([
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "system", "content": "d"},
        ]);
        let read = read_messages(&messages).unwrap();
        assert_eq!(
            read,
            [
                json!({"role": "system", "content": "a\n\nb"}),
                json!({"role": "user", "content": "c"}),
                json!({"role": "system", "content": "d"}),
            ]
        );
        let rewritten = later_systems_as_users(&read).unwrap();
        assert_eq!(rewritten[0]["role"], "system");
        assert_eq!(rewritten[2], json!({"role": "user", "content": "d"}));
        assert_eq!(later_systems_as_users(&read[..2]), None);
        assert!(later_systems_are_in(&read, "a b c d") && !later_systems_are_in(&read, "a b c"));
        let twice = [read.clone(), read[2..].to_vec()].concat();
        assert!(later_systems_are_in(&twice, "a b c d d") && !later_systems_are_in(&twice, "a b c d"));
    }

    #[test]
    fn text_parts_become_one_string_and_other_parts_are_refused_by_place() {
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(read_messages(&parts).unwrap()[0]["content"], "ab");
        let image =
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]);
        assert!(
            refusal(image)
                .starts_with("messages[0].content[0]: parts of type \"image_url\" are not supported")
        );
        let nothing = json!([{"role": "user", "content": [{"type": "text"}]}]);
        assert_eq!(refusal(nothing), "messages[0].content[0].text must be a string, not null");
    }

    #[test]
    fn calls_of_an_assistant_keep_their_arguments_as_an_object() {
        let messages = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]);
        let read = read_messages(&messages).unwrap();
        assert_eq!(read[1]["tool_calls"][0]["function"], json!({"name": "f", "arguments": {"a": 1}}));
        assert_eq!((&read[1]["content"], &read[1]["reasoning_content"]), (&json!(""), &json!("hm")));
        assert_eq!(read[2]["tool_call_id"], "c1");
        let broken =
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]);
        assert!(refusal(broken).contains("messages[0].tool_calls[0].function.arguments"));
    }

    #[test]
    fn what_is_no_message_is_refused_by_place() {
        assert_eq!(refusal(json!({})), "messages must be a list, not an object");
        assert_eq!(refusal(json!([])), "messages must hold at least one message");
        assert_eq!(refusal(json!(["hi"])), "messages[0] must be an object, not the string \"hi\"");
        assert_eq!(
            refusal(json!([{"role": "robot", "content": "x"}])),
            "messages[0].role must be one of system, developer, user, assistant, tool, not the string \"robot\""
        );
        assert_eq!(
            refusal(json!([{"role": "user"}])),
            "messages[0].content must be a string or a list of text parts, not null"
        );
        assert!(refusal(json!([{"role": "user", "content": 7}])).contains("not 7"));
    }
}
