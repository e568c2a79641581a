//! Which safetensors files make up a checkpoint.
//!
//! `model.safetensors.index.json` where there is one, else
//! `model.safetensors`, else all `model*.safetensors`; and beside them every
//! `mtp*.safetensors`, where conversions keep the multi-token prediction head.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::error::CheckpointError;
use super::folder::Folder;
use super::header::TensorFile;

const INDEX: &str = "model.safetensors.index.json";

/// The open files of a checkpoint.
#[derive(Debug)]
pub(super) struct Shards {
    /// The files of the weights proper, then the side files.
    pub(super) files: Vec<TensorFile>,
    /// Files from here on hold a multi-token prediction head only.
    pub(super) first_side_file: usize,
}

impl Shards {
    /// Opens all files and checks their headers.
    ///
    /// # Errors
    /// When a file is missing or unsound, or the index does not describe them.
    pub(super) fn open(folder: &Folder) -> Result<Shards, CheckpointError> {
        let mut files = Vec::new();
        let index = read_index(folder)?;
        let names = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>(),
            None => unindexed(folder)?,
        };
        let mut absent = Vec::new();
        for name in &names {
            match TensorFile::open(folder, name)? {
                Some(file) => files.push(file),
                None => absent.push(name.as_str()),
            }
        }
        if !absent.is_empty() {
            let problem = format!(
                "{} of its {} weight files are missing, the first is {}; download the checkpoint again",
                absent.len(),
                names.len(),
                absent[0]
            );
            return Err(CheckpointError::Files { path: folder.path().into(), problem });
        }
        if let Some(index) = index {
            check_index(folder, &index, &files)?;
        }
        let first_side_file = files.len();
        for name in folder.names()? {
            let side = name.starts_with("mtp") && name.ends_with(".safetensors") && !names.contains(&name);
            if side && let Some(file) = TensorFile::open(folder, &name)? {
                files.push(file);
            }
        }
        Ok(Shards { files, first_side_file })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }
}

/// Tensor name to file name, from the index.
fn read_index(folder: &Folder) -> Result<Option<BTreeMap<String, String>>, CheckpointError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Some(index) = folder.read_json::<Index>(INDEX, Folder::METADATA_LIMIT)? else { return Ok(None) };
    let fault = |problem: String| CheckpointError::Files { path: folder.join(INDEX), problem };
    if index.weight_map.is_empty() {
        return Err(fault("its weight_map is empty".into()));
    }
    for name in index.weight_map.values() {
        let mut components = Path::new(name).components();
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain || name.contains(['/', '\\', '\0']) || !name.ends_with(".safetensors") {
            return Err(fault(format!(
                "it names the file {name:?}; only safetensors files in the same folder are read"
            )));
        }
    }
    Ok(Some(index.weight_map))
}

/// The weight files of a folder without an index.
fn unindexed(folder: &Folder) -> Result<BTreeSet<String>, CheckpointError> {
    if folder.has("model.safetensors") {
        return Ok(BTreeSet::from(["model.safetensors".to_owned()]));
    }
    let all = folder.names()?;
    let mut names: BTreeSet<String> = all
        .iter()
        .filter(|name| name.starts_with("model") && name.ends_with(".safetensors"))
        .cloned()
        .collect();
    // model-00002-of-00005.safetensors says how many files there should be.
    if let Some(count) = names.iter().find_map(|name| shard_count(name)) {
        names.extend((1..=count).map(|shard| format!("model-{shard:05}-of-{count:05}.safetensors")));
    }
    if !names.is_empty() {
        return Ok(names);
    }
    const OTHERS: [&str; 5] = [".gguf", ".bin", ".pt", ".pth", ".npz"];
    let other = all.iter().find(|name| OTHERS.iter().any(|extension| name.ends_with(extension)));
    let problem = match other {
        Some(name) => format!(
            "it holds no model.safetensors; {name} is of a format that is not read: take a safetensors version of the model"
        ),
        None => "it holds no model.safetensors; download the checkpoint's weights".into(),
    };
    Err(CheckpointError::Files { path: folder.path().into(), problem })
}

