//! SmolLM2-135M-Instruct from its GGUF file to its replies: converted, served, and compared with independent
//! implementations in 32 and 64 bits.
//!
//! The file has 98 MB and is not part of this tree. `TENSORFOLD_SMOLLM2` names it; `.ci/run smollm2` fetches it and
//! sets the variable. Without the variable these tests say so and check nothing.

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::replies::{CHAT, COMPLETIONS, ids, start, token_sha};
use support::{Sandbox, json as parse, workspace};
use tensorfold::checkpoint::{Checkpoint, ElementType};
use tensorfold_kernels::cpu::{CpuDevice, InstructionSet};
use tensorfold_kernels::device::{Device as _, DeviceResult};
use tensorfold_kernels::executor::{Executor, NextDrafts, Observer, Options, Point, Step};
use tensorfold_kernels::weights::{ElementType as Element, Packing, TensorView, Tensors};
use tensorfold_plugin_api::sampling::Sampling;

const VARIABLE: &str = "TENSORFOLD_SMOLLM2";
/// Of logits up to 30 and more; the references differ from each other by a hundredth of it.
const TOLERANCE: f32 = 1e-2;

fn source() -> Option<PathBuf> {
    let Some(path) = std::env::var_os(VARIABLE) else {
        println!(
            "skipped: {VARIABLE} does not name SmolLM2-135M-Instruct.Q4_1.gguf (.ci/run smollm2 fetches it)"
        );
        return None;
    };
    let path = PathBuf::from(path);
    assert!(path.is_file(), "{VARIABLE} names {}, which is no file", path.display());
    Some(path)
}

fn converted(sandbox: &Sandbox, source: &Path) -> PathBuf {
    let output = sandbox.here().join("SmolLM2-135M-Instruct");
    let done = sandbox.tensorfold(["convert"]).arg(source).arg(&output).run();
    done.exits(0);
    assert!(done.stdout.contains("lossless: 272 tensors\n"), "{}", done.stdout);
    assert!(!done.stdout.contains("rounded") && !done.stdout.contains("quantized"), "{}", done.stdout);
    output
}

fn cases() -> Vec<Value> {
    let path = workspace().join("tests/goldens/expect/smollm2.json");
    let cases = parse(&std::fs::read_to_string(path).unwrap())["cases"].as_array().unwrap().clone();
    assert_eq!(cases.len(), 6);
    cases
}

#[test]
fn its_replies_are_those_of_the_references() {
    let Some(source) = source() else { return };
    let sandbox = Sandbox::new();
    let model = converted(&sandbox, &source);
    let server = start(&sandbox, &model, &[]);
    for case in cases() {
        let greedy = ids(&case["greedy"]);
        let mut body = json!({ "max_tokens": greedy.len(), "temperature": 0, "ignore_eos": true });
        // As a conversation where the case is one, so that the template of the file is tried; else as text.
        let path = match case["user"].as_str() {
            Some(user) => {
                body["messages"] = json!([{ "role": "user", "content": user }]);
                CHAT
            }
            None => {
                body["prompt"] = case["text"].clone();
                COMPLETIONS
            }
        };
        let reply = server.whole(path, &body);
        assert_eq!(reply.prompt_tokens, ids(&case["ids"]).len() as u64, "{reply:?}");
        assert_eq!(reply.token_sha, token_sha(&greedy), "{reply:?}");
        body["prompt"] = case["ids"].clone();
        if let Some(body) = body.as_object_mut() {
            body.remove("messages");
        }
        assert_eq!(server.whole(COMPLETIONS, &body).token_sha, token_sha(&greedy), "by ids: {reply:?}");
    }
}

/// Keeps the logits that pass by.
#[derive(Default)]
struct Logits(Vec<f32>);

impl Observer<CpuDevice> for Logits {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        if point == Point::Logits {
            self.0 = device.read(rows, width, values)?;
        }
        Ok(())
    }
}

#[test]
fn its_first_logits_are_those_of_the_references() {
    let Some(source) = source() else { return };
    let sandbox = Sandbox::new();
    let checkpoint = Checkpoint::open(&converted(&sandbox, &source)).unwrap();
    assert_eq!(checkpoint.spec.formats, ["mlx-q4g32", "mlx-q8g32"]);
    let mut tensors = Tensors::new();
    for tensor in &checkpoint.tensors {
        let view = TensorView {
            element: match tensor.element {
                ElementType::F32 => Element::F32,
                ElementType::F16 => Element::F16,
                ElementType::Bf16 => Element::Bf16,
                ElementType::U32 => Element::U32,
            },
            shape: tensor.shape.iter().map(|&axis| axis as usize).collect(),
            packed: tensor.packing.map(|packing| Packing { bits: packing.bits, group: packing.group_size }),
            bytes: checkpoint.bytes(tensor),
        };
        tensors.insert(tensor.name.clone(), view);
    }
    let device = CpuDevice::with_instruction_set(2, InstructionSet::best()).unwrap();
    let options = Options { lanes: 1, context: 512 };
    let mut executor = Executor::open(device, checkpoint.spec.clone(), &tensors, options).unwrap();
    for case in cases() {
        let prompt = ids(&case["ids"]);
        let prompt: Vec<u32> = prompt.iter().map(|&id| u32::try_from(id).unwrap()).collect();
        let mut lane = executor.open_lane().unwrap();
        let mut logits = Logits::default();
        let mut steps = [Step {
            lane: &mut lane,
            tokens: &prompt,
            drafts: 0,
            outputs: 1,
            sampling: Sampling::GREEDY,
            allowed: &[],
            log_probabilities: None,
            next_drafts: NextDrafts::default(),
            cancelled: &|| false,
        }];
        executor.round_observed(&mut steps, &mut logits).unwrap();
        executor.close_lane(lane);
        let mut order: Vec<usize> = (0..logits.0.len()).collect();
        order.sort_by(|&a, &b| logits.0[b].total_cmp(&logits.0[a]));
        let best = case["best"].as_array().unwrap();
        assert_eq!(best.len(), 5);
        for (rank, wanted) in best.iter().enumerate() {
            let id = wanted[0].as_u64().unwrap() as usize;
            let off = logits.0[id] - wanted[1].as_f64().unwrap() as f32;
            assert!(off.abs() <= TOLERANCE, "id {id} is off by {off}: {}", case["text"]);
            assert_eq!(order[rank], id, "place {rank}: {}", case["text"]);
        }
    }
}
