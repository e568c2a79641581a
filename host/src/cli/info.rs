//! `tensorfold info MODEL`: what a model is, from its metadata, and who can run it.

mod document;
mod lines;

use tensorfold_plugin_api::vocabulary::GivenFlags;

pub(super) use self::lines::count;
use super::arguments::ModelArguments;
use super::serve::admission::admission_facts;
use super::{Failure, active, find_plugins, hub, named_backend};
use crate::checkpoint::{self, CheckpointError, Facts as ModelMetadata};
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
    let model = hub::locate_for_reading(&arguments.model)?;
    let surveyed = checkpoint::survey(model.directory());
    let (mut facts, problem) = surveyed.map_err(|error| Failure::new(model.spoken(&error.to_string())))?;
    facts.name = model.name().unwrap_or(&facts.name).to_owned();
    let problem = problem.or_else(|| model.without_tokenizer(&facts.kind));
    let answers = answers(&arguments.flags, environment, &facts, problem.as_ref())?;
    let place = model.place();
    Ok(model.spoken(&match arguments.json {
        true => format!("{:#}\n", document::document(&facts, place, problem.as_ref(), &answers)),
        false => lines::text(&facts, place, problem.as_ref(), &answers),
    }))
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
