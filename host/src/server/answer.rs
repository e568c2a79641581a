//! The two forms in which a reply is answered: one JSON document, or a stream
//! of events.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use futures_util::stream;
use serde_json::{Map, Value, json};

use super::error::{ApiError, json_response};
use super::identity::new_id;
use super::prompt::Interface;
use super::reply::{Reply, Step, Summary};
use crate::text::{Piece, ToolCall};

/// Waits for the whole reply and answers with one document.
pub(super) async fn whole(mut reply: Reply) -> Result<Response<Body>, ApiError> {
    let created = unix_seconds();
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let summary = loop {
        match reply.next().await {
            Step::Pieces(pieces) => {
                for piece in pieces {
                    match piece {
                        Piece::Content(text) => content.push_str(&text),
                        Piece::Reasoning(text) => reasoning.push_str(&text),
                        Piece::Call(call) => calls.push(whole_call(call)),
                    }
                }
            }
            Step::Complete(summary) => break summary,
            Step::Failed(error) => return Err(error),
        }
    };
    let finish = summary.finish;
    let choice = match reply.interface {
        Interface::Completion => {
            json!({ "index": 0, "text": content, "logprobs": null, "finish_reason": finish })
        }
        Interface::Chat => {
            let mut message = Map::new();
            message.insert("role".to_owned(), json!("assistant"));
            let is_null = content.is_empty() && !calls.is_empty();
            message.insert("content".to_owned(), if is_null { Value::Null } else { json!(content) });
            if !reasoning.is_empty() {
                message.insert("reasoning_content".to_owned(), json!(reasoning));
            }
            if !calls.is_empty() {
                message.insert("tool_calls".to_owned(), Value::Array(calls));
            }
            json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish })
        }
    };
    let object = match reply.interface {
        Interface::Completion => "text_completion",
        Interface::Chat => "chat.completion",
    };
    let mut document = Head { object, created, reply: &reply }.chunk(json!([choice]));
    add_summary(&mut document, &summary, true);
    Ok(json_response(StatusCode::OK, &Value::Object(document)))
}

/// Answers with events as the reply is made.
pub(super) fn streamed(reply: Reply) -> Response<Body> {
    let mut events = Events::new(reply);
    if events.reply.interface == Interface::Chat && !events.reply.has_tools {
        events.add_role();
    }
    event_response(Body::from_stream(stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), events))
    })))
}

/// A stream that opens only to say why there is no reply.
pub(super) fn streamed_refusal(
    id: &str,
    model: &str,
    interface: Interface,
    role: bool,
    error: &ApiError,
) -> Response<Body> {
    let mut text = String::new();
    if role && interface == Interface::Chat {
        let role = json!([{ "index": 0, "delta": { "role": "assistant" }, "finish_reason": null }]);
        let chunk = chunk(id, model, "chat.completion.chunk", unix_seconds(), role);
        push_event(&mut text, &Value::Object(chunk));
    }
    push_event(&mut text, &error.event());
    text.push_str(DONE);
    event_response(Body::from(text))
}

const DONE: &str = "data: [DONE]\n\n";

fn event_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The state of a stream of events.
struct Events {
    reply: Reply,
    created: u64,
    role_sent: bool,
    calls: usize,
    ready: VecDeque<Value>,
    over: bool,
}

impl Events {
    fn new(reply: Reply) -> Self {
        let created = unix_seconds();
        Events { reply, created, role_sent: false, calls: 0, ready: VecDeque::new(), over: false }
    }

