//! What a reply is made of, through the whole program: forms of answer, seeds, stop strings, limits, and many at once.

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use support::replies::{CHAT, COMPLETIONS, Reply, start};
use support::{Sandbox, demo_model, workspace};

fn tiny_model() -> PathBuf {
    workspace().join("tests/goldens/tiny-qwen3_5")
}

/// A question that the demo answers with `` `os.path.join(path, *paths)` `` and a sentence.
fn question(more: Value) -> Value {
    with(
        json!({
            "messages": [{ "role": "user", "content": "What does os.path.join do?" }],
            "chat_template_kwargs": { "enable_thinking": false },
            "temperature": 0,
            "max_tokens": 48,
        }),
        more,
    )
}

/// A prompt that the tiny model, whose weights mean nothing, continues with any bytes there are.
fn noise(more: Value) -> Value {
    with(
        json!({ "prompt": "once upon a time", "max_tokens": 48, "temperature": 1, "ignore_eos": true }),
        more,
    )
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_streamed_reply_is_the_reply() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    for temperature in [0.0, 1.2] {
        for thinking in [false, true] {
            let more = json!({
                "temperature": temperature, "seed": 5,
                "chat_template_kwargs": { "enable_thinking": thinking },
            });
            let reply = server.reply(CHAT, &question(more));
            assert!(!reply.text.is_empty() || !reply.reasoning.is_empty());
        }
    }
    // Where bytes make no characters, both forms show that in the same way.
    let server = start(&sandbox, &tiny_model(), &[]);
    let mut several_bytes = 0;
    for seed in 0..8 {
        let reply = server.reply(COMPLETIONS, &noise(json!({ "seed": seed, "max_tokens": 120 })));
        assert_eq!((reply.tokens, reply.finish.as_str()), (120, "length"));
        several_bytes += reply.text.chars().filter(|character| !character.is_ascii()).count();
    }
    assert!(several_bytes > 20, "the noise is no test of characters of several bytes: {several_bytes}");
}

#[test]
fn the_events_of_a_stream_come_in_their_order() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--name", "mine", "--alias", "yours"]);
    let more = json!({ "stream_options": { "include_usage": true }, "model": "yours" });
    let mut stream = server.stream(CHAT, &question(more));
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant" }));
    let (usage, rest) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 48);
    let (last, pieces) = rest.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(last.get("usage").is_none(), "usage comes once: {last}");
    assert!(last["tensorfold"]["token_sha"].is_string() && last["speculative"]["rounds"].is_u64(), "{last}");
    assert!(pieces.len() > 10, "the reply came in {} pieces", pieces.len());
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["model"], "yours");
        assert!(event["id"].as_str().unwrap().starts_with("chatcmpl-"));
    }
    let completion = json!({ "prompt": "def f(", "max_tokens": 3, "temperature": 0 });
    let events = server.stream(COMPLETIONS, &completion).events();
    assert!(events.iter().all(|event| event["object"] == "text_completion" && event["model"] == "mine"));
    assert!(events.iter().all(|event| event["choices"][0]["text"].is_string()), "no event without text");
}

#[test]
fn one_seed_gives_one_reply_and_another_seed_another() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &tiny_model(), &[]);
    let sha = |more: Value| server.whole(COMPLETIONS, &noise(more)).token_sha;
    let of_seven = sha(json!({ "seed": 7 }));
    assert_eq!(sha(json!({ "seed": 7 })), of_seven);
    assert_ne!(sha(json!({ "seed": 8 })), of_seven);
    assert_ne!(sha(json!({ "seed": 7, "prompt": "once upon a day" })), of_seven);
    assert_ne!(sha(json!({ "seed": u64::MAX })), sha(json!({ "seed": u64::MAX - 1 })));
    // Greedy replies have no use for a seed.
    let greedy = |seed: u64| sha(json!({ "seed": seed, "temperature": 0 }));
    assert_eq!(greedy(7), greedy(8));
}

