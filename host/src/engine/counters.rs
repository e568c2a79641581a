//! What the engine has done so far, as `/health` and logs report it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::drafting::DraftCounts;

/// How far back current speeds look.
const RATE_WINDOW: Duration = Duration::from_secs(2);

/// Whether the engine can take work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// It takes requests.
    Serving,
    /// It ends what is open and takes nothing new.
    Stopping,
    /// It broke; the text is the engine's own.
    Failed(String),
}

/// Totals since the start, and what runs now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Requests that have a lane.
    pub requests_running: u64,
    /// Requests that wait for a lane.
    pub requests_waiting: u64,
    /// Requests taken in, whatever became of them.
    pub requests_total: u64,
    /// Requests that ended because nobody waited for the reply any more.
    pub requests_cancelled_total: u64,
    /// Prompt tokens of requests whose prompt is computed.
    pub prompt_tokens_total: u64,
    /// Those of them that came from a kept state.
    pub cached_tokens_total: u64,
    /// Reply tokens, running replies included.
    pub completion_tokens_total: u64,
    /// Time between first prompt chunk and first token, summed over requests.
    pub prefill_seconds_total: f64,
    /// Time between first token and end, summed over ended requests.
    pub decode_seconds_total: f64,
    /// Rounds that any reply took part in, summed over replies.
    pub rounds_total: u64,
    /// What became of drafts; `None` where the engine does not count.
    pub drafts_total: Option<DraftCounts>,
    /// Reply tokens a second over the last two seconds.
    pub decode_tokens_per_second: f64,
    /// Prompt tokens a second over the last two seconds.
    pub prefill_tokens_per_second: f64,
}

/// Token rates over the last two seconds.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// When, reply tokens, prompt tokens; oldest first.
    rounds: VecDeque<(Instant, u32, u32)>,
}

impl Rates {
    /// Notes what one round brought.
    pub(super) fn note(&mut self, now: Instant, decoded: u32, prefilled: u32) {
        self.forget_old(now);
        self.rounds.push_back((now, decoded, prefilled));
    }

    /// Reply and prompt tokens a second.
    pub(super) fn per_second(&mut self, now: Instant) -> (f64, f64) {
        self.forget_old(now);
        let total = |pick: fn(&(Instant, u32, u32)) -> u32| -> f64 {
            let sum: u64 = self.rounds.iter().map(|round| u64::from(pick(round))).sum();
            sum as f64 / RATE_WINDOW.as_secs_f64()
        };
        (total(|round| round.1), total(|round| round.2))
    }

    fn forget_old(&mut self, now: Instant) {
        while self.rounds.front().is_some_and(|(at, ..)| now.duration_since(*at) > RATE_WINDOW) {
            self.rounds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_last_two_seconds_and_nothing_older() {
        let start = Instant::now();
        let mut rates = Rates::default();
        rates.note(start, 100, 1000);
        rates.note(start + Duration::from_secs(3), 4, 0);
        rates.note(start + Duration::from_secs(4), 6, 64);
        assert_eq!(rates.per_second(start + Duration::from_secs(4)), (5.0, 32.0));
        assert_eq!(rates.per_second(start + Duration::from_secs(60)), (0.0, 0.0));
    }
}
