//! The refusal: a drafter that the backend's manifest does not declare ends the command with one exact sentence,
//! before anything is loaded, opened, made or asked for. Each absence is shown together with the case in which the
//! same instrument sees the presence.

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::server::Server;
use support::trace::traced;
use support::{BuiltPlugin, NativePlugin, Outcome, Sandbox, demo_drafter, demo_model, faulty, workspace};

const SENTENCE: &str =
    "tensorfold: --drafter: the HIP engine runs no DFlash2 drafter yet; serve without --drafter";
const DRAFTER: &str = "z-lab/Qwen3.8-27B-DFlash2";
const MODEL: &str = "Qwen/Qwen3.8-27B";

/// A release build does this in under 50 ms; a build for debugging on a busy machine gets more.
const SOON: Duration =
    if cfg!(debug_assertions) { Duration::from_secs(2) } else { Duration::from_millis(500) };

/// What `--drafter` can hold, and what can stand around it.
fn ways_to_ask(backend: &str) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let demo = demo_model().display().to_string();
    let folder = demo_drafter().display().to_string();
    vec![
        words(&format!("serve {MODEL} --backend {backend} --drafter {DRAFTER}")),
        words(&format!("--backend {backend} serve {MODEL} --drafter={DRAFTER}")),
        words(&format!(
            "serve {MODEL} --backend={backend} --drafter {DRAFTER} --tp 2 --rank 1 --master 10.0.0.1"
        )),
        words(&format!(
            "serve {MODEL} --backend {backend} --drafter {DRAFTER} --tp 2 --rank 0 --master 10.0.0.1"
        )),
        words(&format!("serve {MODEL} --backend {backend} --drafter {folder}")),
        words(&format!("serve {demo} --backend {backend} --drafter {folder}")),
        words(&format!("serve {demo} --backend {backend} --drafter {DRAFTER}")),
        words(&format!("serve /no/such/model --backend {backend} --drafter {DRAFTER}")),
        words(&format!("serve nobody/no-such-model --backend {backend} --drafter /no/such/drafter")),
        // Later rules would refuse these too; the drafter comes first, and one diagnostic is enough.
        words(&format!("serve {MODEL} --backend {backend} --drafter {DRAFTER} --mtp-drafts 9")),
        words(&format!("serve {MODEL} --backend {backend} --drafter {DRAFTER} --vision --kv-dtype int4")),
        words(&format!("serve {MODEL} --backend {backend} --drafter {DRAFTER} --context 999999999")),
    ]
}

#[track_caller]
fn is_the_sentence(outcome: &Outcome, sandbox: &Sandbox) {
    outcome.exits(1).says_only(SENTENCE);
    if outcome.elapsed > SOON {
        outcome.fail(format!("took {:?}", outcome.elapsed));
    }
    assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new(), "a refused command leaves nothing behind");
}

/// A plugin that calls itself HIP, runs the demo model, and leaves a mark when any code of it runs.
fn marked_hip(marker: &Path) -> NativePlugin {
    faulty("")
        .renamed("hip")
        .replace("\"Hip\"", "\"HIP\"")
        .replace("backend = \"hip\"\n", "backend = \"hip\"\naliases = [\"rocm\"]\n")
        .with_marker(marker)
}

struct Marked {
    sandbox: Sandbox,
    marker: PathBuf,
    plugin: BuiltPlugin,
}

impl Marked {
    fn new(change: impl FnOnce(NativePlugin) -> NativePlugin) -> Marked {
        let sandbox = Sandbox::new();
        let marker = sandbox.path().join("marker");
        let plugin = change(marked_hip(&marker)).build_in(&sandbox.plugins());
        assert!(!marker.exists(), "making the sidecar runs no code of the plugin");
        Marked { sandbox, marker, plugin }
    }

    fn run(&self, words: &[String]) -> Outcome {
        self.sandbox.tensorfold(words).arg("--plugin").arg(&self.plugin.library).run()
    }

    fn serve(&self, extra: &[&str]) -> Result<Server, String> {
        let base = ["serve", "--backend", "rocm", "--plugin"].map(String::from);
        let invocation =
            self.sandbox.tensorfold(base).arg(&self.plugin.library).args(extra).arg(demo_model());
        Server::start(invocation)
    }
}

