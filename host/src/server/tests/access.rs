//! Keys, routes, bodies and connections.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::super::options::{ServeEnvironment, ServeOptions};
use super::super::serve::Server;
use super::harness::{TestServer, plain_model, script};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gated_routes_need_a_key_and_health_does_not() {
    let server = TestServer::with(plain_model(), |options, _| options.api_keys = vec!["secret".to_owned()]);
    server.control.reply_with(&script("x<end>"));
    let body = json!({"prompt": "x"}).to_string();
    for path in ["/v1/completions", "/v1/models", "/v1/nothing", "/metrics"] {
        for headers in [&[][..], &[("authorization", "Bearer wrong")], &[("x-api-key", "Secret")]] {
            let mut client = server.client().await;
            let answer = client.request("POST", path, headers, body.as_bytes()).await;
            assert_eq!(answer.status, 401);
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert_eq!(answer.error(), "A valid API key is required");
            assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
            assert!(client.is_closed().await);
        }
    }
    let mut client = server.client().await;
    for header in [("authorization", "Bearer secret"), ("x-api-key", "secret")] {
        let answer = client.request("POST", "/v1/completions", &[header], body.as_bytes()).await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!(client.get("/health").await.json(), json!({"status": "ok"}));
    let details = client.request("GET", "/health", &[("x-api-key", "secret")], b"").await.json();
    assert_eq!(details["requests_total"], 2);
    assert!(!server.lines().iter().any(|line| line.contains("secret")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_what_was_done_and_what_runs() {
    let server = TestServer::start();
    let mut client = server.client().await;
    client.post("/v1/completions", &json!({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": true})).await;
    let health = client.get("/health").await;
    assert_eq!(health.status, 200);
    let health = health.json();
    for (name, value) in [
        ("status", json!("ok")),
        ("busy", json!(false)),
        ("requests_running", json!(0)),
        ("requests_total", json!(1)),
        ("completion_tokens_total", json!(5)),
        ("prompt_tokens_total", json!(3)),
        ("cached_tokens_total", json!(0)),
        ("rounds_total", json!(4)),
        ("drafted_total", json!(0)),
        ("accepted_total", json!(0)),
        ("streams", json!(1)),
        ("context_length", json!(4096)),
        ("warming", json!(false)),
    ] {
        assert_eq!(health[name], value, "{name}");
    }
    assert_eq!(health["live"]["connections"], 1);
    assert_eq!(health["live"]["waiting"], 0);
    assert!(health["live"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_survives_every_refusal() {
    let server = TestServer::start();
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    let answer = client.request("POST", "/v1/nothing", &[], b"{\"a\": 1}").await;
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (404, "POST /v1/nothing is not a route of this server")
    );
    let answer = client.get("/v1/chat/completions").await;
    assert_eq!(answer.status, 405);
    assert_eq!(answer.error(), "/v1/chat/completions does not answer GET; use POST");
    assert_eq!(answer.headers["allow"], "POST");
    let answer = client.request("DELETE", "/health", &[], b"").await;
    assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET"));
    let answer = client.request("POST", "/v1/completions", &[], b"{\"prompt\": \"x\",}").await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().ends_with("at line 1 column 16"), "{}", answer.error());
    assert_eq!(client.request("POST", "/v1/completions", &[], b"").await.status, 400);
    assert_eq!(client.request("POST", "/v1/completions", &[], b"[]").await.status, 400);
    let answer = client.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!((answer.status, &answer.json()["choices"][0]["text"]), (200, &json!("x")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunked_bodies_are_read_and_large_ones_refused() {
    let server = TestServer::with(plain_model(), |options, engine| {
        options.body_limit_bytes = 100_000;
        engine.context = 4096;
    });
    server.control.reply_with(&script("x<end>"));
    let mut client = server.client().await;
    client
        .send_raw(
            b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n\
              9\r\n{\"prompt\"\r\n6\r\n: \"x\"}\r\n0\r\n\r\n",
        )
        .await;
    assert_eq!(client.answer().await.status, 200);

    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(200_000));
    let mut client = server.client().await;
    client
        .send_raw(
            format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", large.len())
                .as_bytes(),
        )
        .await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.error(), "the request body is larger than the 100000 bytes that this server takes");

    // Just below the limit: read to the end, and refused for its length in tokens.
    let near = json!({"prompt": "x".repeat(99_000)});
    let answer = server.client().await.post("/v1/completions", &near).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_logged_where_the_environment_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let environment =
        ServeEnvironment { request_log: Some(path.clone().into()), ..ServeEnvironment::default() };
    let server = TestServer::with_environment(plain_model(), &environment, |_, _| {});
    server.control.reply_with(&script("x<end>"));
    server.client().await.post("/v1/completions", &json!({"prompt": "remember me"})).await;
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains("\"route\":\"/v1/completions\"") && text.contains("remember me"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_lines_name_the_real_port_and_what_is_worth_knowing() {
    let server = TestServer::with(plain_model(), |options, _| options.host = "0.0.0.0".to_owned());
    let port = server.address.port();
    let lines = server.lines();
    assert!(lines[0].starts_with(&format!(
        "[tensorfold] warning: 0.0.0.0:{port} can be reached from other machines and no API key is set"
    )));
    assert!(lines[1].starts_with("[tensorfold] thinking is on by default"));
    assert_eq!(
        lines[2],
        format!(
            "[tensorfold] serving stub at http://0.0.0.0:{port}/v1 (sampling: greedy; drafts: off; context: 4096; loaded in 0.5s)"
        )
    );
    let quiet = TestServer::with(plain_model(), |options, _| options.thinking = false);
    assert_eq!(quiet.lines().len(), 1);
}

#[test]
fn what_is_wrong_is_said_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, "k\n").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o640)).unwrap();
    let refusal = |options: ServeOptions, environment: ServeEnvironment| {
        let options = ServeOptions { port: 0, ..options };
        Server::prepare(options, &environment).err().expect("a refusal").to_string()
    };
    let none = ServeEnvironment::default;
    let options = ServeOptions { api_key_file: Some(keys.clone()), ..ServeOptions::new("m") };
    assert!(refusal(options, none()).contains("mode 0640"));
    let salt = ServeEnvironment { seed_salt: Some("x".into()), ..none() };
    assert!(refusal(ServeOptions::new("m"), salt).starts_with("TENSORFOLD_SEED_SALT must be"));
    let log = ServeEnvironment { request_log: Some(folder.path().into()), ..none() };
    assert!(refusal(ServeOptions::new("m"), log).starts_with("TENSORFOLD_REQUEST_LOG "));
    assert_eq!(refusal(ServeOptions::new(""), none()), "--name must not be empty");
}
