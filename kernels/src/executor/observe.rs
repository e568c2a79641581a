//! Looking at values on their way through the model.

use crate::device::{Device, DeviceResult};

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The residual stream after the embedding.
    Embedding,
    /// After a layer's first norm.
    InputNorm(usize),
    /// Queries, keys and values of a recurrent layer after the convolution.
    Convolved(usize),
    /// Decays of a recurrent layer, in (0, 1].
    Decays(usize),
    /// Strengths of a recurrent layer.
    Strengths(usize),
    /// What a recurrent layer read from its state.
    Recurred(usize),
    /// The same after the gated norm.
    GatedNorm(usize),
    /// A layer's mixer, before it joins the residual stream.
    Mixer(usize),
    /// After a layer's second norm.
    PostNorm(usize),
    /// Logits of a layer's router over its experts.
    RouterLogits(usize),
    /// A layer's feed-forward part, before it joins the residual stream.
    FeedForward(usize),
    /// The residual stream after a layer.
    Layer(usize),
    /// The rows that go to the head, after the final norm.
    FinalNorm,
    /// Their logits.
    Logits,
    /// Output of the multi-token prediction head, after its norm.
    HeadHidden,
    /// Logits of that head's drafts.
    HeadLogits,
}

/// Sees values as rows of `width` floats on the device.
///
/// For drafters that condition on a target's inner values, and for tests.
pub trait Observer<D: Device> {
    /// Called for every point of every pass, in order.
    ///
    /// # Errors
    /// From the device; the round then fails.
    fn observe(
        &mut self,
        device: &mut D,
        point: Point,
        rows: usize,
        width: usize,
        values: &D::Rows,
    ) -> DeviceResult;

    /// Called when a layer has chosen its experts for all rows of a pass.
    ///
    /// # Errors
    /// From the device; the round then fails.
    fn observe_routes(&mut self, _: &mut D, _layer: usize, _: &D::Routes) -> DeviceResult {
        Ok(())
    }
}

/// Looks at nothing.
pub(super) struct Nobody;

impl<D: Device> Observer<D> for Nobody {
    fn observe(&mut self, _: &mut D, _: Point, _: usize, _: usize, _: &D::Rows) -> DeviceResult {
        Ok(())
    }
}
