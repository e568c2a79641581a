//! One loaded model: lanes, snapshots and rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::executor::{
    self, CHAIN_DRAFTS, DraftSource, Executor, Lane, LaneLayer, NextDrafts, RoundOutcome, Step,
};
use tensorfold_kernels::weights::Tensors;
use tensorfold_plugin_api::plugin::{
    DraftKind, Drafter, Engine, EngineMemory, EngineMonitor, EngineStats, Handles, LaneInput, LaneOutput,
    Logprob, PluginError, Progress, RoundReport, Snapshot, Status,
};

use crate::device::{drafter_weight_bytes, mapped, plugin_error};

type CpuLane = Lane<CpuDevice>;

/// A model on the machine's processors.
pub(crate) struct CpuEngine {
    executor: Executor<'static, CpuDevice>,
    /// For drafters that are opened later.
    tensors: Tensors<'static>,
    /// What drafting with the model's own head holds besides lanes.
    head_bytes: u64,
    head_is_open: bool,
    /// What an open block drafter holds besides lanes.
    block_bytes: Option<u64>,
    most_lanes: usize,
    /// A lane is away from its place only while a call uses it.
    lanes: Handles<Option<CpuLane>>,
    snapshots: Handles<CpuLane>,
    monitor: Arc<Monitor>,
}

impl CpuEngine {
    /// `tensors` are the model's; `fixed_bytes` is what the engine holds
    /// besides lanes and snapshots, and `head_bytes` what its head adds.
    pub(crate) fn new(
        executor: Executor<'static, CpuDevice>,
        tensors: Tensors<'static>,
        most_lanes: usize,
        fixed_bytes: u64,
        head_bytes: u64,
    ) -> CpuEngine {
        let monitor = Monitor { fixed_bytes: fixed_bytes.into(), ..Monitor::default() };
        monitor.set_memory(0, 0);
        CpuEngine {
            executor,
            tensors,
            head_bytes,
            head_is_open: false,
            block_bytes: None,
            most_lanes,
            lanes: Handles::new(1),
            snapshots: Handles::new(2),
            monitor: Arc::new(monitor),
        }
    }

    pub(crate) fn monitor(&self) -> Arc<Monitor> {
        Arc::clone(&self.monitor)
    }

    fn lane(&self, lane: u64) -> Result<&CpuLane, PluginError> {
        self.lanes.get(lane, "lane")?.as_ref().ok_or_else(|| lost(lane))
    }

    fn room_for_a_lane(&self) -> Result<(), PluginError> {
        if self.lanes.len() < self.most_lanes {
            return Ok(());
        }
        Err(PluginError::new(
            Status::Busy,
            format!("all {} lanes are open; close one first", self.most_lanes),
        ))
    }

    /// Drafters come and go only while nothing depends on them.
    fn expect_idle(&self) -> Result<(), PluginError> {
        if self.lanes.is_empty() && self.snapshots.is_empty() {
            return Ok(());
        }
        Err(PluginError::new(
            Status::Busy,
            format!("{} lanes and {} snapshots are there", self.lanes.len(), self.snapshots.len()),
        ))
    }

    fn copy_of(&mut self, lane: u64) -> Result<CpuLane, PluginError> {
        let CpuEngine { executor, lanes, .. } = self;
        let lane = lanes.get(lane, "lane")?.as_ref().ok_or_else(|| lost(lane))?;
        executor.fork(lane).map_err(|error| plugin_error(&error))
    }

    fn set_block_bytes(&mut self, bytes: Option<u64>) {
        let before = std::mem::replace(&mut self.block_bytes, bytes);
        self.monitor.fixed_bytes.fetch_sub(before.unwrap_or(0), Ordering::Relaxed);
        self.monitor.fixed_bytes.fetch_add(bytes.unwrap_or(0), Ordering::Relaxed);
        self.count_memory();
    }

    fn count_memory(&self) {
        let lanes = self.lanes.values().flatten().map(bytes).sum();
        self.monitor.set_memory(lanes, self.snapshots.values().map(bytes).sum());
    }

    fn check(&self, input: &LaneInput<'_>) -> Result<(), PluginError> {
        let held = self.lane(input.lane)?.position() as u64;
        if held != input.position {
            return Err(PluginError::invalid(format!(
                "lane {:#x} holds {held} tokens, the round expects {}",
                input.lane, input.position
            )));
        }
        match input.next_drafts.kind {
            _ if input.next_drafts.count == 0 => Ok(()),
            DraftKind::None => Ok(()),
            DraftKind::Mtp if self.head_is_open => Ok(()),
            DraftKind::Mtp => Err(PluginError::invalid("drafts of the model's own head, which is not open")),
            DraftKind::Block if self.block_bytes.is_some() => Ok(()),
            DraftKind::Block => Err(PluginError::invalid("drafts of a block drafter, and none is open")),
        }
    }

