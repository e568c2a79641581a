//! The engine against independent implementations in float64.

mod support;

use std::collections::HashMap;

use serde_json::Value;
use support::*;
use tensorfold_kernels::cpu::{CpuDevice, Routes};
use tensorfold_kernels::device::{Device, DeviceResult};
use tensorfold_kernels::executor::{LaneLayer, Observer, Point};
use tensorfold_plugin_api::model_spec::{FeedForwardSpec, MixerSpec};
use tensorfold_plugin_api::sampling::Sampling;

/// Keeps what passes by.
#[derive(Default)]
struct Recorder {
    values: Vec<(Point, Vec<f32>)>,
    /// By layer: experts and their weights, row by row.
    routes: HashMap<usize, Vec<(u32, f32)>>,
}

impl Observer<CpuDevice> for Recorder {
    fn observe(
        &mut self,
        device: &mut CpuDevice,
        point: Point,
        rows: usize,
        width: usize,
        values: &Vec<f32>,
    ) -> DeviceResult {
        self.values.push((point, device.read(rows, width, values)?));
        Ok(())
    }

    fn observe_routes(&mut self, device: &mut CpuDevice, layer: usize, routes: &Routes) -> DeviceResult {
        self.routes.entry(layer).or_default().extend(device.read_routes(routes)?);
        Ok(())
    }
}

impl Recorder {
    /// All rows that were seen at a point.
    fn get(&self, point: Point) -> Vec<f32> {
        self.values.iter().filter(|entry| entry.0 == point).flat_map(|entry| entry.1.clone()).collect()
    }
}

const LOGITS: f32 = 5e-4;
const STATES: f32 = 1e-4;

struct Golden {
    expected: Value,
    vectors: Vectors,
    checkpoint: Checkpoint,
    hf_form: bool,
}

impl Golden {
    fn open(name: &str) -> Golden {
        let expected = json(&format!("goldens/expect/{name}.json"));
        let limit = expected["tokenizer_limit"].as_u64().unwrap() as u32;
        Golden {
            vectors: Vectors::open(&format!("goldens/expect/{name}.safetensors")),
            checkpoint: Checkpoint::open(&format!("goldens/{name}"), limit),
            hf_form: !name.contains("mlx"),
            expected,
        }
    }

    fn close(&self, name: &str, got: &[f32], tolerance: f32) {
        let worst = difference(got, &self.vectors.f32(name));
        assert!(worst <= tolerance, "{name}: {worst:e}");
    }

    /// Logits of the prompts, and 64 greedy tokens after each.
    fn prompts(&self) {
        let tensors = self.checkpoint.tensors();
        let mut executor = executor(&self.checkpoint, &tensors, 2);
        let vocabulary = self.checkpoint.spec.vocabulary_rows as usize;
        for (index, prompt) in self.expected["prompts"].as_array().unwrap().iter().enumerate() {
            let tokens = ids(&prompt["ids"]);
            let outputs = tokens.len().min(8);
            let mut lane = executor.open_lane().unwrap();
            let mut recorder = Recorder::default();
            let outcome = executor
                .round_observed(&mut [step(&mut lane, &tokens, 0, outputs, Sampling::GREEDY)], &mut recorder)
                .unwrap();
            let logits = recorder.get(Point::Logits);
            self.close(&format!("p{index}.logits_prefill"), &logits, LOGITS);

            let greedy = ids(&prompt["greedy"]);
            let top_logits = self.vectors.f32(&format!("p{index}.step_top_logits"));
            let top_ids = self.vectors.u32(&format!("p{index}.step_top_ids"));
            let mut drawn = outcome.lanes[0].draws.last().unwrap().token.unwrap();
            let mut last = logits[(outputs - 1) * vocabulary..].to_vec();
            for (number, &wanted) in greedy.iter().enumerate() {
                assert_eq!(drawn, wanted, "prompt {index}, token {number}");
                for rank in number * 8..number * 8 + 8 {
                    let id = top_ids[rank];
                    let off = (last[id as usize] - top_logits[rank]).abs();
                    assert!(off <= LOGITS, "prompt {index}, token {number}, id {id}: {off:e}");
                }
                let mut recorder = Recorder::default();
                let outcome = executor
                    .round_observed(&mut [step(&mut lane, &[drawn], 0, 1, Sampling::GREEDY)], &mut recorder)
                    .unwrap();
                drawn = outcome.lanes[0].draws[0].token.unwrap();
                last = recorder.get(Point::Logits);
            }
            executor.close_lane(lane);
        }
    }

