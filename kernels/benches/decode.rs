//! Tokens per second of a model on the CPU, by thread count.
//!
//! `cargo bench -p tensorfold-kernels --bench decode -- [FOLDER] [THREADS...] [int8] [all] [once] [drafts]`
//!
//! FOLDER is a checkpoint in MLX's form, by default the demo model. A prompt
//! of 512 tokens in one call, then 128 greedy tokens one by one, and the same
//! verified eight at a time; the median of five runs each, on the machine's best
//! instruction set or, with `all`, on each one that is made for speed. With
//! `int8`, activations are multiplied as whole numbers. `once` is for scripts:
//! one run each, as seconds to load, the two rates, and the peak of resident
//! memory in MiB. `drafts` is for the demo model: its golden prompts, greedily,
//! with drafts of its multi-token prediction head and without.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use support::*;
use tensorfold_kernels::cpu::{Activations, CpuDevice, InstructionSet};
use tensorfold_kernels::executor::{NextDrafts, Step};
use tensorfold_kernels::weights::Tensors;
use tensorfold_plugin_api::sampling::Sampling;

const PROMPT: usize = 512;
const REPLY: usize = 128;

fn median(mut run: impl FnMut() -> f64) -> f64 {
    let mut rates: Vec<f64> = (0..5).map(|_| run()).collect();
    rates.sort_by(f64::total_cmp);
    rates[2]
}

/// Tokens of a prompt a second.
fn prompt_rate(executor: &mut Cpu<'_>, prompt: &[u32]) -> f64 {
    let mut lane = executor.open_lane().unwrap();
    let start = Instant::now();
    feed(executor, &mut lane, prompt, 1, Sampling::GREEDY);
    let rate = prompt.len() as f64 / start.elapsed().as_secs_f64();
    executor.close_lane(lane);
    rate
}

/// Greedy tokens a second after a prompt.
fn reply_rate(executor: &mut Cpu<'_>, prompt: &[u32]) -> f64 {
    let mut lane = executor.open_lane().unwrap();
    let mut pending = feed(executor, &mut lane, prompt, 1, Sampling::GREEDY).draws[0].token;
    let start = Instant::now();
    for _ in 0..REPLY {
        let token = [pending.unwrap()];
        pending = feed(executor, &mut lane, &token, 1, Sampling::GREEDY).draws[0].token;
    }
    let rate = REPLY as f64 / start.elapsed().as_secs_f64();
    executor.close_lane(lane);
    rate
}

/// Replies to `prompts` with `count` drafts a round: tokens a second, tokens a
/// round, and the share of drafts that were accepted.
fn drafting_rate(executor: &mut Cpu<'_>, prompts: &[Vec<u32>], count: usize) -> [f64; 3] {
    let (mut tokens, mut rounds, mut drafted, mut accepted) = (0, 0, 0, 0);
    let mut spent = 0.0;
    for prompt in prompts {
        let mut lane = executor.open_lane().unwrap();
        let wanted = NextDrafts { count, ..NextDrafts::default() };
        let first = Step { next_drafts: wanted, ..step(&mut lane, prompt, 0, 1, Sampling::GREEDY) };
        let mut got = executor.round(&mut [first]).unwrap().lanes.remove(0);
        let start = Instant::now();
        let mut reply = 0;
        while reply < REPLY {
            let mut fed = vec![got.draws.last().unwrap().token.unwrap()];
            fed.extend(got.drafts.iter().map(|draft| draft.0));
            let drafts = fed.len() - 1;
            let next =
                Step { next_drafts: wanted, ..step(&mut lane, &fed, drafts, drafts + 1, Sampling::GREEDY) };
            got = executor.round(&mut [next]).unwrap().lanes.remove(0);
            reply += got.draws.len();
            rounds += 1;
            drafted += drafts;
            accepted += got.accepted;
        }
        spent += start.elapsed().as_secs_f64();
        tokens += reply;
        executor.close_lane(lane);
    }
    let share = if drafted == 0 { 0.0 } else { f64::from(accepted as u32) / f64::from(drafted as u32) };
    [tokens as f64 / spent, tokens as f64 / f64::from(rounds), share]
}

