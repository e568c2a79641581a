//! Threads that share numbered tasks.
//!
//! [`Pool::run`] hands numbered tasks to the calling thread and the pool's own
//! threads. Which thread runs which task is not determined; a task must
//! therefore be a function of its number, and then results do not depend on
//! the number of threads.
//!
//! A token takes hundreds of short jobs, a few microseconds apart, and waking
//! a sleeping thread takes longer than that. So a thread that runs out of work
//! looks for the next job for a few microseconds, and only then blocks on a
//! condition variable: between tokens nothing spins, and on a busy machine no
//! more than that is lost. The caller never waits for a thread that has not
//! begun: it does the tasks itself and takes the job away.
//!
//! There is no lock on the way of a job: threads join by one atomic addition
//! and take tasks from a shared counter.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work before it blocks.
const SPIN: Duration = Duration::from_micros(20);
/// Pauses between two looks at the clock.
const PAUSES: usize = 8;

/// Whether the gate's job may be joined.
const OPEN: u64 = 1 << 31;
/// The helpers inside the gate's job.
const INSIDE: u64 = OPEN - 1;
/// One step of the gate's generation, which is above the other two.
const GENERATION: u64 = 1 << 32;

/// A fixed set of threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Generation, [`OPEN`] and [`INSIDE`].
    gate: AtomicU64,
    /// The job of this generation; see [`Gate`].
    job: Gate,
    /// Threads that block, or are about to.
    sleepers: AtomicUsize,
    ends: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    /// Work arrived, or the end.
    start: Condvar,
    /// The last helper left a job that was taken away.
    done: Condvar,
}

/// A job as helpers see it. The borrow behind `task` and `next` is erased; see
/// [`Pool::run`] for why it is still alive whenever a helper uses it.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    next: *const AtomicUsize,
    tasks: usize,
}

/// Where the job lies. It is written by [`Pool::run`] alone, which borrows the
/// pool exclusively, while the gate is closed and nobody is inside; it is read
/// only by helpers that are inside.
struct Gate(UnsafeCell<Option<Job>>);

// SAFETY: writes and reads never overlap, as stated above, and the gate's atomic orders them: the
// write comes before the store that opens it, a read after the exchange by which a helper enters.
unsafe impl Sync for Gate {}
// SAFETY: `task` points to something `Sync` and `next` to an atomic, so they may be used from any
// thread; that they are alive is argued where they are used.
unsafe impl Send for Gate {}

