//! The thread that owns the engine, and the handle through which the rest of
//! the host reaches it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::counters::{Counters, EngineState, Rates};
use super::drafting::{DraftCounts, DraftOptions};
use super::lane::CHUNK_BORDER;
use super::mailbox::{EventReceiver, mailbox};
use super::prefixes::PrefixOptions;
use super::queue::{Queue, Waiting};
use super::request::{FailureKind, GenerationRequest};
use super::round::{EngineFacts, RoundEngine};
use super::scheduler::{Admission, Chunks, Scheduler, StepReport, failure_line};

/// What clients hear of a request that the stopping server cannot finish.
pub(crate) const SHUTTING_DOWN: &str = "the server is shutting down";

/// How an engine is run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Requests that run at the same time; the engine's own number of lanes caps it.
    pub lanes: u32,
    /// Requests that may wait for a lane before new ones are refused.
    pub queue: usize,
    /// Rows of prompts that go into one round, rounded down to a multiple of 64;
    /// the engine's own number of rows caps it.
    pub prefill_chunk: u32,
    /// Rows of prompts that go into a round beside running replies, which wait for
    /// all of it; rounded and capped likewise.
    pub prefill_beside: u32,
    /// Tokens that prompt and reply may have together; the engine's own number caps it.
    pub context: u32,
    /// How drafts are used.
    pub drafting: DraftOptions,
    /// How much of computed prompts is kept for prompts that begin alike.
    pub prefixes: PrefixOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            lanes: 1,
            queue: 256,
            prefill_chunk: 512,
            prefill_beside: 128,
            context: u32::MAX,
            drafting: DraftOptions::default(),
            prefixes: PrefixOptions::default(),
        }
    }
}

/// A way to the engine thread; clones lead to the same one.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// Why a request was not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests wait already.
    #[error("the engine is busy: {waiting} requests are waiting, the most that may; try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The engine broke earlier.
    #[error("the engine failed earlier and takes no more requests; restart the server ({0})")]
    Failed(String),
    /// The server is stopping.
    #[error("the server is shutting down")]
    Stopping,
    /// There is nothing to reply to.
    #[error("the prompt is empty: it needs at least one token")]
    EmptyPrompt,
    /// A prompt token that the model does not have.
    #[error("token id {token} is outside the vocabulary: valid ids are 0 to {}", .vocabulary - 1)]
    UnknownToken {
        /// The id found.
        token: u32,
        /// Number of ids.
        vocabulary: u32,
    },
    /// No reply was asked for.
    #[error("max_tokens is 0: a reply has at least one token")]
    NoReply,
    /// Prompt and reply do not fit.
    #[error("the context holds {context} tokens, prompt and reply want {wanted}")]
    ContextExceeded {
        /// Tokens that fit.
        context: u32,
        /// Tokens asked for.
        wanted: u64,
    },
}

/// How an engine ended.
pub enum StopOutcome {
    /// Its thread is done; the engine is back with its owner.
    Stopped(Box<dyn RoundEngine>),
    /// The engine had failed: it must be dropped without a further call.
    Failed(Box<dyn RoundEngine>),
    /// A call into the engine did not return in time, or somebody else stopped
    /// it: the engine stays where it is.
    Stuck,
}

impl EngineHandle {
    /// Starts the thread that owns `engine` from now on.
    pub fn start(engine: Box<dyn RoundEngine>, options: &EngineOptions) -> std::io::Result<EngineHandle> {
        let facts = engine.facts();
        // No less than one border's worth: a smaller chunk would never get on.
        let chunk = |rows: u32| (rows.min(facts.rows) / CHUNK_BORDER).max(1) * CHUNK_BORDER;
        let chunks = Chunks {
            alone: chunk(options.prefill_chunk),
            beside: chunk(options.prefill_beside.min(options.prefill_chunk)),
        };
        let drafts_total = facts.counts_drafts.then(DraftCounts::default);
        let drafts = options.drafting.used(facts.drafters).any() || options.drafting.copies(facts.outputs);
        let shared = Arc::new(Shared {
            context: options.context.min(facts.positions),
            lanes: options.lanes.min(facts.lanes).max(1),
            drafts,
            facts,
            state: Mutex::new(State {
                queue: Queue::new(options.queue),
                phase: EngineState::Serving,
                stop: false,
                counters: Counters { drafts_total, ..Counters::default() },
                rates: Rates::default(),
                thread: None,
                done: None,
            }),
            work: Condvar::new(),
            ended: Condvar::new(),
        });
        let scheduler = Scheduler::new(engine, shared.lanes, chunks, &options.drafting, options.prefixes);
        let thread = std::thread::Builder::new().name("tensorfold-engine".to_owned()).spawn({
            let shared = shared.clone();
            move || run(&shared, scheduler)
        })?;
        shared.lock().thread = Some(thread);
        Ok(EngineHandle { shared })
    }

