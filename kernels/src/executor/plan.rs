//! What a model will take, and whether it can be run at all.
//!
//! Arithmetic on the model's facts; nothing is read, allocated or called.

use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec, RopeScaling, RopeSpec,
};

use super::{HEAD_ROWS, OUTPUT_ROWS, PASS_ROWS};
use crate::device::DeviceLimits;

pub(super) const FLOAT: u64 = size_of::<f32>() as u64;

/// What an executor is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Lanes that are open at once.
    pub lanes: usize,
    /// Tokens that a lane holds at most.
    pub context: usize,
}

/// Bytes that an executor will hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// One lane at the full context, the room for its next state included.
    pub lane_bytes: u64,
    /// Working memory, once.
    pub scratch_bytes: u64,
    /// A snapshot of an empty lane.
    pub snapshot_bytes: u64,
    /// What a snapshot grows by with every token that it holds.
    pub snapshot_token_bytes: u64,
}

/// A model that the executor cannot run. The message names what it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Checks that every part of the model can be computed.
///
/// # Errors
/// [`Unsupported`] with the first part that cannot.
pub fn supported(spec: &ModelSpec, limits: DeviceLimits) -> Result<(), Unsupported> {
    width_supported("the hidden size", spec.hidden_size, limits)?;
    for (index, layer) in spec.layers.iter().enumerate() {
        layer_supported(&format!("layer {index}"), layer, limits)?;
    }
    Ok(())
}

fn width_supported(what: &str, value: u32, limits: DeviceLimits) -> Result<(), Unsupported> {
    let multiple = limits.width_multiple;
    if value.is_multiple_of(multiple) {
        return Ok(());
    }
    Err(Unsupported(format!("{what} is {value}; this engine computes multiples of {multiple}")))
}

/// Checks that a layer, which messages call `name`, can be computed.
pub(super) fn layer_supported(
    name: &str,
    layer: &LayerSpec,
    limits: DeviceLimits,
) -> Result<(), Unsupported> {
    let refuse = |what: String| Err(Unsupported(format!("{name}: {what}")));
    let width = |what: &str, value: u32| width_supported(&format!("{name}: {what}"), value, limits);
    match &layer.mixer {
        MixerSpec::Attention(attention) => width("the head size", attention.head_size)?,
        MixerSpec::GatedDelta(delta) => {
            width("the value head size", delta.value_head_size)?;
            if !limits.delta_key_sizes.contains(&delta.key_head_size) {
                return refuse(format!(
                    "the key head size is {}; this engine computes {:?}",
                    delta.key_head_size, limits.delta_key_sizes
                ));
            }
            if delta.convolution_kernel < 2 {
                return refuse("a convolution of one tap is not implemented".into());
            }
        }
    }
    match layer.feed_forward {
        FeedForwardSpec::Dense { intermediate_size } => width("the feed-forward size", intermediate_size),
        FeedForwardSpec::MixtureOfExperts { intermediate_size, shared_intermediate_size, .. } => {
            width("the experts' feed-forward size", intermediate_size)?;
            width("the shared expert's feed-forward size", shared_intermediate_size)
        }
    }
}

/// Bytes that a model takes besides its weights.
pub fn memory_plan(spec: &ModelSpec, options: Options) -> MemoryPlan {
    let (mut state, mut token, mut trace_row) = (0, 0, 0);
    for layer in &spec.layers {
        match &layer.mixer {
            MixerSpec::Attention(attention) => token += token_bytes(attention),
            MixerSpec::GatedDelta(delta) => {
                state += state_bytes(delta);
                trace_row += trace_row_bytes(delta);
            }
        }
    }
    // Caches grow by whole pages of 64 positions.
    let context = (options.context as u64).next_multiple_of(64);
    let widths = Widths::of(spec);
    let row = widths.sum() * FLOAT;
    let head = (u64::from(spec.vocabulary_rows) + 2 * u64::from(spec.hidden_size)) * FLOAT;
    MemoryPlan {
        lane_bytes: 2 * state + context * token,
        // Activations exist a second time in the layout that products read.
        scratch_bytes: 2 * row * PASS_ROWS as u64
            + head * HEAD_ROWS as u64
            + trace_row * OUTPUT_ROWS as u64 * options.lanes as u64,
        snapshot_bytes: state,
        snapshot_token_bytes: token,
    }
}

/// Bytes that one token takes in a layer's cache.
pub(super) fn token_bytes(spec: &AttentionSpec) -> u64 {
    key_value_bytes(spec.key_value_heads, spec.head_size)
}

