//! `plugins show`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensorfold_plugin_api::manifest::{Manifest, RuntimeLink, RuntimeNeed};
use tensorfold_plugin_api::vocabulary::DrafterKind;

use super::{Output, describe, find};
use crate::cli::plugin_options;
use crate::plugins::catalog::Catalog;
use crate::plugins::inspect::Inspection;
use crate::plugins::lifecycle::{one_line, show_path};
use crate::plugins::lock;
use crate::plugins::trial;
use crate::plugins::verdicts::{Verdict, Verdicts};

pub(super) fn run(
    catalog: &mut Catalog,
    name: &str,
    as_json: bool,
    output: &mut Output<'_>,
) -> std::io::Result<u8> {
    let index = match find(catalog, name) {
        Ok(index) => index,
        Err(message) => return output.fail(message),
    };
    let inspection = catalog.inspect(index);
    let verdicts = Verdicts::read(&catalog.environment);
    let verdict = inspection.image.as_ref().and_then(|image| {
        trial::recall(catalog, index, image, &verdicts);
        trial::last_verdict(catalog, index, image, &verdicts)
    });
    let plugin = &catalog.plugins()[index];
    let digest = plugin.library.as_deref().and_then(|library| lock::digest_file(library).ok());
    let mut document = json!({
        "schema": "tensorfold.plugins.show/1",
        "plugin": describe::plugin(plugin),
        "library_sha256": digest,
        "abi": abi(&inspection),
        "verdict": verdict.as_ref().map(|(verdict, since)| json!({"ended": verdict, "unix_seconds": since})),
    });
    let Some(manifest) = &plugin.manifest else {
        if as_json {
            output.json(&document)?;
        } else {
            write_facts(output, &[("path", show_path(&plugin.manifest_path))])?;
            write_findings(output, plugin)?;
        }
        return Ok(0);
    };
    if as_json {
        document["manifest"] = serde_json::to_value(manifest).map_err(std::io::Error::from)?;
        document["drafters"] = drafters(manifest);
        document["families"] = families(manifest);
        document["runtimes"] = runtimes(manifest, catalog.root());
        document["unknown_to_this_host"] =
            json!(plugin.notes.iter().map(ToString::to_string).collect::<Vec<_>>());
        output.json(&document)?;
        return Ok(0);
    }
    let facts = &manifest.plugin;
    let join = |items: Vec<String>| if items.is_empty() { "-".to_owned() } else { items.join(", ") };
    let abi_line = match &inspection.agreement {
        Some(agreement) => {
            format!("{}.{}, works at {}", manifest.abi.major, manifest.abi.minor, agreement.abi)
        }
        None => format!("{}.{}, does not work with this host", manifest.abi.major, manifest.abi.minor),
    };
    let mut lines = vec![
        ("plugin", plugin.name()),
        ("version", facts.version.to_string()),
        ("backend", join(std::iter::once(&facts.backend).chain(&facts.aliases).cloned().collect())),
        ("engine", facts.engine_name.clone()),
        ("state", describe::state(plugin).as_str().to_owned()),
        ("path", show_path(&plugin.manifest_path)),
        ("library", plugin.library.as_deref().map(show_path).unwrap_or_default()),
        ("sha256", digest.unwrap_or_else(|| "-".into())),
        ("rank", format!("{} ({})", plugin.rank.as_str(), plugin.origin)),
        ("abi", abi_line),
        ("interfaces", join(manifest.abi.interfaces.iter().cloned().collect())),
        ("last trial", verdict_line(verdict.as_ref().map(|(verdict, _)| verdict))),
    ];
    lines.extend(manifest.devices.iter().map(|device| {
        let archs: Vec<String> = device.archs.iter().cloned().collect();
        let vendor = device.vendor.clone().unwrap_or_else(|| "any vendor".into());
        ("device", format!("{} {}: {}", vendor, device.kind, join(archs)))
    }));
    for kind in SHOWN_DRAFTERS {
        let why =
            manifest.unsupported.get(kind.id()).map(|reason| format!(" ({reason})")).unwrap_or_default();
        lines.push(("drafter", format!("{}: {}{why}", kind.id(), manifest.runs_drafter(*kind))));
    }
    for family in &manifest.families {
        let formats =
            manifest.formats_for(&family.model_type).map(|formats| formats.iter().cloned().collect());
        let kinds: Vec<String> =
            manifest.drafters_for(&family.model_type).iter().map(|kind| kind.id().to_owned()).collect();
        let text = format!(
            "{}: formats {}; drafters {}",
            family.model_type,
            join(formats.unwrap_or_default()),
            join(kinds)
        );
        lines.push(("family", text));
    }
    if manifest.families.is_empty() {
        lines.push(("family", "none: it runs no model yet".into()));
    }
    for (typed, meaning) in plugin_options::of(manifest) {
        lines.push(("option", format!("--opt {typed}  {meaning}")));
    }
    for runtime in &manifest.runtimes {
        let found = first_existing(&runtime.soname, catalog.root());
        let found = found.map_or("not in the standard library folders".to_owned(), |path| show_path(&path));
        lines.push(("runtime", format!("{} ({}): {found}", runtime.name, runtime.soname.join(", "))));
    }
    if facts.panics == tensorfold_plugin_api::manifest::Panics::Abort {
        lines.push(("panics", "a panic inside the plugin ends the server".into()));
    }
    for note in &plugin.notes {
        lines.push(("unknown to this host", note.to_string()));
    }
    let lines: Vec<(&str, String)> = lines;
    write_facts(output, &lines)?;
    write_findings(output, plugin)?;
    Ok(0)
}

