//! What the names, shapes and types of tensors prove.

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

use super::*;

type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

fn stored(bytes: &[u8]) -> Vec<Stored> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensors = file
        .iter()
        .map(|(name, view)| (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    tensors.collect()
}

fn file(tensors: &[Stored]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    serialize(views, None).unwrap()
}

/// A golden drafter with its tensors changed.
fn changed(from: &str, change: impl FnOnce(&mut Vec<Stored>)) -> tempfile::TempDir {
    let weights = |bytes: Vec<u8>| {
        let mut tensors = stored(&bytes);
        change(&mut tensors);
        Some(file(&tensors))
    };
    copy(&golden(from), |_| {}, weights)
}

fn told(from: &str, change: impl FnOnce(&mut Vec<Stored>)) -> String {
    wrong(&survey(changed(from, change).path()).unwrap())
}

fn find<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
}

/// A tensor of zeros.
fn zeros(name: &str, shape: &[usize]) -> Stored {
    let bytes = vec![0; 2 * shape.iter().product::<usize>()];
    (name.into(), Dtype::BF16, shape.to_vec(), bytes)
}

#[test]
fn every_tensor_is_handed_on_with_its_shape_and_bytes() {
    for name in ["v1-full", "v1-swa", "v2-qwen", "v2-scaled"] {
        let drafter = Drafter::open(&golden(name)).unwrap();
        let layers = drafter.spec.layers.len();
        let wanted = if drafter.spec.refinement.is_some() { 15 * layers + 6 } else { 11 * layers + 3 };
        assert_eq!(drafter.tensors.len(), wanted, "{name}");
        let bytes = fs::read(golden(name).join("model.safetensors")).unwrap();
        let tensors = stored(&bytes);
        for tensor in &drafter.tensors {
            assert!(tensors.iter().any(|stored| stored.3 == drafter.bytes(tensor)), "{}", tensor.name);
        }
        let fc = drafter.tensors.iter().find(|tensor| tensor.name == "fc").unwrap();
        let hidden = u64::from(drafter.spec.hidden_size);
        assert_eq!(fc.shape, [hidden, hidden * drafter.spec.taps.len() as u64]);
        assert_eq!(DrafterFiles::new(drafter).drafter().spec.formats, ["bf16"]);
    }
}

#[test]
fn the_border_gets_what_the_files_hold() {
    use tensorfold_plugin_api::host::{DrafterSource as _, TensorSource as _};
    let source = DrafterFiles::new(Drafter::open(DEMO.as_ref()).unwrap());
    assert_eq!(source.spec().taps, [1, 4, 7, 10]);
    for (index, tensor) in source.tensors().iter().enumerate() {
        let elements: u64 = tensor.shape.iter().product();
        assert_eq!(source.bytes(index).len() as u64, elements * tensor.dtype.bytes(), "{}", tensor.name);
    }
}

#[test]
fn names_of_other_exports_mean_the_same() {
    let renamed = changed("v2-qwen", |tensors| {
        for tensor in tensors {
            tensor.0 = format!("model.{}", tensor.0.replace("layers.0.", "midlayer."));
        }
    });
    let drafter = Drafter::open(renamed.path()).unwrap();
    assert_eq!(drafter.spec, Drafter::open(&golden("v2-qwen")).unwrap().spec);
}

#[test]
fn other_types_of_floats_are_read_and_told() {
    let halves = changed("v1-full", |tensors| {
        for tensor in tensors {
            tensor.1 = Dtype::F16;
        }
    });
    assert_eq!(survey(halves.path()).unwrap().formats, ["f16"]);
    let wide = changed("v1-full", |tensors| {
        for tensor in tensors {
            tensor.1 = Dtype::F32;
            tensor.3 = tensor.3.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
        }
    });
    assert_eq!(survey(wide.path()).unwrap().formats, ["f32"]);
    let eight = told("v1-full", |tensors| {
        let fc = find(tensors, "fc.weight");
        (fc.1, fc.3) = (Dtype::F8_E4M3, vec![0; fc.3.len() / 2]);
    });
    assert!(eight.contains("fc.weight has elements of type F8_E4M3"), "{eight}");
}

/// Packed in groups of 32 with 4 bits: 128 columns are 16 words of codes and 4 scales.
fn pack(tensors: &mut Vec<Stored>, module: &str) {
    let weight = find(tensors, &format!("{module}.weight"));
    let (rows, columns) = (weight.2[0], weight.2[1]);
    *weight = (weight.0.clone(), Dtype::U32, vec![rows, columns / 8], vec![0; rows * columns / 2]);
    for part in ["scales", "biases"] {
        tensors.push(zeros(&format!("{module}.{part}"), &[rows, columns / 32]));
    }
}

