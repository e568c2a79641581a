//! Drafters that are named, judged by a host that drives every kind: the plugins in the tree run none.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensorfold_plugin_api::vocabulary::{DrafterKind, GivenFlags};

use super::admission::{Admitted, judge};
use crate::checkpoint::Resolved;
use crate::cli::arguments::ModelArguments;
use crate::cli::hub::Located;
use crate::plugins::admit::HostFacts;
use crate::plugins::catalog::tests::{find, installed_with};
use crate::plugins::testing::manifest_text;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo");
const DEMO_DRAFTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo-DFlash2");
macro_rules! golden {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/", $name)
    };
}

const SECOND: &str = "[drafters.dflash2]\nrevision = { min = 1, max = 1 }\nblock_max = 8\n";

/// What `serve` says of this model and drafter with a plugin that declares `drafters`.
fn judged(drafters: &str, model: &str, drafter: &str, driven: &[DrafterKind]) -> Result<Admitted, String> {
    let manifest = manifest_text("backend-one")
        .replace("formats = [\"bf16\"]", "formats = [\"bf16\", \"mlx-q4\"]")
        .replace("\"tensorfold.engine/1\"", "\"tensorfold.engine/1\", \"tensorfold.dflash/1\"")
        + drafters;
    let (root, _) = installed_with(&[("backend-one", manifest)]);
    let arguments = ModelArguments {
        model: model.into(),
        flags: GivenFlags::from_pairs([("--drafter", Some(drafter))]).unwrap(),
        json: false,
    };
    let host = HostFacts { drafters: driven.to_vec(), ..HostFacts::of_this_program() };
    judge(&arguments, find(root.path()), 0, Vec::new(), None, &host).map_err(|failure| failure.message)
}

fn says(drafters: &str, model: &str, drafter: &str) -> String {
    match judged(drafters, model, drafter, DrafterKind::ALL) {
        Ok(_) => "served".to_owned(),
        Err(message) => message,
    }
}

/// A folder with a configuration and nothing else.
fn folder(config: &Value) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.json"), config.to_string()).unwrap();
    root
}

#[test]
fn a_drafter_that_fits_is_admitted_and_can_be_opened() {
    let mut admitted = judged(SECOND, DEMO, DEMO_DRAFTER, DrafterKind::ALL).unwrap();
    let drafter = admitted.drafter.take().expect("it was named");
    assert!(!drafter.is_remote());
    assert_eq!(drafter.open().unwrap().drafter().directory, Path::new(DEMO_DRAFTER));
    let none = judged(SECOND, DEMO, "none", DrafterKind::ALL).unwrap();
    assert!(none.drafter.is_none());
}

#[test]
fn all_that_does_not_fit_stands_in_one_line() {
    let other = concat!(golden!("dflash/v2-qwen"), "/drafter");
    assert_eq!(
        says(SECOND, DEMO, other),
        format!(
            "--drafter {other}: hidden size 128, but the target's is 384; vocabulary 1024, but the target's is 8192; \
             made for a target of 16 layers; this one has 12; taps layer 13; the target's last is 11"
        )
    );
}

#[test]
fn a_plugin_that_runs_none_refuses_before_anything_is_looked_for() {
    let refusal = "--drafter: the ONE engine runs no DFlash2 drafter yet; serve without --drafter";
    assert_eq!(says("", "/no/model", "/no/drafter"), refusal);
    // Nor does a host look that drives none of the kinds.
    let undriven = judged(SECOND, "/no/model", "/no/drafter", &[]).err().unwrap();
    assert!(undriven.starts_with("--drafter") && !undriven.contains("/no/drafter"), "{undriven}");
}

#[test]
fn the_kind_that_was_found_is_named_before_the_model_is_looked_for() {
    let kind =
        |name: &str| format!("--drafter: the ONE engine runs no {name} drafter yet; serve without --drafter");
    let first = concat!(golden!("dflash/v1-full"), "/drafter");
    assert_eq!(says(SECOND, "/no/model", first), kind("DFlash"));
    for (config, name) in [
        (json!({"architectures": ["Qwen3DSparkModel"]}), "DSpark"),
        (json!({"architectures": ["LlamaForCausalLMEagle3"]}), "EAGLE3"),
        (json!({"architectures": ["EagleLlamaForCausalLM"]}), "EAGLE"),
    ] {
        let root = folder(&config);
        let path = root.path().display().to_string();
        assert_eq!(says(SECOND, "/no/model", &path), kind(name));
        // A plugin may list what this host does not read.
        let id = name.to_ascii_lowercase();
        let listed = format!("[drafters.{id}]\nrevision = {{ min = 1, max = 1 }}\nblock_max = 8\n");
        let wanted = format!("--drafter {path}: of the kind {name}, which is not read");
        let said = says(&listed, "/no/model", &path);
        assert!(said.starts_with(&wanted), "{said}");
    }
}

