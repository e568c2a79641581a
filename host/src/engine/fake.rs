//! An engine without a model, for tests.
//!
//! Its next token is a fixed function of every token its lane holds, so a row
//! that is lost, repeated or fed to the wrong lane changes the reply. A
//! [`FakeControl`] holds rounds back, makes them fail, and tells what was called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::sampling::Sampling;

use super::drafting::Drafters;
use super::request::{GenerationRequest, Priority};
use super::round::{
    Draft, EngineFacts, LaneDrawn, LaneId, LaneRows, RoundEngine, RoundTimes, Snapshot, SnapshotId,
};

/// A request for `max_tokens` tokens after `prompt`, with nothing special.
pub(crate) fn request(prompt: &[u32], max_tokens: u32) -> GenerationRequest {
    GenerationRequest {
        id: "test".to_owned(),
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: Sampling::GREEDY,
        stop_tokens: BTreeSet::new(),
        priority: Priority::Foreground,
        drafts: true,
        watch: None,
    }
}

/// What [`FakeEngine`] replies to a prompt.
pub(crate) fn expected_reply(prompt: &[u32], length: usize, vocabulary: u32) -> Vec<u32> {
    let mut held = prompt.to_vec();
    for _ in 0..length {
        held.push(next_token(&held, vocabulary));
    }
    held.split_off(prompt.len())
}

fn next_token(held: &[u32], vocabulary: u32) -> u32 {
    let mixed = held.iter().fold(17u64, |sum, &token| {
        (sum ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    });
    (mixed % u64::from(vocabulary)) as u32
}

/// A call that the fake engine received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Close,
    /// Position and number of the rows of each lane.
    Round(Vec<(u32, u32)>),
}

/// An engine whose replies are computed from token ids alone.
pub(crate) struct FakeEngine {
    facts: EngineFacts,
    lanes: BTreeMap<u64, FakeLane>,
    next_lane: u64,
    snapshots: BTreeMap<u64, FakeLane>,
    control: FakeControl,
}

#[derive(Clone, Default)]
struct FakeLane {
    held: Vec<u32>,
    drawn: usize,
}

impl FakeEngine {
    /// An engine with one lane, a context of 4096 and `vocabulary` ids.
    pub(crate) fn new(vocabulary: u32) -> (FakeEngine, FakeControl) {
        let facts = EngineFacts {
            name: "fake".to_owned(),
            lanes: 1,
            positions: 4096,
            rows: 1024,
            vocabulary,
            counts_drafts: true,
            outputs: 1,
            drafters: Drafters::default(),
        };
        FakeEngine::with_facts(facts)
    }

    pub(crate) fn with_facts(facts: EngineFacts) -> (FakeEngine, FakeControl) {
        let control = FakeControl::default();
        (
            FakeEngine {
                facts,
                lanes: BTreeMap::new(),
                next_lane: 1,
                snapshots: BTreeMap::new(),
                control: control.clone(),
            },
            control,
        )
    }
}

impl RoundEngine for FakeEngine {
    fn facts(&self) -> EngineFacts {
        self.facts.clone()
    }

    fn lane_open(&mut self) -> Result<LaneId, PluginError> {
        let mut state = self.control.lock();
        state.calls.push(Call::Open);
        if let Some(error) = state.open_error.take() {
            return Err(error);
        }
        assert!(self.lanes.len() < self.facts.lanes as usize, "more lanes than the engine has");
        let id = self.next_lane;
        self.next_lane += 1;
        self.lanes.insert(id, FakeLane::default());
        Ok(LaneId(id))
    }

    fn lane_close(&mut self, lane: LaneId) -> Result<(), PluginError> {
        self.control.lock().calls.push(Call::Close);
        self.control.changed();
        assert!(self.lanes.remove(&lane.0).is_some(), "a lane is closed once");
        Ok(())
    }