/// With and without drafts, the median of five runs by turns.
fn compare_drafts(checkpoint: &Checkpoint, tensors: &Tensors<'_>, threads: usize, activations: Activations) {
    let goldens = json("models/demo-goldens.json");
    let prompts: Vec<Vec<u32>> =
        goldens["prompts"].as_array().unwrap().iter().map(|prompt| ids(&prompt["prompt_ids"])).collect();
    let open = |head: bool| {
        let device = CpuDevice::new(threads).unwrap().with_activations(activations);
        let mut executor = executor_of(checkpoint, tensors, device);
        if head {
            executor.open_head(tensors).unwrap();
        }
        executor
    };
    let mut rows = [("no head", false, 0), ("parked", true, 0), ("MTP 1", true, 1), ("MTP 3", true, 3)]
        .map(|(name, head, count)| (name, open(head), count, Vec::new()));
    for _ in 0..5 {
        for (_, executor, count, runs) in &mut rows {
            runs.push(drafting_rate(executor, &prompts, *count));
        }
    }
    println!("drafts     threads  tok/s  tok/round  accepted");
    for (name, _, _, mut runs) in rows {
        runs.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [rate, tokens, share] = runs[2];
        println!("{name:<9}  {threads:>7}  {rate:>5.0}  {tokens:>9.3}  {share:>8.3}");
    }
}

/// The most memory that was resident, in MiB; 0 where the system does not say.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    kibibytes.unwrap_or(0.0) / 1024.0
}

fn main() {
    // Cargo passes `--bench`; the rest is ours.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let mut threads: Vec<usize> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let int8 = arguments.iter().any(|text| text == "int8");
    let activations = if int8 { Activations::Int8 } else { Activations::F32 };
    let all = arguments.iter().any(|text| text == "all");
    let folder = arguments.iter().find(|text| {
        text.parse::<usize>().is_err() && !["all", "int8", "once", "drafts"].contains(&&***text)
    });
    if threads.is_empty() {
        threads = (1..=std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    let start = Instant::now();
    let checkpoint = match folder {
        Some(folder) => Checkpoint::open(folder, u32::MAX),
        None => Checkpoint::open("models/demo", 8180),
    };
    let tensors = checkpoint.tensors();
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + 11) % 8000).collect();
    if arguments.iter().any(|text| text == "once") {
        let device = CpuDevice::new(threads[0]).unwrap().with_activations(activations);
        let mut executor = executor_of(&checkpoint, &tensors, device);
        let loaded = start.elapsed().as_secs_f64();
        prompt_rate(&mut executor, &prompt[..16]);
        let (prefill, decode) = (prompt_rate(&mut executor, &prompt), reply_rate(&mut executor, &prompt));
        println!("{loaded:.3} {prefill:.1} {decode:.1} {:.0}", peak_memory());
        return;
    }
    if arguments.iter().any(|text| text == "drafts") {
        for &threads in &threads {
            compare_drafts(&checkpoint, &tensors, threads, activations);
        }
        return;
    }
    println!("set        threads  prompt tok/s  decode tok/s  verify-8 rows/s");
    for set in InstructionSet::available() {
        // Portable code is the reference, not a way to run models.
        let slow = set == InstructionSet::Portable && cfg!(target_arch = "x86_64");
        if slow || (!all && set != InstructionSet::best()) {
            continue;
        }
        for &threads in &threads {
            let mut executor = {
                let device =
                    CpuDevice::with_instruction_set(threads, set).unwrap().with_activations(activations);
                executor_of(&checkpoint, &tensors, device)
            };
            let prefill = median(|| prompt_rate(&mut executor, &prompt));
            let decode = median(|| reply_rate(&mut executor, &prompt));
            let mut lane = executor.open_lane().unwrap();
            feed(&mut executor, &mut lane, &prompt, 1, Sampling::GREEDY);
            let verify = median(|| {
                let rounds = REPLY / 8;
                let start = Instant::now();
                for _ in 0..rounds {
                    // Mostly wrong drafts: what counts is the rows that were computed.
                    let mut steps = [step(&mut lane, &prompt[..8], 7, 8, Sampling::GREEDY)];
                    executor.round(&mut steps).unwrap();
                }
                (rounds * 8) as f64 / start.elapsed().as_secs_f64()
            });
            let name = set.name();
            println!("{name:<9}  {threads:>7}  {prefill:>12.0}  {decode:>12.0}  {verify:>15.0}");
        }
    }
}
