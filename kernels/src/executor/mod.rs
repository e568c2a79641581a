//! Runs a model, described by a [`ModelSpec`], on a [`Device`].
//!
//! The host owns rounds and policy; the executor does one round: rows of any
//! number of lanes go through the model together, tokens are drawn, drafts are
//! verified, and each lane keeps exactly the rows that stay.
//!
//! Guarantees, on a device that keeps its contract:
//!
//! - What a lane holds and draws depends, bit for bit, on its tokens and its
//!   sampling alone: not on the split into rounds, on drafts, on other lanes.
//! - A lane changes only when its rows have been committed. A round that
//!   fails, or that was cancelled for a lane, leaves the lane at a position
//!   that it names, never in between.

mod block;
mod feed_forward;
mod forward;
mod lane;
mod mtp;
mod observe;
mod plan;
mod round;
mod trunk;

use std::sync::Arc;

use tensorfold_plugin_api::model_spec::{MixerSpec, ModelSpec};

pub use block::{
    AbsorbLane, BlockContext, BlockDrafter, BlockObserver, BlockPoint, DraftLane, Drafts, TargetEnds,
    block_plan, check_block, check_drafter, most_block_drafts,
};
pub use lane::{Lane, LaneLayer};
pub use mtp::{CHAIN_DRAFTS, check_head, head_plan};
pub use observe::{Observer, Point};
pub use plan::{MemoryPlan, Options, Unsupported, memory_plan, supported};
pub use round::{DraftSource, NextDrafts, RoundOutcome, Step, StepOutcome};

use crate::device::{BlockDevice, Device, DeviceError, DeviceLimits};
use crate::weights::{TensorError, Tensors};
use forward::{Trace, Workspace};
use trunk::{Check, Load, Trunk};

/// Most rows that go through the model together.
pub const PASS_ROWS: usize = 256;
/// Most rows of one lane whose draw can be wanted in a round, and hence one
/// more than its most drafts.
pub const OUTPUT_ROWS: usize = 32;
/// Rows that go through the head together.
const HEAD_ROWS: usize = 16;

/// Why the executor did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// The model cannot be run.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A tensor is missing or does not fit.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The caller broke the contract.
    #[error("{0}")]
    Invalid(String),
    /// No token could be drawn.
    #[error("lane {lane} of the round has no token to draw at position {position}: {reason}")]
    NothingToDraw {
        /// Index of the lane in the round.
        lane: usize,
        /// Tokens before the one that was to be drawn.
        position: usize,
        /// Whether the mask or the model is the cause.
        reason: &'static str,
    },
}

/// A model on a device.
///
/// `'w` is the lifetime of the weights' bytes, which a device may use in place.
pub struct Executor<'w, D: Device> {
    device: D,
    spec: ModelSpec,
    options: Options,
    trunk: Trunk<D::Matrix<'w>, D::Vector, D::Experts<'w>>,
    frequencies: Vec<f64>,
    workspace: Workspace<D>,
    spare: Spare<D>,
    head: Option<mtp::Head<'w, D>>,
    block: Option<block::OpenBlock<'w, D>>,
}

/// States and traces that are in no lane, by layer.
struct Spare<D: Device> {
    states: Vec<Vec<D::DeltaState>>,
    traces: Vec<Vec<Trace<D>>>,
}

/// Checks a model without loading it.
///
/// `tensors` may be [descriptions](Tensors::described).
///
/// # Errors
/// Whatever [`Executor::open`] would refuse the model for.
pub fn check(spec: &ModelSpec, tensors: &Tensors<'_>, limits: DeviceLimits) -> Result<(), ExecutorError> {
    supported(spec, limits)?;
    Trunk::load(spec, &mut Check(tensors))?;
    Ok(())
}

impl<'w, D: BlockDevice> Executor<'w, D> {
    /// Loads a model.
    ///
    /// # Errors
    /// [`ExecutorError::Unsupported`] and [`ExecutorError::Tensor`] before the
    /// device is used, [`ExecutorError::Device`] from the device.
    pub fn open(
        mut device: D,
        spec: ModelSpec,
        tensors: &Tensors<'w>,
        options: Options,
    ) -> Result<Self, ExecutorError> {
        check(&spec, tensors, device.limits())?;
        let trunk = Trunk::load(&spec, &mut Load { tensors, device: &mut device })?;
        let frequencies = plan::rotary_frequencies(&spec.rope);
        let workspace = Workspace::new(&mut device, &spec)?;
        let spare = Spare {
            states: spec.layers.iter().map(|_| Vec::new()).collect(),
            traces: spec.layers.iter().map(|_| Vec::new()).collect(),
        };
        Ok(Executor { device, spec, options, trunk, frequencies, workspace, spare, head: None, block: None })
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// What it was opened with.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Opens a lane with no tokens.
    ///
    /// # Errors
    /// From the device.
    pub fn open_lane(&mut self) -> Result<Lane<D>, ExecutorError> {
        let mut layers = Vec::with_capacity(self.spec.layers.len());
        for layer in &self.spec.layers {
            layers.push(match &layer.mixer {
                MixerSpec::Attention(spec) => LaneLayer::KeyValues(self.device.key_values(spec)?),
                MixerSpec::GatedDelta(spec) => LaneLayer::Delta(Arc::new(self.device.delta_state(spec)?)),
            });
        }
        Ok(Lane { layers, position: 0, head: self.head_lane()?, block: self.block_lane()? })
    }

    /// Makes a lane that holds what `lane` holds: a fork, or a snapshot if it
    /// is kept, or what a lane becomes when a snapshot is restored.
    ///
    /// # Errors
    /// From the device.
    pub fn fork(&mut self, lane: &Lane<D>) -> Result<Lane<D>, ExecutorError> {
        let mut layers = Vec::with_capacity(lane.layers.len());
        for layer in &lane.layers {
            layers.push(match layer {
                LaneLayer::KeyValues(cache) => LaneLayer::KeyValues(self.device.fork_key_values(cache)?),
                LaneLayer::Delta(state) => LaneLayer::Delta(Arc::clone(state)),
            });
        }
        let head = lane.head.as_ref().map(|head| head.fork(&mut self.device)).transpose()?;
        let block = lane.block.as_ref().map(|block| block.fork(&mut self.device)).transpose()?;
        Ok(Lane { layers, position: lane.position, head: head.map(Box::new), block: block.map(Box::new) })
    }

    /// Closes a lane; its memory serves other lanes.
    pub fn close_lane(&mut self, lane: Lane<D>) {
        for (index, layer) in lane.layers.into_iter().enumerate() {
            if let LaneLayer::Delta(state) = layer {
                self.spare.keep(index, state, self.options.lanes);
            }
        }
    }
}

impl<D: Device> Spare<D> {
    /// Keeps a state for later, unless somebody shares it or there are enough.
    fn keep(&mut self, layer: usize, state: Arc<D::DeltaState>, enough: usize) {
        if self.states[layer].len() < enough
            && let Some(state) = Arc::into_inner(state)
        {
            self.states[layer].push(state);
        }
    }
}
