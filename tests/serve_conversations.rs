//! Conversations through the whole program: templates, thinking, tools.

mod support;

use serde_json::{Value, json};
use support::replies::{CHAT, COMPLETIONS, Reply, ids, start};
use support::{Sandbox, demo_model, json as parse, workspace};

/// Texts and conversations with the ids that the reference tokenizer and template make of them.
fn text_goldens() -> Value {
    let path = workspace().join("tests/goldens/expect/text.json");
    parse(&std::fs::read_to_string(path).unwrap())["qwen"].take()
}

fn user(question: &str, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": question }], "max_tokens": 96, "temperature": 0,
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn conversations_become_the_ids_that_the_references_make_of_them() {
    let goldens = text_goldens();
    let sandbox = Sandbox::new();
    let model = workspace().join("tests/goldens").join(goldens["checkpoint"].as_str().unwrap());
    let server = start(&sandbox, &model, &[]);
    let more = json!({ "max_tokens": 6, "temperature": 1, "ignore_eos": true });
    let with = |mut body: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let chats = goldens["chat"].as_array().unwrap();
    assert!(chats.len() >= 7);
    for chat in chats {
        let mut variables = chat["kwargs"].clone();
        let tools = variables.as_object_mut().unwrap().remove("tools");
        let body = with(json!({
            "messages": chat["messages"], "chat_template_kwargs": variables, "tools": tools,
        }));
        let reply = server.whole(CHAT, &body);
        let wanted = server.whole(COMPLETIONS, &with(json!({ "prompt": chat["ids"] })));
        assert_eq!(reply.prompt_tokens, ids(&chat["ids"]).len() as u64, "{}", chat["title"]);
        // The seed comes from the prompt's ids, so equal replies mean equal prompts.
        assert_eq!(reply.token_sha, wanted.token_sha, "{}", chat["title"]);
    }
    for text in goldens["encode"].as_array().unwrap() {
        if ids(&text["ids"]).is_empty() {
            continue;
        }
        let reply = server.whole(COMPLETIONS, &with(json!({ "prompt": text["text"] })));
        let wanted = server.whole(COMPLETIONS, &with(json!({ "prompt": text["ids"] })));
        assert_eq!(reply, wanted, "{}", text["text"]);
    }
}

#[test]
fn thinking_is_switched_by_the_request_in_every_form_and_by_the_command_line() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    assert!(server.said_on_stdout().contains("thinking is on by default"));
    let thoughtful = server.reply(CHAT, &user("Who are you?", json!({})));
    assert_eq!(
        thoughtful.reasoning.trim(),
        "The user talks to me. I should say what I am: a small demo model."
    );
    assert!(thoughtful.text.starts_with("I am a small demo model."), "{thoughtful:?}");
    let plain = server.reply(CHAT, &user("Who are you?", json!({ "reasoning_effort": "none" })));
    assert_eq!((plain.text.as_str(), plain.reasoning.as_str()), (thoughtful.text.as_str(), ""));
    for (off, wanted) in [
        (json!({ "chat_template_kwargs": { "enable_thinking": false } }), &plain),
        (json!({ "chat_template_kwargs": { "thinking": false } }), &plain),
        (json!({ "chat_template_kwargs": { "thinking": { "type": "disabled" } } }), &plain),
        (json!({ "chat_template_kwargs": { "enable_thinking": true } }), &thoughtful),
        (json!({ "chat_template_kwargs": null }), &thoughtful),
    ] {
        assert_eq!(server.whole(CHAT, &user("Who are you?", off.clone())), *wanted, "{off}");
    }
    let response = server.connect().post(CHAT, &user("Who are you?", json!({}))).json();
    let counted = response["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(counted.is_some_and(|tokens| tokens > 10 && tokens < thoughtful.tokens), "{response}");
    let quiet = start(&sandbox, &demo_model(), &["--no-thinking"]);
    assert!(!quiet.said_on_stdout().contains("thinking is on"));
    assert_eq!(quiet.whole(CHAT, &user("Who are you?", json!({}))), plain);
    let on = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    assert_eq!(quiet.whole(CHAT, &user("Who are you?", on)), thoughtful);
}

#[test]
fn a_budget_cuts_thinking_off_and_the_answer_follows() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let free = server.reply(CHAT, &user("Who are you?", json!({})));
    let budget =
        |tokens: u32| server.reply(CHAT, &user("Who are you?", json!({ "thinking_budget": tokens })));
    let cut = budget(5);
    assert!(
        free.reasoning.starts_with(cut.reasoning.trim_end()) && cut.reasoning.len() < free.reasoning.len()
    );
    assert!(cut.text.starts_with("I am a small demo model."), "{cut:?}");
    assert_eq!(cut.finish, "stop");
    assert_eq!(budget(1000), free, "a budget that is not used changes nothing");
    assert_eq!(budget(0), free);
    let limited = start(&sandbox, &demo_model(), &["--thinking-budget", "5"]);
    assert_eq!(limited.reply(CHAT, &user("Who are you?", json!({}))), cut);
    // Cut off by the limit of the reply, thought is all there is, and a line says so.
    let short = server.reply(CHAT, &user("Who are you?", json!({ "max_tokens": 6 })));
    assert_eq!((short.text.as_str(), short.finish.as_str()), ("", "length"));
    assert!(!short.reasoning.is_empty());
    server.wait_for_line("reached its 6 tokens while thinking: it has no content");
}

