//! What a configuration says beside sizes.

use serde_json::json;
use tensorfold_plugin_api::drafter_spec::RefinementSpec;

use super::*;

fn layers(survey: &Survey) -> Vec<(Option<u32>, bool)> {
    let spec = survey.spec.as_ref().unwrap_or_else(|| panic!("{}", wrong(survey)));
    spec.layers.iter().map(|layer| (layer.window, layer.causal)).collect()
}

#[test]
fn the_published_forms_are_read_to_the_last_field() {
    let full = survey(&golden("v1-full")).unwrap();
    assert_eq!(layers(&full), [(None, false), (None, false)]);
    let spec = full.spec.unwrap();
    assert_eq!((full.class, full.target_layers, spec.block_size), (Class::Dflash, Some(8), 8));
    assert_eq!((&spec.taps[..], spec.mask_token, spec.rope.theta), (&[1, 3, 5][..], 1021, 1e6));
    assert_eq!((spec.refinement, spec.logit_softcap), (None, None));

    let sliding = survey(&golden("v1-swa")).unwrap();
    assert_eq!(layers(&sliding), [(Some(16), true), (None, false)]);
    assert_eq!(sliding.spec.unwrap().logit_softcap, Some(15.0));

    let second = survey(&golden("v2-qwen")).unwrap();
    assert_eq!(layers(&second), [(Some(16), false), (Some(16), false)]);
    let refinement = RefinementSpec {
        convolution_kernel: 2,
        convolution_group: 16,
        selector_rank: 16,
        selector_candidates: 16,
    };
    assert_eq!(second.spec.unwrap().refinement, Some(refinement));

    let scaled = survey(&golden("v2-scaled")).unwrap();
    assert_eq!(layers(&scaled), [(Some(12), true), (None, true)]);
    let spec = scaled.spec.unwrap();
    assert_eq!((spec.embedding_scale, spec.output_multiplier, spec.logit_softcap), (1.5, 0.2, Some(20.0)));
    assert_eq!((spec.heads, spec.key_value_heads, spec.head_size, spec.block_size), (6, 3, 16, 6));
}

#[test]
fn the_demo_models_drafter_is_whole() {
    let demo = survey(DEMO.as_ref()).unwrap();
    assert_eq!((wrong(&demo), demo.warnings.len()), (String::new(), 0));
    assert_eq!((demo.class, demo.formats.as_slice()), (Class::Dflash2, &["bf16".to_owned()][..]));
    assert_eq!((demo.block_size(), demo.taps(), demo.target_layers), (Some(8), Some(4), Some(12)));
    assert!(!demo.pruned_vocabulary && demo.parameters > 0 && demo.weight_bytes > 2 * demo.parameters);
}

#[test]
fn causality_has_one_precedence() {
    let with = |keys: &[(&str, Value)], nested: Option<bool>| {
        let survey = configured(&golden("v1-swa"), |config| {
            for (key, value) in keys {
                config[*key] = value.clone();
            }
            if let Some(causal) = nested {
                config["dflash_config"]["causal"] = causal.into();
            }
        });
        layers(&survey).into_iter().map(|(_, causal)| causal).collect::<Vec<_>>()
    };
    let top = |causal: bool| [("is_causal", json!(causal))];
    assert_eq!(with(&[], None), [true, false]);
    assert_eq!(with(&[], Some(true)), [true, true]);
    assert_eq!(with(&[], Some(false)), [false, false]);
    assert_eq!(with(&top(false), Some(true)), [false, false]);
    assert_eq!(with(&top(true), Some(false)), [true, true]);
    assert_eq!(with(&top(true), None), [true, true]);
}

#[test]
fn a_window_that_is_switched_off_is_dropped_and_told() {
    let sliding = golden("v1-swa");
    let off = configured(&sliding, |config| config["use_sliding_window"] = false.into());
    assert_eq!(layers(&off), [(None, true), (None, false)]);
    assert!(off.warnings[0].contains("use_sliding_window is false"), "{:?}", off.warnings);
    let unsaid = configured(&sliding, |config| config["use_sliding_window"] = Value::Null);
    assert_eq!(layers(&unsaid), [(Some(16), true), (None, false)]);
    assert!(unsaid.warnings[0].contains("the window is kept"), "{:?}", unsaid.warnings);
    let narrow = configured(&sliding, |config| config["sliding_window"] = 1.into());
    assert_eq!(wrong(&narrow), "sliding_window 1; at least 2 is needed");
}