/// Bytes that one token's key and value take.
pub(super) fn key_value_bytes(heads: u32, head_size: u32) -> u64 {
    2 * u64::from(heads) * u64::from(head_size) * FLOAT
}

/// Bytes of a layer's recurrent state.
fn state_bytes(spec: &GatedDeltaSpec) -> u64 {
    let window = u64::from(spec.convolution_kernel - 1) * u64::from(spec.channels());
    let memory =
        u64::from(spec.value_heads) * u64::from(spec.value_head_size) * u64::from(spec.key_head_size);
    (window + memory) * FLOAT
}

/// Bytes that a row takes that may be taken back.
fn trace_row_bytes(spec: &GatedDeltaSpec) -> u64 {
    let keys = u64::from(spec.key_heads) * u64::from(spec.key_head_size);
    let values = u64::from(spec.value_heads) * u64::from(spec.value_head_size);
    (u64::from(spec.channels()) + keys + values + u64::from(spec.value_heads)) * FLOAT
}

/// Widths of the working buffers: the largest that any layer needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Widths {
    pub(super) hidden: usize,
    /// Query rows as they come from the projection, gates included.
    pub(super) query_and_gate: usize,
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) channels: usize,
    pub(super) values: usize,
    pub(super) value_heads: usize,
    /// Of a dense feed-forward part or a shared expert.
    pub(super) intermediate: usize,
    pub(super) rotary: usize,
    /// Routed experts.
    pub(super) experts: usize,
    /// Routed experts that run for a row.
    pub(super) experts_per_row: usize,
    /// Of a routed expert.
    pub(super) expert_intermediate: usize,
}

impl Widths {
    pub(super) fn of(spec: &ModelSpec) -> Widths {
        let mut widths = Widths {
            hidden: spec.hidden_size as usize,
            rotary: spec.rope.rotary_dimensions as usize,
            ..Widths::default()
        };
        let grow = |to: &mut usize, value: u32| *to = (*to).max(value as usize);
        // The head's layers go through the same buffers.
        let head = spec.mtp.iter().flat_map(|head| &head.layers);
        for layer in spec.layers.iter().chain(head) {
            match &layer.mixer {
                MixerSpec::Attention(a) => {
                    let query = a.heads * a.head_size;
                    grow(&mut widths.query_and_gate, if a.gated { 2 * query } else { query });
                    grow(&mut widths.query, query);
                    grow(&mut widths.key, a.key_value_heads * a.head_size);
                }
                MixerSpec::GatedDelta(d) => {
                    grow(&mut widths.channels, d.channels());
                    grow(&mut widths.values, d.value_heads * d.value_head_size);
                    grow(&mut widths.value_heads, d.value_heads);
                }
            }
            match layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size } => {
                    grow(&mut widths.intermediate, intermediate_size);
                }
                FeedForwardSpec::MixtureOfExperts {
                    experts,
                    experts_per_token,
                    intermediate_size,
                    shared_intermediate_size,
                } => {
                    grow(&mut widths.experts, experts);
                    grow(&mut widths.experts_per_row, experts_per_token);
                    grow(&mut widths.expert_intermediate, intermediate_size);
                    grow(&mut widths.intermediate, shared_intermediate_size);
                }
            }
        }
        widths
    }

    /// Floats of a row over all buffers.
    fn sum(&self) -> u64 {
        let slot = 2 * self.expert_intermediate + self.hidden;
        let expert_rows = match self.experts {
            0 => 0,
            experts => experts + self.experts_per_row * slot + self.hidden + 1,
        };
        (3 * self.hidden
            + expert_rows
            + self.query_and_gate
            + 3 * self.query
            + 2 * self.key
            + 2 * self.channels
            + 2 * self.values
            + 2 * self.value_heads
            + 2 * self.intermediate
            + self.rotary) as u64
    }
}

