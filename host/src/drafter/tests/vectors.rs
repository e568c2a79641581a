//! The published cases: configuration to kind and fault, configuration and target to all faults.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Recognised {
    name: String,
    config: Value,
    kind: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Pairing {
    name: String,
    config: Value,
    target: Sizes,
    drafts_asked: Option<u32>,
    errors: Vec<String>,
}

#[derive(Deserialize)]
struct Sizes {
    hidden_size: u32,
    vocab_size: u32,
    num_hidden_layers: u32,
    embedding_rows: u32,
}

fn config(document: &Value) -> Config {
    Config::parse("config.json".as_ref(), document.to_string().as_bytes()).unwrap()
}

/// Codes of the faults, sorted, without repeats.
fn codes(faults: &[Fault]) -> Vec<&'static str> {
    let mut codes: Vec<_> = faults.iter().map(|fault| fault.code.id()).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn every_configuration_is_recognised_as_what_it_is() {
    let text = include_str!("../../../../tests/goldens/dflash/unit/recognise.json");
    let cases: Vec<Recognised> = serde_json::from_str(text).unwrap();
    assert_eq!(cases.len(), 32);
    for case in cases {
        let config = config(&case.config);
        let found = recognise::recognise(&config);
        assert_eq!(found.class.id(), case.kind, "{}", case.name);
        let mut faults: Vec<Fault> = found.fault.into_iter().collect();
        if found.class.is_block_drafter() && !found.speculators {
            faults.extend(Reading::of(&config, found.class).faults);
            // Whose layers they are is a question of its own.
            faults.retain(|fault| !fault.text.starts_with("model_type is \"muse_glimmer_assistant\""));
        }
        assert_eq!(codes(&faults), Vec::from_iter(case.error.as_deref()), "{}: {faults:?}", case.name);
    }
}

#[test]
fn every_pair_is_held_against_each_other_and_all_faults_are_told() {
    let text = include_str!("../../../../tests/goldens/dflash/unit/pairing.json");
    let cases: Vec<Pairing> = serde_json::from_str(text).unwrap();
    assert_eq!(cases.len(), 25);
    for case in cases {
        let config = config(&case.config);
        let found = recognise::recognise(&config);
        assert!(found.class.is_block_drafter() && found.fault.is_none(), "{}", case.name);
        let target = Target {
            hidden_size: case.target.hidden_size,
            vocabulary: case.target.vocab_size,
            layers: case.target.num_hidden_layers,
            embedding_rows: case.target.embedding_rows,
        };
        let faults = fit::faults(&Reading::of(&config, found.class), Some(target), case.drafts_asked);
        assert_eq!(codes(&faults), case.errors, "{}: {faults:?}", case.name);
    }
}

#[test]
fn faults_say_both_numbers() {
    let told = |change: &dyn Fn(&mut Value), target: fn(&mut Target), drafts| {
        let survey = configured(&golden("v2-qwen"), change);
        let mut sizes = Target { hidden_size: 128, vocabulary: 1024, layers: 16, embedding_rows: 1024 };
        target(&mut sizes);
        one_line(&survey.faults_with(sizes, drafts))
    };
    let same = |_: &mut Value| {};
    assert_eq!(told(&same, |_| {}, Some(7)), "");
    assert_eq!(told(&same, |to| to.hidden_size = 160, None), "hidden size 128, but the target's is 160");
    assert_eq!(told(&same, |to| to.vocabulary = 1000, None), "vocabulary 1024, but the target's is 1000");
    assert_eq!(told(&same, |to| to.layers = 20, None), "made for a target of 16 layers; this one has 20");
    assert_eq!(
        told(&same, |to| to.embedding_rows = 1000, None),
        "mask token 1021 is outside the target's 1000 rows"
    );
    assert_eq!(told(&same, |_| {}, Some(8)), "8 drafts asked: this drafter's block of 8 drafts at most 7");
    let taps =
        |ids: Value| move |config: &mut Value| config["dflash_config"]["target_layer_ids"] = ids.clone();
    let one_more = "its fc.weight reads 4 layers of the target, its config lists 1";
    assert_eq!(
        told(&taps([16].into()), |_| {}, None),
        format!("taps layer 16; the target's last is 15; {one_more}")
    );
    assert!(
        told(&taps([2, 5, 8, 15].into()), |_| {}, None).starts_with("taps layer 15, the target's last; what")
    );
    assert_eq!(
        told(&taps(vec![5, 2, 8, 13].into()), |_| {}, None),
        "taps layers 5, 2, 8, 13; they must ascend"
    );
    let group = |config: &mut Value| config["dflash_config"]["conv_group_size"] = 24.into();
    assert_eq!(
        told(&group, |to| (to.hidden_size, to.layers) = (160, 20), None),
        "conv_group_size 24 does not divide 128; hidden size 128, but the target's is 160; made for a target of 16 \
         layers; this one has 20"
    );
}
