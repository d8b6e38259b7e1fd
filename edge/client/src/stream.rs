//! The stream of events, across broken connections.

use std::collections::VecDeque;
use std::time::Duration;

use api::events::{Event, STREAM_HEARTBEAT_SECONDS, STREAM_PATH};
use futures::future::{Either, select};
use kit::Backoff;
use reqwest::Response;

use crate::retry::{WAIT_CEILING, WAIT_FIRST};
use crate::sse::Parser;
use crate::{BoxFuture, Client, ClientError};

/// Three heartbeats that did not come: the connection is dead, whatever it says itself.
const SILENCE_MAX: Duration = Duration::from_secs(3 * STREAM_HEARTBEAT_SECONDS);

/// Which events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub tenant: Option<String>,
    /// A type, or the beginning of one up to a dot.
    pub kind: Option<String>,
    pub subject: Option<String>,
}

/// Events as they happen. After a broken connection it goes on after the last one it gave.
pub struct EventStream {
    client: Client,
    filter: EventFilter,
    last_seq: Option<u64>,
    connection: Option<(Response, Parser)>,
    ready: VecDeque<Event>,
    backoff: Backoff,
}

impl Client {
    /// Streams events from now on, or those after a `seq`.
    pub fn events(&self, filter: EventFilter, after_seq: Option<u64>) -> EventStream {
        EventStream {
            client: self.clone(),
            filter,
            last_seq: after_seq,
            connection: None,
            ready: VecDeque::new(),
            backoff: Backoff::new(WAIT_FIRST, WAIT_CEILING),
        }
    }
}

impl EventStream {
    /// The `seq` of the last event given: where a later stream goes on.
    pub fn last_seq(&self) -> Option<u64> {
        self.last_seq
    }

    /// The next event. Connections that break are made again without end; a refusal that another try would meet again is
    /// the stream's end. Cancel-safe: an event that was not given is given by the next call.
    pub fn next_event(&mut self) -> BoxFuture<'_, Result<Event, ClientError>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    self.last_seq = Some(event.seq);
                    return Ok(event);
                }
                match self.more().await {
                    Ok(()) => {}
                    Err(error) if lasting(&error) => return Err(error),
                    Err(error) => {
                        self.connection = None;
                        let asked = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or(0);
                        let wait = self.backoff.next_wait(&*self.client.rng);
                        self.client.clock.sleep(Duration::from_secs(asked.min(60)) + wait).await;
                    }
                }
            }
        })
    }

    /// Connects if need be, and reads one chunk.
    async fn more(&mut self) -> Result<(), ClientError> {
        if self.connection.is_none() {
            let mut url = self.client.at(STREAM_PATH);
            let filter = &self.filter;
            let pairs = [("tenant", &filter.tenant), ("type", &filter.kind), ("subject", &filter.subject)];
            for (key, value) in pairs {
                if let Some(value) = value {
                    url.query_pairs_mut().append_pair(key, value);
                }
            }
            let response = self.client.open(url, self.last_seq).await?;
            self.connection = Some((response, Parser::default()));
        }
        let (response, parser) = self.connection.as_mut().expect("it was made above");
        let silence = self.client.clock.sleep(SILENCE_MAX);
        let chunk = match select(Box::pin(response.chunk()), silence).await {
            Either::Left((Ok(Some(chunk)), _)) => chunk,
            Either::Left((Err(err), _)) => return Err(self.client.failed(err)),
            // The server closed it, as it does when it stops; or nothing came for too long.
            Either::Left((Ok(None), _)) | Either::Right(_) => {
                return Err(ClientError::Timeout { url: self.client.url().to_owned() });
            }
        };
        let strange = |what: String| ClientError::Answer { url: self.client.url().to_owned(), what };
        for frame in parser.feed(&chunk).map_err(|err| strange(err.to_string()))? {
            let event =
                serde_json::from_str(&frame.data).map_err(|err| strange(format!("no event: {err}")))?;
            self.ready.push_back(event);
        }
        self.backoff.reset();
        Ok(())
    }
}

/// Another try would meet it again.
fn lasting(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refusal) => !refusal.code().retryable(),
        ClientError::Untrusted { .. } | ClientError::Answer { .. } | ClientError::Encode(_) => true,
        ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => false,
    }
}

#[cfg(test)]
mod tests;
