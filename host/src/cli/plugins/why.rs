//! `plugins why`: what `serve` would say, without doing anything.

use clap::Args;
use serde_json::json;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::{Output, describe, no_flags};
use crate::checkpoint;
use crate::cli::Failure;
use crate::cli::hub;
use crate::cli::serve::admission;
use crate::cli::serve::drafter::NamedDrafter;
use crate::plugins::admit::{
    self, DrafterFacts, Facts, HostFacts, ModelFacts, PluginOptions, Refusal, Stage, Subject,
};
use crate::plugins::catalog::Catalog;
use crate::plugins::lifecycle::{Code, Level};
use crate::plugins::plugin::Plugin;
use crate::plugins::trial;
use crate::plugins::verdicts::Verdicts;

/// The request to judge.
#[derive(Args, Clone, Debug, Default)]
pub struct WhyArguments {
    /// Backend, alias, id, id/variant, or auto.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: String,
    /// Drafter, as `serve` takes it.
    #[arg(long, value_name = "DRAFTER")]
    pub drafter: Option<String>,
    /// Ranks, as `serve` takes it.
    #[arg(long, value_name = "N")]
    pub tp: Option<String>,
    /// Rank, as `serve` takes it.
    #[arg(long, value_name = "R")]
    pub rank: Option<String>,
    /// Address of rank 0, as `serve` takes it.
    #[arg(long, value_name = "ADDRESS")]
    pub master: Option<String>,
    /// Drafts by the checkpoint's own head, as `serve` takes it.
    #[arg(long = "mtp-drafts", value_name = "N")]
    pub mtp_drafts: Option<String>,
    /// Cache type, as `serve` takes it.
    #[arg(long = "kv-dtype", value_name = "TYPE")]
    pub kv_dtype: Option<String>,
    /// Tokens of prompt and reply, as `serve` takes it.
    #[arg(long, value_name = "N")]
    pub context: Option<String>,
    /// Folder, or repository as owner/name or owner/name@revision: its family and formats are judged too.
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Print a JSON document.
    #[arg(long)]
    pub json: bool,
}

impl WhyArguments {
    fn flags(&self) -> Result<GivenFlags, String> {
        let mut flags = no_flags();
        for (name, value) in [
            ("--drafter", &self.drafter),
            ("--tp", &self.tp),
            ("--rank", &self.rank),
            ("--master", &self.master),
            ("--mtp-drafts", &self.mtp_drafts),
            ("--kv-dtype", &self.kv_dtype),
            ("--context", &self.context),
        ] {
            if let Some(value) = value {
                flags.push(name, Some(value)).map_err(|error| error.0)?;
            }
        }
        flags.check_together().map_err(|error| error.0)?;
        Ok(flags)
    }
}

pub(super) fn run(
    catalog: &mut Catalog,
    arguments: &WhyArguments,
    output: &mut Output<'_>,
) -> std::io::Result<u8> {
    let flags = match arguments.flags() {
        Ok(flags) => flags,
        Err(message) => {
            writeln!(output.err, "usage: tensorfold plugins why [options] [MODEL]")?;
            writeln!(output.err, "tensorfold plugins why: error: {message}")?;
            return Ok(2);
        }
    };
    let mut not_taken = Vec::new();
    let chosen = if arguments.backend == "auto" {
        catalog.auto(false).map(|choice| {
            not_taken = choice.not_taken;
            choice.index
        })
    } else {
        catalog.by_name(&arguments.backend)
    };
    let index = match chosen {
        Ok(index) => index,
        Err(error) => {
            if arguments.json {
                let refusal = json!({"code": error.code(), "message": error.to_string()});
                output.json(&document(false, None, vec![refusal], &not_taken))?;
                return Ok(1);
            }
            return output.fail(error);
        }
    };
    let refusals = judge(catalog, index, &flags, arguments.model.as_deref());
    let accepted = !is_refused(&refusals);
    let plugin = &catalog.plugins()[index];
    if arguments.json {
        let all = refusals.iter().map(|(_, value, _)| value.clone()).collect();
        output.json(&document(accepted, Some(describe::plugin(plugin)), all, &not_taken))?;
        return Ok(u8::from(!accepted));
    }
    for line in &not_taken {
        writeln!(output.out, "not taken: {line}")?;
    }
    if let Some((_, _, message)) = refusals.iter().find(|(level, ..)| *level == Level::Error) {
        return output.fail(message);
    }
    for (_, _, message) in &refusals {
        writeln!(output.out, "warning: {message}")?;
    }
    writeln!(output.out, "accepted: {}", plugin.name())?;
    Ok(0)
}

