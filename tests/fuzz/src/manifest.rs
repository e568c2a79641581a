//! Plugins before they are loaded: library files and manifests.

use tensorfold::plugins::image::{self, FileIdentity};
use tensorfold_plugin_api::manifest::Manifest;

/// A library file, when it begins as one, else a manifest.
pub fn manifest(input: &[u8]) -> Result<(), String> {
    if !input.starts_with(b"\x7fELF") {
        return parse(input);
    }
    let identity =
        FileIdentity { device: 0, inode: 0, size: input.len() as u64, modified_ns: 0, changed_ns: 0 };
    match image::parse_bytes(input, identity) {
        Err(error) => Err(error.to_string()),
        Ok(image) => {
            image.glibc_needed();
            image.target.is_native();
            assert!(!serde_json::to_string(&image).expect("an image has a JSON form").is_empty());
            parse(&image.manifest.ok_or("no manifest")?)
        }
    }
}

fn parse(input: &[u8]) -> Result<(), String> {
    let parsed = match Manifest::parse(input, "tensorfold_plugin.toml") {
        Ok(parsed) => parsed,
        Err(errors) => {
            assert!(errors.iter().all(|error| !error.to_string().is_empty()));
            return Err(errors.to_string());
        }
    };
    assert!(parsed.manifest.means_the_same_as(&parsed.manifest));
    if let Err(errors) = parsed.strict() {
        assert!(errors.iter().next().is_some());
    }
    for family in
        parsed.manifest.families.iter().map(|family| family.model_type.as_str()).chain(["", "llama"])
    {
        parsed.manifest.formats_for(family);
        parsed.manifest.limits_for(family);
        parsed.manifest.drafters_for(family);
    }
    for option in parsed.manifest.options.values() {
        for text in ["", "0", "-1", "true", "1e9", "99999999999999999999"] {
            if let Err(error) = option.kind.read(text) {
                assert!(!error.to_string().is_empty());
            }
        }
        assert!(!option.kind.allowed().is_empty());
    }
    Ok(())
}
