//! `tensorfold capabilities --json`: what this program and its plugins can do, for other programs.
//!
//! Everything comes from the vocabulary and the manifests. A drafter kind that no manifest
//! declares is written as `false`, never left out: front ends must not have to guess. The
//! `families` at the top are those that can be served: declared by a plugin, and read by this
//! host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tensorfold_plugin_api::abi::{ABI_MAJOR, ABI_MINOR};
use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::{AnsweredBy, DrafterKind, FLAGS, FlagSpec, Support};

use crate::checkpoint::reads_family;
use crate::plugins::environment::KNOWN_VARIABLES;
use crate::plugins::plugin::Plugin;

/// Number of the document's format. Keys are only ever added under one number.
const SCHEMA: u32 = 1;

/// The document about these plugins.
pub(super) fn document<'a>(plugins: impl IntoIterator<Item = &'a Plugin>) -> Value {
    let plugins: Vec<(&Plugin, &Manifest)> = plugins
        .into_iter()
        .filter_map(|plugin| plugin.manifest.as_ref().map(|manifest| (plugin, manifest)))
        .collect();
    let mut families: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut backends = BTreeSet::new();
    for (_, manifest) in &plugins {
        backends.insert(manifest.plugin.backend.as_str());
        for family in manifest.families.iter().filter(|family| reads_family(&family.model_type)) {
            let formats = manifest.formats_for(&family.model_type).into_iter().flatten();
            families.entry(&family.model_type).or_default().extend(formats.map(String::as_str));
        }
    }
    json!({
        "schema": SCHEMA,
        "engine": "tensorfold",
        "version": env!("CARGO_PKG_VERSION"),
        "abi": { "major": ABI_MAJOR, "minor": ABI_MINOR },
        "chip": Value::Null,
        "backends": backends,
        "families": families,
        "plugins": plugins.iter().map(|(plugin, manifest)| one(plugin, manifest)).collect::<Vec<_>>(),
        "serve": { "flags": flags(|flag| flag.support != Support::NotYet) },
        "env": KNOWN_VARIABLES,
    })
}

fn one(plugin: &Plugin, manifest: &Manifest) -> Value {
    let families: BTreeMap<&str, Value> = manifest
        .families
        .iter()
        .map(|family| {
            let name = family.model_type.as_str();
            let drafters = manifest.drafters_for(name);
            let facts = json!({
                "formats": manifest.formats_for(name),
                "kv_dtypes": manifest.kv_dtypes_for(name),
                "worlds": manifest.worlds_for(name),
                "features": manifest.features_for(name),
                "drafters": kinds(|kind| drafters.contains(&kind)),
            });
            (name, facts)
        })
        .collect();
    json!({
        "id": manifest.plugin.id,
        "variant": manifest.plugin.variant,
        "version": manifest.plugin.version.to_string(),
        "backend": manifest.plugin.backend,
        "aliases": manifest.plugin.aliases,
        "engine_name": manifest.plugin.engine_name,
        "state": plugin.life.state().as_str(),
        "drafters": kinds(|kind| manifest.runs_drafter(kind)),
        "unsupported": manifest.unsupported,
        "families": families,
        "flags": flags(|flag| flag.answered_by == AnsweredBy::ServeFlags
            && manifest.capabilities.serve_flags.contains(flag.name)),
        "options": manifest.options.keys().collect::<Vec<_>>(),
    })
}

fn kinds(runs: impl Fn(DrafterKind) -> bool) -> Value {
    let map: Map<String, Value> =
        DrafterKind::ALL.iter().map(|&kind| (kind.id().to_owned(), runs(kind).into())).collect();
    map.into()
}

fn flags(which: impl Fn(&FlagSpec) -> bool) -> Value {
    let map: Map<String, Value> = FLAGS
        .iter()
        .filter(|flag| which(flag))
        .map(|flag| {
            let facts = match flag.choices() {
                [] => json!({}),
                choices => json!({ "values": choices }),
            };
            (flag.name.to_owned(), facts)
        })
        .collect();
    map.into()
}
