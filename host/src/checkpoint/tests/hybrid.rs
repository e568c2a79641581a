//! Qwen3.5 and its kin.

use std::fs;
use std::path::Path;

use tensorfold_plugin_api::model_spec::MixerSpec;

use super::*;

#[test]
fn both_forms_of_a_model_have_one_description() {
    let (hf, mlx) = (open(HF), open(MLX));
    assert_eq!(hf.spec.norm_weight_offset, 1.0);
    assert_eq!(mlx.spec.norm_weight_offset, 0.0);
    assert_eq!(hf.spec.formats, ["bf16"]);
    assert_eq!(mlx.spec.formats, ["mlx-q4g64"]);
    assert_eq!(hf.spec.mtp.as_ref().unwrap().norm_weight_offset, 1.0);
    assert_eq!(mlx.spec.mtp.as_ref().unwrap().norm_weight_offset, 0.0);
    assert_eq!((hf.spec.selectable_vocabulary, hf.spec.vocabulary_rows), (1009, 1024));
    assert_eq!((hf.spec.rope.theta, hf.spec.rope.rotary_dimensions), (1e7, 64));
    let full: Vec<_> =
        hf.spec.layers.iter().map(|layer| matches!(layer.mixer, MixerSpec::Attention(_))).collect();
    assert_eq!(full, [false, false, false, true]);
    let mut same = mlx.spec.clone();
    same.formats = hf.spec.formats.clone();
    same.norm_weight_offset = 1.0;
    same.mtp = hf.spec.mtp.clone();
    assert_eq!(same, hf.spec);
    assert_eq!(hf.stop_tokens, [1000, 1002]);
    let defaults = GenerationDefaults { temperature: 1.0, top_p: 0.95, top_k: 20, min_p: 0.0 };
    assert_eq!(hf.generation, defaults);
}

#[test]
fn tensors_are_where_they_are_said_to_be() {
    let hf = open(HF);
    let conv = hf.tensor("layers.0.delta.conv").unwrap();
    assert_eq!((conv.shape.as_slice(), conv.element), ([640, 4].as_slice(), ElementType::Bf16));
    assert_eq!(hf.bytes(conv).len(), 640 * 4 * 2);
    // The convolution is not touched by the conversion to the other form.
    let mlx = open(MLX);
    assert_eq!(hf.bytes(conv), mlx.bytes(mlx.tensor("layers.0.delta.conv").unwrap()));
    let q = mlx.tensor("layers.3.attention.q").unwrap();
    assert_eq!(q.packing, Some(Packing { bits: 4, group_size: 64 }));
    assert_eq!((q.shape.as_slice(), q.logical_shape()), ([1536, 16].as_slice(), vec![1536, 128]));
    let head = mlx.tensor("mtp.fc.scales").unwrap();
    assert!(mlx.files()[head.file].path.ends_with("mtp-4bit.safetensors"));
    for checkpoint in [&hf, &mlx] {
        for tensor in &checkpoint.tensors {
            let elements: u64 = tensor.shape.iter().product();
            assert_eq!(checkpoint.bytes(tensor).len() as u64, elements * tensor.element.bytes());
        }
    }
}

#[test]
fn the_demo_model_opens() {
    let demo = open(DEMO);
    assert_eq!(demo.name, "demo");
    assert!(demo.spec.tied_head && demo.has_mtp());
    assert_eq!(demo.spec.selectable_vocabulary, 8180);
    assert_eq!(demo.spec.layers.len(), 12);
    assert_eq!(demo.stop_tokens, [8170, 8172]);
    assert_eq!(demo.tensor("layers.0.delta.a_log").unwrap().element, ElementType::F32);
    assert_eq!(demo.generation.temperature, 0.7);
}