#[test]
fn what_the_target_had_of_rotary_positions_is_ignored_and_told() {
    for key in ["rope_parameters", "top"] {
        let survey = configured(&golden("v2-qwen"), |config| match key {
            "top" => config["partial_rotary_factor"] = 0.25.into(),
            _ => config[key]["partial_rotary_factor"] = 0.25.into(),
        });
        assert_eq!(survey.warnings, ["partial_rotary_factor 0.25 is ignored: whole heads turn"]);
        assert_eq!(survey.spec.unwrap().rope.rotary_dimensions, 32);
    }
    let triples = configured(&golden("v2-qwen"), |config| {
        config["rope_parameters"]["mrope_section"] = json!([11, 11, 10]);
    });
    assert_eq!(wrong(&triples), "");
}

#[test]
fn the_nested_value_wins_in_every_field_that_may_stand_twice() {
    let survey = configured(&golden("v2-scaled"), |config| {
        for (key, value) in [
            ("block_size", json!(1)),
            ("mask_token_id", json!(5000)),
            ("target_layer_ids", json!([9])),
            ("selector_rank", json!(3)),
            ("input_embedding_scale", json!(9.0)),
            ("output_multiplier", json!(9.0)),
            ("final_logit_softcapping", json!(9.0)),
        ] {
            config[key] = value;
        }
    });
    let unchanged = super::survey(&golden("v2-scaled")).unwrap();
    assert!(unchanged.spec.is_some());
    assert_eq!(survey.spec, unchanged.spec);
}

#[test]
fn fields_may_all_be_flat() {
    let nested = golden("v2-qwen");
    let flat = configured(&nested, |config| {
        let own = config.as_object_mut().unwrap().remove("dflash_config").unwrap();
        for (key, value) in own.as_object().unwrap() {
            config[key] = value.clone();
        }
    });
    assert_eq!(flat.spec, survey(&nested).unwrap().spec);
    assert!(flat.spec.is_some(), "{}", wrong(&flat));
}

#[test]
fn absent_and_neutral_values_are_as_good_as_the_usual_ones() {
    let usual = survey(&golden("v1-full")).unwrap().spec;
    assert!(usual.is_some());
    for (key, value) in [
        ("head_dim", Value::Null),
        ("final_logit_softcapping", json!(0)),
        ("final_logit_softcapping", json!(0.0)),
        ("input_embedding_scale", json!(1)),
        ("layer_types", Value::Null),
        ("draft_vocab_size", json!(1024)),
        ("model_type", Value::Null),
        ("rope_scaling", json!({"rope_type": "default"})),
    ] {
        let survey = configured(&golden("v1-full"), |config| config[key] = value.clone());
        assert_eq!(survey.spec, usual, "{key} {value}: {}", wrong(&survey));
    }
    let own_heads = configured(&golden("v1-full"), |config| config["num_key_value_heads"] = Value::Null);
    assert!(wrong(&own_heads).contains("k_proj.weight has the shape [64, 128]; [128, 128] is wanted"));
}

#[test]
fn a_block_is_of_sixteen_rows_where_nothing_says_it() {
    let survey = configured(&golden("v1-full"), |config| config["block_size"] = Value::Null);
    assert_eq!(survey.spec.unwrap().block_size, 16);
}

