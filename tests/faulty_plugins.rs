//! Faulty plugins: each gives its named code to `plugins check` and one sane line to `serve`, and whatever a plugin
//! does, the program itself never ends by a signal.

mod support;

use std::path::{Path, PathBuf};

use support::server::Server;
use support::{BuiltPlugin, NativePlugin, Outcome, Sandbox, demo_model, faulty, findings, thrower};

/// What is to be seen of a faulty plugin.
struct Expected {
    /// The code of the first error.
    code: &'static str,
    /// What the message of `serve` holds.
    words: &'static [&'static str],
}

fn check(sandbox: &Sandbox, file: &Path) -> Outcome {
    sandbox.tensorfold(["plugins", "check", "--json"]).arg(file).run()
}

fn serve(sandbox: &Sandbox, file: &Path) -> Outcome {
    sandbox
        .tensorfold(["serve", "--backend", "successor", "--port", "0", "--plugin"])
        .arg(file)
        .arg(demo_model())
        .run()
}

/// Checks a faulty plugin by its sidecar and serves it by its library, each in a home of its own: a crash is
/// remembered, and then nothing is tried.
#[track_caller]
fn expect(plugin: &BuiltPlugin, expected: &Expected) {
    has_code(&check(&Sandbox::new(), &plugin.sidecar), expected.code);
    serve(&Sandbox::new(), &plugin.library).refused_with(expected.words);
}

#[track_caller]
fn has_code(outcome: &Outcome, code: &str) {
    outcome.exits(1);
    let errors = findings(&outcome.document(), "error");
    if errors.first().map(String::as_str) != Some(code) {
        outcome.fail(format!("wanted the code {code} first, found {errors:?}"));
    }
}

/// Builds with one fault and looks at it.
#[track_caller]
fn fault(switch: &str, code: &'static str, words: &'static [&'static str]) {
    let folder = tempfile::tempdir().unwrap();
    expect(&faulty(switch).build_in(folder.path()), &Expected { code, words });
}

const NAME: &str = "plugin backend-successor 1.2.3 (";

#[test]
fn the_same_plugin_without_a_fault_is_sound() {
    let sandbox = Sandbox::new();
    let plugin = faulty("").build_in(&sandbox.plugins());
    for file in [&plugin.library, &plugin.sidecar] {
        let outcome = check(&sandbox, file);
        assert_eq!(findings(&outcome.json(), "error"), Vec::<String>::new());
    }
}

#[test]
fn a_library_that_cannot_be_opened_is_named_with_the_linkers_words() {
    fault("UNDEFINED_SYMBOL", "dlopen-failed", &[NAME, "tensorfold_tests_defined_nowhere"]);
    fault("CONSTRUCTOR_CRASHES", "dlopen-failed", &[NAME, "signal 11"]);
}

#[test]
fn a_library_it_is_linked_against_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let stub = folder.path().join("libtensorfold-tests-not-there.so.9");
    let made = std::process::Command::new("gcc")
        .args(["-shared", "-nostdlib", "-Wl,-soname,libtensorfold-tests-not-there.so.9", "-o"])
        .arg(&stub)
        .args(["-x", "c", "/dev/null"])
        .status();
    assert!(made.unwrap().success());
    let plugin =
        faulty("").flag("-Wl,--no-as-needed").flag(stub.display().to_string()).build_in(folder.path());
    std::fs::remove_file(&stub).unwrap();
    let sandbox = Sandbox::new();
    let outcome = check(&sandbox, &plugin.library);
    outcome.exits(1);
    let errors = findings(&outcome.document(), "error");
    assert!(errors.iter().any(|code| code == "needs-library" || code == "dlopen-failed"), "{errors:?}");
    serve(&sandbox, &plugin.library).refused_with(&[NAME, "libtensorfold-tests-not-there.so.9"]);
}

#[test]
fn a_descriptor_that_is_none_is_not_believed() {
    fault("MAGIC=0x1122334455667788", "bad-magic", &[NAME, "0x1122334455667788"]);
    fault("DESCRIPTOR_SIZE=16", "bad-magic", &[NAME, "16"]);
    fault("NO_LOOKUP", "bad-magic", &[NAME, "get_interface"]);
    fault("NO_DESCRIPTOR", "not-a-plugin", &[NAME, "tensorfold_plugin_v1"]);
}

