//! Bytes that are too large for a request.

use bytes::Bytes;
use futures::stream::BoxStream;
use reqwest::Body;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;

use crate::call::ANSWER_BYTES_MAX;
use crate::{BoxFuture, Client, ClientError};

/// Bytes as they are read.
pub type ContentBytes = BoxStream<'static, std::io::Result<Bytes>>;

impl Client {
    /// Sends the content of a resource from `offset` on: `length` bytes. Only connecting is timed: how long the bytes take is
    /// for their sender to say. Tried once: where to go on after a break is for the server to say.
    pub fn put_content<'a>(
        &'a self,
        group: &str,
        id: &str,
        offset: u64,
        length: u64,
        bytes: ContentBytes,
    ) -> BoxFuture<'a, Result<Value, ClientError>> {
        let mut url = self.at("/api/compute/");
        url.path_segments_mut().expect("the base has a path").pop_if_empty().extend([group, id, "content"]);
        url.query_pairs_mut().append_pair("offset", &offset.to_string());
        let mut request = self
            .http
            .put(url)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, length)
            .header(ACCEPT, "application/json")
            .body(Body::wrap_stream(bytes));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        Box::pin(async move {
            let response = request.send().await.map_err(|err| self.failed(err))?;
            if !response.status().is_success() {
                return Err(self.refused(response).await);
            }
            let bytes = self.read(response, ANSWER_BYTES_MAX).await?;
            serde_json::from_slice(&bytes).map_err(|err| self.strange(format!("no JSON: {err}")))
        })
    }
}
