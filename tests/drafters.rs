//! Drafters that are named, with a plugin that runs DFlash2 ones: what is refused, where from, and before what.

#[path = "../host/hub/tests/support/server.rs"]
#[allow(dead_code, reason = "the Hub's own tests use the rest")]
mod hub_server;
mod support;

use std::path::{Path, PathBuf};

use hub_server::{Files, Server as FakeHub, hub};
use support::{BuiltPlugin, Outcome, Sandbox, demo_drafter, demo_model, faulty, workspace};

const WEIGHTS: &str = "model.safetensors";

/// The files of a folder, as a repository.
fn repository(folder: &Path) -> Files {
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(folder).unwrap().flatten().map(read).collect()
}

fn golden(name: &str) -> PathBuf {
    workspace().join("tests/goldens/dflash").join(name).join("drafter")
}

/// A plugin that declares DFlash2 drafters and has no code for them.
fn plugin(sandbox: &Sandbox) -> BuiltPlugin {
    let table = "\n[drafters.dflash2]\nrevision = { min = 1, max = 1 }\nblock_max = 8\n";
    faulty("INIT_CRASHES").drafting(table).build_in(&sandbox.plugins())
}

fn serve(sandbox: &Sandbox, server: &FakeHub, model: &str, drafter: &str) -> Outcome {
    let plugin = plugin(sandbox);
    let words = ["serve", model, "--backend", "successor", "--drafter", drafter, "--plugin"];
    let invocation = sandbox.tensorfold(words).arg(&plugin.library).without_env("HF_HUB_OFFLINE");
    let invocation = invocation.env("HF_ENDPOINT", server.address()).env("TMPDIR", sandbox.folder("tmp"));
    invocation.env("HF_HUB_CACHE", sandbox.path().join("hub")).run()
}

fn last_line(outcome: &Outcome) -> &str {
    outcome.stderr.lines().last().unwrap_or_default()
}

#[test]
fn a_drafter_at_the_hub_is_held_against_the_model_before_its_weights_come() {
    let sandbox = Sandbox::new();
    let server = hub(repository(&golden("v2-qwen")));
    let model = demo_model().display().to_string();
    let outcome = serve(&sandbox, &server, &model, "somebody/small");
    outcome.exits(1);
    assert_eq!(
        last_line(&outcome),
        "tensorfold: --drafter somebody/small: hidden size 128, but the target's is 384; vocabulary 1024, but the \
         target's is 8192; made for a target of 16 layers; this one has 12; taps layer 13; the target's last is 11"
    );
    let whole = repository(&golden("v2-qwen"))[WEIGHTS].len();
    assert!(server.bytes_of(WEIGHTS) < whole / 4, "only its header was asked for");
    assert!(!sandbox.path().join("hub").exists(), "nothing was stored");
}

#[test]
fn a_kind_that_the_plugin_does_not_run_is_named_before_the_model_is_looked_for() {
    let sandbox = Sandbox::new();
    let server = hub(repository(&golden("v1-full")));
    let outcome = serve(&sandbox, &server, "/no/such/model", "somebody/small");
    outcome.exits(1);
    assert_eq!(
        last_line(&outcome),
        "tensorfold: --drafter: the Successor engine runs no DFlash drafter yet; serve without --drafter"
    );
}

#[test]
fn why_says_what_serve_says() {
    let sandbox = Sandbox::new();
    let plugin = plugin(&sandbox);
    let model = demo_model().display().to_string();
    for (drafter, wanted) in [
        (golden("v2-qwen"), "hidden size 128, but the target's is 384; vocabulary 1024"),
        (golden("v1-full"), "runs no DFlash drafter yet"),
        (demo_model(), "a whole model, which drafts for itself"),
        ("/no/such/drafter".into(), "is neither a directory nor a Hugging Face repo id"),
    ] {
        let drafter = drafter.display().to_string();
        let ask = |verbs: &[&str]| {
            let invocation = sandbox.tensorfold(verbs.iter().copied());
            let invocation = invocation.arg("--backend").arg("successor").arg("--drafter").arg(&drafter);
            invocation.arg(&model).arg("--plugin").arg(&plugin.library).run()
        };
        let (serve, why) = (ask(&["serve"]), ask(&["plugins", "why"]));
        serve.exits(1);
        why.exits(1);
        assert!(last_line(&serve).contains(wanted), "{}", serve.stderr);
        assert_eq!(last_line(&serve), last_line(&why));
    }
}

#[test]
fn a_drafter_that_fits_comes_after_everything_that_can_be_known_without_it() {
    let sandbox = Sandbox::new();
    let server = hub(repository(&demo_drafter()));
    let model = demo_model().display().to_string();
    // The library has not the interface that its manifest offers: found before a byte of a weight is asked for.
    let outcome = serve(&sandbox, &server, &model, "somebody/small");
    outcome.exits(1);
    assert!(last_line(&outcome).contains("the library has no such table"), "{}", outcome.stderr);
    assert!(!sandbox.path().join("hub").exists());
    assert_eq!(std::fs::read_dir(sandbox.folder("tmp")).unwrap().count(), 0, "its metadata went away");
}
