//! Block drafters against the authors' own package and a float64 reference.

#[path = "support/drafter.rs"]
mod drafter_files;
mod support;

use std::collections::HashMap;

use support::*;
use tensorfold_kernels::cpu::{CpuDevice, InstructionSet};
use tensorfold_kernels::device::{BlockDevice, Device, SelectLane, Selector};
use tensorfold_kernels::executor::{
    AbsorbLane, BlockContext, BlockDrafter, BlockPoint, DraftLane, TargetEnds,
};
use tensorfold_kernels::weights::{MatrixView, Tensors};
use tensorfold_plugin_api::drafter_spec::DrafterSpec;
use tensorfold_plugin_api::sampling::{Candidate, Sampling, draw, draw_from};

const CASES: [&str; 4] = ["v1-full", "v1-swa", "v2-qwen", "v2-scaled"];

/// As stated beside the vectors.
const STATES: f32 = 2e-4;
const CACHE: f32 = 5e-5;

struct Case {
    spec: DrafterSpec,
    drafter: File,
    target: File,
    golden: Vectors,
}

impl Case {
    fn open(name: &str) -> Case {
        let folder = format!("goldens/dflash/{name}");
        Case {
            spec: drafter_files::spec(&json(&format!("{folder}/drafter/config.json"))),
            drafter: File::open(&format!("{folder}/drafter/model.safetensors")),
            target: File::open(&format!("{folder}/target_io.safetensors")),
            golden: Vectors::open(&format!("{folder}/golden.safetensors")),
        }
    }

    fn tensors(&self) -> Tensors<'_> {
        self.drafter.tensors(drafter_files::canonical)
    }

    fn close(&self, name: &str, got: &[f32], tolerance: f32) {
        let worst = difference(got, &self.golden.f32(name));
        assert!(worst <= tolerance, "{name}: {worst:e}");
    }
}

/// What a drafter borrows from the target of a case.
fn ends<'w>(case: &'w Case) -> (MatrixView<'w>, MatrixView<'w>) {
    let tensors = case.target.tensors(|name| Some(name.to_owned()));
    let (rows, columns) = (case.spec.vocabulary_rows as usize, case.spec.hidden_size as usize);
    let matrix = |name: &str| tensors.matrix(name, rows, columns).unwrap();
    (matrix("embed_tokens.weight"), matrix("lm_head.weight"))
}

type Seen = HashMap<String, Vec<f32>>;

/// Absorbs a round's rows into a context and drafts a block; what was seen on the way.
fn round(
    case: &Case,
    device: &mut CpuDevice,
    drafter: &mut BlockDrafter<'_, CpuDevice>,
    context: &mut BlockContext<CpuDevice>,
    round: usize,
    chunk: usize,
) -> (Seen, Vec<(u32, f32)>) {
    let mut seen = Seen::new();
    let mut observer =
        |device: &mut CpuDevice, point: BlockPoint, rows: usize, width: usize, values: &Vec<f32>| {
            seen.entry(format!("{point:?}")).or_default().extend(device.read(rows, width, values)?);
            Ok(())
        };
    let width = case.spec.taps.len() * case.spec.hidden_size as usize;
    let taps = case.golden.f32(&format!("r{round}.target_hidden"));
    for taps in taps.chunks(chunk * width) {
        let rows = 0..taps.len() / width;
        let mut lanes = [AbsorbLane { context: &mut *context, rows }];
        drafter.absorb(device, &mut lanes, &taps.to_vec(), &mut observer).unwrap();
    }
    let ids = case.golden.u32(&format!("r{round}.block_ids"));
    assert_eq!(case.golden.u32(&format!("r{round}.block_positions"))[0] as usize, context.tokens());
    let (embed, head) = ends(case);
    let target = TargetEnds { embed: &embed, head: &head, selectable: case.spec.vocabulary_rows };
    let lane =
        DraftLane { context: &*context, anchor: ids[0], drafts: ids.len() - 1, sampling: Sampling::GREEDY };
    let drafts = drafter.draft(device, &target, &[lane], &mut observer).unwrap().remove(0);
    (seen, drafts)
}

