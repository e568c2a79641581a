//! One pass of rows through all layers.

use std::ops::Range;
use std::sync::Arc;

use tensorfold_plugin_api::model_spec::ModelSpec;

use super::feed_forward::ExpertRows;
use super::lane::{Lane, LaneLayer};
use super::observe::{Observer, Point};
use super::plan::Widths;
use super::trunk::{Attention, Delta, Layer, Mixer};
use super::{Executor, ExecutorError, HEAD_ROWS, PASS_ROWS};
use crate::device::{AttentionLane, DeltaInputs, DeltaLane, DeltaTarget, Device, DeviceResult, Product};

/// Buffers for [`PASS_ROWS`] rows.
pub(super) struct Workspace<D: Device> {
    /// The residual stream.
    pub(super) x: D::Rows,
    pub(super) normed: D::Rows,
    pub(super) joined: D::Rows,
    query_and_gate: D::Rows,
    query: D::Rows,
    query_gate: D::Rows,
    key: D::Rows,
    value: D::Rows,
    attended: D::Rows,
    channels: D::Rows,
    mixed: D::Rows,
    z: D::Rows,
    decays: D::Rows,
    strengths: D::Rows,
    recurred: D::Rows,
    pub(super) gate: D::Rows,
    pub(super) up: D::Rows,
    pub(super) experts: ExpertRows<D>,
    pub(super) angles: D::Rows,
    /// Rows for the head.
    pub(super) chosen: D::Rows,
    pub(super) chosen_normed: D::Rows,
    pub(super) logits: D::Rows,
}

impl<D: Device> Workspace<D> {
    pub(super) fn new(device: &mut D, spec: &ModelSpec) -> DeviceResult<Self> {
        let widths = Widths::of(spec);
        let mut rows = |width: usize| device.rows(PASS_ROWS, width);
        Ok(Workspace {
            x: rows(widths.hidden)?,
            normed: rows(widths.hidden)?,
            joined: rows(widths.hidden)?,
            query_and_gate: rows(widths.query_and_gate)?,
            query: rows(widths.query)?,
            query_gate: rows(widths.query)?,
            key: rows(widths.key)?,
            value: rows(widths.key)?,
            attended: rows(widths.query)?,
            channels: rows(widths.channels)?,
            mixed: rows(widths.channels)?,
            z: rows(widths.values)?,
            decays: rows(widths.value_heads)?,
            strengths: rows(widths.value_heads)?,
            recurred: rows(widths.values)?,
            gate: rows(widths.intermediate)?,
            up: rows(widths.intermediate)?,
            angles: rows(widths.rotary)?,
            experts: ExpertRows::new(device, &widths)?,
            chosen: device.rows(HEAD_ROWS, widths.hidden)?,
            chosen_normed: device.rows(HEAD_ROWS, widths.hidden)?,
            logits: device.rows(HEAD_ROWS, spec.vocabulary_rows as usize)?,
        })
    }
}

/// The effect of a lane's rows on its recurrent state in one layer.
pub(super) enum Effect<D: Device> {
    /// Nothing, in an attention layer.
    None,
    /// The state after all rows.
    State(D::DeltaState),
    /// A trace of rows that may be taken back.
    Trace(Trace<D>),
}

/// A trace and the rows that it can hold.
pub(super) struct Trace<D: Device> {
    pub(super) capacity: usize,
    pub(super) trace: D::DeltaTrace,
}

/// One lane's rows in a pass.
pub(super) struct PassLane<'a, D: Device> {
    pub(super) lane: &'a mut Lane<D>,
    pub(super) rows: Range<usize>,
    /// Layer by layer, to be committed.
    pub(super) effects: Vec<Effect<D>>,
    pub(super) cancelled: &'a dyn Fn() -> bool,
    pub(super) is_cancelled: bool,
}

