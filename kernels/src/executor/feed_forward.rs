//! The part of a layer that looks at one position: dense, or routed experts.

use super::PASS_ROWS;
use super::forward::Pass;
use super::observe::Point;
use super::plan::Widths;
use super::trunk::{Dense, FeedForward, MixtureOfExperts};
use crate::device::{Device, DeviceResult, ExpertInput, ExpertProduct, Product};

/// Buffers for the routed experts of [`PASS_ROWS`] rows; empty in a model
/// without any.
pub(super) struct ExpertRows<D: Device> {
    logits: D::Rows,
    routes: D::Routes,
    /// Gates, ups and outputs have a row for each slot.
    gate: D::Rows,
    up: D::Rows,
    out: D::Rows,
    /// What the shared expert gives, and the gate before it.
    shared: D::Rows,
    shared_gate: D::Rows,
}

impl<D: Device> ExpertRows<D> {
    pub(super) fn new(device: &mut D, widths: &Widths) -> DeviceResult<Self> {
        let slots = PASS_ROWS * widths.experts_per_row;
        let anywhere = |width: usize| if widths.experts > 0 { width } else { 0 };
        Ok(ExpertRows {
            logits: device.rows(PASS_ROWS, widths.experts)?,
            routes: device.routes(PASS_ROWS, widths.experts, widths.experts_per_row)?,
            gate: device.rows(slots, widths.expert_intermediate)?,
            up: device.rows(slots, widths.expert_intermediate)?,
            out: device.rows(slots, anywhere(widths.hidden))?,
            shared: device.rows(PASS_ROWS, anywhere(widths.hidden))?,
            shared_gate: device.rows(PASS_ROWS, anywhere(1))?,
        })
    }
}

impl<D: Device> Pass<'_, D> {
    /// From the normed rows to the rows that join the residual stream.
    pub(super) fn feed_forward(
        &mut self,
        index: usize,
        part: &FeedForward<D::Matrix<'_>, D::Experts<'_>>,
    ) -> DeviceResult {
        match part {
            FeedForward::Dense(dense) => self.dense(dense, false),
            FeedForward::Experts(experts) => self.mixture_of_experts(index, experts),
        }
    }

    /// A dense part; as `shared` expert it has its own place for the result.
    fn dense(&mut self, layer: &Dense<D::Matrix<'_>>, shared: bool) -> DeviceResult {
        let Pass { device, w, rows, .. } = self;
        let rows = *rows;
        device.multiply(
            rows,
            &w.normed,
            &mut [
                Product { matrix: &layer.gate, bias: None, out: &mut w.gate },
                Product { matrix: &layer.up, bias: None, out: &mut w.up },
            ],
        )?;
        device.swiglu(rows, layer.intermediate, &mut w.gate, &w.up)?;
        let out = if shared { &mut w.experts.shared } else { &mut w.joined };
        device.multiply(rows, &w.gate, &mut [Product { matrix: &layer.down, bias: None, out }])
    }

    fn mixture_of_experts(
        &mut self,
        index: usize,
        layer: &MixtureOfExperts<D::Matrix<'_>, D::Experts<'_>>,
    ) -> DeviceResult {
        let Pass { device, w, rows, hidden, observer, .. } = self;
        let (rows, hidden, shape) = (*rows, *hidden, layer.shape);
        let e = &mut w.experts;
        device.score_experts(rows, &w.normed, &layer.router, &mut e.logits)?;
        observer.observe(device, Point::RouterLogits(index), rows, shape.experts, &e.logits)?;
        device.route(rows, shape.experts, layer.per_row, &e.logits, &mut e.routes)?;
        observer.observe_routes(device, index, &e.routes)?;
        device.multiply_experts(
            &e.routes,
            ExpertInput::Rows(&w.normed),
            &mut [
                ExpertProduct { matrices: &layer.gate, out: &mut e.gate },
                ExpertProduct { matrices: &layer.up, out: &mut e.up },
            ],
        )?;
        device.swiglu(rows * layer.per_row, shape.intermediate, &mut e.gate, &e.up)?;
        device.multiply_experts(
            &e.routes,
            ExpertInput::Slots(&e.gate),
            &mut [ExpertProduct { matrices: &layer.down, out: &mut e.out }],
        )?;
        device.combine(&e.routes, hidden, &e.out, &mut w.joined)?;
        let Some((shared, gate)) = &layer.shared else { return Ok(()) };
        device.multiply(
            rows,
            &w.normed,
            &mut [Product { matrix: gate, bias: None, out: &mut e.shared_gate }],
        )?;
        self.dense(shared, true)?;
        let Pass { device, w, .. } = self;
        let e = &w.experts;
        device.add_gated(rows, hidden, &mut w.joined, &e.shared, &e.shared_gate)
    }
}