#[test]
fn what_is_no_drafter_is_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let gguf = root.path().join("drafter.GGUF");
    fs::write(&gguf, "GGUF").unwrap();
    let only_gguf = gguf.parent().unwrap().display().to_string();
    let speculators = folder(&json!({"speculators_model_type": "dflash2"}));
    let hybrid = folder(&json!({"dflash_config": {"markov_rank": 4}}));
    let spoken = |path: &Path| path.display().to_string();
    for (drafter, wanted) in [
        (DEMO.to_owned(), "a whole model, which drafts for itself with its own head, and no drafter"),
        (golden!("tiny-qwen3").to_owned(), "a whole model and no drafter"),
        (spoken(&gguf), "a GGUF file, of which drafters are not read"),
        (only_gguf, "drafter.GGUF is a GGUF file, of which drafters are not read"),
        (spoken(speculators.path()), "a DFlash2 drafter in the speculators format, which is not read"),
        (spoken(hybrid.path()), "a DFlash drafter with a Markov head"),
        ("/no/such/drafter".to_owned(), "is neither a directory nor a Hugging Face repo id"),
    ] {
        let said = says(SECOND, "/no/model", &drafter);
        assert!(said.starts_with("--drafter") && said.contains(wanted), "{drafter}: {said}");
        assert!(said.contains(&*drafter) && !said.contains("convert"), "{said}");
    }
}

#[test]
fn the_manifests_limits_come_before_the_model() {
    let limit = |table: &str| says(table, "/no/model", DEMO_DRAFTER);
    let short = limit(&SECOND.replace("block_max = 8", "block_max = 4"));
    assert!(short.contains("drafts blocks of at most 4, this drafter's is 8"), "{short}");
    let taps = limit(&format!("{SECOND}taps_max = 3\n"));
    assert!(taps.contains("at most 3 layers to read, this one reads 4"), "{taps}");
    let halves = limit(&format!("{SECOND}dtypes = [\"f16\", \"mlx-q4\"]\n"));
    assert!(halves.contains("runs DFlash2 drafters in f16 or mlx-q4, this one is in bf16"), "{halves}");
    let pruned = changed(|config| config["draft_vocab_size"] = 100.into(), true);
    let pruned = says(SECOND, "/no/model", &pruned.path().display().to_string());
    assert!(pruned.contains("this one has a part of it"), "{pruned}");
    assert!(limit(SECOND).contains("/no/model"), "{}", limit(SECOND));
}

/// The demo model's drafter, with another configuration, with or without its weights.
fn changed(change: impl FnOnce(&mut Value), weights: bool) -> tempfile::TempDir {
    let from = PathBuf::from(DEMO_DRAFTER);
    let mut config = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    let root = folder(&config);
    if weights {
        fs::copy(from.join("model.safetensors"), root.path().join("model.safetensors")).unwrap();
    }
    root
}

#[test]
fn no_weight_has_to_be_there_for_what_does_not_fit() {
    let wide = |config: &mut Value| config["hidden_size"] = 512.into();
    let root = changed(wide, false);
    let path = root.path().display().to_string();
    let told = format!("--drafter {path}: hidden size 512, but the target's is 384; ");
    let without = says(SECOND, DEMO, &path);
    assert!(without.starts_with(&told) && without.contains("it holds no model.safetensors"), "{without}");
    fs::write(root.path().join("model.safetensors"), [0; 7]).unwrap();
    let cut = says(SECOND, DEMO, &path);
    assert!(cut.starts_with(&told) && cut.contains("it has 7 bytes"), "{cut}");
    // Weights that are missing refuse it as well.
    let whole = changed(|_| {}, false);
    let said = says(SECOND, DEMO, &whole.path().display().to_string());
    assert!(said.contains("it holds no model.safetensors"), "{said}");
}

#[test]
fn what_is_odd_and_harmless_is_told() {
    let root = changed(|config| config["partial_rotary_factor"] = 0.25.into(), true);
    let path = root.path().display().to_string();
    let admitted = judged(SECOND, DEMO, &path, DrafterKind::ALL).unwrap();
    let wanted =
        format!("warning: --drafter {path}: partial_rotary_factor 0.25 is ignored: whole heads turn");
    assert!(admitted.lines.contains(&wanted), "{:?}", admitted.lines);
}

#[test]
fn a_card_that_names_another_model_is_told() {
    let root = changed(|_| {}, true);
    let card = |text: &str| fs::write(root.path().join("README.md"), text).unwrap();
    let path = root.path().display().to_string();
    let model = |repository: Option<&str>| {
        let directory = DEMO.into();
        let repository = repository.map(str::to_owned);
        Located::Here(Resolved { directory, name: "demo".into(), repository, revision: None })
    };
    let told = |repository| {
        let mut admitted = judged(SECOND, DEMO, &path, DrafterKind::ALL).unwrap();
        admitted.drafter.take().unwrap().lines(&model(repository))
    };
    card("---\nbase_model: Qwen/Qwen3.8-27B\n---\n");
    let wanted = "its card says that it is of Qwen/Qwen3.8-27B, and the model is acme/Qwen3.6-27B";
    assert_eq!(told(Some("acme/Qwen3.6-27B")), [format!("warning: --drafter {path}: {wanted}")]);
    for same in [Some("acme/qwen3_8-27b-MLX-4bit"), Some("Qwen/Qwen3.8-27B"), None] {
        assert!(told(same).is_empty(), "{same:?}");
    }
    card("no block");
    assert!(told(Some("acme/Qwen3.6-27B")).is_empty());
}
