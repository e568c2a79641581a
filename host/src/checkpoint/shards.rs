//! Which safetensors files make up a checkpoint.
//!
//! Those that `model.safetensors.index.json` names where there is one, else
//! all `model*.safetensors`; and beside them every `mtp*.safetensors`, where
//! conversions keep the multi-token prediction head. A folder with more weights
//! than the index knows is of two downloads, and is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::error::CheckpointError;
use super::folder::Folder;
use super::foreign;
use super::header::TensorFile;

const INDEX: &str = "model.safetensors.index.json";

/// The open files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Shards {
    /// The files of the weights proper, then the side files.
    pub(crate) files: Vec<TensorFile>,
    /// Files from here on hold a multi-token prediction head only.
    pub(crate) first_side_file: usize,
}

impl Shards {
    /// Opens all files and checks their headers.
    ///
    /// # Errors
    /// When a file is missing or unsound, or the index does not describe them.
    pub(crate) fn open(folder: &Folder) -> Result<Shards, CheckpointError> {
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
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }
}

/// The files of a checkpoint that are not in its folder, by name. Only what is
/// there is looked at: unsound files are not missing ones.
pub(crate) fn missing(folder: &Folder) -> Vec<String> {
    let mut names = BTreeSet::from(["config.json".to_owned()]);
    match read_index(folder) {
        Ok(Some(index)) => names.extend(index.into_values()),
        Ok(None) => match unindexed(folder) {
            Ok(weights) => names.extend(weights),
            Err(_) => names.extend(["model.safetensors".to_owned()]),
        },
        // It is there, and does not say what else should be.
        Err(_) => {}
    }
    names.retain(|name| !folder.has(name));
    names.into_iter().collect()
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

/// The weight files of a folder without an index. A tensor that two of them
/// hold is refused when tensors are named.
fn unindexed(folder: &Folder) -> Result<BTreeSet<String>, CheckpointError> {
    let all = folder.names()?;
    let mut names: BTreeSet<String> = all.iter().filter(|name| is_weight_file(name)).cloned().collect();
    // model-00002-of-00005.safetensors says how many files there should be.
    if let Some(count) = names.iter().find_map(|name| shard_count(name)) {
        names.extend((1..=count).map(|shard| format!("model-{shard:05}-of-{count:05}.safetensors")));
    }
    if !names.is_empty() {
        return Ok(names);
    }
    let advice = foreign::advice(&all).unwrap_or_else(|| "download the checkpoint's weights".into());
    let problem = format!("it holds no model.safetensors; {advice}");
    Err(CheckpointError::Files { path: folder.path().into(), problem })
}

fn is_weight_file(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

fn shard_count(name: &str) -> Option<u32> {
    let name = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (shard, count) = name.split_once("-of-")?;
    let number = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
    };
    number(shard).and_then(|_| number(count))
}

/// Every tensor of the index must be in the file that it names, and in no other,
/// and no weight file may lie beside those that the index names.
fn check_index(
    folder: &Folder,
    index: &BTreeMap<String, String>,
    files: &[TensorFile],
) -> Result<(), CheckpointError> {
    let fault = |problem: String| CheckpointError::Files { path: folder.join(INDEX), problem };
    let held: BTreeMap<&str, BTreeSet<&str>> = files
        .iter()
        .map(|file| (file.name.as_str(), file.tensors.iter().map(|tensor| tensor.name.as_str()).collect()))
        .collect();
    for (tensor, file) in index {
        if !held.get(file.as_str()).is_some_and(|tensors| tensors.contains(tensor.as_str())) {
            let problem = format!(
                "it says that {file} holds {tensor}, which it does not; the files are not of one download"
            );
            return Err(fault(problem));
        }
    }
    for file in files {
        let elsewhere = file.tensors.iter().find_map(|tensor| {
            index.get(&tensor.name).filter(|&named| *named != file.name).map(|named| (&tensor.name, named))
        });
        if let Some((tensor, named)) = elsewhere {
            return Err(fault(format!(
                "it says that {named} holds {tensor}, which {} holds as well",
                file.name
            )));
        }
    }
    let known: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    if let Some(other) =
        folder.names()?.iter().find(|name| is_weight_file(name) && !known.contains(name.as_str()))
    {
        let problem = format!(
            "it does not name {other}, which lies beside it; take one of them away, for only one set of weights can be meant"
        );
        return Err(fault(problem));
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
            ("tokens.safetensors", tensor_file(&["c"])),
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
    fn an_index_that_does_not_tell_everything_is_refused() {
        let map = || index(&[("a", "model-1.safetensors"), ("b", "model-2.safetensors")]);
        let two =
            [("model-1.safetensors", tensor_file(&["a"])), ("model-2.safetensors", tensor_file(&["b"]))];
        let with = |more: (&'static str, Vec<u8>)| {
            open(&[&[(INDEX, map())][..], &two, &[more]].concat()).unwrap_err().to_string()
        };
        let beside = with(("model.safetensors", tensor_file(&["a", "b"])));
        assert!(beside.contains("does not name model.safetensors, which lies beside it"), "{beside}");
        let twice = with(("model-2.safetensors", tensor_file(&["b", "a"])));
        assert!(
            twice.contains("model-1.safetensors holds a, which model-2.safetensors holds as well"),
            "{twice}"
        );
    }

    #[test]
    fn without_an_index_all_weight_files_count() {
        let shards = open(&[
            ("model.safetensors", tensor_file(&["a"])),
            ("model-extra.safetensors", tensor_file(&["b"])),
            ("other.safetensors", tensor_file(&["c"])),
        ])
        .unwrap();
        let names: Vec<_> = shards.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model-extra.safetensors", "model.safetensors"]);
    }

    #[test]
    fn other_formats_are_named() {
        let error = open(&[("model.gguf", vec![])]).unwrap_err().to_string();
        assert!(error.contains("tensorfold convert model.gguf OUTPUT"), "{error}");
        let error = open(&[("pytorch_model.bin", vec![])]).unwrap_err().to_string();
        assert!(error.contains("pytorch_model.bin holds weights as PyTorch"), "{error}");
        assert!(open(&[]).unwrap_err().to_string().contains("download the checkpoint's weights"));
    }
}
