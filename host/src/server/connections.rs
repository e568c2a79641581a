//! Accepted connections: served, counted while they are open, and closed when nothing comes.
//!
//! A client that opens connections and does not ask, or asks a byte at a time, holds each of them for a bounded time
//! only, so that those who do ask find room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use super::stopping::Stopping;

/// How long a connection may take to bring the head of its next request. Idle connections end so too.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(60);

/// How many connections are open.
#[derive(Clone, Default)]
pub(super) struct Connections {
    open: Arc<AtomicUsize>,
}

impl Connections {
    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Answers on `listener` until the server stops, then until the open requests are answered.
    pub(super) async fn serve(
        &self,
        mut listener: TcpListener,
        router: Router,
        stopping: Stopping,
        head_limit: Duration,
    ) {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(head_limit);
        let graceful = GracefulShutdown::new();
        loop {
            // Waits a little by itself where the process is out of files.
            let (stream, peer) = tokio::select! {
                accepted = Listener::accept(&mut listener) => accepted,
                () = stopping.wait() => break,
            };
            // Events are small and must not wait for each other. A connection that
            // is gone already shows itself at the first read.
            let _ = stream.set_nodelay(true);
            let open = Open::enter(self);
            let service = TowerToHyperService::new(router.clone());
            let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%peer, %error, "a connection ended");
                }
                drop(open);
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }
}

/// Counts a connection for as long as it exists.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn enter(connections: &Connections) -> Open {
        connections.open.fetch_add(1, Ordering::Relaxed);
        Open(connections.open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::super::stopping::stop_signal;
    use super::*;

    #[tokio::test]
    async fn a_connection_that_brings_no_whole_head_is_closed_and_others_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(|| async { "here" }));
        let (stop, stopping) = stop_signal();
        let connections = Connections::default();
        let serving = tokio::spawn({
            let connections = connections.clone();
            async move { connections.serve(listener, router, stopping, Duration::from_millis(300)).await }
        });
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut halting = TcpStream::connect(address).await.unwrap();
        halting.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        let mut whole = TcpStream::connect(address).await.unwrap();
        whole.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        whole.read_to_end(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer).ends_with("here"));
        for stream in [&mut silent, &mut halting] {
            // Ends, however: what it says about it does not matter.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        stop.stop();
        serving.await.unwrap();
        assert_eq!(connections.count(), 0);
    }
}
