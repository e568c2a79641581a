//! Goldens through the whole program: command line, plugin, tokenizer, template, engine, server. Every reply is
//! compared token by token with those of independent implementations, by the digest that replies carry.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::replies::{CHAT, COMPLETIONS, ids, start, token_sha};
use support::{Sandbox, demo_model, json as parse, workspace};

const IM_START: u64 = 8171;

fn read(path: &str) -> Value {
    let path = workspace().join("tests").join(path);
    parse(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn demo_goldens() -> Vec<Value> {
    let prompts = read("models/demo-goldens.json")["prompts"].as_array().unwrap().clone();
    assert_eq!(prompts.len(), 10);
    prompts
}

#[test]
fn the_demo_gives_its_ten_golden_replies_to_token_ids() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    for golden in demo_goldens() {
        let body = json!({ "prompt": golden["prompt_ids"], "max_tokens": 64, "temperature": 0 });
        let reply = server.whole(COMPLETIONS, &body);
        let greedy = ids(&golden["greedy"]);
        let what = &golden["prompt"];
        assert_eq!(reply.token_sha, token_sha(&greedy), "{what}: {reply:?}");
        assert_eq!(reply.text, golden["text"].as_str().unwrap().trim_end_matches("<|im_end|>"), "{what}");
        assert_eq!(reply.finish, golden["finish"], "{what}");
        assert_eq!(reply.tokens, greedy.len() as u64, "{what}");
        assert_eq!(reply.prompt_tokens, ids(&golden["prompt_ids"]).len() as u64, "{what}");
    }
}

#[test]
fn the_demo_gives_its_ten_golden_replies_to_words() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    for golden in demo_goldens() {
        let prompt = golden["prompt"].as_str().unwrap();
        let wanted = golden["text"].as_str().unwrap().trim_end_matches("<|im_end|>");
        let prompt_ids = ids(&golden["prompt_ids"]);
        let reply = if prompt_ids[0] == IM_START {
            let (question, thinking) = match prompt.strip_suffix(" (thinking on)") {
                Some(question) => (question, true),
                None => (prompt, false),
            };
            let body = json!({
                "messages": [{ "role": "user", "content": question }],
                "chat_template_kwargs": { "enable_thinking": thinking },
                "max_tokens": 64,
                "temperature": 0,
            });
            let reply = server.streamed(CHAT, &body);
            let (reasoning, content) = wanted.split_once("</think>").unwrap_or(("", wanted));
            assert_eq!(!reasoning.is_empty(), thinking, "{prompt}");
            assert_eq!(reply.reasoning.trim(), reasoning.trim(), "{prompt}");
            assert_eq!(reply.text, content.trim_start_matches('\n'), "{prompt}");
            reply
        } else {
            let reply = server
                .streamed(COMPLETIONS, &json!({ "prompt": prompt, "max_tokens": 64, "temperature": 0 }));
            assert_eq!(reply.text, wanted, "{prompt}");
            reply
        };
        assert_eq!(reply.prompt_tokens, prompt_ids.len() as u64, "{prompt}");
        assert_eq!(reply.token_sha, token_sha(&ids(&golden["greedy"])), "{prompt}: {reply:?}");
        assert_eq!(reply.finish, golden["finish"], "{prompt}");
    }
}

#[track_caller]
fn continues_as_the_references_do(checkpoint: &str) {
    serves_golden(checkpoint, &Sandbox::new(), &tiny_model(checkpoint));
}

