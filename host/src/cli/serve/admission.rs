//! Which plugin serves, and whether it can: decided without a line of its code.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::auto;
use super::drafter::NamedDrafter;
use crate::checkpoint::{self, HubCache};
use crate::cli::arguments::ModelArguments;
use crate::cli::hub::{self, Located, Remote};
use crate::cli::{Failure, find_plugins, named_backend};
use crate::plugins::admit::{self, Admission, Facts, HostFacts, ModelFacts, OwnHead, PluginOptions, Subject};
use crate::plugins::catalog::Catalog;
use crate::plugins::environment::Environment;
use crate::plugins::inspect::Inspection;

/// A request that may go on to the plugin's own code.
pub(in crate::cli) struct Admitted {
    /// All plugins, with the chosen one among them.
    pub catalog: Catalog,
    /// The chosen one.
    pub index: usize,
    /// What was found out about its library.
    pub inspection: Inspection,
    /// What the request comes to.
    pub admission: Admission,
    /// The model's folder; only its metadata while the model is still [`Admitted::remote`].
    pub directory: PathBuf,
    /// The model, where it has to be downloaded.
    pub remote: Option<Box<Remote>>,
    /// The drafter that `--drafter` names: it fits, and nothing of its weights was read.
    pub drafter: Option<Box<NamedDrafter>>,
    /// The model's name for clients.
    pub name: String,
    /// The plugin's manifest.
    pub manifest: Manifest,
    /// Whether the plugin drives an accelerator, whose driver may mind a normal exit.
    pub accelerator: bool,
    /// What the user should know, one line each.
    pub lines: Vec<String>,
    /// Why the processor serves although an accelerator is there.
    pub fallback: Option<String>,
}

impl Admitted {
    /// The plugin's id, for logs.
    pub(in crate::cli) fn plugin_name(&self) -> &str {
        &self.manifest.plugin.id
    }

    /// Whether the processor may take this plugin's place once it has failed.
    pub(in crate::cli) fn may_fall_back(&self, flags: &GivenFlags) -> bool {
        self.accelerator && named_backend(flags).is_none() && flags.has("--allow-fallback")
    }

    /// The engine's name for users.
    pub(in crate::cli) fn engine_name(&self) -> &str {
        &self.manifest.plugin.engine_name
    }
}

/// Judges a request.
///
/// # Errors
/// The first refusal, in the order in which `serve` makes its checks.
pub(in crate::cli) fn admit(
    arguments: &ModelArguments,
    environment: &Environment,
) -> Result<Admitted, Failure> {
    let mut catalog = find_plugins(&arguments.flags, environment)?;
    let mut lines = Vec::new();
    let (index, fallback) = choose(&mut catalog, &arguments.flags, &mut lines)?;
    judge(arguments, catalog, index, lines, fallback, &HostFacts::of_this_program())
}

/// Judges the request once more, for the processor, after the accelerator that `auto` took has failed.
///
/// # Errors
/// That failure, where no plugin for the processor is there; else the first refusal.
pub(in crate::cli) fn fall_back(
    arguments: &ModelArguments,
    failed: Admitted,
    why: Failure,
) -> Result<Admitted, Failure> {
    let Some(index) = failed.catalog.processor() else { return Err(why) };
    let lines = vec![format!("warning: {}; the processor serves instead", why.message)];
    let host = HostFacts::of_this_program();
    judge(arguments, failed.catalog, index, lines, Some(why.message), &host)
}

/// Judges a request to one plugin.
pub(super) fn judge(
    arguments: &ModelArguments,
    mut catalog: Catalog,
    index: usize,
    mut lines: Vec<String>,
    fallback: Option<String>,
    host: &HostFacts,
) -> Result<Admitted, Failure> {
    let flags = &arguments.flags;
    let plugin = &catalog.plugins()[index];
    let library = plugin.library.clone();
    let manifest = plugin
        .manifest
        .clone()
        .ok_or_else(|| Failure::new(format!("{}: its manifest could not be read", plugin.name())))?;
    let subject = |facts| Subject { manifest: &manifest, path: library.as_deref(), flags, facts };
    // Nothing before this line looked at a model, a device or a network, and nothing was written.
    let early = Facts::of_host(host);
    admit::admit_early(&subject(&early)).map_err(Failure::from_refusal)?;
    let configured = catalog.configured_options(index);
    let merge = |options: &mut PluginOptions| {
        admit::add_configured(options, &manifest, &configured, flags).map_err(Failure::new)
    };
    merge(&mut PluginOptions::new())?;
    // A plugin that runs some kind of drafter: which one was named decides. Of the drafter its configuration and the
    // headers of its weights are read.
    let drafter = NamedDrafter::find(flags, &manifest)?;
    let known = Facts { drafter: drafter.as_ref().map(NamedDrafter::facts), ..early };
    if let Some(drafter) = &drafter {
        admit::admit_early(&subject(&known)).map_err(Failure::from_refusal)?;
        drafter.check_kind()?;
    }
    let located = hub::locate(&arguments.model)?;
    let metadata = model_metadata(&located)?;
    let facts = admission_facts(&metadata);
    let inspection = catalog.inspect(index);
    if let Some(finding) = catalog.refusal(index) {
        return Err(Failure::from_finding(finding));
    }
    let all = Facts { model: Some(&facts), ..known };
    let mut admission = admit::admit(&subject(&all)).map_err(|refusal| {
        let mut failure = Failure::from_refusal(refusal);
        if named_backend(flags).is_none() {
            failure.message.push_str(&ways_out(&catalog, index, flags, &all));
        }
        failure
    })?;
    if let (Some(drafter), Some(model)) = (&drafter, &metadata.spec) {
        drafter.check_fit(model)?;
        lines.extend(drafter.lines(&located));
    }
    merge(&mut admission.options)?;
    let drafter = match drafter {
        Some(named) => Some(named),
        None => {
            let cache = HubCache::from_environment();
            let choice = auto::choose(flags, &manifest, host, &located, &metadata, &cache);
            lines.extend(choice.line);
            choice.drafter
        }
    };
    lines.extend(admission.warnings.iter().map(ToString::to_string));
    if admission.context_cut {
        lines.push(format!(
            "the context is {} tokens: the {} engine holds no more",
            admission.context.unwrap_or_default(),
            manifest.plugin.engine_name
        ));
    }
    let accelerator = manifest.devices.iter().any(|device| device.kind != "cpu");
    let (directory, name, remote) = match located {
        Located::Here(found) => (found.directory, found.name, None),
        Located::There(remote) => (remote.directory().to_owned(), remote.name().to_owned(), Some(remote)),
    };
    Ok(Admitted {
        catalog,
        index,
        inspection,
        admission,
        directory,
        name,
        remote,
        drafter: drafter.map(Box::new),
        accelerator,
        lines,
        fallback,
        manifest,
    })
}

