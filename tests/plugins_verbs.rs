//! The verbs that tell about plugins: they tell the truth, run no plugin code, and their output can be relied on.

mod support;

use std::path::{Path, PathBuf};

use support::trace::traced;
use support::{BuiltPlugin, Sandbox, built_with_the_workspace, demo_model, faulty, successor, workspace};

/// A sandbox with a marked plugin in the user's folder.
fn installed() -> (Sandbox, PathBuf, BuiltPlugin) {
    let sandbox = Sandbox::new();
    let marker = sandbox.path().join("marker");
    let plugin = faulty("").with_marker(&marker).build_in(&sandbox.user_plugins());
    (sandbox, marker, plugin)
}

#[test]
fn telling_about_plugins_runs_none_of_their_code() {
    let (sandbox, marker, plugin) = installed();
    let library = plugin.library.canonicalize().unwrap();
    let model = demo_model().display().to_string();
    let before = sandbox.traces_left();
    for words in [
        &["plugins", "list", "--all", "--json"][..],
        &["plugins", "show", "successor", "--json"],
        &["plugins", "path"],
        &["plugins", "why", "--backend", "successor", &model],
        &["plugins", "manifest", "--from", library.to_str().unwrap()],
        &["plugins", "check", "--no-probe", "successor"],
        &["capabilities", "--json"],
        &["models"],
        &["info", &model],
        &["serve", "--help"],
        &["--version"],
    ] {
        let trace = traced(&sandbox, |command| command.args(words));
        trace.outcome.exits(0);
        assert!(!trace.executable_files().contains(&library), "{words:?} mapped the plugin for execution");
        trace.touched_no_device();
        assert_eq!((trace.changes_to_files(), trace.network()), (Vec::new(), Vec::new()), "{words:?}");
        assert_eq!(trace.programs().len(), 1, "{words:?} started {:?}", trace.programs());
        assert!(!marker.exists(), "{words:?} ran code of the plugin");
    }
    assert_eq!(sandbox.traces_left(), before);
    // The one verb that tries a plugin does, in a child, and the same instruments see it.
    let trace = traced(&sandbox, |command| command.args(["plugins", "check", "successor"]));
    trace.outcome.exits(0);
    assert!(trace.executable_files().contains(&library) && marker.exists());
}

#[test]
fn showing_a_plugin_lists_its_options_by_type() {
    let sandbox = Sandbox::new();
    let show = |arguments: &[&str]| {
        let library = built_with_the_workspace("tensorfold_backend_cpu");
        sandbox.tensorfold(["plugins", "show", "cpu", "--plugin"]).arg(library).args(arguments).run()
    };
    let outcome = show(&[]);
    outcome.exits(0);
    let line = outcome.stdout.lines().find(|line| line.contains("--opt cpu.threads=INTEGER"));
    let line = line.unwrap_or_else(|| outcome.fail("no line about the option threads"));
    assert!(
        line.starts_with("option:") && line.ends_with("[a whole number from 0 to 1024; default: 0]"),
        "{line}"
    );
    let threads = &show(&["--json"]).json()["manifest"]["options"]["threads"];
    assert_eq!((&threads["type"], &threads["most"]), (&"integer".into(), &1024.into()), "{threads}");
}

