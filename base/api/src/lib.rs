//! The method table: one row for each method of the API. Routes, the OpenAPI document, the client, the command line,
//! the authorization matrix and the reference pages come from it.

mod method;
mod parse;

pub use method::{Idempotency, Method, MethodRow};
pub use parse::{InvalidRequest, parse_request};