/// Each change is told with these words; without it nothing is.
#[test]
fn each_value_that_is_not_computed_is_refused() {
    let second = golden("v2-qwen");
    assert_eq!(wrong(&survey(&second).unwrap()), "");
    let missing = "a DFlash2 config without";
    for (place, key, value, wanted) in [
        ("", "hidden_size", Value::Null, &*format!("{missing} hidden_size")),
        ("", "vocab_size", Value::Null, &*format!("{missing} vocab_size")),
        ("", "rms_norm_eps", Value::Null, &*format!("{missing} rms_norm_eps")),
        ("", "intermediate_size", Value::Null, &*format!("{missing} intermediate_size")),
        ("", "num_hidden_layers", Value::Null, &*format!("{missing} num_hidden_layers")),
        ("", "num_attention_heads", Value::Null, &*format!("{missing} num_attention_heads")),
        ("dflash_config", "selector_rank", Value::Null, &*format!("{missing} selector_rank")),
        ("", "hidden_size", json!(-1), "hidden_size is -1; a positive integer is needed"),
        ("", "hidden_size", json!(5_000_000_000_u64), "hidden_size is 5000000000; a positive integer"),
        ("", "num_hidden_layers", json!(4_000_000_000_u64), "num_hidden_layers 4000000000; at most 4096"),
        ("", "rms_norm_eps", json!(0), "rms_norm_eps is 0; a number above 0"),
        ("", "layer_types", json!("full"), "layer_types is \"full\"; a list is needed"),
        ("", "num_key_value_heads", json!(3), "4 heads of 32 over 3 key/value heads"),
        ("", "num_target_layers", json!("16"), "num_target_layers is \"16\"; a positive integer"),
        ("", "final_logit_softcapping", json!(-1.0), "final_logit_softcapping is -1; a number above 0"),
        ("", "attention_bias", json!(true), "attention_bias is true; biases of attention"),
        ("", "mlp_bias", json!(true), "mlp_bias is true"),
        ("", "is_neox_style", json!(false), "is_neox_style is false; rotary pairs of neighbouring"),
        ("", "hidden_act", json!("gelu"), "hidden_act is \"gelu\"; only \"silu\""),
        ("", "model_type", json!("mimo"), "model_type is \"mimo\"; drafters with layers of qwen3"),
        ("", "rope_scaling", json!({"rope_type": "yarn", "factor": 4}), "rope_scaling.rope_type is \"yarn\""),
        ("", "rope_parameters", json!({}), "rope_theta is missing"),
        ("", "is_causal", json!("yes"), "is_causal is \"yes\"; true or false is needed"),
        ("", "draft_vocab_size", json!(512), "draft_vocab_size 512: a part of a vocabulary"),
        ("", "quantization", json!({"bits": 7}), "quantization.bits is 7"),
        ("dflash_config", "causal", json!(1), "dflash_config.causal is 1; true or false"),
        ("dflash_config", "mask_token_id", json!(-3), "mask_token_id is -3; a number from 0 up"),
        (
            "dflash_config",
            "target_layer_ids",
            json!([]),
            "target_layer_ids is []; a list of the target's layers",
        ),
        ("dflash_config", "target_layer_ids", json!([1.5]), "target_layer_ids holds 1.5"),
        ("dflash_config", "target_layer_ids", json!([-1, 2, 5, 8]), "taps layer -1; the target's last is 15"),
        ("dflash_config", "output_multiplier", json!(-0.5), "output_multiplier is -0.5; a number above 0"),
        ("dflash_config", "selector_rank", json!(0), "selector_rank is 0; a positive integer"),
        (
            "dflash_config",
            "selector_top_k",
            json!(1025),
            "selector_top_k 1025 is more than its vocabulary of 1024",
        ),
        ("dflash_config", "conv_kernel_size", json!(9), "conv_kernel_size 9 is more than its block of 8"),
    ] {
        let survey = configured(&second, |config| match place {
            "" => config[key] = value.clone(),
            place => config[place][key] = value.clone(),
        });
        let told = wrong(&survey);
        assert!(told.contains(wanted), "{key} {value}: wanted {wanted:?} in {told:?}");
        assert_eq!(survey.spec, None, "{key} {value}");
    }
}

#[test]
fn heads_that_do_not_divide_the_width_must_say_their_size() {
    let survey = configured(&golden("v2-qwen"), |config| {
        (config["head_dim"], config["num_attention_heads"]) = (Value::Null, 3.into());
    });
    assert_eq!(wrong(&survey), "no head_dim, and 128 dimensions do not divide into 3 heads");
}

#[test]
fn other_kinds_are_refused_by_name() {
    for (document, wanted) in [
        (json!({"architectures": ["Qwen3DSparkModel"]}), "of the kind DSpark, which is not read"),
        (json!({"architectures": ["LlamaForCausalLMEagle3"]}), "of the kind EAGLE3, which is not read"),
        (json!({"architectures": ["EagleLlamaForCausalLM"]}), "of the kind EAGLE, which is not read"),
        (
            json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}),
            "a whole model and no drafter",
        ),
        (
            json!({"architectures": ["Qwen3ForCausalLM"], "mtp_num_hidden_layers": 1}),
            "a whole model, which drafts for itself with its own head",
        ),
        (
            json!({"architectures": ["XForConditionalGeneration"], "text_config": {"num_nextn_predict_layers": 2}}),
            "a whole model, which drafts for itself with its own head",
        ),
        (json!({"model_type": "qwen3_5_mtp"}), "a multi-token prediction head"),
        (json!({"speculators_model_type": "dflash"}), "a DFlash drafter in the speculators format"),
        (json!({"speculators_model_type": "peagle"}), "a P-EAGLE drafter in the speculators format"),
        (
            json!({"speculators_config": {"algorithm": "nova"}}),
            "with the algorithm \"nova\", which is not known",
        ),
        (json!({"dflash_config": {"markov_rank": 64}}), "with a Markov head (markov_rank)"),
        (json!({"dflash_config": {"projector_type": "gru"}}), "projector_type \"gru\" is of no drafter"),
        (json!({"dflash_config": "yes"}), "dflash_config is \"yes\"; an object is needed"),
        (json!({}), "neither a drafter's nor a model's"),
    ] {
        let survey = configured(&golden("v2-qwen"), |config| *config = document.clone());
        let told = wrong(&survey);
        assert!(told.contains(wanted) && survey.faults().len() == 1, "{document}: {told}");
    }
}
