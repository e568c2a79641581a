//! Requests that are wrong, and what they are told; the small routes; keys. Every refusal leaves the server, and where
//! nothing forbids it the connection, as they were.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use support::http::{Connection, events_in};
use support::replies::{CHAT, COMPLETIONS, start, wait_until};
use support::{Sandbox, demo_model};

fn completion(more: Value) -> Value {
    let mut body = json!({ "prompt": "def f(", "max_tokens": 2, "temperature": 0 });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[track_caller]
fn still_answers(connection: &mut Connection) {
    let response = connection.post(COMPLETIONS, &completion(json!({})));
    assert_eq!(response.head.status, 200, "{response:?}");
}

#[test]
fn what_is_no_json_object_is_refused_and_the_connection_goes_on() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut connection = server.connect();
    for (body, part) in [
        (&b""[..], "the request body is empty"),
        (b"  \n ", "the request body is empty"),
        (b"{", "not valid JSON"),
        (b"{\"prompt\": \"a\",}", "trailing comma at line 1 column 16"),
        (b"{\"prompt\": \"a\"} and more", "not valid JSON"),
        (b"{\"prompt\": \"\xff\xfe\"}", "not valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"\"words\"", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        ("[".repeat(5000).as_bytes(), "not valid JSON"),
        (b"{\"prompt\": \"a\", \"temperature\": NaN}", "not valid JSON"),
    ] {
        for path in [COMPLETIONS, CHAT] {
            connection.send("POST", path, &[("Content-Type", "application/json")], body);
            let response = connection.response();
            let message = response.refusal(400);
            assert!(message.contains(part), "{:?}: {message}", String::from_utf8_lossy(body));
            assert_eq!(response.json()["error"]["type"], "invalid_request_error");
            assert_eq!(response.head.header("content-type"), Some("application/json"));
            still_answers(&mut connection);
        }
    }
}

#[test]
fn a_field_of_the_wrong_kind_is_named() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut connection = server.connect();
    for (more, part) in [
        (json!({ "max_tokens": "many" }), "max_tokens must be a whole number"),
        (json!({ "max_tokens": -1 }), "max_tokens must be 0 or more, not -1"),
        (json!({ "max_tokens": 1.5 }), "max_tokens must be a whole number, not 1.5"),
        (json!({ "max_tokens": [] }), "max_tokens must be a whole number, not a list"),
        (json!({ "temperature": "warm" }), "temperature must be a number"),
        (json!({ "temperature": true }), "temperature must be a number, not true"),
        (json!({ "top_p": 1.1 }), "top_p must be from 0 to 1, not 1.1"),
        (json!({ "top_p": -0.1 }), "top_p must be from 0 to 1"),
        (json!({ "min_p": 2 }), "min_p must be from 0 to 1"),
        (json!({ "top_k": 1.5 }), "top_k must be a whole number"),
        (json!({ "seed": 0.5 }), "seed must be a whole number"),
        (json!({ "seed": "x" }), "seed must be a whole number"),
        (json!({ "stream": "yes" }), "stream must be true or false"),
        (json!({ "stream": 1 }), "stream must be true or false"),
        (json!({ "stream_options": {} }), "stream_options needs stream: true"),
        (json!({ "stream": true, "stream_options": [] }), "stream_options must be an object"),
        (json!({ "stop": 1 }), "stop must be"),
        (json!({ "stop": ["a", 1] }), "stop"),
        (json!({ "stop": "" }), "stop"),
        (json!({ "ignore_eos": 0 }), "ignore_eos must be true or false"),
        (json!({ "draft": "no" }), "draft must be true or false"),
        (json!({ "n": 2 }), "n "),
        (json!({ "model": 5 }), "model must be a string"),
        (json!({ "priority": "urgent" }), "priority must be \"foreground\" or \"background\""),
        (json!({ "prompt": 5 }), "prompt must be a string or a list of token ids, not 5"),
        (json!({ "prompt": { "text": "a" } }), "prompt must be a string"),
        (json!({ "prompt": null }), "prompt is missing"),
        (json!({ "prompt": ["a", "b"] }), "prompt holds 2 prompts"),
        (json!({ "prompt": [[1], [2]] }), "prompt holds 2 prompts"),
        (json!({ "prompt": [1, -1] }), "prompt[1] must be a token id, not -1"),
        (json!({ "prompt": [1, 2.5] }), "prompt[1] must be a token id"),
        (json!({ "prompt": [true] }), "prompt[0] must be a token id"),
    ] {
        let message = connection.post(COMPLETIONS, &completion(more.clone())).refusal(400);
        assert!(message.contains(part), "{more}: {message}");
    }
    for (messages, part) in [
        (Value::Null, "messages is missing"),
        (json!("hello"), "messages must be a list"),
        (json!([]), "messages"),
        (json!(["hello"]), "messages[0]"),
        (json!([{ "content": "hello" }]), "messages[0]"),
        (json!([{ "role": "wizard", "content": "hello" }]), "wizard"),
        (json!([{ "role": "user", "content": 5 }]), "messages[0]"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            "image",
        ),
    ] {
        let message = connection.post(CHAT, &json!({ "messages": messages })).refusal(400);
        assert!(message.contains(part), "{messages}: {message}");
    }
    // A refused request that wanted a stream is refused the same way, not in a stream.
    let wrong = completion(json!({ "stream": true, "top_p": 7 }));
    connection.post(COMPLETIONS, &wrong).refusal(400);
    still_answers(&mut connection);
    server.wait_until_idle();
}

