//! The weights of a block drafter.

use tensorfold_plugin_api::drafter_spec::DrafterSpec;

use super::super::ExecutorError;
use super::super::trunk::Loader;

/// All weights, as matrices `M` and vectors `V`.
pub(super) struct Weights<M, V> {
    /// From the target's tapped states to the drafter's width.
    pub(super) fc: M,
    pub(super) hidden_norm: V,
    pub(super) norm: V,
    pub(super) layers: Vec<Layer<M, V>>,
    /// Of DFlash2.
    pub(super) selector: Option<SelectorWeights<M>>,
}

pub(super) struct Layer<M, V> {
    pub(super) input_norm: V,
    pub(super) post_norm: V,
    pub(super) q: M,
    pub(super) k: M,
    pub(super) v: M,
    pub(super) o: M,
    pub(super) q_norm: V,
    pub(super) k_norm: V,
    pub(super) gate: M,
    pub(super) up: M,
    pub(super) down: M,
    /// Around attention and around the feed-forward part; of DFlash2.
    pub(super) mixes: Option<[MixWeights<M, V>; 2]>,
}

/// The kernels around one half of a layer.
pub(super) struct MixWeights<M, V> {
    /// `[2, kernel, hidden]`.
    pub(super) base: V,
    pub(super) projection: M,
}

pub(super) struct SelectorWeights<M> {
    pub(super) hidden: M,
    pub(super) predecessor: M,
    pub(super) successor: M,
}

impl<M, V> Weights<M, V> {
    /// Asks `loader` for everything that `spec` names.
    pub(super) fn load(
        spec: &DrafterSpec,
        loader: &mut impl Loader<Matrix = M, Vector = V>,
    ) -> Result<Self, ExecutorError> {
        let (hidden, size) = (spec.hidden_size as usize, spec.head_size as usize);
        let (queries, keys) = (spec.heads as usize * size, spec.key_value_heads as usize * size);
        let intermediate = spec.intermediate_size as usize;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for index in 0..spec.layers.len() {
            let name = |part: &str| format!("layers.{index}.{part}");
            let mut mixes = |part: &str| match spec.refinement {
                None => Ok(None),
                Some(refinement) => {
                    let kernel = refinement.convolution_kernel as usize;
                    let groups = hidden / refinement.convolution_group as usize;
                    let base = loader.vector(&name(&format!("{part}.base")), &[2, kernel, hidden], |_| {})?;
                    let projection =
                        loader.matrix(&name(&format!("{part}.projection")), 2 * kernel * groups, hidden)?;
                    Ok::<_, ExecutorError>(Some(MixWeights { base, projection }))
                }
            };
            let mixes = match (mixes("attention_conv")?, mixes("ffn_conv")?) {
                (Some(attention), Some(feed_forward)) => Some([attention, feed_forward]),
                _ => None,
            };
            layers.push(Layer {
                input_norm: loader.vector(&name("input_norm"), &[hidden], |_| {})?,
                post_norm: loader.vector(&name("post_norm"), &[hidden], |_| {})?,
                q: loader.matrix(&name("attention.q"), queries, hidden)?,
                k: loader.matrix(&name("attention.k"), keys, hidden)?,
                v: loader.matrix(&name("attention.v"), keys, hidden)?,
                o: loader.matrix(&name("attention.o"), hidden, queries)?,
                q_norm: loader.vector(&name("attention.q_norm"), &[size], |_| {})?,
                k_norm: loader.vector(&name("attention.k_norm"), &[size], |_| {})?,
                gate: loader.matrix(&name("ffn.gate"), intermediate, hidden)?,
                up: loader.matrix(&name("ffn.up"), intermediate, hidden)?,
                down: loader.matrix(&name("ffn.down"), hidden, intermediate)?,
                mixes,
            });
        }
        let selector = match spec.refinement {
            None => None,
            Some(refinement) => {
                let (vocabulary, rank) = (spec.vocabulary_rows as usize, refinement.selector_rank as usize);
                Some(SelectorWeights {
                    hidden: loader.matrix("selector.hidden", rank, hidden)?,
                    predecessor: loader.matrix("selector.predecessor", vocabulary, rank)?,
                    successor: loader.matrix("selector.successor", vocabulary, rank)?,
                })
            }
        };
        Ok(Weights {
            fc: loader.matrix("fc", hidden, spec.taps.len() * hidden)?,
            hidden_norm: loader.vector("hidden_norm", &[hidden], |_| {})?,
            norm: loader.vector("norm", &[hidden], |_| {})?,
            layers,
            selector,
        })
    }
}
