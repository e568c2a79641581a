//! The checkpoint's own multi-token prediction head: whether it drafts, and what it takes.

use std::ops::ControlFlow;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::TF_UNKNOWN;
use tensorfold_plugin_api::host::{DeviceClient, EngineClient, EngineSetup, ModelSource as _};
use tensorfold_plugin_api::plugin::{DrafterPlan, MemoryPlan};
use tensorfold_plugin_api::vocabulary::{DrafterKind, GivenFlags};

use super::admission::Admitted;
use crate::checkpoint::CheckpointSource;

/// What drafting with the head takes; `None` where nobody wants it or the plugin does not offer it for this model.
///
/// # Errors
/// What the plugin says against this head.
pub(super) fn plan(
    admitted: &Admitted,
    device: &DeviceClient,
    source: &CheckpointSource,
    setup: &EngineSetup,
    flags: &GivenFlags,
) -> Result<Option<DrafterPlan>, PluginError> {
    let spec = source.spec();
    let wanted = !flags.has("--no-drafts") && flags.integer("--mtp-drafts") != Some(0);
    if !wanted || spec.mtp.is_none() || !admitted.manifest.drafts_for(&spec.family, DrafterKind::Mtp) {
        return Ok(None);
    }
    device.plan_mtp(source, setup).map(Some)
}

/// Whether the user asked for drafts of the head, so that going without would be a silent loss.
pub(super) fn is_asked_for(flags: &GivenFlags) -> bool {
    !flags.has("--no-drafts")
        && (flags.integer("--mtp-drafts").is_some_and(|drafts| drafts > 0)
            || flags.number("--mtp-confidence").is_some())
}

/// Requests at full context that fit beside each other when each of them drafts, of `wanted`.
pub(super) fn lanes_beside(model: &MemoryPlan, head: &DrafterPlan, wanted: u32) -> u32 {
    if model.available_bytes == TF_UNKNOWN {
        return wanted;
    }
    let fixed = [model.weight_bytes, model.scratch_bytes, head.weight_bytes, head.scratch_bytes];
    let fixed = fixed.into_iter().fold(0, u64::saturating_add);
    let each = model.lane_bytes.saturating_add(head.lane_bytes);
    let lanes = model.available_bytes.saturating_sub(fixed).checked_div(each);
    lanes.map_or(wanted, |lanes| u32::try_from(lanes).unwrap_or(u32::MAX).min(wanted))
}

/// Makes the head ready and says how many drafts it makes for a request in a round.
///
/// # Errors
/// What the plugin says.
pub(super) fn open(engine: &mut EngineClient, name: &str) -> Result<u32, PluginError> {
    engine.open_mtp(|done, total, what| {
        tracing::info!(done, total, "{what} of {name}");
        ControlFlow::Continue(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_draft_take_more_room() {
        let model = MemoryPlan {
            weight_bytes: 100,
            scratch_bytes: 50,
            lane_bytes: 10,
            available_bytes: 250,
            ..MemoryPlan::default()
        };
        let head =
            DrafterPlan { weight_bytes: 20, scratch_bytes: 20, lane_bytes: 5, ..DrafterPlan::default() };
        assert_eq!(lanes_beside(&model, &head, 8), 4);
        assert_eq!(lanes_beside(&model, &head, 3), 3);
        let large = DrafterPlan { weight_bytes: u64::MAX, ..head };
        assert_eq!(lanes_beside(&model, &large, 8), 0);
        assert_eq!(lanes_beside(&MemoryPlan { available_bytes: TF_UNKNOWN, ..model }, &head, 8), 8);
    }

    #[test]
    fn a_head_is_asked_for_by_its_flags_alone() {
        let asked = |pairs: &[(&str, Option<&str>)]| {
            is_asked_for(&GivenFlags::from_pairs(pairs.iter().copied()).unwrap())
        };
        assert!(asked(&[("--mtp-drafts", Some("2"))]) && asked(&[("--mtp-confidence", Some("0.5"))]));
        assert!(!asked(&[]) && !asked(&[("--mtp-drafts", Some("0"))]));
        assert!(!asked(&[("--mtp-drafts", Some("2")), ("--no-drafts", None)]));
    }
}