    /// The round itself; `lanes` are the lanes of `inputs`.
    fn run(&mut self, inputs: &[LaneInput<'_>], lanes: &mut [CpuLane]) -> Result<RoundOutcome, PluginError> {
        let masks: Vec<Vec<u32>> = inputs
            .iter()
            .map(|input| {
                let rows = 0..input.output_count;
                input
                    .allowed
                    .map_or(Vec::new(), |masks| rows.flat_map(|row| masks.row(row).to_vec()).collect())
            })
            .collect();
        let polls: Vec<_> = inputs.iter().map(|input| move || input.cancel.is_cancelled()).collect();
        let mut steps: Vec<Step<'_, CpuDevice>> = inputs
            .iter()
            .zip(lanes)
            .zip(masks.iter().zip(&polls))
            .map(|((input, lane), (mask, poll))| Step {
                lane,
                tokens: input.tokens,
                drafts: input.draft_count,
                outputs: input.output_count,
                sampling: input.sampling,
                allowed: mask,
                log_probabilities: input.logprobs.map(|count| count as u32),
                next_drafts: wanted(input),
                cancelled: poll,
            })
            .collect();
        self.executor.round(&mut steps).map_err(|error| plugin_error(&error))
    }
}

impl Engine for CpuEngine {
    fn lane_open(&mut self) -> Result<u64, PluginError> {
        self.room_for_a_lane()?;
        let lane = self.executor.open_lane().map_err(|error| plugin_error(&error))?;
        let handle = self.lanes.insert(Some(lane));
        self.count_memory();
        Ok(handle)
    }

    fn lane_close(&mut self, lane: u64) -> Result<(), PluginError> {
        if let Some(lane) = self.lanes.remove(lane, "lane")? {
            self.executor.close_lane(lane);
        }
        self.count_memory();
        Ok(())
    }

