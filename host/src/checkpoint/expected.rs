//! The tensors that a [`ModelSpec`] asks for, with their shapes.

use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec,
};

/// How a tensor may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A matrix that multiplies activations: plain or packed.
    Matrix,
    /// Norms, biases and the like: never packed.
    Small,
    /// `[channels, kernel]`, stored with a third axis of 1.
    Convolution,
}

/// A tensor that the model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Canonical name.
    pub(crate) name: String,
    /// Logical shape: unpacked, row-major.
    pub(crate) shape: Vec<u64>,
    pub(crate) kind: Kind,
}

/// All tensors of a model, from the embedding up, the prediction head last.
///
/// Experts may lie in one stack, in three, or one by one: `stored` says whether
/// a tensor of that canonical name is there, and the form of each layer shows
/// in it.
pub(crate) fn expected_tensors(spec: &ModelSpec, stored: &dyn Fn(&str) -> bool) -> Vec<Expected> {
    let mut list = List { hidden: spec.hidden_size.into(), stored, tensors: Vec::new() };
    let hidden = list.hidden;
    list.matrix("embed", spec.vocabulary_rows.into(), hidden);
    for (index, layer) in spec.layers.iter().enumerate() {
        list.layer(&format!("layers.{index}"), layer);
    }
    list.small("norm", hidden);
    if !spec.tied_head {
        list.matrix("head", spec.vocabulary_rows.into(), hidden);
    }
    if let Some(mtp) = &spec.mtp {
        list.small("mtp.embed_norm", hidden);
        list.small("mtp.hidden_norm", hidden);
        list.matrix("mtp.fc", hidden, 2 * hidden);
        for (index, layer) in mtp.layers.iter().enumerate() {
            list.layer(&format!("mtp.layers.{index}"), layer);
        }
        list.small("mtp.norm", hidden);
    }
    list.tensors
}

struct List<'a> {
    hidden: u64,
    stored: &'a dyn Fn(&str) -> bool,
    tensors: Vec<Expected>,
}

impl List<'_> {
    fn push(&mut self, name: String, shape: Vec<u64>, kind: Kind) {
        self.tensors.push(Expected { name, shape, kind });
    }

    fn matrix(&mut self, name: impl Into<String>, rows: u64, columns: u64) {
        self.push(name.into(), vec![rows, columns], Kind::Matrix);
    }

    fn small(&mut self, name: impl Into<String>, length: u64) {
        self.push(name.into(), vec![length], Kind::Small);
    }

    fn layer(&mut self, name: &str, layer: &LayerSpec) {
        let hidden = self.hidden;
        self.small(format!("{name}.input_norm"), hidden);
        match &layer.mixer {
            MixerSpec::Attention(attention) => self.attention(name, attention),
            MixerSpec::GatedDelta(delta) => self.delta(name, delta),
        }
        self.small(format!("{name}.post_norm"), hidden);
        match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate_size } => self.feed_forward(name, "ffn", intermediate_size),
            FeedForwardSpec::MixtureOfExperts {
                experts,
                intermediate_size,
                shared_intermediate_size,
                ..
            } => {
                self.matrix(format!("{name}.moe.router"), experts.into(), hidden);
                self.experts(&format!("{name}.moe.experts"), experts, intermediate_size.into());
                if shared_intermediate_size > 0 {
                    self.feed_forward(name, "moe.shared", shared_intermediate_size);
                    self.matrix(format!("{name}.moe.shared_gate"), 1, hidden);
                }
            }
        }
    }

    fn experts(&mut self, name: &str, experts: u32, inner: u64) {
        let hidden = self.hidden;
        let count = u64::from(experts);
        if (self.stored)(&format!("{name}.gate_up")) {
            self.push(format!("{name}.gate_up"), vec![count, 2 * inner, hidden], Kind::Matrix);
            self.push(format!("{name}.down"), vec![count, hidden, inner], Kind::Matrix);
            return;
        }
        let one_by_one = (self.stored)(&format!("{name}.0.gate"));
        for (part, rows, columns) in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)]
        {
            if one_by_one {
                for expert in 0..experts {
                    self.matrix(format!("{name}.{expert}.{part}"), rows, columns);
                }
            } else {
                self.push(format!("{name}.{part}"), vec![count, rows, columns], Kind::Matrix);
            }
        }
    }

    fn feed_forward(&mut self, name: &str, part: &str, intermediate_size: u32) {
        let (hidden, inner) = (self.hidden, u64::from(intermediate_size));
        self.matrix(format!("{name}.{part}.gate"), inner, hidden);
        self.matrix(format!("{name}.{part}.up"), inner, hidden);
        self.matrix(format!("{name}.{part}.down"), hidden, inner);
    }

    fn attention(&mut self, name: &str, attention: &AttentionSpec) {
        let hidden = self.hidden;
        let size = u64::from(attention.head_size);
        let query = u64::from(attention.heads) * size;
        let key = u64::from(attention.key_value_heads) * size;
        let query_rows = if attention.gated { query.saturating_mul(2) } else { query };
        for (part, rows) in [("q", query_rows), ("k", key), ("v", key)] {
            self.matrix(format!("{name}.attention.{part}"), rows, hidden);
            if attention.biases {
                self.small(format!("{name}.attention.{part}.bias"), rows);
            }
        }
        if attention.head_norms {
            self.small(format!("{name}.attention.q_norm"), size);
            self.small(format!("{name}.attention.k_norm"), size);
        }
        self.matrix(format!("{name}.attention.o"), hidden, query);
    }

    fn delta(&mut self, name: &str, delta: &GatedDeltaSpec) {
        let hidden = self.hidden;
        let heads = u64::from(delta.value_heads);
        let values = heads * u64::from(delta.value_head_size);
        let keys = u64::from(delta.key_heads) * u64::from(delta.key_head_size);
        let channels = keys.saturating_mul(2).saturating_add(values);
        self.matrix(format!("{name}.delta.qkv"), channels, hidden);
        self.matrix(format!("{name}.delta.z"), values, hidden);
        self.matrix(format!("{name}.delta.a"), heads, hidden);
        self.matrix(format!("{name}.delta.b"), heads, hidden);
        let convolution = vec![channels, delta.convolution_kernel.into()];
        self.push(format!("{name}.delta.conv"), convolution, Kind::Convolution);
        self.small(format!("{name}.delta.a_log"), heads);
        self.small(format!("{name}.delta.dt_bias"), heads);
        self.small(format!("{name}.delta.norm"), delta.value_head_size.into());
        self.matrix(format!("{name}.delta.out"), hidden, values);
    }
}
