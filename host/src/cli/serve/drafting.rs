//! The drafters of an engine: which there are to be, what they take beside the model, and their opening.

use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::TF_UNKNOWN;
use tensorfold_plugin_api::host::{DeviceClient, EngineClient, EngineSetup, ModelSource as _};
use tensorfold_plugin_api::plugin::{DrafterPlan, MemoryPlan};
use tensorfold_plugin_api::vocabulary::{DrafterKind, GivenFlags};

use super::admission::Admitted;
use crate::checkpoint::CheckpointSource;
use crate::cli::hint;
use crate::drafter::DrafterFiles;
use crate::engine::{BlockDrafter, Drafters};
use crate::plugins::lifecycle::one_line;

/// An external drafter that is to be loaded.
pub(super) struct External {
    /// Its files.
    pub files: Arc<DrafterFiles>,
    /// Whether `--drafter` names it, so that going without it would be a silent loss.
    pub named: bool,
}

/// One drafter beside the model.
struct Candidate {
    plan: DrafterPlan,
    /// Whether the user asked for it.
    asked: bool,
    /// Its name for the user.
    name: String,
}

/// The drafters that an engine is to have, and what they take.
#[derive(Default)]
pub(super) struct Planned {
    head: Option<Candidate>,
    external: Option<(Candidate, Arc<DrafterFiles>)>,
}

/// Why a drafter that was asked for cannot be had.
pub(super) enum Unplanned {
    /// The plugin says so.
    Refused(PluginError),
    /// It takes more memory than there is: what, with its name.
    NoMemory(String),
}

impl Planned {
    /// Asks the plugin what drafters take. What nobody asked for is left out with a line that says why.
    ///
    /// # Errors
    /// When one that was asked for cannot be had.
    pub(super) fn new(
        admitted: &Admitted,
        device: &DeviceClient,
        source: &CheckpointSource,
        setup: &EngineSetup,
        external: Option<External>,
        flags: &GivenFlags,
    ) -> Result<Planned, Unplanned> {
        let mut planned = Planned::default();
        if let Some(External { files, named }) = external {
            let name = format!("the drafter {}", files.drafter().name);
            let plan = device.plan_dflash(source, &*files, setup);
            planned.external = candidate(plan, named, name)?.map(|candidate| (candidate, files));
        }
        // Two drafters would follow every token for one of them to draft: the head stands back unless it was asked for.
        let asked = head_is_asked_for(flags);
        if wants_head(admitted, source, flags) && (asked || planned.external.is_none()) {
            let name = "the checkpoint's own head".to_owned();
            planned.head = candidate(device.plan_mtp(source, setup), asked, name)?;
        }
        Ok(planned)
    }

    /// Requests that run at once beside the drafters, of `wanted` that fit without: at least `least`. Where that many
    /// do not fit, drafters that nobody asked for are left out with a line.
    ///
    /// # Errors
    /// When they do not fit beside drafters that were asked for.
    pub(super) fn lanes(
        &mut self,
        model: &MemoryPlan,
        setup: &EngineSetup,
        least: u32,
    ) -> Result<u32, Unplanned> {
        loop {
            let lanes = lanes_beside(model, &self.plans(), setup.lanes);
            if lanes >= least {
                return Ok(lanes);
            }
            let head = self.head.take_if(|head| !head.asked);
            let left_out = head
                .or_else(|| self.external.take_if(|(drafter, _)| !drafter.asked).map(|(drafter, _)| drafter));
            let what = |name: &str| {
                format!(
                    "{name} cannot draft: there is no memory for it beside {least} requests of {} tokens",
                    setup.context
                )
            };
            match left_out {
                Some(drafter) => hint(&what(&drafter.name)),
                None => {
                    let asked = self.candidates().next().map_or("", |drafter| &drafter.name);
                    return Err(Unplanned::NoMemory(what(asked)));
                }
            }
        }
    }

    /// Whether the user asked for drafts of the checkpoint's own head.
    pub(super) fn head_is_asked_for(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.asked)
    }

    /// What the drafters take.
    pub(super) fn plans(&self) -> Vec<DrafterPlan> {
        self.candidates().map(|candidate| candidate.plan).collect()
    }

    fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.external.iter().map(|(drafter, _)| drafter).chain(&self.head)
    }

    /// Makes the drafters ready. What nobody asked for is left out with a line where the plugin cannot.
    ///
    /// # Errors
    /// What the plugin says against one that was asked for.
    pub(super) fn open(&self, engine: &mut EngineClient, model: &str) -> Result<Drafters, PluginError> {
        let mut drafters = Drafters::default();
        if let Some(head) = &self.head {
            match engine.open_mtp(progress(model)) {
                Ok(drafts) => drafters.mtp = Some(drafts),
                Err(error) if head.asked => return Err(error),
                Err(error) => hint(&format!("{} does not draft: {}", head.name, one_line(&error.message))),
            }
        }
        if let Some((drafter, files)) = &self.external {
            let second = files.drafter().spec.refinement.is_some();
            match engine.open_dflash(files.clone(), progress(&files.drafter().name)) {
                Ok(drafts) => drafters.block = Some(BlockDrafter { second, drafts }),
                Err(error) if drafter.asked => return Err(error),
                Err(error) => hint(&format!("{} does not draft: {}", drafter.name, one_line(&error.message))),
            }
        }
        Ok(drafters)
    }
}

