//! Where every tensor lies in the output's safetensors files.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::plan::Form;
use super::plan::{Job, Part, Target};
use crate::checkpoint::{ElementType, Packing};

/// The files that will be written, with the place of every tensor.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) files: Vec<PlannedFile>,
    /// For each job, for each of its targets.
    pub(super) places: Vec<Vec<Place>>,
}

/// A file of the output.
#[derive(Debug)]
pub(super) struct PlannedFile {
    pub(super) name: String,
    /// What stands before the data: the header and its length.
    pub(super) head: Vec<u8>,
    /// In bytes.
    pub(super) length: u64,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index into [`Layout::files`].
    pub(super) file: usize,
    /// From the start of the file.
    pub(super) offset: u64,
}

impl Layout {
    /// Divides tensors into files of at most `shard_limit` bytes of data each, except where one module alone has more.
    pub(super) fn new(jobs: &[Job<'_>], shard_limit: u64) -> Layout {
        let targets: Vec<Vec<Target>> = jobs.iter().map(Job::targets).collect();
        let bytes = |job: usize| targets[job].iter().map(Target::bytes).sum::<u64>();
        let mut shards: Vec<Vec<usize>> = Vec::new();
        let mut filled = 0;
        for job in (0..jobs.len()).filter(|&job| jobs[job].part == Part::Model) {
            if shards.is_empty() || filled + bytes(job) > shard_limit {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes(job);
            shards.last_mut().expect("one was just made").push(job);
        }
        let count = shards.len();
        let mut layout = Layout { files: Vec::new(), places: vec![Vec::new(); jobs.len()] };
        for (index, shard) in shards.iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            layout.add(name, shard, &targets);
        }
        let head: Vec<usize> =
            (0..jobs.len()).filter(|&job| jobs[job].part == Part::PredictionHead).collect();
        if !head.is_empty() {
            layout.add(head_file(jobs), &head, &targets);
        }
        layout
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// `model.safetensors.index.json`, as MLX's tools write it.
    pub(super) fn index(&self, jobs: &[Job<'_>]) -> Vec<u8> {
        let mut map = BTreeMap::new();
        let (mut bytes, mut parameters) = (0, 0);
        for (job, places) in jobs.iter().zip(&self.places).filter(|(job, _)| job.part == Part::Model) {
            parameters += job.parameters();
            for (target, place) in job.targets().into_iter().zip(places) {
                bytes += target.bytes();
                map.insert(target.name, self.files[place.file].name.clone());
            }
        }
        let index = json!({
            "metadata": { "total_size": bytes, "total_parameters": parameters },
            "weight_map": map,
        });
        format!("{index:#}\n").into_bytes()
    }

    fn add(&mut self, name: String, jobs: &[usize], targets: &[Vec<Target>]) {
        let file = self.files.len();
        // Wide elements first, so that every tensor is aligned to its own; else in the order of the model.
        let mut order: Vec<(usize, usize)> =
            jobs.iter().flat_map(|&job| (0..targets[job].len()).map(move |target| (job, target))).collect();
        order.sort_by_key(|&(job, target)| std::cmp::Reverse(targets[job][target].element.bytes()));
        let mut infos = Vec::new();
        let mut end = 0u64;
        let mut starts = Vec::new();
        for &(job, index) in &order {
            let target = &targets[job][index];
            let start = end;
            end += target.bytes();
            starts.push(start);
            infos.push((
                target.name.clone(),
                TensorInfo {
                    dtype: dtype(target.element),
                    shape: target.shape.iter().map(|&axis| axis as usize).collect(),
                    data_offsets: (start as usize, end as usize),
                },
            ));
        }
        let metadata = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
        let metadata = Metadata::new(Some(metadata), infos).expect("the tensors follow each other");
        let mut header = serde_json::to_vec(&metadata).expect("a header is made of texts and numbers");
        header.resize(header.len().next_multiple_of(8), b' ');
        let head = [(header.len() as u64).to_le_bytes().as_slice(), &header].concat();
        for (&(job, _), start) in order.iter().zip(starts) {
            // Within a job, the order by size is that of the targets: the sort is stable, and codes are the widest.
            self.places[job].push(Place { file, offset: head.len() as u64 + start });
        }
        self.files.push(PlannedFile { name, length: head.len() as u64 + end, head });
    }
}

/// The name of the file with the prediction head: after its bits, as other conversions name it.
fn head_file(jobs: &[Job<'_>]) -> String {
    let packings =
        jobs.iter().filter(|job| job.part == Part::PredictionHead).filter_map(|job| match job.form {
            Form::Affine { packing: Packing { bits, .. }, .. } => Some(bits),
            Form::Plain(_) => None,
        });
    // Routers have 8 bits whatever the rest has.
    packings.min().map_or_else(|| "mtp.safetensors".into(), |bits| format!("mtp-{bits}bit.safetensors"))
}

fn dtype(element: ElementType) -> Dtype {
    match element {
        ElementType::Bf16 => Dtype::BF16,
        ElementType::F16 => Dtype::F16,
        ElementType::F32 => Dtype::F32,
        ElementType::U32 => Dtype::U32,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Content;
    use super::super::rows::Rows;
    use super::*;

    fn job(name: &str, rows: u64, form: Form, part: Part) -> Job<'static> {
        static ZEROS: [u8; 4096] = [0; 4096];
        Job {
            name: format!("{name}.weight"),
            shape: vec![rows, 64],
            content: Content::Floats { element: ElementType::Bf16, offset: 0.0 },
            rows: Rows::whole(&ZEROS[..rows as usize * 128], 128),
            form,
            part,
        }
    }

    const PACKED: Form =
        Form::Affine { packing: Packing { bits: 4, group_size: 64 }, element: ElementType::Bf16 };

    #[test]
    fn tensors_are_aligned_to_their_elements_and_follow_each_other() {
        let plain = Form::Plain(ElementType::Bf16);
        let jobs = [job("a", 3, plain, Part::Model), job("b", 5, PACKED, Part::Model)];
        let layout = Layout::new(&jobs, 1 << 20);
        assert_eq!(layout.files.len(), 1);
        let start = layout.files[0].head.len() as u64;
        assert!(start.is_multiple_of(8));
        // The codes of b, [5, 8] words, come first; then a, [3, 64]; then scales and biases, [5, 1].
        let offsets: Vec<Vec<u64>> = layout
            .places
            .iter()
            .map(|places| places.iter().map(|place| place.offset - start).collect())
            .collect();
        assert_eq!(offsets, [vec![160], vec![0, 544, 554]]);
        assert_eq!(layout.files[0].length, start + 564);
    }

    #[test]
    fn files_are_cut_between_modules_and_named_as_shards() {
        let jobs: Vec<_> = ["a", "b", "c"].map(|name| job(name, 4, PACKED, Part::Model)).into();
        // 4 rows of 32 bytes of codes and twice 2 bytes: 144.
        let layout = Layout::new(&jobs, 300);
        let names: Vec<_> = layout.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        assert_eq!(layout.places.iter().map(|places| places[0].file).collect::<Vec<_>>(), [0, 0, 1]);
        let index: serde_json::Value = serde_json::from_slice(&layout.index(&jobs)).unwrap();
        assert_eq!(index["weight_map"]["c.scales"], "model-00002-of-00002.safetensors");
        assert_eq!(index["metadata"], json!({ "total_size": 432, "total_parameters": 768 }));
        // A module that is larger than the limit has a file of its own.
        assert_eq!(Layout::new(&jobs, 10).files.len(), 3);
    }

    #[test]
    fn a_prediction_head_has_a_file_of_its_own_named_after_its_bits() {
        let eight = Form::Affine { packing: Packing { bits: 8, group_size: 64 }, element: ElementType::Bf16 };
        let jobs = [
            job("a", 4, PACKED, Part::Model),
            job("mtp.gate", 4, eight, Part::PredictionHead),
            job("mtp.fc", 4, PACKED, Part::PredictionHead),
        ];
        let layout = Layout::new(&jobs, 1 << 20);
        assert_eq!(layout.files[1].name, "mtp-4bit.safetensors");
        assert_eq!(layout.places[2][0].file, 1);
        let index: serde_json::Value = serde_json::from_slice(&layout.index(&jobs)).unwrap();
        assert!(index["weight_map"].get("mtp.fc.weight").is_none(), "MLX's tools would look for it");
    }
}
