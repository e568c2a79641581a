//! Block drafters: DFlash and DFlash2.
//!
//! A drafter sees the text through the target alone: what some of the target's
//! layers gave for every committed token is projected once and becomes keys and
//! values of each of the drafter's layers. A block of the last token and masks
//! then goes through the drafter once, and each mask's row proposes the token
//! of its own position. Embedding and head are the target's.
//!
//! For layer `i`, with `ctx = norm(fc(taps))`:
//!
//! ```text
//! context:  K = rope(norm(k ctx)), V = v ctx
//! block:    h = norm(x); x += mix(o attend(q mix(h), [K; k mix(h)], [V; v mix(h)]))
//!           h = norm(x); x += mix(down(silu(gate mix(h)) * up mix(h)))
//! ```
//!
//! where `mix` is DFlash2's convolution over the block's rows, whose kernels
//! depend on `h`, and nothing in DFlash. DFlash2 also chooses a path through
//! the best candidates of each slot; DFlash draws each by itself.

mod follow;
mod forward;
mod weights;

use std::ops::Range;

use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::model_spec::AttentionSpec;
use tensorfold_plugin_api::sampling::Sampling;

use super::plan::rotary_frequencies;
use super::trunk::{Check, Load};
use super::{ExecutorError, HEAD_ROWS, PASS_ROWS, Unsupported};
use crate::device::{BlockDevice, Device, DeviceLimits, DeviceResult};
use crate::weights::Tensors;
pub(super) use follow::{BlockLane, OpenBlock};
pub use follow::{block_plan, check_drafter, most_block_drafts};
pub use forward::Drafts;
use weights::Weights;

/// A block drafter on a device.
pub struct BlockDrafter<'w, D: Device> {
    spec: DrafterSpec,
    attention: AttentionSpec,
    weights: Weights<D::Matrix<'w>, D::Vector>,
    frequencies: Vec<f64>,
    workspace: Workspace<D>,
}

/// What a drafter knows of one lane's text: keys and values of the tapped
/// states of all its committed tokens.
pub struct BlockContext<D: Device> {
    layers: Vec<D::KeyValues>,
    tokens: usize,
}

/// One lane's new rows in [`BlockDrafter::absorb`].
pub struct AbsorbLane<'a, D: Device> {
    /// What the drafter knows of the lane.
    pub context: &'a mut BlockContext<D>,
    /// Rows of tapped states: the committed tokens that follow.
    pub rows: Range<usize>,
}

/// One lane in [`BlockDrafter::draft`].
pub struct DraftLane<'a, D: Device> {
    /// What the drafter knows of the lane: all tokens before `anchor`.
    pub context: &'a BlockContext<D>,
    /// The last token.
    pub anchor: u32,
    /// Drafts to make, at least 1 and fewer than the rows of a block.
    pub drafts: usize,
    /// How the lane draws.
    pub sampling: Sampling,
}

/// What a drafter borrows from its target.
pub struct TargetEnds<'a, 'w, D: Device> {
    /// The table of embeddings.
    pub embed: &'a D::Matrix<'w>,
    /// The output head.
    pub head: &'a D::Matrix<'w>,
    /// Ids below this may be drafted.
    pub selectable: u32,
}

/// Where a value stands inside of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPoint {
    /// Projected and normed states of the target.
    Fused,
    /// After a layer's first norm.
    InputNorm(usize),
    /// What attention reads: normed, and mixed in DFlash2.
    AttentionInput(usize),
    /// What attention gives, before it is mixed.
    Attention(usize),
    /// The residual stream after a layer's attention.
    Middle(usize),
    /// The residual stream after a layer.
    Layer(usize),
    /// All rows of the blocks after the final norm.
    FinalNorm,
    /// Logits of some lanes' masks.
    Logits,
    /// Their states as the selector projects them.
    Projected,
}

/// Sees values on their way, as rows of a width.
pub type BlockObserver<'a, D> =
    &'a mut dyn FnMut(&mut D, BlockPoint, usize, usize, &<D as Device>::Rows) -> DeviceResult;

/// Buffers for [`PASS_ROWS`] rows.
struct Workspace<D: Device> {
    /// The residual stream; projected states while they are absorbed.
    x: D::Rows,
    normed: D::Rows,
    mixed: D::Rows,
    joined: D::Rows,
    query: D::Rows,
    key: D::Rows,
    value: D::Rows,
    attended: D::Rows,
    gate: D::Rows,
    up: D::Rows,
    /// What rows add to the kernels of a mix.
    added: D::Rows,
    angles: D::Rows,
    /// Slots that go through the head together.
    chosen: D::Rows,
    logits: D::Rows,
    projected: D::Rows,
}

