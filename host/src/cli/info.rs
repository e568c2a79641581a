//! `tensorfold info MODEL`: what a model is, from its metadata, and who can run it.

mod document;
mod drafter;
mod lines;

use tensorfold_plugin_api::vocabulary::GivenFlags;

pub(super) use self::lines::count;
use super::arguments::ModelArguments;
use super::hub::Located;
use super::serve::admission::admission_facts;
use super::serve::drafter::drafter_facts;
use super::{Failure, active, find_plugins, hub, named_backend};
use crate::checkpoint::{self, CheckpointError, Facts as ModelMetadata};
use crate::drafter::{one_line as all_faults, recognise, survey as survey_drafter};
use crate::plugins::admit::{CHECKS, Facts, HostFacts, Refusal, Stage, Subject, survey};
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
    if recognise(model.directory()).is_ok_and(|found| found.is_drafter()) {
        return of_drafter(arguments, environment, &model);
    }
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

/// The same of a drafter.
fn of_drafter(
    arguments: &ModelArguments,
    environment: &Environment,
    found: &Located,
) -> Result<String, Failure> {
    let surveyed = survey_drafter(found.directory());
    let mut survey = surveyed.map_err(|error| Failure::new(found.spoken(&error.to_string())))?;
    survey.name = found.name().unwrap_or(&survey.name).to_owned();
    let faults = survey.faults();
    let problem = faults.first().map(|_| all_faults(&faults));
    let flags = GivenFlags::from_pairs([("--drafter", Some(&*arguments.model))])?;
    let facts = drafter_facts(&survey);
    let answers = judged(&arguments.flags, environment, problem.as_deref(), |subject| {
        let facts = Facts { drafter: facts.as_ref(), ..*subject.facts };
        let subject = Subject { flags: &flags, facts: &facts, ..*subject };
        CHECKS
            .iter()
            .filter(|check| check.stage == Stage::Drafting)
            .flat_map(|check| (check.run)(&subject))
            .collect()
    })?;
    let (place, directory) = (found.place(), found.directory().display().to_string());
    Ok(found.spoken(&match arguments.json {
        true => format!("{:#}\n", drafter::document(&survey, place, &directory, &answers)),
        false => drafter::text(&survey, place, &directory, &answers),
    }))
}

fn answers(
    flags: &GivenFlags,
    environment: &Environment,
    facts: &ModelMetadata,
    problem: Option<&CheckpointError>,
) -> Result<Vec<Answer>, Failure> {
    let model = admission_facts(facts);
    let problem = problem.map(ToString::to_string);
    judged(flags, environment, problem.as_deref(), |subject| {
        let facts = Facts { model: Some(&model), ..*subject.facts };
        survey(&Subject { facts: &facts, ..*subject })
    })
}

/// What every plugin says, asked through `findings`; where it says nothing, what is wrong with the files does.
fn judged(
    flags: &GivenFlags,
    environment: &Environment,
    problem: Option<&str>,
    findings: impl Fn(&Subject<'_>) -> Vec<Refusal>,
) -> Result<Vec<Answer>, Failure> {
    let catalog = find_plugins(flags, environment)?;
    if let Some(name) = named_backend(flags) {
        catalog.by_name(name)?;
    }
    let host = HostFacts::of_this_program();
    let all = Facts::of_host(&host);
    let none = GivenFlags::new();
    let mut answers = Vec::new();
    for plugin in active(&catalog) {
        let Some(manifest) = &plugin.manifest else { continue };
        if named_backend(flags).is_some_and(|name| !manifest.plugin.answers_to(name)) {
            continue;
        }
        let subject = Subject { manifest, path: plugin.library.as_deref(), flags: &none, facts: &all };
        let refusal = findings(&subject)
            .into_iter()
            .find(|refusal| refusal.finding.level == Level::Error)
            .map(|refusal| refusal.sentence.unwrap_or_else(|| refusal.finding.reason()));
        answers.push(Answer {
            backend: manifest.plugin.backend.clone(),
            plugin: plugin.name(),
            refusal: refusal.or_else(|| problem.map(str::to_owned)),
        });
    }
    Ok(answers)
}
