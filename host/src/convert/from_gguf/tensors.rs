//! The tensors of a file as those of MLX's form.

use std::collections::{BTreeMap, HashMap};

use super::super::Options;
use super::super::blocks::BlockType;
use super::super::float;
use super::super::gguf::{GgmlType, Gguf, TensorInfo};
use super::super::names::MlxNames;
use super::super::plan::{Content, Form, Job, Part};
use super::super::rows::{Order, Rows};
use super::model::{Family, Model};
use crate::checkpoint::{ElementType, Packing};

/// A tensor that the model needs.
struct Wanted {
    name: String,
    canonical: String,
    shape: Vec<u64>,
    order: Order,
}

/// What becomes of a file's tensors.
#[derive(Debug)]
pub(super) struct Converted<'a> {
    pub(super) jobs: Vec<Job<'a>>,
    /// The type of the model's small tensors, which its activations will have.
    pub(super) element: ElementType,
    /// Types of the file with what they become, a clause each.
    pub(super) notes: Vec<String>,
}

/// Finds every tensor of the model and decides how it is written.
///
/// # Errors
/// When tensors are missing, not known, of other shapes, or of types that are not converted.
pub(super) fn convert<'a>(
    file: &'a Gguf<'a>,
    model: &Model,
    options: &Options,
) -> Result<Converted<'a>, String> {
    refuse_types(file)?;
    let found = find(file, model)?;
    let element = match options.element {
        Some(element) => element,
        None => float_type(&found),
    };
    let names = MlxNames::of_family(model.family.name());
    let mut jobs = Vec::new();
    for (wanted, tensor) in found {
        let name = names.stored(&wanted.canonical).expect("every wanted tensor has a name in MLX's form");
        let (content, form) = content_and_form(tensor, element, options)?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let row_bytes = match content {
            Content::Floats { element, .. } => columns * element.bytes(),
            Content::Blocks(block) => columns / BlockType::WEIGHTS * block.bytes(),
        };
        let rows = Rows::whole(tensor.data, row_bytes).ordered(wanted.order);
        jobs.push(Job { name, shape: wanted.shape, content, rows, form, part: Part::Model });
    }
    let quantized = |job: &Job<'_>| matches!(job.content, Content::Blocks(_));
    if options.packing.is_some() && jobs.iter().any(quantized) {
        return Err(
            "its matrices are quantized already, and --bits would quantize them a second time; leave it out to keep them as they are, or convert a file of F16 or BF16"
                .into(),
        );
    }
    let notes = notes(&jobs);
    Ok(Converted { jobs, element, notes })
}

