//! One call: sent, answered, tried again where that is safe.

use std::sync::Arc;
use std::time::Duration;

use api::{ErrorBody, Method, MethodRow, Problem};
use bytes::{Bytes, BytesMut};
use kit::{Backoff, Clock, Rng};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};
use serde_json::{Map, Value};

use crate::retry::{Decision, WAIT_CEILING, WAIT_FIRST, decide, repeatable};
use crate::{BoxFuture, ClientError, Config, ConfigError, Refusal, config, roots};

/// Eight sections of a node's inventory at their largest, and room.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// An error is a page of text at most.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    base: Url,
    pub(crate) authorization: Option<HeaderValue>,
    timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
}

impl Client {
    pub fn new(config: Config, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Result<Client, ConfigError> {
        let base = config::base(&config.url)?;
        let authorization = match &config.token {
            Some(token) => {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ConfigError::Token)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(&config.user_agent)
            .connect_timeout(Duration::from_secs(10))
            // A redirect would carry the token to wherever it points.
            .redirect(reqwest::redirect::Policy::none());
        if base.scheme() == "https" {
            builder = builder.tls_backend_preconfigured(roots::tls(config.ca_file.as_deref())?);
        } else {
            // Plain HTTP stays on this machine, so the roots are never asked; a proxy would take it elsewhere.
            let empty = rustls::ClientConfig::builder_with_provider(Arc::new(
                rustls::crypto::ring::default_provider(),
            ))
            .with_safe_default_protocol_versions()
            .map_err(ConfigError::Tls)?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
            builder = builder.tls_backend_preconfigured(empty).no_proxy();
        }
        let http = builder.build().map_err(ConfigError::Http)?;
        Ok(Client { http, base, authorization, timeout: config.timeout, clock, rng })
    }

    /// The server, for messages.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Calls a method with its own types.
    pub fn call<'a, M: Method>(
        &'a self,
        request: &'a M::Request,
    ) -> BoxFuture<'a, Result<M::Response, ClientError>> {
        let body = serde_json::to_value(request).map_err(ClientError::Encode);
        Box::pin(async move {
            let row = const { &MethodRow::of::<M>() };
            let answer = self.call_value(row, body?).await?;
            serde_json::from_value(answer).map_err(|err| self.strange(format!("{}: {err}", M::NAME)))
        })
    }

    /// Calls a method by its row, with JSON in and out: what a newer server adds to an answer is kept.
    pub fn call_value<'a>(
        &'a self,
        row: &'a MethodRow,
        body: Value,
    ) -> BoxFuture<'a, Result<Value, ClientError>> {
        Box::pin(async move {
            let repeatable = repeatable(row, &body);
            let mut backoff = Backoff::new(WAIT_FIRST, WAIT_CEILING);
            let mut tries = 0;
            loop {
                tries += 1;
                let error = match self.once(row, &body).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                let wait = backoff.next_wait(&*self.rng);
                match decide(&error, repeatable, tries) {
                    Decision::GiveUp => return Err(error),
                    Decision::Again => self.clock.sleep(wait).await,
                    // The jitter comes on top, so that all who were told the same second do not meet again.
                    Decision::AgainAfter(least) => self.clock.sleep(least + wait).await,
                }
            }
        })
    }

    async fn once(&self, row: &MethodRow, body: &Value) -> Result<Value, ClientError> {
        let asked = body.pointer("/wait/timeoutMs").and_then(Value::as_u64).unwrap_or(0);
        let mut request = self
            .http
            .post(self.at(&row.path()))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .timeout(self.timeout + Duration::from_millis(asked))
            .body(serde_json::to_vec(body).map_err(ClientError::Encode)?);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let response = request.send().await.map_err(|err| self.failed(err))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let bytes = self.read(response, ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&bytes).map_err(|err| self.strange(format!("no JSON: {err}")))
    }

    /// A GET that goes on: only connecting is timed here.
    pub(crate) async fn open(&self, url: Url, last_event_id: Option<u64>) -> Result<Response, ClientError> {
        let mut request = self.http.get(url).header(ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let response = request.send().await.map_err(|err| self.failed(err))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        Ok(response)
    }

    pub(crate) fn at(&self, path: &str) -> Url {
        self.base.join(path).expect("paths of the table are plain")
    }

    pub(crate) fn failed(&self, source: reqwest::Error) -> ClientError {
        let url = self.url().to_owned();
        // The error would print the whole URL again.
        let source = source.without_url();
        if is_tls(&source) {
            ClientError::Untrusted { url, source }
        } else if source.is_connect() {
            ClientError::Connect { url, source }
        } else if source.is_timeout() {
            ClientError::Timeout { url }
        } else {
            ClientError::Broken { url, source }
        }
    }

    pub(crate) fn strange(&self, what: String) -> ClientError {
        ClientError::Answer { url: self.url().to_owned(), what: what.chars().take(300).collect() }
    }

    pub(crate) async fn read(&self, mut response: Response, max: usize) -> Result<Bytes, ClientError> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|err| self.failed(err))? {
            if body.len() + chunk.len() > max {
                return Err(self.strange(format!("more than {max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    pub(crate) async fn refused(&self, response: Response) -> ClientError {
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.trim().parse().ok());
        let bytes = match self.read(response, ERROR_BYTES_MAX).await {
            Ok(bytes) => bytes,
            Err(error) => return error,
        };
        let problem = match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => body.error,
            // A proxy in between says it in its own way.
            Err(_) if matches!(status, 429 | 502..=504) => Problem {
                code: if status == 429 { "RATE_LIMITED" } else { "UNAVAILABLE" }.to_owned(),
                message: format!("the server is not available (HTTP {status})"),
                details: Map::new(),
                request_id: String::new(),
                docs: String::new(),
            },
            Err(_) => return self.strange(format!("HTTP {status} without an error body")),
        };
        ClientError::Refused(Box::new(Refusal { status, problem, retry_after }))
    }
}

/// Whether a connection failed for what the server showed, not for the network.
fn is_tls(error: &reqwest::Error) -> bool {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if cause.is::<rustls::Error>() {
            return true;
        }
        // An I/O error gives the source of what it wraps and passes over that itself.
        next = match cause.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref()) {
            Some(inner) => Some(inner),
            None => cause.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests;
