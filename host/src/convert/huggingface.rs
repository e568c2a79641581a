//! A checkpoint of floats, in Hugging Face's form or MLX's own, as MLX's
//! tools would convert it.
//!
//! What these tools do, and this does in the same way, to the last bit: names
//! with MLX's prefixes, the one added to norms that are stored zero-centred
//! (in their own type), the convolution's axes, experts in three stacks, the
//! model cast to one float type, matrices quantised whose rows are whole
//! groups, routers at 8 bits, and a head dropped that is the embedding again.
//! One thing they do not: a multi-token prediction head is kept, in a file of
//! its own that they do not read.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::Options;
use super::config;
use super::error::ConvertError;
use super::names::{MlxNames, is_expert_gate};
use super::plan::{Content, Form, Job, Part, Plan};
use super::rows::Rows;
use crate::checkpoint::{Checkpoint, ElementType, Folder, Packing, Tensor};

/// Routers and the gates of shared experts, whatever the rest has.
const GATE_PACKING: Packing = Packing { bits: 8, group_size: 64 };

/// Plans the conversion of an open checkpoint.
///
/// # Errors
/// When its weights are packed already, or have no place in MLX's form.
pub(super) fn plan<'a>(
    folder: &Folder,
    checkpoint: &'a Checkpoint,
    options: &Options,
) -> Result<Plan<'a>, ConvertError> {
    let refuse = |problem: String| ConvertError::source(folder.path(), problem);
    if let Some(packed) = checkpoint.tensors.iter().find(|tensor| tensor.packing.is_some()) {
        return Err(refuse(format!(
            "{} is packed already ({}); convert the checkpoint that it was made from",
            packed.name,
            checkpoint.spec.formats.join(" ")
        )));
    }
    let json: Map<String, Value> =
        folder.read_json("config.json", Folder::METADATA_LIMIT)?.unwrap_or_default();
    let element = options.element.or_else(|| config::float_type(&json));
    let tensors = Tensors { checkpoint, names: MlxNames::of_family(&checkpoint.spec.family) };
    let mut jobs = Vec::new();
    for gathered in tensors.gathered().map_err(refuse)? {
        let stored = tensors.names.stored(&gathered.name);
        let name = stored.ok_or_else(|| refuse(format!("{} has no place in MLX's form", gathered.name)))?;
        let cast = match element {
            // The decay's parameter keeps its precision.
            Some(element) if !gathered.name.ends_with(".delta.a_log") => element,
            _ => gathered.element,
        };
        jobs.push(Job {
            form: form(&gathered, &name, cast, options.packing),
            part: if gathered.name.starts_with("mtp.") { Part::PredictionHead } else { Part::Model },
            shape: gathered.shape,
            content: Content::Floats {
                element: gathered.element,
                offset: tensors.norm_offset(&gathered.name),
            },
            rows: gathered.rows,
            name,
        });
    }
    let mut notes = Vec::new();
    let shifted = jobs
        .iter()
        .filter(|job| matches!(job.content, Content::Floats { offset, .. } if offset != 0.0))
        .count();
    if shifted > 0 {
        notes.push(format!("{shifted} norms are stored with one added, as MLX's form has them"));
    }
    if jobs.iter().any(|job| job.part == Part::PredictionHead) {
        notes.push("the multi-token prediction head is in a file of its own, mtp*.safetensors".into());
    }
    let tied = !jobs.iter().any(|job| job.name.ends_with("lm_head.weight"));
    let generation: Map<String, Value> =
        folder.read_json("generation_config.json", Folder::METADATA_LIMIT)?.unwrap_or_default();
    let document = config::converted(json, &generation, options, tied, &jobs);
    Ok(Plan {
        family: checkpoint.spec.family.clone(),
        jobs,
        texts: vec![("config.json".into(), format!("{document:#}\n").into_bytes())],
        notes,
    })
}

/// A tensor in canonical terms, put together from whatever pieces the checkpoint has.
struct Gathered<'a> {
    name: String,
    shape: Vec<u64>,
    element: ElementType,
    rows: Rows<'a>,
}

fn form(gathered: &Gathered<'_>, stored: &str, element: ElementType, packing: Option<Packing>) -> Form {
    let matrix = gathered.shape.len() > 1 && !gathered.name.ends_with(".delta.conv");
    let columns = gathered.shape.last().copied().unwrap_or(0);
    let fits = |packing: Packing| columns.is_multiple_of(u64::from(packing.group_size));
    let wanted = packing.filter(|&packing| matrix && fits(packing));
    match wanted.map(|packing| if is_expert_gate(stored) { GATE_PACKING } else { packing }) {
        Some(packing) if fits(packing) => Form::Affine { packing, element },
        _ => Form::Plain(element),
    }
}

struct Tensors<'a> {
    checkpoint: &'a Checkpoint,
    names: MlxNames,
}