#[test]
fn a_descriptor_of_another_build_is_refused_with_both_values() {
    fault("DESCRIPTOR_MAJOR=7", "descriptor-mismatch", &[NAME, "abi.major", "wanted 0, found 7"]);
    fault("DESCRIPTOR_MINOR=9", "descriptor-mismatch", &[NAME, "abi.minor", "wanted 1, found 9"]);
    fault("DESCRIPTOR_VERSION=\"9.9.9\"", "descriptor-mismatch", &[NAME, "plugin.version", "found 9.9.9"]);
    fault("OTHER_MANIFEST_IN_DESCRIPTOR", "manifest-mismatch", &[NAME]);
    fault("NO_MANIFEST_IN_DESCRIPTOR", "descriptor-mismatch", &[NAME, "manifest"]);
}

#[test]
fn a_manifest_that_lies_beside_its_library_is_refused_and_no_code_runs() {
    let sandbox = Sandbox::new();
    let marker = sandbox.path().join("marker");
    let plugin = faulty("").with_marker(&marker).build_in(&sandbox.plugins());
    let honest = std::fs::read_to_string(&plugin.sidecar).unwrap();
    let lie = honest.replace("\"bf16\", \"f16\"", "\"bf16\", \"fp8\"");
    assert_ne!(lie, honest);
    std::fs::write(&plugin.sidecar, lie).unwrap();
    has_code(&check(&sandbox, &plugin.sidecar), "manifest-mismatch");
    serve(&sandbox, &plugin.sidecar).refused_with(&[NAME, "caps.formats", "fp8"]);
    assert!(!marker.exists());
    // What a packager may change is no lie.
    std::fs::write(&plugin.sidecar, format!("{honest}\n[distro]\npackage = \"tensorfold-successor\"\n"))
        .unwrap();
    check(&sandbox, &plugin.sidecar).exits(0);
    assert!(marker.exists(), "the marker works");
}

#[test]
fn tables_that_are_missing_short_or_full_of_holes_are_not_called() {
    fault("NO_ENGINE_TABLE", "interface-missing", &[NAME, "tensorfold.engine/1"]);
    fault("NO_BACKEND_TABLE", "interface-missing", &[NAME, "tensorfold.backend/1"]);
    fault("NO_ROUND", "layout-mismatch", &[NAME, "round"]);
    fault("NO_RELEASE_ERROR", "layout-mismatch", &[NAME, "release_error"]);
    fault("ENGINE_SIZE=64", "layout-mismatch", &[NAME, "tensorfold.engine/1", "64"]);
    fault("BACKEND_SIZE=8", "layout-mismatch", &[NAME, "tensorfold.backend/1", "8"]);
}

#[test]
fn an_init_that_fails_is_reported_in_the_plugins_words_on_one_line() {
    for (status, name) in [
        (-1, "invalid-argument"),
        (-2, "unsupported"),
        (-4, "permission"),
        (-5, "out-of-memory"),
        (-6, "device-lost"),
        (-11, "panicked"),
        // Statuses that nobody knows, and one that is none.
        (-99, "internal"),
        (5, "internal"),
    ] {
        let sandbox = Sandbox::new();
        let plugin = faulty(&format!("INIT_STATUS={status}")).build_in(&sandbox.plugins());
        let outcome = check(&sandbox, &plugin.library);
        has_code(&outcome, "init-failed");
        assert!(outcome.stdout.contains(name), "{status}: {}", outcome.stdout);
    }
    fault("INIT_STATUS=-10", "init-failed", &[NAME, "asked to fail in "]);
    fault("INIT_STATUS=-12", "runtime-missing", &[NAME, "asked to fail"]);
    fault("INIT_STATUS_IN_SILENCE=-5", "init-failed", &[NAME, "out-of-memory"]);
    fault("INIT_ERROR_IS_GARBAGE", "init-failed", &[NAME]);
}

#[test]
fn an_init_that_ends_the_process_ends_only_the_one_it_is_tried_in() {
    fault("INIT_CRASHES", "init-failed", &[NAME, "init", "signal 11"]);
    fault("INIT_ABORTS", "init-failed", &[NAME, "init", "signal 6"]);
    fault("INIT_EXITS=3", "init-failed", &[NAME, "init", "status 3"]);
    fault("INIT_EXITS=0", "init-failed", &[NAME, "init", "status 0"]);
}

