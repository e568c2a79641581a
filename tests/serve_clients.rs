//! Clients that leave, lag, send in pieces or come all at once, and a server that serves the others meanwhile.

mod support;

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use serde_json::{Value, json};
use support::http::{Connection, events_in};
use support::replies::{CHAT, COMPLETIONS, Reply, start, wait_until};
use support::server::Server;
use support::{Sandbox, demo_model};

/// A reply that is far from its end when its first pieces have come.
fn long(tokens: u32) -> Value {
    json!({ "prompt": "def isdir(s):", "max_tokens": tokens, "temperature": 0, "ignore_eos": true })
}

fn short() -> Value {
    json!({ "prompt": "def isdir(s):", "max_tokens": 4, "temperature": 0 })
}

/// The reply's lines: how it went on is told in exactly one, `done` or `ended`.
fn lines_about(server: &Server, id: &str) -> Vec<String> {
    server.said().lines().filter(|line| line.contains(id)).map(str::to_owned).collect()
}

#[test]
fn a_client_that_leaves_during_its_stream_frees_the_engine() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut stream = server.stream(COMPLETIONS, &long(4000));
    let first = stream.event().expect("a first event");
    assert_eq!(server.health("requests_running"), 1);
    drop(stream);
    server.wait_until_idle();
    let id = first["id"].as_str().unwrap();
    let line = server.wait_for_line(&format!("ended {id}"));
    assert!(line.contains("the client left; prompt="), "{line}");
    assert_eq!(lines_about(&server, id).len(), 1);
    assert!(server.health("completion_tokens_total") < 4000, "the reply was made to its end for nobody");
    assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
}

#[test]
fn a_client_that_leaves_while_it_waits_for_a_whole_reply_frees_the_engine() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let mut connection = server.connect();
    connection.begin(COMPLETIONS, &long(4000));
    wait_until("the reply is being made", || server.health("requests_running") == 1);
    drop(connection);
    server.wait_until_idle();
    server.wait_for_line("the client left");
    assert!(server.health("completion_tokens_total") < 4000);
    assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
}

#[test]
fn a_client_that_leaves_while_its_prompt_is_read_frees_the_engine() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--parallel", "1"]);
    let prompt: Vec<u32> = (0..4000).collect();
    let mut connection = server.connect();
    connection.begin(COMPLETIONS, &json!({ "prompt": prompt, "max_tokens": 90, "ignore_eos": true }));
    wait_until("the prompt is being read", || server.health("requests_running") == 1);
    drop(connection);
    server.wait_until_idle();
    let line = server.wait_for_line("the client left");
    assert!(line.contains("prompt=4000 tokens=0 "), "{line}");
    assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
}

#[test]
fn a_client_that_leaves_the_queue_is_passed_over_and_the_next_has_its_turn() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--parallel", "1"]);
    let mut running = server.stream(COMPLETIONS, &long(4000));
    running.event().expect("a first event");
    let mut waiting = server.connect();
    waiting.begin(COMPLETIONS, &long(3999));
    wait_until("the second one waits", || {
        server.get("/health").json()["live"]["waiting"].as_u64().is_some_and(|waiting| waiting > 0)
    });
    let mut next = server.connect();
    next.begin(COMPLETIONS, &short());
    drop(waiting);
    drop(running);
    let response = next.response();
    assert_eq!(response.head.status, 200, "{response:?}");
    server.wait_until_idle();
    assert!(server.health("completion_tokens_total") < 4000);
}

#[test]
fn a_short_request_does_not_wait_for_a_long_reply() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--parallel", "2"]);
    let mut stream = server.stream(COMPLETIONS, &long(4000));
    stream.event().expect("a first event");
    for _ in 0..3 {
        assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
    }
    wait_until("only the long one is being made", || server.health("requests_running") == 1);
    let event = stream.event().expect("a further event");
    assert!(event["choices"][0]["finish_reason"].is_null());
}

#[test]
fn a_client_that_reads_nothing_for_long_holds_up_nobody_and_misses_nothing() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let wanted = server.whole(COMPLETIONS, &long(200));
    let mut slow = server.connect();
    shrink_receive_buffer(&slow);
    let mut body = long(200);
    body["stream"] = json!(true);
    slow.begin(COMPLETIONS, &body);
    // The engine is done with the reply although its reader has not begun.
    wait_until("both replies were made", || server.health("completion_tokens_total") == 400);
    server.wait_until_idle();
    assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
    // Now a byte at a time for a while, and then the rest.
    let mut bytes = Vec::new();
    let mut socket = slow.socket();
    for _ in 0..2000 {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let end = b"\r\n0\r\n\r\n";
    let mut piece = [0; 997];
    while !bytes.ends_with(end) {
        let read = socket.read(&mut piece).unwrap();
        assert!(read > 0, "the stream broke off");
        bytes.extend(&piece[..read]);
    }
    assert_eq!(Reply::from_events(&events_in(std::str::from_utf8(&bytes).unwrap())), wanted);
}

fn shrink_receive_buffer(connection: &Connection) {
    let size: libc::c_int = 4096;
    // SAFETY: the descriptor is open, and the option's value is an int that lives through the call.
    let set = unsafe {
        libc::setsockopt(
            connection.socket().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
}

#[test]
fn a_request_may_arrive_in_pieces_and_its_connection_serves_the_next() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let wanted = server.whole(COMPLETIONS, &short());
    let body = short().to_string();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = server.connect();
    connection.socket().set_nodelay(true).unwrap();
    for _ in 0..2 {
        for byte in request.as_bytes() {
            connection.send_bytes(&[*byte]);
        }
        assert_eq!(Reply::from_document(&connection.response().json()), wanted);
    }
    // Without a length, in chunks.
    let (first, second) = body.split_at(body.len() / 2);
    let chunked = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    connection.send_bytes(chunked.as_bytes());
    assert_eq!(Reply::from_document(&connection.response().json()), wanted);
    // Three requests before the first answer.
    connection.send_bytes(request.repeat(3).as_bytes());
    for _ in 0..3 {
        assert_eq!(Reply::from_document(&connection.response().json()), wanted);
    }
}

#[test]
fn a_client_that_breaks_off_within_its_request_disturbs_nobody() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    for part in
        ["", "POST /v1/comp", "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"prompt\""]
    {
        let mut connection = server.connect();
        connection.send_bytes(part.as_bytes());
        drop(connection);
    }
    let mut nonsense = server.connect();
    nonsense.send_bytes(b"\x16\x03\x01 no HTTP at all\r\n\r\n");
    // Whatever it is told, it is not kept.
    let mut rest = Vec::new();
    let _ = nonsense.socket().read_to_end(&mut rest);
    assert_eq!(server.whole(COMPLETIONS, &short()).tokens, 4);
    wait_until("only this look is a connection", || {
        server.get("/health").json()["live"]["connections"].as_u64() == Some(1)
    });
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_hundred_idle_connections_do_not_keep_anybody_from_an_answer() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let idle: Vec<Connection> = (0..100).map(|_| server.connect()).collect();
    let body = json!({ "messages": [{ "role": "user", "content": "Who are you?" }], "max_tokens": 4 });
    assert_eq!(server.whole(CHAT, &body).tokens, 4);
    drop(idle);
    assert_eq!(server.stop().0, 0);
}
