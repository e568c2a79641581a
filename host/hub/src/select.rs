//! Which files of a repository a model needs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::error::{HubError, brief};
use crate::listing::{Listing, RemoteFile};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const CARD: &str = "README.md";

/// The configuration.
///
/// # Errors
/// When there is none, with what there is in its place.
pub(crate) fn config(listing: &Listing) -> Result<&RemoteFile, HubError> {
    listing.file(CONFIG).ok_or_else(|| {
        let take = "take a repository with config.json and *.safetensors files";
        let problem = match other_weights(listing) {
            Some(file) if file.ends_with(".gguf") => format!(
                "holds {file}, which is not served as it is: {take}, or download that file and make a checkpoint of it \
                 with tensorfold convert"
            ),
            Some(file) => format!("holds {file} and no config.json: {take}"),
            None => format!("holds no config.json: {take}"),
        };
        contents(listing, problem)
    })
}

/// Configuration, tokenizer, templates and what must be read before use: text, wherever it lies.
pub(crate) fn text_files(listing: &Listing, limit: u64) -> impl Iterator<Item = &RemoteFile> {
    listing.files.iter().filter(move |file| {
        let name = file.path.file_name();
        let wanted = [".json", ".jinja", ".txt"].iter().any(|end| name.ends_with(end))
            || name == CARD
            || ["LICENSE", "NOTICE"].iter().any(|start| name.starts_with(start))
            || ["tokenizer.model", "spiece.model", "tekken.json"].contains(&name);
        // Folders such as `.eval_results`, and data that only has the looks of configuration.
        wanted && !file.path.parts().any(|part| part.starts_with('.')) && file.bytes <= limit
    })
}

/// The weight files: those that the index names, else `model.safetensors`, else all `model*.safetensors`; and every
/// `mtp*.safetensors`, where conversions keep the multi-token prediction head. Other files beside them hold the same
/// weights once more, for other programs.
///
/// # Errors
/// When there are none, or the index names one that is not there.
pub(crate) fn weight_files<'a>(
    listing: &'a Listing,
    index: Option<&[u8]>,
) -> Result<Vec<&'a RemoteFile>, HubError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let is_weights =
        |file: &&RemoteFile| !file.path.is_nested() && file.path.as_str().ends_with(".safetensors");
    let named = |start: &'static str| {
        let files = listing.files.iter().filter(is_weights);
        files.filter(move |file| file.path.as_str().starts_with(start))
    };
    let mut files: Vec<&RemoteFile> = match (index, listing.file("model.safetensors")) {
        (Some(index), _) => {
            let index: Index = serde_json::from_slice(index)
                .map_err(|error| contents(listing, format!("has an {INDEX} that does not parse: {error}")))?;
            let names: BTreeSet<&String> = index.weight_map.values().collect();
            let find = |name: &&String| {
                listing.file(name).filter(is_weights).ok_or_else(|| {
                    let problem =
                        format!("has an {INDEX} that names {:?}, which it does not hold", brief(name));
                    contents(listing, problem)
                })
            };
            names.iter().map(find).collect::<Result<_, _>>()?
        }
        (None, Some(single)) => vec![single],
        (None, None) => named("model").collect(),
    };
    if files.is_empty() {
        let found = other_weights(listing)
            .map_or("holds no weights".into(), |file| format!("holds {file} and no model*.safetensors"));
        return Err(contents(listing, format!("{found}: take a repository with safetensors files")));
    }
    let side: Vec<_> = named("mtp").filter(|file| !files.contains(file)).collect();
    files.extend(side);
    Ok(files)
}

/// A weight file of a format that is not read.
fn other_weights(listing: &Listing) -> Option<String> {
    let names = listing.files.iter().map(|file| file.path.as_str());
    let ends = [".gguf", ".bin", ".pth", ".pt", ".npz", ".onnx", ".msgpack", ".h5"];
    names.filter(|name| ends.iter().any(|end| name.ends_with(end))).map(brief).next()
}

fn contents(listing: &Listing, problem: String) -> HubError {
    HubError::Contents { repository: listing.reference.to_string(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RepoPath;
    use crate::reference::Commit;

    fn listing(names: &[&str]) -> Listing {
        let mut files: Vec<_> = names
            .iter()
            .map(|name| RemoteFile { path: RepoPath::parse(name).unwrap(), bytes: 1, digest: None })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let commit = Commit::parse(&"0".repeat(40)).unwrap();
        Listing { reference: "o/n".parse().unwrap(), commit, files }
    }

    fn weights(names: &[&str], index: Option<&str>) -> Result<Vec<String>, String> {
        let listing = listing(names);
        let files = weight_files(&listing, index.map(str::as_bytes)).map_err(|error| error.to_string())?;
        Ok(files.iter().map(|file| file.path.to_string()).collect())
    }

    #[test]
    fn weights_are_those_that_the_reader_opens() {
        let all = [
            "consolidated.safetensors",
            "model-1.safetensors",
            "model-2.safetensors",
            "model-3.safetensors",
            "mtp-4bit.safetensors",
            "original/model.safetensors",
            "pytorch_model.bin",
        ];
        let index = r#"{"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}"#;
        let wanted = ["model-1.safetensors", "model-2.safetensors", "mtp-4bit.safetensors"];
        assert_eq!(weights(&all, Some(index)).unwrap(), wanted);
        assert_eq!(weights(&all, None).unwrap().len(), 4);
        let single = ["model.safetensors", "model-1.safetensors"];
        assert_eq!(weights(&single, None).unwrap(), ["model.safetensors"]);
    }

    #[test]
    fn an_index_names_only_files_that_are_there() {
        for name in
            ["model-9.safetensors", "../x.safetensors", "original/model.safetensors", "pytorch_model.bin"]
        {
            let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
            let error =
                weights(&["original/model.safetensors", "pytorch_model.bin"], Some(&index)).unwrap_err();
            assert!(error.contains("which it does not hold"), "{error}");
        }
        assert!(weights(&[], Some("{")).unwrap_err().contains("does not parse"));
        assert!(weights(&["a"], Some(r#"{"weight_map": {}}"#)).unwrap_err().contains("holds no weights"));
    }

    #[test]
    fn formats_that_are_not_read_are_named() {
        assert_eq!(
            config(&listing(&["m.Q4_0.gguf", "README.md"])).unwrap_err().to_string(),
            "o/n holds m.Q4_0.gguf, which is not served as it is: take a repository with config.json and \
             *.safetensors files, or download that file and make a checkpoint of it with tensorfold convert"
        );
        assert_eq!(
            config(&listing(&["model.onnx"])).unwrap_err().to_string(),
            "o/n holds model.onnx and no config.json: take a repository with config.json and *.safetensors files"
        );
        assert_eq!(
            weights(&["config.json", "pytorch_model.bin"], None).unwrap_err(),
            "o/n holds pytorch_model.bin and no model*.safetensors: take a repository with safetensors files"
        );
    }

    #[test]
    fn text_is_taken_and_pictures_are_not() {
        let names = [
            "config.json",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "additional/t.jinja",
            "README.md",
            "LICENSE",
            "tokenizer.model",
            ".gitattributes",
            ".eval/x.json",
            "figure.png",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "model.safetensors",
            "train.py",
        ];
        let listing = listing(&names);
        let mut found: Vec<_> = text_files(&listing, 10).map(|file| file.path.as_str()).collect();
        let mut wanted = names[..8].to_vec();
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert_eq!(text_files(&listing, 0).count(), 0, "what is too long is left");
    }
}
