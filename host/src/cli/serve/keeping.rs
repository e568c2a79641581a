//! How much memory kept prompt states may take.

use tensorfold_plugin_api::abi::TF_UNKNOWN;
use tensorfold_plugin_api::plugin::MemoryPlan;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use crate::engine::PrefixOptions;
use crate::plugins::lifecycle::{Code, Finding};

const GIB: f64 = (1_u64 << 30) as f64;

/// Most bytes where the user says nothing.
const DEFAULT_MOST: u64 = 4 << 30;

/// Bytes where the user says nothing and nobody knows what is free.
const DEFAULT_UNKNOWN: u64 = 1 << 30;

/// Kept states where the user says nothing.
const DEFAULT_ENTRIES: u32 = 32;

/// What the flags say, else half of what the model and its requests leave.
///
/// # Errors
/// When more was asked for than is left and the user does not insist.
pub(super) fn prefixes(
    flags: &GivenFlags,
    plan: &MemoryPlan,
    lanes: u32,
    offered: bool,
) -> Result<PrefixOptions, Box<Finding>> {
    let entries = flags
        .integer("--checkpoint-slots")
        .map_or(DEFAULT_ENTRIES, |slots| u32::try_from(slots.max(0)).unwrap_or(u32::MAX));
    let lane_bytes = plan.lane_bytes.saturating_mul(lanes.into());
    let left = (plan.available_bytes != TF_UNKNOWN).then(|| {
        plan.available_bytes
            .saturating_sub(plan.weight_bytes)
            .saturating_sub(plan.scratch_bytes)
            .saturating_sub(lane_bytes)
    });
    let Some(gib) = flags.number("--prompt-cache-gib") else {
        let bytes = left.map_or(DEFAULT_UNKNOWN, |left| (left / 2).min(DEFAULT_MOST));
        return Ok(if offered { PrefixOptions { bytes, entries } } else { PrefixOptions::default() });
    };
    // Below 2^34 GiB, as the vocabulary has it: no more than 64 bits hold.
    let bytes = (gib * GIB) as u64;
    if let Some(left) = left.filter(|&left| bytes > left)
        && !flags.has("--prompt-cache-over-cap")
    {
        let what = format!("--prompt-cache-gib {gib}: more than the model and its requests leave");
        let finding = Finding::error(Code::MemoryPlan, what)
            .wanted(format!("{gib:.2} GiB"))
            .found(format!("{:.2} GiB", left as f64 / GIB))
            .fix("lower --prompt-cache-gib, --parallel or --context, or add --prompt-cache-over-cap");
        return Err(Box::new(finding));
    }
    Ok(PrefixOptions { bytes, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six GiB are left beside two requests.
    fn plan() -> MemoryPlan {
        MemoryPlan {
            weight_bytes: 1 << 30,
            scratch_bytes: 1 << 30,
            lane_bytes: 1 << 30,
            available_bytes: 10 << 30,
            ..MemoryPlan::default()
        }
    }

    fn wanted(
        pairs: &[(&str, Option<&str>)],
        plan: &MemoryPlan,
        offered: bool,
    ) -> Result<(u64, u32), String> {
        let flags = GivenFlags::from_pairs(pairs.iter().copied()).unwrap();
        prefixes(&flags, plan, 2, offered)
            .map(|options| (options.bytes, options.entries))
            .map_err(|finding| finding.to_string())
    }

    #[test]
    fn half_of_what_is_left_is_taken_unless_flags_say_otherwise() {
        let unknown = MemoryPlan { available_bytes: TF_UNKNOWN, ..plan() };
        let tight = MemoryPlan { available_bytes: 1 << 30, ..plan() };
        assert_eq!(wanted(&[], &plan(), true), Ok((3 << 30, 32)));
        assert_eq!(wanted(&[], &plan(), false), Ok((0, 0)));
        assert_eq!(wanted(&[], &unknown, true), Ok((1 << 30, 32)));
        assert_eq!(wanted(&[], &tight, true), Ok((0, 32)));
        let given = [("--prompt-cache-gib", Some("0.5")), ("--checkpoint-slots", Some("8"))];
        assert_eq!(wanted(&given, &plan(), true), Ok((1 << 29, 8)));
        assert_eq!(wanted(&[("--prompt-cache-gib", Some("0"))], &tight, true), Ok((0, 32)));
    }

    #[test]
    fn more_than_is_left_is_refused_unless_the_user_insists() {
        let much = ("--prompt-cache-gib", Some("6.5"));
        let refused = wanted(&[much], &plan(), true).unwrap_err();
        assert!(refused.contains("6.5") && refused.contains("6.00 GiB"), "{refused}");
        assert_eq!(wanted(&[("--prompt-cache-gib", Some("6"))], &plan(), true), Ok((6 << 30, 32)));
        let insisting = [much, ("--prompt-cache-over-cap", None)];
        assert_eq!(wanted(&insisting, &plan(), true), Ok((13 << 29, 32)));
    }
}
