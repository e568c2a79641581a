//! Folders of drafters. Their weight files are read as those of models are.

use tensorfold::drafter::{Drafter, DrafterFiles, Target, one_line, survey};
use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::host::{DrafterSource as _, TensorSource as _};

use super::Scratch;

const FIRST: &[u8] = include_bytes!("../drafters/v1-swa.safetensors");
const SECOND: &[u8] = include_bytes!("../drafters/v2-scaled.safetensors");

/// A `config.json`, beside weights of the kind that it is of.
pub fn drafter(scratch: &Scratch, input: &[u8]) -> Result<(), String> {
    let refined = input.windows(13).any(|window| window == b"selector_rank");
    let weights = if refined { SECOND } else { FIRST };
    let folder = scratch.fill(&[("config.json", input), ("model.safetensors", weights)]);
    let looked = survey(folder).map_err(|error| error.to_string())?;
    let target = Target { hidden_size: 16, vocabulary: 16, layers: 12, embedding_rows: 16 };
    let beside = one_line(&looked.faults_with(target, Some(3)));
    assert!(!beside.contains('\n'), "{beside}");
    let faults = looked.faults();
    let drafter = match Drafter::open(folder) {
        Ok(drafter) => drafter,
        Err(error) => {
            assert!(!faults.is_empty() && looked.spec.is_none(), "what looks sound can be opened: {error}");
            return Err(error.to_string());
        }
    };
    assert_eq!((faults.as_slice(), looked.spec.as_ref()), (&[][..], Some(&drafter.spec)));
    let source = DrafterFiles::new(drafter);
    let spec = source.spec();
    assert_eq!(DrafterSpec::from_json(&spec.to_json()).expect("the border's document is sound"), *spec);
    for (index, tensor) in source.tensors().iter().enumerate() {
        let elements: u64 = tensor.shape.iter().product();
        assert_eq!(source.bytes(index).len() as u64, elements * tensor.dtype.bytes(), "{}", tensor.name);
    }
    Ok(())
}