    /// Values on the way, and states after.
    fn insides(&self) {
        let tensors = self.checkpoint.tensors();
        let mut executor = executor(&self.checkpoint, &tensors, 1);
        let tokens = ids(&self.expected["hidden_ids"]);
        let mut lane = executor.open_lane().unwrap();
        let mut seen = Recorder::default();
        executor
            .round_observed(&mut [step(&mut lane, &tokens, 0, tokens.len(), Sampling::GREEDY)], &mut seen)
            .unwrap();
        self.close("h.embed", &seen.get(Point::Embedding), STATES);
        self.close("h.final_norm", &seen.get(Point::FinalNorm), STATES);
        let last = self.checkpoint.spec.layers.len() - 1;
        for layer in 0..=last {
            self.close(&format!("h.layer{layer}"), &seen.get(Point::Layer(layer)), STATES);
        }
        // Only the checkpoints in the form of their makers come with everything.
        let hf_form = self.hf_form;
        for layer in [0, last].into_iter().filter(|_| hf_form) {
            let name = |part: &str| format!("h.layer{layer}.{part}");
            self.close(&name("input_norm"), &seen.get(Point::InputNorm(layer)), STATES);
            self.close(&name("mixer"), &seen.get(Point::Mixer(layer)), STATES);
            self.close(&name("post_norm"), &seen.get(Point::PostNorm(layer)), STATES);
            self.close(&name("ffn"), &seen.get(Point::FeedForward(layer)), STATES);
        }
        let layers = &self.checkpoint.spec.layers;
        let routed =
            |layer: &usize| matches!(layers[*layer].feed_forward, FeedForwardSpec::MixtureOfExperts { .. });
        for layer in [0, last].into_iter().filter(|layer| hf_form && routed(layer)) {
            let name = |part: &str| format!("h.layer{layer}.{part}");
            self.close(&name("router_logits"), &seen.get(Point::RouterLogits(layer)), STATES);
            let (chosen, weights): (Vec<u32>, Vec<f32>) = seen.routes[&layer].iter().copied().unzip();
            assert_eq!(chosen, self.vectors.u32(&name("expert_ids")), "layer {layer}");
            self.close(&name("expert_weights"), &weights, STATES);
        }
        if hf_form && matches!(layers[0].mixer, MixerSpec::GatedDelta(_)) {
            self.close("h.layer0.conv_out", &seen.get(Point::Convolved(0)), STATES);
            let log_decays: Vec<f32> = seen.get(Point::Decays(0)).iter().map(|decay| decay.ln()).collect();
            self.close("h.layer0.g", &log_decays, STATES);
            self.close("h.layer0.beta", &seen.get(Point::Strengths(0)), STATES);
            self.close("h.layer0.gdn_core", &seen.get(Point::Recurred(0)), STATES);
            self.close("h.layer0.gated_norm", &seen.get(Point::GatedNorm(0)), STATES);
        }
        for (index, layer) in lane.layers().iter().enumerate().filter(|_| hf_form) {
            match layer {
                LaneLayer::Delta(state) => {
                    self.close(&format!("state.layer{index}.conv"), state.window(), STATES);
                    if index == 0 {
                        self.close("state.layer0.S", state.memory(), STATES);
                    }
                }
                LaneLayer::KeyValues(cache) => {
                    let keys: Vec<f32> = (0..tokens.len()).flat_map(|t| cache.key(t, 0)).collect();
                    let values: Vec<f32> =
                        (0..tokens.len()).flat_map(|t| cache.value(t, 0).to_vec()).collect();
                    self.close(&format!("state.layer{index}.k"), &keys, STATES);
                    self.close(&format!("state.layer{index}.v"), &values, STATES);
                }
            }
        }
    }
}

#[test]
fn the_tiny_hybrid_in_bf16_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3_5").prompts();
}

#[test]
fn the_tiny_hybrid_in_bf16_is_right_inside() {
    Golden::open("tiny-qwen3_5").insides();
}

#[test]
fn the_tiny_hybrid_in_four_bits_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3_5-mlx-4bit").prompts();
}

