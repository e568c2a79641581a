//! Replies with drafts and without, through the whole program.

mod support;

use serde_json::{Value, json};
use support::replies::{CHAT, start};
use support::{Sandbox, demo_drafter, demo_model};

/// A question whose answer the demo knows by heart, so that its head guesses much of it.
fn question(temperature: f64, more: &[(&str, Value)]) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What does os.path.join do?" }],
        "chat_template_kwargs": { "enable_thinking": false },
        "temperature": temperature,
        "seed": 7,
        "max_tokens": 64,
    });
    for (name, value) in more {
        body[*name] = value.clone();
    }
    body
}

/// What the checkpoint's own head did in a reply.
fn head(document: &Value) -> &Value {
    &document["speculative"]["proposer"]["mtp"]
}

#[test]
fn the_checkpoints_own_head_drafts_and_changes_no_reply() {
    let sandbox = Sandbox::new();
    let drafting = start(&sandbox, &demo_model(), &["--mtp-drafts", "3"]);
    let serial = start(&sandbox, &demo_model(), &["--no-drafts"]);
    assert!(drafting.said_on_stdout().contains("drafts: on"));
    assert!(serial.said_on_stdout().contains("drafts: off"));
    let mut drafted = 0;
    for temperature in [0.0, 0.9] {
        let with = drafting.post(CHAT, &question(temperature, &[])).json();
        let without = serial.post(CHAT, &question(temperature, &[])).json();
        assert_eq!(with["choices"], without["choices"]);
        assert_eq!(with["usage"]["completion_tokens"], without["usage"]["completion_tokens"]);
        drafted += head(&with)["drafted"].as_u64().unwrap_or_default();
        assert_eq!(without["speculative"]["drafted"], json!(0));
        let off = drafting.post(CHAT, &question(temperature, &[("draft", json!(false))])).json();
        assert_eq!(off["choices"], without["choices"]);
        assert_eq!(off["speculative"]["drafted"], json!(0));
    }
    assert!(drafted > 0, "no draft was ever made");
    let health = drafting.get("/health").json();
    assert!(health["drafted_total"].as_u64().unwrap() >= drafted, "{health}");
}

#[test]
fn a_dflash2_drafter_drafts_and_changes_no_reply() {
    let sandbox = Sandbox::new();
    let drafter = demo_drafter().display().to_string();
    let drafting = start(&sandbox, &demo_model(), &["--drafter", &drafter]);
    let serial = start(&sandbox, &demo_model(), &["--no-drafts"]);
    assert!(drafting.said_on_stdout().contains("drafts: on"));
    let (mut drafted, mut accepted) = (0, 0);
    for temperature in [0.0, 0.9, 0.0] {
        let with = drafting.post(CHAT, &question(temperature, &[])).json();
        let without = serial.post(CHAT, &question(temperature, &[])).json();
        assert_eq!(with["choices"], without["choices"]);
        assert_eq!(without["speculative"]["drafted"], json!(0));
        let proposers = &with["speculative"]["proposer"];
        drafted += proposers["dflash2"]["drafted"].as_u64().unwrap_or_default();
        accepted += proposers["dflash2"]["accepted"].as_u64().unwrap_or_default();
        // It drafts in the head's place.
        assert!(proposers["mtp"].is_null(), "{with}");
    }
    assert!(drafted > 0 && accepted > 0, "{accepted} of {drafted} drafts were accepted");
    let health = drafting.get("/health").json();
    assert!(health["accepted_total"].as_u64().unwrap() >= accepted, "{health}");
}

#[test]
fn a_drafter_and_the_head_draft_side_by_side_where_both_are_asked_for() {
    let sandbox = Sandbox::new();
    let drafter = demo_drafter().display().to_string();
    let drafting = start(&sandbox, &demo_model(), &["--drafter", &drafter, "--mtp-drafts", "2"]);
    let serial = start(&sandbox, &demo_model(), &["--no-drafts"]);
    for temperature in [0.0, 0.9] {
        let with = drafting.post(CHAT, &question(temperature, &[])).json();
        let without = serial.post(CHAT, &question(temperature, &[])).json();
        assert_eq!(with["choices"], without["choices"]);
        assert_eq!(with["usage"]["completion_tokens"], without["usage"]["completion_tokens"]);
    }
}

#[test]
fn asked_for_drafts_that_cannot_be_had_are_refused() {
    let sandbox = Sandbox::new();
    let outcome = support::replies::serve(&sandbox, &demo_model()).args(["--mtp-drafts", "32"]).run();
    outcome.exits(1).says_only("tensorfold: --mtp-drafts 32: the CPU engine drafts at most 31");
    let headless = support::workspace().join("tests/goldens/tiny-llama");
    let outcome = support::replies::serve(&sandbox, &headless).args(["--mtp-drafts", "2"]).run();
    let line = "tensorfold: --mtp-drafts: this checkpoint has no MTP head; serve without --mtp-drafts";
    outcome.exits(1).says_only(line);
}
