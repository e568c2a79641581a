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
fn repository_files(folder: &Path) -> Files {
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
    let server = hub(repository_files(&golden("v2-qwen")));
    let model = demo_model().display().to_string();
    let outcome = serve(&sandbox, &server, &model, "somebody/small");
    outcome.exits(1);
    assert_eq!(
        last_line(&outcome),
        "tensorfold: --drafter somebody/small: hidden size 128, but the target's is 384; vocabulary 1024, but the \
         target's is 8192; made for a target of 16 layers; this one has 12; taps layer 13; the target's last is 11"
    );
    let whole = repository_files(&golden("v2-qwen"))[WEIGHTS].len();
    assert!(server.bytes_of(WEIGHTS) < whole / 4, "only its header was asked for");
    assert!(!sandbox.path().join("hub").exists(), "nothing was stored");
}

#[test]
fn a_kind_that_the_plugin_does_not_run_is_named_before_the_model_is_looked_for() {
    let sandbox = Sandbox::new();
    let server = hub(repository_files(&golden("v1-full")));
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
    let server = hub(repository_files(&demo_drafter()));
    let model = demo_model().display().to_string();
    // The library has not the interface that its manifest offers: found before a byte of a weight is asked for.
    let outcome = serve(&sandbox, &server, &model, "somebody/small");
    outcome.exits(1);
    assert!(last_line(&outcome).contains("the library has no such table"), "{}", outcome.stderr);
    assert!(!sandbox.path().join("hub").exists());
    assert_eq!(std::fs::read_dir(sandbox.folder("tmp")).unwrap().count(), 0, "its metadata went away");
}

/// A model under the name of one for which a drafter is known.
fn known_model(sandbox: &Sandbox, name: &str, model: &Path) -> PathBuf {
    let folder = sandbox.folder(name);
    for entry in std::fs::read_dir(model).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    folder
}

/// A cache that holds this folder as the known drafter.
fn cache_with(sandbox: &Sandbox, name: &str, drafter: &Path) -> PathBuf {
    let cache = sandbox.folder(name);
    let repository = cache.join("models--z-lab--Qwen3.8-27B-DFlash2");
    let revision = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = repository.join("snapshots").join(revision);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), revision).unwrap();
    for (file, bytes) in repository_files(drafter) {
        std::fs::write(snapshot.join(file), bytes).unwrap();
    }
    cache
}

#[test]
fn auto_takes_the_known_drafter_where_it_is_here_and_fits_and_never_fails() {
    let sandbox = Sandbox::new();
    let known = known_model(&sandbox, "Qwen3.8-27B-small", &demo_model());
    let experts = workspace().join("tests/goldens/tiny-qwen3_5_moe-mlx-4bit");
    let experts = known_model(&sandbox, "Qwen3.6-35B-A3B-small", &experts);
    let own_head = "none, since the checkpoint's own head drafts; --drafter z-lab/Qwen3.6-35B-A3B-DFlash takes the \
                    external one";
    let fitting = cache_with(&sandbox, "fitting", &demo_drafter());
    let other = cache_with(&sandbox, "other", &golden("v2-qwen"));
    let damaged = cache_with(&sandbox, "damaged", &demo_drafter());
    let snapshots = damaged.join("models--z-lab--Qwen3.8-27B-DFlash2/snapshots");
    let snapshot = std::fs::read_dir(snapshots).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(snapshot.join(WEIGHTS)).unwrap();
    std::fs::write(snapshot.join(WEIGHTS), &whole[..whole.len() / 2]).unwrap();
    let empty = sandbox.folder("empty");
    let auto = &["--drafter", "auto"][..];
    let demo = demo_model();
    let chosen = "--drafter auto: z-lab/Qwen3.8-27B-DFlash2, which was made for Qwen3.8-27B";
    let missing = "--drafter auto: none, since z-lab/Qwen3.8-27B-DFlash2 is not in the Hugging Face cache; tensorfold \
                   pull z-lab/Qwen3.8-27B-DFlash2 puts it there";
    for (model, cache, extra, wanted, drafts) in [
        (&known, &fitting, auto, chosen, true),
        (&known, &fitting, &[][..], chosen, true),
        (&known, &fitting, &["--drafter", "none"], "", false),
        (&known, &fitting, &["--no-drafts"], "", false),
        (&known, &empty, &[], missing, false),
        (&known, &other, &[], "does not fit: hidden size 128, but the target's is 384", false),
        (&known, &damaged, &[], "--drafter auto: none, since z-lab/Qwen3.8-27B-DFlash2", false),
        (&demo, &fitting, auto, "--drafter auto: none, since none is known that was made for demo", false),
        (&demo, &fitting, &[], "", false),
        (&experts, &fitting, auto, own_head, false),
    ] {
        let invocation = support::replies::serve(&sandbox, model).args(extra).env("HF_HUB_CACHE", cache);
        let server =
            support::server::Server::start(invocation).unwrap_or_else(|said| panic!("{extra:?}: {said}"));
        let reply = server.post(support::replies::CHAT, &greeting()).json();
        let (status, said) = server.stop();
        assert_eq!(status, 0);
        let line = said.lines().find(|line| line.contains("--drafter auto")).unwrap_or_default();
        assert_eq!(line.is_empty(), wanted.is_empty(), "{extra:?}: {said}");
        assert!(line.contains(wanted), "{said}");
        let proposers = &reply["speculative"]["proposer"];
        assert_eq!(!proposers["dflash2"].is_null(), drafts, "{extra:?}: {reply}");
    }
}

fn greeting() -> serde_json::Value {
    serde_json::json!({
        "messages": [{ "role": "user", "content": "What does os.path.join do?" }],
        "temperature": 0.0,
        "max_tokens": 24,
    })
}
