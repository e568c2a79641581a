//! Ctrl-C while something is downloaded.
//!
//! What lies in the cache is in order at every moment, so the process may end at once, as it would by SIGKILL; what
//! this adds is the line that says so and the exit code, 128 and the signal's number.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SIGHUP, SIGINT, SIGTERM, c_int, sigaction};

const SIGNALS: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Begins with a new line: on a terminal the cursor stands behind a bar.
const LINE: &[u8] =
    b"\ntensorfold: interrupted; what arrived is kept, and the same command goes on from there\n";

static ON_A_TERMINAL: AtomicBool = AtomicBool::new(false);

/// While this lives, the signals that end a process end it with a line. Afterwards they do what they did before.
pub(super) struct EndsWell {
    _handlers: Handlers,
}

impl EndsWell {
    /// From now on.
    pub(super) fn new(on_a_terminal: bool) -> EndsWell {
        ON_A_TERMINAL.store(on_a_terminal, Ordering::Relaxed);
        EndsWell { _handlers: Handlers::install(end) }
    }
}

/// What the signals that end a process do in place of it. Ends with this.
pub(super) struct Handlers {
    before: Vec<(c_int, sigaction)>,
}

impl Handlers {
    /// Has `handler`, which may call nothing but functions that are safe in a handler, answer the signals.
    pub(super) fn install(handler: extern "C" fn(c_int)) -> Handlers {
        let mut before = Vec::new();
        for signal in SIGNALS {
            let mut old = MaybeUninit::<sigaction>::uninit();
            // SAFETY: all bits zero are a `sigaction`: the default handler, an empty mask and no flags.
            let mut new: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            // A call that a handler interrupts, and that is to go on after it, goes on.
            new.sa_flags = libc::SA_RESTART;
            new.sa_sigaction = handler as libc::sighandler_t;
            // SAFETY: both point to a `sigaction` of this frame, and `handler` is one without SA_SIGINFO.
            let set = unsafe { libc::sigaction(signal, &new, old.as_mut_ptr()) };
            if set != 0 {
                continue;
            }
            // SAFETY: the call succeeded, so it wrote the old action.
            let old = unsafe { old.assume_init() };
            if old.sa_sigaction == libc::SIG_IGN {
                // Ignored by whoever started this program, as `nohup` does with SIGHUP: leave it so.
                restore(signal, &old);
            } else {
                before.push((signal, old));
            }
        }
        Handlers { before }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            restore(*signal, old);
        }
    }
}

fn restore(signal: c_int, old: &sigaction) {
    // SAFETY: `old` is an action that the system gave for this signal. Nothing is to be done if it is refused now.
    unsafe { libc::sigaction(signal, old, std::ptr::null_mut()) };
}

extern "C" fn end(signal: c_int) {
    let line = if ON_A_TERMINAL.load(Ordering::Relaxed) { LINE } else { &LINE[1..] };
    // SAFETY: write and _exit are safe in a signal handler, and the line is static. A loss of the line is no matter.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(128 + signal);
    }
}
