//! What the engine does to be fast, through the whole program, held against replies of one token a round from a prompt
//! computed anew: kept prompt states, copies from the context, many requests at once.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::replies::{COMPLETIONS, Reply, start, wait_until};
use support::server::Server;
use support::{Sandbox, demo_model, workspace};

/// Ids without a pattern, the same for the same `odd`.
fn noise(length: u64, odd: u64) -> Vec<u64> {
    (0..length).map(|at| (at * at * 31 + at * 17 + odd * 101) % 1000).collect()
}

fn body(prompt: &[u64], temperature: f64, tokens: u64) -> Value {
    json!({
        "prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": 11, "ignore_eos": true,
    })
}

/// The serial reference: no drafts, and no kept state.
fn serial(mut body: Value) -> Value {
    body["draft"] = json!(false);
    body
}

#[track_caller]
fn whole(server: &Server, body: &Value) -> (Reply, Value) {
    let response = server.connect().post(COMPLETIONS, body);
    assert_eq!(response.head.status, 200, "{response:?}");
    let document = response.json();
    (Reply::from_document(&document), document)
}

fn cached(document: &Value) -> u64 {
    document["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_prompt_that_goes_on_from_a_kept_state_gets_the_reply_of_one_computed_anew() {
    for model in ["tiny-qwen3_5", "tiny-qwen3_5_moe", "tiny-llama", "tiny-qwen3-mlx-4bit"] {
        let sandbox = Sandbox::new();
        let server = start(&sandbox, &workspace().join("tests/goldens").join(model), &[]);
        for temperature in [0.0, 1.0] {
            let mut prompt = noise(400, temperature as u64);
            let fresh = whole(&server, &serial(body(&prompt, temperature, 24)));
            assert_eq!(cached(&fresh.1), 0);
            for wanted in [0, 384] {
                let (reply, document) = whole(&server, &body(&prompt, temperature, 24));
                assert_eq!((cached(&document), &reply), (wanted, &fresh.0), "{model} at {temperature}");
            }
            // The next turn of the conversation, and another one that shares its beginning.
            prompt.extend(noise(100, 7));
            let fresh = whole(&server, &serial(body(&prompt, temperature, 24))).0;
            let (reply, document) = whole(&server, &body(&prompt, temperature, 24));
            assert_eq!((cached(&document), reply), (384, fresh), "{model} at {temperature}");
            prompt.truncate(300);
            prompt.extend(noise(50, 8));
            let fresh = whole(&server, &serial(body(&prompt, temperature, 24))).0;
            let (reply, document) = whole(&server, &body(&prompt, temperature, 24));
            assert_eq!((cached(&document), reply), (256, fresh), "{model} at {temperature}");
        }
        assert_eq!(server.health("cached_tokens_total"), 2 * (384 + 384 + 256));
    }
}

#[test]
fn nothing_is_kept_where_the_command_line_says_so() {
    let sandbox = Sandbox::new();
    let model = workspace().join("tests/goldens/tiny-llama");
    for flags in [["--prompt-cache-gib", "0"], ["--checkpoint-slots", "0"]] {
        let server = start(&sandbox, &model, &flags);
        for _ in 0..2 {
            assert_eq!(cached(&whole(&server, &body(&noise(200, 0), 0.0, 4)).1), 0);
        }
    }
}

#[test]
fn copies_change_no_reply_and_are_counted() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--mtp-drafts", "0"]);
    for (turn, temperature) in [0.0, 0.0, 0.0, 0.3, 0.6, 0.9].into_iter().enumerate() {
        // A text that repeats itself, as edits of a file do.
        let line = format!("value_{turn} = first(argument, other) + second(argument)\n");
        let mut wanted = body(&[], temperature, 60);
        wanted["prompt"] = json!(line.repeat(5));
        let (alone, document) = whole(&server, &serial(wanted.clone()));
        assert_eq!(document["speculative"]["drafted"], 0);
        assert_eq!(document["tensorfold"]["drafts"], false);
        let (reply, document) = whole(&server, &wanted);
        assert_eq!(reply, alone, "{document}");
        assert_eq!(document["tensorfold"]["drafts"], true);
    }
    let health = server.get("/health").json();
    let copied = &health["proposers"]["copy"];
    assert_eq!(
        (&copied["drafted"], &copied["accepted"]),
        (&health["drafted_total"], &health["accepted_total"])
    );
    assert!(copied["drafted"].as_u64().unwrap() > 0, "{health}");
}

#[test]
fn without_drafts_every_round_brings_one_token() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &workspace().join("tests/goldens/tiny-llama"), &["--no-drafts"]);
    let prompt = noise(20, 0).repeat(3);
    let (reply, document) = whole(&server, &body(&prompt, 0.0, 60));
    assert_eq!((reply.tokens, &document["speculative"]["rounds"]), (60, &json!(59)));
    assert_eq!(document["speculative"]["drafted"], 0);
    assert_eq!(document["tensorfold"]["drafts"], false);
}

#[test]
fn sixty_four_requests_at_once_get_their_own_replies_whatever_the_others_do() {
    const REQUESTS: u64 = 64;
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &workspace().join("tests/goldens/tiny-qwen3_5"), &["--parallel", "8"]);
    let wanted = |index: u64| {
        // Some share a beginning, some repeat themselves.
        let prompt = match index % 4 {
            0 => [noise(130, 1), noise(index + 1, index)].concat(),
            1 => noise(10 + index, index).repeat(3),
            _ => noise(1 + index * 5, index),
        };
        body(&prompt, (index % 2) as f64, 4 + index % 37)
    };
    let alone: Vec<Reply> = (0..REQUESTS).map(|index| whole(&server, &serial(wanted(index))).0).collect();
    let kept: Vec<Option<Reply>> = std::thread::scope(|scope| {
        let ask = |index: u64| {
            let (server, wanted) = (&server, wanted(index));
            scope.spawn(move || match index % 8 {
                // Leaves in the middle, or before anything came.
                3 => {
                    let mut connection = server.stream(COMPLETIONS, &wanted);
                    for _ in 0..index % 5 {
                        connection.event();
                    }
                    None
                }
                // Takes its time.
                5 => {
                    let mut connection = server.stream(COMPLETIONS, &wanted);
                    std::thread::sleep(Duration::from_millis(20 * index));
                    Some(Reply::from_events(&connection.events()))
                }
                _ => Some(server.whole(COMPLETIONS, &wanted)),
            })
        };
        let threads: Vec<_> = (0..REQUESTS).map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (index, (reply, alone)) in kept.iter().zip(&alone).enumerate() {
        assert!(
            reply.as_ref().is_none_or(|reply| reply == alone),
            "request {index}: {reply:?}, alone {alone:?}"
        );
    }
    assert_eq!(kept.iter().flatten().count(), 56);
    server.wait_until_idle();
    wait_until("nobody waits any more", || server.get("/health").json()["live"]["waiting"] == 0);
    // And the next request is answered as ever.
    assert_eq!(whole(&server, &wanted(9)).0, alone[9]);
}