impl<'a> Tensors<'a> {
    /// What is added to the stored values of a tensor: 1 for norms that are stored zero-centred.
    fn norm_offset(&self, canonical: &str) -> f32 {
        let norm = canonical.ends_with("norm") && !canonical.ends_with(".delta.norm");
        let spec = &self.checkpoint.spec;
        match (norm, &spec.mtp) {
            (false, _) => 0.0,
            (true, Some(mtp)) if canonical.starts_with("mtp.") => mtp.norm_weight_offset,
            (true, _) => spec.norm_weight_offset,
        }
    }

    /// All tensors, stacks of experts split and put together, in the order of the model.
    fn gathered(&self) -> Result<Vec<Gathered<'a>>, String> {
        let mut all = Vec::new();
        // Experts that are stored one by one, by the stack that they become.
        let mut singles: BTreeMap<String, BTreeMap<u64, &'a Tensor>> = BTreeMap::new();
        let mut places = HashMap::new();
        for tensor in &self.checkpoint.tensors {
            if tensor.name == "head" && self.repeats_embedding(tensor) {
                continue;
            }
            if let Some((stack, expert)) = single_expert(&tensor.name) {
                if !places.contains_key(&stack) {
                    places.insert(stack.clone(), all.len());
                    all.push(None);
                }
                singles.entry(stack).or_default().insert(expert, tensor);
            } else if let Some(layer) = tensor.name.strip_suffix(".gate_up") {
                all.extend(self.split(tensor, layer)?.map(Some));
            } else {
                all.push(Some(self.single(tensor)));
            }
        }
        for (stack, experts) in singles {
            let place = places[&stack];
            all[place] = Some(self.stacked(stack, &experts)?);
        }
        Ok(all.into_iter().flatten().collect())
    }

    fn single(&self, tensor: &'a Tensor) -> Gathered<'a> {
        let mut shape = tensor.shape.clone();
        let row_bytes = shape.last().copied().unwrap_or(1) * tensor.element.bytes();
        if tensor.name.ends_with(".delta.conv") {
            // [channels, kernel] here, [channels, kernel, 1] in MLX's form: the same bytes.
            shape.push(1);
        }
        let rows = Rows::whole(self.checkpoint.bytes(tensor), row_bytes);
        Gathered { name: tensor.name.clone(), shape, element: tensor.element, rows }
    }

    /// A stack of gate rows over up rows, as two stacks.
    fn split(&self, tensor: &'a Tensor, stack: &str) -> Result<[Gathered<'a>; 2], String> {
        let [experts, both, columns] = tensor.shape[..] else {
            return Err(format!(
                "{} has the shape {:?}, which is no stack of matrices",
                tensor.name, tensor.shape
            ));
        };
        if both % 2 != 0 {
            return Err(format!("{} has {both} rows for an expert, which are no two halves", tensor.name));
        }
        let row_bytes = columns * tensor.element.bytes();
        let half = (both / 2 * row_bytes) as usize;
        let bytes = self.checkpoint.bytes(tensor);
        Ok([("gate", 0), ("up", 1)].map(|(part, index)| {
            let pieces = bytes.chunks_exact(2 * half).map(|expert| &expert[index * half..][..half]).collect();
            Gathered {
                name: format!("{stack}.{part}"),
                shape: vec![experts, both / 2, columns],
                element: tensor.element,
                rows: Rows::pieces(pieces, row_bytes),
            }
        }))
    }

    /// Experts that are stored one by one, as a stack.
    fn stacked(&self, name: String, experts: &BTreeMap<u64, &'a Tensor>) -> Result<Gathered<'a>, String> {
        let count = experts.len() as u64;
        let (Some((0, first)), Some((last, _))) = (experts.first_key_value(), experts.last_key_value())
        else {
            return Err(format!("{name} has no expert 0"));
        };
        let alike =
            experts.values().all(|other| other.shape == first.shape && other.element == first.element);
        if last + 1 != count || !alike {
            return Err(format!("the experts of {name} are not all there in one shape and type"));
        }
        let row_bytes = first.shape.last().copied().unwrap_or(1) * first.element.bytes();
        Ok(Gathered {
            shape: [&[count], first.shape.as_slice()].concat(),
            element: first.element,
            rows: Rows::pieces(
                experts.values().map(|tensor| self.checkpoint.bytes(tensor)).collect(),
                row_bytes,
            ),
            name,
        })
    }

    /// Whether a stored head is the embedding once more, as files of tied models may have it.
    fn repeats_embedding(&self, head: &Tensor) -> bool {
        self.checkpoint.tensor("embed").is_some_and(|embed| {
            (embed.element, &embed.shape) == (head.element, &head.shape)
                && self.checkpoint.bytes(embed) == self.checkpoint.bytes(head)
        })
    }
}

/// `layers.0.moe.experts.7.gate` is expert 7 of the stack `layers.0.moe.experts.gate`.
fn single_expert(canonical: &str) -> Option<(String, u64)> {
    let (before, rest) = canonical.split_once(".experts.")?;
    let (expert, part) = rest.split_once('.')?;
    Some((format!("{before}.experts.{part}"), expert.parse().ok()?))
}
