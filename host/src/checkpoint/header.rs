//! One safetensors file: its header, read and checked without mapping it.
//!
//! The header is a stranger's word. It is believed only where every tensor's
//! range has exactly the bytes of its type and shape, the ranges follow each
//! other without gap or overlap, and the last one ends where the file ends.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::error::CheckpointError;
use super::folder::Folder;

/// Longest header that is read; the format's own limit.
const HEADER_LIMIT: u64 = 100_000_000;

/// An open safetensors file with a checked header.
#[derive(Debug)]
pub(crate) struct TensorFile {
    /// Name within the checkpoint's folder.
    pub(crate) name: String,
    /// Path for messages.
    pub(crate) path: PathBuf,
    /// The open file, so that what is mapped later is what was checked.
    pub(crate) file: File,
    /// Its length when it was checked, in bytes.
    pub(crate) length: u64,
    /// Its tensors by offset.
    pub(crate) tensors: Vec<StoredTensor>,
}

/// A tensor as a file describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// From the start of the file, in bytes. Not aligned to anything.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) length: u64,
}

impl TensorFile {
    /// Opens a file and checks its header; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be read or its header does not describe it.
    pub(crate) fn open(folder: &Folder, name: &str) -> Result<Option<TensorFile>, CheckpointError> {
        let Some((file, length)) = folder.open_file(name)? else { return Ok(None) };
        let path = folder.join(name);
        let unsound = |problem: String| CheckpointError::Safetensors { path: path.clone(), problem };
        let failed = |source| CheckpointError::Read { path: path.clone(), source };

        if length < 8 {
            return Err(unsound(format!("it has {length} bytes, fewer than the 8 of a header's length")));
        }
        let mut prefix = [0; 8];
        file.read_exact_at(&mut prefix, 0).map_err(failed)?;
        if &prefix == b"version " {
            return Err(unsound(
                "it is the pointer that git leaves of a large file; fetch the file with git lfs pull".into(),
            ));
        }
        let header_length = u64::from_le_bytes(prefix);
        if header_length > HEADER_LIMIT {
            return Err(unsound(format!(
                "its header claims {header_length} bytes; at most {HEADER_LIMIT} are read"
            )));
        }
        if header_length > length - 8 {
            return Err(unsound(format!(
                "its header claims {header_length} bytes, the whole file has {length}; it may be incomplete"
            )));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact_at(&mut header, 8).map_err(failed)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| unsound(format!("its header: {error}")))?;
        let data_start = 8 + header_length;
        let described = data_start.checked_add(metadata.data_len() as u64);
        if described != Some(length) {
            return Err(unsound(format!(
                "its header describes {} bytes of tensors, it holds {}; it may be incomplete",
                metadata.data_len(),
                length - data_start
            )));
        }
        let mut tensors: Vec<StoredTensor> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| StoredTensor {
                name,
                dtype: info.dtype,
                shape: info.shape.iter().map(|&axis| axis as u64).collect(),
                offset: data_start + info.data_offsets.0 as u64,
                length: (info.data_offsets.1 - info.data_offsets.0) as u64,
            })
            .collect();
        tensors.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        Ok(Some(TensorFile { name: name.into(), path, file, length, tensors }))
    }

    /// Reads the bytes of a small tensor.
    ///
    /// # Errors
    /// When the file changed or cannot be read.
    pub(crate) fn read(&self, tensor: &StoredTensor) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; tensor.length as usize];
        self.file
            .read_exact_at(&mut bytes, tensor.offset)
            .map_err(|source| CheckpointError::Read { path: self.path.clone(), source })?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn open(bytes: &[u8]) -> Result<TensorFile, CheckpointError> {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("model.safetensors"), bytes).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        TensorFile::open(&folder, "model.safetensors").map(Option::unwrap)
    }

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;

    #[test]
    fn a_sound_file_lists_its_tensors_by_offset() {
        let found = open(&file(TWO, 8)).unwrap();
        let start = 8 + TWO.len() as u64;
        assert_eq!(found.tensors[0].name, "a");
        assert_eq!((found.tensors[1].offset, found.tensors[1].length), (start + 4, 4));
    }

    #[test]
    fn headers_that_do_not_describe_their_file_are_refused() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 2094744\n";
        let cases: [(&str, Vec<u8>); 10] = [
            ("git lfs pull", pointer.to_vec()),
            ("fewer than the 8", vec![1, 2, 3]),
            ("header claims", u64::MAX.to_le_bytes().to_vec()),
            ("header claims 100 bytes", {
                let mut bytes = 100u64.to_le_bytes().to_vec();
                bytes.extend([b' '; 20]);
                bytes
            }),
            ("may be incomplete", file(TWO, 7)),
            ("it holds 9", file(TWO, 9)),
            ("its header", file(&TWO.replace("[4,8]", "[2,6]"), 8)),
            ("its header", file(&TWO.replace("[4,8]", "[6,10]"), 10)),
            ("its header", file(&TWO.replace("\"shape\":[2]", "\"shape\":[3]"), 8)),
            (
                "its header",
                file(
                    &TWO.replace("\"shape\":[2]", "\"shape\":[18446744073709551615,18446744073709551615]"),
                    8,
                ),
            ),
        ];
        for (wanted, bytes) in cases {
            let error = open(&bytes).unwrap_err().to_string();
            assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
        }
    }

    proptest! {
        #[test]
        fn a_mutated_file_never_panics_and_never_points_outside_itself(
            position in 0usize..160, value: u8, cut in 0usize..200,
        ) {
            let mut bytes = file(TWO, 8);
            if position < bytes.len() {
                bytes[position] = value;
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            if let Ok(found) = open(&bytes) {
                for tensor in &found.tensors {
                    prop_assert!(tensor.offset + tensor.length <= bytes.len() as u64);
                }
            }
        }
    }
}
