//! Questions to a manifest. Each answer is closed: what is not listed is no.

use std::collections::BTreeSet;

use super::{CopyDrafter, Drafter, ExternalDrafter, Family, Limits, Manifest, MtpDrafter, Plugin, Revisions};
use crate::vocabulary::{DrafterKind, DrafterOrigin, Words, format_covers};

impl Plugin {
    /// Name of the platform in sentences: "ROCm" where the engine is "HIP".
    pub fn platform_name(&self) -> &str {
        self.platform_name.as_deref().unwrap_or(&self.engine_name)
    }

    /// Whether `--backend NAME` means this plugin: its backend, an alias, its
    /// id, or `id/variant`.
    pub fn answers_to(&self, name: &str) -> bool {
        self.backend == name
            || self.aliases.iter().any(|alias| alias == name)
            || self.id == name
            || self.variant.as_ref().is_some_and(|variant| {
                name.split_once('/').is_some_and(|(id, wanted)| id == self.id && wanted == variant)
            })
    }

    /// The name for sentences where the user typed none: the first alias, else
    /// the backend.
    pub fn spoken_name(&self) -> &str {
        self.aliases.first().unwrap_or(&self.backend)
    }
}

impl Drafter {
    /// The revisions it runs; none for copies and for kinds unknown here.
    pub fn revision(&self) -> Option<Revisions> {
        match self {
            Drafter::Mtp(drafter) => Some(drafter.revision),
            Drafter::External(drafter) => Some(drafter.revision),
            Drafter::Copy(_) | Drafter::Unknown => None,
        }
    }
}

impl Revisions {
    /// Whether a revision lies within.
    pub fn contains(self, revision: u32) -> bool {
        (self.min..=self.max).contains(&revision)
    }
}

impl Manifest {
    /// The table of a drafter kind, if it is listed.
    pub fn drafter(&self, kind: DrafterKind) -> Option<&Drafter> {
        self.drafters.get(kind.id())
    }

    /// Whether a drafter kind is listed.
    pub fn runs_drafter(&self, kind: DrafterKind) -> bool {
        self.drafter(kind).is_some()
    }

    /// `[drafters.mtp]`.
    pub fn mtp(&self) -> Option<&MtpDrafter> {
        match self.drafter(DrafterKind::Mtp)? {
            Drafter::Mtp(drafter) => Some(drafter),
            _ => None,
        }
    }

    /// `[drafters.copy]`.
    pub fn copies(&self) -> Option<&CopyDrafter> {
        match self.drafter(DrafterKind::Copy)? {
            Drafter::Copy(drafter) => Some(drafter),
            _ => None,
        }
    }

    /// The table of a kind with a checkpoint of its own.
    pub fn external_drafter(&self, kind: DrafterKind) -> Option<&ExternalDrafter> {
        match self.drafter(kind)? {
            Drafter::External(drafter) => Some(drafter),
            _ => None,
        }
    }

    /// Listed kinds with a checkpoint of their own, as far as this host can
    /// tell such checkpoints apart. A kind unknown here is none: no checkpoint
    /// would ever be recognised as one.
    pub fn external_kinds(&self) -> impl Iterator<Item = DrafterKind> {
        let external = DrafterKind::ALL.iter().filter(|kind| kind.origin() == DrafterOrigin::External);
        external.copied().filter(|kind| self.runs_drafter(*kind))
    }

