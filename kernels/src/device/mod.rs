//! What a chip has to do to run every model family.
//!
//! The executor knows models: layers, lanes, rollback. A [`Device`] knows
//! arithmetic. Its buffers are its own types, so they may live anywhere. One
//! call serves the rows of all lanes; which rows belong to which lane matters
//! only to the operations that look at other positions, and those are told.
//!
//! # The contract
//!
//! *Rows are independent.* The bits of a row that an operation writes are a
//! function of that row's inputs and, for operations that get lanes, of the
//! lane's earlier rows and absolute positions. They do not depend on how many
//! rows or lanes share the call. Drafting and batching are exact because of
//! this and of nothing else.
//!
//! *Caches and states.* A [`KeyValues`](Device::KeyValues) grows by the rows
//! that attend and can be cut back. A [`DeltaState`](Device::DeltaState) is
//! never changed in place: the effect of rows goes into another state, or into
//! a [`DeltaTrace`](Device::DeltaTrace) from which any leading part of them can
//! be put into a state later, bit for bit as if only those had been fed.
//!
//! *Shapes.* Activations are rows of floats, row-major; `rows` counts the
//! leading rows of a buffer that an operation uses. The executor passes only
//! shapes that [`Device::limits`] allows.

mod block;

use std::ops::Range;

use tensorfold_plugin_api::model_spec::{AttentionSpec, GatedDeltaSpec};
use tensorfold_plugin_api::sampling::Sampling;

pub use block::{BlockDevice, BlockLane, Mix, SelectLane, Selector, Sight};

use crate::weights::MatrixView;

/// Why a device could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device or the machine has no memory left.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device is gone or answers no more.
    #[error("the device was lost: {0}")]
    Lost(String),
    /// Anything else that the driver reports.
    #[error("the device failed: {0}")]
    Failed(String),
}

/// Which shapes a device computes. The executor refuses models outside them.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Every width and head size must be a multiple of this.
    pub width_multiple: u32,
    /// Key sizes of Gated DeltaNet heads.
    pub delta_key_sizes: &'static [u32],
}

/// One matrix of a [`Device::multiply`] call:
/// `out[row] = matrix * x[row] + bias`.
pub struct Product<'a, 'w, D: Device> {
    /// The weights.
    pub matrix: &'a D::Matrix<'w>,
    /// Added to every row.
    pub bias: Option<&'a D::Vector>,
    /// Where the result goes, rows as wide as the matrix has rows.
    pub out: &'a mut D::Rows,
}

/// One lane's rows in [`Device::attend`].
pub struct AttentionLane<'a, D: Device> {
    /// The rows, consecutive positions from the cache's length on.
    pub rows: Range<usize>,
    /// The lane's cache.
    pub cache: &'a mut D::KeyValues,
}

/// One lane's rows in [`Device::convolve`] and [`Device::recur`].
pub struct DeltaLane<'a, D: Device> {
    /// The rows.
    pub rows: Range<usize>,
    /// The state before them.
    pub state: &'a D::DeltaState,
    /// Where their effect goes.
    pub target: DeltaTarget<'a, D>,
}

/// Where the effect of a lane's rows goes.
pub enum DeltaTarget<'a, D: Device> {
    /// All rows stay: into this state, whose old content means nothing.
    State(&'a mut D::DeltaState),
    /// Some may be taken back: into this trace.
    Trace(&'a mut D::DeltaTrace),
}

/// One product of a [`Device::multiply_experts`] call.
pub struct ExpertProduct<'a, 'w, D: Device> {
    /// The same matrix of every expert.
    pub matrices: &'a D::Experts<'w>,
    /// Where the result goes, a row for each slot.
    pub out: &'a mut D::Rows,
}

/// What experts multiply.
pub enum ExpertInput<'a, D: Device> {
    /// A row of activations for all experts that were chosen for it.
    Rows(&'a D::Rows),
    /// A row for each slot, as [`Device::multiply_experts`] wrote it.
    Slots(&'a D::Rows),
}

/// What the recurrence reads.
pub struct DeltaInputs<'a, D: Device> {
    /// Queries, keys and values after [`Device::delta_inputs`].
    pub mixed: &'a D::Rows,
    /// Decays, one for each value head.
    pub decays: &'a D::Rows,
    /// Strengths, one for each value head.
    pub strengths: &'a D::Rows,
}

/// One draw of [`Device::draw`].
#[derive(Clone, Copy, Debug)]
pub struct DrawRequest<'a> {
    /// How to draw.
    pub sampling: Sampling,
    /// Tokens before the drawn one.
    pub position: u64,
    /// Bit mask of the ids that may be drawn; all when absent.
    pub allowed: Option<&'a [u32]>,
    /// Whether log probabilities are wanted, and of how many likeliest tokens.
    pub log_probabilities: Option<u32>,
}

/// What a row of logits gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The token; `None` when nothing could be drawn.
    pub token: Option<u32>,
    /// The drawn token, then the likeliest ones, with the natural logarithms
    /// of their probabilities; empty when not wanted.
    pub log_probabilities: Vec<(u32, f32)>,
}

