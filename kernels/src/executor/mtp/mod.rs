//! Drafting with a checkpoint's own multi-token prediction head.
//!
//! The head is a small model of its own. Row `p` of it takes the final, normed
//! state `h` of the target at position `p` and the token `x` after it:
//!
//! ```text
//! u = fc [norm(embed[x]); norm(h)]     embedding first
//! u = the head's layers(u)             rotary position p, keys and values of their own
//! m = norm(u)                          head(m) predicts the token after x
//! ```
//!
//! A chain of drafts feeds a draft as `x` and `m` in place of the `h` that
//! nobody knows yet. Its rows are forgotten after the round.
//!
//! The head follows a prompt row by row. While a reply goes on without drafts
//! it does not run; the last [`BACKLOG`] states wait, and older ones are
//! skipped, so that a drafter that does not pay costs nothing.

mod chain;
mod follow;

use tensorfold_plugin_api::model_spec::{MixerSpec, ModelSpec};

use super::lane::{Lane, LaneLayer};
use super::trunk::{Check, Layer, Load, Loader, centred, layers};
use super::{Executor, ExecutorError, MemoryPlan, OUTPUT_ROWS, Options, PASS_ROWS, Unsupported, plan};
use crate::device::{Device, DeviceLimits, DeviceResult};
use crate::weights::Tensors;
pub(super) use chain::DraftRequest;
pub(super) use follow::Committed;

/// States of a reply that wait for the head.
const BACKLOG: usize = 64;

/// Most drafts of a chain.
pub const CHAIN_DRAFTS: usize = OUTPUT_ROWS - 1;

/// The weights of a head, as matrices `M`, vectors `V` and experts `E`.
struct Weights<M, V, E> {
    embed_norm: V,
    hidden_norm: V,
    norm: V,
    fc: M,
    layers: Vec<Layer<M, V, E>>,
}

/// The weights of a head on a device.
type HeadWeights<'w, D> =
    Weights<<D as Device>::Matrix<'w>, <D as Device>::Vector, <D as Device>::Experts<'w>>;

/// A head that is open.
pub(super) struct Head<'w, D: Device> {
    weights: HeadWeights<'w, D>,
    /// Final, normed states of a pass of the target.
    states: D::Rows,
    /// States for the rows of a pass of the head.
    hidden: D::Rows,
    /// Embeddings and states, side by side.
    pair: D::Rows,
    /// Output of each lane's last row.
    last: D::Rows,
}

/// What the head knows of one lane.
pub(super) struct HeadLane<D: Device> {
    /// Keys and values of the head's layers.
    caches: Lane<D>,
    /// States of the target at positions up to the lane's last, which the head
    /// has not taken in. That of position `p` lies in row `p % BACKLOG`.
    backlog: D::Rows,
    /// The tokens that follow those states; that of the last is not known yet.
    following: Vec<u32>,
    /// States in the backlog: none, or one more than known tokens.
    waiting: usize,
    /// The token for which the head has taken in the last state ahead of time.
    ahead: Option<u32>,
    /// Width of a state.
    hidden: usize,
}

/// The weights of a head as a loader gives them.
type LoadedWeights<L> = Weights<<L as Loader>::Matrix, <L as Loader>::Vector, <L as Loader>::Experts>;

fn load<L: Loader>(spec: &ModelSpec, loader: &mut L) -> Result<LoadedWeights<L>, ExecutorError> {
    let Some(head) = &spec.mtp else {
        return Err(Unsupported("the model has no multi-token prediction head".into()).into());
    };
    if head.layers.iter().any(|layer| !matches!(layer.mixer, MixerSpec::Attention(_))) {
        return Err(Unsupported("a layer of the multi-token prediction head is recurrent".into()).into());
    }
    let hidden = spec.hidden_size as usize;
    let centre = centred(head.norm_weight_offset);
    Ok(Weights {
        embed_norm: loader.vector("mtp.embed_norm", &[hidden], centre)?,
        hidden_norm: loader.vector("mtp.hidden_norm", &[hidden], centre)?,
        norm: loader.vector("mtp.norm", &[hidden], centre)?,
        fc: loader.matrix("mtp.fc", hidden, 2 * hidden)?,
        layers: layers("mtp.", &head.layers, hidden, centre, loader)?,
    })
}

/// Checks a model's head without loading it; `tensors` may be
/// [descriptions](Tensors::described).
///
/// # Errors
/// Whatever [`Executor::open_head`] would refuse it for.
pub fn check_head(
    spec: &ModelSpec,
    tensors: &Tensors<'_>,
    limits: DeviceLimits,
) -> Result<(), ExecutorError> {
    for (index, layer) in spec.mtp.iter().flat_map(|head| &head.layers).enumerate() {
        plan::layer_supported(&format!("layer {index} of the multi-token prediction head"), layer, limits)?;
    }
    load(spec, &mut Check(tensors)).map(drop)
}

