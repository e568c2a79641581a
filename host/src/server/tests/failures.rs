//! Clients that leave or lag, engines that break, servers that stop.

use std::time::Duration;

use serde_json::{Value, json};
use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;

use super::harness::{TestServer, VOCABULARY, plain_model, tokens};
use crate::engine::fake::{Fault, expected_reply};
use crate::engine::{StopOutcome, token_digest};

fn endless(stream: bool) -> Vec<u8> {
    json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": stream}).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_the_engine() {
    for stream in [false, true] {
        let server = TestServer::start();
        server.control.hold();
        let mut leaving = server.client().await;
        leaving.send("POST", "/v1/completions", &[], &endless(stream)).await;
        server.control.wait_for_round(1);
        drop(leaving);
        // The server notices on its own, while no round ends.
        let line = server.wait_for_line("ended cmpl-");
        assert!(line.contains(": the client left; prompt=1 tokens=0 seconds="), "{line}");
        server.control.release();
        server.control.wait_for_closes(1);
        let body = json!({"prompt": "abc", "max_tokens": 3, "ignore_eos": true});
        let reply = server.client().await.post("/v1/completions", &body).await.json();
        let wanted = token_digest(&expected_reply(&tokens("abc"), 3, VOCABULARY));
        assert_eq!(reply["tensorfold"]["token_sha"], wanted);
        assert_eq!(server.engine.counters().requests_cancelled_total, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_at_once_each_get_their_own_reply() {
    let server = TestServer::start();
    let mut tasks = Vec::new();
    for index in 0..24usize {
        let address = server.address;
        tasks.push(tokio::spawn(async move {
            let mut client = super::client::Client::connect(address).await;
            for turn in 0..3 {
                let prompt = format!("{index}/{turn}").repeat(1 + index);
                let length = 1 + (index * 7 + turn) % 40;
                let stream = (index + turn).is_multiple_of(2);
                let body =
                    json!({"prompt": prompt, "max_tokens": length, "ignore_eos": true, "stream": stream});
                let answer = client.post("/v1/completions", &body).await;
                let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
                let wanted = expected_reply(&tokens(&prompt), length, VOCABULARY);
                assert_eq!(last["tensorfold"]["token_sha"], token_digest(&wanted));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_reader_holds_up_nobody_and_misses_nothing() {
    let server = TestServer::start();
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut client = server.client().await;
        client.send("POST", "/v1/completions", &[], &endless(true)).await;
        slow.push(client);
    }
    // All of them unread: others are served to their end.
    let body = json!({"prompt": "abc", "max_tokens": 3, "ignore_eos": true});
    let reply = server.client().await.post("/v1/completions", &body).await.json();
    assert_eq!(reply["usage"]["completion_tokens"], 3);
    for mut client in slow {
        let events = client.answer().await.events();
        let last = events.last().unwrap();
        let wanted = token_digest(&expected_reply(&tokens("x"), 4000, VOCABULARY));
        assert_eq!(last["tensorfold"]["token_sha"], wanted);
        assert_eq!(last["usage"]["completion_tokens"], 4000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_503_with_a_time_to_come_back() {
    let server = TestServer::with(plain_model(), |_, engine| engine.queue = 0);
    server.control.hold();
    let mut first = server.client().await;
    let body = json!({"prompt": "x", "max_tokens": 1, "ignore_eos": true});
    first.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).await;
    server.control.wait_for_round(1);
    let mut second = server.client().await;
    let answer = second.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().starts_with("the engine is busy"));
    assert_eq!(answer.headers["retry-after"], "1");
    let health = second.get("/health").await.json();
    assert_eq!((&health["busy"], &health["requests_running"]), (&json!(true), &json!(1)));
    server.control.release();
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(second.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_engine_ends_replies_and_the_process_goes_on_answering() {
    let server = TestServer::start();
    server.control.hold();
    server.control.fail_round(3, Fault::Error(PluginError::new(Status::DeviceLost, "the card is gone")));
    let mut streaming = server.client().await;
    streaming.send("POST", "/v1/completions", &[], &endless(true)).await;
    server.control.wait_for_round(1);
    let mut waiting = server.client().await;
    waiting.send("POST", "/v1/completions", &[], &endless(false)).await;
    while server.engine.counters().requests_waiting == 0 {
        tokio::task::yield_now().await;
    }
    server.control.release();

    let events = streaming.answer().await.events();
    let message = "the engine failed: the card is gone (device-lost)";
    assert_eq!(*events.last().unwrap(), json!({"error": {"message": message, "type": "server_error"}}));
    let answer = waiting.answer().await;
    assert_eq!((answer.status, answer.json()), (500, json!({"error": {"message": message}})));

    let mut client = server.client().await;
    let answer = client.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!(answer.status, 500);
    assert!(answer.error().contains("restart the server") && answer.error().contains("the card is gone"));
    let health = client.get("/health").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("failed")));
    assert_eq!(health.json()["error"], message);
    assert_eq!(client.get("/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_ends_replies_with_an_error_and_closes_idle_connections() {
    let server = TestServer::start();
    server.control.hold();
    let mut idle = server.client().await;
    assert_eq!(idle.get("/health").await.status, 200);
    let mut streaming = server.client().await;
    streaming.send("POST", "/v1/completions", &[], &endless(true)).await;
    server.control.wait_for_round(1);
    let mut waiting = server.client().await;
    waiting.send("POST", "/v1/completions", &[], &endless(false)).await;
    while server.engine.counters().requests_waiting == 0 {
        tokio::task::yield_now().await;
    }
    let (engine, control, address) = (server.engine.clone(), server.control.clone(), server.address);
    // The round that is being computed does not return: nobody waits for it.
    let stopped = server.stop();
    let events: Vec<Value> = streaming.answer().await.events();
    assert_eq!(
        events,
        [json!({"error": {"message": "the server is shutting down", "type": "server_error"}})]
    );
    let answer = waiting.answer().await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "the server is shutting down"));
    assert!(idle.is_closed().await);
    stopped.await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    control.release();
    assert!(matches!(engine.stop(Duration::from_secs(20)), StopOutcome::Stopped(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_does_not_keep_the_server_from_stopping() {
    let server = TestServer::start();
    let mut stuck = server.client().await;
    // Half a request: the connection is open and in use.
    stuck.send_raw(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{").await;
    assert_eq!(server.client().await.get("/health").await.status, 200);
    let stopped = server.stop();
    tokio::time::timeout(Duration::from_secs(20), stopped).await.expect("it stops").unwrap().unwrap();
}
