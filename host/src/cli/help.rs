//! `tensorfold serve --help`, made from the vocabulary and, with `--backend`, from a manifest.

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::{AnsweredBy, DrafterKind, FLAGS, FlagGroup, FlagSpec, GivenFlags};

use super::{Failure, active, find_plugins, named_backend, plugin_options};
use crate::plugins::environment::Environment;

/// The help of `serve`; for a backend that was named, what it offers on top.
///
/// # Errors
/// When the backend is not known.
pub(super) fn serve(flags: &GivenFlags, environment: &Environment) -> Result<String, Failure> {
    let mut text = String::from(
        "Serve a model over OpenAI's API\n\nusage: tensorfold [--backend NAME] serve MODEL [options]\n\n\
         MODEL is a folder, or a repository of the Hugging Face Hub as owner/name[@revision]; one that is not in\n\
         the cache is downloaded when nothing speaks against serving it.\n",
    );
    for group in FlagGroup::ALL {
        let rows: Vec<&FlagSpec> =
            FLAGS.iter().filter(|flag| flag.group == *group && flag.in_help()).collect();
        section(&mut text, group.heading(), &rows);
    }
    match named_backend(flags) {
        None => {
            // Help is there for whoever has to put something right: what keeps plugins from being found is told
            // beside it.
            match find_plugins(flags, environment) {
                Ok(catalog) => {
                    active(&catalog).filter_map(|plugin| plugin.manifest.as_ref()).for_each(|manifest| {
                        options_of(&mut text, manifest);
                    });
                }
                Err(failure) => text += &format!("\nInstalled backends: {}\n", failure.message),
            }
            text += "\nWith --backend NAME before --help: what that backend takes besides.\n";
        }
        Some(name) => {
            let catalog = find_plugins(flags, environment)?;
            let plugin = &catalog.plugins()[catalog.by_name(name)?];
            let Some(manifest) = &plugin.manifest else {
                return Err(Failure::new(format!("{}: its manifest could not be read", plugin.name())));
            };
            of_backend(&mut text, manifest);
        }
    }
    Ok(text)
}

fn section(text: &mut String, heading: &str, rows: &[&FlagSpec]) {
    if rows.is_empty() {
        return;
    }
    *text += &format!("\n{heading}:\n");
    for flag in rows {
        let left = match flag.value_name {
            "" => flag.name.to_owned(),
            value => format!("{} {value}", flag.name),
        };
        let default = match flag.default {
            "" => String::new(),
            default => format!(" [default: {default}]"),
        };
        line(text, &left, &format!("{}{default}", flag.help));
    }
}

fn line(text: &mut String, left: &str, right: &str) {
    if left.len() > 28 {
        *text += &format!("  {left}\n  {:28}  {right}\n", "");
    } else {
        *text += &format!("  {left:28}  {right}\n");
    }
}

fn of_backend(text: &mut String, manifest: &Manifest) {
    let plugin = &manifest.plugin;
    *text += &format!("\nBackend {} ({} {}):\n", plugin.backend, plugin.id, plugin.version);
    let drafters: Vec<&str> =
        DrafterKind::ALL.iter().filter(|kind| manifest.runs_drafter(**kind)).map(|kind| kind.id()).collect();
    line(text, "drafters", &listed(drafters.iter().copied()));
    let families = manifest.families.iter().map(|family| family.model_type.as_str());
    line(text, "model families", &listed(families));
    line(text, "ranks (--tp)", &listed(manifest.capabilities.worlds.iter().map(u32::to_string)));
    line(text, "--kv-dtype", &listed(manifest.capabilities.kv_dtypes.iter()));
    let own: Vec<&FlagSpec> = FLAGS
        .iter()
        .filter(|flag| {
            flag.answered_by == AnsweredBy::ServeFlags
                && manifest.capabilities.serve_flags.contains(flag.name)
        })
        .collect();
    section(text, "Options that only this backend takes", &own);
    options_of(text, manifest);
}

/// The options of a plugin's own, for `--opt`.
fn options_of(text: &mut String, manifest: &Manifest) {
    if manifest.options.is_empty() {
        return;
    }
    *text += &format!("\nOptions of backend {} ({}):\n", manifest.plugin.backend, manifest.plugin.id);
    for (typed, meaning) in plugin_options::of(manifest) {
        line(text, &format!("--opt {typed}"), &meaning);
    }
}

fn listed<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "none".into() } else { items.join(", ") }
}
