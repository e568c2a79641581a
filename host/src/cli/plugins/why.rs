//! `plugins why`: what `serve` would say, without doing anything.

use clap::Args;
use serde_json::json;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::{Output, describe, no_flags};
use crate::plugins::admit::{self, Facts, HostFacts, ModelFacts, OwnHead, Refusal, Stage, Subject};
use crate::plugins::catalog::Catalog;
use crate::plugins::lifecycle::Level;

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
    /// A folder with a checkpoint: its family and formats are judged too.
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
    let refusals = judge(catalog, index, &flags, arguments);
    let refusals = match refusals {
        Ok(refusals) => refusals,
        Err(message) => return output.fail(message),
    };
    let accepted = !refusals.iter().any(|refusal| refusal.0 == Level::Error);
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

/// In the order of `serve`: the request against the manifest, then the plugin against this machine, then the model.
fn judge(
    catalog: &mut Catalog,
    index: usize,
    flags: &GivenFlags,
    arguments: &WhyArguments,
) -> Result<Vec<Judged>, String> {
    let host = HostFacts::of_this_program();
    let judged = |refusals: Vec<Refusal>| -> Vec<Judged> {
        refusals
            .into_iter()
            .map(|refusal| {
                let value = serde_json::to_value(&refusal).unwrap_or_default();
                (refusal.finding.level, value, refusal.to_string())
            })
            .collect()
    };
    let model = match &arguments.model {
        Some(model) => Some(model_facts(std::path::Path::new(model))?),
        None => None,
    };
    let mut all = Vec::new();
    if let Some(manifest) = &catalog.plugins()[index].manifest {
        let path = catalog.plugins()[index].manifest_path.as_path();
        let facts = Facts { model: model.as_ref(), ..Facts::of_host(&host) };
        let subject = Subject { manifest, path: Some(path), flags, facts: &facts };
        let of_stage = |wanted: fn(Stage) -> bool| -> Vec<Refusal> {
            let checks = admit::CHECKS.iter().filter(|check| wanted(check.stage));
            checks.flat_map(|check| (check.run)(&subject)).collect()
        };
        let (request, of_model) =
            (of_stage(|stage| stage <= Stage::Request), of_stage(|stage| stage == Stage::Model));
        all.extend(judged(request));
        catalog.inspect(index);
        for finding in catalog.plugins()[index].life.findings() {
            all.push((finding.level, describe::finding(finding), finding.to_string()));
        }
        all.extend(judged(of_model));
    } else {
        for finding in catalog.plugins()[index].life.findings() {
            all.push((finding.level, describe::finding(finding), finding.to_string()));
        }
    }
    Ok(all)
}

/// What a checkpoint's folder says about the model, for the checks of admission.
fn model_facts(folder: &std::path::Path) -> Result<ModelFacts, String> {
    let facts = crate::checkpoint::read_facts(folder).map_err(|error| error.to_string())?;
    let side_file = std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("mtp") && name.ends_with(".safetensors")
    });
    let weights = if side_file { "side-file" } else { "in-checkpoint" };
    Ok(ModelFacts {
        family: facts.family,
        formats: facts.formats.into_iter().collect(),
        context_window: facts.context_window,
        own_head: facts.mtp.then_some(OwnHead { revision: 1, weights }),
    })
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
