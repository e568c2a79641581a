//! From the names of a drafter's tensors to canonical ones, and whose names they are.

use crate::checkpoint::parts::{Meaning, is_index, split_parameter};

/// The meaning of a stored name. What is not known is another architecture's, and dropping it would run a wrong model.
pub(super) fn meaning(stored: &str) -> Meaning {
    if stored.ends_with("rotary_emb.inv_freq") {
        return Meaning::Ignored;
    }
    let (module, suffix) = split_parameter(stored);
    let module = module.strip_prefix("model.").unwrap_or(module);
    let canonical = match module {
        "fc" | "hidden_norm" | "norm" => Some(module.to_owned()),
        "candidate_selector.hidden_projection" => Some("selector.hidden".into()),
        "candidate_selector.predecessor_codebook" => Some("selector.predecessor".into()),
        "candidate_selector.successor_codebook" => Some("selector.successor".into()),
        _ => layer(module),
    };
    canonical.map_or(Meaning::Unknown, |name| Meaning::Canonical(name + suffix))
}

fn layer(module: &str) -> Option<String> {
    let (index, part) = match module.strip_prefix("midlayer.") {
        Some(part) => ("0", part),
        None => module.strip_prefix("layers.")?.split_once('.')?,
    };
    if !is_index(index) {
        return None;
    }
    let part = match part {
        "input_layernorm" => "input_norm",
        "post_attention_layernorm" => "post_norm",
        "self_attn.q_proj" => "attention.q",
        "self_attn.k_proj" => "attention.k",
        "self_attn.v_proj" => "attention.v",
        "self_attn.o_proj" => "attention.o",
        "self_attn.q_norm" => "attention.q_norm",
        "self_attn.k_norm" => "attention.k_norm",
        "mlp.gate_proj" => "ffn.gate",
        "mlp.up_proj" => "ffn.up",
        "mlp.down_proj" => "ffn.down",
        "attention_conv.base_kernel" => "attention_conv.base",
        "attention_conv.kernel_projection" => "attention_conv.projection",
        "mlp_conv.base_kernel" => "ffn_conv.base",
        "mlp_conv.kernel_projection" => "ffn_conv.projection",
        _ => return None,
    };
    Some(format!("layers.{index}.{part}"))
}

/// The kind of drafter that a name tells of, where it is none that is read; sentences say it after "of".
pub(super) fn foreign_kind(stored: &str) -> Option<&'static str> {
    let name = stored.strip_prefix("model.").unwrap_or(stored);
    let starts = |parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
    if starts(&["markov_w1", "markov_w2", "confidence_head"]) {
        return Some("a DSpark drafter");
    }
    if starts(&["prefix_gru", "embed_proj"]) {
        return Some("a Domino drafter");
    }
    if starts(&["mtp."]) {
        return Some("a multi-token prediction head");
    }
    if matches!(name, "d2t" | "t2d") {
        return Some("an EAGLE3 drafter");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_differ_in_prefixes_only() {
        let canonical = |name: &str| Meaning::Canonical(name.into());
        for prefix in ["", "model."] {
            for (stored, wanted) in [
                ("fc.weight", "fc"),
                ("fc.scales", "fc.scales"),
                ("norm.weight", "norm"),
                ("layers.3.self_attn.q_norm.weight", "layers.3.attention.q_norm"),
                ("midlayer.mlp.down_proj.biases", "layers.0.ffn.down.biases"),
                ("layers.1.mlp_conv.base_kernel", "layers.1.ffn_conv.base"),
                ("layers.1.attention_conv.kernel_projection.weight", "layers.1.attention_conv.projection"),
                ("candidate_selector.predecessor_codebook", "selector.predecessor"),
            ] {
                assert_eq!(meaning(&format!("{prefix}{stored}")), canonical(wanted), "{stored}");
            }
        }
        assert_eq!(meaning("layers.0.self_attn.rotary_emb.inv_freq"), Meaning::Ignored);
    }

    #[test]
    fn tensors_of_other_architectures_are_not_known() {
        for stored in [
            "embed_tokens.weight",
            "lm_head.weight",
            "encoder.fc.weight",
            "layers.0.self_attn.g_proj.weight",
            "layers.0.self_attn.sinks",
            "layers.00.mlp.up_proj.weight",
            "aux_hidden_norms.0.weight",
            "midlayer.hidden_norm.weight",
            "",
        ] {
            assert_eq!(meaning(stored), Meaning::Unknown, "{stored}");
        }
    }

    #[test]
    fn marks_name_the_kind() {
        for (stored, wanted) in [
            ("markov_w1.weight", "DSpark"),
            ("model.confidence_head.proj.weight", "DSpark"),
            ("prefix_gru.weight_ih_l0", "Domino"),
            ("embed_proj.weight", "Domino"),
            ("d2t", "EAGLE3"),
            ("mtp.fc.weight", "multi-token"),
        ] {
            assert!(foreign_kind(stored).is_some_and(|kind| kind.contains(wanted)), "{stored}");
        }
        for own in
            ["fc.weight", "candidate_selector.hidden_projection.weight", "layers.0.input_layernorm.weight"]
        {
            assert_eq!(foreign_kind(own), None, "{own}");
        }
    }
}
