//! What a row of the table is.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Whether a call changes something, and how a repeated one is told from a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// Reads. Not audited.
    Read,
    /// Changes, and a repeated call finds the work done.
    Natural,
    /// Creates: the request carries `idempotencyKey`.
    Key,
}

/// One method, as a type, so that its handler, its client and its command cannot disagree about it.
pub trait Method: Send + Sync + 'static {
    /// `reservations.create`; the route is `POST /api/compute/reservations/create`.
    const NAME: &'static str;
    /// `compute:reservations:create`.
    const ACTION: &'static str;
    /// The kind in resource names: `compute-reservation`.
    const RESOURCE: &'static str;
    const IDEMPOTENCY: Idempotency;
    /// The release it came with.
    const SINCE: &'static str;
    /// One line for help and reference.
    const SUMMARY: &'static str;
    /// Refused at the edge when it does not parse strictly.
    type Request: DeserializeOwned + Serialize + JsonSchema + Send + 'static;
    type Response: DeserializeOwned + Serialize + JsonSchema + Send + 'static;
}

/// A row with its types erased, for whatever walks the table.
#[derive(Clone, Copy)]
pub struct MethodRow {
    pub name: &'static str,
    pub action: &'static str,
    pub resource: &'static str,
    pub idempotency: Idempotency,
    pub since: &'static str,
    pub summary: &'static str,
    pub request_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    pub response_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

impl MethodRow {
    pub const fn of<M: Method>() -> Self {
        Self {
            name: M::NAME,
            action: M::ACTION,
            resource: M::RESOURCE,
            idempotency: M::IDEMPOTENCY,
            since: M::SINCE,
            summary: M::SUMMARY,
            request_schema: |generator| generator.subschema_for::<M::Request>(),
            response_schema: |generator| generator.subschema_for::<M::Response>(),
        }
    }
}