/// Three prompts, the last one longer than a chunk of 64 positions, each continued by 64 tokens past any stop token.
#[track_caller]
fn serves_golden(checkpoint: &str, sandbox: &Sandbox, folder: &Path) {
    let golden = read(&format!("goldens/expect/{checkpoint}.json"));
    let server = start(sandbox, folder, &[]);
    let prompts = golden["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 3);
    for prompt in prompts {
        let greedy = ids(&prompt["greedy"]);
        assert_eq!(greedy.len(), 64);
        let body = json!({ "prompt": prompt["ids"], "max_tokens": 64, "temperature": 0, "ignore_eos": true });
        let reply = server.reply(COMPLETIONS, &body);
        assert_eq!(reply.token_sha, token_sha(&greedy), "{checkpoint}: {reply:?}");
        assert_eq!((reply.tokens, reply.finish.as_str()), (64, "length"));
        // Marks such as the end of a turn are no text.
        let marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
        let text = prompt["greedy_text"].as_str().unwrap().to_owned();
        assert_eq!(reply.text, marks.iter().fold(text, |text, mark| text.replace(mark, "")));
    }
    let longest = prompts.iter().map(|prompt| ids(&prompt["ids"]).len()).max();
    assert!(longest > Some(64 + 32), "a prompt of more than a chunk: {longest:?}");
}

fn tiny_model(name: &str) -> PathBuf {
    workspace().join("tests/goldens").join(name)
}

macro_rules! continues_as_the_references_do {
    ($($test:ident: $checkpoint:literal,)*) => {$(
        #[test]
        fn $test() {
            continues_as_the_references_do($checkpoint);
        }
    )*};
}

continues_as_the_references_do! {
    llama_in_bfloat16: "tiny-llama",
    llama_in_4_bits: "tiny-llama-mlx-4bit",
    qwen2_in_bfloat16: "tiny-qwen2",
    qwen2_in_4_bits: "tiny-qwen2-mlx-4bit",
    qwen3_in_bfloat16: "tiny-qwen3",
    qwen3_in_4_bits: "tiny-qwen3-mlx-4bit",
    qwen3_5_in_bfloat16: "tiny-qwen3_5",
    qwen3_5_in_4_bits: "tiny-qwen3_5-mlx-4bit",
    qwen3_5_with_experts_in_bfloat16: "tiny-qwen3_5_moe",
    qwen3_5_with_experts_in_4_bits: "tiny-qwen3_5_moe-mlx-4bit",
}

/// A copy of a checkpoint with its tensors stored differently, in as many files as `place` gives numbers.
fn stored_anew(
    sandbox: &Sandbox,
    checkpoint: &str,
    change: impl Fn(&str, Stored) -> Vec<(String, Stored)>,
    place: impl Fn(&str) -> usize,
) -> PathBuf {
    let bytes = std::fs::read(tiny_model(checkpoint).join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut files: BTreeMap<usize, Vec<(String, Stored)>> = BTreeMap::new();
    for (name, view) in file.iter() {
        let stored =
            Stored { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
        for (name, stored) in change(name, stored) {
            files.entry(place(&name)).or_default().push((name, stored));
        }
    }
    let mut map = BTreeMap::new();
    for (number, tensors) in &files {
        let file = format!("model-{:05}-of-{:05}.safetensors", number + 1, files.len());
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), file.clone())));
        let views = tensors.iter().map(|(name, stored)| {
            let view =
                safetensors::tensor::TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes);
            (name, view.unwrap())
        });
        sandbox.file(&format!("{checkpoint}/{file}"), safetensors::serialize(views, None).unwrap());
    }
    let index = json!({ "weight_map": map });
    sandbox.file(&format!("{checkpoint}/model.safetensors.index.json"), index.to_string());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let content = std::fs::read(tiny_model(checkpoint).join(name)).unwrap();
        sandbox.file(&format!("{checkpoint}/{name}"), content);
    }
    sandbox.path().join(checkpoint)
}

/// A tensor as it is stored.
struct Stored {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

#[test]
fn experts_that_are_stored_one_by_one_continue_as_those_in_a_stack() {
    let one_by_one = |name: &str, stored: Stored| {
        let Some((module, part)) = name.rsplit_once('.').filter(|(module, _)| module.ends_with(".experts"))
        else {
            return vec![(name.to_owned(), stored)];
        };
        let parts: &[&str] = if part == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
        let [experts, rows, columns] = stored.shape[..] else { panic!("{name} is a stack") };
        let pieces = stored.bytes.chunks(stored.bytes.len() / (experts * parts.len()));
        let piece = |(index, bytes): (usize, &[u8])| {
            let name = format!("{module}.{}.{}.weight", index / parts.len(), parts[index % parts.len()]);
            let shape = vec![rows / parts.len(), columns];
            (name, Stored { dtype: stored.dtype, shape, bytes: bytes.to_vec() })
        };
        pieces.enumerate().map(piece).collect()
    };
    let sandbox = Sandbox::new();
    let folder = stored_anew(&sandbox, "tiny-qwen3_5_moe", one_by_one, |_| 0);
    serves_golden("tiny-qwen3_5_moe", &sandbox, &folder);
}

#[test]
fn several_files_in_float32_continue_as_one_in_bfloat16() {
    let float32 = |name: &str, stored: Stored| {
        // The upper half of a float32 is a bfloat16: nothing is rounded.
        let bytes = stored.bytes.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
        vec![(name.to_owned(), Stored { dtype: safetensors::Dtype::F32, shape: stored.shape, bytes })]
    };
    for checkpoint in ["tiny-llama", "tiny-qwen2"] {
        let sandbox = Sandbox::new();
        let folder = stored_anew(&sandbox, checkpoint, float32, |name| name.len() % 3);
        serves_golden(checkpoint, &sandbox, &folder);
    }
}

/// The server reads prompts in pieces of 512 rows. A reply's tokens, once they are part of the prompt, come to lie in
/// those pieces and at both sides of their borders, and nothing that is drawn after them may change.
#[test]
fn a_reply_is_the_same_whether_its_tokens_were_drawn_or_given() {
    const PROMPT: usize = 510;
    const STEPS: u64 = 3;
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    let all: Vec<u64> = demo_goldens()
        .iter()
        .flat_map(|golden| [ids(&golden["prompt_ids"]), ids(&golden["greedy"])].concat())
        .collect();
    let mut prompt: Vec<u64> = all.iter().copied().cycle().take(PROMPT).collect();
    let body = |prompt: &[u64], tokens: u64| {
        json!({
            "prompt": prompt, "max_tokens": tokens, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 11,
            "ignore_eos": true,
        })
    };
    let reply = server.whole(COMPLETIONS, &body(&prompt, STEPS));
    assert_eq!(reply.prompt_tokens, PROMPT as u64);
    for _ in 0..STEPS {
        let next = server.whole(COMPLETIONS, &body(&prompt, 1));
        let token = (0..8180).find(|&token| token_sha(&[token]) == next.token_sha);
        prompt.push(token.expect("a token of the vocabulary"));
    }
    let drawn = prompt.split_off(PROMPT);
    assert_eq!(token_sha(&drawn), reply.token_sha, "{drawn:?}");
}
