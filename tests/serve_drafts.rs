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

/// The demo with the norms of its head stored as what is to be added to one, which nothing about its form tells.
fn with_other_norms(sandbox: &Sandbox) -> std::path::PathBuf {
    let folder = sandbox.folder("other-norms");
    for entry in std::fs::read_dir(demo_model()).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let path = folder.join("mtp-4bit.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let norms = header.as_object().unwrap().iter().filter(|(name, _)| name.contains("norm"));
    let mut changed = 0;
    for (_, tensor) in norms {
        assert_eq!(tensor["dtype"], "BF16");
        let offset = |place: usize| start + tensor["data_offsets"][place].as_u64().unwrap() as usize;
        for weight in bytes[offset(0)..offset(1)].chunks_exact_mut(2) {
            let stored = f32::from_bits(u32::from(u16::from_le_bytes([weight[0], weight[1]])) << 16);
            let shifted = ((stored - 1.0).to_bits() >> 16) as u16;
            weight.copy_from_slice(&shifted.to_le_bytes());
        }
        changed += 1;
    }
    assert_eq!(changed, 7, "three around the layer's entry, four in it");
    std::fs::write(&path, bytes).unwrap();
    folder
}

#[test]
fn a_head_whose_norms_are_read_the_wrong_way_is_noticed_and_read_the_other_way() {
    let sandbox = Sandbox::new();
    let other = with_other_norms(&sandbox);
    let server = start(&sandbox, &other, &[]);
    server.wait_until_said("are not stored as its form says");
    let said = server.said();
    let line = said.lines().find(|line| line.contains("are not stored as its form says")).expect(&said);
    let counts: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [right, guesses, before, of] = counts[..] else { panic!("{line}") };
    assert!(right * 8 > guesses && before * 8 <= of, "{line}");
    let plain = start(&sandbox, &demo_model(), &["--no-drafts"]);
    for temperature in [0.0, 0.5] {
        let reply = server.post(CHAT, &question(temperature, &[])).json();
        assert_eq!(reply["choices"], plain.post(CHAT, &question(temperature, &[])).json()["choices"]);
    }
    // The head as it is needs no such line.
    let sound = start(&sandbox, &demo_model(), &[]);
    sound.post(CHAT, &question(0.0, &[]));
    let (status, said) = sound.stop();
    assert!(status == 0 && !said.contains("norms"), "{said}");
}

#[test]
fn a_head_that_guesses_nothing_drafts_only_where_it_was_asked_for() {
    let sandbox = Sandbox::new();
    // Its weights are chance.
    let untrained = support::workspace().join("tests/goldens/tiny-qwen3_5-mlx-4bit");
    let silent = start(&sandbox, &untrained, &[]);
    silent.wait_until_said("the checkpoint's own head does not draft: of 24 guesses");
    let asked = start(&sandbox, &untrained, &["--mtp-drafts", "2"]);
    asked.wait_until_said("warning: the checkpoint's own head guesses hardly anything right");
    let body = question(0.8, &[]);
    assert_eq!(silent.post(CHAT, &body).json()["choices"], asked.post(CHAT, &body).json()["choices"]);
}
