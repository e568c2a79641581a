//! GGUF files as checkpoints in MLX's form.
//!
//! What the format holds, MLX's affine form can hold without loss for the
//! types of blocks that it has (see `blocks`); other types are refused, and
//! so is every key, tensor or name that is not understood: a model that runs
//! with a wrong detail says wrong things.

mod keys;
mod model;
mod sentencepiece;
mod splitting;
mod tensors;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::path::Path;

use serde_json::{Value as Json, json};

use self::keys::Keys;
use self::model::{Family, Model};
use self::tokenizer::TokenizerFiles;
use super::error::ConvertError;
use super::gguf::Gguf;
use super::plan::Plan;
use super::{Options, config};

/// Plans the conversion of a parsed file.
///
/// # Errors
/// When something in it is not converted, or does not fit together.
pub(super) fn plan<'a>(path: &Path, file: &'a Gguf<'a>, options: &Options) -> Result<Plan<'a>, ConvertError> {
    build(file, options).map_err(|problem| ConvertError::source(path, problem))
}

fn build<'a>(file: &'a Gguf<'a>, options: &Options) -> Result<Plan<'a>, String> {
    let family = Family::of(file)?;
    let model = Model::read(file, family)?;
    let converted = tensors::convert(file, &model, options)?;
    let keys = Keys::new(file, family.name());
    let tokenizer = TokenizerFiles::read(&keys, model.vocabulary)?;
    let tied = file.tensor("output.weight").is_none();

    let mut document = model.config(tied, converted.element);
    if let Some(begin) = tokenizer.begin {
        document.insert("bos_token_id".into(), begin.into());
    }
    let ends = match tokenizer.ends.as_slice() {
        [one] => Json::from(*one),
        several => json!(several),
    };
    document.insert("eos_token_id".into(), ends.clone());
    if let Some(padding) = tokenizer.padding {
        document.insert("pad_token_id".into(), padding.into());
    }
    if let Some(packing) = tensors::common_packing(&converted.jobs) {
        config::add_quantization(&mut document, packing, &converted.jobs);
    }
    document.sort_keys();
    let mut generation = json!({ "eos_token_id": ends });
    for (key, id) in [("bos_token_id", tokenizer.begin), ("pad_token_id", tokenizer.padding)] {
        if let Some(id) = id {
            generation[key] = id.into();
        }
    }
    let pretty = |document: &Json| format!("{document:#}\n").into_bytes();
    Ok(Plan {
        family: family.name().into(),
        jobs: converted.jobs,
        texts: vec![
            ("config.json".into(), pretty(&Json::Object(document))),
            ("generation_config.json".into(), pretty(&generation)),
            ("tokenizer.json".into(), tokenizer.tokenizer),
            ("tokenizer_config.json".into(), pretty(&tokenizer.config)),
        ],
        notes: converted.notes,
    })
}
