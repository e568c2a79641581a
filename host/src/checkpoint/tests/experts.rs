//! Qwen3.5 with routed experts.

use serde_json::json;
use tensorfold_plugin_api::model_spec::FeedForwardSpec;

use super::*;

const HF: &str = golden!("tiny-qwen3_5_moe");
const MLX: &str = golden!("tiny-qwen3_5_moe-mlx-4bit");

/// The tensors with stacks of experts taken apart, as some tools store them.
fn one_by_one(name: &str, tensor: Stored) -> Vec<(String, Stored)> {
    let Some((module, part)) = name.rsplit_once('.').filter(|(module, _)| module.ends_with(".experts"))
    else {
        return vec![(name.to_owned(), tensor)];
    };
    let [experts, rows, columns] = tensor.shape[..] else { panic!("{name} is a stack") };
    let parts: &[&str] = if part == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
    let shape = vec![rows / parts.len(), columns];
    let pieces = tensor.bytes.chunks(tensor.bytes.len() / (experts * parts.len()));
    let piece = |(index, bytes): (usize, &[u8])| {
        let name = format!("{module}.{}.{}.weight", index / parts.len(), parts[index % parts.len()]);
        (name, Stored { dtype: tensor.dtype, shape: shape.clone(), bytes: bytes.to_vec() })
    };
    pieces.enumerate().map(piece).collect()
}

#[test]
fn both_forms_of_a_model_have_one_description() {
    let (hf, mlx) = (open(HF), open(MLX));
    assert_eq!((hf.spec.family.as_str(), hf.spec.norm_weight_offset), ("qwen3_5_moe", 1.0));
    assert_eq!((mlx.spec.family.as_str(), mlx.spec.norm_weight_offset), ("qwen3_5_moe", 0.0));
    assert_eq!(hf.spec.formats, ["bf16"]);
    assert_eq!(mlx.spec.formats, ["mlx-q4g64", "mlx-q8g64"]);
    let (hf_head, mlx_head) = (hf.spec.mtp.clone().unwrap(), mlx.spec.mtp.clone().unwrap());
    assert_eq!(mlx_head.formats, ["mlx-q4g64", "mlx-q8g64"]);
    assert_eq!(hf_head.layers, mlx_head.layers);
    let wanted = FeedForwardSpec::MixtureOfExperts {
        experts: 8,
        experts_per_token: 2,
        intermediate_size: 64,
        shared_intermediate_size: 64,
    };
    for layer in hf.spec.layers.iter().chain(&hf_head.layers) {
        assert_eq!(layer.feed_forward, wanted);
    }
    let mut same = mlx.spec.clone();
    same.formats = hf.spec.formats.clone();
    same.norm_weight_offset = 1.0;
    same.mtp = hf.spec.mtp.clone();
    assert_eq!(same, hf.spec);
}

#[test]
fn experts_lie_in_one_stack_or_in_three() {
    let (hf, mlx) = (open(HF), open(MLX));
    for prefix in ["layers.0", "layers.3", "mtp.layers.0"] {
        let shape = |checkpoint: &Checkpoint, name: &str| {
            checkpoint
                .tensor(&format!("{prefix}.moe.{name}"))
                .unwrap_or_else(|| panic!("{prefix} {name}"))
                .logical_shape()
        };
        assert_eq!(shape(&hf, "experts.gate_up"), [8, 128, 128]);
        assert_eq!(shape(&hf, "experts.down"), [8, 128, 64]);
        assert_eq!(shape(&mlx, "experts.gate"), [8, 64, 128]);
        assert_eq!(shape(&mlx, "experts.up"), [8, 64, 128]);
        assert_eq!(shape(&mlx, "experts.down"), [8, 128, 64]);
        assert_eq!(shape(&mlx, "experts.down.scales"), [8, 128, 1]);
        for checkpoint in [&hf, &mlx] {
            assert_eq!(shape(checkpoint, "router"), [8, 128]);
            assert_eq!(shape(checkpoint, "shared.up"), [64, 128]);
            assert_eq!(shape(checkpoint, "shared_gate"), [1, 128]);
        }
    }
    let router = mlx.tensor("layers.2.moe.router").unwrap();
    assert_eq!(router.packing, Some(Packing { bits: 8, group_size: 64 }));
    assert_eq!(hf.tensor("layers.0.delta.a_log").unwrap().element, ElementType::F32);
}

