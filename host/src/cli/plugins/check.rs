//! `plugins check`: every finding about one plugin, and a try in a child process.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tensorfold_plugin_api::abi::{
    BACKEND_INTERFACE, DESCRIPTOR_SYMBOL, DFLASH_INTERFACE, ENGINE_INTERFACE, MANIFEST_SYMBOL, MTP_INTERFACE,
};
use tensorfold_plugin_api::attest::ROOT_MODULE_SYMBOL;

use super::{Output, describe, find, names_a_file};
use crate::plugins::catalog::Catalog;
use crate::plugins::image::Image;
use crate::plugins::lifecycle::{Code, Finding, Level, State, one_line};
use crate::plugins::plugin::Plugin;
use crate::plugins::trial::{self, Trial, When};
use crate::plugins::verdicts::Verdict;

pub(super) struct Request<'a> {
    pub(super) target: &'a str,
    pub(super) strict: bool,
    pub(super) retry: bool,
    pub(super) probe: bool,
    pub(super) limit: u64,
    pub(super) json: bool,
}

pub(super) fn run(
    catalog: &mut Catalog,
    request: &Request<'_>,
    output: &mut Output<'_>,
) -> std::io::Result<u8> {
    let index = if names_a_file(request.target) {
        let path = std::path::absolute(request.target)?;
        catalog.plugins().iter().position(|plugin| plugin.manifest_path == path).ok_or_else(|| {
            format!("{}: not a plugin's sidecar or library", crate::plugins::lifecycle::show_path(&path))
        })
    } else {
        find(catalog, request.target)
    };
    let index = match index {
        Ok(index) => index,
        Err(message) => return output.fail(message),
    };
    let inspection = catalog.inspect(index);
    if let Some(image) = &inspection.image {
        for finding in link_findings(image, request.strict) {
            catalog.plugin_mut(index).record(finding);
        }
    }
    let notes = catalog.plugins()[index].notes.clone();
    for note in notes {
        let finding = match note.as_error().filter(|_| request.strict) {
            Some(error) => Finding::error(error.code, error.to_string()),
            None => Finding::note(Code::ManifestField, note.to_string()),
        };
        catalog.plugin_mut(index).record(finding);
    }
    let unknown: Vec<String> = catalog.plugins()[index]
        .manifest
        .iter()
        .flat_map(|manifest| &manifest.abi.interfaces)
        .filter(|id| {
            ![BACKEND_INTERFACE, ENGINE_INTERFACE, MTP_INTERFACE, DFLASH_INTERFACE].contains(&id.as_str())
        })
        .cloned()
        .collect();
    for id in unknown {
        let what = format!("the interface `{id}` is unknown to this host and not used");
        catalog.plugin_mut(index).record(Finding::note(Code::ManifestField, what));
    }
    let mut document = Value::Null;
    if request.probe
        && catalog.plugins()[index].life.state() == State::Admitted
        && let Some(image) = &inspection.image
    {
        document = try_in_child(catalog, index, image, request)?;
    }
    let plugin = &catalog.plugins()[index];
    let failed = plugin.life.findings().iter().any(|finding| finding.level == Level::Error);
    if request.json {
        output.json(&json!({
            "schema": "tensorfold.plugins.check/1",
            "plugin": describe::plugin(plugin),
            "ok": !failed,
            "probe": document,
        }))?;
    } else {
        print(plugin, &document, failed, output)?;
    }
    Ok(u8::from(failed))
}

/// Tries the plugin and tells what came of it.
fn try_in_child(
    catalog: &mut Catalog,
    index: usize,
    image: &Image,
    request: &Request<'_>,
) -> std::io::Result<Value> {
    let when = if request.retry { When::Again } else { When::Always };
    let limit = Duration::from_secs(request.limit);
    let trial = trial::try_plugin(catalog, index, image, when, limit, request.target)?;
    let Trial::Ran(probe) = trial else { return Ok(json!({"ran": false})) };
    Ok(match &probe.verdict {
        Verdict::Answered { report } => json!({"ran": true, "report": report, "stderr": probe.stderr}),
        Verdict::Crashed { what } | Verdict::TimedOut { what, .. } => {
            json!({"ran": true, "ended": what, "stage": probe.stage, "stderr": probe.stderr})
        }
    })
}

/// What vendors should keep to when they link: warnings, or errors where that is asked for.
fn link_findings(image: &Image, strict: bool) -> Vec<Finding> {
    let make = |what: String, fix: &str| {
        let finding = Finding::warning(Code::NeedsLibrary, what);
        let finding = if strict { Finding { level: Level::Error, ..finding } } else { finding };
        finding.fix(fix)
    };
    let entry = [DESCRIPTOR_SYMBOL, MANIFEST_SYMBOL, ROOT_MODULE_SYMBOL];
    let mut findings = Vec::new();
    let others: Vec<&str> =
        image.exports.iter().map(String::as_str).filter(|name| !entry.contains(name)).collect();
    if !others.is_empty() {
        let few: Vec<&str> = others.iter().take(3).copied().collect();
        findings.push(make(
            format!("exports {} symbols besides its entry points: {}", others.len(), few.join(", ")),
            "link with hidden visibility and a version script",
        ));
    }
    if image.runpath.is_some() {
        findings.push(make(
            "has a RUNPATH, which LD_LIBRARY_PATH displaces".into(),
            "link with --disable-new-dtags, which makes an RPATH",
        ));
    }
    if !image.bind_now {
        findings.push(make("binds symbols lazily".into(), "link with -z now"));
    }
    let drivers = ["libcuda.so", "libamdhip64.so", "libhsa-runtime64.so", "libze_loader.so"];
    for needed in image.needed.iter().filter(|needed| drivers.iter().any(|driver| needed.starts_with(driver)))
    {
        findings.push(make(
            format!("is linked with the driver library {needed}"),
            "open driver libraries at run time, inside init",
        ));
    }
    findings
}

fn print(plugin: &Plugin, document: &Value, failed: bool, output: &mut Output<'_>) -> std::io::Result<()> {
    let version = plugin.manifest.as_ref().map(|manifest| manifest.plugin.version.to_string());
    writeln!(output.out, "plugin: {} {}", plugin.name(), version.unwrap_or_default())?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in plugin.life.findings() {
        *counts.entry(finding.level.as_str()).or_default() += 1;
        writeln!(output.out, "{}: {}: {}", finding.level.as_str(), finding.code, finding.reason())?;
    }
    let report = &document["report"];
    if report.is_object() {
        if let Some(layout) = report["layout"].as_str() {
            writeln!(output.out, "layout: {layout}")?;
        }
        for device in report["devices"].as_array().into_iter().flatten() {
            // A plugin's own words: nothing in them may move the cursor.
            let text = |name: &str| one_line(device[name].as_str().unwrap_or_default());
            let usable = if device["usable"] == true { "usable".to_owned() } else { text("reason") };
            let address = text("pci_address");
            let place = if address.is_empty() { String::new() } else { format!(" at {address}") };
            writeln!(output.out, "device: {} {}{place}: {usable}", text("kind"), text("name"))?;
        }
        for runtime in report["runtimes"].as_array().into_iter().flatten() {
            writeln!(output.out, "runtime: {}", one_line(runtime.as_str().unwrap_or_default()))?;
        }
    }
    let counted: Vec<String> = counts.iter().map(|(level, count)| format!("{count} {level}")).collect();
    let counted = if counted.is_empty() { String::new() } else { format!(" ({})", counted.join(", ")) };
    writeln!(output.out, "result: {}{counted}", if failed { "refused" } else { "ok" })
}