#[test]
fn an_init_that_hangs_is_given_up_on_and_after_the_second_time_not_tried_again() {
    let sandbox = Sandbox::new();
    let plugin = faulty("INIT_HANGS").build_in(&sandbox.plugins());
    let check = |extra: &[&str]| {
        let words = ["plugins", "check", "--json", "--limit", "1"];
        sandbox.tensorfold(words).args(extra).arg(&plugin.library).run()
    };
    for code in ["init-timeout", "init-timeout", "quarantined"] {
        has_code(&check(&[]), code);
    }
    // What is in quarantine is refused at once, without a wait.
    let served = serve(&sandbox, &plugin.library);
    served.refused_with(&[NAME, "--retry"]);
    has_code(&check(&["--retry"]), "init-timeout");
}

#[test]
fn a_crash_is_remembered_until_the_file_changes_or_somebody_asks_again() {
    let sandbox = Sandbox::new();
    let plugin = faulty("INIT_CRASHES").build_in(&sandbox.plugins());
    serve(&sandbox, &plugin.library).refused_with(&[NAME, "signal 11"]);
    let again = serve(&sandbox, &plugin.library);
    again.refused_with(&[NAME, "--retry"]);
    let listed = sandbox.tensorfold(["plugins", "list", "--json", "--plugin"]).arg(&plugin.library).run();
    assert!(listed.json().to_string().contains("quarantined"), "{}", listed.stdout);
    has_code(
        &sandbox.tensorfold(["plugins", "check", "--retry", "--json"]).arg(&plugin.library).run(),
        "init-failed",
    );
    // A new build of the plugin is another file, whatever happened before.
    faulty("").build_in(&sandbox.plugins());
    check(&sandbox, &plugin.library).exits(0);
}

#[test]
fn noise_on_standard_output_does_not_reach_the_document() {
    let sandbox = Sandbox::new();
    let plugin = faulty("INIT_WRITES_TO_STDOUT").build_in(&sandbox.plugins());
    let outcome = check(&sandbox, &plugin.library);
    assert_eq!(findings(&outcome.json(), "error"), Vec::<String>::new());
}

#[test]
fn a_thread_that_outlives_shutdown_is_a_finding() {
    let sandbox = Sandbox::new();
    let plugin = faulty("THREAD_LEFT_RUNNING").build_in(&sandbox.plugins());
    let outcome = check(&sandbox, &plugin.library);
    let mut all = findings(&outcome.document(), "error");
    all.extend(findings(&outcome.document(), "warning"));
    assert_eq!(all, ["shutdown-failed"], "{}", outcome.stdout);
}

#[test]
fn a_shutdown_that_fails_is_a_finding_and_a_crash_in_it_too() {
    for switch in ["SHUTDOWN_FAILS", "SHUTDOWN_CRASHES"] {
        let sandbox = Sandbox::new();
        let plugin = faulty(switch).build_in(&sandbox.plugins());
        let outcome = check(&sandbox, &plugin.library);
        let document = outcome.document();
        let all = [findings(&document, "error"), findings(&document, "warning")].concat();
        assert!(all.iter().any(|code| code == "shutdown-failed"), "{switch}: {}", outcome.stdout);
    }
}

#[test]
fn a_shutdown_that_hangs_does_not_keep_the_server() {
    let sandbox = Sandbox::new();
    let plugin = faulty("SHUTDOWN_HANGS").build_in(&sandbox.plugins());
    let words = ["plugins", "check", "--json", "--limit", "1"];
    has_code(&sandbox.tensorfold(words).arg(&plugin.library).run(), "shutdown-failed");
    // Untried, it serves as well as any, and what was said to it last costs five seconds.
    let words = ["serve", "--backend", "successor", "--probe", "never", "--plugin"].map(String::from);
    let invocation = sandbox.tensorfold(words).arg(&plugin.library).arg(demo_model());
    let server = Server::start(invocation).unwrap_or_else(|said| panic!("{said}"));
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("did not end well"), "{said}");
}

#[test]
fn a_round_that_hangs_does_not_keep_the_server() {
    let sandbox = Sandbox::new();
    let plugin = faulty("ROUND_HANGS").build_in(&sandbox.plugins());
    let words = ["serve", "--backend", "successor", "--plugin"].map(String::from);
    let server = Server::start(sandbox.tensorfold(words).arg(&plugin.library).arg(demo_model()));
    let server = server.unwrap_or_else(|said| panic!("{said}"));
    let request = serde_json::json!({"model": "demo", "prompt": "a", "max_tokens": 4});
    let waiting = server.begin_post("/v1/completions", &request);
    server.wait_until_said("the round hangs");
    let (_, said) = server.stop();
    drop(waiting);
    assert!(said.contains("the round hangs"), "{said}");
}

