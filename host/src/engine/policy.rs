//! How far to draft: from what rounds cost and from how often drafts held.
//!
//! For each lane and proposer the acceptance of the first, second, .. draft is
//! averaged; for the engine, the time of rounds by their rows and the time of
//! drafting. Taken is the depth with the most tokens per time for all lanes
//! together. A proposer that does not pay is parked and tried again after
//! growing pauses. An account holds what drafting cost against what the same
//! tokens would have taken one a round; overdrawn, it ends drafting until plain
//! rounds have earned the loss back, so that wrong estimates cannot cost more
//! than a small share of the time.
//!
//! Nothing here looks at a clock or at chance: equal measurements give equal
//! depths. Depths change when tokens come, never which.

use super::drafting::{Drafters, Proposer};

/// Rows up to which round times are kept one by one.
const MOST_ROWS: usize = 128;
/// Drafts up to which acceptance is kept one by one.
const MOST_DRAFTS: usize = 32;
/// Share of the time that drafting may lose.
const LOSS_SHARE: f64 = 0.02;
/// Losses that are allowed at first, and gains that are remembered, in plain rounds.
const GRANT_ROUNDS: f64 = 4.0;
/// Gain below which drafting is not worth its unsteadiness.
const LEAST_GAIN: f64 = 1.02;
/// Plain rounds that are measured before the first draft.
const FIRST_PLAIN: u32 = 2;
/// Rounds after which plain ones are measured anew, as contexts have grown.
const PLAIN_AGE: u32 = 64;
/// What a further row is held to cost, as a share of a round, before it was measured.
const ROW_PRIOR: f64 = 0.1;
/// How often a draft is held to be right before it was seen.
const ACCEPTANCE_PRIOR: f64 = 0.7;
/// Rounds until a parked proposer is tried again: at first, and at most.
const PAUSE: (u32, u32) = (8, 256);
/// Drafts of such a trial.
const TRIAL_DRAFTS: u32 = 3;

/// A running average.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: f64,
    count: u32,
}

impl Average {
    /// Adds a value: the first ones in equal parts, later ones with a weight of at least `least`.
    fn note(&mut self, value: f64, least: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) * (1.0 / f64::from(self.count)).max(least);
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then_some(self.value)
    }
}

/// One round as it was measured. Seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Lanes that took part, none of them in its prompt.
    pub(super) lanes: u32,
    /// Rows of all lanes.
    pub(super) rows: u32,
    /// Tokens that the round settled.
    pub(super) tokens: u32,
    /// Forward pass and draws.
    pub(super) seconds: f64,
    /// Making drafts for the next round.
    pub(super) draft_seconds: f64,
    /// Who made them, if one proposer made them all: for how many lanes, and how many.
    pub(super) drafting: Option<(Proposer, u32, u32)>,
    /// Drafts were tested or made.
    pub(super) drafted: bool,
}

/// What the other lanes of a round bring and take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Rows.
    pub(super) rows: u32,
    /// Tokens expected.
    pub(super) tokens: f64,
    /// Seconds of drafting.
    pub(super) draft_seconds: f64,
}

/// What the engine's rounds cost, and the account of drafting.
#[derive(Debug)]
pub(super) struct Pace {
    rounds: Vec<Average>,
    drafting: [Average; Proposer::ALL.len()],
    balance: f64,
    plain: u32,
    since_plain: u32,
}

impl Pace {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Pace {
            rounds: vec![Average::default(); MOST_ROWS],
            drafting: Default::default(),
            balance: 0.0,
            plain: 0,
            since_plain: 0,
        }
    }

    /// Learns from a round.
    pub(super) fn note(&mut self, round: &Measured) {
        if round.rows == 0 || round.lanes == 0 {
            return;
        }
        if let Some(average) = self.rounds.get_mut(round.rows as usize - 1) {
            average.note(round.seconds, 1.0 / 8.0);
        }
        if let Some((proposer, lanes, drafts)) = round.drafting {
            let parts = if proposer == Proposer::Mtp { drafts } else { lanes };
            self.drafting[proposer.index()].note(round.draft_seconds / f64::from(parts.max(1)), 1.0 / 8.0);
        }
        let all = round.seconds + round.draft_seconds;
        let Some(serial) = self.round(round.lanes) else { return };
        if round.drafted {
            self.since_plain = self.since_plain.saturating_add(1);
            self.balance += serial / f64::from(round.lanes) * f64::from(round.tokens) - all;
        } else {
            self.plain = self.plain.saturating_add(1);
            self.since_plain = 0;
            if self.plain == FIRST_PLAIN {
                self.balance = GRANT_ROUNDS * serial;
            }
        }
        self.balance = (self.balance + LOSS_SHARE * all).min(GRANT_ROUNDS * serial);
    }

    /// Whether drafts may be used at all in the round to come.
    pub(super) fn allows_drafts(&self) -> bool {
        self.plain >= FIRST_PLAIN && self.balance > 0.0 && self.since_plain < PLAIN_AGE
    }

    /// Seconds of a round of so many rows: measured, or drawn out from what was measured.
    fn round(&self, rows: u32) -> Option<f64> {
        let at = rows as usize;
        let known = |rows: usize| self.rounds.get(rows.checked_sub(1)?)?.get();
        if let Some(seconds) = known(at) {
            return Some(seconds);
        }
        let mut below = (1..=at.min(MOST_ROWS)).rev().filter_map(|rows| Some((rows as f64, known(rows)?)));
        let above = (at..=MOST_ROWS).find_map(|rows| Some((rows as f64, known(rows)?)));
        let (low, upper) = match (below.next(), above) {
            (None, None) => return None,
            (None, Some((_, seconds))) => return Some(seconds),
            (Some(low), upper) => (low, upper),
        };
        let slope = match upper.or_else(|| below.next()) {
            Some((rows, seconds)) => ((seconds - low.1) / (rows - low.0)).max(0.0),
            None => low.1 * ROW_PRIOR / low.0,
        };
        Some(low.1 + slope * (f64::from(rows) - low.0))
    }

    /// Seconds of making so many drafts for a lane.
    pub(super) fn drafts(&self, proposer: Proposer, count: u32) -> f64 {
        let part = self.drafting[proposer.index()].get().unwrap_or(0.0);
        match proposer {
            Proposer::Mtp => part * f64::from(count),
            Proposer::Dflash | Proposer::Dflash2 => part,
            Proposer::Copy => 0.0,
        }
    }
}

