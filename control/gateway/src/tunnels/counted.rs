//! A stream of which is counted what is read, and noted when it has ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub to_node: AtomicU64,
    pub to_client: AtomicU64,
    /// One of the ends has said its last.
    pub ended: AtomicBool,
}

impl Counts {
    pub fn total(&self) -> u64 {
        self.to_node.load(Ordering::Relaxed).wrapping_add(self.to_client.load(Ordering::Relaxed))
    }
}

pub(super) struct Counted<S> {
    stream: S,
    counts: Arc<Counts>,
    of: fn(&Counts) -> &AtomicU64,
}

impl<S> Counted<S> {
    pub fn new(stream: S, counts: &Arc<Counts>, of: fn(&Counts) -> &AtomicU64) -> Self {
        Self { stream, counts: counts.clone(), of }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        match buf.filled().len() - before {
            0 => self.counts.ended.store(true, Ordering::Relaxed),
            read => drop((self.of)(&self.counts).fetch_add(read as u64, Ordering::Relaxed)),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