/// A drafter with its plan; one that nobody asked for is left out where the plugin refuses it.
fn candidate(
    plan: Result<DrafterPlan, PluginError>,
    asked: bool,
    name: String,
) -> Result<Option<Candidate>, Unplanned> {
    match plan {
        Ok(plan) => Ok(Some(Candidate { plan, asked, name })),
        Err(error) if asked => Err(Unplanned::Refused(error)),
        Err(error) => {
            hint(&format!("{name} does not draft: {}", one_line(&error.message)));
            Ok(None)
        }
    }
}

/// Whether the model has a head, somebody may want it to draft, and the plugin offers that.
fn wants_head(admitted: &Admitted, source: &CheckpointSource, flags: &GivenFlags) -> bool {
    let spec = source.spec();
    let wanted = !flags.has("--no-drafts") && flags.integer("--mtp-drafts") != Some(0);
    wanted && spec.mtp.is_some() && admitted.manifest.drafts_for(&spec.family, DrafterKind::Mtp)
}

/// Whether the user asked for drafts of the head.
fn head_is_asked_for(flags: &GivenFlags) -> bool {
    !flags.has("--no-drafts")
        && (flags.integer("--mtp-drafts").is_some_and(|drafts| drafts > 0)
            || flags.number("--mtp-confidence").is_some())
}

/// Requests at full context that fit beside each other when each of them drafts, of `wanted`.
fn lanes_beside(model: &MemoryPlan, drafters: &[DrafterPlan], wanted: u32) -> u32 {
    if model.available_bytes == TF_UNKNOWN {
        return wanted;
    }
    let drafting = drafters.iter().flat_map(|plan| [plan.weight_bytes, plan.scratch_bytes]);
    let fixed = [model.weight_bytes, model.scratch_bytes].into_iter().chain(drafting);
    let fixed = fixed.fold(0, u64::saturating_add);
    let each = drafters.iter().fold(model.lane_bytes, |sum, plan| sum.saturating_add(plan.lane_bytes));
    let lanes = model.available_bytes.saturating_sub(fixed).checked_div(each);
    lanes.map_or(wanted, |lanes| u32::try_from(lanes).unwrap_or(u32::MAX).min(wanted))
}

fn progress(name: &str) -> impl FnMut(u64, u64, &str) -> ControlFlow<()> + Send + use<> {
    let name = name.to_owned();
    move |done, total, what| {
        tracing::info!(done, total, "{what} of {name}");
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for four requests beside one of [`drafter`].
    fn model() -> MemoryPlan {
        MemoryPlan {
            weight_bytes: 100,
            scratch_bytes: 50,
            lane_bytes: 10,
            available_bytes: 250,
            ..MemoryPlan::default()
        }
    }

    fn drafter() -> DrafterPlan {
        DrafterPlan { weight_bytes: 20, scratch_bytes: 20, lane_bytes: 5, ..DrafterPlan::default() }
    }

    fn setup(lanes: u32) -> EngineSetup {
        EngineSetup {
            lanes,
            context: 64,
            rows: 64,
            world: 1,
            rank: 0,
            kv_dtype: String::new(),
            memory_limit: None,
        }
    }

    fn with_head(asked: bool, plan: DrafterPlan) -> Planned {
        Planned { head: Some(Candidate { plan, asked, name: "the head".into() }), external: None }
    }

    #[test]
    fn requests_that_draft_take_more_room() {
        assert_eq!(lanes_beside(&model(), &[drafter()], 8), 4);
        assert_eq!(lanes_beside(&model(), &[drafter()], 3), 3);
        assert_eq!(lanes_beside(&model(), &[drafter(), drafter()], 8), 1);
        assert_eq!(lanes_beside(&model(), &[], 80), 10);
        let large = DrafterPlan { weight_bytes: u64::MAX, ..drafter() };
        assert_eq!(lanes_beside(&model(), &[large], 8), 0);
        let unknown = MemoryPlan { available_bytes: TF_UNKNOWN, ..model() };
        assert_eq!(lanes_beside(&unknown, &[drafter()], 8), 8);
    }

    #[test]
    fn a_drafter_without_room_is_left_out_unless_it_was_asked_for() {
        let large = DrafterPlan { weight_bytes: u64::MAX, ..drafter() };
        let mut planned = with_head(false, large);
        assert_eq!(planned.lanes(&model(), &setup(8), 1).ok(), Some(8));
        assert!(planned.plans().is_empty());
        let Err(Unplanned::NoMemory(what)) = with_head(true, large).lanes(&model(), &setup(8), 2) else {
            panic!("it takes all memory")
        };
        let wanted = "the head cannot draft: there is no memory for it beside 2 requests of 64 tokens";
        assert_eq!(what, wanted);
        let mut fits = with_head(true, drafter());
        assert_eq!(fits.lanes(&model(), &setup(8), 4).ok(), Some(4));
        assert_eq!(fits.plans().len(), 1);
    }

    #[test]
    fn a_head_is_asked_for_by_its_flags_alone() {
        let asked = |pairs: &[(&str, Option<&str>)]| {
            head_is_asked_for(&GivenFlags::from_pairs(pairs.iter().copied()).unwrap())
        };
        assert!(asked(&[("--mtp-drafts", Some("2"))]) && asked(&[("--mtp-confidence", Some("0.5"))]));
        assert!(!asked(&[]) && !asked(&[("--mtp-drafts", Some("0"))]));
        assert!(!asked(&[("--mtp-drafts", Some("2")), ("--no-drafts", None)]));
    }
}
