//! Admission: whether a plugin serves a request, decided from its manifest and from facts.
//!
//! Everything in this folder is a pure function of its arguments: no file, no device, no environment, no clock. It
//! guarantees that what is accepted is declared by the manifest and within this host's own reach, and that a neutral
//! value, one that asks for nothing, is accepted with any plugin. What is not known yet (a model, a drafter's config,
//! the machine) is not judged; the caller comes back once it knows more.
//!
//! The checks stand in one list, [`CHECKS`], in the order in which `serve` meets them; it stops at the first refusal.
//! `plugins check` and `plugins why` read all of them.

mod drafting;
mod facts;
mod flags;
mod machine;
mod model;
mod options;
mod ranks;
mod refusal;

use std::path::Path;

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::vocabulary::{Code, GivenFlags};

use super::lifecycle::{Finding, Level};

pub use drafting::{keeps_from_drafting, wants_drafter_facts};
pub use facts::{DrafterFacts, Facts, HostFacts, ModelFacts, OwnHead};
pub use machine::agreement;
pub use options::{PluginOptions, add_configured};
pub use refusal::Refusal;

/// What is judged: a plugin, a request, and everything known besides.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// What the plugin declares.
    pub manifest: &'a Manifest,
    /// Where it was found, for messages.
    pub path: Option<&'a Path>,
    /// The flags of the command line.
    pub flags: &'a GivenFlags,
    /// Everything else that is known.
    pub facts: &'a Facts<'a>,
}

impl Subject<'_> {
    /// The beginning of a refusal of this plugin.
    fn refuse(&self, code: Code, what: impl Into<String>) -> Refusal {
        self.about(Finding::error(code, what))
    }

    /// A finding about this plugin.
    fn about(&self, finding: Finding) -> Refusal {
        let plugin = &self.manifest.plugin;
        let finding = finding.plugin(&plugin.id, plugin.version.to_string());
        let finding = match self.path {
            Some(path) => finding.at(path),
            None => finding,
        };
        Refusal { finding, sentence: None }
    }

    fn engine(&self) -> &str {
        &self.manifest.plugin.engine_name
    }
}

/// When a check is made. Stages follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Drafters and the own head: before anything else is looked at.
    Drafting,
    /// Flags that the plugin or the host does not serve.
    Flags,
    /// What the host can say from the manifest about ranks, context and cache.
    Request,
    /// Whether the library can be loaded on this machine.
    Target,
    /// Whether host and plugin speak one version of the contract.
    Abi,
    /// What the kernel tells about devices, without driver code.
    Hardware,
    /// Whether the plugin serves this model.
    Model,
}

/// One check.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, in tests and traces.
    pub name: &'static str,
    /// When it is made.
    pub stage: Stage,
    /// What it finds: refusals, and warnings that refuse nothing.
    pub run: fn(&Subject<'_>) -> Vec<Refusal>,
}

