//! Families that people meet and that are not read, with what each would need.

/// What a `model_type` would need, where it is known.
pub(super) fn needed(model_type: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(names, _)| names.contains(&model_type)).map(|(_, needed)| *needed)
}

const KNOWN: &[(&[&str], &str)] = &[
    (&["qwen3_next"], "its fused projections are not implemented"),
    (
        &["qwen4_exp", "qwen3_8_flash_next"],
        "its n-gram embedding, sparse attention and residual streams are not implemented",
    ),
    (&["qwen2_moe"], "its gated shared expert beside plain attention layers is not implemented"),
    (&["qwen3_moe"], "its experts in plain attention layers are not implemented"),
    (
        &["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"],
        "images and their position triples are not implemented",
    ),
    (&["mistral"], "its sliding attention window is not implemented"),
    (&["mixtral"], "its experts are not implemented"),
    (&["llama4", "llama4_text"], "its chunked attention and its experts are not implemented"),
    (&["smollm3"], "its layers without rotary positions are not implemented"),
    (
        &["gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text"],
        "its scaled embedding, further norms and GELU are not implemented",
    ),
    (&["phi3"], "its fused projections are not implemented"),
    (&["gpt_oss"], "its attention sinks and its experts in MXFP4 are not implemented"),
    (
        &["deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"],
        "its latent attention and its experts are not implemented",
    ),
    (&["nemotron_h"], "its Mamba layers are not implemented"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_family_that_is_read_is_in_the_list() {
        for (names, _) in KNOWN {
            for name in *names {
                assert!(super::super::lookup(name).is_none(), "{name}");
            }
        }
        assert!(needed("gpt_oss").unwrap().contains("MXFP4"));
        assert_eq!(needed("nobody"), None);
    }
}
