//! Llama, Qwen2 and Qwen3.

use serde_json::json;
use tensorfold_plugin_api::model_spec::{AttentionSpec, MixerSpec, RopeScaling};

use super::*;

const FAMILIES: [(&str, &str, &str); 3] = [
    ("llama", golden!("tiny-llama"), golden!("tiny-llama-mlx-4bit")),
    ("qwen2", golden!("tiny-qwen2"), golden!("tiny-qwen2-mlx-4bit")),
    ("qwen3", golden!("tiny-qwen3"), golden!("tiny-qwen3-mlx-4bit")),
];

fn attention(checkpoint: &Checkpoint) -> &AttentionSpec {
    match &checkpoint.spec.layers[0].mixer {
        MixerSpec::Attention(attention) => attention,
        MixerSpec::GatedDelta(_) => panic!("a dense model has attention in every layer"),
    }
}

#[test]
fn both_forms_of_a_model_have_one_description() {
    for (family, hf, mlx) in FAMILIES {
        let (hf, mlx) = (open(hf), open(mlx));
        assert_eq!((hf.spec.family.as_str(), hf.spec.norm_weight_offset), (family, 0.0));
        assert_eq!(hf.spec.formats, ["bf16"]);
        assert_eq!(mlx.spec.formats, ["mlx-q4g64"]);
        let mut same = mlx.spec.clone();
        same.formats = hf.spec.formats.clone();
        assert_eq!(same, hf.spec);
        assert_eq!(hf.stop_tokens, mlx.stop_tokens);
        assert!(!hf.has_mtp());
    }
}

#[test]
fn every_family_has_its_own_attention() {
    let llama = open(FAMILIES[0].1);
    let wanted = AttentionSpec {
        heads: 3,
        key_value_heads: 1,
        head_size: 64,
        gated: false,
        head_norms: false,
        biases: false,
    };
    assert_eq!(attention(&llama), &wanted);
    assert_eq!((llama.spec.rope.theta, llama.spec.rope.rotary_dimensions), (1e5, 64));
    assert_eq!((llama.spec.norm_epsilon, llama.spec.tied_head), (1e-5, true));
    assert_eq!((llama.spec.selectable_vocabulary, llama.spec.vocabulary_rows), (1000, 1024));
    assert_eq!(llama.stop_tokens, [2]);

    let qwen2 = open(FAMILIES[1].1);
    assert!(attention(&qwen2).biases && !attention(&qwen2).head_norms);
    assert_eq!(qwen2.tensor("layers.2.attention.q.bias").unwrap().shape, [128]);
    assert!(qwen2.tensor("layers.2.attention.o.bias").is_none());
    assert!(!qwen2.spec.tied_head && qwen2.tensor("head").is_some());
    assert_eq!(qwen2.stop_tokens, [1000, 1002]);

    // A head of 128 dimensions although two of them share 128.
    let qwen3 = open(FAMILIES[2].1);
    assert_eq!((attention(&qwen3).head_size, attention(&qwen3).head_norms), (128, true));
    assert_eq!(qwen3.tensor("layers.0.attention.q").unwrap().shape, [256, 128]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (_, hf, mlx) in FAMILIES {
        for path in [hf, mlx] {
            each_is_refused(
                path,
                &[
                    ("hidden_act", json!("gelu"), "hidden_act is \"gelu\"; only \"silu\""),
                    ("mlp_bias", json!(true), "mlp_bias is true"),
                    ("use_sliding_window", json!(true), "use_sliding_window is true"),
                    ("rope_interleaved", json!(true), "rope_interleaved is true"),
                    ("partial_rotary_factor", json!(0.5), "partial_rotary_factor is 0.5"),
                    (
                        "rope_scaling",
                        json!({"rope_type": "yarn", "factor": 4}),
                        "rope_scaling.rope_type is \"yarn\"",
                    ),
                    ("layer_types", json!(["full_attention"]), "names 1 layers, num_hidden_layers is 3"),
                    (
                        "layer_types",
                        json!(["full_attention", "sliding_attention", "full_attention"]),
                        "holds \"sliding_attention\"; \"full_attention\" are implemented",
                    ),
                    ("num_hidden_layers", json!(5000), "at most 4096"),
                    ("num_key_value_heads", json!(7), "over 7 key/value heads"),
                    ("rms_norm_eps", json!(null), "rms_norm_eps is missing"),
                    ("max_position_embeddings", json!(null), "max_position_embeddings is missing"),
                    ("vocab_size", json!(999), "has 999 rows, but tokenizer.json knows ids up to"),
                    ("intermediate_size", json!(128), "malformed"),
                ],
            );
        }
    }
    for path in [FAMILIES[0].1, FAMILIES[2].1] {
        each_is_refused(path, &[("attention_bias", json!(true), "attention_bias is true; this family")]);
    }
    // Qwen2's biases are part of it, whatever the key says.
    configured(FAMILIES[1].1, &[("attention_bias", json!(true))]).unwrap();
    each_is_refused(
        FAMILIES[0].1,
        &[(
            "num_attention_heads",
            json!(5),
            "head_dim is missing, and 192 dimensions do not divide into 5 heads",
        )],
    );
    for path in [FAMILIES[1].1, FAMILIES[2].1] {
        each_is_refused(path, &[("rope_theta", json!(null), "rope_theta is missing")]);
    }
}

#[test]
fn another_familys_tensors_are_missed_or_not_known() {
    // Biases belong to Qwen2 alone, norms of heads to Qwen3 alone.
    let of = |path, family| configured(path, &[("model_type", json!(family))]).unwrap_err();
    assert!(
        of(FAMILIES[1].1, "llama")
            .contains("9 tensors are not known to this family: model.layers.0.self_attn.")
    );
    assert!(of(FAMILIES[0].1, "qwen2").contains("9 tensors are missing: layers.0.attention.q.bias"));
    assert!(of(FAMILIES[2].1, "llama").contains("6 tensors are not known to this family"));
    assert!(of(FAMILIES[0].1, "qwen3").contains("6 tensors are missing: layers.0.attention.q_norm"));
}

#[test]
fn scalings_that_are_computed_reach_the_description() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let scaled = configured(FAMILIES[0].2, &[("rope_scaling", llama3)]).unwrap();
    let wanted = RopeScaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context: 8192,
    };
    assert_eq!(scaled.spec.rope.scaling, wanted);
    let nested = json!({ "rope_theta": 5e5, "type": "linear", "factor": 2 });
    let keys = [("rope_theta", json!(null)), ("rope_scaling", json!(null)), ("rope_parameters", nested)];
    let rope = configured(FAMILIES[0].1, &keys).unwrap().spec.rope;
    assert_eq!((rope.theta, rope.scaling), (5e5, RopeScaling::Linear { factor: 2.0 }));
    let bare = configured(FAMILIES[0].1, &[("rope_theta", json!(null))]).unwrap();
    assert_eq!(bare.spec.rope.theta, 1e4);
}

