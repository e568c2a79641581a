//! Accepted connections, counted while they are open.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// How many connections are open.
#[derive(Clone, Default)]
pub(super) struct Connections {
    open: Arc<AtomicUsize>,
}

impl Connections {
    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A listener whose connections are counted here.
    pub(super) fn listen(&self, listener: TcpListener) -> CountedListener {
        CountedListener { listener, connections: self.clone() }
    }
}

/// Accepts connections and counts them.
pub(super) struct CountedListener {
    listener: TcpListener,
    connections: Connections,
}

impl Listener for CountedListener {
    type Io = CountedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (CountedStream, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Events are small and must not wait for each other. A connection that
        // is gone already shows itself at the first read.
        let _ = stream.set_nodelay(true);
        self.connections.open.fetch_add(1, Ordering::Relaxed);
        (CountedStream { stream, connections: self.connections.clone() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// An open connection.
pub(super) struct CountedStream {
    stream: TcpStream,
    connections: Connections,
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
