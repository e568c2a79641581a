//! What the host adds to a round: time per round over an engine that computes
//! nothing. Run with `cargo bench -p tensorfold --bench round_overhead`.
//!
//! Each reply is read as it is made, so waking its reader is part of the time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tensorfold::engine::{
    Drafters, EngineFacts, EngineHandle, EngineOptions, Event, GenerationRequest, LaneDrawn, LaneId,
    LaneRows, Priority, RoundEngine, RoundTimes,
};
use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::sampling::Sampling;

const ROUNDS: u32 = 200_000;
const REPEATS: usize = 5;

struct NullEngine {
    lanes: u32,
    opened: u64,
}

impl RoundEngine for NullEngine {
    fn facts(&self) -> EngineFacts {
        EngineFacts {
            name: "null".to_owned(),
            lanes: self.lanes,
            positions: u32::MAX,
            rows: 512,
            vocabulary: 1000,
            counts_drafts: true,
            outputs: 1,
            drafters: Drafters::default(),
        }
    }

    fn lane_open(&mut self) -> Result<LaneId, PluginError> {
        self.opened += 1;
        Ok(LaneId(self.opened))
    }

    fn lane_close(&mut self, _: LaneId) -> Result<(), PluginError> {
        Ok(())
    }

    fn round(
        &mut self,
        rows: &[LaneRows<'_>],
        drawn: &mut Vec<LaneDrawn>,
    ) -> Result<RoundTimes, PluginError> {
        drawn.extend(rows.iter().map(|rows| LaneDrawn {
            tokens: if rows.draws > 0 { vec![7] } else { Vec::new() },
            ..LaneDrawn::default()
        }));
        Ok(RoundTimes::default())
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for lanes in [1, 8, 32] {
        let mut times: Vec<Duration> = (0..REPEATS).map(|_| runtime.block_on(replies(lanes))).collect();
        times.sort_unstable();
        let nanoseconds = times[REPEATS / 2].as_nanos() / u128::from(ROUNDS);
        println!("{lanes:>2} lanes: {nanoseconds} ns a round (median of {REPEATS} runs of {ROUNDS} rounds)");
    }
}

/// Time for replies of `ROUNDS` tokens in all lanes at once.
async fn replies(lanes: u32) -> Duration {
    let options = EngineOptions { lanes, ..EngineOptions::default() };
    let engine = EngineHandle::start(Box::new(NullEngine { lanes, opened: 0 }), &options).expect("a thread");
    let start = Instant::now();
    let mut replies: Vec<_> = (0..lanes)
        .map(|lane| {
            engine
                .submit(GenerationRequest {
                    id: lane.to_string(),
                    prompt: vec![1],
                    max_tokens: ROUNDS,
                    sampling: Sampling::GREEDY,
                    stop_tokens: BTreeSet::new(),
                    priority: Priority::Foreground,
                    drafts: true,
                    watch: None,
                })
                .expect("an idle engine")
        })
        .collect();
    for reply in &mut replies {
        let mut tokens = 0;
        while let Some(event) = reply.next().await {
            if let Event::Tokens(more) = event {
                tokens += more.len();
            }
        }
        assert_eq!(tokens, ROUNDS as usize);
    }
    let time = start.elapsed();
    engine.stop(Duration::from_secs(10));
    time
}
