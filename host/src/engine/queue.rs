//! Requests that wait for a lane.

use std::collections::VecDeque;
use std::time::Instant;

use super::mailbox::EventSender;
use super::request::{GenerationRequest, Priority};

/// A request that was taken in and has not begun.
pub(super) struct Waiting {
    pub(super) request: GenerationRequest,
    pub(super) events: EventSender,
    pub(super) submitted: Instant,
}

/// Foreground before background, each in order of arrival; bounded.
pub(super) struct Queue {
    foreground: VecDeque<Waiting>,
    background: VecDeque<Waiting>,
    bound: usize,
}

impl Queue {
    /// A queue for at most `bound` requests.
    pub(super) fn new(bound: usize) -> Self {
        Queue { foreground: VecDeque::new(), background: VecDeque::new(), bound }
    }

    pub(super) fn len(&self) -> usize {
        self.foreground.len() + self.background.len()
    }

    pub(super) fn bound(&self) -> usize {
        self.bound
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.bound
    }

    /// Adds a request at the end of its class. The caller has seen that there is room.
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.class(waiting.request.priority).push_back(waiting);
    }

    /// Puts a request back to where [`pop`](Self::pop) took it from.
    pub(super) fn push_front(&mut self, waiting: Waiting) {
        self.class(waiting.request.priority).push_front(waiting);
    }

    /// The request whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.foreground.pop_front().or_else(|| self.background.pop_front())
    }

    /// Drops requests that nobody waits for any more; says how many there were.
    pub(super) fn remove_abandoned(&mut self) -> usize {
        let before = self.len();
        self.foreground.retain(|waiting| !waiting.events.is_abandoned());
        self.background.retain(|waiting| !waiting.events.is_abandoned());
        before - self.len()
    }

    /// Empties the queue, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> + '_ {
        self.foreground.drain(..).chain(self.background.drain(..))
    }

    fn class(&mut self, priority: Priority) -> &mut VecDeque<Waiting> {
        match priority {
            Priority::Foreground => &mut self.foreground,
            Priority::Background => &mut self.background,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::request;
    use super::super::mailbox::{EventReceiver, mailbox};
    use super::*;

    fn waiting(id: &str, priority: Priority) -> (Waiting, EventReceiver) {
        let (events, receiver) = mailbox();
        let request = GenerationRequest { id: id.to_owned(), priority, ..request(&[1], 1) };
        (Waiting { request, events, submitted: Instant::now() }, receiver)
    }

    #[test]
    fn foreground_goes_before_background_and_each_in_order_of_arrival() {
        let mut queue = Queue::new(8);
        let mut receivers = Vec::new();
        for (id, priority) in [
            ("b1", Priority::Background),
            ("f1", Priority::Foreground),
            ("b2", Priority::Background),
            ("f2", Priority::Foreground),
        ] {
            let (entry, receiver) = waiting(id, priority);
            receivers.push(receiver);
            queue.push(entry);
        }
        let first = queue.pop().unwrap();
        assert_eq!(first.request.id, "f1");
        queue.push_front(first);
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|entry| entry.request.id).collect();
        assert_eq!(order, ["f1", "f2", "b1", "b2"]);
    }

    #[test]
    fn abandoned_requests_leave_the_queue() {
        let mut queue = Queue::new(2);
        let (kept, _receiver) = waiting("kept", Priority::Foreground);
        let (left, receiver) = waiting("left", Priority::Background);
        queue.push(kept);
        queue.push(left);
        assert!(queue.is_full());
        drop(receiver);
        assert_eq!(queue.remove_abandoned(), 1);
        assert!(!queue.is_full());
        assert_eq!(queue.pop().unwrap().request.id, "kept");
    }
}
