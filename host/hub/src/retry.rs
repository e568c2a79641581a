//! Which failures are worth another attempt, and how long to wait for it.

use std::time::Duration;

use crate::error::HubError;
use crate::settings::Limits;

/// A failed attempt.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another attempt may do; the answer may have said when.
    Passing(HubError, Option<Duration>),
    /// No further attempt can help.
    Final(HubError),
    /// The content is not the one whose beginning was read.
    Changed,
    /// A part was asked for and the whole was sent.
    NoRanges,
}

impl From<HubError> for Fault {
    fn from(error: HubError) -> Fault {
        Fault::Final(error)
    }
}

/// Attempts at one thing.
pub(crate) struct Attempts<'a> {
    limits: &'a Limits,
    failed: u32,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Attempts<'a> {
        Attempts { limits, failed: 0 }
    }

    /// There was progress: what failed before does not count any more.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits for the next attempt.
    ///
    /// # Errors
    /// The fault, when there is none.
    pub(crate) async fn wait(&mut self, fault: Fault) -> Result<(), Fault> {
        let Fault::Passing(error, asked) = fault else { return Err(fault) };
        self.failed += 1;
        let doubled = self.limits.first_wait.saturating_mul(1 << (self.failed - 1).min(16));
        let wait = asked.map_or(doubled, |asked| asked.max(doubled));
        if self.failed >= self.limits.attempts || wait > self.limits.longest_wait {
            return Err(Fault::Final(error));
        }
        tracing::debug!(%error, failed = self.failed, ?wait, "trying again");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}