/// What a head adds to the plan of its model.
pub fn head_plan(spec: &ModelSpec, options: Options) -> MemoryPlan {
    let layers = spec.mtp.iter().flat_map(|head| &head.layers);
    let token: u64 = layers
        .map(|layer| match &layer.mixer {
            MixerSpec::Attention(attention) => plan::token_bytes(attention),
            MixerSpec::GatedDelta(_) => 0,
        })
        .sum();
    let row = u64::from(spec.hidden_size) * plan::FLOAT;
    let backlog = BACKLOG as u64 * row;
    MemoryPlan {
        lane_bytes: backlog + (options.context as u64).next_multiple_of(64) * token,
        scratch_bytes: 5 * row * PASS_ROWS as u64,
        snapshot_bytes: backlog,
        snapshot_token_bytes: token,
    }
}

impl<'w, D: Device> Executor<'w, D> {
    /// Makes the model's own head ready: lanes that are opened from now on can
    /// draft up to [`CHAIN_DRAFTS`] tokens a round.
    ///
    /// # Errors
    /// [`ExecutorError::Unsupported`] and [`ExecutorError::Tensor`] before the
    /// device is used, [`ExecutorError::Device`] from the device.
    pub fn open_head(&mut self, tensors: &Tensors<'w>) -> Result<(), ExecutorError> {
        check_head(&self.spec, tensors, self.device.limits())?;
        let hidden = self.spec.hidden_size as usize;
        let weights = load(&self.spec, &mut Load { tensors, device: &mut self.device })?;
        let mut rows = |width: usize| self.device.rows(PASS_ROWS, width);
        let head = Head {
            weights,
            states: rows(hidden)?,
            hidden: rows(hidden)?,
            pair: rows(2 * hidden)?,
            last: rows(hidden)?,
        };
        self.head = Some(head);
        Ok(())
    }

    /// Forgets the head. Lanes that were opened with it keep what it knew of
    /// them until they are closed, and draft no more.
    pub fn close_head(&mut self) {
        self.head = None;
    }

    /// What the head knows of a new lane, if there is one.
    pub(super) fn head_lane(&mut self) -> Result<Option<Box<HeadLane<D>>>, ExecutorError> {
        let Some(head) = &self.head else { return Ok(None) };
        let mut caches = Vec::with_capacity(head.weights.layers.len());
        for layer in self.spec.mtp.iter().flat_map(|head| &head.layers) {
            if let MixerSpec::Attention(spec) = &layer.mixer {
                caches.push(LaneLayer::KeyValues(self.device.key_values(spec)?));
            }
        }
        Ok(Some(Box::new(HeadLane {
            caches: Lane { layers: caches, position: 0, head: None, block: None },
            backlog: self.device.rows(BACKLOG, self.spec.hidden_size as usize)?,
            following: Vec::new(),
            waiting: 0,
            ahead: None,
            hidden: self.spec.hidden_size as usize,
        })))
    }
}

impl<D: Device> HeadLane<D> {
    /// The same, to go on with by itself.
    pub(super) fn fork(&self, device: &mut D) -> DeviceResult<Self> {
        let hidden = self.hidden;
        let mut caches = Vec::with_capacity(self.caches.layers.len());
        for layer in &self.caches.layers {
            if let LaneLayer::KeyValues(cache) = layer {
                caches.push(LaneLayer::KeyValues(device.fork_key_values(cache)?));
            }
        }
        let mut backlog = device.rows(BACKLOG, hidden)?;
        device.copy_rows(hidden, &self.backlog, 0..BACKLOG, &mut backlog, 0)?;
        Ok(HeadLane {
            caches: Lane { layers: caches, position: self.caches.position, head: None, block: None },
            backlog,
            following: self.following.clone(),
            waiting: self.waiting,
            ahead: self.ahead,
            hidden: self.hidden,
        })
    }

    /// Bytes of the backlog.
    pub(super) fn backlog_bytes(&self) -> usize {
        BACKLOG * self.hidden * size_of::<f32>()
    }

    /// Keys and values of the head's layers.
    pub(super) fn layers(&self) -> &[LaneLayer<D>] {
        &self.caches.layers
    }

    /// Forgets rows that the head took in ahead of time or in a chain: it holds
    /// its first `rows` rows.
    fn truncate(&mut self, device: &mut D, rows: usize) -> DeviceResult {
        for layer in &mut self.caches.layers {
            if let LaneLayer::KeyValues(cache) = layer {
                device.truncate_key_values(cache, rows)?;
            }
        }
        self.caches.position = rows;
        Ok(())
    }
}
