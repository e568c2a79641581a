//! What the host says from the manifest alone about ranks, context and the key/value cache.
//!
//! Slots, confidence and cache sizes below 0 are already refused by the parser and have no check here.

use tensorfold_plugin_api::vocabulary::{Code, kv_dtype_name, sentences};

use super::{Refusal, Subject};

/// The number of ranks is one that the plugin runs.
pub(super) fn world_size(subject: &Subject<'_>) -> Vec<Refusal> {
    let (asked, worlds) = (subject.flags.world_size(), subject.manifest.worlds());
    if worlds.iter().any(|ranks| i64::from(*ranks) == asked) {
        return Vec::new();
    }
    let sentence = sentences::world_size(asked, subject.manifest.plugin.platform_name(), &worlds);
    vec![unsupported(subject, Code::WorldUnsupported, sentence).found(format!("--tp {asked}"))]
}

/// Several ranks have an address to meet at.
pub(super) fn master(subject: &Subject<'_>) -> Vec<Refusal> {
    let named = subject.flags.text("--master").is_some_and(|address| !address.is_empty());
    match subject.flags.world_size() > 1 && !named {
        true => vec![unsupported(subject, Code::WorldUnsupported, sentences::master_missing())],
        false => Vec::new(),
    }
}

/// The rank lies in its world.
pub(super) fn rank(subject: &Subject<'_>) -> Vec<Refusal> {
    let (rank, world) = (subject.flags.integer("--rank").unwrap_or(0), subject.flags.world_size());
    let sentence = match (rank, world) {
        (0, _) => return Vec::new(),
        (_, 1) => sentences::rank_without_world(),
        (rank, world) if (0..world).contains(&rank) => return Vec::new(),
        (rank, world) => sentences::rank_out_of_range(rank, world),
    };
    vec![unsupported(subject, Code::WorldUnsupported, sentence).found(format!("--rank {rank}"))]
}

/// Several ranks need a host that drives them, and one rank needs no address.
pub(super) fn host_ranks(subject: &Subject<'_>) -> Vec<Refusal> {
    let flags = subject.flags;
    if subject.facts.host.runs_ranks {
        return Vec::new();
    }
    let asking = ["--tp", "--master", "--master-port"]
        .into_iter()
        .find(|name| flags.last(name).is_some_and(|given| !given.is_neutral()));
    let Some(flag) = asking else { return Vec::new() };
    let sentence = sentences::flag_not_served(flag, sentences::Server::Host, "serve without it");
    vec![unsupported(subject, Code::WorldUnsupported, sentence)]
}

/// The context is a count of tokens that the plugin runs.
pub(super) fn context(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(asked) = subject.flags.integer("--context") else { return Vec::new() };
    let sentence = match subject.manifest.context_max() {
        _ if asked < 0 => sentences::context_not_a_count(asked),
        Some(limit) if asked > i64::from(limit) => {
            sentences::context_beyond_engine(asked, subject.engine(), limit)
        }
        _ => return Vec::new(),
    };
    vec![unsupported(subject, Code::ContextUnsupported, sentence).found(asked.to_string())]
}

/// The key/value cache is kept in a type that the plugin lists.
pub(super) fn kv_dtype(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(asked) = subject.flags.text("--kv-dtype") else { return Vec::new() };
    if subject.manifest.keeps_kv(kv_dtype_name(asked)) {
        return Vec::new();
    }
    let families = subject.manifest.families.iter().filter_map(|family| family.kv_dtypes.as_ref());
    let kept: std::collections::BTreeSet<&str> =
        families.chain([&subject.manifest.capabilities.kv_dtypes]).flatten().map(String::as_str).collect();
    vec![not_kept(subject, asked, kept.into_iter())]
}

/// Refuses `--kv-dtype`, naming the types that are kept.
pub(super) fn not_kept<'k>(
    subject: &Subject<'_>,
    asked: &str,
    kept: impl Iterator<Item = &'k str>,
) -> Refusal {
    let kept: Vec<&str> = kept.collect();
    let sentence = sentences::kv_dtype_not_kept(asked, subject.engine(), &kept);
    unsupported(subject, Code::KvUnsupported, sentence).wanted(kept.join(", ")).found(asked)
}

pub(super) fn unsupported(subject: &Subject<'_>, code: Code, sentence: String) -> Refusal {
    subject.refuse(code, sentence.clone()).saying(sentence)
}