#[test]
fn matrices_in_mlxs_form_are_three_tensors() {
    let packed = changed("v2-qwen", |tensors| {
        let matrices: Vec<String> = tensors
            .iter()
            .filter(|tensor| tensor.2.len() == 2 && !tensor.0.contains("codebook"))
            .filter_map(|tensor| tensor.0.strip_suffix(".weight").map(str::to_owned))
            .collect();
        assert_eq!(matrices.len(), 2 * 9 + 2);
        for module in &matrices {
            pack(tensors, module);
        }
    });
    let drafter = Drafter::open(packed.path()).unwrap();
    assert_eq!(drafter.spec.formats, ["mlx-q4g32"]);
    let parts: Vec<&str> = drafter.tensors.iter().take(3).map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(parts, ["fc", "fc.scales", "fc.biases"]);
    let mixed = changed("v2-qwen", |tensors| pack(tensors, "layers.1.mlp.up_proj"));
    assert_eq!(survey(mixed.path()).unwrap().formats, ["bf16", "mlx-q4g32"]);
    let torn = told("v2-qwen", |tensors| {
        pack(tensors, "layers.1.mlp.up_proj");
        tensors.pop();
    });
    assert!(torn.contains("missing: layers.1.ffn.up.biases"), "{torn}");
}

#[test]
fn tensors_of_other_drafters_are_named() {
    for (name, kind) in [
        ("markov_w1.weight", "a DSpark drafter (markov_w1.weight)"),
        ("confidence_head.proj.weight", "a DSpark drafter"),
        ("prefix_gru.weight_ih_l0", "a Domino drafter"),
        ("embed_proj.weight", "a Domino drafter"),
        ("d2t", "an EAGLE3 drafter"),
        ("mtp.fc.weight", "a multi-token prediction head"),
    ] {
        let told = told("v2-qwen", |tensors| tensors.push(zeros(name, &[4, 4])));
        assert!(
            told.contains("configured as a DFlash2 drafter, with tensors of ") && told.contains(kind),
            "{told}"
        );
    }
}

#[test]
fn unknown_tensors_are_refused_and_missing_ones_listed() {
    for name in [
        "embed_tokens.weight",
        "lm_head.weight",
        "layers.0.self_attn.g_proj.weight",
        "layers.1.self_attn.sinks",
        "layers.2.input_layernorm.weight",
        "layers.0.self_attn.q_proj.bias",
        "encoder.fc.weight",
    ] {
        let told = told("v2-qwen", |tensors| tensors.push(zeros(name, &[4, 4])));
        assert!(told.contains("1 tensor is not known") && told.contains(name), "{name}: {told}");
    }
    // A second version that is configured as a first one is not run as one.
    let downgraded = copy(
        &golden("v2-qwen"),
        |config| {
            config["architectures"][0] = "DFlashDraftModel".into();
            let own = config["dflash_config"].as_object_mut().unwrap();
            own.retain(|key, _| !recognise::REFINEMENT.contains(&key.as_str()));
        },
        Some,
    );
    let downgraded = survey(downgraded.path()).unwrap();
    assert_eq!(downgraded.class, Class::Dflash);
    assert!(wrong(&downgraded).contains("11 tensors are not known"), "{}", wrong(&downgraded));
    let both = told("v2-qwen", |tensors| {
        tensors.retain(|tensor| tensor.0 != "hidden_norm.weight");
        tensors.push(zeros("surprise", &[1]));
    });
    assert!(both.contains("missing: hidden_norm") && both.contains("surprise"), "{both}");
}

#[test]
fn shapes_are_those_of_the_configuration() {
    let fewer = told("v2-qwen", |tensors| *find(tensors, "fc.weight") = zeros("fc.weight", &[128, 384]));
    assert_eq!(fewer, "its fc.weight reads 3 layers of the target, its config lists 4");
    for (name, shape) in [
        ("norm.weight", &[127][..]),
        ("layers.0.attention_conv.base_kernel", &[2, 3, 128]),
        ("layers.1.mlp_conv.kernel_projection.weight", &[16, 128]),
        ("candidate_selector.successor_codebook", &[1000, 16]),
        ("layers.0.self_attn.k_norm.weight", &[64]),
    ] {
        let told = told("v2-qwen", |tensors| *find(tensors, name) = zeros(name, shape));
        assert!(told.contains(&format!("{name} has the shape")), "{name}: {told}");
    }
    // Sizes that no file has are no sizes of memory either.
    let vast = configured(&golden("v2-qwen"), |config| {
        config["num_attention_heads"] = 4_294_967_294_u32.into();
        config["num_key_value_heads"] = 2.into();
        config["head_dim"] = 4_294_967_294_u32.into();
    });
    assert!(wrong(&vast).contains("malformed"), "{}", wrong(&vast));
}
