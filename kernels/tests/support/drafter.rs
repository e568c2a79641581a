//! Block drafters as their files hold them: just enough for tests, and strict.
#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part")]

use serde_json::Value;
use tensorfold_plugin_api::drafter_spec::{
    DRAFTER_SPEC_VERSION, DrafterLayerSpec, DrafterSpec, RefinementSpec,
};
use tensorfold_plugin_api::model_spec::{RopeScaling, RopeSpec};

use super::support::ids;

/// The canonical name of a drafter's tensor.
pub fn canonical(name: &str) -> Option<String> {
    let mut out = name.strip_suffix(".weight").unwrap_or(name).to_owned();
    for (from, to) in [
        ("candidate_selector.", "selector."),
        ("hidden_projection", "hidden"),
        ("_codebook", ""),
        ("mlp_conv.", "ffn_conv."),
        ("base_kernel", "base"),
        ("kernel_projection", "projection"),
        ("input_layernorm", "input_norm"),
        ("post_attention_layernorm", "post_norm"),
        ("self_attn.", "attention."),
        ("mlp.", "ffn."),
        ("_proj", ""),
    ] {
        if !(from == "_proj" && out.ends_with("projection")) {
            out = out.replace(from, to);
        }
    }
    Some(out)
}

/// The facts of a drafter, from its configuration.
pub fn spec(config: &Value) -> DrafterSpec {
    let own = &config["dflash_config"];
    let pick = |key: &str| if own[key].is_null() { &config[key] } else { &own[key] };
    let number = |key: &str| pick(key).as_u64().unwrap_or_else(|| panic!("config has no {key}")) as u32;
    let theta = config["rope_theta"].as_f64().or(config["rope_parameters"]["rope_theta"].as_f64()).unwrap();
    let layers = config["layer_types"].as_array().unwrap().iter().map(|kind| {
        let slides = kind == "sliding_attention";
        DrafterLayerSpec {
            window: slides.then(|| number("sliding_window")),
            causal: config["is_causal"].as_bool().unwrap_or(slides),
        }
    });
    let refinement = pick("selector_rank").is_u64().then(|| RefinementSpec {
        convolution_kernel: number("conv_kernel_size"),
        convolution_group: number("conv_group_size"),
        selector_rank: number("selector_rank"),
        selector_candidates: number("selector_top_k"),
    });
    let spec = DrafterSpec {
        version: DRAFTER_SPEC_VERSION,
        hidden_size: number("hidden_size"),
        vocabulary_rows: number("vocab_size"),
        block_size: number("block_size"),
        mask_token: number("mask_token_id"),
        taps: ids(&own["target_layer_ids"]),
        norm_epsilon: config["rms_norm_eps"].as_f64().unwrap(),
        rope: RopeSpec { theta, rotary_dimensions: number("head_dim"), scaling: RopeScaling::None },
        embedding_scale: pick("input_embedding_scale").as_f64().unwrap_or(1.0),
        output_multiplier: pick("output_multiplier").as_f64().unwrap_or(1.0),
        logit_softcap: pick("final_logit_softcapping").as_f64(),
        heads: number("num_attention_heads"),
        key_value_heads: number("num_key_value_heads"),
        head_size: number("head_dim"),
        intermediate_size: number("intermediate_size"),
        layers: layers.collect(),
        refinement,
        formats: vec!["bf16".into()],
    };
    spec.validate().unwrap();
    spec
}