#[test]
fn five_rounds_of_every_case_are_right() {
    for name in CASES {
        let case = Case::open(name);
        let tensors = case.tensors();
        let mut device = CpuDevice::new(2).unwrap();
        let mut drafter = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).unwrap();
        let mut context = drafter.context(&mut device).unwrap();
        for index in 0..5 {
            let (seen, drafts) = round(&case, &mut device, &mut drafter, &mut context, index, 256);
            let at = |part: &str| format!("r{index}.{part}");
            case.close(&at("fused_ctx"), &seen["Fused"], STATES);
            case.close(&at("hidden"), &seen["FinalNorm"], STATES);
            case.close(&at("logits"), &seen["Logits"], STATES);
            let ids: Vec<u32> = drafts.iter().map(|draft| draft.0).collect();
            let wanted = if case.spec.refinement.is_some() { "path" } else { "argmax" };
            assert_eq!(ids, case.golden.u32(&at(wanted)), "{name} {index}");
            assert!(drafts.iter().all(|draft| draft.1 > 0.0 && draft.1 <= 1.0));
            for (layer, cache) in context.layers().iter().enumerate() {
                cache_is_right(&case, &at(&format!("layer{layer}")), cache);
            }
            if let Some(projected) = seen.get("Projected") {
                case.close(&at("sel_hidden"), projected, STATES);
            }
            if index == 0 {
                trace_is_right(&case, &seen);
            }
        }
    }
}

/// The newest rows of a cache, which a layer may still look at.
fn cache_is_right(case: &Case, name: &str, cache: &tensorfold_kernels::cpu::KeyValues) {
    let (_, shape, _) = case.golden.bytes(&format!("{name}.k"));
    let (heads, kept, size) = (shape[0], shape[1], shape[2]);
    let first = cache.tokens() - kept;
    let collect = |value: &dyn Fn(usize, usize) -> Vec<f32>| -> Vec<f32> {
        (0..heads)
            .flat_map(|head| (first..first + kept).map(move |position| (position, head)))
            .flat_map(|(position, head)| value(position, head))
            .collect()
    };
    let keys = collect(&|position, head| cache.key(position, head));
    let values = collect(&|position, head| cache.value(position, head).to_vec());
    assert_eq!(keys.len(), heads * kept * size);
    case.close(&format!("{name}.k"), &keys, CACHE);
    case.close(&format!("{name}.v"), &values, CACHE);
}

fn trace_is_right(case: &Case, seen: &Seen) {
    for layer in 0..case.spec.layers.len() {
        let trace = |part: &str| format!("trace.layer{layer}.{part}");
        case.close(&trace("attn.norm"), &seen[&format!("InputNorm({layer})")], STATES);
        if case.spec.refinement.is_some() {
            case.close(&trace("attn.conv_in"), &seen[&format!("AttentionInput({layer})")], STATES);
        }
        case.close(&trace("attn.inner"), &seen[&format!("Attention({layer})")], STATES);
        case.close(&trace("mid"), &seen[&format!("Middle({layer})")], STATES);
        case.close(&trace("out"), &seen[&format!("Layer({layer})")], STATES);
    }
}

