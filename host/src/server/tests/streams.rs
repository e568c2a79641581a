//! Streamed replies.

use serde_json::{Value, json};

use super::harness::{TestServer, model_with_tools, plain_model, script};
use crate::engine::token_digest;

fn chat(more: Value) -> Value {
    let mut body = json!({"stream": true, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The texts of all deltas under `name`, joined.
fn joined(events: &[Value], name: &str) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_stream_has_role_pieces_end_and_done() {
    let server = TestServer::start();
    server.control.reply_with(&script("hm</think>sé<end>"));
    let answer = server.client().await.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    let first = &events[0];
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(
        first["choices"],
        json!([{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}])
    );
    for event in &events {
        assert_eq!((&event["id"], &event["created"]), (&first["id"], &first["created"]));
    }
    assert_eq!(joined(&events, "reasoning_content"), "hm");
    assert_eq!(joined(&events, "content"), "sé");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]));
    assert_eq!(last["usage"]["completion_tokens"], 7);
    assert_eq!(last["exact_mode"], "exact");
    assert_eq!(last["tensorfold"]["token_sha"], token_digest(&script("hm</think>sé<end>")));
    assert_eq!(last["speculative"]["rounds"], 6);
    for event in &events[..events.len() - 1] {
        assert_eq!(event.get("usage"), None);
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_comes_alone_when_it_is_asked_for() {
    let server = TestServer::start();
    server.control.reply_with(&script("x<end>"));
    let body = chat(json!({"stream_options": {"include_usage": true}, "reasoning_effort": "none"}));
    let events = server.client().await.post("/v1/chat/completions", &body).await.events();
    let [.., end, usage] = &events[..] else { panic!("{events:?}") };
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(end.get("usage"), None);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_stream_carries_text_and_no_role() {
    let server = TestServer::start();
    server.control.reply_with(&script("one END two"));
    let body = json!({"stream": true, "prompt": "x", "stop": "END", "max_tokens": 50});
    let events = server.client().await.post("/v1/completions", &body).await.events();
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "one ");
    assert!(events.iter().all(|event| event["object"] == "text_completion"));
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": "stop"}]));
    assert_eq!(last["stop_sequence"], "END");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tools_the_role_comes_before_the_first_piece() {
    let server = TestServer::with(model_with_tools(), |_, _| {});
    let call = "<tool_call>\n<function=add>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>";
    server.control.reply_with(&script(&format!("{call}<end>")));
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let body = chat(json!({"tools": tools, "reasoning_effort": "none"}));
    let events = server.client().await.post("/v1/chat/completions", &body).await.events();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(*deltas[0], json!({"role": "assistant"}));
    let call = &deltas[1]["tool_calls"][0];
    assert_eq!((&call["index"], &call["type"]), (&json!(0), &json!("function")));
    assert_eq!(call["function"], json!({"name": "add", "arguments": ""}));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(
        *deltas[2],
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\": \"b\"}"}}]})
    );
    assert_eq!(events[3]["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_and_a_whole_reply_say_the_same() {
    let server = TestServer::start();
    let mut client = server.client().await;
    for length in [1, 7, 100] {
        let body = json!({"prompt": "tell", "max_tokens": length});
        let whole = client.post("/v1/completions", &body).await.json();
        let body = json!({"prompt": "tell", "max_tokens": length, "stream": true});
        let events = client.post("/v1/completions", &body).await.events();
        let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(whole["choices"][0]["text"], text);
        assert_eq!(whole["usage"], events.last().unwrap()["usage"]);
        assert_eq!(whole["tensorfold"]["token_sha"], events.last().unwrap()["tensorfold"]["token_sha"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_refusal_opens_the_stream_and_every_other_refusal_does_not() {
    let server = TestServer::with(plain_model(), |_, engine| engine.context = 8);
    let mut client = server.client().await;
    let answer = client.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant"}));
    assert_eq!(events[1]["error"]["code"], "context_length_exceeded");
    assert_eq!(events[1]["error"]["param"], "messages");
    let answer = client.post("/v1/chat/completions", &chat(json!({"n": 3}))).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_arrive_while_the_reply_is_made() {
    let server = TestServer::start();
    server.control.reply_with(&script("abc<end>"));
    server.control.hold();
    let mut client = server.client().await;
    let body = json!({"stream": true, "prompt": "x"}).to_string();
    client.send("POST", "/v1/completions", &[], body.as_bytes()).await;
    let (status, _) = client.head().await;
    assert_eq!(status, 200);
    for piece in ["a", "b", "c"] {
        server.control.allow_one();
        let chunk = String::from_utf8(client.chunk().await.unwrap()).unwrap();
        let event: Value = serde_json::from_str(chunk.strip_prefix("data: ").unwrap().trim()).unwrap();
        assert_eq!(event["choices"][0]["text"], piece);
    }
    server.control.allow_one();
    assert!(String::from_utf8(client.chunk().await.unwrap()).unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(client.chunk().await, None);
}