    fn snapshot(&mut self, lane: LaneId) -> Result<Snapshot, PluginError> {
        let mut state = self.control.lock();
        if let Some(error) = state.snapshot_errors.pop() {
            return Err(error);
        }
        let kept = self.lanes[&lane.0].clone();
        state.snapshots_made += 1;
        let id = state.snapshots_made;
        let position = kept.held.len() as u32;
        self.snapshots.insert(id, kept);
        state.snapshots = self.snapshots.len();
        let tokens = self.snapshots.values().map(|kept| kept.held.len()).sum();
        state.most_snapshot_tokens = state.most_snapshot_tokens.max(tokens);
        // Ten bytes a token.
        let bytes = state.snapshot_base + u64::from(position) * 10;
        Ok(Snapshot { id: SnapshotId(id), position, bytes })
    }

    fn restore(&mut self, lane: LaneId, snapshot: SnapshotId) -> Result<(), PluginError> {
        if let Some(error) = self.control.lock().restore_error.take() {
            return Err(error);
        }
        let kept = self.snapshots.get(&snapshot.0).expect("a state that is kept").clone();
        *self.lanes.get_mut(&lane.0).expect("an open lane") = kept;
        Ok(())
    }

    fn drop_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), PluginError> {
        assert!(self.snapshots.remove(&snapshot.0).is_some(), "a state is freed once");
        self.control.lock().snapshots = self.snapshots.len();
        Ok(())
    }

    fn round(
        &mut self,
        rows: &[LaneRows<'_>],
        drawn: &mut Vec<LaneDrawn>,
    ) -> Result<RoundTimes, PluginError> {
        let shape = rows.iter().map(|rows| (rows.position, rows.tokens.len() as u32)).collect();
        let fault = self.control.begin_round(shape);
        match fault {
            Some(Fault::Error(error)) => return Err(error),
            Some(Fault::Panic(text)) => panic!("{text}"),
            Some(Fault::Answer(answer)) => {
                *drawn = answer;
                return Ok(RoundTimes::default());
            }
            None => {}
        }
        let (script, accuracy) = {
            let mut state = self.control.lock();
            state.last_sampling = rows.first().map(|rows| rows.sampling);
            (state.script.clone(), state.accuracy)
        };
        let vocabulary = self.facts.vocabulary;
        let draw = |held: &[u32], drawn: usize| match &script {
            Some(script) => script[drawn.min(script.len() - 1)],
            None => next_token(held, vocabulary),
        };
        for rows in rows {
            let lane = self.lanes.get_mut(&rows.lane.0).expect("an open lane");
            assert_eq!(lane.held.len(), rows.position as usize, "rows follow on what the lane holds");
            let (sure, drafts) = rows.tokens.split_at(rows.tokens.len() - rows.drafts as usize);
            assert!(rows.draws <= self.facts.outputs && rows.tokens.len() <= self.facts.rows as usize);
            assert!(drafts.is_empty() || (sure.len() == 1 && rows.draws == rows.drafts + 1));
            lane.held.extend_from_slice(sure);
            let mut result = LaneDrawn::default();
            for row in 0..rows.draws as usize {
                let token = draw(&lane.held, lane.drawn);
                lane.drawn += 1;
                result.tokens.push(token);
                if drafts.get(row) != Some(&token) {
                    break;
                }
                lane.held.push(token);
                result.accepted += 1;
            }
            if rows.next.count > 0 {
                assert!(rows.draws > 0, "drafts follow on a draw");
                assert!(
                    self.facts.drafters.proposers().any(|(by, most)| {
                        by.kind() == rows.next.kind && most as usize >= rows.next.count
                    })
                );
                result.next_kind = rows.next.kind;
                let mut held = lane.held.clone();
                held.extend(result.tokens.last());
                for ahead in 0..rows.next.count {
                    let token = draw(&held, lane.drawn + ahead);
                    // As good as chance, and the same in every run.
                    let right = next_token(&held, 100) < accuracy;
                    let token = if right { token } else { (token + 1) % vocabulary };
                    result.next.push(Draft { token, probability: accuracy as f32 / 100.0 });
                    held.push(token);
                }
            }
            drawn.push(result);
        }
        Ok(RoundTimes::default())
    }
}