#[test]
fn drafts_do_not_depend_on_company_chunks_threads_or_instructions() {
    for name in ["v1-swa", "v2-scaled"] {
        let case = Case::open(name);
        let tensors = case.tensors();
        let mut wanted: Option<Vec<Vec<(u32, f32)>>> = None;
        for (set, threads, chunk) in [
            (InstructionSet::best(), 1, 256),
            (InstructionSet::Portable, 1, 256),
            (InstructionSet::best(), 2, 7),
            (InstructionSet::Portable, 2, 1),
        ] {
            let mut device = CpuDevice::with_instruction_set(threads, set).unwrap();
            let mut drafter = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).unwrap();
            let mut context = drafter.context(&mut device).unwrap();
            let mut all = Vec::new();
            for index in 0..5 {
                let fork = context.fork(&mut device).unwrap();
                let (_, drafts) = round(&case, &mut device, &mut drafter, &mut context, index, chunk);
                assert_eq!(fork.tokens() + rows(&case, index), context.tokens(), "a fork stays as it is");
                all.push(drafts);
            }
            // Beside others, whose texts have other lengths.
            let mut short = drafter.context(&mut device).unwrap();
            round(&case, &mut device, &mut drafter, &mut short, 0, chunk);
            let (embed, head) = ends(&case);
            let target = TargetEnds { embed: &embed, head: &head, selectable: case.spec.vocabulary_rows };
            let sampling = Sampling { temperature: 0.9, seed: 7, ..Sampling::GREEDY };
            let lane = |context, drafts| DraftLane { context, anchor: 5, drafts, sampling };
            let most = drafter.most_drafts();
            let mut draft = |lanes: &[DraftLane<'_, CpuDevice>]| {
                drafter.draft(&mut device, &target, lanes, &mut |_, _, _, _, _| Ok(())).unwrap()
            };
            let alone = [draft(&[lane(&context, most)]), draft(&[lane(&short, 2)])].concat();
            let many: Vec<_> = (0..40)
                .map(|index| if index % 3 == 0 { lane(&short, 2) } else { lane(&context, most) })
                .collect();
            for (index, beside) in draft(&many).iter().enumerate() {
                assert_eq!(*beside, alone[usize::from(index % 3 == 0)], "{name}, lane {index}");
            }
            all.extend(alone);
            match &wanted {
                None => wanted = Some(all),
                Some(wanted) => assert_eq!(&all, wanted, "{name} {set:?} {threads} {chunk}"),
            }
        }
    }
}

#[test]
fn what_a_window_shows_is_held_and_little_more() {
    for name in ["v1-swa", "v2-qwen"] {
        let case = Case::open(name);
        let tensors = case.tensors();
        let mut device = CpuDevice::new(1).unwrap();
        let mut drafter = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).unwrap();
        let mut context = drafter.context(&mut device).unwrap();
        let width = case.spec.taps.len() * case.spec.hidden_size as usize;
        let taps = case.golden.f32("r0.target_hidden")[..width].to_vec();
        let (embed, head) = ends(&case);
        let target = TargetEnds { embed: &embed, head: &head, selectable: case.spec.vocabulary_rows };
        // Over the ends of two pages of 64 positions, one by one.
        for tokens in 1..=180 {
            let mut lanes = [AbsorbLane { context: &mut context, rows: 0..1 }];
            drafter.absorb(&mut device, &mut lanes, &taps, &mut |_, _, _, _, _| Ok(())).unwrap();
            for (layer, cache) in case.spec.layers.iter().zip(context.layers()) {
                let Some(window) = layer.window else { continue };
                // The block's first row stands at position `tokens`.
                let first = (tokens + 1usize).saturating_sub(window as usize);
                assert!(
                    (first..tokens)
                        .all(|position| cache.key(position, 0).len() == cache.value(position, 0).len())
                );
                let page = cache.bytes() / (tokens.div_ceil(64) - first / 64);
                assert!(cache.bytes() <= 2 * page && tokens.div_ceil(64) - first / 64 <= 2);
            }
            let lane = DraftLane { context: &context, anchor: 3, drafts: 7, sampling: Sampling::GREEDY };
            let drafts = drafter.draft(&mut device, &target, &[lane], &mut |_, _, _, _, _| Ok(())).unwrap();
            assert_eq!(drafts[0].len(), 7, "{name}, {tokens} tokens");
        }
    }
}