/// Checks a drafter without loading it; `tensors` may be
/// [descriptions](Tensors::described).
///
/// # Errors
/// Whatever [`BlockDrafter::open`] would refuse it for.
pub fn check_block(
    spec: &DrafterSpec,
    tensors: &Tensors<'_>,
    limits: DeviceLimits,
) -> Result<(), ExecutorError> {
    let multiple = limits.width_multiple;
    for (what, width) in [
        ("hidden size", spec.hidden_size),
        ("head size", spec.head_size),
        ("intermediate size", spec.intermediate_size),
    ] {
        if !width.is_multiple_of(multiple) {
            return Err(Unsupported(format!(
                "the drafter's {what} is {width}; this engine computes multiples of {multiple}"
            ))
            .into());
        }
    }
    if spec.block_size as usize > PASS_ROWS {
        return Err(ExecutorError::Invalid(format!(
            "blocks of {} rows; at most {PASS_ROWS} go through a drafter together",
            spec.block_size
        )));
    }
    Weights::load(spec, &mut Check(tensors))?;
    Ok(())
}

impl<'w, D: BlockDevice> BlockDrafter<'w, D> {
    /// Loads a drafter.
    ///
    /// # Errors
    /// [`ExecutorError::Unsupported`] and [`ExecutorError::Tensor`] before the
    /// device is used, [`ExecutorError::Device`] from the device.
    pub fn open(device: &mut D, spec: DrafterSpec, tensors: &Tensors<'w>) -> Result<Self, ExecutorError> {
        check_block(&spec, tensors, device.limits())?;
        let weights = Weights::load(&spec, &mut Load { tensors, device })?;
        let attention = AttentionSpec {
            heads: spec.heads,
            key_value_heads: spec.key_value_heads,
            head_size: spec.head_size,
            gated: false,
            head_norms: true,
            biases: false,
        };
        let frequencies = rotary_frequencies(&spec.rope);
        let workspace = Workspace::new(device, &spec)?;
        Ok(BlockDrafter { spec, attention, weights, frequencies, workspace })
    }

    /// The drafter's facts.
    pub fn spec(&self) -> &DrafterSpec {
        &self.spec
    }

    /// Most drafts that it makes for a lane at once.
    pub fn most_drafts(&self) -> usize {
        self.spec.block_size as usize - 1
    }

    /// Knows nothing yet.
    ///
    /// # Errors
    /// From the device.
    pub fn context(&self, device: &mut D) -> Result<BlockContext<D>, ExecutorError> {
        let layers = self.spec.layers.iter().map(|_| device.key_values(&self.attention));
        Ok(BlockContext { layers: layers.collect::<DeviceResult<_>>()?, tokens: 0 })
    }
}

impl<D: Device> BlockContext<D> {
    /// Tokens that it knows of.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Keys and values, layer by layer.
    pub fn layers(&self) -> &[D::KeyValues] {
        &self.layers
    }

    /// The same, to go on with by itself.
    ///
    /// # Errors
    /// From the device.
    pub fn fork(&self, device: &mut D) -> Result<Self, ExecutorError> {
        let layers = self.layers.iter().map(|layer| device.fork_key_values(layer));
        Ok(BlockContext { layers: layers.collect::<DeviceResult<_>>()?, tokens: self.tokens })
    }
}

impl<D: Device> Workspace<D> {
    fn new(device: &mut D, spec: &DrafterSpec) -> DeviceResult<Self> {
        let hidden = spec.hidden_size as usize;
        let (queries, keys) =
            ((spec.heads * spec.head_size) as usize, (spec.key_value_heads * spec.head_size) as usize);
        let (added, rank) = match spec.refinement {
            None => (0, 0),
            Some(refinement) => {
                let groups = hidden / refinement.convolution_group as usize;
                (2 * refinement.convolution_kernel as usize * groups, refinement.selector_rank as usize)
            }
        };
        let slots = HEAD_ROWS.max(spec.block_size as usize - 1);
        let mut rows = |width: usize| device.rows(PASS_ROWS, width);
        Ok(Workspace {
            x: rows(hidden)?,
            normed: rows(hidden)?,
            mixed: rows(hidden)?,
            joined: rows(hidden)?,
            query: rows(queries)?,
            key: rows(keys)?,
            value: rows(keys)?,
            attended: rows(queries)?,
            gate: rows(spec.intermediate_size as usize)?,
            up: rows(spec.intermediate_size as usize)?,
            added: rows(added)?,
            angles: rows(spec.head_size as usize)?,
            chosen: device.rows(slots, hidden)?,
            logits: device.rows(slots, spec.vocabulary_rows as usize)?,
            projected: device.rows(slots, rank)?,
        })
    }
}
