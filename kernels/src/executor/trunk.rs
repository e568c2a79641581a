//! The weights of a model, layer by layer.
//!
//! One walk over the model's facts asks for every tensor by its canonical
//! name. With a device behind it, it loads; without, it only checks.

use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec,
};

use super::ExecutorError;
use crate::device::Device;
use crate::weights::{ExpertShape, MatrixView, Tensors};

/// All weights, as matrices `M`, vectors `V` and experts `E`.
pub(super) struct Trunk<M, V, E> {
    pub(super) embed: M,
    /// Absent when the embedding is the head.
    pub(super) head: Option<M>,
    pub(super) norm: V,
    pub(super) layers: Vec<Layer<M, V, E>>,
}

pub(super) struct Layer<M, V, E> {
    pub(super) input_norm: V,
    pub(super) post_norm: V,
    pub(super) mixer: Mixer<M, V>,
    pub(super) feed_forward: FeedForward<M, E>,
}

pub(super) enum Mixer<M, V> {
    Attention(Box<Attention<M, V>>),
    Delta(Box<Delta<M, V>>),
}

pub(super) struct Attention<M, V> {
    pub(super) spec: AttentionSpec,
    pub(super) q: M,
    pub(super) k: M,
    pub(super) v: M,
    pub(super) o: M,
    /// Of queries and keys.
    pub(super) norms: Option<(V, V)>,
    /// Of queries, keys and values.
    pub(super) biases: Option<(V, V, V)>,
}

pub(super) struct Delta<M, V> {
    pub(super) spec: GatedDeltaSpec,
    pub(super) qkv: M,
    pub(super) z: M,
    pub(super) a: M,
    pub(super) b: M,
    pub(super) out: M,
    /// `[kernel, channels]`.
    pub(super) taps: V,
    pub(super) a_log: V,
    pub(super) dt_bias: V,
    pub(super) norm: V,
}

pub(super) enum FeedForward<M, E> {
    Dense(Dense<M>),
    Experts(Box<MixtureOfExperts<M, E>>),
}

/// `down(silu(gate(x)) * up(x))`.
pub(super) struct Dense<M> {
    pub(super) gate: M,
    pub(super) up: M,
    pub(super) down: M,
    pub(super) intermediate: usize,
}

pub(super) struct MixtureOfExperts<M, E> {
    pub(super) shape: ExpertShape,
    /// Experts that run for each row.
    pub(super) per_row: usize,
    pub(super) router: M,
    pub(super) gate: E,
    pub(super) up: E,
    pub(super) down: E,
    /// The expert that runs for every row, and the gate before its output.
    pub(super) shared: Option<(Dense<M>, M)>,
}

/// Where weights come from.
pub(super) trait Loader {
    type Matrix;
    type Vector;
    type Experts;
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Self::Matrix, ExecutorError>;
    /// A small tensor; `change` sees its floats first, in the file's order.
    fn vector(
        &mut self,
        name: &str,
        shape: &[usize],
        change: impl FnOnce(&mut Vec<f32>),
    ) -> Result<Self::Vector, ExecutorError>;
    /// Gate, up and down of all routed experts under a name.
    fn experts(&mut self, name: &str, shape: ExpertShape) -> Result<[Self::Experts; 3], ExecutorError>;
}

/// Checks that every tensor is there, in a form that can be read.
pub(super) struct Check<'t, 'w>(pub(super) &'t Tensors<'w>);

impl Loader for Check<'_, '_> {
    type Matrix = ();
    type Vector = ();
    type Experts = ();

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<(), ExecutorError> {
        self.0.matrix(name, rows, columns)?;
        Ok(())
    }

    fn vector(
        &mut self,
        name: &str,
        shape: &[usize],
        _: impl FnOnce(&mut Vec<f32>),
    ) -> Result<(), ExecutorError> {
        self.0.floats(name, shape)?;
        Ok(())
    }

    fn experts(&mut self, name: &str, shape: ExpertShape) -> Result<[(); 3], ExecutorError> {
        self.0.experts(name, shape)?;
        Ok([(); 3])
    }
}