#[test]
fn drafts_are_drawn_with_the_noise_of_the_target() {
    // Where drafter and target agree, they then draw the same token.
    for name in CASES {
        let case = Case::open(name);
        let tensors = case.tensors();
        let mut device = CpuDevice::new(1).unwrap();
        let mut drafter = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).unwrap();
        let mut context = drafter.context(&mut device).unwrap();
        let (embed, head) = ends(&case);
        let vocabulary = case.spec.vocabulary_rows;
        let target = TargetEnds { embed: &embed, head: &head, selectable: vocabulary };
        let mut told_apart = 0;
        for index in 0..5 {
            round(&case, &mut device, &mut drafter, &mut context, index, 256);
            let at = |part: &str| format!("r{index}.{part}");
            let anchor = case.golden.u32(&at("block_ids"))[0];
            let logits = case.golden.f32(&at("logits"));
            let slots = logits.len() / vocabulary as usize;
            for seed in 0..4 {
                let sampling = Sampling { temperature: 0.8, seed, ..Sampling::GREEDY };
                let lane = DraftLane { context: &context, anchor, drafts: slots, sampling };
                let got = drafter.draft(&mut device, &target, &[lane], &mut |_, _, _, _, _| Ok(())).unwrap();
                // The block's first draft has all of the context and the anchor before it.
                let first = context.tokens() as u64 + 1;
                let by_rule = |first: u64| -> Vec<u32> {
                    let mut before = 0;
                    let slots = (0..slots).zip(first..);
                    slots
                        .map(|(slot, position)| match case.spec.refinement {
                            None => {
                                let row = &logits[slot * vocabulary as usize..][..vocabulary as usize];
                                draw(row, vocabulary, None, &sampling, position).unwrap()
                            }
                            Some(refinement) => {
                                let count = refinement.selector_candidates as usize;
                                let ids = &case.golden.u32(&at("cand_ids"))[slot * count..][..count];
                                let edges = case.golden.f32(&at("edges"));
                                let scores = &edges[(slot * count + before) * count..][..count];
                                let mut list: Vec<Candidate> = ids
                                    .iter()
                                    .zip(scores)
                                    .map(|(&id, &logit)| Candidate { id, logit })
                                    .collect();
                                let token = draw_from(&mut list, &sampling, position).unwrap();
                                before = ids.iter().position(|&id| id == token).unwrap();
                                token
                            }
                        })
                        .collect()
                };
                let drafts: Vec<u32> = got[0].iter().map(|draft| draft.0).collect();
                assert_eq!(drafts, by_rule(first), "{name}, round {index}, seed {seed}");
                told_apart += usize::from(drafts != by_rule(first + 1));
            }
        }
        assert!(told_apart > 10, "{name}: other positions draw other tokens");
    }
}

fn rows(case: &Case, round: usize) -> usize {
    case.golden.u32(&format!("r{round}.ctx_positions")).len()
}

#[test]
fn a_selector_walks_as_the_reference_does() {
    for name in ["v2-qwen", "v2-scaled"] {
        let case = Case::open(name);
        let tensors = case.tensors();
        let refinement = case.spec.refinement.unwrap();
        let (vocabulary, rank) = (case.spec.vocabulary_rows as usize, refinement.selector_rank as usize);
        let codebook = |which: &str| tensors.matrix(which, vocabulary, rank).unwrap();
        let (predecessor, successor) = (codebook("selector.predecessor"), codebook("selector.successor"));
        let selector = Selector::<CpuDevice> {
            predecessor: &predecessor,
            successor: &successor,
            rank,
            candidates: refinement.selector_candidates as usize,
        };
        let mut device = CpuDevice::new(1).unwrap();
        for round in 0..5 {
            let at = |part: &str| format!("r{round}.{part}");
            let logits = case.golden.f32(&at("logits"));
            let projected = case.golden.f32(&at("sel_hidden"));
            let slots = projected.len() / rank;
            let anchor = case.golden.u32(&at("block_ids"))[0];
            let mut walk = |sampling: Sampling, selectable: usize| {
                let lane = SelectLane { rows: 0..slots, anchor, sampling, position: 9 };
                let path =
                    device.select(&[lane], &selector, &logits, vocabulary, selectable as u32, &projected);
                path.unwrap().remove(0)
            };
            let path: Vec<u32> = walk(Sampling::GREEDY, vocabulary).iter().map(|draft| draft.0).collect();
            assert_eq!(path, case.golden.u32(&at("path")), "{name} {round}");
            let half = walk(Sampling::GREEDY, vocabulary / 2);
            assert!(half.iter().all(|draft| (draft.0 as usize) < vocabulary / 2));
            // The probability of a greedy pick is the softmax of the row that it was taken from.
            let scores = case.golden.f32(&at("path_scores"));
            let per_slot = refinement.selector_candidates as usize;
            for (draft, scores) in walk(Sampling::GREEDY, vocabulary).iter().zip(scores.chunks(per_slot)) {
                let largest = scores.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
                assert!((draft.1 - 1.0 / sum).abs() < 1e-4, "{name} {round}");
            }
        }
    }
}