#[test]
fn the_trees_own_plugins_are_told_about_without_opening_a_driver() {
    let sandbox = Sandbox::new();
    let trace = traced(&sandbox, |command| {
        command.args(["plugins", "list", "--all"]).without_env("TENSORFOLD_PLUGINS_FILE")
    });
    trace.outcome.exits(0);
    for backend in ["cpu", "cuda", "hip", "mlx"] {
        assert!(trace.outcome.stdout.contains(&format!("backend-{backend}")), "{}", trace.outcome.stdout);
    }
    let drivers = ["libcuda", "libamdhip64", "libmlx", "tensorfold_backend"];
    let mapped = trace.executable_files();
    let wrong: Vec<_> = mapped
        .iter()
        .filter(|path| drivers.iter().any(|driver| path.to_string_lossy().contains(driver)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    trace.touched_no_device();
}

#[test]
fn a_list_shows_one_plugin_a_line_and_ends_well_whatever_is_broken() {
    let (sandbox, _, _) = installed();
    let folder = sandbox.user_plugins();
    std::fs::write(folder.join("backend-torn.tensorfold.toml"), "manifest = 1\n[plugin\n").unwrap();
    std::fs::write(folder.join("backend-wild\u{1b}[2J\nname.tensorfold.toml"), "manifest = 1\n").unwrap();
    let outcome = sandbox.tensorfold(["plugins", "list"]).run();
    outcome.exits(0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    let line =
        |word: &str| lines.iter().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{lines:#?}"));
    for part in ["1.2.3", "successor", "admitted"] {
        assert!(line("backend-successor").contains(part), "{lines:#?}");
    }
    assert!(line("torn").contains("refused"));
    assert!(!outcome.stdout.contains('\u{1b}'), "a file's name cannot paint on the terminal");
    let again = sandbox.tensorfold(["plugins", "list"]).run();
    assert_eq!(again.stdout, outcome.stdout, "the output is stable");
}

#[test]
fn show_states_everything_about_one_plugin() {
    let (sandbox, _, plugin) = installed();
    let document = sandbox.tensorfold(["plugins", "show", "backend-successor", "--json"]).run().json();
    assert_eq!(document["plugin"]["version"], "1.2.3");
    assert_eq!(document["plugin"]["state"], "admitted");
    assert_eq!(document["library_sha256"], sha256(&plugin.library));
    for kind in ["mtp", "dflash", "dflash2"] {
        assert_eq!(document["drafters"][kind], false, "{kind} is always stated");
    }
    assert_eq!(document["families"][0]["model_type"], "qwen3_5");
    assert_eq!(document["manifest"]["plugin"]["report"], "https://example.invalid/successor");
    for name in ["successor", "counting"] {
        let text = sandbox.tensorfold(["plugins", "show", name]).run();
        text.exits(0);
        for part in ["backend-successor", "1.2.3", "dflash2", "qwen3_5"] {
            assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
        }
    }
    sandbox.tensorfold(["plugins", "show", "nonesuch"]).run().refused_with(&["nonesuch", "successor"]);
}

fn sha256(file: &Path) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(std::fs::read(file).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn why_a_drafter_is_not_offered_is_shown() {
    let sandbox = Sandbox::new();
    let library = built_with_the_workspace("tensorfold_backend_hip");
    let outcome = sandbox.tensorfold(["plugins", "show", "rocm", "--plugin"]).arg(&library).run();
    outcome.exits(0);
    let manifest =
        std::fs::read_to_string(workspace().join("plugins/backend-hip/tensorfold_plugin.toml")).unwrap();
    let reason =
        manifest.lines().find_map(|line| line.strip_prefix("dflash2 = \"")).unwrap().trim_end_matches('"');
    assert!(outcome.stdout.contains(reason), "{}", outcome.stdout);
}

#[test]
fn the_manifest_of_a_library_is_printed_as_it_is() {
    let sandbox = Sandbox::new();
    let plugin = successor();
    let library = plugin.library_in(&sandbox.plugins());
    let printed = sandbox.tensorfold(["plugins", "manifest", "--from"]).arg(&library).run();
    printed.exits(0);
    assert_eq!(printed.stdout, plugin.manifest());
    let text = sandbox.file("a.so", "no library");
    for file in [text.to_str().unwrap(), "/no/such.so"] {
        sandbox.tensorfold(["plugins", "manifest", "--from", file]).run().refused_with(&[file]);
    }
}

#[test]
fn the_folders_are_printed_one_a_line() {
    let sandbox = Sandbox::new();
    let all = sandbox.tensorfold(["plugins", "path"]).run();
    all.exits(0);
    let folders: Vec<&str> = all.stdout.lines().collect();
    assert!(
        folders.iter().all(|folder| folder.starts_with('/') && folder.ends_with("/tensorfold/backends0"))
    );
    assert!(folders[0].starts_with(sandbox.home().to_str().unwrap()), "the user's comes first");
    let install = sandbox.tensorfold(["plugins", "path", "--install"]).run();
    assert!(folders.contains(&install.exits(0).stdout.trim_end()));
}

#[test]
fn why_says_what_serve_would_say() {
    let (sandbox, marker, _) = installed();
    let model = demo_model().display().to_string();
    let compare = |flags: &[&str]| {
        let why = sandbox.tensorfold(["plugins", "why"]).args(flags).arg(&model).run();
        let serve = sandbox.tensorfold(["serve", "--port", "0"]).args(flags).arg(&model).run();
        assert_eq!(why.refusal(), serve.refusal());
    };
    compare(&["--backend", "successor", "--drafter", "a/b"]);
    compare(&["--backend", "successor", "--mtp-drafts", "3"]);
    compare(&["--backend", "successor", "--tp", "2", "--master", "10.0.0.1"]);
    compare(&["--backend", "successor", "--kv-dtype", "q4"]);
    compare(&["--backend", "nonesuch"]);
    assert!(!marker.exists());
    let accepted =
        sandbox.tensorfold(["plugins", "why", "--backend", "successor", "--json", &model]).run().json();
    assert_eq!(accepted["accepted"], true);
}

#[test]
fn pins_are_written_kept_and_enforced() {
    let (sandbox, marker, plugin) = installed();
    let lock = |extra: &[&str]| sandbox.tensorfold(["plugins", "lock"]).args(extra).run();
    let check = || sandbox.tensorfold(["plugins", "check", "--no-probe", "--json", "successor"]).run();
    let strict = sandbox.file("plugins.toml", "[policy]\nrequire_lock = true\n");
    let unpinned = check();
    unpinned.exits(1);
    assert_eq!(support::findings(&unpinned.document(), "error"), ["pin-mismatch"], "{}", unpinned.stdout);
    lock(&[]).exits(0);
    check().exits(0);
    std::fs::write(&strict, "").unwrap();
    // Another build of the plugin is refused although no policy asks for pins.
    let pinned = sha256(&plugin.library);
    faulty("").with_marker(&marker).define("DESCRIPTOR_SIZE=88").build_in(&sandbox.user_plugins());
    let found = sha256(&plugin.library);
    assert_ne!(pinned, found);
    let serve =
        sandbox.tensorfold(["serve", "--backend", "successor", "--port", "0"]).arg(demo_model()).run();
    serve.refused_with(&[&pinned[..12], &found[..12], "plugins.lock"]);
    assert!(!marker.exists(), "refused before its code runs");
    lock(&[]).exits(1);
    lock(&["--update"]).exits(0);
    check().exits(0);
}

#[test]
fn capabilities_state_what_each_plugin_can_draft() {
    let (sandbox, _, _) = installed();
    let document = sandbox.tensorfold(["capabilities", "--json"]).run().json();
    let text = document.to_string();
    assert!(text.contains("backend-successor") || text.contains("\"successor\""), "{document:#}");
    for kind in ["\"mtp\":false", "\"dflash\":false", "\"dflash2\":false"] {
        assert!(text.contains(kind), "{document:#}");
    }
}

#[test]
fn mistakes_of_the_command_line_end_with_2_and_a_usage_line() {
    let sandbox = Sandbox::new();
    for words in [&["plugins"][..], &["plugins", "lst"], &["plugins", "list", "--jsn"], &["plugins", "show"]]
    {
        let outcome = sandbox.tensorfold(words).run();
        outcome.exits(2);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains("error: "), "{outcome:?}");
    }
}

#[test]
fn where_to_look_may_stand_before_the_command_too() {
    let sandbox = Sandbox::new();
    let library = successor().library_in(&sandbox.plugins());
    let before = |words: &[&str]| sandbox.tensorfold(["--plugin"]).arg(&library).args(words).run();
    let listed = before(&["plugins", "list", "--json"]).json();
    assert_eq!(listed["plugins"][0]["id"], "backend-successor");
    before(&["--backend", "successor", "serve", "x", "--drafter", "a/b"])
        .refused_with(&["the Successor engine"]);
    // A flag that would mean nothing is not taken in silence.
    let outcome = before(&["--backend", "successor", "plugins", "list"]);
    outcome.exits(2);
    assert!(outcome.stderr.contains("--backend"), "{outcome:?}");
}
