//! A plugin's `tensorfold.engine/1`, called safely.

use std::ffi::c_void;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use super::model::RawModel;
use super::{CancelHandle, DeviceClient, EngineSetup, ModelSource, TensorSource};
use crate::PluginError;
use crate::abi::{
    Status, TF_STATUS_CANCELLED, TF_STATUS_OK, TF_UNKNOWN, TfEngineInfo, TfEngineMemory, TfEngineStats,
    TfEngineV1, TfError, TfLaneInput, TfLaneResult, TfLogprob, TfMemoryPlan, TfProgress, TfRound,
    TfRoundResult, TfSnapshot, TfStr,
};
use crate::plugin::{DraftKind, EngineInfo, NextDrafts};
use crate::sampling::Sampling;

/// Called with bytes done, bytes in all, and what is being done.
type ProgressFn<'a> = &'a mut (dyn FnMut(u64, u64, &str) -> ControlFlow<()> + Send);

unsafe extern "C" fn report(context: *mut c_void, done: u64, total: u64, what: TfStr) -> u8 {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: `context` is the `ProgressFn` of the call that is running; the thread that
        // owns it waits.
        let progress = unsafe { &mut *context.cast::<ProgressFn<'_>>() };
        // SAFETY: the contract of the progress struct.
        progress(done, total, &unsafe { what.to_string_lossy() })
    }));
    u8::from(!matches!(outcome, Ok(ControlFlow::Continue(()))))
}

/// Runs a call that reports to `progress`.
pub(super) fn with_progress<T>(
    mut progress: impl FnMut(u64, u64, &str) -> ControlFlow<()> + Send,
    call: impl FnOnce(&TfProgress) -> T,
) -> T {
    let mut callback: ProgressFn<'_> = &mut progress;
    call(&TfProgress {
        struct_size: size_of::<TfProgress>() as u32,
        reserved: 0,
        context: (&raw mut callback).cast(),
        report: Some(report),
    })
}

impl DeviceClient {
    fn engine_table(&self) -> Result<&'static TfEngineV1, PluginError> {
        self.plugin.engine.ok_or_else(|| PluginError::unsupported("this plugin runs no models"))
    }

    /// What [`open_engine`](DeviceClient::open_engine) would hold.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn plan(&self, model: &dyn ModelSource, setup: &EngineSetup) -> Result<TfMemoryPlan, PluginError> {
        let call = self.engine_table()?.plan.expect("checked in new");
        let raw = RawModel::of_model(model, false)?;
        let mut plan =
            TfMemoryPlan { struct_size: size_of::<TfMemoryPlan>() as u32, ..TfMemoryPlan::default() };
        // SAFETY: the table's contract; everything is borrowed for the call.
        self.plugin.call(|error| unsafe { call(self.handle, &raw.raw(), &setup.raw(), &mut plan, error) })?;
        Ok(plan)
    }

    /// Loads a model. `progress` hears, on the plugin's control thread, how far it is, and may
    /// break off.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open_engine(
        self: &Arc<Self>,
        model: Arc<dyn ModelSource>,
        setup: &EngineSetup,
        progress: impl FnMut(u64, u64, &str) -> ControlFlow<()> + Send,
    ) -> Result<EngineClient, PluginError> {
        let table = self.engine_table()?;
        let call = table.open_engine.expect("checked in new");
        let raw = RawModel::of_model(&*model, true)?;
        let mut handle = 0;
        let opening = self.plugin.host.context.opening(model.clone());
        with_progress(progress, |progress| {
            // SAFETY: the table's contract; the bytes live as long as the source, which the client
            // below keeps until it has closed the engine.
            self.plugin.control(|error| unsafe {
                call(self.handle, &raw.raw(), &setup.raw(), progress, &mut handle, error)
            })
        })?;
        drop(opening);
        if handle == 0 {
            return Err(PluginError::internal("the plugin opened an engine but named it 0"));
        }
        let selectable = model.spec().selectable_vocabulary;
        let sources: Vec<Arc<dyn TensorSource>> = vec![model];
        let shared =
            Arc::new(OpenEngineHandle { device: self.clone(), table, handle, sources: Mutex::new(sources) });
        Ok(EngineClient { shared, selectable, scratch: Scratch::default() })
    }
}