/// The most common packing of a plan, which its table names for all modules.
pub(super) fn common_packing(jobs: &[Job<'_>]) -> Option<Packing> {
    let mut counts: HashMap<Packing, usize> = HashMap::new();
    for job in jobs {
        if let Form::Affine { packing, .. } = job.form {
            *counts.entry(packing).or_default() += 1;
        }
    }
    // Of two that are as common, the one of fewer bits.
    counts
        .into_iter()
        .max_by_key(|&(packing, count)| (count, std::cmp::Reverse(packing.bits)))
        .map(|(packing, _)| packing)
}

fn refuse_types(file: &Gguf<'_>) -> Result<(), String> {
    let mut others: BTreeMap<GgmlType, usize> = BTreeMap::new();
    for tensor in &file.tensors {
        if plain(tensor.element).is_none() && BlockType::of(tensor.element).is_none() {
            *others.entry(tensor.element).or_default() += 1;
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let listed: Vec<_> = others
        .iter()
        .map(|(element, count)| {
            format!("{} ({count} {})", element.name(), if *count == 1 { "tensor" } else { "tensors" })
        })
        .collect();
    Err(format!(
        "it has tensors of types that MLX's affine form does not hold without loss: {}; F32, F16, BF16, Q4_0, Q4_1 and Q8_0 are converted: take such a file of the model, or convert its original weights with --bits",
        listed.join(", ")
    ))
}

fn plain(element: GgmlType) -> Option<ElementType> {
    match element {
        GgmlType::F32 => Some(ElementType::F32),
        GgmlType::F16 => Some(ElementType::F16),
        GgmlType::BF16 => Some(ElementType::Bf16),
        _ => None,
    }
}

fn find<'a>(file: &'a Gguf<'a>, model: &Model) -> Result<Vec<(Wanted, &'a TensorInfo<'a>)>, String> {
    let mut left: BTreeMap<&str, &TensorInfo<'a>> =
        file.tensors.iter().map(|tensor| (tensor.name, tensor)).collect();
    // Read with the model's facts.
    left.remove("rope_freqs.weight");
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for wanted in wanted(model, left.contains_key("output.weight")) {
        match left.remove(wanted.name.as_str()) {
            None => missing.push(wanted.name),
            Some(tensor) if tensor.shape != wanted.shape => {
                return Err(format!(
                    "{} has the shape {:?}; the metadata asks for {:?}",
                    tensor.name, tensor.shape, wanted.shape
                ));
            }
            Some(tensor) => found.push((wanted, tensor)),
        }
    }
    let listed = |names: Vec<String>| match names.len() {
        0..=4 => names.join(", "),
        more => format!("{} and {} more", names[..3].join(", "), more - 3),
    };
    if !missing.is_empty() {
        return Err(format!("it lacks tensors of the model: {}", listed(missing)));
    }
    if !left.is_empty() {
        let names = left.into_keys().map(str::to_owned).collect();
        return Err(format!(
            "it has tensors that this architecture ({}) is not known to have: {}",
            model.family.name(),
            listed(names)
        ));
    }
    Ok(found)
}

fn wanted(model: &Model, head: bool) -> Vec<Wanted> {
    let (hidden, inner) = (u64::from(model.hidden), u64::from(model.inner));
    let head_size = u64::from(model.head_size);
    let queries = u64::from(model.heads) * head_size;
    let keys = u64::from(model.key_value_heads) * head_size;
    let mut all = Vec::new();
    let mut push = |name: String, canonical: String, shape: &[u64], order: Order| {
        all.push(Wanted { name, canonical, shape: shape.into(), order });
    };
    push("token_embd.weight".into(), "embed".into(), &[model.vocabulary, hidden], Order::Stored);
    // llama.cpp's tools put rotary pairs side by side for this architecture alone.
    let paired = match model.family {
        Family::Llama => Order::FromPairs { head_size },
        Family::Qwen2 | Family::Qwen3 => Order::Stored,
    };
    for layer in 0..model.layers {
        let mut of_layer = |name: &str, canonical: &str, shape: &[u64], order: Order| {
            push(format!("blk.{layer}.{name}"), format!("layers.{layer}.{canonical}"), shape, order);
        };
        of_layer("attn_norm.weight", "input_norm", &[hidden], Order::Stored);
        of_layer("attn_q.weight", "attention.q", &[queries, hidden], paired);
        of_layer("attn_k.weight", "attention.k", &[keys, hidden], paired);
        of_layer("attn_v.weight", "attention.v", &[keys, hidden], Order::Stored);
        match model.family {
            Family::Llama => {}
            Family::Qwen2 => {
                of_layer("attn_q.bias", "attention.q.bias", &[queries], Order::Stored);
                of_layer("attn_k.bias", "attention.k.bias", &[keys], Order::Stored);
                of_layer("attn_v.bias", "attention.v.bias", &[keys], Order::Stored);
            }
            Family::Qwen3 => {
                of_layer("attn_q_norm.weight", "attention.q_norm", &[head_size], Order::Stored);
                of_layer("attn_k_norm.weight", "attention.k_norm", &[head_size], Order::Stored);
            }
        }
        of_layer("attn_output.weight", "attention.o", &[hidden, queries], Order::Stored);
        of_layer("ffn_norm.weight", "post_norm", &[hidden], Order::Stored);
        of_layer("ffn_gate.weight", "ffn.gate", &[inner, hidden], Order::Stored);
        of_layer("ffn_up.weight", "ffn.up", &[inner, hidden], Order::Stored);
        of_layer("ffn_down.weight", "ffn.down", &[hidden, inner], Order::Stored);
    }
    push("output_norm.weight".into(), "norm".into(), &[hidden], Order::Stored);
    if head {
        push("output.weight".into(), "head".into(), &[model.vocabulary, hidden], Order::Stored);
    }
    all
}

/// The type of small tensors: that of the matrices, where it holds them exactly, else another that does. GGUF keeps
/// norms in 32 bits whatever they were made from.
fn float_type(found: &[(Wanted, &TensorInfo<'_>)]) -> ElementType {
    let matrices = || found.iter().filter(|(_, tensor)| tensor.shape.len() > 1);
    let first = matrices().find_map(|(_, tensor)| plain(tensor.element));
    let preferred = match matrices().any(|(_, tensor)| BlockType::of(tensor.element).is_some()) {
        // Scales of blocks are of 16 bits.
        true => ElementType::F16,
        false => first.unwrap_or(ElementType::F32),
    };
    let holds_all = |stored: ElementType| {
        found.iter().filter(|(_, tensor)| tensor.shape.len() == 1).all(|(_, tensor)| {
            let Some(element) = plain(tensor.element) else { return true };
            let mut values = Vec::new();
            float::decode(element, tensor.data, &mut values);
            values.iter().all(|&value| float::round(stored, value).to_bits() == value.to_bits())
        })
    };
    [preferred, ElementType::F16, ElementType::Bf16]
        .into_iter()
        .find(|&stored| holds_all(stored))
        .unwrap_or(ElementType::F32)
}

fn content_and_form(
    tensor: &TensorInfo<'_>,
    small: ElementType,
    options: &Options,
) -> Result<(Content, Form), String> {
    let matrix = tensor.shape.len() > 1;
    if let Some(element) = plain(tensor.element) {
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let packing =
            options.packing.filter(|packing| matrix && columns.is_multiple_of(u64::from(packing.group_size)));
        let form = match packing {
            Some(packing) => Form::Affine { packing, element: small },
            None if matrix => Form::Plain(options.element.unwrap_or(element)),
            None => Form::Plain(small),
        };
        return Ok((Content::Floats { element, offset: 0.0 }, form));
    }
    let block = BlockType::of(tensor.element).expect("other types were refused");
    if !matrix {
        return Err(format!(
            "{} is quantized ({}), which only matrices can be",
            tensor.name,
            tensor.element.name()
        ));
    }
    let Some(exact) = block.scale_element(tensor.data) else {
        return Err(format!("{} holds a scale that is no finite number; the file is damaged", tensor.name));
    };
    let element = options.element.unwrap_or(exact);
    Ok((Content::Blocks(block), Form::Affine { packing: block.packing(), element }))
}

/// How many tensors of each type became what.
fn notes(jobs: &[Job<'_>]) -> Vec<String> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for job in jobs {
        let from = match job.content {
            Content::Floats { element, .. } => element.format().to_uppercase(),
            Content::Blocks(block) => format!("{block:?}"),
        };
        let to = match job.form {
            Form::Plain(element) => element.format().to_owned(),
            Form::Affine { packing, element } => {
                format!("{} with {} scales", packing.format(), element.format())
            }
        };
        *counts.entry((from, to)).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|((from, to), count)| {
            format!("{from} became {to}: {count} {}", if count == 1 { "tensor" } else { "tensors" })
        })
        .collect()
}