fn shard_count(name: &str) -> Option<u32> {
    let name = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (shard, count) = name.split_once("-of-")?;
    let number = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
    };
    number(shard).and_then(|_| number(count))
}

/// Every tensor of the index must be in the file that it names.
fn check_index(
    folder: &Folder,
    index: &BTreeMap<String, String>,
    files: &[TensorFile],
) -> Result<(), CheckpointError> {
    let held: BTreeMap<&str, BTreeSet<&str>> = files
        .iter()
        .map(|file| (file.name.as_str(), file.tensors.iter().map(|tensor| tensor.name.as_str()).collect()))
        .collect();
    for (tensor, file) in index {
        if !held.get(file.as_str()).is_some_and(|tensors| tensors.contains(tensor.as_str())) {
            let problem = format!(
                "it says that {file} holds {tensor}, which it does not; the files are not of one download"
            );
            return Err(CheckpointError::Files { path: folder.join(INDEX), problem });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tensor_file(names: &[&str]) -> Vec<u8> {
        let entries: Vec<String> = names
            .iter()
            .enumerate()
            .map(|(i, name)| {
                format!(r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}"#, 4 * i, 4 * i + 4)
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + 4 * names.len(), 0);
        bytes
    }

    fn open(files: &[(&str, Vec<u8>)]) -> Result<Shards, CheckpointError> {
        let root = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(root.path().join(name), bytes).unwrap();
        }
        Shards::open(&Folder::open(root.path()).unwrap())
    }

    fn index(entries: &[(&str, &str)]) -> Vec<u8> {
        let map: BTreeMap<_, _> = entries.iter().copied().collect();
        serde_json::json!({ "weight_map": map }).to_string().into_bytes()
    }

    #[test]
    fn indexed_files_come_first_and_side_files_after_them() {
        let shards = open(&[
            (INDEX, index(&[("a", "model-1.safetensors"), ("b", "model-2.safetensors")])),
            ("model-1.safetensors", tensor_file(&["a"])),
            ("model-2.safetensors", tensor_file(&["b"])),
            ("model-3.safetensors", tensor_file(&["c"])),
            ("mtp-4bit.safetensors", tensor_file(&["d"])),
        ])
        .unwrap();
        let names: Vec<_> = shards.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model-1.safetensors", "model-2.safetensors", "mtp-4bit.safetensors"]);
        assert_eq!(shards.first_side_file, 2);
    }

    #[test]
    fn an_index_that_points_outside_is_refused() {
        for file in ["../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "x.bin", ""] {
            let error = open(&[(INDEX, index(&[("a", file)]))]).unwrap_err().to_string();
            assert!(error.contains("only safetensors files in the same folder"), "{file}: {error}");
        }
    }

    #[test]
    fn missing_shards_are_counted_with_and_without_an_index() {
        let map = index(&[("a", "model-1.safetensors"), ("b", "model-2.safetensors")]);
        let indexed = open(&[(INDEX, map), ("model-1.safetensors", tensor_file(&["a"]))]);
        let error = indexed.unwrap_err().to_string();
        assert!(error.contains("1 of its 2 weight files are missing, the first is model-2"), "{error}");
        let bare = open(&[("model-00002-of-00003.safetensors", tensor_file(&["a"]))]);
        let error = bare.unwrap_err().to_string();
        assert!(error.contains("2 of its 3 weight files are missing, the first is model-00001"), "{error}");
    }

    #[test]
    fn an_index_of_another_download_is_refused() {
        let files =
            [(INDEX, index(&[("a", "model.safetensors")])), ("model.safetensors", tensor_file(&["z"]))];
        assert!(open(&files).unwrap_err().to_string().contains("not of one download"));
    }

    #[test]
    fn other_formats_are_named() {
        let error = open(&[("model.gguf", vec![])]).unwrap_err().to_string();
        assert!(error.contains("model.gguf is of a format that is not read"), "{error}");
        assert!(open(&[]).unwrap_err().to_string().contains("download the checkpoint's weights"));
    }
}