/// An engine that is open; closed when the last reference goes.
pub(super) struct OpenEngineHandle {
    pub(super) device: Arc<DeviceClient>,
    table: &'static TfEngineV1,
    handle: u64,
    /// The plugin reads the mapped files until the engine is closed.
    sources: Mutex<Vec<Arc<dyn TensorSource>>>,
}

impl OpenEngineHandle {
    /// Keeps what the plugin reads until the engine is closed.
    pub(super) fn keep(&self, source: Arc<dyn TensorSource>) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    pub(super) fn call(&self, call: impl FnOnce(u64, *mut TfError) -> i32) -> Result<(), PluginError> {
        self.device.plugin.call(|error| call(self.handle, error))
    }
}

impl Drop for OpenEngineHandle {
    fn drop(&mut self) {
        let call = self.table.close.expect("checked in new");
        // SAFETY: the table's contract.
        let closed = self.device.plugin.control(|error| unsafe { call(self.handle, error) });
        if let Err(failure) = closed {
            // After `shutdown` the plugin knows the engine no more, which is as good as closed.
            if failure.status != Status::NotFound {
                tracing::warn!(%failure, "an engine did not close");
            }
        }
    }
}

/// What one lane does in a round; see [`TfLaneInput`].
#[derive(Clone)]
pub struct LaneRequest<'a> {
    /// The lane.
    pub lane: u64,
    /// Tokens that the lane holds.
    pub position: u64,
    /// Tokens to feed; not empty.
    pub tokens: &'a [u32],
    /// How many of the last tokens are drafts.
    pub draft_count: usize,
    /// How many of the last rows draw a token.
    pub output_count: usize,
    /// How to draw.
    pub sampling: Sampling,
    /// Bit masks of allowed ids, `words_per_row` words for each output row; `None`: all ids.
    pub allowed: Option<(&'a [u32], usize)>,
    /// How many likeliest tokens to list beside each draw; `None`: no log probabilities.
    pub logprobs: Option<usize>,
    /// Drafts to make for the next round.
    pub next_drafts: NextDrafts,
    /// Stops the lane's work; of the same plugin.
    pub cancel: Option<CancelHandle>,
}

/// What one lane got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneOutcome {
    /// The lane was cancelled; `position` says how far it got.
    pub cancelled: bool,
    /// Tokens that the lane holds now.
    pub position: u64,
    /// Draws: accepted drafts and the token that follows.
    pub tokens: Vec<u32>,
    /// Drafts accepted.
    pub accepted: usize,
    /// Drafts for the next round, with the drafter's probabilities.
    pub drafts: Vec<(u32, f32)>,
    /// Who made them.
    pub draft_kind: DraftKind,
    /// Log probabilities: for each draw the drawn token's, then the listed ones.
    pub logprobs: Vec<TfLogprob>,
}

/// What a round gave. `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundOutcome {
    /// One for each lane, in the order of the request.
    pub lanes: Vec<LaneOutcome>,
    /// Time of the forward pass.
    pub forward_nanoseconds: Option<u64>,
    /// Time of drawing and verification.
    pub sample_nanoseconds: Option<u64>,
    /// Time of drafting.
    pub draft_nanoseconds: Option<u64>,
    /// Slower ways of computing that were in use.
    pub degraded: String,
}

/// Buffers of a round, kept so that a round allocates little.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    drafts: Vec<u32>,
    probabilities: Vec<f32>,
    logprobs: Vec<TfLogprob>,
}

/// A loaded model. Functions of class `[engine]` take `&mut self`, so they cannot overlap.
pub struct EngineClient {
    pub(super) shared: Arc<OpenEngineHandle>,
    selectable: u32,
    scratch: Scratch,
}

