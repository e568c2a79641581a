use proptest::prelude::*;

use super::testing::GgufWriter;
use super::*;

fn small() -> GgufWriter {
    GgufWriter::new("llama")
        .integer("llama.block_count", 2)
        .float("llama.epsilon", 1e-5)
        .boolean("flag", true)
        .raw("small", 1, &[0xff])
        .raw("wide", 11, &(-7i64).to_le_bytes())
        .texts("tokens", &["a", "ü"])
        .integers("types", &[1, -3])
        .tensor("a", 0, &[2, 3], (0..24).collect())
        .tensor("b", 3, &[2, 32], vec![7; 40])
}

fn fault(bytes: &[u8]) -> String {
    Gguf::parse(bytes).expect_err("it is not sound").to_string()
}

#[test]
fn a_sound_file_gives_its_values_and_tensors() {
    let bytes = small().finish();
    let file = Gguf::parse(&bytes).unwrap();
    assert_eq!(file.version, 3);
    let value = |key: &str| file.metadata[key].clone();
    assert_eq!(value("general.architecture"), Value::Text("llama"));
    assert_eq!(value("llama.block_count"), Value::Unsigned(2));
    assert_eq!(value("llama.epsilon"), Value::Float(1e-5));
    assert_eq!(value("flag"), Value::Boolean(true));
    assert_eq!((value("small"), value("wide")), (Value::Signed(-1), Value::Signed(-7)));
    assert_eq!(value("tokens"), Value::Texts(vec!["a", "ü"]));
    assert_eq!(value("types"), Value::Numbers(vec![Number::Signed(1), Number::Signed(-3)]));
    let (a, b) = (&file.tensors[0], file.tensor("b").unwrap());
    assert_eq!((a.shape.as_slice(), a.element), ([2, 3].as_slice(), GgmlType::F32));
    assert_eq!(a.data, (0..24).collect::<Vec<u8>>());
    assert_eq!((b.shape.as_slice(), b.element.name()), ([2, 32].as_slice(), "Q4_1".into()));
    assert_eq!(b.data, [7; 40]);
}

#[test]
fn the_magic_and_the_version_are_checked() {
    let mut bytes = small().finish();
    for (version, wanted) in [
        (1u32.to_le_bytes(), "version 1 of the format"),
        (4u32.to_le_bytes(), "version 4 of the format"),
        (3u32.to_be_bytes(), "big-endian"),
    ] {
        bytes[4..8].copy_from_slice(&version);
        assert!(fault(&bytes).contains(wanted), "{}", fault(&bytes));
    }
    assert!(fault(b"GGML\x03\0\0\0").contains("does not begin with GGUF"));
    assert!(fault(b"").contains("magic"));
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused() {
    let mut bytes = small().finish();
    for (at, what) in [(8, "tensors"), (16, "metadata pairs")] {
        for count in [u64::MAX, 1 << 40, 60_000] {
            let kept: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            assert!(fault(&bytes).contains(&format!("claims {count} {what}")), "{}", fault(&bytes));
            bytes[at..at + 8].copy_from_slice(&kept);
        }
    }
    let long = |count: u64| [5u32.to_le_bytes().as_slice(), count.to_le_bytes().as_slice()].concat();
    let list = small().raw("huge", 9, &long(u64::MAX)).finish();
    assert!(fault(&list).contains("the list of huge has 18446744073709551615 elements"), "{}", fault(&list));
    let text = small().raw("long", 8, &u64::MAX.to_le_bytes()).finish();
    assert!(fault(&text).contains("the value of long needs 18446744073709551615 bytes"), "{}", fault(&text));
}

#[test]
fn names_and_values_that_are_no_text_are_refused() {
    let twice = small().integer("flag", 1).finish();
    assert!(fault(&twice).contains("the metadata key flag is there twice"));
    let twice = small().tensor("a", 0, &[1], vec![0; 4]).finish();
    assert!(fault(&twice).contains("the tensor a is there twice"));
    let broken = small().raw("t", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).finish();
    assert!(fault(&broken).contains("the value of t is not UTF-8"));
    assert!(fault(&small().integer("a\nb", 1).finish()).contains("not plain text"));
    assert!(fault(&small().integer("", 1).finish()).contains("is empty"));
    assert!(fault(&small().raw("b", 7, &[2]).finish()).contains("a boolean of value 2"));
    assert!(fault(&small().raw("k", 13, &[2]).finish()).contains("type number 13"));
    let deep: Vec<u8> = [9u32.to_le_bytes().as_slice(), 1u64.to_le_bytes().as_slice()].concat().repeat(8);
    assert!(fault(&small().raw("deep", 9, &deep).finish()).contains("nested more than"));
}

#[test]
fn shapes_and_places_of_tensors_are_checked() {
    let add =
        |kind, shape: &[u64], data: usize| fault(&small().tensor("c", kind, shape, vec![0; data]).finish());
    for shape in [&[u64::MAX, u64::MAX][..], &[0], &[1 << 62, 8], &[1 << 62]] {
        assert!(add(0, shape, 4).contains("no file can hold"), "{shape:?}: {}", add(0, shape, 4));
    }
    assert!(add(0, &[1, 1, 1, 1, 1], 4).contains("5 axes"));
    assert!(add(0, &[], 4).contains("0 axes"));
    assert!(add(8, &[1, 33], 68).contains("33 columns, which blocks of 32 (Q8_0) do not fill"));
    assert!(add(0, &[1 << 40], 4).contains("said to end beyond"));
    let aligned = |value: u32| fault(&small().integer("general.alignment", value).finish());
    for alignment in [0, 24, 1 << 20] {
        assert!(aligned(alignment).contains("no power of two"), "{alignment}");
    }
    assert!(aligned(64).contains("not aligned to 64"));
    // The offset of the last tensor, set to that of the first.
    let mut bytes = small().finish();
    let at = bytes.windows(8).rposition(|window| window == 32u64.to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&0u64.to_le_bytes());
    assert!(fault(&bytes).contains("the tensors a and b overlap"), "{}", fault(&bytes));
    bytes[at..at + 8].copy_from_slice(&(u64::MAX - 31).to_le_bytes());
    assert!(fault(&bytes).contains("said to end beyond"), "{}", fault(&bytes));
}

#[test]
fn a_type_that_is_not_known_is_kept_for_the_message() {
    let bytes = small().tensor("c", 77, &[5], vec![]).finish();
    let file = Gguf::parse(&bytes).unwrap();
    assert_eq!(file.tensor("c").unwrap().element.name(), "number 77");
}

proptest! {
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((0usize..700, any::<u8>()), 0..8), cut in 0usize..700,
    ) {
        let mut bytes = small().finish();
        for (at, value) in changes {
            if at < bytes.len() {
                bytes[at] = value;
            }
        }
        if cut % 3 == 0 {
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
        }
        if let Ok(file) = Gguf::parse(&bytes) {
            let held: usize = file.tensors.iter().map(|tensor| tensor.data.len()).sum();
            prop_assert!(held <= bytes.len());
        }
    }

    #[test]
    fn words_in_place_of_lengths_never_panic(at in 0usize..700, word in prop::sample::select(vec![
        u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, 1 << 32, u32::MAX as u64, 1 << 31, 0, 1, 255, 4096,
    ])) {
        let mut bytes = small().finish();
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let _ = Gguf::parse(&bytes);
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..256)) {
        let bytes = [MAGIC.as_slice(), &3u32.to_le_bytes(), &noise].concat();
        let _ = Gguf::parse(&bytes);
    }
}