#[test]
fn experts_may_be_stored_one_by_one() {
    let root = changed(HF, "model.safetensors", |bytes| rewritten(&bytes, one_by_one));
    let (apart, stacked) = (Checkpoint::open(root.path()).unwrap(), open(HF));
    assert_eq!(apart.spec, stacked.spec);
    for prefix in ["layers.1", "mtp.layers.0"] {
        let stack = stacked.bytes(stacked.tensor(&format!("{prefix}.moe.experts.gate_up")).unwrap());
        let expert = |name: &str| {
            let tensor = apart.tensor(&format!("{prefix}.moe.experts.{name}")).unwrap();
            assert_eq!(tensor.shape, if name.ends_with("down") { [128, 64] } else { [64, 128] });
            apart.bytes(tensor)
        };
        let size = 64 * 128 * 2;
        assert_eq!(expert("5.gate"), &stack[10 * size..11 * size]);
        assert_eq!(expert("5.up"), &stack[11 * size..12 * size]);
        assert_eq!(expert("7.down").len(), size);
    }
    assert!(apart.tensor("layers.1.moe.experts.gate_up").is_none());
}

#[test]
fn a_missing_expert_and_a_second_form_are_named() {
    let without = |gone: &'static str| {
        changed(HF, "model.safetensors", |bytes| {
            rewritten(&bytes, |name, tensor| {
                let mut tensors = one_by_one(name, tensor);
                tensors.retain(|(name, _)| !name.ends_with(gone));
                tensors
            })
        })
    };
    let root = without("layers.2.mlp.experts.6.up_proj.weight");
    let error = Checkpoint::open(root.path()).unwrap_err().to_string();
    assert!(error.contains("1 tensor is missing: layers.2.moe.experts.6.up"), "{error}");
    let both = changed(HF, "model.safetensors", |bytes| {
        rewritten(&bytes, |name, tensor| {
            let copy = Stored { shape: tensor.shape.clone(), bytes: tensor.bytes.clone(), ..tensor };
            let mut tensors = one_by_one(name, tensor);
            if tensors.len() > 1 && name.contains("layers.0") && name.contains("language_model") {
                tensors.push((name.to_owned(), copy));
            }
            tensors
        })
    });
    let error = Checkpoint::open(both.path()).unwrap_err().to_string();
    assert!(
        error.contains("not known to this family: model.language_model.layers.0.mlp.experts.0."),
        "{error}"
    );
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for path in [HF, MLX] {
        each_is_refused(
            path,
            &[
                ("norm_topk_prob", json!(false), "norm_topk_prob is false; experts whose weights"),
                ("decoder_sparse_step", json!(2), "decoder_sparse_step is 2"),
                ("mlp_only_layers", json!([0]), "mlp_only_layers is [0]"),
                ("num_experts_per_tok", json!(9), "num_experts_per_tok is 9, but num_experts is 8"),
                ("num_experts_per_tok", json!(null), "num_experts_per_tok is missing"),
                ("num_experts", json!(16), "malformed"),
                ("num_experts", json!(4_000_000_000u32), "at most 262144 are read"),
                ("moe_intermediate_size", json!(32), "malformed"),
                ("shared_expert_intermediate_size", json!(128), "malformed"),
                ("hidden_act", json!("gelu"), "hidden_act is \"gelu\""),
                ("use_sliding_window", json!(true), "use_sliding_window is true"),
                ("attention_bias", json!(true), "attention_bias is true"),
                ("attn_output_gate", json!(false), "attn_output_gate is false"),
                (
                    "mtp_use_dedicated_embeddings",
                    json!(true),
                    "mtp_use_dedicated_embeddings is true; prediction heads",
                ),
                ("model_type", json!("qwen3_5_text"), "the text model of \"qwen3_5_moe\" is qwen3_5_moe or"),
            ],
        );
        configured(path, &[("norm_topk_prob", json!(true)), ("decoder_sparse_step", json!(1))]).unwrap();
    }
}

#[test]
fn a_prediction_head_is_found_under_all_its_prefixes() {
    for prefix in ["model.mtp.", "language_model.mtp.", "model.language_model.mtp."] {
        let root = changed(HF, "model.safetensors", |bytes| {
            renamed(&bytes, |name| {
                Some(
                    name.strip_prefix("mtp.")
                        .map_or_else(|| name.to_owned(), |name| format!("{prefix}{name}")),
                )
            })
        });
        assert_eq!(Checkpoint::open(root.path()).unwrap().spec, open(HF).spec, "{prefix}");
    }
}

