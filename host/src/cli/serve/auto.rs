//! `--drafter auto`: the drafter that is made for the model, where it is on this machine and fits, or none.
//!
//! It never fails and never asks the network. Equal sizes do not make a match, as generations of a model share them:
//! the model's name decides, and then everything that decides about a drafter that was named.

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::drafter::{NamedDrafter, drafter_facts, letters};
use crate::checkpoint::{self, Folder, HubCache, base_models, resolve};
use crate::cli::hub::Located;
use crate::drafter::{self, Target};
use crate::plugins::admit::{self, HostFacts};

/// A model for which somebody made a drafter.
struct Known {
    /// `model_type`, as manifests spell it.
    family: &'static str,
    /// The model's name, as repositories of it and of what is made from it hold it.
    model: &'static str,
    /// The drafter's repository.
    drafter: &'static str,
    /// Whether the checkpoint's own head is the better choice where nobody asks for the drafter.
    head_first: bool,
}

/// Published drafters, by the models that their cards name.
const KNOWN: [Known; 2] = [
    Known {
        family: "qwen3_5",
        model: "Qwen3.8-27B",
        drafter: "z-lab/Qwen3.8-27B-DFlash2",
        head_first: false,
    },
    Known {
        family: "qwen3_5_moe",
        model: "Qwen3.6-35B-A3B",
        drafter: "z-lab/Qwen3.6-35B-A3B-DFlash",
        head_first: true,
    },
];

/// What `auto` came to.
pub(super) struct Choice {
    /// The drafter, if there is one to use.
    pub drafter: Option<NamedDrafter>,
    /// What the user should know: what was chosen, or what could be.
    pub line: Option<String>,
}

/// Decides for a model that was admitted.
pub(super) fn choose(
    flags: &GivenFlags,
    manifest: &Manifest,
    host: &HostFacts,
    model: &Located,
    facts: &checkpoint::Facts,
    cache: &HubCache,
) -> Choice {
    let given = flags.last("--drafter").map(|given| given.text.as_str());
    if flags.has("--no-drafts") || given.is_some_and(|given| given != "auto") {
        return Choice { drafter: None, line: None };
    }
    // Where nobody asks, only what the user can do something about is worth a line.
    let asked = given.is_some();
    let none = |reason: String, worth_a_line: bool| Choice {
        drafter: None,
        line: (asked || worth_a_line).then(|| format!("--drafter auto: none, since {reason}")),
    };
    if manifest.external_kinds().next().is_none() {
        return none(format!("the {} engine runs no external drafter", manifest.plugin.engine_name), false);
    }
    let names = names(model, facts);
    let is_of = |known: &&Known| {
        let model = letters(known.model);
        known.family == facts.family && names.iter().any(|name| letters(name).contains(&model))
    };
    let Some(known) = KNOWN.iter().find(is_of) else {
        return none(format!("none is known that was made for {}", facts.name), false);
    };
    let repository = known.drafter;
    if known.head_first && facts.mtp {
        let reason =
            format!("the checkpoint's own head drafts; --drafter {repository} takes the external one");
        return none(reason, false);
    }
    let Ok(resolved) = resolve(repository, cache) else {
        let reason = format!(
            "{repository} is not in the Hugging Face cache; tensorfold pull {repository} puts it there"
        );
        return none(reason, true);
    };
    let survey = match drafter::survey(&resolved.directory) {
        Ok(survey) => survey,
        Err(error) => return none(error.to_string(), true),
    };
    let faults = match &facts.spec {
        Some(model) => survey.faults_with(Target::of(model), None),
        None => survey.faults(),
    };
    let Some(own) = drafter_facts(&survey).filter(|_| faults.is_empty()) else {
        return none(format!("{repository} does not fit: {}", drafter::one_line(&faults)), true);
    };
    if let Some(fault) = admit::keeps_from_drafting(manifest, host, &facts.family, &own, flags.world_size()) {
        return none(format!("the {} engine {fault}", manifest.plugin.engine_name), true);
    }
    Choice {
        line: Some(format!("--drafter auto: {repository}, which was made for {}", known.model)),
        drafter: Some(NamedDrafter::found(repository, Located::Here(resolved), survey, own)),
    }
}

/// Everything by which the model may be called: its repository, what its card says it was made from, its folder.
fn names(model: &Located, facts: &checkpoint::Facts) -> Vec<String> {
    let mut names = vec![facts.name.clone()];
    names.extend(model.repository().map(str::to_owned));
    if let Ok(folder) = Folder::open(model.directory()) {
        names.extend(base_models(&folder));
    }
    names
}