impl EngineClient {
    /// Facts that do not change.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn info(&self) -> Result<EngineInfo, PluginError> {
        let call = self.shared.table.info.expect("checked in new");
        // SAFETY: zeroes are a valid info: integers, and a null text of length 0.
        let mut info: TfEngineInfo = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<TfEngineInfo>() as u32;
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, &mut info, error) })?;
        if info.lanes == 0
            || info.prefill_rows == 0
            || !info.prefill_rows.is_multiple_of(64)
            || info.output_rows == 0
        {
            return Err(PluginError::internal(format!(
                "the plugin reports an engine of {} lanes, chunks of {} rows (wanted: a multiple of 64) and {} output rows",
                info.lanes, info.prefill_rows, info.output_rows
            )));
        }
        Ok(EngineInfo {
            lanes: info.lanes,
            context: info.context,
            prefill_rows: info.prefill_rows,
            output_rows: info.output_rows,
            // SAFETY: owned by the engine, which is open.
            description: unsafe { info.description.to_string_lossy() },
        })
    }

    /// What can be asked from any thread, also during a round. Keeps the engine open.
    pub fn monitor(&self) -> MonitorClient {
        MonitorClient { shared: self.shared.clone() }
    }

    /// A handle for cancelling work of this engine.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.shared.device.plugin.cancel_handle()
    }

    /// Opens an empty lane.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn lane_open(&mut self) -> Result<u64, PluginError> {
        let call = self.shared.table.lane_open.expect("checked in new");
        let mut lane = 0;
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, &mut lane, error) })?;
        named(lane, "lane")
    }

    /// Closes a lane.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn lane_close(&mut self, lane: u64) -> Result<(), PluginError> {
        let call = self.shared.table.lane_close.expect("checked in new");
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, lane, error) })
    }

    /// Keeps the state of a lane.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn snapshot(&mut self, lane: u64) -> Result<TfSnapshot, PluginError> {
        let call = self.shared.table.snapshot.expect("checked in new");
        let mut kept = TfSnapshot { struct_size: size_of::<TfSnapshot>() as u32, ..TfSnapshot::default() };
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, lane, &mut kept, error) })?;
        named(kept.snapshot, "snapshot")?;
        Ok(kept)
    }

    /// Makes a lane hold a kept state.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn restore(&mut self, lane: u64, snapshot: u64) -> Result<(), PluginError> {
        let call = self.shared.table.restore.expect("checked in new");
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, lane, snapshot, error) })
    }

    /// Opens a lane that holds what another one holds.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn fork(&mut self, lane: u64) -> Result<u64, PluginError> {
        let call = self.shared.table.fork.expect("checked in new");
        let mut fork = 0;
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, lane, &mut fork, error) })?;
        named(fork, "lane")
    }

    /// Frees a snapshot.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn drop_snapshot(&mut self, snapshot: u64) -> Result<(), PluginError> {
        let call = self.shared.table.drop_snapshot.expect("checked in new");
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, snapshot, error) })
    }

    /// One step for all lanes named.
    ///
    /// # Errors
    /// What the plugin says; [`Status::Internal`] when its answer breaks the contract.
    pub fn round(&mut self, lanes: &[LaneRequest<'_>]) -> Result<RoundOutcome, PluginError> {
        let call = self.shared.table.round.expect("checked in new");
        let scratch = &mut self.scratch;
        let listed = |lane: &LaneRequest<'_>| lane.logprobs.map_or(0, |top| lane.output_count * (top + 1));
        let draws: usize = lanes.iter().map(|lane| lane.output_count).sum();
        let drafts: usize = lanes.iter().map(|lane| lane.next_drafts.count).sum();
        scratch.tokens.resize(draws, 0);
        scratch.drafts.resize(drafts, 0);
        scratch.probabilities.resize(drafts, 0.0);
        scratch.logprobs.resize(lanes.iter().map(listed).sum(), TfLogprob::default());
        let cancels = &self.shared.device.plugin.host.context.cancels;
        let mut inputs = Vec::with_capacity(lanes.len());
        let mut results = Vec::with_capacity(lanes.len());
        let (mut draw_at, mut draft_at, mut list_at) = (0, 0, 0);
        let tokens = scratch.tokens.as_mut_ptr();
        let draft_tokens = scratch.drafts.as_mut_ptr();
        let probabilities = scratch.probabilities.as_mut_ptr();
        let logprobs = scratch.logprobs.as_mut_ptr();
        for lane in lanes {
            if let Some((words, per_row)) = lane.allowed
                && words.len() != per_row * lane.output_count
            {
                return Err(PluginError::invalid("the masks do not cover the output rows"));
            }
            let cancel = match &lane.cancel {
                None => 0,
                Some(handle) => handle
                    .token_for(cancels)
                    .ok_or_else(|| PluginError::invalid("a cancel handle of another plugin was given"))?,
            };
            inputs.push(raw_input(lane, cancel));
            results.push(TfLaneResult {
                struct_size: size_of::<TfLaneResult>() as u32,
                status: TF_STATUS_OK,
                position: lane.position,
                tokens: tokens.wrapping_add(draw_at),
                token_count: 0,
                accepted: 0,
                drafts: draft_tokens.wrapping_add(draft_at),
                draft_probabilities: probabilities.wrapping_add(draft_at),
                draft_count: 0,
                draft_kind: 0,
                logprobs: if lane.logprobs.is_some() {
                    logprobs.wrapping_add(list_at)
                } else {
                    std::ptr::null_mut()
                },
                logprob_count: 0,
            });
            draw_at += lane.output_count;
            draft_at += lane.next_drafts.count;
            list_at += listed(lane);
        }
        let round = TfRound {
            struct_size: size_of::<TfRound>() as u32,
            reserved: 0,
            lanes: inputs.as_ptr(),
            lane_count: inputs.len() as u64,
        };
        let mut result = TfRoundResult {
            struct_size: size_of::<TfRoundResult>() as u32,
            reserved: 0,
            lanes: results.as_mut_ptr(),
            lane_count: results.len() as u64,
            forward_nanoseconds: TF_UNKNOWN,
            sample_nanoseconds: TF_UNKNOWN,
            draft_nanoseconds: TF_UNKNOWN,
            degraded: TfStr::EMPTY,
        };
        // SAFETY: the table's contract; buffers have the capacities that the inputs imply and do
        // not overlap.
        self.shared.call(|engine, error| unsafe { call(engine, &round, &mut result, error) })?;
        let (mut draw_at, mut draft_at, mut list_at) = (0, 0, 0);
        let mut outcomes = Vec::with_capacity(lanes.len());
        for (lane, result) in lanes.iter().zip(&results) {
            check_result(lane, result, listed(lane))?;
            let drawn = &scratch.tokens[draw_at..draw_at + result.token_count as usize];
            let made = draft_at..draft_at + result.draft_count as usize;
            if let Some(token) =
                drawn.iter().chain(&scratch.drafts[made.clone()]).find(|&&token| token >= self.selectable)
            {
                return Err(PluginError::internal(format!(
                    "the plugin drew or drafted token {token}; only ids below {} may be",
                    self.selectable
                )));
            }
            outcomes.push(LaneOutcome {
                cancelled: result.status == TF_STATUS_CANCELLED,
                position: result.position,
                tokens: drawn.to_vec(),
                accepted: result.accepted as usize,
                drafts: scratch.drafts[made.clone()]
                    .iter()
                    .copied()
                    .zip(scratch.probabilities[made].iter().copied())
                    .collect(),
                draft_kind: DraftKind::from_code(result.draft_kind).unwrap_or_default(),
                logprobs: scratch.logprobs[list_at..list_at + result.logprob_count as usize].to_vec(),
            });
            draw_at += lane.output_count;
            draft_at += lane.next_drafts.count;
            list_at += listed(lane);
        }
        let measured = |value: u64| (value != TF_UNKNOWN).then_some(value);
        Ok(RoundOutcome {
            lanes: outcomes,
            forward_nanoseconds: measured(result.forward_nanoseconds),
            sample_nanoseconds: measured(result.sample_nanoseconds),
            draft_nanoseconds: measured(result.draft_nanoseconds),
            // SAFETY: owned by the engine until its next call.
            degraded: unsafe { result.degraded.to_string_lossy() },
        })
    }
}