#[test]
fn a_panic_in_a_round_fails_the_request_and_not_the_program() {
    let sandbox = Sandbox::new();
    let library = support::built_with_the_workspace("tensorfold_test_panicking");
    let words = ["serve", "--backend", "panicking", "--opt", "panicking.panic-in=round", "--plugin"];
    let invocation = sandbox.tensorfold(words).arg(&library).arg(demo_model());
    let server = Server::start(invocation).unwrap_or_else(|said| panic!("{said}"));
    let request = serde_json::json!({"model": "demo", "prompt": "a", "max_tokens": 4});
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 500, "{}", answer.body);
    let (_, said) = server.stop();
    assert!(said.contains("asked to panic in round"), "{said}");
}

#[test]
fn lists_of_devices_are_not_believed_blindly() {
    let sandbox = Sandbox::new();
    let report = |switch: &str| {
        let folder = sandbox.folder(&format!("plugins-{}", switch.replace('=', "-")));
        check(&sandbox, &faulty(switch).build_in(&folder).library)
    };
    has_code(&report("NO_DEVICES"), "no-device");
    has_code(&report("DEVICES_FAIL"), "init-failed");
    for lie in [
        "COUNT_OF_DEVICES_IS_A_LIE=70",
        "COUNT_OF_DEVICES_IS_A_LIE=0xffffffffffffffff",
        "DEVICES_ARE_GARBAGE=1",
    ] {
        let outcome = report(lie);
        has_code(&outcome, "init-failed");
        assert!(outcome.stdout.contains("list_devices"), "{}", outcome.stdout);
    }
}

#[test]
fn what_a_plugin_calls_its_devices_cannot_paint_on_a_terminal() {
    let sandbox = Sandbox::new();
    let plugin = faulty("DEVICES_ARE_GARBAGE=sizeof(TfDeviceInfo)").build_in(&sandbox.plugins());
    let outcome = sandbox.tensorfold(["plugins", "check"]).arg(&plugin.library).run();
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.status.code().is_some() && !said.contains('\u{1b}'), "{said:?}");
    let served = serve(&sandbox, &plugin.library);
    assert!(!served.refusal().is_empty());
}

#[test]
fn an_engine_that_refuses_what_its_manifest_declares_has_lied() {
    let serve = |switch: &str| {
        let sandbox = Sandbox::new();
        let plugin = faulty(switch).build_in(&sandbox.plugins());
        serve(&sandbox, &plugin.library)
    };
    serve("REFUSES_WHAT_IT_DECLARES").refused_with(&[NAME, "too hard to count"]);
    serve("NO_MEMORY_FOR_THE_MODEL").refused_with(&[NAME, "wanted 2 GiB, found 1 GiB"]);
}

#[test]
fn answers_of_a_round_that_cannot_be_true_end_the_engine_and_not_the_program() {
    for (switch, part) in [
        ("ROUND_GIVES_TOO_MANY_TOKENS", "1048576"),
        ("ROUND_GIVES_NO_TOKEN", "0 draws"),
        ("ROUND_LEAVES_THE_VOCABULARY", "4294967295"),
        ("ROUND_IS_ELSEWHERE", "position"),
        ("ROUND_ACCEPTS_WHAT_WAS_NOT_DRAFTED", "3 of 0 drafts"),
        ("ROUND_FAILS=-6", "lost count"),
    ] {
        let sandbox = Sandbox::new();
        let plugin = faulty(switch).build_in(&sandbox.plugins());
        let words = ["serve", "--backend", "successor", "--plugin"].map(String::from);
        let invocation = sandbox.tensorfold(words).arg(&plugin.library).arg(demo_model());
        let server = Server::start(invocation).unwrap_or_else(|said| panic!("{switch}: {said}"));
        let request = serde_json::json!({"model": "demo", "prompt": "a", "max_tokens": 4});
        let answer = server.post("/v1/completions", &request);
        assert_eq!(answer.status, 500, "{switch}: {}", answer.body);
        // The engine takes no more work, says so, and the program still ends well.
        assert!(server.post("/v1/completions", &request).status >= 500, "{switch}");
        assert_ne!(server.get("/health").status, 200, "{switch}");
        let (_, said) = server.stop();
        assert!(said.contains(part), "{switch}: {said}");
    }
}