#[test]
fn a_field_that_would_change_the_reply_and_cannot_is_refused_unless_it_asks_for_nothing() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let plain = server.whole(COMPLETIONS, &completion(json!({})));
    for (field, asks, neutral) in [
        ("logprobs", json!(3), Value::Null),
        ("echo", json!(true), json!(false)),
        ("best_of", json!(2), json!(1)),
        ("n", json!(3), json!(1)),
        ("suffix", json!("end"), json!("")),
        ("logit_bias", json!({ "5": 1 }), json!({})),
        ("presence_penalty", json!(0.5), json!(0)),
        ("frequency_penalty", json!(-1), json!(0.0)),
        ("repetition_penalty", json!(1.1), json!(1)),
        ("min_tokens", json!(3), json!(0)),
        ("stop_token_ids", json!([5]), json!([])),
        ("response_format", json!({ "type": "json_object" }), json!({ "type": "text" })),
        ("guided_json", json!({ "type": "object" }), Value::Null),
    ] {
        let mut connection = server.connect();
        let message = connection.post(COMPLETIONS, &completion(json!({ field: asks }))).refusal(400);
        assert!(message.starts_with(field), "{message}");
        assert_eq!(server.whole(COMPLETIONS, &completion(json!({ field: neutral }))), plain, "{field}");
        still_answers(&mut connection);
    }
}

#[test]
fn prompts_that_are_empty_or_hold_no_tokens_of_the_model_are_refused() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut connection = server.connect();
    for empty in [json!(""), json!([]), json!([[]]), json!([""])] {
        let message = connection.post(COMPLETIONS, &completion(json!({ "prompt": empty }))).refusal(400);
        assert!(message.contains("empty"), "{empty}: {message}");
    }
    // The model has 8192 rows and the tokenizer 8180 ids: the rows past them are nobody's.
    for outside in [8180_u64, 8191, 8192, u64::from(u32::MAX), u64::MAX] {
        for prompt in [json!([outside]), json!([5, 6, outside])] {
            let message = connection.post(COMPLETIONS, &completion(json!({ "prompt": prompt }))).refusal(400);
            assert!(message.contains("8179") || message.contains("8180"), "the valid range: {message}");
        }
    }
    let last = connection.post(COMPLETIONS, &completion(json!({ "prompt": [8179] })));
    assert_eq!(last.head.status, 200, "{last:?}");
    // One prompt in a list is that prompt.
    let plain = server.whole(COMPLETIONS, &completion(json!({})));
    assert_eq!(server.whole(COMPLETIONS, &completion(json!({ "prompt": ["def f("] }))), plain);
    let ids = server.whole(COMPLETIONS, &completion(json!({ "prompt": [5, 6] })));
    assert_eq!(server.whole(COMPLETIONS, &completion(json!({ "prompt": [[5, 6]] }))), ids);
}