#[test]
fn the_tensors_tell_whether_the_head_is_the_embedding() {
    for said in [json!(true), json!(false), json!(null)] {
        let keys = [("tie_word_embeddings", said)];
        assert!(configured(FAMILIES[0].1, &keys).unwrap().spec.tied_head);
        assert!(!configured(FAMILIES[1].1, &keys).unwrap().spec.tied_head);
    }
}

#[test]
fn a_table_that_contradicts_the_tensors_is_refused() {
    let path = FAMILIES[0].2;
    let table = |entry: Value| json!({ "group_size": 64, "bits": 4, "model.layers.1.mlp.up_proj": entry });
    let open = |entry: Value| configured(path, &[("quantization", table(entry))]);
    open(json!({ "bits": 4 })).unwrap();
    open(json!(true)).unwrap();
    for (entry, wanted) in [
        (json!(false), "layers.1.mlp.up_proj.weight is packed, but config.json says that it is not"),
        (json!({}), "layers.1.mlp.up_proj.weight is packed, but config.json says that it is not"),
        (json!({ "bits": 8 }), "is packed as mlx-q4g64, but config.json says mlx-q8g64"),
        // An absent key means the format's default, never what the whole table says.
        (json!({ "group_size": 32 }), "is packed as mlx-q4g64, but config.json says mlx-q4g32"),
        (json!({ "mode": "nvfp4" }), "up_proj.mode is \"nvfp4\""),
        (json!({ "bits": 7 }), "up_proj.bits is 7"),
    ] {
        let error = open(entry).unwrap_err();
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
    // The other way round: packed says the table, plain say the tensors.
    let plain = configured(FAMILIES[0].1, &[("quantization", table(json!({ "bits": 4 })))]).unwrap_err();
    assert!(
        plain.contains("model.layers.1.mlp.up_proj.weight is not packed, but config.json says mlx-q4g64"),
        "{plain}"
    );
}

#[test]
fn other_quantisers_are_refused_by_name() {
    for method in ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "exl3", "modelopt"] {
        let config = json!({ "quant_method": method, "bits": 4 });
        let error = configured(FAMILIES[0].1, &[("quantization_config", config)]).unwrap_err();
        assert!(error.contains(&format!("quant_method is {method:?}")), "{error}");
        assert!(error.contains("tensorfold convert"), "{error}");
    }
    for mode in ["mxfp4", "nvfp4", "mxfp8"] {
        let table = json!({ "group_size": 32, "bits": 4, "mode": mode });
        let error = configured(FAMILIES[0].2, &[("quantization", table)]).unwrap_err();
        assert!(error.contains(&format!("quantization.mode is {mode:?}")), "{error}");
    }
}