fn weather() -> Value {
    json!({ "type": "function", "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
        },
    }})
}

#[test]
fn a_call_of_a_tool_is_told_apart_in_both_forms_of_answer() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let question = "What is the weather in Paris?";
    for thinking in [false, true] {
        let more = json!({
            "tools": [weather()], "chat_template_kwargs": { "enable_thinking": thinking },
        });
        let document = server.connect().post(CHAT, &user(question, more.clone())).json();
        let choice = &document["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{document}");
        assert_eq!(choice["message"]["content"], Value::Null);
        assert_eq!(choice["message"].get("reasoning_content").is_some(), thinking);
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
        assert_eq!(calls[0]["type"], "function");
        assert_eq!(calls[0]["function"]["name"], "get_weather");
        let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
        assert_eq!(parse(arguments), json!({ "city": "Paris" }));

        let events = server.stream(CHAT, &user(question, more)).events();
        let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        let roles = deltas.iter().filter(|delta| delta.get("role").is_some()).count();
        assert!(roles == 1 && deltas[0]["role"] == "assistant", "the role comes once and first: {deltas:?}");
        let streamed: Vec<&Value> =
            deltas.iter().filter_map(|delta| delta.get("tool_calls")).map(|calls| &calls[0]).collect();
        assert_eq!(streamed[0]["function"]["name"], "get_weather");
        assert!(streamed[0]["id"].as_str().unwrap().starts_with("call_"));
        assert!(streamed.iter().all(|call| call["index"] == 0));
        let joined: String =
            streamed.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(joined, arguments);
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(events.last().unwrap()["tensorfold"]["token_sha"], document["tensorfold"]["token_sha"]);
    }
}

#[test]
fn tools_are_hidden_where_the_request_says_so_and_cannot_be_forced() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--no-thinking"]);
    let question = "What is tensorfold?";
    let without = server.whole(CHAT, &user(question, json!({})));
    let offered = server.whole(CHAT, &user(question, json!({ "tools": [weather()] })));
    assert!(offered.prompt_tokens > without.prompt_tokens + 50, "tools stand in the prompt");
    for hidden in [
        json!({ "tools": [weather()], "tool_choice": "none" }),
        json!({ "tools": [] }),
        json!({ "tools": null, "tool_choice": "auto" }),
    ] {
        assert_eq!(server.whole(CHAT, &user(question, hidden.clone())), without, "{hidden}");
    }
    for (wrong, part) in [
        (json!({ "tools": [weather()], "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": [weather()], "tool_choice": { "type": "function" } }), "tool_choice"),
        (json!({ "tools": [weather()], "tool_choice": "any" }), "tool_choice"),
        (json!({ "tools": "get_weather" }), "tools must be a list"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0]"),
        (json!({ "tools": [weather(), { "name": "add" }] }), "tools[1]"),
        (
            json!({ "tools": [weather()], "parallel_tool_calls": "no" }),
            "parallel_tool_calls must be true or false",
        ),
    ] {
        let message = server.connect().post(CHAT, &user(question, wrong.clone())).refusal(400);
        assert!(message.contains(part), "{wrong}: {message}");
    }
}

