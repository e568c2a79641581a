//! What a folder of a drafter holds, for people and for programs.

use serde_json::{Value, json};
use tensorfold_plugin_api::drafter_spec::DrafterSpec;

use super::Answer;
use super::lines::{count, listed};
use crate::drafter::{Survey, one_line as all_faults};
use crate::plugins::lifecycle::one_line;

/// All lines. `place` says where a drafter is that is not on this machine.
pub(super) fn text(survey: &Survey, place: Option<&str>, directory: &str, answers: &[Answer]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text += &format!("{name:<12}{}\n", one_line(value));
    line("drafter", &survey.name);
    match place {
        Some(place) => line("place", place),
        None => line("folder", directory),
    }
    line("licence", survey.licence.as_deref().unwrap_or("not stated"));
    if survey.refusal().is_none() {
        let kind = survey.class.name();
        line("holds", &format!("a {kind} drafter, for --drafter beside the model that it was made for"));
    }
    if !survey.base_models.is_empty() {
        line("made for", &survey.base_models.join(", "));
    }
    if let Some(spec) = &survey.spec {
        describe(&mut line, survey, spec);
        line("formats", &listed(&survey.formats));
        line("parameters", &count(survey.parameters));
    }
    if survey.weight_bytes > 0 {
        line("weights", &format!("{} bytes", survey.weight_bytes));
    }
    for warning in &survey.warnings {
        line("warning", warning);
    }
    let faults = survey.faults();
    if !faults.is_empty() {
        line("problem", &all_faults(&faults));
    }
    for answer in answers {
        let verdict = answer.refusal.as_deref().map_or("can run it".into(), |why| format!("no: {why}"));
        line(&answer.backend, &verdict);
    }
    text
}

fn describe(line: &mut impl FnMut(&str, &str), survey: &Survey, spec: &DrafterSpec) {
    line("block", &format!("{} rows: {} drafts a round at most", spec.block_size, spec.block_size - 1));
    let taps: Vec<String> = spec.taps.iter().map(u32::to_string).collect();
    line("reads", &format!("the target's layers {}", taps.join(", ")));
    let depth = survey.target_layers.map_or_else(String::new, |layers| format!("{layers} layers of "));
    line(
        "target",
        &format!("{depth}width {}, {} rows of vocabulary", spec.hidden_size, spec.vocabulary_rows),
    );
    let sliding = spec.layers.iter().filter_map(|layer| layer.window).collect::<Vec<_>>();
    let windows = match sliding.first() {
        Some(window) => format!(", {} sliding over {window} positions", sliding.len()),
        None => String::new(),
    };
    line("layers", &format!("{}{windows}", spec.layers.len()));
    line(
        "attention",
        &format!("{} heads of {}, keys and values {}", spec.heads, spec.head_size, spec.key_value_heads),
    );
    line("mlp", &format!("{} wide", spec.intermediate_size));
    if let Some(refinement) = spec.refinement {
        line(
            "selector",
            &format!("{} candidates, rank {}", refinement.selector_candidates, refinement.selector_rank),
        );
    }
}

/// The document. Keys are only ever added.
pub(super) fn document(survey: &Survey, place: Option<&str>, directory: &str, answers: &[Answer]) -> Value {
    let faults = survey.faults();
    let told: Vec<Value> =
        faults.iter().map(|fault| json!({"code": fault.code.id(), "message": fault.text})).collect();
    json!({
        "schema": 1,
        "name": survey.name,
        "directory": place.is_none().then_some(directory),
        "place": place,
        "kind": "drafter",
        "drafter_kind": survey.class.id(),
        "licence": survey.licence,
        "supported": faults.is_empty(),
        "description": survey.spec,
        "target_layers": survey.target_layers,
        "base_models": survey.base_models,
        "formats": survey.formats,
        "parameters": survey.parameters,
        "weight_bytes": survey.weight_bytes,
        "warnings": survey.warnings,
        "problem": (!faults.is_empty()).then(|| all_faults(&faults)),
        "faults": told,
        "backends": super::document::backends(answers),
    })
}
