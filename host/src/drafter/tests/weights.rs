//! Files of weights that are missing, cut or of another kind; and that no weight has to be there for a refusal.

use super::*;

#[test]
fn what_does_not_fit_is_told_without_a_weight() {
    // The header alone, in a file that claims to hold more; then no file.
    let header = |bytes: Vec<u8>| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Some(bytes[..8 + length].to_vec())
    };
    let target = Target { hidden_size: 160, vocabulary: 1024, layers: 16, embedding_rows: 1024 };
    for (weights, wanted) in [
        (copy(&golden("v2-qwen"), |_| {}, header), "it may be incomplete"),
        (copy(&golden("v2-qwen"), |_| {}, |_| None), "it holds no model.safetensors"),
    ] {
        let survey = survey(weights.path()).unwrap();
        let told = one_line(&survey.faults_with(target, None));
        assert!(told.starts_with("hidden size 128, but the target's is 160; "), "{told}");
        assert!(told.contains(wanted), "{told}");
        assert!(Drafter::open(weights.path()).unwrap_err().to_string().contains(wanted));
        assert_eq!((survey.class, survey.spec), (Class::Dflash2, None));
    }
}

#[test]
fn a_header_is_enough_for_everything_that_is_told() {
    // As long as the file and with nothing behind the header: what a look at the Hub leaves.
    let sparse = |mut bytes: Vec<u8>| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + length..].fill(0);
        Some(bytes)
    };
    let looked_at = copy(&golden("v2-qwen"), |_| {}, sparse);
    let (found, whole) = (survey(looked_at.path()).unwrap(), survey(&golden("v2-qwen")).unwrap());
    assert!(found.spec.is_some());
    assert_eq!((found.spec, found.formats, found.parameters), (whole.spec, whole.formats, whole.parameters));
}

#[test]
fn shards_are_read_by_their_index_and_checked_against_it() {
    let from = golden("v2-scaled");
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let root = copy(&from, |_| {}, |_| None);
    let mut map = serde_json::Map::new();
    for (shard, name) in
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].iter().enumerate()
    {
        let tensors = file.iter().enumerate().filter(|(index, _)| index % 2 == shard);
        let part: Vec<_> = tensors.map(|(_, tensor)| tensor).collect();
        map.extend(part.iter().map(|(tensor, _)| ((*tensor).to_owned(), (*name).into())));
        fs::write(root.path().join(name), safetensors::serialize(part, None).unwrap()).unwrap();
    }
    let index = root.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let drafter = Drafter::open(root.path()).unwrap();
    assert_eq!(drafter.spec, Drafter::open(&from).unwrap().spec);
    map.insert("fc.weight".into(), "model-00003-of-00002.safetensors".into());
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let told = wrong(&survey(root.path()).unwrap());
    assert!(told.contains("1 of its 3 weight files are missing"), "{told}");
}

#[test]
fn a_side_file_is_no_part_of_a_drafter() {
    let root = copy(&golden("v1-full"), |_| {}, Some);
    fs::copy(golden("v1-swa").join("model.safetensors"), root.path().join("mtp.safetensors")).unwrap();
    let told = wrong(&survey(root.path()).unwrap());
    assert!(told.contains("is stored twice"), "{told}");
}

#[test]
fn an_embedding_of_the_mask_is_not_dropped() {
    let root = copy(&golden("v1-full"), |_| {}, Some);
    assert_eq!(wrong(&survey(root.path()).unwrap()), "");
    fs::write(root.path().join("mask_embedding.pt"), "x").unwrap();
    let told = wrong(&survey(root.path()).unwrap());
    assert!(told.contains("mask_embedding.pt holds an embedding of its mask"), "{told}");
}

#[test]
fn a_gguf_file_is_not_said_to_be_convertible() {
    let root = copy(&golden("v1-full"), |_| {}, |_| None);
    fs::write(root.path().join("drafter-Q8_0.gguf"), "GGUF").unwrap();
    let told = wrong(&survey(root.path()).unwrap());
    assert!(told.contains("drafter-Q8_0.gguf is a GGUF file, of which drafters are not read"), "{told}");
    assert!(!told.contains("convert"), "{told}");
}

#[test]
fn a_folder_without_a_configuration_is_no_drafter() {
    let root = tempfile::tempdir().unwrap();
    assert!(survey(root.path()).unwrap_err().to_string().contains("config.json is missing"));
    assert!(recognise(root.path()).is_err());
    assert_eq!(recognise(&golden("v1-swa")).unwrap().class, Class::Dflash);
}
