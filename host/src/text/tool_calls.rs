//! Tool calls in Qwen's form, from text as it streams.
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A pure parser: text in, events out. What does not follow the form comes out
//! as the text that it is; nothing is lost and nothing is guessed.

use std::collections::HashMap;

use serde_json::Value;

use super::json::{Layout, to_json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// The types that tools declare for their parameters.
#[derive(Clone, Debug, Default)]
pub struct ToolTypes {
    functions: HashMap<String, HashMap<String, Vec<String>>>,
}

impl ToolTypes {
    /// From tools in the form of OpenAI's chat API. What has no readable
    /// schema is left out: its parameters are strings.
    pub fn new(tools: &[Value]) -> ToolTypes {
        let functions = tools
            .iter()
            .filter_map(|tool| {
                let function = tool.get("function").unwrap_or(tool);
                let name = function.get("name")?.as_str()?;
                let properties = function.get("parameters")?.get("properties")?.as_object()?;
                let types = properties.iter().map(|(key, schema)| (key.clone(), schema_types(schema)));
                Some((name.to_owned(), types.collect()))
            })
            .collect();
        ToolTypes { functions }
    }

    /// A value as the model wrote it, by the declared type. What does not fit
    /// its type stays a string.
    fn convert(&self, function: &str, parameter: &str, text: &str) -> Value {
        let types = self.functions.get(function).and_then(|parameters| parameters.get(parameter));
        let types = types.map(Vec::as_slice).unwrap_or_default();
        let is = |kind: &str| types.iter().any(|declared| declared == kind);
        let only_strings = types.is_empty() || types.iter().all(|declared| declared == "string");
        if only_strings {
            return text.into();
        }
        let trimmed = text.trim();
        if trimmed == "null" {
            return Value::Null;
        }
        if (is("boolean"))
            && let Ok(value) = trimmed.to_ascii_lowercase().parse::<bool>()
        {
            return value.into();
        }
        let parsed: Option<Value> = serde_json::from_str(trimmed).ok();
        match parsed {
            Some(Value::Number(number)) if is("integer") || is("number") => {
                let whole = number.as_f64().filter(|v| number.is_f64() && v.fract() == 0.0 && v.abs() < 9e15);
                match whole.filter(|_| !is("number")) {
                    Some(whole) => (whole as i64).into(),
                    None if number.is_f64() && !is("number") => text.into(),
                    None => Value::Number(number),
                }
            }
            Some(value @ Value::Object(_)) if is("object") => value,
            Some(value @ Value::Array(_)) if is("array") => value,
            _ => text.into(),
        }
    }
}

/// The types that a schema allows.
fn schema_types(schema: &Value) -> Vec<String> {
    let mut types = Vec::new();
    match schema.get("type") {
        Some(Value::String(kind)) => types.push(kind.clone()),
        Some(Value::Array(kinds)) => types.extend(kinds.iter().filter_map(Value::as_str).map(str::to_owned)),
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(choices)) = schema.get(key) {
            types.extend(choices.iter().filter_map(|choice| choice.get("type")?.as_str()).map(str::to_owned));
        }
    }
    types
}

/// What the parser found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text outside of calls. Never empty.
    Text(String),
    /// A call begins.
    Start {
        /// The function.
        name: String,
    },
    /// The next part of the call's arguments: the parts join to a JSON object.
    Arguments(String),
    /// The call is complete.
    End,
    /// The text ended, or left the form, inside a call that had begun. Its
    /// arguments are not complete.
    Abandoned {
        /// All text of the call, from its opening mark on.
        text: String,
    },
}

/// Finds tool calls in a text.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    types: ToolTypes,
    held: String,
    /// Text of the current call that was taken from `held`.
    call: String,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Outside of a call. `after_call`: only space since the last one.
    Text { after_call: bool },
    /// After `<tool_call>`, before the function's name. `space` stood before
    /// the mark and is text where this is no call.
    Opened { space: String },
    /// Among the parameters.
    Function { name: String, parameters: usize },
    /// After `</function>`.
    Closing,
}

impl ToolCallParser {
    /// A parser that knows the types of these tools.
    pub fn new(types: ToolTypes) -> ToolCallParser {
        ToolCallParser {
            types,
            held: String::new(),
            call: String::new(),
            state: State::Text { after_call: false },
        }
    }

