//! Threads that wait without using the processor.
//!
//! [`Pool::run`] hands numbered tasks to the calling thread and the pool's own
//! threads. Which thread runs which task is not determined; a task must
//! therefore be a function of its number, and then results do not depend on
//! the number of threads. Idle threads block on a condition variable.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A fixed set of threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Work arrived, or the end.
    start: Condvar,
    /// The last helper left a job.
    done: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// Grows with every job, so that a helper joins each one at most once.
    generation: u64,
    /// Helpers inside the current job.
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
    ends: bool,
}

/// A job as helpers see it. The borrow behind `task` and `next` is erased; see
/// [`Pool::run`] for why it is still alive whenever a helper uses it.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    next: *const AtomicUsize,
    tasks: usize,
}

// SAFETY: `task` points to something `Sync` and `next` to an atomic, so they may be used from any
// thread; that they are alive is argued where they are used.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `threads` threads, the calling one included; 0 counts as 1.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let shared =
            Arc::new(Shared { state: Mutex::default(), start: Condvar::new(), done: Condvar::new() });
        let mut pool = Pool { shared, threads: Vec::new() };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("tensorfold-cpu-{index}"))
                .spawn(move || help(&shared))?;
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
    /// too small to be worth waking anybody.
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
        // SAFETY: only the lifetime changes. Helpers use the pointer between joining the job and
        // leaving it, both under the lock; this function takes the job away and waits until
        // nobody is inside before it returns or unwinds, and `task` and `next` live until then.
        let erased: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        {
            let mut state = self.shared.lock();
            state.job = Some(Job { task: erased, next: &next, tasks });
            state.generation += 1;
        }
        self.shared.start.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| work(task, &next, tasks)));
        let mut state = self.shared.lock();
        state.job = None;
        while state.inside > 0 {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let theirs = state.panic.take();
        drop(state);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            // A helper catches the panics of tasks; there is nothing to report.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No task runs under the lock, so its data is whole even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

fn help(shared: &Shared) {
    let mut seen = 0;
    let mut state = shared.lock();
    loop {
        if state.ends {
            return;
        }
        let job = match state.job {
            Some(job) if state.generation != seen => job,
            _ => {
                state = shared.start.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
        };
        seen = state.generation;
        state.inside += 1;
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the job was found under the lock and `inside` was raised under the same
            // lock, so `Pool::run` is still waiting and keeps both alive.
            let (task, next) = unsafe { (&*job.task, &*job.next) };
            work(task, next, job.tasks);
        }));
        state = shared.lock();
        state.inside -= 1;
        if let Err(panic) = outcome {
            state.panic.get_or_insert(panic);
        }
        if state.inside == 0 {
            shared.done.notify_all();
        }
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
}