/// Hands every tensor to a device.
pub(super) struct Load<'t, 'w, 'd, D> {
    pub(super) tensors: &'t Tensors<'w>,
    pub(super) device: &'d mut D,
}

impl<'w, D: Device> Loader for Load<'_, 'w, '_, D> {
    type Matrix = D::Matrix<'w>;
    type Vector = D::Vector;
    type Experts = D::Experts<'w>;

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<D::Matrix<'w>, ExecutorError> {
        Ok(self.device.matrix(self.tensors.matrix(name, rows, columns)?)?)
    }

    fn vector(
        &mut self,
        name: &str,
        shape: &[usize],
        change: impl FnOnce(&mut Vec<f32>),
    ) -> Result<D::Vector, ExecutorError> {
        let mut values = self.tensors.floats(name, shape)?;
        change(&mut values);
        Ok(self.device.vector(&values)?)
    }

    fn experts(&mut self, name: &str, shape: ExpertShape) -> Result<[D::Experts<'w>; 3], ExecutorError> {
        let views = self.tensors.experts(name, shape)?;
        let mut load = |views: Vec<MatrixView<'w>>| self.device.experts(views);
        Ok([load(views.gate)?, load(views.up)?, load(views.down)?])
    }
}

impl<M, V, E> Trunk<M, V, E> {
    /// Asks `loader` for everything that `spec` names.
    pub(super) fn load(
        spec: &ModelSpec,
        loader: &mut impl Loader<Matrix = M, Vector = V, Experts = E>,
    ) -> Result<Self, ExecutorError> {
        let (hidden, vocabulary) = (spec.hidden_size as usize, spec.vocabulary_rows as usize);
        let centre = centred(spec.norm_weight_offset);
        let layers = layers("", &spec.layers, hidden, centre, loader)?;
        Ok(Trunk {
            embed: loader.matrix("embed", vocabulary, hidden)?,
            head: if spec.tied_head { None } else { Some(loader.matrix("head", vocabulary, hidden)?) },
            norm: loader.vector("norm", &[hidden], centre)?,
            layers,
        })
    }
}

/// A layer as a loader gives it.
pub(super) type LoadedLayer<L> = Layer<<L as Loader>::Matrix, <L as Loader>::Vector, <L as Loader>::Experts>;

/// Adds what a checkpoint leaves out of its norms' weights.
pub(super) fn centred(offset: f32) -> impl Fn(&mut Vec<f32>) + Copy {
    move |values| values.iter_mut().for_each(|value| *value += offset)
}

/// The layers `{prefix}layers.0` and on.
pub(super) fn layers<L: Loader>(
    prefix: &str,
    specs: &[LayerSpec],
    hidden: usize,
    centre: impl Fn(&mut Vec<f32>) + Copy,
    loader: &mut L,
) -> Result<Vec<LoadedLayer<L>>, ExecutorError> {
    let mut layers = Vec::with_capacity(specs.len());
    for (index, layer) in specs.iter().enumerate() {
        let name = |part: &str| format!("{prefix}layers.{index}.{part}");
        let mixer = match &layer.mixer {
            MixerSpec::Attention(spec) => {
                Mixer::Attention(Box::new(attention(spec, hidden, &name, &centre, loader)?))
            }
            MixerSpec::GatedDelta(spec) => Mixer::Delta(Box::new(delta(spec, hidden, &name, loader)?)),
        };
        layers.push(Layer {
            input_norm: loader.vector(&name("input_norm"), &[hidden], centre)?,
            post_norm: loader.vector(&name("post_norm"), &[hidden], centre)?,
            mixer,
            feed_forward: feed_forward(&layer.feed_forward, hidden, &name, loader)?,
        });
    }
    Ok(layers)
}

