//! The API over HTTP, on a real database.

mod front;
mod streams;
mod tls;
mod world;
