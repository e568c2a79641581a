//! Folders: what is missing, linked, broken or of strangers.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

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
}