#[test]
fn plugins_of_other_contracts_are_told_from_their_manifest() {
    let build = |change: fn(NativePlugin) -> NativePlugin| {
        let sandbox = Sandbox::new();
        let marker = sandbox.path().join("marker");
        let plugin = change(faulty("").with_marker(&marker)).build_with_plain_sidecar(&sandbox.plugins());
        (sandbox, plugin, marker)
    };
    type Change = fn(NativePlugin) -> NativePlugin;
    let cases: [(Change, &str, &[&str]); 6] = [
        // From the future: before the freeze minors must be equal.
        (
            |plugin| {
                plugin
                    .replace("minor = 1", "minor = 2\nmin_host_minor = 1")
                    .define("DESCRIPTOR_MINOR=2")
                    .define("DESCRIPTOR_MIN_HOST_MINOR=1")
                    .define("DESCRIPTOR_SIZE=4096")
                    .define("ENGINE_SIZE=4096")
            },
            "abi-mismatch",
            &["0.2", "0.1"],
        ),
        (
            |plugin| plugin.replace("major = 0", "major = 2").define("DESCRIPTOR_MAJOR=2"),
            "abi-mismatch",
            &["2"],
        ),
        // From the past.
        (
            |plugin| plugin.replace("minor = 1", "minor = 0").define("DESCRIPTOR_MINOR=0"),
            "abi-mismatch",
            &["0.0", "0.1"],
        ),
        (|plugin| plugin.replace("manifest = 1", "manifest = 2"), "manifest-too-new", &["manifest"]),
        (
            |plugin| plugin.replace("manifest = 1\n", "manifest = 1\nrequires = [\"time-travel\"]\n"),
            "requires-unknown",
            &["time-travel"],
        ),
        (|plugin| plugin.replace("[abi]\n", "[abi]\nhost = \">=7, <8\"\n"), "host-range", &[">=7"]),
    ];
    for (change, code, words) in cases {
        let (sandbox, plugin, marker) = build(change);
        has_code(&check(&sandbox, &plugin.library), code);
        serve(&sandbox, &plugin.library).refused_with(words);
        assert!(!marker.exists(), "{code}: refused from the manifest alone");
    }
}

#[test]
fn a_plugin_of_the_future_that_stays_within_this_contract_is_taken() {
    // Larger structs, tables and keys that this host does not know, words that it does not know.
    let plugin = faulty("DESCRIPTOR_SIZE=144")
        .define("ENGINE_SIZE=192")
        .define("BACKEND_SIZE=136")
        .replace("\"tensorfold.engine/1\"]", "\"tensorfold.engine/1\", \"tensorfold.dreams/3\"]")
        .replace("features = [", "features = [\"telepathy\", ")
        .append("\n[dreams]\nlucid = true\n");
    let sandbox = Sandbox::new();
    let built = plugin.build_in(&sandbox.plugins());
    let outcome = check(&sandbox, &built.library);
    assert_eq!(findings(&outcome.json(), "error"), Vec::<String>::new());
    for unknown in ["tensorfold.dreams/3", "telepathy", "dreams"] {
        assert!(outcome.stdout.contains(unknown), "{unknown} is noted: {}", outcome.stdout);
    }
    sandbox.tensorfold(["plugins", "check", "--strict"]).arg(&built.library).run().exits(1);
}