impl<D: Device> Executor<'_, D> {
    /// Sends `tokens`, the rows of all `lanes` in order, through the layers.
    /// Afterwards the residual stream is in the workspace. Caches have grown;
    /// recurrent states are in the lanes' effects. Stops early when all lanes
    /// are cancelled.
    pub(super) fn forward(
        &mut self,
        tokens: &[u32],
        lanes: &mut [PassLane<'_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let Executor { device, spec, trunk, frequencies, workspace: w, block, .. } = self;
        let (rows, hidden) = (tokens.len(), spec.hidden_size as usize);
        let epsilon = spec.norm_epsilon as f32;
        device.embed(&trunk.embed, tokens, &mut w.x)?;
        observer.observe(device, Point::Embedding, rows, hidden, &w.x)?;
        let positions: Vec<usize> =
            lanes.iter().flat_map(|lane| lane.lane.position..lane.lane.position + lane.rows.len()).collect();
        device.rotary_angles(&positions, frequencies, &mut w.angles)?;
        let mut pass = Pass { device, w, rows, hidden, epsilon, half: frequencies.len(), observer };
        for (index, layer) in trunk.layers.iter().enumerate() {
            for lane in lanes.iter_mut() {
                lane.is_cancelled = lane.is_cancelled || (lane.cancelled)();
            }
            if lanes.iter().all(|lane| lane.is_cancelled) {
                return Ok(());
            }
            pass.layer(index, layer, lanes)?;
            Self::tap(pass.device, block, index, rows, hidden, &pass.w.x)?;
        }
        Ok(())
    }
}

/// What is the same for all layers of a pass.
pub(super) struct Pass<'a, D: Device> {
    pub(super) device: &'a mut D,
    pub(super) w: &'a mut Workspace<D>,
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) epsilon: f32,
    /// Rotated pairs of a head.
    pub(super) half: usize,
    pub(super) observer: &'a mut dyn Observer<D>,
}

