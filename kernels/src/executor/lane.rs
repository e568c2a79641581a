//! The state of one running text.

use std::sync::Arc;

use crate::device::Device;

/// What one lane holds: per layer a cache or a recurrent state.
///
/// Recurrent states are shared until the next round makes new ones, so that a
/// snapshot costs what differs, and dropping a failed round restores a lane.
pub struct Lane<D: Device> {
    pub(super) layers: Vec<LaneLayer<D>>,
    pub(super) position: usize,
}

/// A lane's part in one layer.
pub enum LaneLayer<D: Device> {
    /// Keys and values of an attention layer.
    KeyValues(D::KeyValues),
    /// State of a recurrent layer.
    Delta(Arc<D::DeltaState>),
}

impl<D: Device> Lane<D> {
    /// Tokens that the lane holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The lane's parts, layer by layer.
    pub fn layers(&self) -> &[LaneLayer<D>] {
        &self.layers
    }
}