#[test]
fn files_that_are_no_plugin_are_told_from_their_bytes() {
    let sandbox = Sandbox::new();
    let sound = faulty("").build_in(&sandbox.plugins());
    let bytes = std::fs::read(&sound.library).unwrap();
    let with = |name: &str, content: &[u8]| {
        let folder = sandbox.folder(name);
        let library = folder.join(sound.library.file_name().unwrap());
        std::fs::write(&library, content).unwrap();
        let sidecar = folder.join(sound.sidecar.file_name().unwrap());
        std::fs::copy(&sound.sidecar, &sidecar).unwrap();
        (library, sidecar)
    };
    let mut foreign = bytes.clone();
    foreign[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let cases: [(&str, &[u8], &str); 6] = [
        ("for another processor", &foreign, "wrong-arch"),
        ("cut off", &bytes[..bytes.len() / 3], "not-a-plugin"),
        ("cut off in its header", &bytes[..40], "not-a-plugin"),
        ("a text", b"#!/bin/sh\necho I am a plugin\n", "not-a-plugin"),
        ("empty", b"", "not-a-plugin"),
        ("zeroes", &[0; 4096], "not-a-plugin"),
    ];
    for (name, content, code) in cases {
        let (library, sidecar) = with(name, content);
        has_code(&check(&sandbox, &sidecar), code);
        serve(&sandbox, &sidecar).refused_with(&[NAME]);
        // Named directly there is no manifest to read, but still one line.
        let outcome = serve(&sandbox, &library);
        assert!(!outcome.refusal().is_empty(), "{name}");
    }
    let (library, sidecar) = with("gone", b"");
    std::fs::remove_file(library).unwrap();
    has_code(&check(&sandbox, &sidecar), "library-missing");
}

#[test]
fn an_executable_stack_is_refused_before_loading() {
    let sandbox = Sandbox::new();
    let marker = sandbox.path().join("marker");
    let plugin = faulty("").with_marker(&marker).flag("-Wl,-z,execstack").build_in(&sandbox.plugins());
    has_code(&check(&sandbox, &plugin.library), "needs-library");
    serve(&sandbox, &plugin.library).refused_with(&[NAME, "executable stack"]);
    assert!(!marker.exists());
}

#[test]
fn bytes_turned_over_anywhere_in_the_library_never_end_the_program() {
    // The host reads this file itself before anybody else does.
    let sandbox = Sandbox::new();
    let sound = faulty("").build_in(&sandbox.plugins());
    let bytes = std::fs::read(&sound.library).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..24 {
        let mut damaged = bytes.clone();
        for _ in 0..16 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Half of them in the headers and tables at the beginning.
            let reach = if random & 1 == 0 { 4096 } else { damaged.len() };
            let place = (random >> 33) as usize % reach;
            damaged[place] ^= (random >> 24) as u8 | 1;
        }
        std::fs::write(&sound.library, damaged).unwrap();
        let outcome = sandbox
            .tensorfold(["plugins", "show", "--json", "backend-successor", "--plugin"])
            .arg(&sound.sidecar)
            .run();
        assert!(outcome.status.code().is_some(), "round {round}: {outcome:?}");
    }
}

#[test]
fn exceptions_of_cpp_become_a_status_where_they_are_caught() {
    let sandbox = Sandbox::new();
    let report = |switch: &str| {
        let folder = sandbox.folder(&format!("plugins-{switch}"));
        check(&sandbox, &thrower(switch).build_in(&folder).library)
    };
    let caught = report("THROWS_IN_INIT");
    has_code(&caught, "init-failed");
    assert!(caught.stdout.contains("init threw") && caught.stdout.contains("panicked"), "{}", caught.stdout);
    // One that leaves a function ends the process it happens in: the one in which the plugin is tried.
    let passed = report("LETS_IT_PASS");
    has_code(&passed, "init-failed");
    assert!(passed.stdout.contains("signal 6") && passed.stdout.contains("init threw"), "{}", passed.stdout);
    let in_the_list = report("");
    has_code(&in_the_list, "init-failed");
    assert!(in_the_list.stdout.contains("list_devices"), "{}", in_the_list.stdout);
}

#[test]
fn a_panic_in_rust_becomes_a_finding() {
    let sandbox = Sandbox::new();
    let library = support::built_with_the_workspace("tensorfold_test_panicking");
    let configured = |call: &str| -> PathBuf {
        sandbox.file(
            &format!("{call}.toml"),
            format!("[plugin.backend-panicking.options]\npanic-in = \"{call}\"\n"),
        )
    };
    for call in ["init", "list_devices"] {
        let outcome = sandbox
            .tensorfold(["plugins", "check", "--json"])
            .arg(&library)
            .arg("--plugins-file")
            .arg(configured(call))
            .run();
        has_code(&outcome, "init-failed");
        assert!(outcome.stdout.contains(&format!("asked to panic in {call}")), "{}", outcome.stdout);
    }
    check(&sandbox, &library).exits(0);
}

#[test]
fn a_table_of_another_layout_is_refused_before_init() {
    let sandbox = Sandbox::new();
    let library = support::built_with_the_workspace("tensorfold_test_misshapen");
    let outcome = check(&sandbox, &library);
    has_code(&outcome, "layout-mismatch");
    for part in ["tensorfold.engine/1", "u64", "u32"] {
        assert!(outcome.stdout.contains(part), "{}", outcome.stdout);
    }
    sandbox
        .tensorfold(["serve", "--backend", "misshapen", "--plugin"])
        .arg(&library)
        .arg(demo_model())
        .run()
        .refused_with(&["plugin backend-misshapen 1.2.3 (", "tensorfold.engine/1"]);
}
