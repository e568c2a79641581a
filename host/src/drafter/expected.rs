//! The tensors that a [`DrafterSpec`] asks for, with their shapes.

use tensorfold_plugin_api::drafter_spec::DrafterSpec;

use crate::checkpoint::parts::{Expected, Kind};

/// All tensors of a drafter. Names and shapes: [`tensorfold_plugin_api::drafter_spec`].
pub(super) fn expected_tensors(spec: &DrafterSpec) -> Vec<Expected> {
    let hidden = u64::from(spec.hidden_size);
    let head = u64::from(spec.head_size);
    let (queries, keys) = (u64::from(spec.heads) * head, u64::from(spec.key_value_heads) * head);
    let inner = u64::from(spec.intermediate_size);
    let mut tensors = Vec::new();
    let mut push = |name: String, shape: &[u64], kind| {
        tensors.push(Expected { name, shape: shape.to_vec(), kind });
    };
    push("fc".into(), &[hidden, hidden.saturating_mul(spec.taps.len() as u64)], Kind::Matrix);
    push("hidden_norm".into(), &[hidden], Kind::Small);
    for index in 0..spec.layers.len() {
        let name = |part: &str| format!("layers.{index}.{part}");
        push(name("input_norm"), &[hidden], Kind::Small);
        push(name("attention.q"), &[queries, hidden], Kind::Matrix);
        push(name("attention.k"), &[keys, hidden], Kind::Matrix);
        push(name("attention.v"), &[keys, hidden], Kind::Matrix);
        push(name("attention.q_norm"), &[head], Kind::Small);
        push(name("attention.k_norm"), &[head], Kind::Small);
        push(name("attention.o"), &[hidden, queries], Kind::Matrix);
        push(name("post_norm"), &[hidden], Kind::Small);
        push(name("ffn.gate"), &[inner, hidden], Kind::Matrix);
        push(name("ffn.up"), &[inner, hidden], Kind::Matrix);
        push(name("ffn.down"), &[hidden, inner], Kind::Matrix);
        if let Some(refinement) = spec.refinement {
            let kernel = u64::from(refinement.convolution_kernel);
            let groups = hidden / u64::from(refinement.convolution_group).max(1);
            let rows = kernel.saturating_mul(groups).saturating_mul(2);
            for half in ["attention_conv", "ffn_conv"] {
                push(name(&format!("{half}.base")), &[2, kernel, hidden], Kind::Small);
                push(name(&format!("{half}.projection")), &[rows, hidden], Kind::Matrix);
            }
        }
    }
    push("norm".into(), &[hidden], Kind::Small);
    if let Some(refinement) = spec.refinement {
        let (rank, rows) = (u64::from(refinement.selector_rank), u64::from(spec.vocabulary_rows));
        push("selector.hidden".into(), &[rank, hidden], Kind::Matrix);
        // Looked up row by row and never multiplied as a whole, so never packed.
        push("selector.predecessor".into(), &[rows, rank], Kind::Small);
        push("selector.successor".into(), &[rows, rank], Kind::Small);
    }
    tensors
}
