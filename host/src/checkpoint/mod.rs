//! Checkpoints: from a folder of files to facts and mapped tensors.
//!
//! [`resolve()`] finds the folder that a MODEL argument names. [`read_facts`]
//! reads what a decision about a model needs, from metadata alone.
//! [`Checkpoint::open`] makes the normalised description that a plugin gets
//! and maps the weights.
//!
//! Everything in a checkpoint is a stranger's word: sizes are bounded before
//! memory is taken for them, links that leave the folder are refused, every
//! tensor's range is checked against its file, and nothing in this module
//! panics on any content. Nothing here runs code of a checkpoint, writes a
//! file, or touches the network.
//!
//! A new family is one file in `families/`.

mod config;
mod element;
mod error;
mod expected;
mod facts;
mod families;
mod folder;
mod generation;
mod header;
mod names;
mod quantization;
mod resolve;
mod shards;
mod source;
mod tensors;
mod vocabulary;

use std::path::{Path, PathBuf};

use memmap2::Mmap;
use tensorfold_plugin_api::model_spec::ModelSpec;

pub use self::element::ElementType;
pub use self::error::{CheckpointError, TensorFaults};
pub use self::facts::{Facts, read_facts, survey};
pub use self::folder::Folder;
pub use self::generation::GenerationDefaults;
pub use self::quantization::Packing;
pub use self::resolve::{HubCache, ResolveError, Resolved, resolve, resolve_for_reading};
pub use self::source::CheckpointSource;
pub use self::tensors::Tensor;
pub(crate) use self::vocabulary::TOKENIZER_LIMIT;

use self::config::Config;
use self::families::Family;
use self::generation::{GenerationConfig, stop_tokens};
use self::quantization::QuantizationTable;
use self::shards::Shards;
use self::tensors::{NamedTensors, match_tensors};
use self::vocabulary::Vocabulary;

/// Whether this host reads checkpoints of a family, spelt as in manifests.
pub fn reads_family(name: &str) -> bool {
    families::FAMILIES.iter().any(|family| family.name == name)
}

/// An open checkpoint: facts, and weights mapped into memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// The model's name: the repository's for a snapshot in the Hub cache,
    /// else the folder's.
    pub name: String,
    /// The folder.
    pub directory: PathBuf,
    /// The description that crosses the border.
    pub spec: ModelSpec,
    /// All tensors that the description asks for, from the embedding up.
    pub tensors: Vec<Tensor>,
    /// Sampling parameters that the checkpoint wants.
    pub generation: GenerationDefaults,
    /// Ids that end a reply, sorted. Empty where the checkpoint names none.
    pub stop_tokens: Vec<u32>,
    files: Vec<MappedFile>,
}

/// A weight file, mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    /// Its path, for messages.
    pub path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// The whole file. The start is aligned to a page; tensors inside are
    /// aligned to nothing.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Checkpoint {
    /// Opens the checkpoint in a folder and maps its weight files read-only.
    ///
    /// No weight is read; pages come in when they are touched. A file that
    /// another process truncates while it is mapped ends this process with
    /// SIGBUS on the next access beyond its end: replace a checkpoint's files
    /// by renaming, never by writing into them.
    ///
    /// # Errors
    /// A [`CheckpointError`] for the first thing that is missing, unsound or
    /// not supported; faults of tensors are gathered.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let folder = Folder::open(path)?;
        let config = Config::read(&folder)?;
        let family = families::find(&config)?;
        let vocabulary = Vocabulary::read(&folder)?;
        let generation = GenerationConfig::read(&folder)?;
        let stop_tokens = stop_tokens(&generation, &vocabulary, &config)?;
        let shards = Shards::open(&folder)?;
        let (spec, tensors) = describe(&folder, &config, family, &shards, Some(vocabulary.size))?;
        let files = shards.files.into_iter().map(map).collect::<Result<_, _>>()?;
        Ok(Checkpoint {
            name: folder.name(),
            directory: path.into(),
            spec,
            tensors,
            generation: generation.defaults,
            stop_tokens,
            files,
        })
    }

    /// The mapped files; [`Tensor::file`] indexes them.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// A tensor by canonical name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The stored bytes of one of this checkpoint's tensors, little-endian,
    /// aligned to nothing.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        let start = tensor.offset as usize;
        &self.files[tensor.file].bytes()[start..start + tensor.length as usize]
    }

    /// Whether the checkpoint holds a multi-token prediction head.
    pub fn has_mtp(&self) -> bool {
        self.spec.mtp.is_some()
    }

    /// Bytes of all tensors that the model uses.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.length).sum()
    }
}