#[test]
fn the_plugin_of_this_tree_refuses_in_the_exact_words_however_it_is_asked() {
    let sandbox = Sandbox::new();
    let mut slowest = Duration::ZERO;
    for backend in ["rocm", "hip", "backend-hip"] {
        for words in ways_to_ask(backend) {
            let outcome = sandbox.tensorfold(&words).without_env("TENSORFOLD_PLUGINS_FILE").run();
            is_the_sentence(&outcome, &sandbox);
            slowest = slowest.max(outcome.elapsed);
        }
    }
    println!("the slowest refusal took {slowest:?}");
}

#[test]
fn no_code_of_the_plugin_runs_for_a_refusal() {
    let marked = Marked::new(|plugin| plugin);
    for words in ways_to_ask("rocm") {
        is_the_sentence(&marked.run(&words), &marked.sandbox);
        assert!(!marked.marker.exists(), "code of the plugin ran for {words:?}");
    }
    // The same command without the drafter loads this very plugin, and the marker shows it.
    let server = marked.serve(&[]).expect("without --drafter the same plugin serves");
    assert!(marked.marker.exists(), "the marker works");
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_refused_command_maps_opens_makes_and_connects_nothing() {
    let marked = Marked::new(|plugin| plugin);
    let library = marked.plugin.library.canonicalize().unwrap();
    let words: Vec<String> =
        format!("serve {MODEL} --backend rocm --drafter {DRAFTER} --tp 2 --rank 1 --master 10.0.0.1")
            .split(' ')
            .map(str::to_owned)
            .collect();
    let trace = traced(&marked.sandbox, |command| command.args(&words).arg("--plugin").arg(&library));
    trace.outcome.exits(1).says_only(SENTENCE);
    assert!(!trace.executable_files().contains(&library), "the plugin was mapped for execution");
    assert!(trace.opened().contains(&library), "the manifest was read from the library");
    trace.looked_for_no_device();
    assert_eq!(trace.changes_to_files(), Vec::<String>::new());
    assert_eq!(trace.network(), Vec::<&str>::new());
    assert_eq!(trace.programs().len(), 1, "no child was started: {:?}", trace.programs());

    // The tracer does see a plugin that is mapped, in a child too.
    let seen = traced(&marked.sandbox, |command| command.args(["plugins", "check"]).arg(&library));
    assert!(seen.executable_files().contains(&library), "the tracer sees a plugin that is mapped");
    assert!(seen.programs().len() > 1, "the tracer sees children");
}

#[test]
fn the_trees_own_plugin_is_not_mapped_either() {
    let sandbox = Sandbox::new();
    let words = format!("serve {MODEL} --backend rocm --drafter {DRAFTER}");
    let trace =
        traced(&sandbox, |command| command.args(words.split(' ')).without_env("TENSORFOLD_PLUGINS_FILE"));
    trace.outcome.exits(1).says_only(SENTENCE);
    let mapped = trace.executable_files();
    assert!(!mapped.is_empty(), "the C library at least");
    let plugins: Vec<_> =
        mapped.iter().filter(|path| path.to_string_lossy().contains("tensorfold_backend")).collect();
    assert!(plugins.is_empty(), "{plugins:?}");
    trace.looked_for_no_device();
    assert_eq!((trace.changes_to_files(), trace.network()), (Vec::new(), Vec::new()));
}

#[test]
fn without_a_drafter_or_with_a_neutral_one_the_command_goes_on() {
    let sandbox = Sandbox::new();
    for extra in [
        &[][..],
        &["--drafter", "none"],
        &["--drafter", "auto"],
        &["--drafter", ""],
        &["--drafter="],
        &["--no-drafts"],
        &["--no-drafts", "--drafter", DRAFTER],
        &["--drafter", DRAFTER, "--drafter", "none"],
    ] {
        // The tree's HIP plugin runs no model yet, so another reason ends it: the family or the machine.
        let outcome = sandbox
            .tensorfold(["serve", "--backend", "rocm"])
            .arg(demo_model())
            .args(extra)
            .without_env("TENSORFOLD_PLUGINS_FILE")
            .run();
        let line = outcome.refusal();
        assert!(!line.contains("--drafter") && !line.contains("DFlash"), "{extra:?}: {line}");
    }
}

#[test]
fn the_sound_plugin_serves_with_a_neutral_drafter() {
    let marked = Marked::new(|plugin| plugin);
    for extra in [&["--drafter", "none"][..], &["--drafter", "auto"], &["--no-drafts", "--drafter", DRAFTER]]
    {
        let server = marked.serve(extra).unwrap_or_else(|said| panic!("{extra:?}: {said}"));
        assert_eq!(server.stop().0, 0);
    }
}

const DFLASH2: &str = "
[drafters.dflash2]
revision = { min = 1, max = 1 }
block_max = 8
";
const DFLASH: &str = "
[drafters.dflash]
revision = { min = 1, max = 1 }
block_max = 16
";
const MTP: &str = "
[drafters.mtp]
revision = { min = 1, max = 1 }
depth_max = 3
";

#[test]
fn the_manifest_decides_and_not_the_backends_name() {
    let ask = |drafters: &str, drafter: &str| {
        let marked = Marked::new(|plugin| plugin.drafting(drafters));
        let model = demo_model().display().to_string();
        let words = ["serve", &model, "--backend", "rocm", "--drafter", drafter].map(String::from);
        let outcome = marked.run(&words);
        let ran = marked.marker.exists();
        (outcome, ran)
    };
    // An own head is no external drafter.
    let (outcome, ran) = ask(MTP, DRAFTER);
    outcome.exits(1).says_only(SENTENCE);
    assert!(!ran);
    // With an external kind declared it is no longer this rule that decides.
    let unfit = workspace().join("tests/goldens/dflash/v2-qwen/drafter").display().to_string();
    for (drafters, drafter) in [(DFLASH2, DRAFTER), (DFLASH2, &*unfit), (DFLASH, DRAFTER)] {
        let (outcome, ran) = ask(drafters, drafter);
        let line = outcome.refusal();
        assert!(line.contains("--drafter") && !line.contains("runs no"), "{drafter}: {line}");
        assert!(!ran, "what can be refused without the plugin is");
    }
}

#[test]
fn checks_come_in_their_order() {
    let marked = Marked::new(|plugin| plugin);
    let run = |words: &str| marked.run(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
    // Mistakes of the command line, before everything.
    run(&format!("serve {MODEL} --backend rocm --drafter {DRAFTER} --tp 3")).exits(2);
    run(&format!("--backend hip serve {MODEL} --backend rocm2 --drafter {DRAFTER}")).exits(2);
    run(&format!("serve {MODEL} --backend rocm --drafter")).exits(2);
    // Then the plugin by its name.
    run(&format!("serve {MODEL} --backend nonesuch --drafter {DRAFTER}")).refused_with(&["nonesuch", "hip"]);
    // Then the drafter, then flags that the plugin does not serve.
    run(&format!("serve {MODEL} --backend rocm --drafter {DRAFTER} --prefill-fp8"))
        .exits(1)
        .says_only(SENTENCE);
    let outcome = run(&format!("serve {MODEL} --backend rocm --prefill-fp8"));
    outcome.exits(2);
    assert!(outcome.stderr.contains("--prefill-fp8"), "{}", outcome.stderr);
    assert!(!marked.marker.exists());
    assert_eq!(marked.sandbox.traces_left(), Vec::<PathBuf>::new());
}

#[test]
fn why_prints_what_serve_would() {
    let marked = Marked::new(|plugin| plugin);
    let why = |extra: &[&str]| {
        marked
            .sandbox
            .tensorfold(["plugins", "why", "--backend", "rocm", "--plugin"])
            .arg(&marked.plugin.library)
            .args(extra)
            .run()
    };
    let refused = why(&["--drafter", DRAFTER]);
    refused.exits(1);
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains(SENTENCE.trim_start_matches("tensorfold: ")), "{said}");
    why(&[]).exits(0);
    assert!(!marked.marker.exists(), "a dry run runs no code of the plugin");
}

#[test]
fn one_backend_refuses_while_the_other_serves() {
    // Two plugins side by side: the refusal is that of the one that was named.
    let sandbox = Sandbox::new();
    let folder = sandbox.plugins();
    marked_hip(&sandbox.path().join("marker")).build_in(&folder);
    let other = faulty("").renamed("other").drafting(DFLASH2).build_in(&folder);
    let run = |backend: &str| {
        let words = ["serve", MODEL, "--drafter", DRAFTER, "--backend", backend, "--plugin-path"];
        sandbox.tensorfold(words).arg(&folder).run()
    };
    run("rocm").exits(1).says_only(SENTENCE);
    let outcome = run("other");
    assert!(!outcome.refusal().contains("runs no DFlash2"), "{other:?}");
}