fn named(handle: u64, what: &str) -> Result<u64, PluginError> {
    if handle == 0 {
        return Err(PluginError::internal(format!("the plugin opened a {what} but named it 0")));
    }
    Ok(handle)
}

fn raw_input(lane: &LaneRequest<'_>, cancel: u64) -> TfLaneInput {
    TfLaneInput {
        struct_size: size_of::<TfLaneInput>() as u32,
        reserved: 0,
        lane: lane.lane,
        position: lane.position,
        tokens: lane.tokens.as_ptr(),
        token_count: lane.tokens.len() as u32,
        draft_count: lane.draft_count as u32,
        output_count: lane.output_count as u32,
        logprob_count: lane.logprobs.unwrap_or(0) as u32,
        logprobs_wanted: u32::from(lane.logprobs.is_some()),
        next_draft_kind: lane.next_drafts.kind.code(),
        next_draft_count: lane.next_drafts.count as u32,
        next_draft_confidence: lane.next_drafts.confidence,
        sampling: lane.sampling.into(),
        allowed: lane.allowed.map_or(std::ptr::null(), |(words, _)| words.as_ptr()),
        mask_words: lane.allowed.map_or(0, |(_, per_row)| per_row as u64),
        cancel,
    }
}

/// Refuses an answer that breaks the contract.
fn check_result(lane: &LaneRequest<'_>, result: &TfLaneResult, listed: usize) -> Result<(), PluginError> {
    let cancelled = result.status == TF_STATUS_CANCELLED;
    let fed = lane.position + lane.tokens.len() as u64;
    let accepted = result.accepted as usize;
    let wrong = if !cancelled && result.status != TF_STATUS_OK {
        Some(format!("lane status {}", result.status))
    } else if accepted > lane.draft_count {
        Some(format!("{accepted} of {} drafts accepted", lane.draft_count))
    } else if result.draft_count as usize > lane.next_drafts.count {
        Some(format!("{} drafts where {} were asked for", result.draft_count, lane.next_drafts.count))
    } else if result.logprob_count > listed as u64 {
        Some(format!("{} log probabilities where {listed} fit", result.logprob_count))
    } else if cancelled {
        (result.position < lane.position || result.position > fed || result.token_count != 0)
            .then(|| format!("a cancelled lane at {} with {} draws", result.position, result.token_count))
    } else {
        let kept = fed - (lane.draft_count - accepted) as u64;
        let draws = if lane.draft_count > 0 { accepted + 1 } else { lane.output_count };
        (result.position != kept || result.token_count as usize != draws).then(|| {
            format!(
                "position {} and {} draws where {kept} and {draws} follow",
                result.position, result.token_count
            )
        })
    };
    match wrong {
        None => Ok(()),
        Some(what) => Err(PluginError::internal(format!("the plugin broke the contract of a round: {what}"))),
    }
}