    /// Takes a request in. Its events come through the receiver; dropping that
    /// cancels the request at the next round or prompt chunk.
    pub fn submit(&self, request: GenerationRequest) -> Result<EventReceiver, SubmitError> {
        self.check(&request)?;
        let (events, receiver) = mailbox();
        let mut state = self.shared.lock();
        match &state.phase {
            EngineState::Serving => {}
            EngineState::Stopping => return Err(SubmitError::Stopping),
            EngineState::Failed(message) => return Err(SubmitError::Failed(message.clone())),
        }
        if state.queue.is_full() {
            state.remove_abandoned();
        }
        // A request that can start at once is no waiting one.
        let idle = state.counters.requests_running == 0 && state.queue.len() == 0;
        if state.queue.is_full() && !idle {
            return Err(SubmitError::Busy { waiting: state.queue.bound() });
        }
        state.counters.requests_total += 1;
        state.queue.push(Waiting { request, events, submitted: Instant::now() });
        drop(state);
        self.shared.work.notify_one();
        Ok(receiver)
    }

    /// What the engine says of itself.
    pub fn facts(&self) -> &EngineFacts {
        &self.shared.facts
    }

    /// Tokens that prompt and reply may have together.
    pub fn context(&self) -> u32 {
        self.shared.context
    }

    /// Requests that can run at the same time.
    pub fn lanes(&self) -> u32 {
        self.shared.lanes
    }

    /// Whether replies are drafted for where a request does not forbid it.
    pub fn drafts(&self) -> bool {
        self.shared.drafts
    }

    /// Whether the engine takes work.
    pub fn state(&self) -> EngineState {
        self.shared.lock().phase.clone()
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        let mut state = self.shared.lock();
        let (decode, prefill) = state.rates.per_second(Instant::now());
        Counters {
            requests_waiting: state.queue.len() as u64,
            decode_tokens_per_second: decode,
            prefill_tokens_per_second: prefill,
            ..state.counters.clone()
        }
    }

