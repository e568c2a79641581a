//! `tensorfold info MODEL`: what a model is, from its metadata, and who can run it.

use serde_json::{Value, json};
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::arguments::ModelArguments;
use super::serve::admission::admission_facts;
use super::{Failure, active, find_plugins, named_backend};
use crate::checkpoint::{self, CheckpointError, Facts as ModelMetadata, HubCache};
use crate::plugins::admit::{Facts, HostFacts, Subject, survey};
use crate::plugins::environment::Environment;
use crate::plugins::lifecycle::Level;

/// What one plugin says of the model.
struct Answer {
    backend: String,
    plugin: String,
    refusal: Option<String>,
}

/// The text or the document.
///
/// # Errors
/// When the model cannot be found or its `config.json` cannot be read.
pub(super) fn run(arguments: &ModelArguments, environment: &Environment) -> Result<String, Failure> {
    let model = checkpoint::resolve_for_reading(&arguments.model, &HubCache::from_environment())?;
    let (facts, problem) = checkpoint::survey(&model.directory)?;
    let answers = answers(&arguments.flags, environment, &facts, problem.as_ref())?;
    Ok(match arguments.json {
        true => format!("{:#}\n", document(&facts, problem.as_ref(), &answers)),
        false => text(&facts, problem.as_ref(), &answers),
    })
}

fn answers(
    flags: &GivenFlags,
    environment: &Environment,
    facts: &ModelMetadata,
    problem: Option<&CheckpointError>,
) -> Result<Vec<Answer>, Failure> {
    let catalog = find_plugins(flags, environment)?;
    if let Some(name) = named_backend(flags) {
        catalog.by_name(name)?;
    }
    let model = admission_facts(facts);
    let host = HostFacts::of_this_program();
    let all = Facts { model: Some(&model), ..Facts::of_host(&host) };
    let none = GivenFlags::new();
    let mut answers = Vec::new();
    for plugin in active(&catalog) {
        let Some(manifest) = &plugin.manifest else { continue };
        if named_backend(flags).is_some_and(|name| !manifest.plugin.answers_to(name)) {
            continue;
        }
        let subject = Subject { manifest, path: plugin.library.as_deref(), flags: &none, facts: &all };
        let refusal = survey(&subject)
            .into_iter()
            .find(|refusal| refusal.finding.level == Level::Error)
            .map(|refusal| refusal.sentence.unwrap_or_else(|| refusal.finding.reason()));
        answers.push(Answer {
            backend: manifest.plugin.backend.clone(),
            plugin: plugin.name(),
            refusal: refusal.or_else(|| problem.map(ToString::to_string)),
        });
    }
    Ok(answers)
}

fn text(facts: &ModelMetadata, problem: Option<&CheckpointError>, answers: &[Answer]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text += &format!("{name:<12}{value}\n");
    line("model", &facts.name);
    line("folder", &facts.directory.display().to_string());
    line("family", &facts.family);
    line("formats", &listed(&facts.formats));
    let head = match (facts.mtp, facts.mtp_in_side_file) {
        (false, _) => "none".to_owned(),
        (true, true) => format!("in a side file, {}", listed(&facts.mtp_formats)),
        (true, false) => format!("in the checkpoint, {}", listed(&facts.mtp_formats)),
    };
    line("own head", &head);
    line(
        "context",
        &facts.context_window.map_or_else(|| "not stated".into(), |tokens| format!("{tokens} tokens")),
    );
    line("parameters", &count(facts.parameters));
    line("weights", &format!("{} bytes", facts.weight_bytes));
    if let Some(problem) = problem {
        line("problem", &problem.to_string());
    }
    for answer in answers {
        let verdict = answer.refusal.as_deref().map_or("can run it".into(), |why| format!("no: {why}"));
        line(&answer.backend, &verdict);
    }
    if answers.is_empty() {
        text += "no plugin is installed that could run it; see tensorfold plugins list --all\n";
    }
    text
}

fn document(facts: &ModelMetadata, problem: Option<&CheckpointError>, answers: &[Answer]) -> Value {
    let backends: Vec<Value> = answers
        .iter()
        .map(|answer| {
            json!({
                "backend": answer.backend,
                "plugin": answer.plugin,
                "runs": answer.refusal.is_none(),
                "reason": answer.refusal,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "name": facts.name,
        "directory": facts.directory,
        "family": facts.family,
        "supported": facts.supported,
        "formats": facts.formats,
        "mtp": facts.mtp,
        "mtp_formats": facts.mtp_formats,
        "context_window": facts.context_window,
        "parameters": facts.parameters,
        "weight_bytes": facts.weight_bytes,
        "problem": problem.map(ToString::to_string),
        "backends": backends,
    })
}

fn listed(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(" ") }
}

/// A count of parameters as people say it.
pub(super) fn count(parameters: u64) -> String {
    let value = parameters as f64;
    match parameters {
        0..1_000_000 => parameters.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", value / 1e6),
        _ => format!("{:.2} billion", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_people_say_them() {
        assert_eq!(count(999), "999");
        assert_eq!(count(22_570_000), "22.6 million");
        assert_eq!(count(27_000_000_000), "27.00 billion");
    }
}
