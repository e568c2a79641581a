//! What a `config.json` is of, when it may be a drafter's.
//!
//! Never decided by the name of a folder or repository, and never by `model_type` alone: drafters have that of the
//! chat model whose layers they are made of.

use tensorfold_plugin_api::vocabulary::DrafterKind;

use super::fault::{Fault, FaultCode};
use crate::checkpoint::parts::{Config, Section, brief};

/// What a configuration is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A DFlash block drafter, first version.
    Dflash,
    /// A DFlash2 block drafter.
    Dflash2,
    /// A DSpark drafter.
    Dspark,
    /// An EAGLE drafter, first or second version.
    Eagle,
    /// An EAGLE3 drafter.
    Eagle3,
    /// A P-EAGLE drafter.
    Peagle,
    /// A multi-token prediction head without its model.
    Mtp,
    /// A whole model.
    Model,
    /// None of these; a fault says why.
    Unknown,
}

impl Class {
    /// The name in documents.
    pub const fn id(self) -> &'static str {
        match self {
            Class::Dflash => "dflash",
            Class::Dflash2 => "dflash2",
            Class::Dspark => "dspark",
            Class::Eagle => "eagle",
            Class::Eagle3 => "eagle3",
            Class::Peagle => "peagle",
            Class::Mtp => "mtp",
            Class::Model => "model",
            Class::Unknown => "unknown",
        }
    }

    /// The kind that manifests list, where it is one of a drafter with a checkpoint of its own.
    pub const fn external_kind(self) -> Option<DrafterKind> {
        match self {
            Class::Dflash => Some(DrafterKind::Dflash),
            Class::Dflash2 => Some(DrafterKind::Dflash2),
            Class::Dspark => Some(DrafterKind::Dspark),
            Class::Eagle => Some(DrafterKind::Eagle),
            Class::Eagle3 => Some(DrafterKind::Eagle3),
            Class::Peagle | Class::Mtp | Class::Model | Class::Unknown => None,
        }
    }

    /// The name in sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Dflash => "DFlash",
            Class::Dflash2 => "DFlash2",
            Class::Dspark => "DSpark",
            Class::Eagle => "EAGLE",
            Class::Eagle3 => "EAGLE3",
            Class::Peagle => "P-EAGLE",
            Class::Mtp => "MTP",
            Class::Model => "model",
            Class::Unknown => "unknown",
        }
    }

    /// Whether drafters of this kind are read.
    pub const fn is_block_drafter(self) -> bool {
        matches!(self, Class::Dflash | Class::Dflash2)
    }
}

/// What a configuration is of, and what speaks against it already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognition {
    /// What it is of.
    pub class: Class,
    /// Whether it is spelt as the speculators library does: other names, and layers counted from 1.
    pub speculators: bool,
    /// Why it is of no known kind.
    pub fault: Option<Fault>,
}

impl Recognition {
    /// Whether it is of a drafter with a checkpoint of its own, read or not.
    pub fn is_drafter(&self) -> bool {
        let odd = |fault: &Fault| fault.code != FaultCode::NotAModel;
        let external = self.class.external_kind().is_some() || self.class == Class::Peagle;
        self.speculators || external || self.fault.as_ref().is_some_and(odd)
    }

    fn of(class: Class) -> Recognition {
        Recognition { class, speculators: false, fault: None }
    }

    fn unknown(code: FaultCode, text: impl Into<String>) -> Recognition {
        Recognition { class: Class::Unknown, speculators: false, fault: Some(Fault::new(code, text)) }
    }
}

/// The fields that only DFlash2 has.
pub(super) const REFINEMENT: [&str; 4] =
    ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"];

const BLOCK: [&str; 3] = ["block_size", "mask_token_id", "target_layer_ids"];

/// Decides what a configuration is of. The order matters: drafters share class names and types with models and with
/// each other.
pub(crate) fn recognise(config: &Config) -> Recognition {
    let top = config.top();
    if top.get("speculators_config").is_some() || top.get("speculators_model_type").is_some() {
        return of_speculators(&top);
    }
    let nested = match top.section("dflash_config") {
        Ok(nested) => nested,
        Err(error) => {
            let fault = Some(Fault::of_config(error));
            return Recognition { class: Class::Unknown, speculators: false, fault };
        }
    };
    let classes = architectures(&top);
    let class_has = |part: &str| classes.iter().any(|class| class.contains(part));
    let anywhere =
        |key: &str| nested.as_ref().and_then(|nested| nested.get(key)).or_else(|| top.get(key)).is_some();
    let projector =
        nested.as_ref().and_then(|nested| nested.get("projector_type")).or_else(|| top.get("projector_type"));
    match projector {
        Some(name) if name == "dspark" => return Recognition::of(Class::Dspark),
        Some(other) => {
            let text = format!("projector_type {} is of no drafter that is known", brief(other));
            return Recognition::unknown(FaultCode::UnknownProjector, text);
        }
        None => {}
    }
    if class_has("DSpark") {
        return Recognition::of(Class::Dspark);
    }
    if nested.is_some() || class_has("DFlash") || BLOCK.into_iter().all(anywhere) {
        // A Markov head changes what is drafted; without it the rest would be a wrong drafter.
        if anywhere("markov_rank") {
            let text =
                "a DFlash drafter with a Markov head (markov_rank), which is neither DFlash nor DSpark";
            return Recognition::unknown(FaultCode::Hybrid, text);
        }
        let refined = class_has("DFlash2") || REFINEMENT.into_iter().any(anywhere);
        return Recognition::of(if refined { Class::Dflash2 } else { Class::Dflash });
    }
    if class_has("Eagle3") || top.get("eagle_aux_hidden_state_layer_ids").is_some() {
        return Recognition::of(Class::Eagle3);
    }
    if class_has("Eagle") {
        return Recognition::of(Class::Eagle);
    }
    let model_type = top.get("model_type").and_then(|name| name.as_str()).unwrap_or_default();
    if model_type.ends_with("_mtp") || model_type.ends_with("_assistant") {
        return Recognition::of(Class::Mtp);
    }
    if classes
        .iter()
        .any(|class| class.ends_with("ForCausalLM") || class.ends_with("ForConditionalGeneration"))
    {
        return Recognition::of(Class::Model);
    }
    Recognition::unknown(FaultCode::NotAModel, "its config.json is neither a drafter's nor a model's")
}

/// The format of the speculators library names its algorithm.
fn of_speculators(top: &Section<'_>) -> Recognition {
    let nested = top.get("speculators_config").and_then(|nested| nested.get("algorithm"));
    let algorithm = top.get("speculators_model_type").or(nested);
    let class = match algorithm.and_then(|name| name.as_str()) {
        Some("dflash") => Class::Dflash,
        Some("dflash2") => Class::Dflash2,
        Some("dspark") => Class::Dspark,
        Some("eagle") => Class::Eagle,
        Some("eagle3") => Class::Eagle3,
        Some("peagle") => Class::Peagle,
        Some("mtp") => Class::Mtp,
        _ => {
            let found = algorithm
                .map_or_else(|| "no algorithm".into(), |name| format!("the algorithm {}", brief(name)));
            let text = format!("a checkpoint in the speculators format with {found}, which is not known");
            return Recognition {
                speculators: true,
                ..Recognition::unknown(FaultCode::UnknownAlgorithm, text)
            };
        }
    };
    Recognition { speculators: true, ..Recognition::of(class) }
}

fn architectures<'a>(top: &Section<'a>) -> Vec<&'a str> {
    let names = top.get("architectures").and_then(|names| names.as_array());
    names.into_iter().flatten().filter_map(|name| name.as_str()).collect()
}