#[test]
fn without_a_seed_it_comes_from_the_prompt_and_the_salt() {
    let sandbox = Sandbox::new();
    let prompt: Vec<u64> = vec![64, 81, 300];
    let body = |more: Value| with(noise(json!({ "prompt": prompt })), more);
    let mut replies = Vec::new();
    for salt in [None, Some("0"), Some("7"), Some("-1")] {
        let invocation = support::replies::serve(&sandbox, &tiny_model());
        let invocation = match salt {
            Some(salt) => invocation.env("TENSORFOLD_SEED_SALT", salt),
            None => invocation,
        };
        let server = support::server::Server::start(invocation).unwrap();
        let reply = server.whole(COMPLETIONS, &body(json!({})));
        assert_eq!(
            server.whole(COMPLETIONS, &body(json!({}))),
            reply,
            "a repeated request, a repeated reply"
        );
        let seed = published_seed(&prompt, salt.unwrap_or("0"));
        assert_eq!(server.whole(COMPLETIONS, &body(json!({ "seed": seed }))), reply, "salt {salt:?}");
        replies.push(reply);
    }
    assert_eq!(replies[0], replies[1], "no salt is salt 0, and a restart changes nothing");
    assert!(replies[1] != replies[2] && replies[1] != replies[3] && replies[2] != replies[3]);
}

/// The first 8 bytes, little-endian, of SHA-256 over the ids in decimal joined by commas, `|` and the salt; without
/// the top bit.
fn published_seed(prompt: &[u64], salt: &str) -> u64 {
    let text: Vec<String> = prompt.iter().map(u64::to_string).collect();
    let digest = Sha256::digest(format!("{}|{salt}", text.join(",")));
    u64::from_le_bytes(digest[..8].try_into().unwrap()) & (u64::MAX >> 1)
}

#[test]
fn many_requests_at_once_each_get_the_reply_that_they_get_alone() {
    const REQUESTS: u64 = 12;
    let sandbox = Sandbox::new();
    let body = |index: u64| {
        let prompt: Vec<u64> = (0..20 + index * 8).map(|position| (position * 37 + index) % 8170).collect();
        json!({ "prompt": prompt, "max_tokens": 8 + index, "temperature": 1.2, "seed": index, "ignore_eos": true })
    };
    let one_at_a_time = start(&sandbox, &demo_model(), &["--parallel", "1"]);
    let alone: Vec<Reply> =
        (0..REQUESTS).map(|index| one_at_a_time.whole(COMPLETIONS, &body(index))).collect();
    for (flags, streams) in [(&["--parallel", "3"][..], 3), (&[], 8)] {
        let server = start(&sandbox, &demo_model(), flags);
        assert_eq!(server.health("streams"), streams);
        let together: Vec<Reply> = std::thread::scope(|scope| {
            let ask = |index: u64| {
                let (server, body) = (&server, body(index));
                scope.spawn(move || match index % 2 {
                    0 => server.whole(COMPLETIONS, &body),
                    _ => server.streamed(COMPLETIONS, &body),
                })
            };
            let threads: Vec<_> = (0..REQUESTS).map(ask).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "{streams} at once");
        server.wait_until_idle();
        assert_eq!(server.health("requests_total"), REQUESTS);
        let tokens: u64 = alone.iter().map(|reply| reply.tokens).sum();
        assert_eq!(server.health("completion_tokens_total"), tokens);
        let prompts: u64 = alone.iter().map(|reply| reply.prompt_tokens).sum();
        assert_eq!(server.health("prompt_tokens_total"), prompts);
    }
}

#[test]
fn a_stop_string_ends_a_reply_wherever_it_lies_across_tokens() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let full = server.reply(CHAT, &question(json!({})));
    assert!(full.text.starts_with("`os.path.join(path, *paths)`\n\n"), "{full:?}");
    let characters: Vec<char> = full.text.chars().collect();
    for (start, length) in [(0, 1), (3, 7), (5, 1), (8, 12), (13, 3), (20, 11), (26, 4), (28, 30), (40, 2)] {
        let stop: String = characters[start..start + length].iter().collect();
        let reply = server.reply(CHAT, &question(json!({ "stop": stop })));
        let at = full.text.find(&stop).unwrap();
        assert_eq!(reply.text, full.text[..at], "stop {stop:?}");
        assert_eq!(reply.finish, "stop");
        assert_eq!(reply.stop_sequence.as_deref(), Some(stop.as_str()));
        assert!(reply.tokens < full.tokens, "the engine went on past {stop:?}");
    }
    // What only begins like a stop string is text.
    let almost = json!({ "stop": ["paths)`\n\nJoin none", "zzz"] });
    assert_eq!(server.reply(CHAT, &question(almost)), full);
    // Of several the one that is complete first counts.
    let several = json!({ "stop": ["segments", "join(path, *paths)", "(path"] });
    let reply = server.reply(CHAT, &question(several));
    assert_eq!((reply.text.as_str(), reply.stop_sequence.as_deref()), ("`os.path.join", Some("(path")));
    // Stop tokens that are switched off leave stop strings as they are.
    let reply = server.reply(CHAT, &question(json!({ "stop": "path", "ignore_eos": true })));
    assert_eq!(reply.text, "`os.");
}

