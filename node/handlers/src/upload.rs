//! One PUT of bytes to a presigned https URL. The URL is a secret: it is in no error and no log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use kit::Clock;
use reqwest::Url;

use crate::https::{self, HttpsError};

const URL_BYTES_MAX: usize = 8 * 1024;
/// Nothing taken for this long is a dead connection, however slow a live one may be.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// From the last byte taken to the answer: storage makes the object durable first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// A megabyte in ten seconds is the slowest line worth waiting for; a bundle has 16 of them.
const TOTAL_LIMIT: Duration = Duration::from_secs(5 * 60);
const CHUNK_BYTES: usize = 64 * 1024;

/// Where an upload goes, checked. Prints its host alone.
#[derive(Clone)]
pub struct Destination(Url);

impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Destination({})", self.0.host_str().unwrap_or_default())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("take the upload URL: {0}")]
    Destination(&'static str),
    #[error("upload")]
    Client(#[source] HttpsError),
    #[error("upload")]
    Http(#[source] reqwest::Error),
    #[error("upload: nothing was taken for {} s", STALL_LIMIT.as_secs())]
    Stalled,
    #[error("upload: it took longer than {} s", TOTAL_LIMIT.as_secs())]
    TooSlow,
    #[error("upload: the storage answered {status}")]
    Status { status: u16 },
}

pub trait Upload: Send + Sync + 'static {
    /// Checks a URL before anything is collected for it.
    fn destination(&self, url: &str) -> Result<Destination, UploadError> {
        destination(url)
    }

    fn put<'a>(&'a self, destination: Destination, body: Bytes) -> BoxFuture<'a, Result<(), UploadError>>;
}

fn destination(url: &str) -> Result<Destination, UploadError> {
    if url.len() > URL_BYTES_MAX {
        return Err(UploadError::Destination("it is longer than 8 KiB"));
    }
    let url: Url = url.parse().map_err(|_| UploadError::Destination("it is no URL"))?;
    if url.scheme() != "https" {
        return Err(UploadError::Destination("it is not https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UploadError::Destination("it carries a user name or password"));
    }
    if url.fragment().is_some() || url.host_str().is_none_or(str::is_empty) {
        return Err(UploadError::Destination("it names no host, or a fragment"));
    }
    Ok(Destination(url))
}

/// Over HTTPS with the system's certificate authorities, or those of one file.
pub struct HttpsUpload {
    clock: Arc<dyn Clock>,
    authorities: Option<PathBuf>,
}

impl HttpsUpload {
    /// `authorities` is a PEM bundle that takes the place of the system's.
    pub fn new(clock: Arc<dyn Clock>, authorities: Option<PathBuf>) -> Self {
        Self { clock, authorities }
    }

    async fn send(&self, destination: Destination, body: Bytes) -> Result<(), UploadError> {
        let (taken, mut progress) = tokio::sync::watch::channel(0usize);
        let length = body.len();
        // A redirect would carry the bundle to wherever it points: it is not followed.
        let request = https::client(self.authorities.as_deref(), |client| client)
            .map_err(UploadError::Client)?
            .put(destination.0)
            .header(reqwest::header::CONTENT_TYPE, "text/plain; charset=utf-8")
            // Presigned PUTs take no chunked bodies.
            .header(reqwest::header::CONTENT_LENGTH, length)
            .body(reqwest::Body::wrap_stream(chunks(body, taken)))
            .send();
        let mut request = std::pin::pin!(request);
        loop {
            let limit = if *progress.borrow() < length { STALL_LIMIT } else { ANSWER_LIMIT };
            // Cancel-safe: the request goes on where it was, a change that is not seen here is seen next time round.
            let answer = tokio::select! {
                answer = &mut request => answer,
                changed = progress.changed() => match changed {
                    Ok(()) => continue,
                    // The body is gone, so all of it was taken or the request is over.
                    Err(_) => self.answer(&mut request).await?,
                },
                () = self.clock.sleep(limit) => return Err(UploadError::Stalled),
            };
            let status = answer.map_err(|source| UploadError::Http(source.without_url()))?.status();
            return if status.is_success() {
                Ok(())
            } else {
                Err(UploadError::Status { status: status.as_u16() })
            };
        }
    }

    async fn answer<T>(&self, request: &mut (impl Future<Output = T> + Unpin)) -> Result<T, UploadError> {
        tokio::select! {
            answer = request => Ok(answer),
            () = self.clock.sleep(ANSWER_LIMIT) => Err(UploadError::Stalled),
        }
    }
}

/// The body in pieces, each told of when the connection asks for the next.
fn chunks(
    body: Bytes,
    taken: tokio::sync::watch::Sender<usize>,
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
    futures::stream::unfold((body, taken, 0usize), |(mut body, taken, at)| async move {
        taken.send_replace(at);
        if body.is_empty() {
            return None;
        }
        let chunk = body.split_to(CHUNK_BYTES.min(body.len()));
        let at = at + chunk.len();
        Some((Ok(chunk), (body, taken, at)))
    })
}

impl Upload for HttpsUpload {
    fn put<'a>(&'a self, destination: Destination, body: Bytes) -> BoxFuture<'a, Result<(), UploadError>> {
        Box::pin(async move {
            // Cancel-safe: either ends the upload for good.
            tokio::select! {
                sent = self.send(destination, body) => sent,
                () = self.clock.sleep(TOTAL_LIMIT) => Err(UploadError::TooSlow),
            }
        })
    }
}

#[cfg(test)]
mod tests;
