//! What is known about host, machine, drafter and model when a request is judged.

use std::collections::BTreeSet;

use semver::Version;
use tensorfold_plugin_api::abi::{ABI_MAJOR, ABI_MINOR, BACKEND_INTERFACE, ENGINE_INTERFACE, HOST_INTERFACE};
use tensorfold_plugin_api::negotiation::AbiVersion;
use tensorfold_plugin_api::vocabulary::DrafterKind;

use crate::plugins::hardware::Hardware;

/// Everything that is known. What is `None` is not judged.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The host.
    pub host: &'a HostFacts,
    /// What the kernel tells about the machine.
    pub hardware: Option<&'a Hardware>,
    /// The drafter that `--drafter` names, from its config.
    pub drafter: Option<&'a DrafterFacts>,
    /// The model, from its config and tensor index.
    pub model: Option<&'a ModelFacts>,
}

impl<'a> Facts<'a> {
    /// Nothing is known but the host itself.
    pub fn of_host(host: &'a HostFacts) -> Self {
        Self { host, hardware: None, drafter: None, model: None }
    }
}

/// The host: its versions, and how far it can go itself.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Its release.
    pub release: Version,
    /// The latest minor of each ABI major that it speaks.
    pub abi: Vec<AbiVersion>,
    /// Backend interfaces that it speaks, the one it likes best first.
    pub backend_interfaces: Vec<&'static str>,
    /// Engine interfaces that it speaks, the one it likes best first.
    pub engine_interfaces: Vec<&'static str>,
    /// Interfaces that it offers to plugins.
    pub host_interfaces: Vec<&'static str>,
    /// Drafter kinds that it can drive. A plugin's promise beyond these is refused rather than left unused.
    pub drafters: Vec<DrafterKind>,
    /// Whether it can share one model between several processes.
    pub runs_ranks: bool,
}

impl HostFacts {
    /// This program.
    pub fn of_this_program() -> Self {
        Self {
            release: Version::parse(env!("CARGO_PKG_VERSION")).expect("cargo checks the version of a crate"),
            abi: vec![AbiVersion { major: ABI_MAJOR, minor: ABI_MINOR }],
            backend_interfaces: vec![BACKEND_INTERFACE],
            engine_interfaces: vec![ENGINE_INTERFACE],
            host_interfaces: vec![HOST_INTERFACE],
            drafters: vec![DrafterKind::Mtp, DrafterKind::Dflash, DrafterKind::Dflash2],
            // Rounds are driven by one process.
            runs_ranks: false,
        }
    }
}

/// A drafter checkpoint, from its config and the headers of its weight files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterFacts {
    /// Its kind.
    pub kind: DrafterKind,
    /// Its revision.
    pub revision: u32,
    /// Longest block that it drafts, in tokens.
    pub block: Option<u32>,
    /// Layers of the target that it reads.
    pub taps: Option<u32>,
    /// Number types of its weights, as manifests spell them; empty where they are not known.
    pub dtypes: BTreeSet<String>,
    /// Whether its vocabulary is only a part of the target's.
    pub pruned_vocabulary: bool,
}

/// A model, from its config and tensor index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its family, as manifests spell it.
    pub family: String,
    /// Forms in which its weights are stored, as manifests spell them.
    pub formats: BTreeSet<String>,
    /// Positions that it was made for, if its config says so.
    pub context_window: Option<u32>,
    /// Its own multi-token prediction head, if it has one.
    pub own_head: Option<OwnHead>,
}

/// A checkpoint's own multi-token prediction head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnHead {
    /// Its revision.
    pub revision: u32,
    /// Where its weights lie, as manifests spell it: `in-checkpoint` or `side-file`.
    pub weights: &'static str,
}
