//! `tensorfold models`: which families run on which backends, from the manifests.
//!
//! A family that a plugin declares and whose checkpoints this host does not read is left out:
//! the list says what can be served.

use serde_json::{Value, json};
use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::DrafterKind;

use crate::checkpoint::reads_family;
use crate::plugins::plugin::Plugin;

/// One family on one backend.
struct Row {
    family: String,
    backend: String,
    formats: String,
    drafters: String,
}

/// The table for people.
pub(super) fn table<'a>(plugins: impl IntoIterator<Item = &'a Plugin>) -> String {
    let mut rows = vec![Row {
        family: "FAMILY".into(),
        backend: "BACKEND".into(),
        formats: "FORMATS".into(),
        drafters: "DRAFTERS".into(),
    }];
    let mut without = Vec::new();
    for manifest in manifests(plugins) {
        if !manifest.families.iter().any(|family| reads_family(&family.model_type)) {
            without.push(format!("{} runs no model family yet", manifest.plugin.backend));
        }
        for family in manifest.families.iter().filter(|family| reads_family(&family.model_type)) {
            let name = &family.model_type;
            let formats = manifest.formats_for(name).into_iter().flatten().cloned().collect::<Vec<_>>();
            let drafters = names(&manifest.drafters_for(name));
            rows.push(Row {
                family: name.clone(),
                backend: manifest.plugin.backend.clone(),
                formats: formats.join(" "),
                drafters: if drafters.is_empty() { "none".into() } else { drafters.join(" ") },
            });
        }
    }
    rows[1..].sort_by(|a, b| (&a.family, &a.backend).cmp(&(&b.family, &b.backend)));
    without.sort();
    let width = |cell: fn(&Row) -> &str| rows.iter().map(|row| cell(row).len()).max().unwrap_or(0);
    let (family, backend, formats) =
        (width(|row| &row.family), width(|row| &row.backend), width(|row| &row.formats));
    let mut text = String::new();
    if rows.len() > 1 {
        for row in &rows {
            text += &format!(
                "{:family$}  {:backend$}  {:formats$}  {}\n",
                row.family, row.backend, row.formats, row.drafters
            );
        }
    } else {
        text += "no installed plugin runs a model; see tensorfold plugins list --all\n";
    }
    for line in without {
        text += &format!("{line}\n");
    }
    text
}

/// The same as a document.
pub(super) fn document<'a>(plugins: impl IntoIterator<Item = &'a Plugin>) -> Value {
    let mut models = Vec::new();
    for manifest in manifests(plugins) {
        for family in manifest.families.iter().filter(|family| reads_family(&family.model_type)) {
            models.push(json!({
                "family": family.model_type,
                "backend": manifest.plugin.backend,
                "plugin": manifest.plugin.id,
                "formats": manifest.formats_for(&family.model_type),
                "drafters": names(&manifest.drafters_for(&family.model_type)),
            }));
        }
    }
    json!({ "schema": 1, "models": models })
}

fn manifests<'a>(plugins: impl IntoIterator<Item = &'a Plugin>) -> impl Iterator<Item = &'a Manifest> {
    plugins.into_iter().filter_map(|plugin| plugin.manifest.as_ref())
}

fn names(kinds: &[DrafterKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.id()).collect()
}