type Judged = (Level, serde_json::Value, String);

/// In the order of `serve`: the request against the manifest, then the model's metadata, then the plugin against this
/// machine, then the model against the plugin. What ends `serve` ends this too.
fn judge(catalog: &mut Catalog, index: usize, flags: &GivenFlags, model: Option<&str>) -> Vec<Judged> {
    let Some(manifest) = catalog.plugins()[index].manifest.clone() else {
        return findings(&catalog.plugins()[index]);
    };
    let library = catalog.plugins()[index].library.clone();
    let host = HostFacts::of_this_program();
    type Known<'a> = (Option<&'a ModelFacts>, Option<&'a DrafterFacts>);
    let judged = |(model, drafter): Known<'_>, wanted: fn(Stage) -> bool| -> Vec<Judged> {
        let facts = Facts { model, drafter, ..Facts::of_host(&host) };
        let subject = Subject { manifest: &manifest, path: library.as_deref(), flags, facts: &facts };
        let checks = admit::CHECKS.iter().filter(|check| wanted(check.stage));
        checks.flat_map(|check| (check.run)(&subject)).map(|refusal| judgement(&refusal)).collect()
    };
    let mut all = judged((None, None), |stage| stage <= Stage::Request);
    if is_refused(&all) {
        return all;
    }
    let configured = catalog.configured_options(index);
    if let Err(message) = admit::add_configured(&mut PluginOptions::new(), &manifest, &configured, flags) {
        let document = json!({"code": Code::FlagUnsupported, "message": &message});
        all.push((Level::Error, document, message));
        return all;
    }
    let unread = |mut all: Vec<Judged>, failure: Failure| {
        let document = json!({"code": Code::Checkpoint, "message": &failure.message});
        all.push((Level::Error, document, failure.message));
        all
    };
    let drafter = match NamedDrafter::find(flags, &manifest) {
        Ok(drafter) => drafter,
        Err(failure) => return unread(all, failure),
    };
    let known = drafter.as_ref().map(NamedDrafter::facts);
    if let Some(drafter) = &drafter {
        all = judged((None, known), |stage| stage <= Stage::Request);
        if is_refused(&all) {
            return all;
        }
        if let Err(failure) = drafter.check_kind() {
            return unread(all, failure);
        }
    }
    let metadata = match model.map(model_metadata).transpose() {
        Ok(metadata) => metadata,
        Err(failure) => return unread(all, failure),
    };
    let facts = metadata.as_ref().map(admission::admission_facts);
    let inspection = catalog.inspect(index);
    if let Some(image) = &inspection.image {
        trial::recall(catalog, index, image, &Verdicts::read(&catalog.environment));
    }
    all.extend(findings(&catalog.plugins()[index]));
    all.extend(judged((facts.as_ref(), known), |stage| stage == Stage::Model));
    let target = metadata.as_ref().and_then(|metadata| metadata.spec.as_ref());
    match drafter.zip(target).map(|(drafter, target)| drafter.check_fit(target)) {
        Some(Err(failure)) if !is_refused(&all) => unread(all, failure),
        _ => all,
    }
}

fn is_refused(all: &[Judged]) -> bool {
    all.iter().any(|(level, ..)| *level == Level::Error)
}

fn judgement(refusal: &Refusal) -> Judged {
    // A refusal holds strings, a number and names of the vocabulary: it always serialises.
    let value = serde_json::to_value(refusal).unwrap_or_default();
    (refusal.finding.level, value, refusal.to_string())
}

fn findings(plugin: &Plugin) -> Vec<Judged> {
    let findings = plugin.life.findings().iter();
    findings.map(|finding| (finding.level, describe::finding(finding), finding.to_string())).collect()
}

/// What `serve` would find out about the model before it asks the plugin.
fn model_metadata(model: &str) -> Result<checkpoint::Facts, Failure> {
    admission::model_metadata(&hub::locate(model)?)
}

fn document(
    accepted: bool,
    plugin: Option<serde_json::Value>,
    findings: Vec<serde_json::Value>,
    not_taken: &[String],
) -> serde_json::Value {
    json!({
        "schema": "tensorfold.plugins.why/1",
        "accepted": accepted,
        "plugin": plugin,
        "findings": findings,
        "not_taken": not_taken,
    })
}
