//! The one signal by which everything in the server learns that it stops.

use tokio::sync::watch;

/// Says that the server stops.
pub(super) struct Stop {
    sender: watch::Sender<bool>,
}

/// Learns that the server stops; clones learn the same.
#[derive(Clone)]
pub(super) struct Stopping {
    receiver: watch::Receiver<bool>,
}

/// A connected pair.
pub(super) fn stop_signal() -> (Stop, Stopping) {
    let (sender, receiver) = watch::channel(false);
    (Stop { sender }, Stopping { receiver })
}

impl Stop {
    pub(super) fn stop(&self) {
        self.sender.send_replace(true);
    }
}

impl Stopping {
    /// Returns once the server stops, also when it does already.
    pub(super) async fn wait(&self) {
        // A sender that is gone has nothing left to keep running.
        let _ = self.receiver.clone().wait_for(|stopping| *stopping).await;
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.receiver.borrow()
    }
}