    /// The entry of a family.
    pub fn family(&self, model_type: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.model_type == model_type)
    }

    /// Whether a drafter kind runs with a family.
    pub fn drafts_for(&self, model_type: &str, kind: DrafterKind) -> bool {
        let Some(family) = self.family(model_type) else { return false };
        self.runs_drafter(kind) && family.drafters.as_ref().is_none_or(|kinds| kinds.contains(kind.id()))
    }

    /// Known drafter kinds that run with a family.
    pub fn drafters_for(&self, model_type: &str) -> Vec<DrafterKind> {
        DrafterKind::ALL.iter().copied().filter(|kind| self.drafts_for(model_type, *kind)).collect()
    }

    /// Formats listed for a family.
    pub fn formats_for(&self, model_type: &str) -> Option<&BTreeSet<String>> {
        Some(self.family(model_type)?.formats.as_ref().unwrap_or(&self.capabilities.formats))
    }

    /// Whether weights of a family may be stored as `format`.
    pub fn reads_format(&self, model_type: &str, format: &str) -> bool {
        self.formats_for(model_type)
            .is_some_and(|listed| listed.iter().any(|declared| format_covers(declared, format)))
    }

    /// Types of the key/value cache listed for a family.
    pub fn kv_dtypes_for(&self, model_type: &str) -> Option<&BTreeSet<String>> {
        Some(self.family(model_type)?.kv_dtypes.as_ref().unwrap_or(&self.capabilities.kv_dtypes))
    }

    /// Numbers of ranks listed for a family.
    pub fn worlds_for(&self, model_type: &str) -> Option<&BTreeSet<u32>> {
        Some(self.family(model_type)?.worlds.as_ref().unwrap_or(&self.capabilities.worlds))
    }

    /// Features listed for a family.
    pub fn features_for(&self, model_type: &str) -> Option<&BTreeSet<String>> {
        Some(self.family(model_type)?.features.as_ref().unwrap_or(&self.capabilities.features))
    }

    /// What a receipt may claim for a family.
    pub fn numerics_for(&self, model_type: &str) -> Option<&BTreeSet<String>> {
        Some(self.family(model_type)?.numerics.as_ref().unwrap_or(&self.capabilities.numerics))
    }

    /// Limits for a family.
    pub fn limits_for(&self, model_type: &str) -> Option<Limits> {
        Some(self.family(model_type)?.limits.unwrap_or(self.capabilities.limits))
    }

    /// Whether the key/value cache may be kept as `dtype`, in a manifest's
    /// spelling, for at least one family or by default.
    pub fn keeps_kv(&self, dtype: &str) -> bool {
        let own = self.families.iter().filter_map(|family| family.kv_dtypes.as_ref());
        Words::KvDtypes.knows(dtype)
            && own.chain([&self.capabilities.kv_dtypes]).any(|dtypes| dtypes.contains(dtype))
    }

    /// Whether so many ranks work for at least one family or by default.
    pub fn runs_world(&self, ranks: u32) -> bool {
        self.worlds().contains(&ranks)
    }

    /// Numbers of ranks that work for at least one family or by default.
    pub fn worlds(&self) -> BTreeSet<u32> {
        let own = self.families.iter().filter_map(|family| family.worlds.as_ref());
        own.chain([&self.capabilities.worlds]).flatten().copied().collect()
    }

    /// Whether at least one family, or the default, lists a feature.
    pub fn has_feature(&self, feature: &str) -> bool {
        let own = self.families.iter().filter_map(|family| family.features.as_ref());
        own.chain([&self.capabilities.features]).any(|features| features.contains(feature))
    }

    /// Whether `serve_flags` lists a flag.
    pub fn lists_flag(&self, flag: &str) -> bool {
        self.capabilities.serve_flags.contains(flag)
    }

    /// Most lanes of at least one family or by default; none is no limit.
    pub fn lanes_max(&self) -> Option<u32> {
        self.greatest_limit(|limits| limits.lanes)
    }

    /// Most context of at least one family or by default; none is no limit.
    pub fn context_max(&self) -> Option<u32> {
        self.greatest_limit(|limits| limits.context)
    }

    fn greatest_limit(&self, of: impl Fn(&Limits) -> Option<u32>) -> Option<u32> {
        let own = self.families.iter().filter_map(|family| family.limits.as_ref());
        let all: Option<Vec<u32>> = own.chain([&self.capabilities.limits]).map(of).collect();
        all?.into_iter().max()
    }
}
