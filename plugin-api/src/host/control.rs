//! The one thread from which a plugin's `[control]` functions are called.
//!
//! The contract promises plugins a fixed thread for these calls, since drivers tie contexts to
//! threads. Callers wait for the answer; only `init` may be given up on, and then the thread is
//! taken for lost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use crate::PluginError;
use crate::abi::Status;

/// Fact of the error that tells a call that was given up on from a plugin's own time-out: the
/// limit in seconds.
pub const GAVE_UP: &str = "gave_up_after_seconds";

type Job = Box<dyn FnOnce() + Send>;

/// Runs closures on one thread, one after another.
#[derive(Debug)]
pub(super) struct ControlThread {
    jobs: Mutex<Sender<Job>>,
    thread: ThreadId,
    lost: AtomicBool,
}

/// Moves what is not `Send` to the control thread.
struct Carried<T>(T);

// SAFETY: the caller of `run` waits while the control thread has the value, so only one thread
// uses it at a time; what this crate's calls carry are pointers and numbers without ties to a
// thread.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    fn take(self) -> T {
        self.0
    }
}

impl ControlThread {
    /// Starts the thread. It ends when the value is dropped.
    pub(super) fn start() -> std::io::Result<ControlThread> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let handle = std::thread::Builder::new().name("plugin-control".into()).spawn(move || {
            for job in queue {
                job();
            }
        })?;
        Ok(ControlThread {
            jobs: Mutex::new(jobs),
            thread: handle.thread().id(),
            lost: AtomicBool::new(false),
        })
    }

    /// Runs `job` on the thread and waits for it, however long it takes.
    ///
    /// # Errors
    /// [`Status::Timeout`] when an earlier call never came back.
    pub(super) fn run<T>(&self, job: impl FnOnce() -> T) -> Result<T, PluginError> {
        if std::thread::current().id() == self.thread {
            return Ok(job());
        }
        let (answer, wait) = mpsc::channel();
        let job = Carried((job, answer));
        let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
            let (job, answer) = job.take();
            let outcome = catch_unwind(AssertUnwindSafe(job));
            // The caller waits, so somebody listens.
            let _ = answer.send(Carried(outcome));
        });
        // SAFETY: only the lifetime changes. `recv` below returns after the job has run, or after
        // it was dropped without running; either way nothing that it borrows is used afterwards.
        let job: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        self.send(job)?;
        match wait.recv().map(Carried::take) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(lost()),
        }
    }

    /// As [`run`](ControlThread::run), but gives up after `limit`. The job may then still be
    /// running, so it must own what it uses, and the thread is not used again.
    ///
    /// # Errors
    /// [`Status::Timeout`] when time is up.
    pub(super) fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PluginError> {
        let (answer, wait) = mpsc::channel();
        self.send(Box::new(move || {
            // Nobody listens when time was up.
            let _ = answer.send(job());
        }))?;
        match wait.recv_timeout(limit) {
            Ok(value) => Ok(value),
            Err(RecvTimeoutError::Timeout) => {
                self.lost.store(true, Ordering::Release);
                Err(PluginError::new(
                    Status::Timeout,
                    format!("the plugin did not answer within {} seconds", limit.as_secs_f32()),
                )
                .with(GAVE_UP, limit.as_secs_f32()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }

    fn send(&self, job: Job) -> Result<(), PluginError> {
        if self.lost.load(Ordering::Acquire) {
            return Err(lost());
        }
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(job).map_err(|_| lost())
    }
}

fn lost() -> PluginError {
    PluginError::new(Status::Timeout, "an earlier call into the plugin never came back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_comes_from_one_thread_that_is_not_the_callers() {
        let control = ControlThread::start().unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            control.run(|| seen.push(std::thread::current().id())).unwrap();
        }
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(|| control.run(|| std::thread::current().id()).unwrap()).join().unwrap()
        });
        assert_eq!(seen, [elsewhere; 3]);
        assert_ne!(elsewhere, std::thread::current().id());
    }

    #[test]
    fn a_call_within_a_call_does_not_wait_for_itself() {
        let control = ControlThread::start().unwrap();
        assert_eq!(control.run(|| control.run(|| 7).unwrap()).unwrap(), 7);
    }

    #[test]
    fn a_call_that_never_returns_loses_the_thread_and_not_the_caller() {
        let control = ControlThread::start().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let stuck = control.run_within(Duration::from_millis(5), move || held.recv());
        assert_eq!(stuck.unwrap_err().status, Status::Timeout);
        assert_eq!(control.run(|| ()).unwrap_err().status, Status::Timeout);
        drop(release);
    }

    #[test]
    fn a_panic_of_the_hosts_own_arrives_at_the_caller() {
        let control = ControlThread::start().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| control.run(|| panic!("of the host"))));
        assert!(outcome.is_err());
        assert_eq!(control.run(|| 1).unwrap(), 1);
    }
}
