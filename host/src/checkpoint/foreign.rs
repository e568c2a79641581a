//! Weights of other forms, and what to do with a folder that holds only those.

/// What stands in a folder in place of a checkpoint, and what to do; `None`
/// where nothing is known. `names` are the folder's files.
pub(super) fn advice(names: &[String]) -> Option<String> {
    let find = |extensions: &[&str]| {
        names.iter().find(|name| {
            let name = name.to_ascii_lowercase();
            extensions.iter().any(|extension| name.ends_with(extension))
        })
    };
    if let Some(name) = find(&[".gguf"]) {
        return Some(gguf(name));
    }
    if let Some(name) = find(&[".bin", ".pt", ".pth", ".ckpt"]) {
        return Some(format!(
            "{name} holds weights as PyTorch pickles them, which may run code when they are read and are not read \
             here; take a safetensors version of the model"
        ));
    }
    let name = find(&[".npz", ".h5", ".msgpack", ".onnx"])?;
    Some(format!("{name} is of a format that is not read; take a safetensors version of the model"))
}

/// What to do with a GGUF file.
pub(super) fn gguf(name: &str) -> String {
    format!(
        "{name} is a GGUF file, which is not served as it is; make a checkpoint of it: tensorfold convert {name} OUTPUT"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_its_advice() {
        let advice = |names: &[&str]| advice(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        let gguf = advice(&["README.md", "m.Q4_1.GGUF", "pytorch_model.bin"]).unwrap();
        assert!(gguf.contains("tensorfold convert m.Q4_1.GGUF OUTPUT"), "{gguf}");
        assert!(advice(&["pytorch_model.bin"]).unwrap().contains("as PyTorch pickles them"));
        assert!(advice(&["weights.npz"]).unwrap().contains("weights.npz is of a format that is not read"));
        assert_eq!(advice(&["README.md", "config.json"]), None);
    }
}