fn attention<L: Loader>(
    spec: &AttentionSpec,
    hidden: usize,
    name: &impl Fn(&str) -> String,
    centre: &impl Fn(&mut Vec<f32>),
    loader: &mut L,
) -> Result<Attention<L::Matrix, L::Vector>, ExecutorError> {
    let size = spec.head_size as usize;
    let (query, key) = (spec.heads as usize * size, spec.key_value_heads as usize * size);
    let query_rows = if spec.gated { 2 * query } else { query };
    let mut bias = |part: &str, width: usize| loader.vector(&name(part), &[width], |_| {});
    let biases = match spec.biases {
        true => Some((
            bias("attention.q.bias", query_rows)?,
            bias("attention.k.bias", key)?,
            bias("attention.v.bias", key)?,
        )),
        false => None,
    };
    let norms = match spec.head_norms {
        true => Some((
            loader.vector(&name("attention.q_norm"), &[size], centre)?,
            loader.vector(&name("attention.k_norm"), &[size], centre)?,
        )),
        false => None,
    };
    Ok(Attention {
        spec: spec.clone(),
        q: loader.matrix(&name("attention.q"), query_rows, hidden)?,
        k: loader.matrix(&name("attention.k"), key, hidden)?,
        v: loader.matrix(&name("attention.v"), key, hidden)?,
        o: loader.matrix(&name("attention.o"), hidden, query)?,
        norms,
        biases,
    })
}

fn delta<L: Loader>(
    spec: &GatedDeltaSpec,
    hidden: usize,
    name: &impl Fn(&str) -> String,
    loader: &mut L,
) -> Result<Delta<L::Matrix, L::Vector>, ExecutorError> {
    let (channels, taps) = (spec.channels() as usize, spec.convolution_kernel as usize);
    let heads = spec.value_heads as usize;
    let values = heads * spec.value_head_size as usize;
    let by_tap = |file: &mut Vec<f32>| {
        *file = (0..taps * channels).map(|i| file[i % channels * taps + i / channels]).collect();
    };
    Ok(Delta {
        spec: spec.clone(),
        qkv: loader.matrix(&name("delta.qkv"), channels, hidden)?,
        z: loader.matrix(&name("delta.z"), values, hidden)?,
        a: loader.matrix(&name("delta.a"), heads, hidden)?,
        b: loader.matrix(&name("delta.b"), heads, hidden)?,
        out: loader.matrix(&name("delta.out"), hidden, values)?,
        taps: loader.vector(&name("delta.conv"), &[channels, taps], by_tap)?,
        a_log: loader.vector(&name("delta.a_log"), &[heads], |_| {})?,
        dt_bias: loader.vector(&name("delta.dt_bias"), &[heads], |_| {})?,
        norm: loader.vector(&name("delta.norm"), &[spec.value_head_size as usize], |_| {})?,
    })
}

fn feed_forward<L: Loader>(
    spec: &FeedForwardSpec,
    hidden: usize,
    name: &impl Fn(&str) -> String,
    loader: &mut L,
) -> Result<FeedForward<L::Matrix, L::Experts>, ExecutorError> {
    match *spec {
        FeedForwardSpec::Dense { intermediate_size } => {
            Ok(FeedForward::Dense(dense(intermediate_size, hidden, &name("ffn"), loader)?))
        }
        FeedForwardSpec::MixtureOfExperts {
            experts,
            experts_per_token,
            intermediate_size,
            shared_intermediate_size,
        } => {
            let shape =
                ExpertShape { experts: experts as usize, hidden, intermediate: intermediate_size as usize };
            let [gate, up, down] = loader.experts(&name("moe.experts"), shape)?;
            let shared = match shared_intermediate_size {
                0 => None,
                size => Some((
                    dense(size, hidden, &name("moe.shared"), loader)?,
                    loader.matrix(&name("moe.shared_gate"), 1, hidden)?,
                )),
            };
            Ok(FeedForward::Experts(Box::new(MixtureOfExperts {
                shape,
                per_row: experts_per_token as usize,
                router: loader.matrix(&name("moe.router"), shape.experts, hidden)?,
                gate,
                up,
                down,
                shared,
            })))
        }
    }
}

fn dense<L: Loader>(
    intermediate_size: u32,
    hidden: usize,
    name: &str,
    loader: &mut L,
) -> Result<Dense<L::Matrix>, ExecutorError> {
    let intermediate = intermediate_size as usize;
    Ok(Dense {
        gate: loader.matrix(&format!("{name}.gate"), intermediate, hidden)?,
        up: loader.matrix(&format!("{name}.up"), intermediate, hidden)?,
        down: loader.matrix(&format!("{name}.down"), hidden, intermediate)?,
        intermediate,
    })
}
