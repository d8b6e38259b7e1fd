//! Where this host's images come from.

use std::sync::Arc;

use futures::future::BoxFuture;
use runtimes::images::{FetchError, ImageRef, ImageSource, Incoming};

mod address;
mod gateway;
mod guard;
mod route;

pub use address::FromAddress;
pub use gateway::FromGateway;
pub use guard::{Guard, HostLookup, Lookup};

/// Each from where its reference says.
pub struct Sources {
    pub store: Arc<dyn ImageSource>,
    pub address: Arc<dyn ImageSource>,
}

impl ImageSource for Sources {
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        let source = if image.url.is_empty() { &self.store } else { &self.address };
        source.open(image, offset)
    }
}
