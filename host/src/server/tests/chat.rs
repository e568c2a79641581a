//! `/v1/chat/completions`, whole answers.

use serde_json::{Value, json};

use super::super::options::ServeEnvironment;
use super::harness::{TestServer, model_with_tools, plain_model, script, tokens};
use crate::engine::{prompt_seed, token_digest};

fn hello(more: Value) -> Value {
    let mut body = json!({"model": "stub", "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": false}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_has_the_published_shape_field_by_field() {
    let server = TestServer::start();
    server.control.reply_with(&script("hé!<end>"));
    let answer = server.client().await.post("/v1/chat/completions", &hello(json!({}))).await;
    assert_eq!(answer.status, 200);
    let reply = answer.json();
    let keys: Vec<&String> = reply.as_object().unwrap().keys().collect();
    let wanted =
        ["id", "object", "created", "model", "choices", "usage", "exact_mode", "tensorfold", "speculative"];
    assert_eq!(keys, wanted);
    let id = reply["id"].as_str().unwrap();
    assert!(id.starts_with("chatcmpl-") && id.len() == "chatcmpl-".len() + 32);
    assert_eq!(reply["object"], "chat.completion");
    assert!(reply["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(reply["model"], "stub");
    assert_eq!(
        reply["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "hé!"},
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    let prompt = tokens("user:hi\nassistant:").len();
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": 5,
            "total_tokens": prompt + 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        })
    );
    assert_eq!(reply["exact_mode"], "exact");
    let details = &reply["tensorfold"];
    assert_eq!(details["enable_thinking"], false);
    assert_eq!(details["reasoning_effort"], "none");
    assert_eq!(details["engine"], "fake");
    assert_eq!(details["sampling"], "greedy");
    assert_eq!(details["drafts"], false);
    assert_eq!(details["token_sha"], token_digest(&script("hé!<end>")));
    assert_eq!(details["min_rows"], 1);
    for name in ["tokens_per_second", "seconds", "prefill_seconds", "time_to_first_token"] {
        assert!(details[name].as_f64().unwrap() >= 0.0, "{name}");
    }
    assert_eq!((&details["prefill_widths"], &details["prefill_raised"]), (&json!([]), &json!([])));
    assert_eq!(
        reply["speculative"],
        json!({"rounds": 4, "drafted": 0, "accepted": 0, "acceptance_rate": 0.0, "tokens_per_round": 1.25})
    );
    let sha = token_digest(&script("hé!<end>"));
    assert_eq!(
        server.wait_for_line("done "),
        format!(
            "[tensorfold] done {id} prompt={prompt} cached=0 thinking=False effort=none tokens=5 sha={sha} finish=stop rounds=4 accepted=0/0"
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thought_is_apart_from_content_and_counted() {
    let server = TestServer::start();
    server.control.reply_with(&script("hm</think>so<end>"));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "medium"});
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(*message, json!({"role": "assistant", "content": "so", "reasoning_content": "hm"}));
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
    // The template names low and high; ties go up.
    assert_eq!(reply["tensorfold"]["reasoning_effort"], "high");
    assert_eq!(reply["tensorfold"]["enable_thinking"], true);
    assert_eq!(reply["usage"]["prompt_tokens"], tokens("user:hi\neffort:high\nassistant:<think>").len());
    assert!(server.wait_for_line("done ").contains(" thinking=True effort=high "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_thinking_budget_cuts_at_its_token() {
    let server = TestServer::start();
    server.control.reply_with(&script("abcdefgh"));
    let body =
        json!({"messages": [{"role": "user", "content": "hi"}], "thinking_budget": 3, "max_tokens": 9});
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    // Two tokens, then the close (line break, marker, blank line) in place of the
    // third; the model goes on with what it would have said next.
    let said = [script("ab"), plain_model().thinking_close(), script("defg")].concat();
    assert_eq!(reply["tensorfold"]["token_sha"], token_digest(&said[..9]));
    assert_eq!(reply["choices"][0]["message"]["reasoning_content"], "ab");
    assert_eq!(reply["choices"][0]["message"]["content"], "defg");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_cut_while_thinking_has_empty_content_and_a_line_says_so() {
    let server = TestServer::start();
    server.control.reply_with(&script("abcdefgh"));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(""), &json!("abcd")));
    assert!(server.wait_for_line("while thinking").contains("reached its 4 tokens"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_the_reply_and_is_left_out() {
    let server = TestServer::start();
    server.control.reply_with(&script("one STOP two"));
    let body = hello(json!({"stop": ["nowhere", "STOP"], "max_tokens": 100, "ignore_eos": true}));
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "one ");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["stop_sequence"], "STOP");
    // The engine stopped at the very token that completed the match.
    assert_eq!(reply["usage"]["completion_tokens"], 8);
    assert_eq!(reply["tensorfold"]["token_sha"], token_digest(&script("one STOP")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignore_eos_runs_on_to_the_length() {
    let server = TestServer::start();
    server.control.reply_with(&script("a<end>bc"));
    let body = hello(json!({"ignore_eos": true, "max_tokens": 4}));
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "abc");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_tools_are_told_apart() {
    let server = TestServer::with(model_with_tools(), |_, _| {});
    let call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
    server.control.reply_with(&script(&format!("{call}\n{call}<end>")));
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": parameters}}]);
    let body = hello(json!({"tools": tools.clone(), "tool_choice": "auto"}));
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["function"]["name"], "add");
    let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"a": 1}));

    let body = hello(json!({"tools": tools, "parallel_tool_calls": false}));
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(reply["usage"]["completion_tokens"], script(call).len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_that_cannot_be_used_are_refused_and_hidden_ones_are_not_rendered() {
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let server = TestServer::with(plain_model(), |_, _| {});
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    let body = hello(json!({ "tools": tools.clone() }));
    let answer = client.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().starts_with("tools are not supported"));
    for more in [
        json!({"tools": tools.clone(), "tool_choice": "none"}),
        json!({"tools": []}),
        json!({"tools": null, "tool_choice": "auto", "parallel_tool_calls": true}),
    ] {
        let reply = client.post("/v1/chat/completions", &hello(more)).await.json();
        assert_eq!(reply["usage"]["prompt_tokens"], tokens("user:hi\nassistant:").len());
    }
    let server = TestServer::with(model_with_tools(), |_, _| {});
    let mut client = server.client().await;
    for (more, named) in [
        (json!({"tools": tools.clone(), "tool_choice": "required"}), "tool_choice \"required\""),
        (json!({"tools": tools.clone(), "tool_choice": {"type": "function"}}), "tool_choice with a named"),
        (json!({"tools": tools.clone(), "tool_choice": "maybe"}), "tool_choice must be"),
        (json!({"tools": [{"type": "search"}]}), "tools[0] must be"),
        (json!({"tools": "add"}), "tools must be a list"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls must be true or false"),
    ] {
        let answer = client.post("/v1/chat/completions", &hello(more)).await;
        assert_eq!(answer.status, 400);
        assert!(answer.error().starts_with(named), "{}", answer.error());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_system_messages_become_user_messages_where_the_template_needs_it() {
    let server = TestServer::start();
    server.control.reply_with(&script("x<end>"));
    let body = hello(json!({"messages": [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]}));
    let reply = server.client().await.post("/v1/chat/completions", &body).await.json();
    let rendered = tokens("system:a\n\nb\nuser:c\nuser:d\nassistant:");
    assert_eq!(reply["usage"]["prompt_tokens"], rendered.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_drops_later_system_messages_gets_them_as_user_messages() {
    let server = TestServer::with(model_with_tools(), |_, _| {});
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    let usage = async |client: &mut super::client::Client, role: &str| {
        let body = hello(json!({"messages": [
            {"role": "user", "content": "c"},
            {"role": role, "content": "remember this"},
            {"role": "user", "content": "e"},
        ]}));
        client.post("/v1/chat/completions", &body).await.json()["usage"]["prompt_tokens"].clone()
    };
    assert_eq!(usage(&mut client, "system").await, usage(&mut client, "user").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_refuses_the_messages_is_quoted() {
    let server = TestServer::with(model_with_tools(), |_, _| {});
    let body = hello(json!({"messages": [{"role": "assistant", "content": "c"}]}));
    let answer = server.client().await.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.error().ends_with("refuses these messages: a user message is needed"),
        "{}",
        answer.error()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_id_is_echoed_when_it_is_ours() {
    let server = TestServer::with(plain_model(), |options, _| {
        options.aliases = vec!["alias".to_owned(), "stub".to_owned()];
    });
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    for (asked, answered) in
        [(json!("alias"), "alias"), (json!("stub"), "stub"), (json!("gpt-9"), "stub"), (json!(null), "stub")]
    {
        let reply = client.post("/v1/chat/completions", &hello(json!({ "model": asked }))).await.json();
        assert_eq!(reply["model"], answered);
    }
    let models = client.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["stub", "alias"]);
    assert_eq!(models["data"][0]["object"], "model");
    assert_eq!(models["data"][0]["owned_by"], "tensorfold");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_the_field_and_are_logged_with_the_id() {
    let server = TestServer::start();
    let mut client = server.client().await;
    for (body, named) in [
        (json!({}), "messages is missing"),
        (json!({"messages": []}), "messages must hold at least one"),
        (hello(json!({"temperature": true})), "temperature must be a number, not true"),
        (hello(json!({"n": 2})), "n is not supported with this value"),
        (hello(json!({"stream": "yes"})), "stream must be true or false"),
        (hello(json!({"logprobs": true})), "logprobs is not supported"),
        (hello(json!({"model": 5})), "model must be a string, not 5"),
        (hello(json!({"reasoning_effort": "hard"})), "reasoning_effort must be one of"),
        (hello(json!({"max_tokens": -5})), "max_tokens must be 0 or more"),
    ] {
        let answer = client.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.error().starts_with(named), "{}", answer.error());
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    let refused: Vec<String> = server.lines().into_iter().filter(|line| line.contains("refused")).collect();
    assert_eq!(refused.len(), 9);
    assert!(refused[0].starts_with("[tensorfold] refused chatcmpl-"));
    assert!(refused[0].ends_with(": messages is missing: it holds the conversation (400)"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_comes_from_the_request_or_from_prompt_and_salt() {
    let prompt = tokens("user:hi\nassistant:");
    let environment = ServeEnvironment { seed_salt: Some("-3".into()), ..ServeEnvironment::default() };
    let server = TestServer::with_environment(plain_model(), &environment, |_, _| {});
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    for (more, seed) in [
        (json!({"temperature": 1}), prompt_seed(&prompt, -3)),
        (json!({"temperature": 1, "seed": 7}), 7),
        (json!({"temperature": 1, "seed": -1}), u64::MAX),
    ] {
        let reply = client.post("/v1/chat/completions", &hello(more)).await.json();
        assert_eq!(reply["tensorfold"]["sampling"], "exact");
        assert_eq!(server.control.last_sampling().unwrap().seed, seed);
    }
}
