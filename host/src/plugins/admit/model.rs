//! Whether the plugin serves this model: family, formats, window, and what the family changes of the rest.

use tensorfold_plugin_api::vocabulary::{Code, DrafterKind, kv_dtype_name, sentences};

use super::drafting::first_head_flag;
use super::flags::too_many_lanes;
use super::ranks::{not_kept, unsupported};
use super::{Refusal, Subject};

/// The family of a known model that the plugin runs.
fn served_family<'a>(subject: &Subject<'a>) -> Option<&'a str> {
    let family = &subject.facts.model?.family;
    subject.manifest.family(family).map(|_| family.as_str())
}

/// The plugin runs the family.
pub(super) fn family(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(model) = subject.facts.model else { return Vec::new() };
    if subject.manifest.family(&model.family).is_some() {
        return Vec::new();
    }
    let families: Vec<&str> =
        subject.manifest.families.iter().map(|family| family.model_type.as_str()).collect();
    let sentence = sentences::family_not_run(subject.engine(), &model.family, &families);
    let refusal = unsupported(subject, Code::FamilyUnsupported, sentence);
    vec![refusal.wanted(families.join(", ")).found(&*model.family)]
}

/// The drafter's kind runs with the family.
pub(super) fn drafter(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(family), Some(_), Some(drafter)) =
        (served_family(subject), subject.flags.named_drafter(), subject.facts.drafter)
    else {
        return Vec::new();
    };
    if !subject.manifest.runs_drafter(drafter.kind) || subject.manifest.drafts_for(family, drafter.kind) {
        return Vec::new();
    }
    let kind = drafter.kind.display_name();
    let sentence = sentences::drafter_not_run_with_family(subject.engine(), kind, family);
    vec![unsupported(subject, Code::DrafterUnsupported, sentence)]
}

/// What was asked of the own head can be had from this one.
pub(super) fn own_head(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(family), Some(model), Some(flag)) =
        (served_family(subject), subject.facts.model, first_head_flag(subject.flags))
    else {
        return Vec::new();
    };
    let Some(table) = subject.manifest.mtp() else { return Vec::new() };
    let name = flag.flag.name;
    let sentence = if !subject.manifest.drafts_for(family, DrafterKind::Mtp) {
        sentences::mtp_not_run_with_family(name, subject.engine(), family)
    } else {
        match &model.own_head {
            None => format!("{name}: this checkpoint has no MTP head; serve without {name}"),
            Some(head) if !table.revision.contains(head.revision) => format!(
                "{name}: the {} engine runs revisions {} to {} of MTP heads, this checkpoint's is {}",
                subject.engine(),
                table.revision.min,
                table.revision.max,
                head.revision
            ),
            Some(head) if !table.weights.contains(head.weights) => format!(
                "{name}: the {} engine reads no MTP head that lies {}; serve without {name}",
                subject.engine(),
                if head.weights == "side-file" { "in a side file" } else { "in the checkpoint" }
            ),
            Some(_) => return Vec::new(),
        }
    };
    vec![unsupported(subject, Code::DrafterUnsupported, sentence)]
}

/// The number of ranks works with the family.
pub(super) fn world(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(family) = served_family(subject) else { return Vec::new() };
    let Some(worlds) = subject.manifest.worlds_for(family) else { return Vec::new() };
    let asked = subject.flags.world_size();
    if worlds.iter().any(|ranks| i64::from(*ranks) == asked) {
        return Vec::new();
    }
    let platform = subject.manifest.plugin.platform_name();
    let sentence = sentences::world_size_with_family(asked, platform, family, worlds);
    vec![unsupported(subject, Code::WorldUnsupported, sentence)]
}

/// A fixed number of lanes stays within the family's limit.
pub(super) fn lanes(subject: &Subject<'_>) -> Vec<Refusal> {
    let limits = served_family(subject).and_then(|family| subject.manifest.limits_for(family));
    limits.and_then(|limits| too_many_lanes(subject, limits.lanes)).into_iter().collect()
}

/// The key/value cache is kept in a type that is listed for the family.
pub(super) fn kv_dtype(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(family), Some(asked)) = (served_family(subject), subject.flags.text("--kv-dtype")) else {
        return Vec::new();
    };
    match subject.manifest.kv_dtypes_for(family) {
        Some(kept) if !kept.contains(kv_dtype_name(asked)) => {
            vec![not_kept(subject, asked, kept.iter().map(String::as_str))]
        }
        _ => Vec::new(),
    }
}

/// Every form in which weights are stored is one that the plugin reads.
pub(super) fn formats(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(family), Some(model)) = (served_family(subject), subject.facts.model) else {
        return Vec::new();
    };
    let unread: Vec<&str> = model
        .formats
        .iter()
        .map(String::as_str)
        .filter(|format| !subject.manifest.reads_format(family, format))
        .collect();
    if unread.is_empty() {
        return Vec::new();
    }
    let read: Vec<&str> =
        subject.manifest.formats_for(family).into_iter().flatten().map(String::as_str).collect();
    let sentence = sentences::format_not_read(subject.engine(), family, &unread, &read);
    let refusal = unsupported(subject, Code::FormatUnsupported, sentence);
    vec![refusal.wanted(read.join(", ")).found(unread.join(", "))]
}

/// The context lies within the model's window, and there is one when it was asked for.
pub(super) fn window(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(model) = subject.facts.model else { return Vec::new() };
    let asked = subject.flags.integer("--context").unwrap_or(0);
    let limit = served_family(subject)
        .and_then(|family| subject.manifest.limits_for(family))
        .and_then(|limits| limits.context);
    let sentence = match (model.context_window, limit) {
        (None, _) if asked == 0 => sentences::context_without_window(),
        (Some(window), _) if asked > i64::from(window) => sentences::context_beyond_window(asked, window),
        (_, Some(limit)) if asked > i64::from(limit) => {
            sentences::context_beyond_engine(asked, subject.engine(), limit)
        }
        _ => return Vec::new(),
    };
    vec![unsupported(subject, Code::ContextUnsupported, sentence)]
}

/// The context to serve with, and whether the plugin's limit cut the model's window.
pub(super) fn context(subject: &Subject<'_>) -> (Option<u32>, bool) {
    let Some(family) = served_family(subject) else { return (None, false) };
    let asked = subject.flags.integer("--context").filter(|asked| *asked > 0);
    if let Some(asked) = asked {
        return (u32::try_from(asked).ok(), false);
    }
    let window = subject.facts.model.and_then(|model| model.context_window);
    let limit = subject.manifest.limits_for(family).and_then(|limits| limits.context);
    match (window, limit) {
        (Some(window), Some(limit)) if limit < window => (Some(limit), true),
        (window, _) => (window, false),
    }
}
