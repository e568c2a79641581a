//! From canonical tensor names to those of MLX's form.

/// Where the modules of a family stand in MLX's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MlxNames {
    /// Before `layers.0...`, `embed_tokens` and `norm`.
    trunk: &'static str,
    head: &'static str,
}

impl MlxNames {
    pub(super) fn of_family(family: &str) -> MlxNames {
        match family {
            // Their text model is one part of a model that also sees.
            "qwen3_5" | "qwen3_5_moe" => {
                MlxNames { trunk: "language_model.model.", head: "language_model.lm_head" }
            }
            _ => MlxNames { trunk: "model.", head: "lm_head" },
        }
    }

    /// The stored name of a tensor by its canonical name; `None` where MLX's form has no place for it.
    pub(super) fn stored(self, canonical: &str) -> Option<String> {
        if canonical == "head" {
            return Some(format!("{}.weight", self.head));
        }
        if let Some(name) = canonical.strip_prefix("mtp.") {
            let own = match name {
                "fc" => Some("fc.weight"),
                "norm" => Some("norm.weight"),
                "embed_norm" => Some("pre_fc_norm_embedding.weight"),
                "hidden_norm" => Some("pre_fc_norm_hidden.weight"),
                _ => None,
            };
            return match own {
                Some(own) => Some(format!("mtp.{own}")),
                None => layer_tensor(name).map(|name| format!("mtp.{name}")),
            };
        }
        let name = match canonical {
            "embed" => Some("embed_tokens.weight".to_owned()),
            "norm" => Some("norm.weight".to_owned()),
            _ => layer_tensor(canonical),
        };
        name.map(|name| format!("{}{name}", self.trunk))
    }
}

fn layer_tensor(canonical: &str) -> Option<String> {
    let (layer, rest) = canonical.strip_prefix("layers.")?.split_once('.')?;
    let (module, parameter) = match rest.strip_suffix(".bias") {
        Some(module) => (module, ".bias"),
        None => (rest, ".weight"),
    };
    let stored = match module {
        "input_norm" => "input_layernorm",
        "post_norm" => "post_attention_layernorm",
        "attention.q" => "self_attn.q_proj",
        "attention.k" => "self_attn.k_proj",
        "attention.v" => "self_attn.v_proj",
        "attention.o" => "self_attn.o_proj",
        "attention.q_norm" => "self_attn.q_norm",
        "attention.k_norm" => "self_attn.k_norm",
        "delta.qkv" => "linear_attn.in_proj_qkv",
        "delta.z" => "linear_attn.in_proj_z",
        "delta.a" => "linear_attn.in_proj_a",
        "delta.b" => "linear_attn.in_proj_b",
        "delta.conv" => "linear_attn.conv1d",
        "delta.norm" => "linear_attn.norm",
        "delta.out" => "linear_attn.out_proj",
        "ffn.gate" => "mlp.gate_proj",
        "ffn.up" => "mlp.up_proj",
        "ffn.down" => "mlp.down_proj",
        "moe.router" => "mlp.gate",
        "moe.shared.gate" => "mlp.shared_expert.gate_proj",
        "moe.shared.up" => "mlp.shared_expert.up_proj",
        "moe.shared.down" => "mlp.shared_expert.down_proj",
        "moe.shared_gate" => "mlp.shared_expert_gate",
        "moe.experts.gate" => "mlp.switch_mlp.gate_proj",
        "moe.experts.up" => "mlp.switch_mlp.up_proj",
        "moe.experts.down" => "mlp.switch_mlp.down_proj",
        // Parameters of the layer itself, without a module.
        "delta.a_log" => return Some(format!("layers.{layer}.linear_attn.A_log")),
        "delta.dt_bias" => return Some(format!("layers.{layer}.linear_attn.dt_bias")),
        _ => return None,
    };
    Some(format!("layers.{layer}.{stored}{parameter}"))
}

/// Whether a stored name is that of a router, or of the gate of a shared expert: these stay at 8 bits.
pub(super) fn is_expert_gate(stored: &str) -> bool {
    stored.ends_with(".mlp.gate.weight") || stored.ends_with(".mlp.shared_expert_gate.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_the_family() {
        let stored = |family: &str, name: &str| MlxNames::of_family(family).stored(name);
        assert_eq!(stored("llama", "head").unwrap(), "lm_head.weight");
        assert_eq!(stored("qwen3_5", "head").unwrap(), "language_model.lm_head.weight");
        assert_eq!(
            stored("qwen2", "layers.3.attention.q.bias").unwrap(),
            "model.layers.3.self_attn.q_proj.bias"
        );
        let moe = |name| stored("qwen3_5_moe", name);
        assert_eq!(moe("layers.12.delta.a_log").unwrap(), "language_model.model.layers.12.linear_attn.A_log");
        assert_eq!(
            moe("mtp.layers.0.moe.experts.down").unwrap(),
            "mtp.layers.0.mlp.switch_mlp.down_proj.weight"
        );
        assert_eq!(moe("mtp.embed_norm").unwrap(), "mtp.pre_fc_norm_embedding.weight");
        assert_eq!(moe("layers.0.moe.experts.gate_up"), None);
        assert!(is_expert_gate(&moe("layers.0.moe.router").unwrap()));
        assert!(is_expert_gate(&moe("layers.0.moe.shared_gate").unwrap()));
        assert!(!is_expert_gate(&moe("layers.0.moe.shared.gate").unwrap()));
    }
}