/// A result of a device operation.
pub type DeviceResult<T = ()> = Result<T, DeviceError>;

/// The operations.
pub trait Device: Sized {
    /// Weights of a linear map, or a table of rows.
    type Matrix<'w>;
    /// A small vector of floats.
    type Vector;
    /// Rows of activations.
    type Rows;
    /// Keys and values of one lane in one layer.
    type KeyValues;
    /// Recurrent state of one lane in one layer.
    type DeltaState;
    /// Rows that may still be taken back.
    type DeltaTrace;
    /// The same matrix of every routed expert of a layer.
    type Experts<'w>;
    /// Which experts were chosen for each row, and how strongly each counts.
    ///
    /// An expert that was chosen for a row is a *slot*. Buffers of slots hold
    /// them in an order that only the device knows, such as expert by expert;
    /// operations on single rows may be used on them as on any others.
    type Routes;

    /// The shapes that this device computes.
    fn limits(&self) -> DeviceLimits;

    /// Makes weights usable, in place where the device can.
    fn matrix<'w>(&mut self, view: MatrixView<'w>) -> DeviceResult<Self::Matrix<'w>>;
    /// Makes a vector.
    fn vector(&mut self, values: &[f32]) -> DeviceResult<Self::Vector>;
    /// Makes room for activations.
    fn rows(&mut self, rows: usize, width: usize) -> DeviceResult<Self::Rows>;
    /// Makes an empty cache.
    fn key_values(&mut self, spec: &AttentionSpec) -> DeviceResult<Self::KeyValues>;
    /// Makes a cache with the same content that changes by itself.
    fn fork_key_values(&mut self, cache: &Self::KeyValues) -> DeviceResult<Self::KeyValues>;
    /// Cuts a cache back to its first `tokens` positions.
    fn truncate_key_values(&mut self, cache: &mut Self::KeyValues, tokens: usize) -> DeviceResult;
    /// Makes a state of an empty text.
    fn delta_state(&mut self, spec: &GatedDeltaSpec) -> DeviceResult<Self::DeltaState>;
    /// Makes the matrices of a layer's experts usable, in place where the
    /// device can. Views of one stack come in its order.
    fn experts<'w>(&mut self, views: Vec<MatrixView<'w>>) -> DeviceResult<Self::Experts<'w>>;
    /// Makes room for the routes of `rows` rows to at most `per_row` of at most
    /// `experts` experts.
    fn routes(&mut self, rows: usize, experts: usize, per_row: usize) -> DeviceResult<Self::Routes>;
    /// Makes room for the trace of `rows` rows.
    fn delta_trace(&mut self, spec: &GatedDeltaSpec, rows: usize) -> DeviceResult<Self::DeltaTrace>;

    /// `out[i] = table[tokens[i]]`.
    fn embed(&mut self, table: &Self::Matrix<'_>, tokens: &[u32], out: &mut Self::Rows) -> DeviceResult;
    /// Multiplies rows with matrices that share their input.
    fn multiply(
        &mut self,
        rows: usize,
        x: &Self::Rows,
        products: &mut [Product<'_, '_, Self>],
    ) -> DeviceResult;
    /// Multiplies rows with a router. A device that rounds activations in
    /// [`Device::multiply`] must not do so here: the result decides which
    /// experts run, and near ties are common.
    fn score_experts(
        &mut self,
        rows: usize,
        x: &Self::Rows,
        router: &Self::Matrix<'_>,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`.
    fn norm(
        &mut self,
        rows: usize,
        x: &Self::Rows,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// [`Device::norm`] of each head in place; a head is as wide as `weight`.
    fn norm_heads(
        &mut self,
        rows: usize,
        heads: u32,
        x: &mut Self::Rows,
        weight: &Self::Vector,
        epsilon: f32,
    ) -> DeviceResult;
    /// Takes rows of, per head, a query and a gate apart.
    fn split_gate(
        &mut self,
        rows: usize,
        spec: &AttentionSpec,
        both: &Self::Rows,
        queries: &mut Self::Rows,
        gates: &mut Self::Rows,
    ) -> DeviceResult;
    /// Cosines and sines of `position * frequency` for each position.
    fn rotary_angles(
        &mut self,
        positions: &[usize],
        frequencies: &[f64],
        angles: &mut Self::Rows,
    ) -> DeviceResult;
    /// Rotates the leading dimensions of each head: `i` with `i + half`, where
    /// `half` is the number of frequencies.
    fn rotate(
        &mut self,
        rows: usize,
        heads: u32,
        head_size: u32,
        half: usize,
        angles: &Self::Rows,
        x: &mut Self::Rows,
    ) -> DeviceResult;
    /// Appends keys and values to the lanes' caches; every row attends to its
    /// own and all earlier positions of its lane. Lanes are in row order.
    fn attend(
        &mut self,
        lanes: &mut [AttentionLane<'_, Self>],
        queries: &Self::Rows,
        keys: &Self::Rows,
        values: &Self::Rows,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// `x = x * sigmoid(gate)`.
    fn gate(&mut self, rows: usize, width: usize, x: &mut Self::Rows, gate: &Self::Rows) -> DeviceResult;
    /// Depth-wise convolution over each lane's rows, then silu. `taps` is
    /// `[kernel, channels]`. Lanes are in row order.
    fn convolve(
        &mut self,
        spec: &GatedDeltaSpec,
        lanes: &mut [DeltaLane<'_, Self>],
        x: &Self::Rows,
        taps: &Self::Vector,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// Prepares the recurrence: queries and keys in `mixed` become unit
    /// vectors, queries scaled by `key_head_size^-1/2`; `a` becomes the decay
    /// `e^(-e^a_log softplus(a + dt_bias))` and `b` the strength `sigmoid(b)`.
    #[expect(clippy::too_many_arguments, reason = "three buffers and two vectors go in together")]
    fn delta_inputs(
        &mut self,
        rows: usize,
        spec: &GatedDeltaSpec,
        mixed: &mut Self::Rows,
        a: &mut Self::Rows,
        b: &mut Self::Rows,
        a_log: &Self::Vector,
        dt_bias: &Self::Vector,
    ) -> DeviceResult;
    /// The gated delta rule over each lane's rows: `S = decay S`,
    /// `u = strength (v - S k)`, `S = S + u k^T`, `out = S q`.
    fn recur(
        &mut self,
        spec: &GatedDeltaSpec,
        lanes: &mut [DeltaLane<'_, Self>],
        inputs: DeltaInputs<'_, Self>,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// Makes `next` what `state` would be had only the first `rows` rows of
    /// the trace been fed.
    fn replay(
        &mut self,
        spec: &GatedDeltaSpec,
        state: &Self::DeltaState,
        trace: &Self::DeltaTrace,
        rows: usize,
        next: &mut Self::DeltaState,
    ) -> DeviceResult;
    /// [`Device::norm_heads`], then times `silu(gate)`.
    fn gated_norm(
        &mut self,
        rows: usize,
        heads: u32,
        x: &mut Self::Rows,
        gate: &Self::Rows,
        weight: &Self::Vector,
        epsilon: f32,
    ) -> DeviceResult;
    /// `gate = silu(gate) * up`.
    fn swiglu(&mut self, rows: usize, width: usize, gate: &mut Self::Rows, up: &Self::Rows) -> DeviceResult;
    /// Chooses, for each row, the `per_row` experts of the largest logits.
    ///
    /// A row's first slot is its largest logit; of equal ones the lower expert
    /// comes first. A slot's weight is `e^logit` over the sum of the chosen
    /// ones', which is the softmax over all experts, renormalised. In `f32`.
    fn route(
        &mut self,
        rows: usize,
        experts: usize,
        per_row: usize,
        logits: &Self::Rows,
        routes: &mut Self::Routes,
    ) -> DeviceResult;
    /// Multiplies each slot's row with the matrices of the slot's expert.
    ///
    /// The bits of a slot are those that [`Device::multiply`] gives for its row
    /// and matrix: other rows of the same expert do not matter.
    fn multiply_experts(
        &mut self,
        routes: &Self::Routes,
        x: ExpertInput<'_, Self>,
        products: &mut [ExpertProduct<'_, '_, Self>],
    ) -> DeviceResult;
    /// `out[row]` is the sum over the row's slots, from the first one on, of
    /// weight times slot.
    fn combine(
        &mut self,
        routes: &Self::Routes,
        width: usize,
        slots: &Self::Rows,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// `x = x + sigmoid(gate) * y`, where `gate` has one float for each row.
    fn add_gated(
        &mut self,
        rows: usize,
        width: usize,
        x: &mut Self::Rows,
        y: &Self::Rows,
        gate: &Self::Rows,
    ) -> DeviceResult;
    /// `x = x + y`.
    fn add(&mut self, rows: usize, width: usize, x: &mut Self::Rows, y: &Self::Rows) -> DeviceResult;
    /// `out[i] = x[indices[i]]`.
    fn gather(
        &mut self,
        indices: &[usize],
        width: usize,
        x: &Self::Rows,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// Copies rows of `width` floats to column `column` of rows of `out_width`.
    fn place(
        &mut self,
        rows: usize,
        width: usize,
        x: &Self::Rows,
        column: usize,
        out_width: usize,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// Copies rows `from` of `x` to rows `to` and on of `out`, all of `width` floats.
    fn copy_rows(
        &mut self,
        width: usize,
        x: &Self::Rows,
        from: Range<usize>,
        out: &mut Self::Rows,
        to: usize,
    ) -> DeviceResult;
    /// Draws a token from each row of logits by the sampling rule.
    fn draw(
        &mut self,
        logits: &Self::Rows,
        width: usize,
        selectable: u32,
        requests: &[DrawRequest<'_>],
    ) -> DeviceResult<Vec<Draw>>;

    /// The experts and weights of every slot, row by row from the first slot on.
    fn read_routes(&mut self, routes: &Self::Routes) -> DeviceResult<Vec<(u32, f32)>>;
    /// Copies leading rows out.
    fn read(&mut self, rows: usize, width: usize, x: &Self::Rows) -> DeviceResult<Vec<f32>>;
}