#[test]
fn the_tiny_hybrid_in_four_bits_is_right_inside() {
    Golden::open("tiny-qwen3_5-mlx-4bit").insides();
}

#[test]
fn the_tiny_hybrid_of_experts_in_bf16_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3_5_moe").prompts();
}

#[test]
fn the_tiny_hybrid_of_experts_in_bf16_is_right_inside() {
    Golden::open("tiny-qwen3_5_moe").insides();
}

#[test]
fn the_tiny_hybrid_of_experts_in_four_bits_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3_5_moe-mlx-4bit").prompts();
}

#[test]
fn the_tiny_hybrid_of_experts_in_four_bits_is_right_inside() {
    Golden::open("tiny-qwen3_5_moe-mlx-4bit").insides();
}

#[test]
fn the_tiny_llama_in_bf16_gives_its_logits_and_tokens() {
    Golden::open("tiny-llama").prompts();
}

#[test]
fn the_tiny_llama_in_bf16_is_right_inside() {
    Golden::open("tiny-llama").insides();
}

#[test]
fn the_tiny_llama_in_four_bits_gives_its_logits_and_tokens() {
    Golden::open("tiny-llama-mlx-4bit").prompts();
}

#[test]
fn the_tiny_llama_in_four_bits_is_right_inside() {
    Golden::open("tiny-llama-mlx-4bit").insides();
}

#[test]
fn the_tiny_qwen2_with_biases_in_bf16_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen2").prompts();
}

#[test]
fn the_tiny_qwen2_with_biases_in_bf16_is_right_inside() {
    Golden::open("tiny-qwen2").insides();
}

#[test]
fn the_tiny_qwen2_with_biases_in_four_bits_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen2-mlx-4bit").prompts();
}

#[test]
fn the_tiny_qwen2_with_biases_in_four_bits_is_right_inside() {
    Golden::open("tiny-qwen2-mlx-4bit").insides();
}

#[test]
fn the_tiny_qwen3_with_head_norms_in_bf16_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3").prompts();
}

#[test]
fn the_tiny_qwen3_with_head_norms_in_bf16_is_right_inside() {
    Golden::open("tiny-qwen3").insides();
}

#[test]
fn the_tiny_qwen3_with_head_norms_in_four_bits_gives_its_logits_and_tokens() {
    Golden::open("tiny-qwen3-mlx-4bit").prompts();
}

#[test]
fn the_tiny_qwen3_with_head_norms_in_four_bits_is_right_inside() {
    Golden::open("tiny-qwen3-mlx-4bit").insides();
}

#[test]
fn the_demo_model_says_what_it_was_trained_to_say() {
    let goldens = json("models/demo-goldens.json");
    let checkpoint = Checkpoint::open("models/demo", 8180);
    let tensors = checkpoint.tensors();
    let mut executor = executor(&checkpoint, &tensors, 2);
    for prompt in goldens["prompts"].as_array().unwrap() {
        let greedy = ids(&prompt["greedy"]);
        let got = generate(&mut executor, &ids(&prompt["prompt_ids"]), greedy.len(), Sampling::GREEDY);
        assert_eq!(got, greedy, "{}", prompt["prompt"]);
    }
}

#[test]
fn a_wrong_weight_is_noticed() {
    // The goldens can fail: one other norm weight of 128 is enough.
    let golden = Golden::open("tiny-qwen3_5");
    let mut tensors = golden.checkpoint.tensors();
    let mut norm = tensors.get("layers.2.post_norm").unwrap().clone();
    let mut bytes = norm.bytes.to_vec();
    bytes[1] ^= 0x3f;
    norm.bytes = &bytes;
    tensors.insert("layers.2.post_norm", norm);
    let mut executor = executor(&golden.checkpoint, &tensors, 1);
    let tokens = ids(&golden.expected["prompts"][0]["ids"]);
    let mut lane = executor.open_lane().unwrap();
    let mut seen = Recorder::default();
    let outputs = tokens.len().min(8);
    executor
        .round_observed(&mut [step(&mut lane, &tokens, 0, outputs, Sampling::GREEDY)], &mut seen)
        .unwrap();
    let worst = difference(&seen.get(Point::Logits), &golden.vectors.f32("p0.logits_prefill"));
    assert!(worst > LOGITS, "{worst:e}");
}
