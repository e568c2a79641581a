//! A block drafter's place in the executor: it follows what lanes commit, and
//! drafts for them.

use std::ops::Range;

use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::model_spec::ModelSpec;

use super::super::lane::Lane;
use super::super::mtp::DraftRequest;
use super::super::plan::{FLOAT, key_value_bytes};
use super::super::{Executor, ExecutorError, MemoryPlan, OUTPUT_ROWS, Options, PASS_ROWS, Unsupported};
use super::{AbsorbLane, BlockContext, BlockDrafter, DraftLane, TargetEnds, check_block};
use crate::device::{BlockDevice, Device, DeviceLimits, DeviceResult};
use crate::weights::Tensors;

/// Tapped states of a reply that wait for the drafter: what a round brings at
/// most, so that a reply without drafts takes them in a few at a time.
const BACKLOG: usize = OUTPUT_ROWS;

/// A drafter that is open.
pub(in super::super) struct OpenBlock<'w, D: Device> {
    drafter: BlockDrafter<'w, D>,
    /// Tapped states of a pass of the target, side by side.
    taps: D::Rows,
}

/// What the drafter knows of one lane.
pub(in super::super) struct BlockLane<D: Device> {
    context: BlockContext<D>,
    /// Tapped states of the committed tokens that follow.
    backlog: D::Rows,
    waiting: usize,
    /// Floats of a row of the backlog.
    width: usize,
}

/// Refuses a drafter that was made for another target.
fn fits(model: &ModelSpec, drafter: &DrafterSpec) -> Result<(), Unsupported> {
    let refuse = |what: String| Err(Unsupported(what));
    if drafter.hidden_size != model.hidden_size {
        return refuse(format!(
            "the drafter's hidden size is {}, the model's {}",
            drafter.hidden_size, model.hidden_size
        ));
    }
    if drafter.vocabulary_rows != model.vocabulary_rows {
        return refuse(format!(
            "the drafter's vocabulary has {} rows, the model's {}",
            drafter.vocabulary_rows, model.vocabulary_rows
        ));
    }
    match drafter.taps.last() {
        Some(&tap) if tap as usize >= model.layers.len() => {
            refuse(format!("the drafter reads layer {tap} of a model of {} layers", model.layers.len()))
        }
        _ => Ok(()),
    }
}

/// Checks a drafter for a model without loading it; `tensors`, the drafter's,
/// may be [descriptions](Tensors::described).
///
/// # Errors
/// Whatever [`Executor::open_block`] would refuse it for.
pub fn check_drafter(
    model: &ModelSpec,
    drafter: &DrafterSpec,
    tensors: &Tensors<'_>,
    limits: DeviceLimits,
) -> Result<(), ExecutorError> {
    fits(model, drafter)?;
    check_block(drafter, tensors, limits)
}

/// Most drafts that a drafter makes for a lane in a round.
pub fn most_block_drafts(drafter: &DrafterSpec) -> usize {
    (drafter.block_size as usize - 1).min(OUTPUT_ROWS - 1)
}

/// What a drafter adds to the plan of its model.
pub fn block_plan(drafter: &DrafterSpec, options: Options) -> MemoryPlan {
    let hidden = u64::from(drafter.hidden_size);
    let taps = drafter.taps.len() as u64 * hidden * FLOAT;
    let token = key_value_bytes(drafter.key_value_heads, drafter.head_size);
    let context = options.context as u64;
    let (mut lane, mut growing) = (0, 0);
    for layer in &drafter.layers {
        // A window that slides gives whole pages of 64 positions back.
        let held = layer.window.map_or(context, |window| context.min(u64::from(window) + 64));
        lane += held.next_multiple_of(64) * token;
        growing += token;
    }
    let queries = u64::from(drafter.heads) * u64::from(drafter.head_size);
    let keys = u64::from(drafter.key_value_heads) * u64::from(drafter.head_size);
    let row = 4 * hidden + 2 * queries + 2 * keys + 2 * u64::from(drafter.intermediate_size);
    let slots = u64::from(drafter.block_size).max(16);
    MemoryPlan {
        lane_bytes: lane + BACKLOG as u64 * taps,
        // Activations exist a second time in the layout that products read.
        scratch_bytes: (2 * row * FLOAT + taps) * PASS_ROWS as u64
            + slots * (hidden + u64::from(drafter.vocabulary_rows)) * FLOAT,
        snapshot_bytes: BACKLOG as u64 * taps,
        snapshot_token_bytes: growing,
    }
}

impl<'w, D: BlockDevice> Executor<'w, D> {
    /// Loads a block drafter: lanes that are opened from now on can draft with
    /// it. `tensors` are the drafter's.
    ///
    /// # Errors
    /// [`ExecutorError::Unsupported`] and [`ExecutorError::Tensor`] before the
    /// device is used, [`ExecutorError::Device`] from the device.
    pub fn open_block(&mut self, spec: DrafterSpec, tensors: &Tensors<'w>) -> Result<(), ExecutorError> {
        fits(&self.spec, &spec)?;
        let width = spec.taps.len() * spec.hidden_size as usize;
        let drafter = BlockDrafter::open(&mut self.device, spec, tensors)?;
        let taps = self.device.rows(PASS_ROWS, width)?;
        self.block = Some(OpenBlock { drafter, taps });
        Ok(())
    }

    /// Forgets the drafter. Lanes that were opened with it draft no more.
    pub fn close_block(&mut self) {
        self.block = None;
    }

    /// Most drafts that the drafter makes for a lane in a round; 0 without one.
    pub fn block_drafts(&self) -> usize {
        self.block.as_ref().map_or(0, |block| most_block_drafts(block.drafter.spec()))
    }