impl Pool {
    /// A pool of `threads` threads, the calling one included; 0 counts as 1.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: Gate(UnsafeCell::new(None)),
            sleepers: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            panic: Mutex::default(),
            sleep: Mutex::default(),
            start: Condvar::new(),
            done: Condvar::new(),
        });
        let mut pool = Pool { shared, threads: Vec::new() };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("tensorfold-cpu-{index}"))
                .spawn(move || shared.help())?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Threads, the calling one included.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each once, and returns when all
    /// have ended. `parallel` false runs them on the calling thread: for work
    /// too small to be shared.
    ///
    /// # Panics
    /// When a task panics, after the others have ended.
    pub(crate) fn run(&mut self, parallel: bool, tasks: usize, task: impl Fn(usize) + Sync) {
        if !parallel || self.threads.is_empty() || tasks < 2 {
            (0..tasks).for_each(task);
            return;
        }
        let next = AtomicUsize::new(0);
        let task: &(dyn Fn(usize) + Sync) = &task;
        // SAFETY: only the lifetime changes. Helpers use the pointer between entering and leaving
        // the gate; this function closes the gate and waits until nobody is inside before it
        // returns or unwinds, and `task` and `next` live until then.
        let erased: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let shared = &*self.shared;
        // SAFETY: the gate is closed and empty: it starts so, and the end of this function, which
        // borrows the pool exclusively, leaves it so.
        unsafe { *shared.job.0.get() = Some(Job { task: erased, next: &next, tasks }) };
        let closed = shared.gate.load(Ordering::Relaxed);
        shared.gate.store((closed & !INSIDE).wrapping_add(GENERATION) | OPEN, Ordering::Release);
        shared.wake(tasks - 1);
        let own = catch_unwind(AssertUnwindSafe(|| work(task, &next, tasks)));
        if own.is_err() {
            // The others' tasks end; none begins.
            next.store(tasks, Ordering::Relaxed);
        }
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        shared.wait_until_empty();
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        drop(self.shared.sleep.lock());
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            // A helper catches the panics of tasks; there is nothing to report.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Wakes up to `wanted` of the threads that block.
    fn wake(&self, wanted: usize) {
        // Either this load sees a thread that is about to block, or that thread, which looks at
        // the gate once more after it was counted, sees the open gate.
        fence(Ordering::SeqCst);
        let sleepers = self.sleepers.load(Ordering::Relaxed);
        if sleepers == 0 {
            return;
        }
        drop(self.sleep.lock());
        for _ in 0..wanted.min(sleepers) {
            self.start.notify_one();
        }
    }

    /// Whether there is a job newer than `seen`, or the end.
    fn news(&self, seen: u64) -> bool {
        let gate = self.gate.load(Ordering::Acquire);
        self.ends.load(Ordering::Relaxed) || (gate & OPEN != 0 && gate / GENERATION != seen)
    }

    /// Joins the open job that is newer than `seen`, if there is one.
    fn enter(&self, seen: u64) -> Option<(u64, Job)> {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate & OPEN != 0 && gate / GENERATION != seen {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: this thread is inside, so nobody writes.
                    let job = unsafe { *self.job.0.get() };
                    return job.map(|job| (gate / GENERATION, job));
                }
                Err(now) => gate = now,
            }
        }
        None
    }

    fn leave(&self) {
        let before = self.gate.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            // The caller may block by now.
            drop(self.sleep.lock());
            self.done.notify_one();
        }
    }

    /// Waits until the closed gate is empty.
    fn wait_until_empty(&self) {
        let empty = || self.gate.load(Ordering::Acquire) & INSIDE == 0;
        if spin_until(empty) {
            return;
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !empty() {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A helper's life.
    fn help(&self) {
        let mut seen = 0;
        while !self.ends.load(Ordering::Acquire) {
            let Some((generation, job)) = self.enter(seen) else {
                if !spin_until(|| self.news(seen)) {
                    self.block(seen);
                }
                continue;
            };
            seen = generation;
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: this thread is inside the gate, so `Pool::run` has not returned and
                // keeps both alive.
                let (task, next) = unsafe { (&*job.task, &*job.next) };
                work(task, next, job.tasks);
            }));
            if let Err(panic) = outcome {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.leave();
        }
    }

    /// Blocks until there is another job than `seen`, or the end.
    fn block(&self, seen: u64) {
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !self.news(seen) {
            guard = self.start.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Looks for up to [`SPIN`]; tells whether `found` became true.
fn spin_until(found: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..PAUSES {
            if found() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= SPIN {
            return false;
        }
    }
}

fn work(task: &(dyn Fn(usize) + Sync), next: &AtomicUsize, tasks: usize) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= tasks {
            return;
        }
        task(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_thread_count() {
        for threads in [0, 1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 3, 40] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(true, tasks, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).unwrap();
        for bad in 0..4 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(true, 4, |task| assert_ne!(task, bad, "task {bad} fails"));
            }));
            assert!(outcome.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(true, 10, |task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn a_job_wakes_threads_that_block() {
        let mut pool = Pool::new(3).unwrap();
        for pause in [0, 100, 2000] {
            std::thread::sleep(Duration::from_micros(pause));
            let threads = Mutex::new(std::collections::HashSet::new());
            // Each task waits for the other one, so two threads have to come.
            let meeting = std::sync::Barrier::new(2);
            pool.run(true, 2, |_| {
                meeting.wait();
                threads.lock().unwrap().insert(std::thread::current().id());
            });
            assert_eq!(threads.into_inner().unwrap().len(), 2);
        }
    }

    #[test]
    fn many_short_jobs_in_a_row_lose_no_task() {
        let mut pool = Pool::new(4).unwrap();
        let jobs = if cfg!(miri) { 20 } else { 20_000 };
        let mut wanted = 0;
        let sum = AtomicUsize::new(0);
        for job in 0..jobs {
            let tasks = 2 + job % 5;
            wanted += tasks;
            pool.run(true, tasks, |_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), wanted);
    }
}