    fn round(
        &mut self,
        inputs: &[LaneInput<'_>],
        outputs: &mut [LaneOutput<'_>],
    ) -> Result<RoundReport, PluginError> {
        for input in inputs {
            self.check(input)?;
        }
        let mut lanes = Vec::with_capacity(inputs.len());
        for input in inputs {
            lanes.extend(self.lanes.get_mut(input.lane, "lane")?.take());
        }
        let outcome = self.run(inputs, &mut lanes);
        let positions: Vec<u64> = lanes.iter().map(|lane| lane.position() as u64).collect();
        for (input, lane) in inputs.iter().zip(lanes) {
            *self.lanes.get_mut(input.lane, "lane")? = Some(lane);
        }
        self.count_memory();
        let outcome = outcome?;
        for ((output, got), position) in outputs.iter_mut().zip(&outcome.lanes).zip(positions) {
            output.position = position;
            output.cancelled = got.cancelled;
            output.accepted = got.accepted;
            for draw in &got.draws {
                // The executor fails the round rather than draw nothing.
                output.tokens[output.token_count] = draw.token.unwrap_or_default();
                output.token_count += 1;
                for &(token, logprob) in draw.log_probabilities.iter().take(output.logprobs.len()) {
                    output.logprobs[output.logprob_count] = Logprob { token, logprob };
                    output.logprob_count += 1;
                }
            }
        }
        for ((output, got), input) in outputs.iter_mut().zip(&outcome.lanes).zip(inputs) {
            for (place, &(token, probability)) in got.drafts.iter().enumerate() {
                output.drafts[place] = token;
                output.draft_probabilities[place] = probability;
            }
            output.draft_count = got.drafts.len();
            if !got.drafts.is_empty() {
                output.draft_kind = input.next_drafts.kind;
            }
        }
        self.monitor.count(inputs, &outcome);
        Ok(RoundReport {
            forward_nanoseconds: Some(outcome.forward.as_nanos() as u64),
            sample_nanoseconds: Some(outcome.draw.as_nanos() as u64),
            draft_nanoseconds: Some(outcome.drafting.as_nanos() as u64),
            ..RoundReport::default()
        })
    }

    fn snapshot(&mut self, lane: u64) -> Result<Snapshot, PluginError> {
        let kept = self.copy_of(lane)?;
        let (position, bytes) = (kept.position() as u64, bytes(&kept));
        let snapshot = self.snapshots.insert(kept);
        self.count_memory();
        Ok(Snapshot { snapshot, position, bytes, ..Snapshot::default() })
    }

    fn restore(&mut self, lane: u64, snapshot: u64) -> Result<(), PluginError> {
        let CpuEngine { executor, lanes, snapshots, .. } = self;
        let place = lanes.get_mut(lane, "lane")?;
        let kept = snapshots.get(snapshot, "snapshot")?;
        let restored = executor.fork(kept).map_err(|error| plugin_error(&error))?;
        if let Some(old) = place.replace(restored) {
            executor.close_lane(old);
        }
        self.count_memory();
        Ok(())
    }

    fn fork(&mut self, lane: u64) -> Result<u64, PluginError> {
        self.room_for_a_lane()?;
        let fork = self.copy_of(lane)?;
        let handle = self.lanes.insert(Some(fork));
        self.count_memory();
        Ok(handle)
    }

    fn drop_snapshot(&mut self, snapshot: u64) -> Result<(), PluginError> {
        let lane = self.snapshots.remove(snapshot, "snapshot")?;
        self.executor.close_lane(lane);
        self.count_memory();
        Ok(())
    }

    fn open_mtp(&mut self, progress: &Progress<'_>) -> Result<u32, PluginError> {
        self.expect_idle()?;
        progress.report(0, 1, "the head's weights where they are mapped")?;
        self.executor.open_head(&self.tensors).map_err(|error| plugin_error(&error))?;
        if !self.head_is_open {
            self.monitor.fixed_bytes.fetch_add(self.head_bytes, Ordering::Relaxed);
        }
        self.head_is_open = true;
        self.count_memory();
        Ok(CHAIN_DRAFTS as u32)
    }

    fn close_mtp(&mut self) -> Result<(), PluginError> {
        self.expect_idle()?;
        if self.head_is_open {
            self.monitor.fixed_bytes.fetch_sub(self.head_bytes, Ordering::Relaxed);
        }
        self.head_is_open = false;
        self.executor.close_head();
        self.count_memory();
        Ok(())
    }

    fn open_dflash(&mut self, drafter: &Drafter<'_>, progress: &Progress<'_>) -> Result<u32, PluginError> {
        self.expect_idle()?;
        let (mapped_bytes, copied) = drafter_weight_bytes(drafter);
        progress.report(0, mapped_bytes, "using the drafter's weights where they are mapped")?;
        let tensors = mapped(&drafter.tensors)?;
        self.executor.open_block(drafter.spec.clone(), &tensors).map_err(|error| plugin_error(&error))?;
        progress.report(mapped_bytes, mapped_bytes, "using the drafter's weights where they are mapped")?;
        let scratch = executor::block_plan(&drafter.spec, self.executor.options()).scratch_bytes;
        self.set_block_bytes(Some(copied + scratch));
        Ok(self.executor.block_drafts() as u32)
    }

    fn close_dflash(&mut self) -> Result<(), PluginError> {
        self.expect_idle()?;
        self.executor.close_block();
        self.set_block_bytes(None);
        Ok(())
    }
}

/// The drafts that a lane wants for the round after.
fn wanted(input: &LaneInput<'_>) -> NextDrafts {
    let source = match input.next_drafts.kind {
        DraftKind::Mtp => DraftSource::Head,
        DraftKind::Block => DraftSource::Block,
        DraftKind::None => return NextDrafts::default(),
    };
    NextDrafts { source, count: input.next_drafts.count, confidence: input.next_drafts.confidence }
}

fn lost(lane: u64) -> PluginError {
    PluginError::internal(format!("lane {lane:#x} was lost in a round that failed; close it"))
}

/// Bytes of a lane, shared ones included.
fn bytes(lane: &CpuLane) -> u64 {
    let layers = lane.layers().iter().chain(lane.head_layers()).map(|layer| match layer {
        LaneLayer::KeyValues(cache) => cache.bytes(),
        LaneLayer::Delta(state) => size_of_val(state.window()) + size_of_val(state.memory()),
    });
    let block = lane.block_layers().iter().map(|cache| cache.bytes());
    (layers.chain(block).sum::<usize>() + lane.waiting_bytes()) as u64
}

/// Counts and bytes that can be read during a round.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    fixed_bytes: AtomicU64,
    lane_bytes: AtomicU64,
    snapshot_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    rounds: AtomicU64,
    rows: AtomicU64,
    drawn: AtomicU64,
    verified: AtomicU64,
    accepted: AtomicU64,
}

impl Monitor {
    fn set_memory(&self, lanes: u64, snapshots: u64) {
        self.lane_bytes.store(lanes, Ordering::Relaxed);
        self.snapshot_bytes.store(snapshots, Ordering::Relaxed);
        let fixed = self.fixed_bytes.load(Ordering::Relaxed);
        self.peak_bytes.fetch_max(fixed + lanes + snapshots, Ordering::Relaxed);
    }

    fn count(&self, inputs: &[LaneInput<'_>], outcome: &RoundOutcome) {
        let add = |to: &AtomicU64, count: usize| to.fetch_add(count as u64, Ordering::Relaxed);
        add(&self.rounds, 1);
        add(&self.rows, outcome.rows);
        for (input, got) in inputs.iter().zip(&outcome.lanes) {
            add(&self.drawn, got.draws.len());
            if !got.cancelled {
                add(&self.verified, input.draft_count);
                add(&self.accepted, got.accepted);
            }
        }
    }
}

impl EngineMonitor for Monitor {
    fn memory(&self) -> EngineMemory {
        let lane_bytes = self.lane_bytes.load(Ordering::Relaxed);
        let snapshot_bytes = self.snapshot_bytes.load(Ordering::Relaxed);
        EngineMemory {
            used_bytes: self.fixed_bytes.load(Ordering::Relaxed) + lane_bytes + snapshot_bytes,
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            lane_bytes,
            snapshot_bytes,
            ..EngineMemory::default()
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            struct_size: size_of::<EngineStats>() as u32,
            reserved: 0,
            rounds: self.rounds.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            drawn: self.drawn.load(Ordering::Relaxed),
            verified: self.verified.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
        }
    }
}