    /// Takes in what lanes have committed in a pass. Each has the rows that
    /// stay, and whether they are a prompt's and taken in at once.
    pub(in super::super) fn follow_with_block(
        &mut self,
        lanes: &mut [(&mut Lane<D>, Range<usize>, bool)],
    ) -> Result<(), ExecutorError> {
        let Some(OpenBlock { drafter, taps }) = &mut self.block else { return Ok(()) };
        let device = &mut self.device;
        let mut at_once = Vec::new();
        for (lane, rows, prompt) in lanes {
            let Some(block) = lane.block.as_deref_mut() else { continue };
            if *prompt || block.waiting + rows.len() > BACKLOG {
                block.catch_up(device, drafter)?;
            }
            if *prompt {
                at_once.push(AbsorbLane { context: &mut block.context, rows: rows.clone() });
            } else {
                device.copy_rows(block.width, taps, rows.clone(), &mut block.backlog, block.waiting)?;
                block.waiting += rows.len();
            }
        }
        drafter.absorb(device, &mut at_once, taps, &mut |_, _, _, _, _| Ok(()))
    }

    /// Makes drafts for some lanes, a block each. Lanes without a context get none.
    pub(in super::super) fn draft_blocks(
        &mut self,
        requests: &mut [DraftRequest<'_, D>],
    ) -> Result<(), ExecutorError> {
        let most = self.block_drafts();
        let Some(OpenBlock { drafter, .. }) = &mut self.block else { return Ok(()) };
        let (device, trunk) = (&mut self.device, &self.trunk);
        for request in requests.iter_mut() {
            if let Some(block) = request.lane.block.as_deref_mut() {
                block.catch_up(device, drafter)?;
            }
        }
        let (members, lanes): (Vec<usize>, Vec<DraftLane<'_, D>>) = requests
            .iter()
            .enumerate()
            .filter(|(_, request)| request.count > 0)
            .filter_map(|(index, request)| {
                let context = &request.lane.block.as_ref()?.context;
                // A shorter block would give other drafts, not the first ones of a whole block.
                let lane =
                    DraftLane { context, anchor: request.token, drafts: most, sampling: request.sampling };
                Some((index, lane))
            })
            .unzip();
        let target = TargetEnds {
            embed: &trunk.embed,
            head: trunk.head.as_ref().unwrap_or(&trunk.embed),
            selectable: self.spec.selectable_vocabulary,
        };
        let drafts = drafter.draft(device, &target, &lanes, &mut |_, _, _, _, _| Ok(()))?;
        for (index, mut drafts) in members.into_iter().zip(drafts) {
            let request = &mut requests[index];
            let unlikely = drafts.iter().skip(1).position(|draft| draft.1 < request.confidence);
            drafts.truncate(unlikely.map_or(request.count, |at| request.count.min(at + 1)));
            request.drafts = drafts;
        }
        Ok(())
    }

    /// What the drafter knows of a new lane, if there is one.
    pub(in super::super) fn block_lane(&mut self) -> Result<Option<Box<BlockLane<D>>>, ExecutorError> {
        let Some(OpenBlock { drafter, .. }) = &self.block else { return Ok(None) };
        let width = drafter.spec().taps.len() * drafter.spec().hidden_size as usize;
        let context = drafter.context(&mut self.device)?;
        let backlog = self.device.rows(BACKLOG, width)?;
        Ok(Some(Box::new(BlockLane { context, backlog, waiting: 0, width })))
    }
}

impl<D: Device> Executor<'_, D> {
    /// Keeps the residual stream after a layer that the drafter reads.
    pub(in super::super) fn tap(
        device: &mut D,
        block: &mut Option<OpenBlock<'_, D>>,
        layer: usize,
        rows: usize,
        hidden: usize,
        x: &D::Rows,
    ) -> DeviceResult {
        let Some(block) = block else { return Ok(()) };
        let taps = &block.drafter.spec.taps;
        match taps.iter().position(|&tap| tap as usize == layer) {
            Some(place) => {
                device.place(rows, hidden, x, place * hidden, taps.len() * hidden, &mut block.taps)
            }
            None => Ok(()),
        }
    }
}

impl<D: Device> BlockLane<D> {
    /// The same, to go on with by itself.
    pub(in super::super) fn fork(&self, device: &mut D) -> Result<Self, ExecutorError> {
        let context = self.context.fork(device)?;
        let mut backlog = device.rows(BACKLOG, self.width)?;
        device.copy_rows(self.width, &self.backlog, 0..self.waiting, &mut backlog, 0)?;
        Ok(BlockLane { context, backlog, waiting: self.waiting, width: self.width })
    }

    /// Keys and values of the drafter's layers.
    pub(in super::super) fn layers(&self) -> &[D::KeyValues] {
        self.context.layers()
    }

    /// Bytes of the backlog.
    pub(in super::super) fn backlog_bytes(&self) -> usize {
        BACKLOG * self.width * size_of::<f32>()
    }

    /// Takes in what waits.
    fn catch_up(&mut self, device: &mut D, drafter: &mut BlockDrafter<'_, D>) -> Result<(), ExecutorError>
    where
        D: BlockDevice,
    {
        let rows = 0..std::mem::take(&mut self.waiting);
        if rows.is_empty() {
            return Ok(());
        }
        let mut lanes = [AbsorbLane { context: &mut self.context, rows }];
        drafter.absorb(device, &mut lanes, &self.backlog, &mut |_, _, _, _, _| Ok(()))
    }
}