    /// Takes no more work and ends what is open with an error, at the latest
    /// after the round that is being computed. Returns at once.
    pub fn begin_stop(&self) {
        let mut state = self.shared.lock();
        if state.phase == EngineState::Serving {
            state.phase = EngineState::Stopping;
        }
        state.stop = true;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Stops the engine and waits for its thread, at most `limit`.
    pub fn stop(&self, limit: Duration) -> StopOutcome {
        self.begin_stop();
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        let engine = loop {
            if let Some(engine) = state.done.take() {
                break engine;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.thread.is_none() {
                return StopOutcome::Stuck;
            }
            state = self.shared.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        let thread = state.thread.take();
        let failed = matches!(state.phase, EngineState::Failed(_));
        drop(state);
        // The thread has handed everything over: it only returns.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        if failed { StopOutcome::Failed(engine) } else { StopOutcome::Stopped(engine) }
    }

    fn check(&self, request: &GenerationRequest) -> Result<(), SubmitError> {
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let vocabulary = self.shared.facts.vocabulary;
        if let Some(&token) = request.prompt.iter().find(|&&token| token >= vocabulary) {
            return Err(SubmitError::UnknownToken { token, vocabulary });
        }
        if request.max_tokens == 0 {
            return Err(SubmitError::NoReply);
        }
        let wanted = request.prompt.len() as u64 + u64::from(request.max_tokens);
        if wanted > u64::from(self.shared.context) {
            return Err(SubmitError::ContextExceeded { context: self.shared.context, wanted });
        }
        Ok(())
    }
}

struct Shared {
    facts: EngineFacts,
    context: u32,
    lanes: u32,
    drafts: bool,
    state: Mutex<State>,
    /// There may be something to do for the engine thread.
    work: Condvar,
    /// The engine thread has put the engine into `done`.
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    queue: Queue,
    phase: EngineState,
    /// The thread was asked to end. Apart from `phase`, which may say that the engine failed.
    stop: bool,
    counters: Counters,
    rates: Rates,
    thread: Option<JoinHandle<()>>,
    done: Option<Box<dyn RoundEngine>>,
}

impl State {
    fn remove_abandoned(&mut self) {
        let removed = self.queue.remove_abandoned();
        self.counters.requests_cancelled_total += removed as u64;
    }

    fn note(&mut self, report: &StepReport, now: Instant) {
        let counters = &mut self.counters;
        counters.prompt_tokens_total += report.prompt_tokens;
        counters.cached_tokens_total += report.cached_tokens;
        counters.completion_tokens_total += u64::from(report.reply_tokens);
        counters.requests_cancelled_total += report.cancelled;
        counters.rounds_total += report.rounds;
        counters.prefill_seconds_total += report.prefill_seconds;
        counters.decode_seconds_total += report.decode_seconds;
        if let Some(total) = &mut counters.drafts_total {
            total.add(&report.drafts);
        }
        self.rates.note(now, report.reply_tokens, report.prompt_rows);
    }
}

/// The engine thread.
fn run(shared: &Shared, mut scheduler: Scheduler) {
    let outcome = catch_unwind(AssertUnwindSafe(|| serve(shared, &mut scheduler)));
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(message)) => Some(message),
        Err(panic) => Some(format!("the engine thread panicked: {}", panic_text(&*panic))),
    };
    if let Some(message) = failure {
        tracing::error!("{message}");
        let mut state = shared.lock();
        state.phase = EngineState::Failed(message.clone());
        for waiting in state.queue.drain() {
            waiting.events.fail(FailureKind::Engine, message.as_str());
        }
        state.counters.requests_running = 0;
        scheduler.fail_all(FailureKind::Engine, &message);
        while !state.stop {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    shared.lock().done = Some(scheduler.into_engine());
    shared.ended.notify_all();
}

/// Runs rounds until the engine is stopped or breaks; the text says how it broke.
fn serve(shared: &Shared, scheduler: &mut Scheduler) -> Result<(), String> {
    loop {
        if !admit(shared, scheduler)? {
            scheduler.stop(FailureKind::ShuttingDown, SHUTTING_DOWN).map_err(|error| failure_line(&error))?;
            return Ok(());
        }
        let report = scheduler.step().map_err(|error| failure_line(&error))?;
        let mut state = shared.lock();
        state.note(&report, Instant::now());
        state.counters.requests_running = scheduler.running() as u64;
        drop(state);
        scheduler.publish();
    }
}

/// Waits until there is something to run and gives waiting requests their
/// lanes. False when the engine is to stop.
fn admit(shared: &Shared, scheduler: &mut Scheduler) -> Result<bool, String> {
    let mut state = shared.lock();
    loop {
        state.remove_abandoned();
        if state.stop {
            for waiting in state.queue.drain() {
                waiting.events.fail(FailureKind::ShuttingDown, SHUTTING_DOWN);
            }
            return Ok(false);
        }
        while scheduler.has_room() {
            let Some(waiting) = state.queue.pop() else { break };
            state.counters.requests_running += 1;
            drop(state);
            let admission = scheduler.admit(waiting).map_err(|error| failure_line(&error))?;
            state = shared.lock();
            state.counters.requests_running = scheduler.running() as u64;
            if let Admission::Later(waiting) = admission {
                state.queue.push_front(waiting);
                break;
            }
        }
        if scheduler.running() > 0 {
            return Ok(true);
        }
        if state.queue.len() == 0 && !state.stop {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
