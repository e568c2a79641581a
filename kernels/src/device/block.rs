//! What a chip has to do to run block drafters, DFlash and DFlash2.

use std::ops::Range;

use tensorfold_plugin_api::sampling::Sampling;

use super::{AttentionLane, Device, DeviceResult};

/// One lane's rows of a block in [`BlockDevice::attend_block`].
pub struct BlockLane<'a, D: Device> {
    /// The rows, consecutive positions from the cache's length on.
    pub rows: Range<usize>,
    /// Keys and values of all positions before them.
    pub cache: &'a D::KeyValues,
}

/// What a row of a block sees: position `k` from position `q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Only where `|q - k|` is below this.
    pub window: Option<usize>,
    /// Only where `k <= q`.
    pub causal: bool,
}

/// The kernels that mix a block's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Rows that take part, this one included.
    pub kernel: usize,
    /// Channels that share what a row adds to the kernels.
    pub group: usize,
    /// 0: before a half of a layer; 1: after it.
    pub side: usize,
}

/// One lane's slots in [`BlockDevice::select`].
#[derive(Clone, Debug)]
pub struct SelectLane {
    /// Rows of logits and of projected states, a row for each slot.
    pub rows: Range<usize>,
    /// The token before the first slot.
    pub anchor: u32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens before the one that the first slot stands for.
    pub position: u64,
}

/// The selector of DFlash2.
pub struct Selector<'a, 'w, D: Device> {
    /// `[vocabulary, rank]`, by the token before.
    pub predecessor: &'a D::Matrix<'w>,
    /// `[vocabulary, rank]`, by the candidate.
    pub successor: &'a D::Matrix<'w>,
    /// Dimensions.
    pub rank: usize,
    /// Candidates of a slot.
    pub candidates: usize,
}

/// Operations that only drafters need.
pub trait BlockDevice: Device {
    /// Appends keys and values to the lanes' caches.
    fn append(
        &mut self,
        lanes: &mut [AttentionLane<'_, Self>],
        keys: &Self::Rows,
        values: &Self::Rows,
    ) -> DeviceResult;
    /// Gives back what a cache holds of positions before `position`, as far as
    /// the device can. They are not looked at any more.
    fn forget(&mut self, cache: &mut Self::KeyValues, position: usize) -> DeviceResult;
    /// Every row attends to the positions of its lane's cache and to the rows
    /// of its own block, as far as it sees them. The caches stay as they are.
    fn attend_block(
        &mut self,
        lanes: &[BlockLane<'_, Self>],
        sight: Sight,
        queries: &Self::Rows,
        keys: &Self::Rows,
        values: &Self::Rows,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// `out[i, c]` is the sum over `t < kernel` of
    /// `(base[side, t, c] + added[i, side, t, c / group]) * x[i - t, c]`, where
    /// rows before a block's first are 0. `base` is `[2, kernel, width]`.
    #[expect(clippy::too_many_arguments, reason = "three buffers and a vector go in together")]
    fn mix(
        &mut self,
        blocks: &[Range<usize>],
        width: usize,
        mix: Mix,
        x: &Self::Rows,
        added: &Self::Rows,
        base: &Self::Vector,
        out: &mut Self::Rows,
    ) -> DeviceResult;
    /// `x = multiplier * x`, then `cap * tanh(x / cap)` where there is a cap.
    fn adjust(
        &mut self,
        rows: usize,
        width: usize,
        x: &mut Self::Rows,
        multiplier: f32,
        cap: Option<f32>,
    ) -> DeviceResult;
    /// Walks each lane's slots from left to right.
    ///
    /// A slot's candidates are the ids below `selectable` of the largest
    /// logits. Candidate `c` after token `p` scores its logit plus the sum over
    /// dimensions of `predecessor[p] * projected * successor[c]`, in `f32`. The
    /// token is drawn from the scores by the sampling rule, and its probability
    /// is that among the candidates at temperature 1.
    fn select(
        &mut self,
        lanes: &[SelectLane],
        selector: &Selector<'_, '_, Self>,
        logits: &Self::Rows,
        width: usize,
        selectable: u32,
        projected: &Self::Rows,
    ) -> DeviceResult<Vec<Vec<(u32, f32)>>>;
}