/// Every check, in order.
pub const CHECKS: &[Check] = &[
    Check { name: "external-drafter", stage: Stage::Drafting, run: drafting::external_drafter },
    Check { name: "drafter-limits", stage: Stage::Drafting, run: drafting::drafter_limits },
    Check { name: "own-head", stage: Stage::Drafting, run: drafting::own_head },
    Check { name: "mtp-depth", stage: Stage::Drafting, run: drafting::mtp_depth },
    Check { name: "mtp-confidence", stage: Stage::Drafting, run: drafting::mtp_confidence },
    Check { name: "host-drafts", stage: Stage::Drafting, run: drafting::host_drafts },
    Check { name: "flags", stage: Stage::Flags, run: flags::flags },
    Check { name: "lanes", stage: Stage::Flags, run: flags::lanes },
    Check { name: "options", stage: Stage::Flags, run: options::options },
    Check { name: "world-size", stage: Stage::Request, run: ranks::world_size },
    Check { name: "master", stage: Stage::Request, run: ranks::master },
    Check { name: "rank", stage: Stage::Request, run: ranks::rank },
    Check { name: "host-ranks", stage: Stage::Request, run: ranks::host_ranks },
    Check { name: "context", stage: Stage::Request, run: ranks::context },
    Check { name: "kv-dtype", stage: Stage::Request, run: ranks::kv_dtype },
    Check { name: "target", stage: Stage::Target, run: machine::target },
    Check { name: "abi", stage: Stage::Abi, run: machine::abi },
    Check { name: "interfaces", stage: Stage::Abi, run: machine::interfaces },
    Check { name: "devices", stage: Stage::Hardware, run: machine::devices },
    Check { name: "family", stage: Stage::Model, run: model::family },
    Check { name: "family-drafter", stage: Stage::Model, run: model::drafter },
    Check { name: "family-own-head", stage: Stage::Model, run: model::own_head },
    Check { name: "family-world", stage: Stage::Model, run: model::world },
    Check { name: "family-lanes", stage: Stage::Model, run: model::lanes },
    Check { name: "family-kv-dtype", stage: Stage::Model, run: model::kv_dtype },
    Check { name: "format", stage: Stage::Model, run: model::formats },
    Check { name: "window", stage: Stage::Model, run: model::window },
];

/// What an admitted request comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// What speaks against it without refusing it, to be shown and recorded.
    pub warnings: Vec<Refusal>,
    /// The plugin's own options: the given ones and the defaults of the others.
    pub options: PluginOptions,
    /// Tokens of prompt and reply, once a model is known: what was asked for, or the model's window, cut to the
    /// plugin's limit.
    pub context: Option<u32>,
    /// Whether that limit cut the window; then the caller says so.
    pub context_cut: bool,
}

/// Judges a request as `serve` does: the first refusal wins.
pub fn admit(subject: &Subject<'_>) -> Result<Admission, Box<Refusal>> {
    admit_by(CHECKS, subject)
}

/// Judges only what needs nothing but the manifest and the command line. `serve` does this before it resolves the
/// model, makes a folder or looks at a device, on every rank.
pub fn admit_early(subject: &Subject<'_>) -> Result<(), Box<Refusal>> {
    first_refusal(CHECKS.iter().filter(|check| check.stage <= Stage::Request), subject)
}

/// The first of those stages: drafters and the own head.
pub fn check_drafter_and_mtp(subject: &Subject<'_>) -> Result<(), Box<Refusal>> {
    first_refusal(CHECKS.iter().filter(|check| check.stage == Stage::Drafting), subject)
}

/// The second of those stages: flags that are not served.
pub fn check_flags(subject: &Subject<'_>) -> Result<(), Box<Refusal>> {
    first_refusal(CHECKS.iter().filter(|check| check.stage == Stage::Flags), subject)
}

/// Everything that is wrong, and every warning, in the order of the checks.
pub fn survey(subject: &Subject<'_>) -> Vec<Refusal> {
    CHECKS.iter().flat_map(|check| (check.run)(subject)).collect()
}

/// Judges by a list of checks: [`CHECKS`] for the product, a shorter one for tests that show what each check is for.
fn admit_by(checks: &[Check], subject: &Subject<'_>) -> Result<Admission, Box<Refusal>> {
    let mut warnings = Vec::new();
    for check in checks {
        for refusal in (check.run)(subject) {
            match refusal.finding.level {
                Level::Error => return Err(Box::new(refusal)),
                Level::Warning | Level::Note => warnings.push(refusal),
            }
        }
    }
    let (context, context_cut) = model::context(subject);
    Ok(Admission { warnings, options: options::resolve(subject), context, context_cut })
}

fn first_refusal<'c>(
    checks: impl Iterator<Item = &'c Check>,
    subject: &Subject<'_>,
) -> Result<(), Box<Refusal>> {
    let mut findings = checks.flat_map(|check| (check.run)(subject));
    match findings.find(|refusal| refusal.finding.level == Level::Error) {
        Some(refusal) => Err(Box::new(refusal)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