#[test]
fn facts_need_no_weights() {
    let facts = read_facts(Path::new(DEMO)).unwrap();
    assert_eq!((facts.family.as_str(), facts.supported), ("qwen3_5", true));
    assert_eq!((facts.formats, facts.mtp_formats), (vec!["mlx-q4g64".into()], vec!["mlx-q4g64".into()]));
    assert_eq!((facts.mtp, facts.context_window), (true, Some(4096)));
    assert_eq!(facts.weight_bytes, 12_804_362 + 974_872);
    // 22.57 M parameters and a head of 1.72 M, says its card.
    assert!((24_280_000..24_300_000).contains(&facts.parameters), "{}", facts.parameters);
    let (drafter, problem) = survey(Path::new(DRAFTER)).unwrap();
    assert!(problem.expect("it is no model").to_string().contains("it is of a DFlash2 drafter"));
    assert!(read_facts(Path::new(DRAFTER)).is_err());
    assert_eq!((drafter.family.as_str(), drafter.supported), ("qwen3", false));
    assert_eq!(drafter.formats, ["bf16"]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let drafter = Checkpoint::open(Path::new(DRAFTER)).unwrap_err().to_string();
    assert!(drafter.contains("it is of a DFlash2 drafter, not of a model; name the model"), "{drafter}");
    for (from, to, wanted) in [
        (r#""model_type": "qwen3_5","#, r#""model_type": "llama","#, "the text model of \"llama\" is llama"),
        (r#""model_type": "qwen3_5","#, r#""model_type": "qwen4_exp","#, "n-gram embedding"),
        (
            r#""model_type": "qwen3_5","#,
            r#""model_type": "qwen2_moe","#,
            "supported: llama, qwen2, qwen3, qwen3_5",
        ),
        (r#""model_type": "qwen3_5","#, r#""model_type": "new","#, "model_type is \"new\"; that family"),
        (r#""rope_type": "default""#, r#""rope_type": "yarn""#, "rope_parameters.rope_type is \"yarn\""),
        (r#""hidden_act": "silu""#, r#""hidden_act": "gelu""#, "hidden_act is \"gelu\""),
        (r#""attention_bias": false"#, r#""attention_bias": true"#, "attention_bias is true"),
        (r#""attn_output_gate": true"#, r#""attn_output_gate": false"#, "attn_output_gate is false"),
        (r#""linear_attention","#, r#""sliding_attention","#, "holds \"sliding_attention\""),
        (r#""num_hidden_layers": 4"#, r#""num_hidden_layers": 4000000000"#, "at most 4096"),
        (r#""num_hidden_layers": 4"#, r#""num_hidden_layers": 5"#, "names 4 layers, num_hidden_layers is 5"),
        (r#""vocab_size": 1024"#, r#""vocab_size": 1000"#, "knows ids up to 1008"),
        (r#""intermediate_size": 256"#, r#""intermediate_size": 255"#, "15 tensors are malformed"),
        (r#""num_key_value_heads": 1"#, r#""num_key_value_heads": 2"#, "3 query heads over 2"),
        (r#""linear_key_head_dim": 128"#, r#""linear_key_head_dim": 4294967295"#, "channels"),
        (r#""transformers_version": "5.24.0""#, r#""quantization_config": {"quant_method": "fp8"}"#, "fp8"),
    ] {
        let error = refused(HF, from, to);
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
    let table = refused(MLX, r#""mode": "affine""#, r#""mode": "mxfp4""#);
    assert!(table.contains("quantization.mode is \"mxfp4\""), "{table}");
    let table = refused(
        MLX,
        r#""group_size": 64,"#,
        r#""language_model.model.layers.0.mlp.up_proj": {"bits": 8}, "group_size": 64,"#,
    );
    assert!(table.contains("is packed as mlx-q4g64, but config.json says mlx-q8g64"), "{table}");
}

#[test]
fn a_missing_and_a_surplus_tensor_are_named() {
    let rename = |bytes: Vec<u8>| {
        let (from, to) = (b"layers.1.mlp.up_proj.weight", b"layers.1.mlp.up_pro_.weight");
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        let mut bytes = bytes;
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    let root = changed(HF, "model.safetensors", rename);
    let error = Checkpoint::open(root.path()).unwrap_err().to_string();
    assert!(error.contains("1 tensor is missing: layers.1.ffn.up. "), "{error}");
    assert!(error.contains("not known to this family: model.language_model.layers.1.mlp.up_pro_"), "{error}");
}

#[test]
fn a_checkpoint_without_a_prediction_head_opens() {
    let root = changed(MLX, "config.json", |bytes| bytes);
    fs::remove_file(root.path().join("mtp-4bit.safetensors")).unwrap();
    assert!(!Checkpoint::open(root.path()).unwrap().has_mtp());
    assert!(!read_facts(root.path()).unwrap().mtp);
}

#[test]
fn a_side_file_replaces_a_head_in_the_weights() {
    let root = changed(HF, "mtp-4bit.safetensors", |_| {
        fs::read(Path::new(MLX).join("mtp-4bit.safetensors")).unwrap()
    });
    let checkpoint = Checkpoint::open(root.path()).unwrap();
    assert_eq!(checkpoint.spec.norm_weight_offset, 1.0);
    let mtp = checkpoint.spec.mtp.unwrap();
    assert_eq!((mtp.norm_weight_offset, mtp.formats), (0.0, vec!["mlx-q4g64".to_owned()]));
}

#[test]
fn an_unpacked_head_beside_a_packed_model_shows_how_its_norms_are_stored() {
    let root = changed(MLX, "mtp.safetensors", |_| {
        let weights = fs::read(Path::new(HF).join("model.safetensors")).unwrap();
        renamed(&weights, |name| name.strip_prefix("mtp.").map(str::to_owned))
    });
    fs::remove_file(root.path().join("mtp-4bit.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(root.path()).unwrap();
    assert_eq!(checkpoint.spec.norm_weight_offset, 0.0);
    let mtp = checkpoint.spec.mtp.unwrap();
    assert_eq!((mtp.norm_weight_offset, mtp.formats), (1.0, vec!["bf16".to_owned()]));
}

#[test]
fn a_text_only_export_is_the_same_model() {
    let root = changed(HF, "model.safetensors", |bytes| {
        renamed(&bytes, |name| Some(name.replace("model.language_model.", "model.")))
    });
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(Path::new(HF).join("config.json")).unwrap()).unwrap();
    fs::write(root.path().join("config.json"), config["text_config"].to_string()).unwrap();
    assert_eq!(Checkpoint::open(root.path()).unwrap().spec, open(HF).spec);
}