#[test]
fn a_prompt_past_the_context_is_refused_so_that_clients_know_to_compact() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--context", "256"]);
    let mut connection = server.connect();
    let words = "word ".repeat(400);
    let chat = json!({ "messages": [{ "role": "user", "content": words }] });
    let text = json!({ "prompt": words });
    let much = completion(json!({ "max_tokens": 1000 }));
    let most = completion(json!({ "max_tokens": u64::MAX }));
    for (path, body, param) in [
        (CHAT, &chat, "messages"),
        (COMPLETIONS, &text, "prompt"),
        (COMPLETIONS, &much, "prompt"),
        (COMPLETIONS, &most, "prompt"),
    ] {
        let response = connection.post(path, body);
        let message = response.refusal(400);
        assert!(message.starts_with("This server's maximum context length is 256 tokens, but "), "{message}");
        let error = &response.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["param"], param);
        // A stream opens to say it, for clients that read nothing else.
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        connection.begin(path, &streamed);
        let response = connection.response();
        assert_eq!(response.head.status, 200, "{response:?}");
        let events = events_in(&response.body);
        assert_eq!(events.last().unwrap()["error"], *error);
        assert_eq!(events.len(), if path == CHAT { 2 } else { 1 });
    }
    still_answers(&mut connection);
}

#[test]
fn routes_and_methods_that_do_not_exist_are_told_in_json() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut connection = server.connect();
    for path in
        ["/", "/v1", "/v1/", "/v1/models/", "/v1/embeddings", "/V1/models", "/v1/../health", "//health"]
    {
        let message = connection.get(path).refusal(404);
        assert!(message.contains(&format!("GET {path} is not a route")), "{message}");
    }
    for (method, path, allowed) in [
        ("GET", CHAT, "POST"),
        ("DELETE", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/health", "GET"),
    ] {
        connection.send(method, path, &[], b"{\"some\": \"body\"}");
        let response = connection.response();
        let message = response.refusal(405);
        assert!(message.contains(&format!("use {allowed}")), "{message}");
        assert!(response.head.header("allow").is_some_and(|list| list.contains(allowed)), "{response:?}");
    }
    // A query changes nothing, and headers that nobody asks for neither.
    assert_eq!(connection.get("/health?verbose=1").head.status, 200);
    connection.send("GET", "/v1/models?limit=1", &[("X-Anything", "at all"), ("Accept", "text/html")], b"");
    assert_eq!(connection.response().head.status, 200);
    still_answers(&mut connection);
}

#[test]
fn models_are_listed_with_their_aliases_and_any_name_is_answered() {
    let sandbox = Sandbox::new();
    let flags = ["--name", "mine", "--alias", "gpt-x", "--alias", "mine", "--alias", "other/one"];
    let server = start(&sandbox, &demo_model(), &flags);
    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let models = list["data"].as_array().unwrap();
    let ids: Vec<&str> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["mine", "gpt-x", "other/one"]);
    assert!(
        models.iter().all(|model| model["object"] == "model" && model["max_model_len"] == 4096),
        "{list}"
    );
    for (asked, answered) in [
        (json!("mine"), "mine"),
        (json!("other/one"), "other/one"),
        (json!("unheard of"), "mine"),
        (json!(""), "mine"),
        (Value::Null, "mine"),
    ] {
        let response = server.connect().post(COMPLETIONS, &completion(json!({ "model": asked })));
        assert_eq!(response.json()["model"], answered, "{asked}");
    }
    let plain = start(&sandbox, &demo_model(), &[]);
    assert_eq!(plain.get("/v1/models").json()["data"][0]["id"], "demo");
}

#[test]
fn a_body_past_the_limit_is_refused_and_a_large_one_below_it_is_read() {
    const MIB: usize = 1 << 20;
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    // Only announced: the server says no before anybody sends 40 MiB.
    let mut announced = server.connect();
    announced.send_bytes(
        format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", 40 * MIB)
            .as_bytes(),
    );
    let message = announced.response().refusal(413);
    assert!(message.contains("larger than the 33554432 bytes"), "{message}");
    // Without a length the limit is found while it is read.
    let mut endless = server.connect();
    endless.send_bytes(
        format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
    );
    let chunk = [format!("{MIB:x}\r\n").as_bytes(), &vec![b' '; MIB], b"\r\n"].concat();
    for _ in 0..33 {
        endless.send_bytes(&chunk);
    }
    endless.response().refusal(413);
    // Two MiB that are mostly nothing are a request like any other.
    let large = format!("{{{}\"prompt\": \"def f(\", \"max_tokens\": 2}}", " ".repeat(2 * MIB));
    let mut connection = server.connect();
    connection.send("POST", COMPLETIONS, &[], large.as_bytes());
    assert_eq!(connection.response().head.status, 200);
    still_answers(&mut connection);
    // So is a text that no context holds: it is read, counted and refused.
    let text = json!({ "prompt": "word ".repeat(200_000) });
    let message = connection.post(COMPLETIONS, &text).refusal(400);
    assert!(message.starts_with("This server's maximum context length is 4096 tokens"), "{message}");
    still_answers(&mut connection);
}