impl<D: Device> Pass<'_, D> {
    pub(super) fn layer(
        &mut self,
        index: usize,
        layer: &Layer<D::Matrix<'_>, D::Vector, D::Experts<'_>>,
        lanes: &mut [PassLane<'_, D>],
    ) -> DeviceResult {
        let (rows, hidden, epsilon) = (self.rows, self.hidden, self.epsilon);
        self.device.norm(rows, &self.w.x, &layer.input_norm, epsilon, &mut self.w.normed)?;
        self.observer.observe(self.device, Point::InputNorm(index), rows, hidden, &self.w.normed)?;
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(index, attention, lanes)?,
            Mixer::Delta(delta) => self.delta(index, delta, lanes)?,
        }
        let Pass { device, w, observer, .. } = self;
        observer.observe(device, Point::Mixer(index), rows, hidden, &w.joined)?;
        device.add(rows, hidden, &mut w.x, &w.joined)?;
        device.norm(rows, &w.x, &layer.post_norm, epsilon, &mut w.normed)?;
        observer.observe(device, Point::PostNorm(index), rows, hidden, &w.normed)?;
        self.feed_forward(index, &layer.feed_forward)?;
        let Pass { device, w, observer, .. } = self;
        observer.observe(device, Point::FeedForward(index), rows, hidden, &w.joined)?;
        device.add(rows, hidden, &mut w.x, &w.joined)?;
        observer.observe(device, Point::Layer(index), rows, hidden, &w.x)
    }

    fn attention(
        &mut self,
        index: usize,
        layer: &Attention<D::Matrix<'_>, D::Vector>,
        lanes: &mut [PassLane<'_, D>],
    ) -> DeviceResult {
        let Pass { device, w, rows, epsilon, half, .. } = self;
        let (rows, epsilon, spec) = (*rows, *epsilon, &layer.spec);
        let biases = layer.biases.as_ref();
        let query_out = if spec.gated { &mut w.query_and_gate } else { &mut w.query };
        device.multiply(
            rows,
            &w.normed,
            &mut [
                Product { matrix: &layer.q, bias: biases.map(|b| &b.0), out: query_out },
                Product { matrix: &layer.k, bias: biases.map(|b| &b.1), out: &mut w.key },
                Product { matrix: &layer.v, bias: biases.map(|b| &b.2), out: &mut w.value },
            ],
        )?;
        if spec.gated {
            device.split_gate(rows, spec, &w.query_and_gate, &mut w.query, &mut w.query_gate)?;
        }
        if let Some((query_norm, key_norm)) = &layer.norms {
            device.norm_heads(rows, spec.heads, &mut w.query, query_norm, epsilon)?;
            device.norm_heads(rows, spec.key_value_heads, &mut w.key, key_norm, epsilon)?;
        }
        device.rotate(rows, spec.heads, spec.head_size, *half, &w.angles, &mut w.query)?;
        device.rotate(rows, spec.key_value_heads, spec.head_size, *half, &w.angles, &mut w.key)?;
        let mut caches: Vec<AttentionLane<'_, D>> = lanes
            .iter_mut()
            .filter_map(|lane| match &mut lane.lane.layers[index] {
                LaneLayer::KeyValues(cache) => Some(AttentionLane { rows: lane.rows.clone(), cache }),
                LaneLayer::Delta(_) => None,
            })
            .collect();
        device.attend(&mut caches, &w.query, &w.key, &w.value, &mut w.attended)?;
        if spec.gated {
            let width = (spec.heads * spec.head_size) as usize;
            device.gate(rows, width, &mut w.attended, &w.query_gate)?;
        }
        device.multiply(
            rows,
            &w.attended,
            &mut [Product { matrix: &layer.o, bias: None, out: &mut w.joined }],
        )
    }

    fn delta(
        &mut self,
        index: usize,
        layer: &Delta<D::Matrix<'_>, D::Vector>,
        lanes: &mut [PassLane<'_, D>],
    ) -> DeviceResult {
        let Pass { device, w, rows, epsilon, observer, .. } = self;
        let (rows, spec) = (*rows, &layer.spec);
        let (heads, values) = (spec.value_heads as usize, (spec.value_heads * spec.value_head_size) as usize);
        device.multiply(
            rows,
            &w.normed,
            &mut [
                Product { matrix: &layer.qkv, bias: None, out: &mut w.channels },
                Product { matrix: &layer.z, bias: None, out: &mut w.z },
                Product { matrix: &layer.a, bias: None, out: &mut w.decays },
                Product { matrix: &layer.b, bias: None, out: &mut w.strengths },
            ],
        )?;
        let mut states: Vec<DeltaLane<'_, D>> = lanes
            .iter_mut()
            .filter_map(|lane| match (&lane.lane.layers[index], &mut lane.effects[index]) {
                (LaneLayer::Delta(state), Effect::State(next)) => {
                    Some((lane.rows.clone(), state, DeltaTarget::State(next)))
                }
                (LaneLayer::Delta(state), Effect::Trace(trace)) => {
                    Some((lane.rows.clone(), state, DeltaTarget::Trace(&mut trace.trace)))
                }
                _ => None,
            })
            .map(|(rows, state, target)| DeltaLane { rows, state: Arc::as_ref(state), target })
            .collect();
        device.convolve(spec, &mut states, &w.channels, &layer.taps, &mut w.mixed)?;
        observer.observe(device, Point::Convolved(index), rows, spec.channels() as usize, &w.mixed)?;
        device.delta_inputs(
            rows,
            spec,
            &mut w.mixed,
            &mut w.decays,
            &mut w.strengths,
            &layer.a_log,
            &layer.dt_bias,
        )?;
        observer.observe(device, Point::Decays(index), rows, heads, &w.decays)?;
        observer.observe(device, Point::Strengths(index), rows, heads, &w.strengths)?;
        let inputs = DeltaInputs { mixed: &w.mixed, decays: &w.decays, strengths: &w.strengths };
        device.recur(spec, &mut states, inputs, &mut w.recurred)?;
        observer.observe(device, Point::Recurred(index), rows, values, &w.recurred)?;
        device.gated_norm(rows, spec.value_heads, &mut w.recurred, &w.z, &layer.norm, *epsilon)?;
        observer.observe(device, Point::GatedNorm(index), rows, values, &w.recurred)?;
        device.multiply(
            rows,
            &w.recurred,
            &mut [Product { matrix: &layer.out, bias: None, out: &mut w.joined }],
        )
    }
}
