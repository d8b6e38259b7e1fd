//! Images of the control plane's own store, over connections to its gateway like the session's.

use std::sync::Arc;

use agent::identity::IdentityStore;
use agent::link::{ImageLink, LinkError};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use runtimes::images::{FetchError, ImageRef, ImageSource, Incoming};
use wire::limits::IMAGE_CHUNK_BYTES_MAX;
use wire::proto::agent::ImageRequest;

pub struct FromGateway {
    link: Arc<dyn ImageLink>,
    identity: Arc<dyn IdentityStore>,
}

impl FromGateway {
    /// The identity is read for each image, since certificates are renewed.
    pub fn new(link: Arc<dyn ImageLink>, identity: Arc<dyn IdentityStore>) -> Self {
        Self { link, identity }
    }

    async fn fetch(&self, image: &ImageRef, offset: u64) -> Result<Incoming, FetchError> {
        let identity = self.identity.load().map_err(|err| passing(kit::chain(&err)))?;
        let identity = identity.ok_or_else(|| passing("this machine has not joined".to_owned()))?;
        let request = ImageRequest { sha256: image.sha256.to_vec().into(), offset };
        let mut chunks = self.link.image(&identity.credentials(), request).await.map_err(failed)?;
        let first =
            chunks.next().await.unwrap_or_else(|| Err(LinkError::new("fetch an image", "nothing came")));
        let first = first.map_err(failed)?;
        let data = futures::stream::iter([Ok(first.data)])
            .chain(chunks.map(|chunk| Ok(chunk.map_err(failed)?.data)));
        let bounded = data.map(|data| match data {
            Ok(data) if data.len() > IMAGE_CHUNK_BYTES_MAX => {
                Err(passing("the gateway sends too much at once".into()))
            }
            data => data,
        });
        Ok(Incoming { total_bytes: first.total_bytes, anew: false, bytes: bounded.boxed() })
    }
}

fn passing(why: String) -> FetchError {
    FetchError { why, lasting: false }
}

fn failed(err: LinkError) -> FetchError {
    FetchError { lasting: err.refused, why: kit::chain(&err) }
}

impl ImageSource for FromGateway {
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        self.fetch(image, offset).boxed()
    }
}