/// A folder as it is published for the prediction head alone: no prefix, no model around it.
fn head_alone() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let side = fs::read(Path::new(MLX).join("mtp-4bit.safetensors")).unwrap();
    let weights = renamed(&side, |name| name.strip_prefix("mtp.").map(str::to_owned));
    fs::write(root.path().join("model.safetensors"), weights).unwrap();
    let config = json!({
        "model_type": "qwen3_5_moe_mtp", "block_size": 3, "text_config": { "max_position_embeddings": 4096 },
        "quantization": { "group_size": 64, "bits": 4 },
    });
    fs::write(root.path().join("config.json"), config.to_string()).unwrap();
    root
}

#[test]
fn a_head_in_a_folder_of_its_own_says_what_it_is_and_works_where_it_says() {
    let head = head_alone();
    let error = Checkpoint::open(head.path()).unwrap_err().to_string();
    for part in ["qwen3_5_moe_mtp", "a multi-token prediction head, not a model", "as mtp.safetensors"] {
        assert!(error.contains(part), "{error}");
    }
    let (facts, problem) = survey(head.path()).unwrap();
    assert_eq!(problem.unwrap().to_string(), error);
    assert_eq!((facts.supported, facts.mtp, facts.formats.len()), (false, true, 0));
    let root = changed(MLX, "mtp.safetensors", |_| fs::read(head.path().join("model.safetensors")).unwrap());
    fs::remove_file(root.path().join("mtp-4bit.safetensors")).unwrap();
    assert_eq!(Checkpoint::open(root.path()).unwrap().spec, open(MLX).spec);
}

#[test]
fn facts_share_the_bytes_among_the_formats() {
    let facts = read_facts(Path::new(MLX)).unwrap();
    let bytes = |wanted: Option<u32>| -> u64 {
        let checkpoint = open(MLX);
        let codes = checkpoint.tensors.iter().filter(|tensor| {
            !tensor.is_mtp() && tensor.packing.is_some_and(|packing| Some(packing.bits) == wanted)
        });
        let part = |name: &str| checkpoint.tensor(name).unwrap().length;
        codes
            .map(|t| t.length + part(&format!("{}.scales", t.name)) + part(&format!("{}.biases", t.name)))
            .sum()
    };
    assert_eq!(facts.format_bytes.keys().collect::<Vec<_>>(), ["mlx-q4g64", "mlx-q8g64"]);
    assert_eq!(facts.format_bytes["mlx-q4g64"], bytes(Some(4)));
    assert_eq!(facts.format_bytes["mlx-q8g64"], bytes(Some(8)));
}

#[test]
fn facts_of_what_is_refused_are_those_of_the_headers() {
    let root = changed(MLX, "config.json", |bytes| {
        String::from_utf8(bytes).unwrap().replace("\"silu\"", "\"gelu\"").into_bytes()
    });
    let (facts, problem) = survey(root.path()).unwrap();
    assert!(problem.unwrap().to_string().contains("hidden_act is \"gelu\""));
    assert!(facts.supported && facts.spec.is_none());
    let whole = read_facts(Path::new(MLX)).unwrap();
    assert_eq!(facts.mtp_formats, whole.mtp_formats);
    assert!(facts.formats.contains(&"mlx-q4g64".to_owned()), "{:?}", facts.formats);
    assert_eq!((facts.parameters, facts.weight_bytes), (whole.parameters, whole.weight_bytes));
    assert!(facts.spec.is_none() && whole.spec.is_some());
}

#[test]
fn a_broken_tokenizer_is_a_problem_and_a_missing_one_is_not() {
    let root = changed(MLX, "tokenizer.json", |mut bytes| {
        bytes.truncate(100);
        bytes
    });
    let (facts, problem) = survey(root.path()).unwrap();
    assert!(problem.unwrap().to_string().contains("tokenizer.json does not parse"));
    assert!(facts.spec.is_some() && facts.tokenizer_size.is_none());
    fs::remove_file(root.path().join("tokenizer.json")).unwrap();
    let (facts, problem) = survey(root.path()).unwrap();
    assert!(problem.is_none() && facts.tokenizer_size.is_none());
    assert_eq!(survey(Path::new(MLX)).unwrap().0.tokenizer_size, Some(1009));
}

#[test]
fn sampling_that_is_out_of_range_is_told_before_weights_are_asked_for() {
    let root = changed(MLX, "generation_config.json", |_| br#"{"temperature": "hot"}"#.to_vec());
    let problem = survey(root.path()).unwrap().1.unwrap().to_string();
    assert!(problem.contains("temperature is \"hot\""), "{problem}");
    assert_eq!(read_facts(root.path()).unwrap_err().to_string(), problem);
}
