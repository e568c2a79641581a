//! Drafters and the checkpoint's own head, as far as the manifest alone decides.

use tensorfold_plugin_api::manifest::{ExternalDrafter, Manifest, MtpDrafter};
use tensorfold_plugin_api::vocabulary::{
    Code, DrafterKind, Given, GivenFlags, alternatives, format_covers, sentences,
};

use super::{DrafterFacts, HostFacts, Refusal, Subject};

/// Flags that ask for the checkpoint's own head.
const HEAD_FLAGS: [&str; 2] = ["--mtp-drafts", "--mtp-confidence"];

/// Whether the drafter's config must be read to judge a request: one is named, and the plugin runs some kind.
pub fn wants_drafter_facts(manifest: &Manifest, flags: &GivenFlags) -> bool {
    flags.named_drafter().is_some() && manifest.external_kinds().next().is_some()
}

/// A named drafter needs a plugin that runs its kind. With a plugin that runs none the kind does not matter, so that
/// nothing has to be resolved or read to refuse.
pub(super) fn external_drafter(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(name) = subject.flags.named_drafter() else { return Vec::new() };
    let kinds: Vec<DrafterKind> = subject.manifest.external_kinds().collect();
    let missing = match subject.facts.drafter {
        // The kind that is asked for most, where none is looked at.
        None if kinds.is_empty() => DrafterKind::Dflash2,
        Some(drafter) if !kinds.contains(&drafter.kind) => drafter.kind,
        _ => return Vec::new(),
    };
    let sentence = sentences::drafter_not_run(subject.engine(), missing.display_name());
    let wanted = match kinds.as_slice() {
        [] => "no --drafter".to_owned(),
        kinds => format!("a drafter of kind {}", alternatives(kinds)),
    };
    vec![unsupported(subject, sentence).wanted(wanted).found(format!("--drafter {name}"))]
}

/// A drafter of a kind that the plugin runs has to lie within its limits. All faults go into one line.
pub(super) fn drafter_limits(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(_), Some(drafter)) = (subject.flags.named_drafter(), subject.facts.drafter) else {
        return Vec::new();
    };
    let Some(table) = subject.manifest.external_drafter(drafter.kind) else { return Vec::new() };
    let faults = faults(table, drafter, subject.flags.world_size());
    match faults.is_empty() {
        true => Vec::new(),
        false => {
            vec![unsupported(subject, sentences::drafter_outside_limits(subject.engine(), &faults))]
        }
    }
}

/// What keeps a plugin from running a drafter that nobody named, as the end of a sentence about its engine.
pub fn keeps_from_drafting(
    manifest: &Manifest,
    host: &HostFacts,
    family: &str,
    drafter: &DrafterFacts,
    world: i64,
) -> Option<String> {
    let kind = drafter.kind;
    let Some(table) = manifest.external_drafter(kind).filter(|_| manifest.drafts_for(family, kind)) else {
        return Some(format!("runs no {} drafter with {family} checkpoints", kind.display_name()));
    };
    if !drives(manifest, host, kind) {
        return Some(format!("offers no interface for {kind} drafters that this tensorfold speaks"));
    }
    let faults = faults(table, drafter, world);
    (!faults.is_empty()).then(|| faults.join("; "))
}

/// Whether this host can drive drafters of a kind that the plugin lists.
fn drives(manifest: &Manifest, host: &HostFacts, kind: DrafterKind) -> bool {
    let spoken = |id: &str| manifest.abi.interfaces.contains(id);
    host.drafters.contains(&kind) && kind.interface().is_none_or(spoken)
}

fn faults(table: &ExternalDrafter, drafter: &DrafterFacts, world: i64) -> Vec<String> {
    let mut faults = Vec::new();
    let kind = drafter.kind;
    if !table.revision.contains(drafter.revision) {
        let (min, max) = (table.revision.min, table.revision.max);
        let range = if min == max { format!("revision {min}") } else { format!("revisions {min} to {max}") };
        faults.push(format!("runs {kind} {range}, this drafter's is {}", drafter.revision));
    }
    if let Some(block) = drafter.block.filter(|block| *block > table.block_max) {
        faults.push(format!("drafts blocks of at most {}, this drafter's is {block}", table.block_max));
    }
    if let (Some(taps), Some(most)) = (drafter.taps, table.taps_max)
        && taps > most
    {
        faults.push(format!("gives a drafter at most {most} layers to read, this one reads {taps}"));
    }
    let runs = |dtype: &&String| table.dtypes.iter().any(|declared| format_covers(declared, dtype));
    if !drafter.dtypes.iter().all(|dtype| runs(&dtype)) {
        let own: Vec<&str> = drafter.dtypes.iter().map(String::as_str).collect();
        let (dtypes, own) = (alternatives(&table.dtypes), own.join(" and "));
        faults.push(format!("runs {kind} drafters in {dtypes}, this one is in {own}"));
    }
    if drafter.pruned_vocabulary && !table.vocab_prune {
        faults.push(format!(
            "runs {kind} drafters with the target's whole vocabulary, this one has a part of it"
        ));
    }
    if !table.worlds.iter().any(|ranks| i64::from(*ranks) == world) {
        faults.push(format!("drafts with {kind} under --tp {}, not {world}", alternatives(&table.worlds)));
    }
    faults
}