/// How often the drafts of one proposer held in one reply.
#[derive(Clone, Debug)]
struct Record {
    /// How often a draft held when all before it had, by its place.
    slots: [Average; MOST_DRAFTS],
    /// Rounds until the next trial, while parked.
    pause: Option<u32>,
    /// How long the next pause is.
    next_pause: u32,
}

impl Record {
    fn new() -> Self {
        Record { slots: [Average::default(); MOST_DRAFTS], pause: None, next_pause: PAUSE.0 }
    }

    fn note(&mut self, drafted: u32, accepted: u32) {
        let mut before = ACCEPTANCE_PRIOR;
        for (place, slot) in self.slots.iter_mut().enumerate().take(drafted as usize) {
            if slot.count == 0 {
                // One sighting that it is like the draft before it.
                *slot = Average { value: before, count: 1 };
            }
            let held = place < accepted as usize;
            slot.note(f64::from(u8::from(held)), 1.0 / 16.0);
            before = slot.value;
            if !held {
                break;
            }
        }
        if self.pause.is_some() && accepted == drafted {
            // The text has changed: look again at once.
            (self.pause, self.next_pause) = (Some(0), PAUSE.0);
        }
    }

    /// Tokens that a round of so many drafts brings, for 0 drafts, 1, 2, ..
    fn tokens(&self, most: u32) -> impl Iterator<Item = f64> + '_ {
        let (mut chain, mut place, mut tokens) = (1.0, ACCEPTANCE_PRIOR, 1.0);
        std::iter::once(1.0).chain((0..most as usize).map(move |draft| {
            if let Some(slot) = self.slots.get(draft)
                && let Some(value) = slot.get()
            {
                place = value;
            }
            chain *= place;
            tokens += chain;
            tokens
        }))
    }
}

/// What is known of the drafts of one reply.
#[derive(Clone, Debug)]
pub(super) struct LanePace {
    records: [Record; Proposer::ALL.len()],
}

impl LanePace {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        LanePace { records: std::array::from_fn(|_| Record::new()) }
    }

    /// Learns what became of drafts.
    pub(super) fn note(&mut self, proposer: Proposer, drafted: u32, accepted: u32) {
        self.records[proposer.index()].note(drafted, accepted);
    }

    /// Tokens that a round of so many drafts is held to bring.
    pub(super) fn expected(&self, proposer: Proposer, drafts: u32) -> f64 {
        self.records[proposer.index()].tokens(drafts).last().unwrap_or(1.0)
    }

    /// The drafter to ask for the next round, and for how many drafts.
    pub(super) fn choose(&mut self, pace: &Pace, drafters: Drafters, load: Load) -> Option<(Proposer, u32)> {
        if !pace.allows_drafts() {
            return None;
        }
        let mut best: Option<(Proposer, u32, f64)> = None;
        for (proposer, most) in drafters.proposers() {
            let (depth, gain) = self.depth(pace, proposer, most, load);
            if depth > 0 && best.is_none_or(|(.., other)| gain > other) {
                best = Some((proposer, depth, gain));
            }
        }
        best.map(|(proposer, depth, _)| (proposer, depth))
    }

    /// How many tokens of a copy to put to the test.
    pub(super) fn copies(&mut self, pace: &Pace, most: u32, load: Load) -> u32 {
        match pace.allows_drafts() {
            true => self.depth(pace, Proposer::Copy, most, load).0,
            false => 0,
        }
    }

    /// The depth with the most tokens per time, and how much better than a plain round it is.
    fn depth(&mut self, pace: &Pace, proposer: Proposer, most: u32, load: Load) -> (u32, f64) {
        let Some(plain) = pace.round(load.rows + 1) else { return (0, 1.0) };
        let rate = |tokens: f64, seconds: f64| (load.tokens + tokens) / (load.draft_seconds + seconds);
        let serial = rate(1.0, plain);
        let record = &mut self.records[proposer.index()];
        let mut best = (0, LEAST_GAIN);
        for (depth, tokens) in (0..).zip(record.tokens(most)).skip(1) {
            let Some(verify) = pace.round(load.rows + 1 + depth) else { continue };
            let gain = rate(tokens, verify + pace.drafts(proposer, depth)) / serial;
            if gain > best.1 {
                best = (depth, gain);
            }
        }
        if best.0 > 0 {
            (record.pause, record.next_pause) = (None, PAUSE.0);
            return best;
        }
        match record.pause {
            None => {
                record.pause = Some(record.next_pause);
                // What is seen from now on weighs more than what was before.
                for slot in &mut record.slots {
                    slot.count = slot.count.min(2);
                }
                (0, 1.0)
            }
            Some(0) => {
                record.next_pause = (record.next_pause * 2).min(PAUSE.1);
                record.pause = Some(record.next_pause);
                (TRIAL_DRAFTS.min(most), 1.0)
            }
            Some(rounds) => {
                record.pause = Some(rounds - 1);
                (0, 1.0)
            }
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