#[test]
fn a_stop_string_of_several_bytes_is_found_and_no_character_is_ever_split() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &tiny_model(), &[]);
    let full = (0..64)
        .map(|seed| (seed, server.whole(COMPLETIONS, &noise(json!({ "seed": seed, "max_tokens": 160 })))))
        .find_map(|(seed, reply)| {
            let real = |character: &char| !character.is_ascii() && *character != char::REPLACEMENT_CHARACTER;
            let stop = reply.text.chars().find(real)?;
            Some((seed, reply, stop))
        });
    let (seed, full, stop) = full.expect("some noise holds a character of several bytes");
    let body = noise(json!({ "seed": seed, "max_tokens": 160, "stop": [stop] }));
    let reply = server.reply(COMPLETIONS, &body);
    assert_eq!(reply.text, full.text[..full.text.find(stop).unwrap()]);
    assert_eq!(reply.stop_sequence, Some(stop.to_string()));
}

#[test]
fn a_reply_has_as_many_tokens_as_it_may() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &tiny_model(), &["--max-tokens", "5", "--context", "128"]);
    let tokens = |more: Value| {
        let reply = server.reply(COMPLETIONS, &noise(more));
        assert_eq!(reply.finish, "length");
        reply.tokens
    };
    for asked in [1, 2, 64, 65] {
        assert_eq!(tokens(json!({ "max_tokens": asked })), asked);
    }
    assert_eq!(tokens(json!({ "max_tokens": null, "max_completion_tokens": 9 })), 9);
    // Not said is the server's limit, as is 0.
    assert_eq!(tokens(json!({ "max_tokens": null })), 5);
    assert_eq!(tokens(json!({ "max_tokens": 0 })), 5);
    // The default gives way where the context ends, a limit that was asked for does not.
    let prompt: Vec<u64> = (0..125).collect();
    assert_eq!(tokens(json!({ "prompt": prompt, "max_tokens": null })), 3);
    assert_eq!(tokens(json!({ "prompt": prompt, "max_tokens": 3 })), 3);
    let body = noise(json!({ "prompt": prompt, "max_tokens": 4 }));
    let message = server.connect().post(COMPLETIONS, &body).refusal(400);
    assert!(message.starts_with("This server's maximum context length is 128 tokens, but you asked for 129"));
}

#[test]
fn the_command_line_sets_the_sampling_that_requests_leave_open() {
    let sandbox = Sandbox::new();
    let open = noise(json!({ "temperature": null, "seed": 3 }));
    let said = noise(json!({ "temperature": 1.3, "top_k": 7, "top_p": 0.9, "min_p": 0.01, "seed": 3 }));
    let flags = ["--temperature", "1.3", "--top-k", "7", "--top-p", "0.9", "--min-p", "0.01"];
    let server = start(&sandbox, &tiny_model(), &flags);
    assert!(
        server
            .said_on_stdout()
            .contains("(sampling: temperature 1.3, top_p 0.9, top_k 7, min_p 0.01; drafts: on; context: ")
    );
    let reply = server.whole(COMPLETIONS, &open);
    assert_eq!(server.whole(COMPLETIONS, &said), reply);
    let greedy = server.whole(COMPLETIONS, &noise(json!({ "temperature": 0, "seed": 3 })));
    assert_ne!(reply, greedy);
    let server = start(&sandbox, &tiny_model(), &["--temperature", "0"]);
    assert!(server.said_on_stdout().contains("(sampling: greedy; "));
    assert_eq!(server.whole(COMPLETIONS, &open), greedy);
}