#[test]
fn a_conversation_with_every_role_is_taken() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--no-thinking"]);
    let ask = |messages: Value| -> Reply {
        server.whole(
            CHAT,
            &json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "tools": [weather()] }),
        )
    };
    let turns = [
        json!({ "role": "user", "content": "What is the weather in Paris?" }),
        json!({ "role": "assistant", "content": null, "tool_calls": [{
            "id": "call_1", "type": "function",
            "function": { "name": "get_weather", "arguments": "{\"city\": \"Paris\"}" },
        }]}),
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "18 degrees" }),
        json!({ "role": "assistant", "content": "18 degrees.", "reasoning_content": "I read it off." }),
        json!({ "role": "user", "content": [{ "type": "text", "text": "And in " }, { "type": "text", "text": "Rome?" }] }),
    ];
    let lengths: Vec<u64> = [1, 3, 5].iter().map(|&turn| ask(json!(turns[..turn])).prompt_tokens).collect();
    assert!(
        lengths[0] < lengths[1] && lengths[1] < lengths[2],
        "every turn stands in the prompt: {lengths:?}"
    );
    // Developers are systems, and leading ones are one.
    let system = json!({ "role": "system", "content": "Be brief." });
    let developer = json!({ "role": "developer", "content": "Be brief." });
    assert_eq!(ask(json!([developer, turns[0]])), ask(json!([system, turns[0]])));
    let two = ask(json!([system, developer, turns[0]]));
    assert!(two.prompt_tokens > ask(json!([system, turns[0]])).prompt_tokens);
    // A message list sent to the other route is the same conversation.
    let body = json!({ "messages": [turns[0]], "max_tokens": 8, "temperature": 0 });
    let here = server.whole(CHAT, &body);
    assert_eq!(server.whole(COMPLETIONS, &body), here);
}

#[test]
fn another_template_can_be_named_and_a_broken_one_ends_the_command() {
    let sandbox = Sandbox::new();
    let template = sandbox.file(
        "plain.jinja",
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}answer:",
    );
    let server = start(&sandbox, &demo_model(), &["--chat-template", template.to_str().unwrap()]);
    let more = json!({ "max_tokens": 8 });
    let reply = server.whole(CHAT, &user("Who are you?", more.clone()));
    let text = json!({ "prompt": "user: Who are you?\nanswer:", "max_tokens": 8, "temperature": 0 });
    let wanted = server.whole(COMPLETIONS, &text);
    assert_eq!((reply.prompt_tokens, reply.token_sha), (wanted.prompt_tokens, wanted.token_sha));
    assert!(!server.said_on_stdout().contains("thinking is on"), "this template knows no thinking");
    let refused = |file: &str, parts: &[&str]| {
        let flags = ["--port", "0", "--chat-template", file];
        support::replies::serve(&sandbox, &demo_model()).args(flags).run().refused_with(parts);
    };
    refused("/no/such/file", &["/no/such/file"]);
    let broken = sandbox.file("broken.jinja", "{% for message in messages %}");
    refused(broken.to_str().unwrap(), &["broken.jinja"]);
    // One that fails on a request is that request's refusal, and the next is answered.
    let picky = sandbox.file("picky.jinja", "{{ raise_exception('no ' ~ messages[0].content) }}");
    let server = start(&sandbox, &demo_model(), &["--chat-template", picky.to_str().unwrap()]);
    let mut connection = server.connect();
    assert!(connection.post(CHAT, &user("thanks", more)).refusal(400).contains("no thanks"));
    assert_eq!(connection.post(COMPLETIONS, &text).head.status, 200);
}