    /// The next bytes of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut text = String::new();
        if self.ready.is_empty() {
            match self.reply.next().await {
                Step::Pieces(pieces) => self.add_pieces(pieces),
                Step::Complete(summary) => {
                    self.add_end(&summary);
                    self.over = true;
                }
                Step::Failed(error) => {
                    self.ready.push_back(error.event());
                    self.over = true;
                }
            }
        }
        for event in self.ready.drain(..) {
            push_event(&mut text, &event);
        }
        if self.over {
            text.push_str(DONE);
        }
        Some(text.into())
    }

    fn add_pieces(&mut self, pieces: Vec<Piece>) {
        // What settled together travels together.
        let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match (merged.last_mut(), piece) {
                (Some(Piece::Content(text)), Piece::Content(more)) => text.push_str(&more),
                (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => text.push_str(&more),
                (_, piece) => merged.push(piece),
            }
        }
        for piece in merged {
            match (self.reply.interface, piece) {
                (Interface::Completion, Piece::Content(text) | Piece::Reasoning(text)) => {
                    self.add_choice(
                        json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": null }),
                    );
                }
                (Interface::Completion, Piece::Call(_)) => {}
                (Interface::Chat, Piece::Content(text)) => self.add_delta(json!({ "content": text })),
                (Interface::Chat, Piece::Reasoning(text)) => {
                    self.add_delta(json!({ "reasoning_content": text }));
                }
                (Interface::Chat, Piece::Call(call)) => self.add_call(call),
            }
        }
    }

    fn add_call(&mut self, call: ToolCall) {
        let index = self.calls;
        self.calls += 1;
        self.add_delta(json!({ "tool_calls": [{
            "index": index,
            "id": new_id("call_"),
            "type": "function",
            "function": { "name": call.name, "arguments": "" },
        }] }));
        self.add_delta(json!({ "tool_calls": [{
            "index": index,
            "function": { "arguments": call.arguments },
        }] }));
    }

    fn add_role(&mut self) {
        self.role_sent = true;
        self.add_choice(json!({ "index": 0, "delta": { "role": "assistant" }, "finish_reason": null }));
    }

    fn add_delta(&mut self, delta: Value) {
        if !self.role_sent {
            self.add_role();
        }
        self.add_choice(json!({ "index": 0, "delta": delta, "finish_reason": null }));
    }

    fn add_choice(&mut self, choice: Value) {
        let chunk = self.head().chunk(json!([choice]));
        self.ready.push_back(Value::Object(chunk));
    }

    fn add_end(&mut self, summary: &Summary) {
        let choice = match self.reply.interface {
            Interface::Completion => {
                json!({ "index": 0, "text": "", "logprobs": null, "finish_reason": summary.finish })
            }
            Interface::Chat => {
                if !self.role_sent {
                    self.add_role();
                }
                json!({ "index": 0, "delta": {}, "finish_reason": summary.finish })
            }
        };
        let mut last = self.head().chunk(json!([choice]));
        add_summary(&mut last, summary, !self.reply.include_usage);
        self.ready.push_back(Value::Object(last));
        if self.reply.include_usage {
            let mut usage = self.head().chunk(json!([]));
            usage.insert("usage".to_owned(), summary.usage.clone());
            self.ready.push_back(Value::Object(usage));
        }
    }

    fn head(&self) -> Head<'_> {
        let object = match self.reply.interface {
            Interface::Completion => "text_completion",
            Interface::Chat => "chat.completion.chunk",
        };
        Head { object, created: self.created, reply: &self.reply }
    }
}

/// What every document of a reply begins with.
struct Head<'a> {
    object: &'static str,
    created: u64,
    reply: &'a Reply,
}

impl Head<'_> {
    fn chunk(&self, choices: Value) -> Map<String, Value> {
        chunk(&self.reply.id, &self.reply.model, self.object, self.created, choices)
    }
}

fn chunk(id: &str, model: &str, object: &str, created: u64, choices: Value) -> Map<String, Value> {
    let mut chunk = Map::new();
    chunk.insert("id".to_owned(), json!(id));
    chunk.insert("object".to_owned(), json!(object));
    chunk.insert("created".to_owned(), json!(created));
    chunk.insert("model".to_owned(), json!(model));
    chunk.insert("choices".to_owned(), choices);
    chunk
}

fn add_summary(document: &mut Map<String, Value>, summary: &Summary, with_usage: bool) {
    if with_usage {
        document.insert("usage".to_owned(), summary.usage.clone());
    }
    document.insert("exact_mode".to_owned(), json!("exact"));
    if let Some(stop) = &summary.stop_sequence {
        document.insert("stop_sequence".to_owned(), json!(stop));
    }
    document.insert("tensorfold".to_owned(), summary.tensorfold.clone());
    document.insert("speculative".to_owned(), summary.speculative.clone());
}

fn whole_call(call: ToolCall) -> Value {
    json!({
        "id": new_id("call_"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

fn push_event(text: &mut String, event: &Value) {
    text.push_str("data: ");
    text.push_str(&event.to_string());
    text.push_str("\n\n");
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
