//! The state of one running text.

use std::sync::Arc;

use super::block::BlockLane;
use super::mtp::HeadLane;
use crate::device::Device;

/// What one lane holds: per layer a cache or a recurrent state.
///
/// Recurrent states are shared until the next round makes new ones, so that a
/// snapshot costs what differs, and dropping a failed round restores a lane.
pub struct Lane<D: Device> {
    pub(super) layers: Vec<LaneLayer<D>>,
    pub(super) position: usize,
    /// What the multi-token prediction head knows, where one was open.
    pub(super) head: Option<Box<HeadLane<D>>>,
    /// What the block drafter knows, where one was open.
    pub(super) block: Option<Box<BlockLane<D>>>,
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

    /// The parts of the multi-token prediction head; empty without one.
    pub fn head_layers(&self) -> &[LaneLayer<D>] {
        self.head.as_ref().map_or(&[], |head| head.layers())
    }

    /// Keys and values of the block drafter's layers; empty without one.
    pub fn block_layers(&self) -> &[D::KeyValues] {
        self.block.as_ref().map_or(&[], |block| block.layers())
    }

    /// Bytes of the states that wait for drafters.
    pub fn waiting_bytes(&self) -> usize {
        self.head.as_ref().map_or(0, |head| head.backlog_bytes())
            + self.block.as_ref().map_or(0, |block| block.backlog_bytes())
    }

    /// The lane's parts, layer by layer.
    pub fn layers(&self) -> &[LaneLayer<D>] {
        &self.layers
    }
}
