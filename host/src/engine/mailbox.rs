//! The way of events from the engine thread to whoever waits for a reply.
//!
//! The engine thread never waits here: tokens gather until they are taken.
//! What gathers is bounded by the reply's own `max_tokens`, four bytes each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::request::{Event, FailureKind, FinishReason, ReplyStatistics};

/// Most tokens in one event, so that no reader is handed more than a few KiB of
/// text at once, however long it was away.
const EVENT_TOKENS: usize = 1024;

/// A mailbox: the engine's end and the reader's.
pub(super) fn mailbox() -> (EventSender, EventReceiver) {
    let shared = Arc::new(Shared { contents: Mutex::new(Contents::default()), posted: Notify::new() });
    (EventSender { shared: shared.clone() }, EventReceiver { shared })
}

/// The reader's end. Dropping it cancels the request.
#[derive(Debug)]
pub struct EventReceiver {
    shared: Arc<Shared>,
}

impl EventReceiver {
    /// The next event; `None` after the last one.
    ///
    /// Cancel-safe: an event is taken only when it is returned.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            // Registered before looking, so that nothing posted in between is missed.
            let posted = self.shared.posted.notified();
            {
                let mut contents = self.shared.lock();
                if let Some(event) = contents.take() {
                    return Some(event);
                }
                if contents.ended {
                    return None;
                }
            }
            posted.await;
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut contents = self.shared.lock();
        contents.abandoned = true;
        contents.tokens = Vec::new();
    }
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct EventSender {
    shared: Arc<Shared>,
}

impl EventSender {
    pub(super) fn prefilled(&self, cached: u32) {
        self.post(|contents| contents.prefilled = Some(cached));
    }

    pub(super) fn tokens(&self, tokens: &[u32]) {
        if !tokens.is_empty() {
            self.post(|contents| contents.tokens.extend_from_slice(tokens));
        }
    }

    pub(super) fn finish(self, reason: FinishReason, statistics: ReplyStatistics) {
        self.post(|contents| contents.end = Some(Event::Finished { reason, statistics }));
    }

    pub(super) fn fail(self, kind: FailureKind, message: impl Into<String>) {
        let message = message.into();
        self.post(|contents| contents.end = Some(Event::Failed { kind, message }));
    }

    /// Whether nobody reads any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.shared.lock().abandoned
    }

    fn post(&self, change: impl FnOnce(&mut Contents)) {
        let mut contents = self.shared.lock();
        if contents.abandoned {
            return;
        }
        change(&mut contents);
        drop(contents);
        self.shared.posted.notify_one();
    }
}

impl Drop for EventSender {
    /// A reader never waits for a sender that is gone, however it went.
    fn drop(&mut self) {
        let mut contents = self.shared.lock();
        if contents.end.is_none() && !contents.ended && !contents.abandoned {
            contents.end = Some(Event::Failed {
                kind: FailureKind::Engine,
                message: "the engine dropped this request".to_owned(),
            });
        }
        drop(contents);
        self.shared.posted.notify_one();
    }
}

#[derive(Debug)]
struct Shared {
    contents: Mutex<Contents>,
    posted: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        // Every change is complete before anything can panic.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Contents {
    prefilled: Option<u32>,
    tokens: Vec<u32>,
    end: Option<Event>,
    /// The last event was taken.
    ended: bool,
    /// The reader is gone.
    abandoned: bool,
}

impl Contents {
    fn take(&mut self) -> Option<Event> {
        if let Some(cached) = self.prefilled.take() {
            return Some(Event::Prefilled { cached });
        }
        if !self.tokens.is_empty() {
            let count = self.tokens.len().min(EVENT_TOKENS);
            let rest = self.tokens.split_off(count);
            return Some(Event::Tokens(std::mem::replace(&mut self.tokens, rest)));
        }
        let end = self.end.take()?;
        self.ended = true;
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_come_in_order_and_tokens_gather_for_a_slow_reader() {
        let (sender, mut receiver) = mailbox();
        sender.prefilled(64);
        sender.tokens(&[1]);
        sender.tokens(&[2, 3]);
        sender.finish(FinishReason::Length, ReplyStatistics::default());
        assert_eq!(receiver.next().await, Some(Event::Prefilled { cached: 64 }));
        assert_eq!(receiver.next().await, Some(Event::Tokens(vec![1, 2, 3])));
        assert!(matches!(receiver.next().await, Some(Event::Finished { reason: FinishReason::Length, .. })));
        assert_eq!(receiver.next().await, None);
        assert_eq!(receiver.next().await, None);
    }

    #[tokio::test]
    async fn a_reader_that_was_long_away_gets_its_tokens_in_portions() {
        let (sender, mut receiver) = mailbox();
        let tokens: Vec<u32> = (0..2500).collect();
        sender.tokens(&tokens);
        let mut read = Vec::new();
        for portion in [1024, 1024, 452] {
            let Some(Event::Tokens(tokens)) = receiver.next().await else { panic!("tokens") };
            assert_eq!(tokens.len(), portion);
            read.extend(tokens);
        }
        assert_eq!(read, tokens);
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let (sender, mut receiver) = mailbox();
        let reader = tokio::spawn(async move { receiver.next().await });
        tokio::task::yield_now().await;
        sender.tokens(&[7]);
        assert_eq!(reader.await.unwrap(), Some(Event::Tokens(vec![7])));
    }

    #[tokio::test]
    async fn a_lost_sender_is_a_failure_and_never_a_hang() {
        let (sender, mut receiver) = mailbox();
        sender.tokens(&[7]);
        drop(sender);
        assert_eq!(receiver.next().await, Some(Event::Tokens(vec![7])));
        assert!(matches!(receiver.next().await, Some(Event::Failed { kind: FailureKind::Engine, .. })));
        assert_eq!(receiver.next().await, None);
    }

    #[test]
    fn a_dropped_receiver_is_seen_and_keeps_nothing() {
        let (sender, receiver) = mailbox();
        assert!(!sender.is_abandoned());
        drop(receiver);
        assert!(sender.is_abandoned());
        sender.tokens(&[1, 2, 3]);
        assert!(sender.shared.lock().tokens.is_empty());
    }
}
