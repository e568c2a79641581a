//! From the names in a checkpoint to canonical ones.
//!
//! The names of modules inside a layer are the same in all families that
//! follow the Llama lineage; what stands before them differs by family and by
//! the tool that wrote the files, see [`NameRules`].

/// The prefixes of one family.
#[derive(Debug)]
pub(super) struct NameRules {
    /// What stands before `layers.0...`, `embed_tokens` and `norm`; tried in order.
    pub(super) trunk: &'static [&'static str],
    /// Modules that are the output head.
    pub(super) head: &'static [&'static str],
    /// What stands before the modules of a multi-token prediction head.
    pub(super) mtp: &'static [&'static str],
    /// What stands before tensors that text does not need.
    pub(super) ignored: &'static [&'static str],
}

/// What a stored name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A tensor of the model, by canonical name.
    Canonical(String),
    /// Not needed for text.
    Ignored,
    /// Nothing that is known.
    Unknown,
}

impl NameRules {
    /// The meaning of a tensor's name in the weight files proper.
    pub(super) fn meaning(&self, stored: &str) -> Meaning {
        if self.ignored.iter().any(|prefix| stored.starts_with(prefix))
            || stored.ends_with("rotary_emb.inv_freq")
        {
            return Meaning::Ignored;
        }
        let (module, suffix) = split_parameter(stored);
        if let Some(module) = self.mtp.iter().find_map(|prefix| module.strip_prefix(prefix)) {
            return named(mtp_module(module), suffix);
        }
        if self.head.contains(&module) {
            return named(Some("head".into()), suffix);
        }
        let trunk = self.trunk.iter().find_map(|prefix| trunk_module(module.strip_prefix(prefix)?));
        named(trunk, suffix)
    }

    /// The meaning of a name in a side file, where the prefix of the
    /// multi-token prediction head may be absent.
    pub(super) fn side_meaning(&self, stored: &str) -> Meaning {
        let (module, suffix) = split_parameter(stored);
        let module = self.mtp.iter().find_map(|prefix| module.strip_prefix(prefix)).unwrap_or(module);
        named(mtp_module(module), suffix)
    }
}

fn named(module: Option<String>, suffix: &str) -> Meaning {
    module.map_or(Meaning::Unknown, |module| Meaning::Canonical(module + suffix))
}

/// The module's path, and the canonical suffix of its parameter.
pub(crate) fn split_parameter(stored: &str) -> (&str, &'static str) {
    for (parameter, suffix) in
        [(".weight", ""), (".scales", ".scales"), (".biases", ".biases"), (".bias", ".bias")]
    {
        if let Some(module) = stored.strip_suffix(parameter) {
            return (module, suffix);
        }
    }
    (stored, "")
}

fn trunk_module(module: &str) -> Option<String> {
    match module {
        "embed_tokens" => Some("embed".into()),
        "norm" => Some("norm".into()),
        _ => layer_module(module),
    }
}

fn mtp_module(module: &str) -> Option<String> {
    let name = match module {
        "fc" => "fc".into(),
        "norm" => "norm".into(),
        "pre_fc_norm_embedding" => "embed_norm".into(),
        "pre_fc_norm_hidden" => "hidden_norm".into(),
        _ => layer_module(module)?,
    };
    Some(format!("mtp.{name}"))
}

fn layer_module(module: &str) -> Option<String> {
    let (index, rest) = module.strip_prefix("layers.")?.split_once('.')?;
    if !is_index(index) {
        return None;
    }
    let canonical = match rest {
        "input_layernorm" => "input_norm",
        "post_attention_layernorm" => "post_norm",
        "self_attn.q_proj" => "attention.q",
        "self_attn.k_proj" => "attention.k",
        "self_attn.v_proj" => "attention.v",
        "self_attn.o_proj" => "attention.o",
        "self_attn.q_norm" => "attention.q_norm",
        "self_attn.k_norm" => "attention.k_norm",
        "linear_attn.in_proj_qkv" => "delta.qkv",
        "linear_attn.in_proj_z" => "delta.z",
        "linear_attn.in_proj_a" => "delta.a",
        "linear_attn.in_proj_b" => "delta.b",
        "linear_attn.conv1d" => "delta.conv",
        "linear_attn.A_log" => "delta.a_log",
        "linear_attn.dt_bias" => "delta.dt_bias",
        "linear_attn.norm" => "delta.norm",
        "linear_attn.out_proj" => "delta.out",
        "mlp.gate_proj" => "ffn.gate",
        "mlp.up_proj" => "ffn.up",
        "mlp.down_proj" => "ffn.down",
        "mlp.gate" => "moe.router",
        "mlp.shared_expert.gate_proj" => "moe.shared.gate",
        "mlp.shared_expert.up_proj" => "moe.shared.up",
        "mlp.shared_expert.down_proj" => "moe.shared.down",
        "mlp.shared_expert_gate" => "moe.shared_gate",
        // Stacks of all experts: those of Hugging Face's tools, then MLX's.
        "mlp.experts.gate_up_proj" => "moe.experts.gate_up",
        "mlp.experts.down_proj" | "mlp.switch_mlp.down_proj" => "moe.experts.down",
        "mlp.switch_mlp.gate_proj" => "moe.experts.gate",
        "mlp.switch_mlp.up_proj" => "moe.experts.up",
        _ => {
            let (expert, part) = expert_module(rest)?;
            return Some(format!("layers.{index}.moe.experts.{expert}.{part}"));
        }
    };
    Some(format!("layers.{index}.{canonical}"))
}

