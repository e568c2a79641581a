//! The verbs as a user sees them, over made folders. What lets plugin code run is tested with the program itself.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::plugins::catalog::tests::installed;

struct Ran {
    status: u8,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn run_at(root: &Path, words: &[&str]) -> Ran {
    let environment = Environment {
        config_home: Some(root.join("conf")),
        cache_home: Some(root.join("cache")),
        data_home: Some(root.join("data")),
        ..Environment::default()
    };
    let command =
        PluginsCommand::try_parse_from(std::iter::once("plugins").chain(words.iter().copied())).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run_verb(command, &environment, &mut Output { out: &mut out, err: &mut err }, root).unwrap();
    Ran { status, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

fn sidecar(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.tensorfold.toml"))
}

#[test]
fn list_is_sorted_and_ends_well_with_broken_plugins_present() {
    let (root, folder) = installed(&["backend-two", "backend-one"]);
    fs::write(sidecar(&folder, "backend-zero"), "nonsense = \n").unwrap();
    let ran = run_at(root.path(), &["list"]);
    assert_eq!(ran.status, 0);
    let names: Vec<_> = ran.out.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["backend-one", "backend-two", "backend-zero.tensorfold.toml"]);
    assert!(ran.out.lines().next().unwrap().contains("admitted"), "{}", ran.out);
    assert!(ran.out.lines().nth(2).unwrap().contains("refused"), "{}", ran.out);
}

#[test]
fn list_shows_hidden_plugins_only_when_asked() {
    let (root, _) = installed(&["backend-one"]);
    fs::create_dir_all(root.path().join("conf/tensorfold")).unwrap();
    fs::write(root.path().join("conf/tensorfold/plugins.toml"), "[plugin.backend-one]\nenabled = false\n")
        .unwrap();
    assert_eq!(run_at(root.path(), &["list"]).out, "");
    let all = run_at(root.path(), &["list", "--all"]);
    assert!(all.out.contains("switched off by"), "{}", all.out);
}

#[test]
fn list_as_a_document_carries_schema_state_and_times() {
    let (root, folder) = installed(&["backend-one"]);
    fs::remove_file(folder.join("libtensorfold_backend_one.so")).unwrap();
    let document = run_at(root.path(), &["list", "--json"]).json();
    assert_eq!(document["schema"], "tensorfold.plugins.list/1");
    let plugin = &document["plugins"][0];
    assert_eq!((plugin["id"].as_str(), plugin["state"].as_str()), (Some("backend-one"), Some("refused")));
    assert_eq!(plugin["code"], "library-missing");
    assert!(plugin["states"][0]["unix_milliseconds"].as_u64().unwrap() > 0);
    assert_eq!(plugin["findings"][0]["level"], "error");
}

#[test]
fn an_empty_list_says_where_was_looked() {
    let root = tempfile::tempdir().unwrap();
    let ran = run_at(root.path(), &["list"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, ""));
    assert!(ran.err.contains("usr/lib/tensorfold/backends0"), "{}", ran.err);
}

#[test]
fn a_folder_that_was_skipped_is_named_by_every_verb_that_then_finds_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let (root, folder) = installed(&["backend-one"]);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    for words in [&["show", "one"][..], &["check", "one"], &["why", "--backend", "one"]] {
        let ran = run_at(root.path(), words);
        assert_eq!(ran.status, 1, "{words:?}");
        let skipped = format!("[tensorfold] skipped: {}", folder.display());
        assert!(ran.err.contains(&skipped), "{words:?}: {}", ran.err);
    }
}

#[test]
fn show_states_every_drafter_kind_and_refuses_an_unknown_name() {
    let (root, _) = installed(&["backend-one"]);
    for name in ["backend-one", "one"] {
        let ran = run_at(root.path(), &["show", name]);
        assert_eq!(ran.status, 0);
        for line in ["mtp: false", "dflash: false", "dflash2: false", "qwen3_5"] {
            assert!(ran.out.contains(line), "{line}: {}", ran.out);
        }
    }
    let document = run_at(root.path(), &["show", "one", "--json"]).json();
    assert_eq!(document["drafters"]["dflash2"], false);
    assert_eq!(document["abi"]["tested"], true);
    assert_eq!(document["library_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(document["verdict"], Value::Null, "it was never tried");
    let ran = run_at(root.path(), &["show", "nobody"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.starts_with("tensorfold: ") && ran.err.contains("one"), "{}", ran.err);
}

#[test]
fn check_without_a_probe_prints_every_finding_and_refuses() {
    let (root, folder) = installed(&["backend-one"]);
    let ran = run_at(root.path(), &["check", "one", "--no-probe"]);
    assert_eq!((ran.status, ran.out.contains("result: ok")), (0, true), "{}{}", ran.out, ran.err);
    let text = fs::read_to_string(sidecar(&folder, "backend-one")).unwrap();
    let other = text.replace("\"bf16\"", "\"f16\"").replace("libc = \"gnu\"", "libc = \"musl\"");
    fs::write(sidecar(&folder, "backend-one"), other).unwrap();
    let ran = run_at(root.path(), &["check", "one", "--no-probe"]);
    assert_eq!(ran.status, 1);
    assert!(ran.out.contains("manifest-mismatch") && ran.out.contains("libc-too-old"), "{}", ran.out);
}

#[test]
fn strict_turns_notes_and_link_rules_into_errors() {
    let (root, folder) = installed(&["backend-one"]);
    let text = fs::read_to_string(sidecar(&folder, "backend-one")).unwrap();
    fs::write(sidecar(&folder, "backend-one"), text + "\n[colours]\nred = 1\n").unwrap();
    let loose = run_at(root.path(), &["check", "one", "--no-probe"]);
    assert_eq!(loose.status, 0, "{}", loose.out);
    assert!(loose.out.contains("note:") && loose.out.contains("colours"), "{}", loose.out);
    let strict = run_at(root.path(), &["check", "one", "--no-probe", "--strict", "--json"]);
    assert_eq!((strict.status, strict.json()["ok"].as_bool()), (1, Some(false)));
}

#[test]
fn check_takes_a_file_wherever_it_lies() {
    let (root, folder) = installed(&["backend-one"]);
    let elsewhere = root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let library = elsewhere.join("libtensorfold_backend_one.so");
    fs::copy(folder.join("libtensorfold_backend_one.so"), &library).unwrap();
    let ran = run_at(root.path(), &["check", library.to_str().unwrap(), "--no-probe"]);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    let ran = run_at(root.path(), &["check", "/nonexistent/x.so", "--no-probe"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("/nonexistent/x.so"), "{}", ran.err);
}

#[test]
fn path_prints_the_folders_and_the_one_to_install_into() {
    let root = tempfile::tempdir().unwrap();
    let ran = run_at(root.path(), &["path"]);
    assert!(
        ran.out.lines().count() >= 4 && ran.out.lines().all(|line| line.ends_with("tensorfold/backends0"))
    );
    let install = run_at(root.path(), &["path", "--install"]);
    assert_eq!(install.out.lines().count(), 1);
    assert!(ran.out.contains(install.out.trim()));
}

#[test]
fn a_manifest_is_printed_as_its_sidecar_must_be() {
    let (root, folder) = installed(&["backend-one"]);
    let library = folder.join("libtensorfold_backend_one.so");
    let ran = run_at(root.path(), &["manifest", "--from", library.to_str().unwrap()]);
    assert_eq!((ran.status, ran.out), (0, fs::read_to_string(sidecar(&folder, "backend-one")).unwrap()));
    let ran = run_at(root.path(), &["manifest", "--from", sidecar(&folder, "backend-one").to_str().unwrap()]);
    assert_eq!(ran.status, 1);
}

#[test]
fn lock_pins_once_and_replaces_only_when_told() {
    let (root, folder) = installed(&["backend-one"]);
    let first = run_at(root.path(), &["lock"]);
    assert_eq!(first.status, 0, "{}", first.err);
    assert!(first.out.contains("backend-one 1.2.3"), "{}", first.out);
    let again = run_at(root.path(), &["lock"]);
    assert_eq!(again.out.lines().count(), 1, "nothing new: {}", again.out);
    let text = fs::read_to_string(sidecar(&folder, "backend-one")).unwrap();
    fs::write(sidecar(&folder, "backend-one"), format!("# a comment\n{text}")).unwrap();
    assert!(run_at(root.path(), &["list"]).out.contains("refused"), "a pin that differs refuses");
    let ran = run_at(root.path(), &["lock"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("--update"), "{}", ran.err);
    assert_eq!(run_at(root.path(), &["lock", "--update"]).status, 0);
    assert!(run_at(root.path(), &["list"]).out.contains("admitted"));
}

#[test]
fn why_prints_the_refusal_that_serve_would() {
    let (root, _) = installed(&["backend-one"]);
    let ran = run_at(root.path(), &["why", "--backend", "one"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "accepted: backend-one\n"), "{}", ran.err);
    let ran = run_at(root.path(), &["why", "--backend", "one", "--drafter", "z-lab/Qwen3.8-27B-DFlash2"]);
    assert_eq!(ran.status, 1);
    assert_eq!(
        ran.err,
        "tensorfold: --drafter: the ONE engine runs no DFlash2 drafter yet; serve without --drafter\n"
    );
    let ran = run_at(root.path(), &["why", "--backend", "none"]);
    assert_eq!(ran.status, 1);
    let ran = run_at(root.path(), &["why", "--tp", "x"]);
    assert_eq!(ran.status, 2);
    let document = run_at(root.path(), &["why", "--json"]).json();
    assert_eq!(
        (document["accepted"].as_bool(), document["plugin"]["id"].as_str()),
        (Some(true), Some("backend-one"))
    );
}

#[test]
fn looking_makes_no_file() {
    let (root, _) = installed(&["backend-one"]);
    for words in [&["list"][..], &["show", "one"], &["path"], &["why", "--backend", "one"]] {
        run_at(root.path(), words);
    }
    assert!(!root.path().join("conf").exists() && !root.path().join("cache").exists());
}

#[test]
fn verbs_parse_with_search_options_before_and_after() {
    for words in [["plugins", "--plugin-path", "/d", "list"], ["plugins", "list", "--plugin-path", "/d"]] {
        let command = PluginsCommand::try_parse_from(words).unwrap();
        assert_eq!(command.search.plugin_paths, [PathBuf::from("/d")]);
    }
    assert!(PluginsCommand::try_parse_from(["plugins", "fly"]).is_err());
}