/// Angular frequencies of the rotated pairs.
pub(super) fn rotary_frequencies(rope: &RopeSpec) -> Vec<f64> {
    let dimensions = f64::from(rope.rotary_dimensions);
    (0..rope.rotary_dimensions / 2)
        .map(|pair| {
            let frequency = rope.theta.powf(-2.0 * f64::from(pair) / dimensions);
            match rope.scaling {
                RopeScaling::None => frequency,
                RopeScaling::Linear { factor } => frequency / factor,
                RopeScaling::Llama3 {
                    factor,
                    low_frequency_factor: low,
                    high_frequency_factor: high,
                    original_context,
                } => {
                    // How often the wave turns over within the original context.
                    let turns = f64::from(original_context) * frequency / std::f64::consts::TAU;
                    let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - blend) * frequency / factor + blend * frequency
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(mixer: MixerSpec, feed_forward: FeedForwardSpec) -> ModelSpec {
        ModelSpec {
            version: 1,
            family: "qwen3_5".into(),
            hidden_size: 64,
            vocabulary_rows: 128,
            selectable_vocabulary: 100,
            context_window: 1024,
            norm_epsilon: 1e-6,
            norm_weight_offset: 0.0,
            tied_head: true,
            rope: RopeSpec { theta: 1e4, rotary_dimensions: 16, scaling: RopeScaling::None },
            layers: vec![LayerSpec { mixer, feed_forward }],
            mtp: None,
            formats: vec!["bf16".into()],
        }
    }

    fn attention() -> MixerSpec {
        MixerSpec::Attention(AttentionSpec {
            heads: 4,
            key_value_heads: 2,
            head_size: 32,
            gated: true,
            head_norms: true,
            biases: false,
        })
    }

    fn delta() -> GatedDeltaSpec {
        GatedDeltaSpec {
            key_heads: 16,
            value_heads: 48,
            key_head_size: 128,
            value_head_size: 128,
            convolution_kernel: 4,
        }
    }

    const LIMITS: DeviceLimits = DeviceLimits { width_multiple: 16, delta_key_sizes: &[64, 128] };
    const DENSE: FeedForwardSpec = FeedForwardSpec::Dense { intermediate_size: 128 };

    fn experts(intermediate_size: u32, shared_intermediate_size: u32) -> FeedForwardSpec {
        FeedForwardSpec::MixtureOfExperts {
            experts: 8,
            experts_per_token: 2,
            intermediate_size,
            shared_intermediate_size,
        }
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        assert_eq!(supported(&spec(attention(), DENSE), LIMITS), Ok(()));
        assert_eq!(supported(&spec(attention(), experts(64, 32)), LIMITS), Ok(()));
        assert_eq!(supported(&spec(attention(), experts(64, 0)), LIMITS), Ok(()));
        let message = |spec: ModelSpec| supported(&spec, LIMITS).unwrap_err().to_string();
        let routed = message(spec(attention(), experts(72, 0)));
        assert_eq!(
            routed,
            "layer 0: the experts' feed-forward size is 72; this engine computes multiples of 16"
        );
        let shared = message(spec(attention(), experts(64, 40)));
        assert!(shared.contains("the shared expert's feed-forward size is 40"), "{shared}");
        let odd = GatedDeltaSpec { key_head_size: 96, ..delta() };
        assert!(message(spec(MixerSpec::GatedDelta(odd), DENSE)).contains("key head size is 96"));
        let mut narrow = spec(attention(), DENSE);
        narrow.hidden_size = 40;
        assert!(message(narrow).contains("the hidden size is 40"));
    }

    #[test]
    fn memory_follows_the_published_sizes() {
        let options = Options { lanes: 2, context: 1000 };
        let plan = memory_plan(&spec(attention(), DENSE), options);
        assert_eq!(plan.snapshot_token_bytes, 2 * 2 * 32 * 4);
        assert_eq!(plan.lane_bytes, 1024 * plan.snapshot_token_bytes);
        // One layer of a 27B model: 3.146 MB of state and three rows of 10240 channels.
        let plan = memory_plan(&spec(MixerSpec::GatedDelta(delta()), DENSE), options);
        assert_eq!(plan.snapshot_bytes, 48 * 128 * 128 * 4 + 3 * 10240 * 4);
        assert_eq!(plan.snapshot_token_bytes, 0);
    }

    #[test]
    fn experts_take_a_row_for_each_slot_and_nothing_where_there_are_none() {
        let scratch = |feed_forward| {
            memory_plan(&spec(attention(), feed_forward), Options { lanes: 1, context: 64 }).scratch_bytes
        };
        // Logits of 8 experts, two slots of gate, up and output, the shared output and its gate.
        let row = 8 + 2 * (2 * 32 + 64) + 64 + 1;
        assert_eq!(scratch(experts(32, 128)) - scratch(DENSE), 2 * row * 4 * PASS_ROWS as u64);
    }

    #[test]
    fn llama3_scaling_divides_long_waves_and_keeps_short_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        };
        let plain = RopeSpec { theta: 5e5, rotary_dimensions: 128, scaling: RopeScaling::None };
        let scaled = rotary_frequencies(&RopeSpec { scaling, ..plain.clone() });
        let plain = rotary_frequencies(&plain);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 8.0).abs() < 1e-15);
        let blended =
            (0..64).filter(|&i| scaled[i] < plain[i] && scaled[i] > plain[i] / 8.0 * 1.0001).count();
        assert!((1..20).contains(&blended), "{blended}");
    }
}