/// How a round goes wrong.
pub(crate) enum Fault {
    Error(PluginError),
    Panic(&'static str),
    Answer(Vec<LaneDrawn>),
}

/// The test's hold on a fake engine.
#[derive(Clone, Default)]
pub(crate) struct FakeControl {
    shared: Arc<(Mutex<ControlState>, Condvar)>,
}

#[derive(Default)]
struct ControlState {
    calls: Vec<Call>,
    /// No further round begins.
    held: bool,
    /// Rounds that may begin all the same.
    permits: u64,
    last_sampling: Option<Sampling>,
    rounds_begun: u64,
    faults: BTreeMap<u64, Fault>,
    open_error: Option<PluginError>,
    script: Option<Arc<Vec<u32>>>,
    /// How many of 100 drafts are right.
    accuracy: u32,
    /// Kept now, and ever.
    snapshots: usize,
    snapshots_made: u64,
    most_snapshot_tokens: usize,
    /// Bytes of a kept state besides those of its tokens.
    snapshot_base: u64,
    snapshot_errors: Vec<PluginError>,
    restore_error: Option<PluginError>,
}

impl FakeControl {
    /// Every reply consists of these tokens; the last one repeats.
    pub(crate) fn reply_with(&self, tokens: &[u32]) {
        self.lock().script = Some(Arc::new(tokens.to_vec()));
    }

    /// Gives kept states so many bytes besides those of their tokens.
    pub(crate) fn weigh_snapshots(&self, bytes: u64) {
        self.lock().snapshot_base = bytes;
    }

    /// Makes the next snapshots fail, the last error first.
    pub(crate) fn fail_snapshots(&self, errors: Vec<PluginError>) {
        self.lock().snapshot_errors = errors;
    }

    /// Makes the next `restore` fail.
    pub(crate) fn fail_restore(&self, error: PluginError) {
        self.lock().restore_error = Some(error);
    }

    /// States kept now.
    pub(crate) fn snapshots(&self) -> usize {
        self.lock().snapshots
    }

    /// States kept so far.
    pub(crate) fn snapshots_made(&self) -> u64 {
        self.lock().snapshots_made
    }

    /// The most tokens that kept states ever held together.
    pub(crate) fn most_snapshot_tokens(&self) -> usize {
        self.lock().most_snapshot_tokens
    }

    /// So many of 100 drafts are right.
    pub(crate) fn draft_with(&self, accuracy: u32) {
        self.lock().accuracy = accuracy;
    }

    /// No further round begins before [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.lock().held = true;
    }

    /// Lets the round that is held back, or the next one, begin.
    pub(crate) fn allow_one(&self) {
        self.lock().permits += 1;
        self.changed();
    }

    /// How the last round's first lane drew.
    pub(crate) fn last_sampling(&self) -> Option<Sampling> {
        self.lock().last_sampling
    }

    /// Lets all rounds begin.
    pub(crate) fn release(&self) {
        self.lock().held = false;
        self.changed();
    }

    /// Makes round `round` (from 1) go wrong.
    pub(crate) fn fail_round(&self, round: u64, fault: Fault) {
        self.lock().faults.insert(round, fault);
    }

    /// Makes the next `lane_open` fail.
    pub(crate) fn fail_open(&self, error: PluginError) {
        self.lock().open_error = Some(error);
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Waits until round `round` (from 1) has begun or is held back.
    pub(crate) fn wait_for_round(&self, round: u64) {
        self.wait_until(|state| state.rounds_begun >= round);
    }

    /// Waits until `count` lanes were closed.
    pub(crate) fn wait_for_closes(&self, count: usize) {
        self.wait_until(|state| state.calls.iter().filter(|call| **call == Call::Close).count() >= count);
    }

    fn wait_until(&self, condition: impl Fn(&ControlState) -> bool) {
        let mut state = self.lock();
        while !condition(&state) {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn begin_round(&self, shape: Vec<(u32, u32)>) -> Option<Fault> {
        let mut state = self.lock();
        state.rounds_begun += 1;
        let round = state.rounds_begun;
        state.calls.push(Call::Round(shape));
        self.changed();
        while state.held && state.permits == 0 {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.permits = state.permits.saturating_sub(1);
        state.faults.remove(&round)
    }

    fn changed(&self) {
        self.shared.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