/// What a user whose plugin was chosen by `auto` can name instead: the model never decides which
/// plugin `auto` takes, so the one that it took may be unable to run it.
fn ways_out(catalog: &Catalog, taken: usize, flags: &GivenFlags, facts: &Facts<'_>) -> String {
    let others: Vec<String> = catalog
        .plugins()
        .iter()
        .enumerate()
        .filter(|(index, plugin)| *index != taken && plugin.is_active())
        .filter_map(|(_, plugin)| Some((plugin, plugin.manifest.as_ref()?)))
        .filter(|(plugin, manifest)| {
            admit::admit(&Subject { manifest, path: plugin.library.as_deref(), flags, facts }).is_ok()
        })
        .map(|(_, manifest)| format!("--backend {}", manifest.plugin.backend))
        .collect();
    let backend = catalog.plugins()[taken].manifest.as_ref().map_or("", |taken| &taken.plugin.backend);
    match others.as_slice() {
        [] => format!("; --backend auto took {backend}"),
        others => format!("; --backend auto took {backend}, {} can run this model", others.join(" or ")),
    }
}

/// The plugin that serves: the one that was named, or the one that fits the machine. The second value says why it is
/// the processor's although an accelerator is there.
fn choose(
    catalog: &mut Catalog,
    flags: &GivenFlags,
    lines: &mut Vec<String>,
) -> Result<(usize, Option<String>), Failure> {
    if let Some(name) = named_backend(flags) {
        return Ok((catalog.by_name(name)?, None));
    }
    let choice = catalog.auto(flags.has("--allow-fallback"))?;
    let warning = if choice.fallback { "warning: " } else { "" };
    lines.push(format!("{warning}--backend auto: {}", choice.reason));
    lines.extend(choice.not_taken.into_iter().map(|reason| format!("not taken: {reason}")));
    Ok((choice.index, choice.fallback.then_some(choice.reason)))
}

/// The metadata of a model that can be opened.
pub(in crate::cli) fn model_metadata(model: &Located) -> Result<checkpoint::Facts, Failure> {
    let facts = checkpoint::read_facts(model.directory());
    let refused = |error: checkpoint::CheckpointError| Failure::new(model.spoken(&error.to_string()));
    let facts = facts.map_err(refused)?;
    if let Some(missing) = model.without_tokenizer(&facts.kind) {
        return Err(refused(missing));
    }
    Ok(facts)
}

/// What admission needs to know of a model.
pub(in crate::cli) fn admission_facts(facts: &checkpoint::Facts) -> ModelFacts {
    let weights = if facts.mtp_in_side_file { "side-file" } else { "in-checkpoint" };
    let own_head = facts.mtp.then_some(OwnHead { revision: 1, weights });
    ModelFacts {
        family: facts.family.clone(),
        formats: facts.formats.iter().cloned().collect::<BTreeSet<String>>(),
        context_window: facts.context_window,
        own_head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_under_auto_names_the_backends_that_would_do() {
        let (root, _) = crate::plugins::catalog::tests::installed(&["backend-one", "backend-two"]);
        let catalog = crate::plugins::catalog::tests::find(root.path());
        let host = HostFacts::of_this_program();
        let facts = Facts::of_host(&host);
        let text = ways_out(&catalog, 0, &GivenFlags::new(), &facts);
        assert_eq!(text, "; --backend auto took one, --backend two can run this model");
        let ranks = GivenFlags::from_pairs([("--tp", Some("2")), ("--master", Some("h"))]).unwrap();
        assert_eq!(ways_out(&catalog, 0, &ranks, &facts), "; --backend auto took one");
    }
}