/// How the last trial in a child process ended.
fn verdict_line(verdict: Option<&Verdict>) -> String {
    match verdict {
        None => "none that still holds".to_owned(),
        Some(Verdict::Answered { report }) => {
            let errors = report.findings.iter().filter(|finding| finding.error);
            let errors: Vec<String> = errors.map(|finding| one_line(&finding.what)).collect();
            match errors.is_empty() {
                true => match report.devices.len() {
                    1 => "well, with 1 device".to_owned(),
                    devices => format!("well, with {devices} devices"),
                },
                false => format!("refused: {}", errors.join("; ")),
            }
        }
        Some(Verdict::Crashed { what } | Verdict::TimedOut { what, .. }) => one_line(what),
    }
}

/// The kinds that are always stated, true or false.
const SHOWN_DRAFTERS: &[DrafterKind] = &[DrafterKind::Mtp, DrafterKind::Dflash, DrafterKind::Dflash2];

fn write_facts(output: &mut Output<'_>, lines: &[(&str, String)]) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> =
        lines.iter().map(|(name, value)| vec![format!("{name}:"), value.clone()]).collect();
    output.out.write_all(describe::columns(&rows).as_bytes())
}

fn write_findings(output: &mut Output<'_>, plugin: &crate::plugins::plugin::Plugin) -> std::io::Result<()> {
    for finding in plugin.life.findings() {
        writeln!(output.out, "{}: {}: {}", finding.level.as_str(), finding.code, finding.reason())?;
    }
    Ok(())
}

fn abi(inspection: &Inspection) -> Value {
    match &inspection.agreement {
        Some(agreement) => json!({"works_at": agreement.abi, "tested": agreement.untested.is_none()}),
        None => Value::Null,
    }
}

fn drafters(manifest: &Manifest) -> Value {
    let mut kinds = serde_json::Map::new();
    for kind in SHOWN_DRAFTERS {
        kinds.insert(kind.id().into(), json!(manifest.runs_drafter(*kind)));
    }
    Value::Object(kinds)
}

fn families(manifest: &Manifest) -> Value {
    let describe = |model_type: &str| {
        json!({
            "model_type": model_type,
            "formats": manifest.formats_for(model_type),
            "kv_dtypes": manifest.kv_dtypes_for(model_type),
            "worlds": manifest.worlds_for(model_type),
            "drafters": manifest.drafters_for(model_type).iter().map(|kind| kind.id()).collect::<Vec<_>>(),
        })
    };
    Value::Array(manifest.families.iter().map(|family| describe(&family.model_type)).collect())
}

fn runtimes(manifest: &Manifest, root: &Path) -> Value {
    let describe = |runtime: &tensorfold_plugin_api::manifest::Runtime| {
        json!({
            "name": runtime.name,
            "soname": runtime.soname,
            "how": if runtime.how == RuntimeLink::Linked { "linked" } else { "dlopen" },
            "need": match runtime.need {
                RuntimeNeed::Required => "required",
                RuntimeNeed::Recommended => "recommended",
                RuntimeNeed::Suggested => "suggested",
            },
            "found": first_existing(&runtime.soname, root),
        })
    };
    Value::Array(manifest.runtimes.iter().map(describe).collect())
}

/// The first of these files in the folders that the dynamic linker usually searches. Only looked at, never opened:
/// what is really used is known once a plugin runs.
fn first_existing(names: &[String], root: &Path) -> Option<PathBuf> {
    const FOLDERS: &[&str] = &[
        "usr/local/lib",
        "lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib64",
        "usr/lib64",
        "lib",
        "usr/lib",
        "opt/rocm/lib",
        "usr/local/cuda/lib64",
    ];
    names
        .iter()
        .find_map(|name| FOLDERS.iter().map(|folder| root.join(folder).join(name)).find(|path| path.exists()))
}
