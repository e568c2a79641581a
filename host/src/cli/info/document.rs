//! The facts of a model for programs. Keys are only ever added.

use serde_json::{Value, json};
use tensorfold_plugin_api::model_spec::{MixerSpec, ModelSpec};

use super::Answer;
use crate::checkpoint::{CheckpointError, Facts, Kind};

/// The document. `place` says where a model is that is not on this machine.
pub(super) fn document(
    facts: &Facts,
    place: Option<&str>,
    problem: Option<&CheckpointError>,
    answers: &[Answer],
) -> Value {
    let kind = match facts.kind {
        Kind::Model => "model",
        Kind::Drafter => "drafter",
        Kind::PredictionHead { .. } => "mtp",
    };
    json!({
        "schema": 1,
        "name": facts.name,
        "directory": place.is_none().then_some(&facts.directory),
        "place": place,
        "kind": kind,
        "licence": facts.licence,
        "family": facts.family,
        "supported": facts.supported,
        "description": facts.spec.as_ref().map(description),
        "tokenizer_size": facts.tokenizer_size,
        "formats": facts.formats,
        "format_bytes": facts.format_bytes,
        "mtp": facts.mtp,
        "mtp_in_side_file": facts.mtp_in_side_file,
        "mtp_formats": facts.mtp_formats,
        "context_window": facts.context_window,
        "parameters": facts.parameters,
        "weight_bytes": facts.weight_bytes,
        "problem": problem.map(ToString::to_string),
        "backends": backends(answers),
    })
}

/// What every plugin says.
pub(super) fn backends(answers: &[Answer]) -> Vec<Value> {
    let document = |answer: &Answer| {
        json!({
            "backend": answer.backend,
            "plugin": answer.plugin,
            "runs": answer.refusal.is_none(),
            "reason": answer.refusal,
        })
    };
    answers.iter().map(document).collect()
}

/// What a plugin would be told, without a repetition for each layer.
fn description(spec: &ModelSpec) -> Value {
    let attention = spec.layers.iter().filter(|layer| matches!(layer.mixer, MixerSpec::Attention(_))).count();
    let mixer = |wanted: fn(&MixerSpec) -> bool| {
        spec.layers.iter().map(|layer| &layer.mixer).find(|&mixer| wanted(mixer))
    };
    json!({
        "hidden_size": spec.hidden_size,
        "layers": { "attention": attention, "gated_delta": spec.layers.len() - attention },
        "attention": mixer(|mixer| matches!(mixer, MixerSpec::Attention(_))),
        "gated_delta": mixer(|mixer| matches!(mixer, MixerSpec::GatedDelta(_))),
        "feed_forward": spec.layers.first().map(|layer| &layer.feed_forward),
        "rope": spec.rope,
        "vocabulary_rows": spec.vocabulary_rows,
        "tied_head": spec.tied_head,
    })
}
