//! What a `config.json` alone says: whether the rest is worth having.

use std::path::Path;

use super::config::Config;
use super::error::CheckpointError;
use super::families;
use super::folder::Folder;
use crate::drafter;

/// What a configuration is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// A model of a family that this build reads.
    Model,
    /// A drafter that a model is served with.
    Drafter {
        /// What such drafters are called.
        name: &'static str,
    },
    /// The multi-token prediction head of a model, without the model.
    PredictionHead {
        /// The family that it was made for.
        family: &'static str,
    },
}

/// Reads the `config.json` of a folder, and nothing else of it.
///
/// # Errors
/// When it cannot be read, or is of a family or a kind of drafter that this build does not read.
pub fn read_kind(path: &Path) -> Result<ConfigKind, CheckpointError> {
    let config = Config::read(&Folder::open(path)?)?;
    match drafter::configured(&config) {
        None => {}
        Some(Ok(class)) => return Ok(ConfigKind::Drafter { name: class.name() }),
        Some(Err(fault)) => return Err(families::not_read(&config, fault)),
    }
    if let Some(family) = families::prediction_head_of(&config) {
        return Ok(ConfigKind::PredictionHead { family });
    }
    families::find(&config).map(|_| ConfigKind::Model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(config: &str) -> Result<ConfigKind, String> {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("config.json"), config).unwrap();
        read_kind(root.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_configuration_alone_tells_models_drafters_and_heads_apart() {
        assert_eq!(kind(r#"{"model_type": "qwen3_5"}"#), Ok(ConfigKind::Model));
        let second = r#"{"model_type": "qwen3", "dflash_config": {"selector_rank": 256}}"#;
        assert_eq!(kind(second), Ok(ConfigKind::Drafter { name: "DFlash2" }));
        let first = r#"{"model_type": "qwen3", "dflash_config": {"mask_token_id": 1}}"#;
        assert_eq!(kind(first), Ok(ConfigKind::Drafter { name: "DFlash" }));
        let other = kind(r#"{"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}"#).unwrap_err();
        assert!(other.contains("config.json: of the kind DSpark, which is not read"), "{other}");
        let head = kind(r#"{"model_type": "qwen3_5_mtp"}"#);
        assert_eq!(head, Ok(ConfigKind::PredictionHead { family: "qwen3_5" }));
        assert!(kind(r#"{"model_type": "new"}"#).unwrap_err().contains("model_type is \"new\""));
        assert!(kind("{}").is_err());
    }
}
