//! What a row of the table is.

use model::ErrorCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{InvalidRequest, parse_request};

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

impl Idempotency {
    pub const fn name(self) -> &'static str {
        match self {
            Idempotency::Read => "read",
            Idempotency::Natural => "natural",
            Idempotency::Key => "key",
        }
    }
}

/// What any method may answer beside its own errors.
pub const COMMON_ERRORS: &[ErrorCode] = &[
    ErrorCode::InvalidInput,
    ErrorCode::Unauthenticated,
    ErrorCode::AccessDenied,
    ErrorCode::RateLimited,
    ErrorCode::Unavailable,
    ErrorCode::Internal,
];

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
    /// What it may answer beside [`COMMON_ERRORS`].
    const ERRORS: &'static [ErrorCode];
    /// Refused at the edge when it does not parse strictly.
    type Request: DeserializeOwned + Serialize + JsonSchema + Send + 'static;
    type Response: DeserializeOwned + Serialize + JsonSchema + Send + 'static;

    /// The rules that no single field can see, like two fields that exclude each other.
    fn check(request: &Self::Request) -> Result<(), InvalidRequest>;
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
    /// Beside [`COMMON_ERRORS`].
    pub errors: &'static [ErrorCode],
    pub request_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    pub response_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    /// Parses a request as the server does and gives it back in its canonical form.
    pub parse: fn(Value) -> Result<Value, InvalidRequest>,
}

impl std::fmt::Debug for MethodRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
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
            errors: M::ERRORS,
            request_schema: |generator| generator.subschema_for::<M::Request>(),
            response_schema: |generator| generator.subschema_for::<M::Response>(),
            parse: |body| {
                let request = parse_request::<M>(body)?;
                Ok(serde_json::to_value(&request).expect("requests hold nothing that JSON cannot"))
            },
        }
    }

    /// `/api/compute/reservations/create`.
    pub fn path(&self) -> String {
        path(self.name)
    }

    /// `("reservations", "create")`.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').expect("the macro joins a group and a verb")
    }

    /// The words of the command line: `("join-tokens", "create")`.
    pub fn cli(&self) -> (String, String) {
        let (group, verb) = self.parts();
        (kebab(group), kebab(verb))
    }

    /// Own errors and the common ones, in the catalogue's order.
    pub fn errors_all(&self) -> Vec<ErrorCode> {
        ErrorCode::ALL
            .into_iter()
            .filter(|code| self.errors.contains(code) || COMMON_ERRORS.contains(code))
            .collect()
    }
}

/// The route of a method by its name.
pub fn path(name: &str) -> String {
    format!("/api/compute/{}", name.replacen('.', "/", 1))
}

/// `joinTokens` to `join-tokens`.
pub fn kebab(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 4);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() {
            out.push('-');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// A request's field as the command line's flag, without dashes: `memoryMiB` to `memory-mib`, `hugepages1Gi` to
/// `hugepages-1gi`. Kebab case alone would tear the units apart.
pub fn flag(field: &str) -> String {
    kebab(&field.replace("GiB", "Gib").replace("MiB", "Mib").replace("1Gi", "-1gi"))
}

/// Declares a method: its type, name, idempotency, resource kind, request, response, own errors and summary.
macro_rules! method {
    (
        $marker:ident, $group:literal . $verb:literal, $idempotency:ident, $resource:literal,
        $request:ty => $response:ty, [$($error:ident),*], $summary:literal $(, check = $check:path)?
    ) => {
        #[doc = $summary]
        #[derive(Debug, Clone, Copy)]
        pub struct $marker;

        impl $crate::Method for $marker {
            const NAME: &'static str = concat!($group, ".", $verb);
            const ACTION: &'static str = concat!("compute:", $group, ":", $verb);
            const RESOURCE: &'static str = $resource;
            const IDEMPOTENCY: $crate::Idempotency = $crate::Idempotency::$idempotency;
            const SINCE: &'static str = "0.1.0";
            const SUMMARY: &'static str = $summary;
            const ERRORS: &'static [model::ErrorCode] = &[$(model::ErrorCode::$error),*];
            type Request = $request;
            type Response = $response;

            fn check(request: &Self::Request) -> Result<(), $crate::InvalidRequest> {
                let _ = request;
                $($check(request)?;)?
                Ok(())
            }
        }
    };
}
pub(crate) use method;
