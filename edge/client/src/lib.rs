//! The typed HTTP client of the API. There is nothing here for any single method: the table in `api` says it all.
//!
//! ```ignore
//! let client = Client::new(Config::new("https://compute.example.com").token(token), clock, rng)?;
//! let node = client.call::<api::nodes::Get>(&request).await?;
//! ```

mod call;
mod config;
mod content;
mod error;
mod retry;
mod roots;
mod sse;
mod stream;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use call::Client;
pub use config::{Config, ConfigError};
pub use content::ContentBytes;
pub use error::{ClientError, Refusal};
pub use stream::{EventFilter, EventStream};

pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn std::future::Future<Output = T> + Send + 'a>>;