/// One expert of those that are stored one by one.
fn expert_module(module: &str) -> Option<(&str, &'static str)> {
    let (expert, part) = module.strip_prefix("mlp.experts.")?.split_once('.')?;
    let part = match part {
        "gate_proj" => "gate",
        "up_proj" => "up",
        "down_proj" => "down",
        _ => return None,
    };
    is_index(expert).then_some((expert, part))
}

/// A number as tools write it: no sign, no leading zero, no more digits than any model has layers or experts.
pub(crate) fn is_index(text: &str) -> bool {
    (text == "0" || !text.starts_with('0'))
        && (1..=5).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::families::lookup;
    use super::*;

    fn names() -> &'static NameRules {
        lookup("qwen3_5_moe").unwrap().names
    }

    fn meaning(stored: &str) -> Meaning {
        names().meaning(stored)
    }

    fn canonical(name: &str) -> Meaning {
        Meaning::Canonical(name.into())
    }

    #[test]
    fn both_forms_and_text_only_exports_have_the_same_names() {
        for prefix in ["model.language_model.", "language_model.model.", "model."] {
            assert_eq!(meaning(&format!("{prefix}embed_tokens.scales")), canonical("embed.scales"));
            assert_eq!(meaning(&format!("{prefix}norm.weight")), canonical("norm"));
            let layer = format!("{prefix}layers.17.linear_attn.");
            assert_eq!(meaning(&format!("{layer}in_proj_a.biases")), canonical("layers.17.delta.a.biases"));
            assert_eq!(meaning(&format!("{layer}A_log")), canonical("layers.17.delta.a_log"));
        }
        assert_eq!(meaning("lm_head.weight"), canonical("head"));
        assert_eq!(meaning("language_model.lm_head.weight"), canonical("head"));
    }

    #[test]
    fn the_prediction_head_is_known_under_all_its_prefixes() {
        for prefix in ["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."] {
            assert_eq!(meaning(&format!("{prefix}pre_fc_norm_hidden.weight")), canonical("mtp.hidden_norm"));
            assert_eq!(
                meaning(&format!("{prefix}layers.0.self_attn.q_proj.weight")),
                canonical("mtp.layers.0.attention.q")
            );
        }
        assert_eq!(names().side_meaning("fc.weight"), canonical("mtp.fc"));
        assert_eq!(names().side_meaning("mtp.fc.weight"), canonical("mtp.fc"));
        assert_eq!(names().side_meaning("embed_tokens.weight"), Meaning::Unknown);
    }

    #[test]
    fn experts_are_known_in_all_forms() {
        for (stored, wanted) in [
            ("gate.weight", "router"),
            ("gate.scales", "router.scales"),
            ("experts.gate_up_proj", "experts.gate_up"),
            ("experts.down_proj", "experts.down"),
            ("switch_mlp.gate_proj.weight", "experts.gate"),
            ("switch_mlp.up_proj.biases", "experts.up.biases"),
            ("switch_mlp.down_proj.scales", "experts.down.scales"),
            ("experts.17.gate_proj.weight", "experts.17.gate"),
            ("experts.0.down_proj.weight", "experts.0.down"),
            ("shared_expert.up_proj.weight", "shared.up"),
            ("shared_expert_gate.weight", "shared_gate"),
        ] {
            for (prefix, canonical_prefix) in [("model.", ""), ("mtp.", "mtp.")] {
                assert_eq!(
                    meaning(&format!("{prefix}layers.3.mlp.{stored}")),
                    canonical(&format!("{canonical_prefix}layers.3.moe.{wanted}"))
                );
            }
        }
        for stored in
            ["experts.01.gate_proj.weight", "experts.-1.up_proj.weight", "experts.999999.up_proj.weight"]
        {
            assert_eq!(meaning(&format!("model.layers.3.mlp.{stored}")), Meaning::Unknown, "{stored}");
        }
    }

    #[test]
    fn dense_families_know_one_prefix_and_no_prediction_head() {
        let names = lookup("llama").unwrap().names;
        assert_eq!(
            names.meaning("model.layers.0.self_attn.q_proj.bias"),
            canonical("layers.0.attention.q.bias")
        );
        assert_eq!(names.meaning("lm_head.scales"), canonical("head.scales"));
        assert_eq!(names.meaning("model.layers.0.self_attn.rotary_emb.inv_freq"), Meaning::Ignored);
        for stored in ["language_model.model.norm.weight", "mtp.fc.weight", "model.visual.norm.weight"] {
            assert_eq!(names.meaning(stored), Meaning::Unknown, "{stored}");
        }
    }

    #[test]
    fn vision_is_ignored_and_the_rest_is_unknown() {
        assert_eq!(meaning("model.visual.blocks.0.attn.qkv.weight"), Meaning::Ignored);
        assert_eq!(meaning("vision_tower.blocks.0.norm1.weight"), Meaning::Ignored);
        for stored in
            ["model.layers.0.mlp.mystery.weight", "fc.weight", "", "model.layers.01.input_layernorm.weight"]
        {
            assert_eq!(meaning(stored), Meaning::Unknown, "{stored}");
        }
    }
}