/// The description of a checkpoint and its tensors. `selectable` is the
/// tokenizer's size; without it every row of the vocabulary counts.
fn describe(
    folder: &Folder,
    config: &Config,
    family: &Family,
    shards: &Shards,
    selectable: Option<u32>,
) -> Result<(ModelSpec, Vec<Tensor>), CheckpointError> {
    let table = QuantizationTable::read(config)?;
    let named = NamedTensors::new(shards, family.names);
    let mut spec = (family.describe)(config, &named, selectable)?;
    if let Some(size) = selectable.filter(|&size| size > spec.vocabulary_rows) {
        let problem = format!(
            "has {} rows, but tokenizer.json knows ids up to {}; the tokenizer belongs to another model",
            spec.vocabulary_rows,
            size - 1
        );
        return Err(CheckpointError::value(config.path(), "vocab_size", problem));
    }
    spec.validate()
        .map_err(|error| CheckpointError::Files { path: config.path().into(), problem: error.to_string() })?;
    let tensors = match_tensors(&mut spec, named, &table)
        .map_err(|faults| CheckpointError::Tensors { path: folder.path().into(), faults })?;
    Ok((spec, tensors))
}

fn map(file: header::TensorFile) -> Result<MappedFile, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: file.path.clone(), source };
    // SAFETY: the map is read-only and private to this process, which never
    // writes the file. That another process may change or truncate the file is
    // documented at `Checkpoint::open`; bytes are only ever read as plain
    // numbers, for which every bit pattern is a value.
    let map = unsafe { Mmap::map(&file.file) }.map_err(failed)?;
    if map.len() as u64 != file.length {
        let problem = format!("it had {} bytes when it was checked and has {} now", file.length, map.len());
        return Err(CheckpointError::Safetensors { path: file.path, problem });
    }
    Ok(MappedFile { path: file.path, map })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tensorfold_plugin_api::model_spec::MixerSpec;

    use super::*;

    const HF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/tiny-qwen3_5");
    const MLX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/tiny-qwen3_5-mlx-4bit");
    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo");
    const DRAFTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/demo-DFlash2");

    fn open(path: &str) -> Checkpoint {
        Checkpoint::open(Path::new(path)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A copy of a checkpoint's folder with one file changed.
    fn changed(path: &str, name: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(path).unwrap().flatten() {
            fs::copy(entry.path(), root.path().join(entry.file_name())).unwrap();
        }
        let file = root.path().join(name);
        fs::write(&file, change(fs::read(&file).unwrap_or_default())).unwrap();
        root
    }

    fn refused(path: &str, from: &str, to: &str) -> String {
        let root = changed(path, "config.json", |bytes| {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "{from}");
            text.replace(from, to).into_bytes()
        });
        Checkpoint::open(root.path()).expect_err(to).to_string()
    }

    #[test]
    fn both_forms_of_a_model_have_one_description() {
        let (hf, mlx) = (open(HF), open(MLX));
        assert_eq!(hf.spec.norm_weight_offset, 1.0);
        assert_eq!(mlx.spec.norm_weight_offset, 0.0);
        assert_eq!(hf.spec.formats, ["bf16"]);
        assert_eq!(mlx.spec.formats, ["mlx-q4g64"]);
        assert_eq!(hf.spec.mtp.as_ref().unwrap().norm_weight_offset, 1.0);
        assert_eq!(mlx.spec.mtp.as_ref().unwrap().norm_weight_offset, 0.0);
        assert_eq!((hf.spec.selectable_vocabulary, hf.spec.vocabulary_rows), (1009, 1024));
        assert_eq!((hf.spec.rope.theta, hf.spec.rope.rotary_dimensions), (1e7, 64));
        let full: Vec<_> =
            hf.spec.layers.iter().map(|layer| matches!(layer.mixer, MixerSpec::Attention(_))).collect();
        assert_eq!(full, [false, false, false, true]);
        let mut same = mlx.spec.clone();
        same.formats = hf.spec.formats.clone();
        same.norm_weight_offset = 1.0;
        same.mtp = hf.spec.mtp.clone();
        assert_eq!(same, hf.spec);
        assert_eq!(hf.stop_tokens, [1000, 1002]);
        let defaults = GenerationDefaults { temperature: 1.0, top_p: 0.95, top_k: 20, min_p: 0.0 };
        assert_eq!(hf.generation, defaults);
    }

    #[test]
    fn tensors_are_where_they_are_said_to_be() {
        let hf = open(HF);
        let conv = hf.tensor("layers.0.delta.conv").unwrap();
        assert_eq!((conv.shape.as_slice(), conv.element), ([640, 4].as_slice(), ElementType::Bf16));
        assert_eq!(hf.bytes(conv).len(), 640 * 4 * 2);
        // The convolution is not touched by the conversion to the other form.
        let mlx = open(MLX);
        assert_eq!(hf.bytes(conv), mlx.bytes(mlx.tensor("layers.0.delta.conv").unwrap()));
        let q = mlx.tensor("layers.3.attention.q").unwrap();
        assert_eq!(q.packing, Some(Packing { bits: 4, group_size: 64 }));
        assert_eq!((q.shape.as_slice(), q.logical_shape()), ([1536, 16].as_slice(), vec![1536, 128]));
        let head = mlx.tensor("mtp.fc.scales").unwrap();
        assert!(mlx.files()[head.file].path.ends_with("mtp-4bit.safetensors"));
        for checkpoint in [&hf, &mlx] {
            for tensor in &checkpoint.tensors {
                let elements: u64 = tensor.shape.iter().product();
                assert_eq!(checkpoint.bytes(tensor).len() as u64, elements * tensor.element.bytes());
            }
        }
    }

    #[test]
    fn the_demo_model_opens() {
        let demo = open(DEMO);
        assert_eq!(demo.name, "demo");
        assert!(demo.spec.tied_head && demo.has_mtp());
        assert_eq!(demo.spec.selectable_vocabulary, 8180);
        assert_eq!(demo.spec.layers.len(), 12);
        assert_eq!(demo.stop_tokens, [8170, 8172]);
        assert_eq!(demo.tensor("layers.0.delta.a_log").unwrap().element, ElementType::F32);
        assert_eq!(demo.generation.temperature, 0.7);
    }

    #[test]
    fn facts_need_no_weights() {
        let facts = read_facts(Path::new(DEMO)).unwrap();
        assert_eq!((facts.family.as_str(), facts.supported), ("qwen3_5", true));
        assert_eq!((facts.formats, facts.mtp_formats), (vec!["mlx-q4g64".into()], vec!["mlx-q4g64".into()]));
        assert_eq!((facts.mtp, facts.context_window), (true, Some(4096)));
        assert_eq!(facts.weight_bytes, 12_804_362 + 974_872);
        // 22.57 M parameters and a head of 1.72 M, says its card.
        assert!((24_280_000..24_300_000).contains(&facts.parameters), "{}", facts.parameters);
        let (drafter, problem) = survey(Path::new(DRAFTER)).unwrap();
        assert!(problem.expect("it is no model").to_string().contains("marks an external drafter"));
        assert!(read_facts(Path::new(DRAFTER)).is_err());
        assert_eq!((drafter.family.as_str(), drafter.supported), ("qwen3", false));
        assert_eq!(drafter.formats, ["bf16"]);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let drafter = Checkpoint::open(Path::new(DRAFTER)).unwrap_err().to_string();
        assert!(drafter.contains("an external drafter, not a model; name the model"), "{drafter}");
        for (from, to, wanted) in [
            (r#""model_type": "qwen3_5","#, r#""model_type": "llama","#, "supported: qwen3_5"),
            (r#""model_type": "qwen3_5","#, r#""model_type": "qwen4_exp","#, "n-gram embedding"),
            (r#""model_type": "qwen3_5","#, r#""model_type": "new","#, "model_type is \"new\"; that family"),
            (r#""rope_type": "default""#, r#""rope_type": "yarn""#, "rope_parameters.rope_type is \"yarn\""),
            (r#""hidden_act": "silu""#, r#""hidden_act": "gelu""#, "hidden_act is \"gelu\""),
            (r#""attention_bias": false"#, r#""attention_bias": true"#, "attention_bias is true"),
            (r#""attn_output_gate": true"#, r#""attn_output_gate": false"#, "attn_output_gate is false"),
            (r#""linear_attention","#, r#""sliding_attention","#, "holds \"sliding_attention\""),
            (r#""num_hidden_layers": 4"#, r#""num_hidden_layers": 4000000000"#, "at most 4096"),
            (
                r#""num_hidden_layers": 4"#,
                r#""num_hidden_layers": 5"#,
                "names 4 layers, num_hidden_layers is 5",
            ),
            (r#""vocab_size": 1024"#, r#""vocab_size": 1000"#, "knows ids up to 1008"),
            (r#""intermediate_size": 256"#, r#""intermediate_size": 255"#, "15 tensors are malformed"),
            (r#""num_key_value_heads": 1"#, r#""num_key_value_heads": 2"#, "3 query heads over 2"),
            (r#""linear_key_head_dim": 128"#, r#""linear_key_head_dim": 4294967295"#, "channels"),
            (
                r#""transformers_version": "5.24.0""#,
                r#""quantization_config": {"quant_method": "fp8"}"#,
                "fp8",
            ),
        ] {
            let error = refused(HF, from, to);
            assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
        }
        let table = refused(MLX, r#""mode": "affine""#, r#""mode": "mxfp4""#);
        assert!(table.contains("quantization.mode is \"mxfp4\""), "{table}");
        let table = refused(
            MLX,
            r#""group_size": 64,"#,
            r#""language_model.model.layers.0.mlp.up_proj": {"bits": 8}, "group_size": 64,"#,
        );
        assert!(table.contains("is packed as mlx-q4g64, but config.json says mlx-q8g64"), "{table}");
    }

    #[test]
    fn a_missing_and_a_surplus_tensor_are_named() {
        let rename = |bytes: Vec<u8>| {
            let (from, to) = (b"layers.1.mlp.up_proj.weight", b"layers.1.mlp.up_pro_.weight");
            let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
            let mut bytes = bytes;
            bytes[at..at + to.len()].copy_from_slice(to);
            bytes
        };
        let root = changed(HF, "model.safetensors", rename);
        let error = Checkpoint::open(root.path()).unwrap_err().to_string();
        assert!(error.contains("1 tensor is missing: layers.1.ffn.up. "), "{error}");
        assert!(
            error.contains("not known to this family: model.language_model.layers.1.mlp.up_pro_"),
            "{error}"
        );
    }

    #[test]
    fn a_checkpoint_without_a_prediction_head_opens() {
        let root = changed(MLX, "config.json", |bytes| bytes);
        fs::remove_file(root.path().join("mtp-4bit.safetensors")).unwrap();
        assert!(!Checkpoint::open(root.path()).unwrap().has_mtp());
        assert!(!read_facts(root.path()).unwrap().mtp);
    }

    #[test]
    fn a_side_file_replaces_a_head_in_the_weights() {
        let root = changed(HF, "mtp-4bit.safetensors", |_| {
            fs::read(Path::new(MLX).join("mtp-4bit.safetensors")).unwrap()
        });
        let checkpoint = Checkpoint::open(root.path()).unwrap();
        assert_eq!(checkpoint.spec.norm_weight_offset, 1.0);
        let mtp = checkpoint.spec.mtp.unwrap();
        assert_eq!((mtp.norm_weight_offset, mtp.formats), (0.0, vec!["mlx-q4g64".to_owned()]));
    }

    /// A safetensors file with tensors renamed, or dropped for `None`.
    fn renamed(bytes: &[u8], rename: impl Fn(&str) -> Option<String>) -> Vec<u8> {
        let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
        let tensors = file.iter().filter_map(|(name, view)| Some((rename(name)?, view)));
        safetensors::serialize(tensors, None).unwrap()
    }

    #[test]
    fn an_unpacked_head_beside_a_packed_model_shows_how_its_norms_are_stored() {
        let root = changed(MLX, "mtp.safetensors", |_| {
            let weights = fs::read(Path::new(HF).join("model.safetensors")).unwrap();
            renamed(&weights, |name| name.strip_prefix("mtp.").map(str::to_owned))
        });
        fs::remove_file(root.path().join("mtp-4bit.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(root.path()).unwrap();
        assert_eq!(checkpoint.spec.norm_weight_offset, 0.0);
        let mtp = checkpoint.spec.mtp.unwrap();
        assert_eq!((mtp.norm_weight_offset, mtp.formats), (1.0, vec!["bf16".to_owned()]));
    }

    #[test]
    fn a_text_only_export_is_the_same_model() {
        let root = changed(HF, "model.safetensors", |bytes| {
            renamed(&bytes, |name| Some(name.replace("model.language_model.", "model.")))
        });
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(Path::new(HF).join("config.json")).unwrap()).unwrap();
        fs::write(root.path().join("config.json"), config["text_config"].to_string()).unwrap();
        assert_eq!(Checkpoint::open(root.path()).unwrap().spec, open(HF).spec);
    }

    #[test]
    fn a_snapshot_in_the_hubs_cache_opens_through_its_links() {
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().join("models--acme--tiny");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for folder in ["blobs", "refs", &format!("snapshots/{commit}")] {
            fs::create_dir_all(repository.join(folder)).unwrap();
        }
        fs::write(repository.join("refs/main"), commit).unwrap();
        for (index, entry) in fs::read_dir(MLX).unwrap().flatten().enumerate() {
            fs::copy(entry.path(), repository.join(format!("blobs/{index}"))).unwrap();
            let link = repository.join("snapshots").join(commit).join(entry.file_name());
            std::os::unix::fs::symlink(format!("../../blobs/{index}"), link).unwrap();
        }
        let path = root.path().as_os_str().to_owned();
        let cache = HubCache::from_variables(|name| (name == "HF_HUB_CACHE").then(|| path.clone()));
        let resolved = resolve("acme/tiny", &cache).unwrap();
        let checkpoint = Checkpoint::open(&resolved.directory).unwrap();
        assert_eq!((checkpoint.name.as_str(), checkpoint.has_mtp()), ("tiny", true));
    }

    #[test]
    fn a_survey_tells_what_it_can_of_a_broken_checkpoint() {
        let root = changed(MLX, "config.json", |bytes| bytes);
        fs::remove_file(root.path().join("model.safetensors")).unwrap();
        let (facts, problem) = survey(root.path()).unwrap();
        assert_eq!((facts.family.as_str(), facts.context_window), ("qwen3_5", Some(4096)));
        let problem = problem.unwrap().to_string();
        assert!(problem.contains("1 of its 1 weight files are missing"), "{problem}");
        assert_eq!(read_facts(root.path()).unwrap_err().to_string(), problem);
    }

    #[test]
    fn missing_files_say_what_to_do() {
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            let root = changed(HF, name, |bytes| bytes);
            fs::remove_file(root.path().join(name)).unwrap();
            let error = Checkpoint::open(root.path()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let error = Checkpoint::open(Path::new("/absent")).unwrap_err().to_string();
        assert!(error.starts_with("/absent cannot be read"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn mutated_metadata_never_panics(
            which in 0usize..5, position: prop::sample::Index, value: u8, cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let name = ["config.json", "generation_config.json", "tokenizer_config.json",
                "model.safetensors.index.json", "tokenizer.json"][which];
            let root = changed(MLX, name, |mut bytes| {
                let at = position.index(bytes.len());
                bytes[at] = value;
                if let Some(cut) = cut {
                    bytes.truncate(cut.index(bytes.len()));
                }
                bytes
            });
            let _ = Checkpoint::open(root.path());
            let _ = read_facts(root.path());
        }
    }
}