    /// The events that this text completes.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.step(&mut events) {}
        join_texts(events)
    }

    /// The events that were held back, at the end of the text.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let rest = std::mem::take(&mut self.held);
        let state = std::mem::replace(&mut self.state, State::Text { after_call: false });
        match state {
            State::Text { after_call } if rest.is_empty() || (after_call && rest.trim().is_empty()) => {
                Vec::new()
            }
            State::Text { .. } => vec![ToolEvent::Text(rest)],
            State::Opened { space } => vec![ToolEvent::Text(format!("{space}{OPEN}{rest}"))],
            State::Function { .. } => {
                vec![ToolEvent::Abandoned { text: std::mem::take(&mut self.call) + &rest }]
            }
            State::Closing => vec![ToolEvent::End],
        }
    }

    /// Takes one step; `false` where more text is needed.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match &self.state {
            State::Text { after_call } => {
                let after_call = *after_call;
                self.outside(after_call, events)
            }
            State::Opened { space } => {
                let space = space.clone();
                self.opened(&space, events)
            }
            State::Function { name, parameters } => {
                let (name, parameters) = (name.clone(), *parameters);
                self.inside(name, parameters, events)
            }
            State::Closing => match follows(&self.held, CLOSE) {
                Some(false) => {
                    // The call is whole; only its end mark is missing.
                    events.push(ToolEvent::End);
                    self.state = State::Text { after_call: false };
                    true
                }
                Some(true) => {
                    self.take_past(CLOSE);
                    events.push(ToolEvent::End);
                    self.state = State::Text { after_call: true };
                    true
                }
                None => false,
            },
        }
    }

    fn outside(&mut self, after_call: bool, events: &mut Vec<ToolEvent>) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let before: String = self.held.drain(..at).collect();
            self.call.clear();
            self.take(OPEN.len());
            // Space between calls, and before the first, is form.
            let text = before.trim_end();
            push_text(events, if after_call { text.trim_start() } else { text });
            self.state = State::Opened { space: before[text.len()..].to_owned() };
            return true;
        }
        // Hold back what may be the mark's beginning, and space before it.
        let kept = self.held.len() - partial(&self.held, OPEN);
        let kept = self.held[..kept].trim_end().len();
        let text: String = self.held.drain(..kept).collect();
        if !text.is_empty() {
            push_text(events, if after_call { text.trim_start() } else { &text });
            self.state = State::Text { after_call: false };
        }
        false
    }

    fn opened(&mut self, space: &str, events: &mut Vec<ToolEvent>) -> bool {
        match follows(&self.held, FUNCTION) {
            None => false,
            Some(true) => {
                let start = self.held.find(FUNCTION).map_or(0, |at| at + FUNCTION.len());
                let Some(length) = self.held[start..].find(['>', '\n', '<']) else { return false };
                let name = self.held[start..start + length].trim().to_owned();
                if name.is_empty() || !self.held[start + length..].starts_with('>') {
                    return self.not_a_call(space, events);
                }
                self.take(start + length + 1);
                events.push(ToolEvent::Start { name: name.clone() });
                self.state = State::Function { name, parameters: 0 };
                true
            }
            Some(false) => self.not_a_call(space, events),
        }
    }

    fn not_a_call(&mut self, space: &str, events: &mut Vec<ToolEvent>) -> bool {
        push_text(events, &format!("{space}{OPEN}"));
        self.state = State::Text { after_call: false };
        true
    }

    fn inside(&mut self, name: String, parameters: usize, events: &mut Vec<ToolEvent>) -> bool {
        match (follows(&self.held, FUNCTION_END), follows(&self.held, PARAMETER)) {
            (Some(true), _) => {
                self.take_past(FUNCTION_END);
                events.push(ToolEvent::Arguments(if parameters == 0 { "{}".into() } else { "}".into() }));
                self.state = State::Closing;
                true
            }
            (_, Some(true)) => {
                let start = self.held.find(PARAMETER).map_or(0, |at| at + PARAMETER.len());
                let Some(length) = self.held[start..].find('>') else { return false };
                let value_start = start + length + 1;
                let Some(value_length) = self.held[value_start..].find(PARAMETER_END) else { return false };
                let key = self.held[start..start + length].trim().to_owned();
                let value = &self.held[value_start..value_start + value_length];
                let value = value.strip_prefix('\n').unwrap_or(value);
                let value = value.strip_suffix('\n').unwrap_or(value);
                let value = self.types.convert(&name, &key, value);
                let layout = Layout::default();
                let separator = if parameters == 0 { "{" } else { ", " };
                let key = to_json(&Value::String(key), &layout);
                events.push(ToolEvent::Arguments(format!("{separator}{key}: {}", to_json(&value, &layout))));
                self.take(value_start + value_length + PARAMETER_END.len());
                self.state = State::Function { name, parameters: parameters + 1 };
                true
            }
            (Some(false), Some(false)) => {
                let Some(at) = self.held.find(CLOSE) else { return false };
                self.take(at + CLOSE.len());
                events.push(ToolEvent::Abandoned { text: std::mem::take(&mut self.call) });
                self.state = State::Text { after_call: true };
                true
            }
            _ => false,
        }
    }

    fn take_past(&mut self, mark: &str) {
        if let Some(at) = self.held.find(mark) {
            self.take(at + mark.len());
        }
    }

    /// Moves text of the call from what is held.
    fn take(&mut self, length: usize) {
        let rest = self.held.split_off(length);
        self.call.push_str(&self.held);
        self.held = rest;
    }
}

