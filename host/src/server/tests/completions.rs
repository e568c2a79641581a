//! `/v1/completions`.

use serde_json::json;

use super::harness::{TestServer, VOCABULARY, plain_model, script, tokens};
use crate::engine::fake::expected_reply;
use crate::engine::token_digest;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_and_the_same_ids_give_the_same_reply() {
    let server = TestServer::start();
    let mut client = server.client().await;
    let ids = tokens("once upon");
    let wanted = token_digest(&expected_reply(&ids, 6, VOCABULARY));
    for prompt in [json!("once upon"), json!(ids.clone()), json!(["once upon"]), json!([ids.clone()])] {
        let body = json!({"prompt": prompt, "max_tokens": 6, "ignore_eos": true});
        let answer = client.post("/v1/completions", &body).await;
        let reply = answer.json();
        assert_eq!(answer.status, 200);
        assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
        assert_eq!(reply["object"], "text_completion");
        assert_eq!(reply["tensorfold"]["token_sha"], wanted);
        assert_eq!(reply["usage"]["prompt_tokens"], ids.len());
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert!(reply["choices"][0]["text"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_plain_text_even_where_marks_occur() {
    let server = TestServer::start();
    server.control.reply_with(&script("a</think>b<end>"));
    let reply = server.client().await.post("/v1/completions", &json!({"prompt": "x"})).await.json();
    assert_eq!(
        reply["choices"],
        json!([{"index": 0, "text": "a</think>b", "logprobs": null, "finish_reason": "stop"}])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_messages_is_answered_as_chat() {
    let server = TestServer::start();
    server.control.reply_with(&script("x</think>y<end>"));
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let reply = server.client().await.post("/v1/completions", &body).await.json();
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["choices"][0]["message"]["content"], "y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_that_are_none_are_refused_by_name() {
    let server = TestServer::start();
    let mut client = server.client().await;
    for (prompt, message) in [
        (json!(null), "prompt is missing: it is a string or a list of token ids"),
        (json!(""), "prompt is empty: it needs at least one token"),
        (json!([]), "prompt is empty: it needs at least one token"),
        (json!(["a", "b"]), "prompt holds 2 prompts; this server takes one a request"),
        (json!({}), "prompt must be a string or a list of token ids, not an object"),
        (json!([1, -2]), "prompt[1] must be a token id, not -2"),
        (json!([1, true]), "prompt[1] must be a token id, not true"),
        (json!([1, 1009]), "token id 1009 is outside the vocabulary: valid ids are 0 to 1008"),
        (json!([1u64 << 40]), "token id 4294967295 is outside the vocabulary: valid ids are 0 to 1008"),
    ] {
        let answer = client.post("/v1/completions", &json!({ "prompt": prompt })).await;
        assert_eq!((answer.status, answer.error().as_str()), (400, message));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_context_holds_prompt_and_reply() {
    let server = TestServer::with(plain_model(), |_, engine| engine.context = 20);
    let mut client = server.client().await;
    // Said and too large: refused. Not said: what is left.
    let body = json!({"prompt": vec![7; 10], "max_tokens": 11});
    let answer = client.post("/v1/completions", &body).await;
    let error = answer.json()["error"].clone();
    assert_eq!(answer.status, 400);
    assert_eq!(
        error["message"],
        "This server's maximum context length is 20 tokens, but you asked for 21 tokens (10 in the prompt, 11 for the reply); shorten the prompt or lower max_tokens"
    );
    assert_eq!((&error["param"], &error["code"]), (&json!("prompt"), &json!("context_length_exceeded")));
    assert_eq!(error["type"], "invalid_request_error");
    for limit in [json!({"max_tokens": 10}), json!({"max_tokens": 0}), json!({})] {
        let mut body = json!({"prompt": vec![7; 10], "ignore_eos": true});
        body.as_object_mut().unwrap().extend(limit.as_object().unwrap().clone());
        let reply = client.post("/v1/completions", &body).await.json();
        assert_eq!(reply["usage"]["completion_tokens"], 10);
    }
    // A prompt that leaves no room, and a chat.
    let answer = client.post("/v1/completions", &json!({"prompt": vec![7; 22]})).await;
    assert!(answer.error().starts_with("This server's maximum context length is 20 tokens"));
    let messages =
        json!({"messages": [{"role": "user", "content": "one two three four five six seven eight nine"}]});
    let answer = client.post("/v1/chat/completions", &messages).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("messages")));
    // A text so long that it is not even tokenized.
    let far = json!({"prompt": "one ".repeat(100_000)});
    let answer = client.post("/v1/completions", &far).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        error["message"],
        "This server's maximum context length is 20 tokens, but the prompt alone takes 400000 bytes of text, more than that holds; shorten the prompt"
    );
    assert_eq!((&error["param"], &error["code"]), (&json!("prompt"), &json!("context_length_exceeded")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_limit_stands_where_none_is_given() {
    let server = TestServer::with(plain_model(), |options, _| options.max_tokens = 3);
    let body = json!({"prompt": "x", "ignore_eos": true});
    let reply = server.client().await.post("/v1/completions", &body).await.json();
    assert_eq!(reply["usage"]["completion_tokens"], 3);
}