/// The flags of the own head need a plugin that drafts with one, under this number of ranks.
pub(super) fn own_head(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(flag) = first_head_flag(subject.flags) else { return Vec::new() };
    let name = flag.flag.name;
    let world = subject.flags.world_size();
    match subject.manifest.mtp() {
        None => {
            let sentence = sentences::mtp_not_run(name, subject.engine());
            vec![unsupported(subject, sentence).found(format!("{name} {}", flag.text))]
        }
        Some(head) if !head.worlds.iter().any(|ranks| i64::from(*ranks) == world) => {
            vec![unsupported(subject, sentences::mtp_world(name, subject.engine(), world, &head.worlds))]
        }
        Some(_) => Vec::new(),
    }
}

/// The own head drafts no deeper than the manifest says.
pub(super) fn mtp_depth(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(head), Some(flag)) = (subject.manifest.mtp(), head_flag(subject.flags, "--mtp-drafts")) else {
        return Vec::new();
    };
    let asked = flag.value.as_integer().unwrap_or_default();
    match asked > i64::from(head.depth_max) {
        true => {
            let sentence = sentences::mtp_too_deep(asked, subject.engine(), head.depth_max);
            let refusal = unsupported(subject, sentence);
            vec![refusal.wanted(format!("at most {}", head.depth_max)).found(asked.to_string())]
        }
        false => Vec::new(),
    }
}

/// A chain can end early only where drafts come with probabilities.
pub(super) fn mtp_confidence(subject: &Subject<'_>) -> Vec<Refusal> {
    match (subject.manifest.mtp(), head_flag(subject.flags, "--mtp-confidence")) {
        (Some(MtpDrafter { confidence: false, .. }), Some(_)) => {
            vec![unsupported(subject, sentences::mtp_without_confidence(subject.engine()))]
        }
        _ => Vec::new(),
    }
}

/// What the plugin promises and this host can not drive is refused, not left unused.
pub(super) fn host_drafts(subject: &Subject<'_>) -> Vec<Refusal> {
    let drives = |kind| drives(subject.manifest, subject.facts.host, kind);
    let refuse = |flag: &str| {
        let sentence = sentences::flag_not_served(flag, sentences::Server::Host, "serve without it");
        vec![unsupported(subject, sentence)]
    };
    if subject.flags.named_drafter().is_some() {
        // Before the drafter's kind is known, any kind that could be meant counts.
        let meant = |kind: &DrafterKind| subject.facts.drafter.is_none_or(|drafter| drafter.kind == *kind);
        let mut promised = subject.manifest.external_kinds().filter(meant).peekable();
        if promised.peek().is_some() && !promised.any(drives) {
            return refuse("--drafter");
        }
    }
    match first_head_flag(subject.flags) {
        Some(flag) if subject.manifest.mtp().is_some() && !drives(DrafterKind::Mtp) => refuse(flag.flag.name),
        _ => Vec::new(),
    }
}

/// The first flag that asks something of the own head.
pub(super) fn first_head_flag(flags: &GivenFlags) -> Option<&Given> {
    HEAD_FLAGS.iter().find_map(|name| head_flag(flags, name))
}

/// The use that counts of a flag of the own head, if it asks for something: `--no-drafts` makes it moot.
pub(super) fn head_flag<'f>(flags: &'f GivenFlags, name: &str) -> Option<&'f Given> {
    flags.last(name).filter(|given| !given.is_neutral() && !flags.has("--no-drafts"))
}

fn unsupported(subject: &Subject<'_>, sentence: String) -> Refusal {
    subject.refuse(Code::DrafterUnsupported, sentence.clone()).saying(sentence)
}