/// Whether a mark follows after space: `None` where more text must tell.
fn follows(text: &str, mark: &str) -> Option<bool> {
    let text = text.trim_start();
    if text.starts_with(mark) {
        Some(true)
    } else if mark.starts_with(text) {
        None
    } else {
        Some(false)
    }
}

/// Bytes at the end of the text that may be the beginning of a mark.
fn partial(text: &str, mark: &str) -> usize {
    (1..mark.len().min(text.len() + 1)).rev().find(|&length| text.ends_with(&mark[..length])).unwrap_or(0)
}

fn push_text(events: &mut Vec<ToolEvent>, text: &str) {
    if !text.is_empty() {
        events.push(ToolEvent::Text(text.to_owned()));
    }
}

fn join_texts(events: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut joined: Vec<ToolEvent> = Vec::with_capacity(events.len());
    for event in events {
        match (joined.last_mut(), event) {
            (Some(ToolEvent::Text(text)), ToolEvent::Text(more)) => text.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn types() -> ToolTypes {
        ToolTypes::new(&[
            json!({ "type": "function", "function": { "name": "f", "parameters": { "properties": {
            "s": { "type": "string" }, "i": { "type": "integer" }, "n": { "type": "number" },
            "b": { "type": "boolean" }, "o": { "type": "object" }, "l": { "type": ["array", "null"] },
            "a": { "anyOf": [{ "type": "string" }, { "type": "integer" }] },
        } } } }),
        ])
    }

    fn parse(pieces: &[&str]) -> Vec<ToolEvent> {
        let mut parser = ToolCallParser::new(types());
        let mut events: Vec<ToolEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        join_texts(events)
    }

    /// Calls as (name, arguments), and all text.
    fn calls(text: &str) -> (Vec<(String, Value)>, String) {
        let (mut calls, mut said, mut arguments) = (Vec::new(), String::new(), String::new());
        for event in parse(&[text]) {
            match event {
                ToolEvent::Text(text) => said += &text,
                ToolEvent::Start { name } => calls.push((name, Value::Null)),
                ToolEvent::Arguments(part) => arguments += &part,
                ToolEvent::End => {
                    calls.last_mut().unwrap().1 =
                        serde_json::from_str(&std::mem::take(&mut arguments)).unwrap();
                }
                ToolEvent::Abandoned { text } => said += &text,
            }
        }
        (calls, said)
    }

    fn call(parameters: &[(&str, &str)]) -> String {
        let parameters: String = parameters
            .iter()
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
    }

    #[test]
    fn values_follow_their_declared_types() {
        let text = call(&[
            ("s", "two\nlines "),
            ("i", "12"),
            ("n", "1.5"),
            ("b", "True"),
            ("o", "{\"z\": 1, \"a\": [2]}"),
            ("l", "null"),
            ("unknown", "7"),
        ]);
        let (found, said) = calls(&text);
        let wanted = json!({ "s": "two\nlines ", "i": 12, "n": 1.5, "b": true, "o": { "z": 1, "a": [2] },
            "l": null, "unknown": "7" });
        assert_eq!((found, said.as_str()), (vec![("f".into(), wanted)], ""));
    }

    #[test]
    fn what_does_not_fit_its_type_stays_a_string() {
        let text = call(&[("i", "many"), ("n", "\"1\""), ("b", "yes"), ("o", "{"), ("l", "[1"), ("a", "x")]);
        let wanted = json!({ "i": "many", "n": "\"1\"", "b": "yes", "o": "{", "l": "[1", "a": "x" });
        assert_eq!(calls(&text).0[0].1, wanted);
        let text = call(&[("i", "2.0"), ("a", "5"), ("s", "null"), ("l", "[1, null]")]);
        assert_eq!(calls(&text).0[0].1, json!({ "i": 2, "a": 5, "s": "null", "l": [1, null] }));
    }

    #[test]
    fn exactly_one_line_break_on_each_side_is_form() {
        assert_eq!(calls(&call(&[("s", "\n x\n")])).0[0].1, json!({ "s": "\n x\n" }));
        let bare = "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>";
        assert_eq!(calls(bare).0[0].1, json!({ "s": "x" }));
    }

    #[test]
    fn text_and_several_calls_are_told_apart() {
        let text = format!("Let me look.\n\n{}\n{}\n", call(&[("s", "1")]), call(&[]));
        let (found, said) = calls(&text);
        assert_eq!(said, "Let me look.");
        assert_eq!(found, [("f".into(), json!({ "s": "1" })), ("f".into(), json!({}))]);
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "a < b and <tool_calls>",
            "<tool_call>\nnot a function",
            "<tool_call>",
            "<tool_call>\n<function=>",
            "plain \n",
            "a \n<tool_call> b",
        ] {
            assert_eq!(calls(text), (vec![], text.to_owned()));
        }
    }

    #[test]
    fn a_call_that_never_ends_is_told() {
        let half = "<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n<parameter=i>\nhalf";
        let events = parse(&[half]);
        assert_eq!(events.first(), Some(&ToolEvent::Start { name: "f".into() }));
        assert_eq!(events.last(), Some(&ToolEvent::Abandoned { text: half.into() }));
        let events = parse(&["<tool_call><function=f>garbage</tool_call> after"]);
        let text = "<tool_call><function=f>garbage</tool_call>".to_owned();
        let after = ToolEvent::Text("after".into());
        assert_eq!(events, [ToolEvent::Start { name: "f".into() }, ToolEvent::Abandoned { text }, after]);
        // Only the last mark is missing: the call is whole.
        assert_eq!(parse(&["<tool_call><function=f></function>"]).last(), Some(&ToolEvent::End));
    }

    #[test]
    fn arguments_stream_parameter_by_parameter() {
        let mut parser = ToolCallParser::new(types());
        assert_eq!(parser.push("ok <tool_c"), [ToolEvent::Text("ok".into())]);
        assert_eq!(parser.push("all>\n<function=f>\n"), [ToolEvent::Start { name: "f".into() }]);
        let first = parser.push("<parameter=i>\n1\n</parameter>");
        assert_eq!(first, [ToolEvent::Arguments("{\"i\": 1".into())]);
        let second = parser.push("<parameter=s>\nx\n</parameter>\n</function>");
        assert_eq!(second, [ToolEvent::Arguments(", \"s\": \"x\"".into()), ToolEvent::Arguments("}".into())]);
        assert_eq!(parser.push("</tool_call>"), [ToolEvent::End]);
        assert_eq!(parser.finish(), []);
    }

    proptest! {
        #[test]
        fn the_cut_into_pieces_does_not_matter(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=i>", "<parameter=s>",
                "</parameter>", "\n", " ", "1", "é", "<", "<tool", "word",
            ]), 0..24),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let text = parts.concat();
            let boundaries: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| boundaries[cut.index(boundaries.len())]).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&str> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(parse(&pieces), parse(&[&text]));
        }
    }
}
