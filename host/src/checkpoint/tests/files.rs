//! Folders: what is missing, linked, broken or of strangers.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn a_snapshot_in_the_hubs_cache_opens_through_its_links() {
    let root = tempfile::tempdir().unwrap();
    let repository = root.path().join("models--acme--tiny");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    for folder in ["blobs", "refs", &format!("snapshots/{commit}")] {
        fs::create_dir_all(repository.join(folder)).unwrap();
    }
    fs::write(repository.join("refs/main"), commit).unwrap();
    for (index, entry) in fs::read_dir(MLX).unwrap().flatten().enumerate() {
        fs::copy(entry.path(), repository.join(format!("blobs/{index}"))).unwrap();
        let link = repository.join("snapshots").join(commit).join(entry.file_name());
        std::os::unix::fs::symlink(format!("../../blobs/{index}"), link).unwrap();
    }
    let path = root.path().as_os_str().to_owned();
    let cache = HubCache::from_variables(|name| (name == "HF_HUB_CACHE").then(|| path.clone()));
    let resolved = resolve("acme/tiny", &cache).unwrap();
    let checkpoint = Checkpoint::open(&resolved.directory).unwrap();
    assert_eq!((checkpoint.name.as_str(), checkpoint.has_mtp()), ("tiny", true));
}

#[test]
fn a_survey_tells_what_it_can_of_a_broken_checkpoint() {
    let root = changed(MLX, "config.json", |bytes| bytes);
    fs::remove_file(root.path().join("model.safetensors")).unwrap();
    let (facts, problem) = survey(root.path()).unwrap();
    assert_eq!((facts.family.as_str(), facts.context_window), ("qwen3_5", Some(4096)));
    let problem = problem.unwrap().to_string();
    assert!(problem.contains("1 of its 1 weight files are missing"), "{problem}");
    assert_eq!(read_facts(root.path()).unwrap_err().to_string(), problem);
}

#[test]
fn missing_files_say_what_to_do() {
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let root = changed(HF, name, |bytes| bytes);
        fs::remove_file(root.path().join(name)).unwrap();
        let error = Checkpoint::open(root.path()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let error = Checkpoint::open(Path::new("/absent")).unwrap_err().to_string();
    assert!(error.starts_with("/absent cannot be read"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn mutated_metadata_never_panics(
        which in 0usize..5, position: prop::sample::Index, value: u8, cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let name = ["config.json", "generation_config.json", "tokenizer_config.json",
            "model.safetensors.index.json", "tokenizer.json"][which];
        let root = changed(MLX, name, |mut bytes| {
            let at = position.index(bytes.len());
            bytes[at] = value;
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        });
        let _ = Checkpoint::open(root.path());
        let _ = read_facts(root.path());
    }

    #[test]
    fn a_mutated_header_of_weights_never_panics(
        moe: bool, position: prop::sample::Index, value: u8,
    ) {
        let path = if moe { golden!("tiny-qwen3_5_moe-mlx-4bit") } else { golden!("tiny-qwen2-mlx-4bit") };
        let root = changed(path, "model.safetensors", |mut bytes| {
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[position.index(8 + header)] = value;
            bytes
        });
        let _ = Checkpoint::open(root.path());
        let _ = survey(root.path());
    }

    #[test]
    fn keys_that_hold_anything_never_panic(which in 0usize..3, picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 1..4)) {
        let path = [golden!("tiny-llama"), golden!("tiny-qwen3_5_moe"), MLX][which];
        let anything = [
            json!(null), json!(true), json!(false), json!(-1), json!(0), json!(1), json!(3), json!(4_294_967_295u32),
            json!(u64::MAX), json!(1e300), json!(""), json!("x"), json!([]), json!({}), json!([1]), json!({ "a": 1 }),
            json!({ "rope_type": "linear", "factor": 1e308 }), json!({ "bits": 3, "x": true }),
        ];
        let config = fs::read(Path::new(path).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        for (key, value) in picks {
            let nested = config.get("text_config").is_some_and(Value::is_object);
            let section = if nested { &mut config["text_config"] } else { &mut config };
            let section = section.as_object_mut().unwrap();
            let known = ["rope_scaling", "quantization", "norm_topk_prob", "partial_rotary_factor"];
            let mut keys: Vec<String> = section.keys().cloned().collect();
            keys.extend(known.map(str::to_owned));
            section.insert(key.get(&keys).clone(), value.get(&anything).clone());
        }
        let root = changed(path, "config.json", |_| config.to_string().into_bytes());
        if let Ok(checkpoint) = Checkpoint::open(root.path()) {
            prop_assert!(checkpoint.spec.validate().is_ok());
        }
        let _ = survey(root.path());
    }
}