/// Asks an engine from any thread, also during a round.
#[derive(Clone)]
pub struct MonitorClient {
    shared: Arc<OpenEngineHandle>,
}

impl MonitorClient {
    /// What the engine holds now.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn memory(&self) -> Result<TfEngineMemory, PluginError> {
        let call = self.shared.table.memory.expect("checked in new");
        let mut memory =
            TfEngineMemory { struct_size: size_of::<TfEngineMemory>() as u32, ..TfEngineMemory::default() };
        // SAFETY: the table's contract; `[any]`.
        self.shared.call(|engine, error| unsafe { call(engine, &mut memory, error) })?;
        Ok(memory)
    }

    /// Counts since the engine was opened.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn stats(&self) -> Result<TfEngineStats, PluginError> {
        let call = self.shared.table.stats.expect("checked in new");
        let mut stats = TfEngineStats {
            struct_size: size_of::<TfEngineStats>() as u32,
            reserved: 0,
            rounds: TF_UNKNOWN,
            rows: TF_UNKNOWN,
            drawn: TF_UNKNOWN,
            verified: TF_UNKNOWN,
            accepted: TF_UNKNOWN,
        };
        // SAFETY: the table's contract; `[any]`.
        self.shared.call(|engine, error| unsafe { call(engine, &mut stats, error) })?;
        Ok(stats)
    }
}