#[test]
fn keys_open_the_gated_routes_and_health_tells_strangers_nothing() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--api-key", "first", "--api-key", "second"]);
    let status = |headers: &[(&str, &str)], path: &str| {
        let mut connection = server.connect();
        connection.send("GET", path, headers, b"");
        (connection.response(), connection)
    };
    let open = |headers: &[(&str, &str)]| status(headers, "/v1/models").0.head.status == 200;
    assert!(open(&[("Authorization", "Bearer first")]));
    assert!(open(&[("Authorization", "bearer second")]));
    assert!(open(&[("X-Api-Key", "first")]));
    for wrong in [
        &[][..],
        &[("Authorization", "Bearer firs")],
        &[("Authorization", "Bearer first second")],
        &[("Authorization", "first")],
        &[("Authorization", "Basic first")],
        &[("X-Api-Key", "")],
    ] {
        for path in ["/v1/models", "/v1/anything", CHAT] {
            let (response, mut connection) = status(wrong, path);
            assert_eq!(response.head.status, 401, "{wrong:?} {path}");
            assert_eq!(
                response.json(),
                json!({ "error": {
                    "message": "A valid API key is required", "type": "invalid_request_error",
                    "param": null, "code": "invalid_api_key",
                }})
            );
            assert_eq!(response.head.header("www-authenticate"), Some("Bearer"));
            assert!(connection.is_closed());
        }
    }
    assert_eq!(status(&[], "/health").0.json(), json!({ "status": "ok" }));
    let known = status(&[("Authorization", "Bearer first")], "/health").0.json();
    assert_eq!(known["requests_running"], 0);
    let said = server.stop().1;
    assert!(!said.contains("first") && !said.contains("second"), "keys are in nobody's log: {said}");
}

#[test]
fn keys_of_the_environment_count_as_those_of_the_command_line() {
    let sandbox = Sandbox::new();
    let invocation = support::replies::serve(&sandbox, &demo_model())
        .env("TENSORFOLD_API_KEY", " one, two,")
        .args(["--api-key", "three"]);
    let server = support::server::Server::start(invocation).unwrap();
    for (key, status) in [("one", 200), ("two", 200), ("three", 200), ("", 401), ("one,two", 401)] {
        let mut connection = server.connect();
        connection.send("GET", "/v1/models", &[("Authorization", &format!("Bearer {key}"))], b"");
        assert_eq!(connection.response().head.status, status, "{key:?}");
    }
}

fn write_keys(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_key_file_is_read_again_on_a_hang_up_and_a_broken_one_closes_the_routes() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("keys");
    write_keys(&file, "# ours\nalice: old-key\n");
    let server = start(&sandbox, &demo_model(), &["--api-key-file", file.to_str().unwrap()]);
    let status = |key: &str| {
        let mut connection = server.connect();
        connection.send("GET", "/v1/models", &[("X-Api-Key", key)], b"");
        connection.response().head.status
    };
    assert_eq!((status("old-key"), status("new-key")), (200, 401));
    write_keys(&file, "alice: new-key\nbob: bobs\n");
    server.send_signal(libc::SIGHUP);
    wait_until("the new keys count", || status("new-key") == 200);
    assert_eq!((status("old-key"), status("bobs")), (401, 200));
    write_keys(&file, "\n");
    server.send_signal(libc::SIGHUP);
    wait_until("a file without keys opens nothing", || status("new-key") == 401);
    write_keys(&file, "last\n");
    server.send_signal(libc::SIGHUP);
    wait_until("a mended file counts", || status("last") == 200);
    let (code, said) = server.stop();
    assert_eq!(code, 0);
    assert!(said.contains("holds no key"), "the broken file is told: {said}");
}

#[test]
fn key_files_that_others_may_read_or_that_hold_none_end_the_command_before_the_model_is_loaded() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("keys");
    let refused = |parts: &[&str]| {
        let file = file.to_str().unwrap();
        let outcome = support::replies::serve(&sandbox, &demo_model())
            .args(["--port", "0", "--api-key-file", file])
            .run();
        outcome.refused_with(parts);
        assert_eq!(outcome.stdout, "");
    };
    refused(&["--api-key-file", "keys"]);
    write_keys(&file, "# nothing\n");
    refused(&["holds no key; put one on each line"]);
    write_keys(&file, "k\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&["mode 0644 lets others read the keys; run chmod 600"]);
}