#[test]
fn an_untrained_refinement_changes_nothing() {
    let case = Case::open("v2-qwen");
    let mut tensors = case.tensors();
    let plain = DrafterSpec { refinement: None, ..case.spec.clone() };
    // Tap 0 of every kernel is 1, the rest is 0, and so is what could tell candidates apart.
    let hidden = case.spec.hidden_size as usize;
    let mut base = vec![0u8; 2 * 2 * hidden * 2];
    for side in 0..2 {
        for channel in 0..hidden {
            let at = (side * 2 * hidden + channel) * 2;
            base[at..at + 2].copy_from_slice(&half::bf16::ONE.to_le_bytes());
        }
    }
    let zeros = vec![0u8; case.spec.vocabulary_rows as usize * hidden * 2];
    let names: Vec<String> = tensors.iter().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let mut view = tensors.get(&name).unwrap().clone();
        let bytes = view.bytes.len();
        match () {
            () if name.ends_with("conv.base") => view.bytes = &base,
            () if name.ends_with("conv.projection") || name == "selector.successor" => {
                view.bytes = &zeros[..bytes];
            }
            () => continue,
        }
        tensors.insert(name, view);
    }
    let mut device = CpuDevice::new(1).unwrap();
    let mut drafts = Vec::new();
    for spec in [case.spec.clone(), plain] {
        let mut drafter = BlockDrafter::open(&mut device, spec, &tensors).unwrap();
        let mut context = drafter.context(&mut device).unwrap();
        let rounds = (0..5)
            .map(|index| round(&case, &mut device, &mut drafter, &mut context, index, 256).1)
            .map(|drafts| drafts.into_iter().map(|draft| draft.0).collect::<Vec<u32>>());
        drafts.push(rounds.collect::<Vec<_>>());
    }
    assert_eq!(drafts[0], drafts[1]);
}

#[test]
fn what_cannot_be_drafted_is_refused() {
    let case = Case::open("v2-scaled");
    let mut tensors = case.tensors();
    let mut device = CpuDevice::new(1).unwrap();
    let mut drafter = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).unwrap();
    let context = drafter.context(&mut device).unwrap();
    let (embed, head) = ends(&case);
    let target = TargetEnds { embed: &embed, head: &head, selectable: case.spec.vocabulary_rows };
    for drafts in [0, 6] {
        let lane = DraftLane { context: &context, anchor: 1, drafts, sampling: Sampling::GREEDY };
        let refused = drafter.draft(&mut device, &target, &[lane], &mut |_, _, _, _, _| Ok(())).unwrap_err();
        assert_eq!(refused.to_string(), format!("{drafts} drafts of a block of 6 rows"));
    }
    let odd = DrafterSpec { intermediate_size: 150, ..case.spec.clone() };
    let refused = BlockDrafter::open(&mut device, odd, &tensors).err().unwrap().to_string();
    assert_eq!(refused, "the drafter's intermediate size is 150; this engine computes multiples of 16");
    tensors.remove("layers.1.ffn_conv.base");
    let refused = BlockDrafter::open(&mut device, case.spec.clone(), &tensors).err().unwrap().to_string();
    assert_eq!(refused, "tensor `layers.1.ffn_conv.base` is missing");
}
