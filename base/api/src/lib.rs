//! The method table: one row for each method of the API. Routes, the OpenAPI document, the client, the command line,
//! the authorization matrix and the reference pages come from it.
//!
//! To add a method: a `method!` line in its resource's file and a [`MethodRow`] in [`METHODS`]. The tests then ask for
//! the rest: the recorded surface, the reference page and the command's route.

mod method;
mod parse;

mod openapi;
mod reference;

mod ids;
mod labels;
mod listing;
mod network;
mod problem;
mod scalar;
mod shape;
mod surface;
mod table;
mod views;
mod words;

pub mod audit;
pub mod bindings;
pub mod commands;
pub mod events;
pub mod flavors;
pub mod images;
pub mod instances;
pub mod join_requests;
pub mod join_tokens;
pub mod nodes;
pub mod policies;
pub mod pools;
pub mod quotas;
pub mod reservations;
pub mod secrets;
pub mod sites;
pub mod system;
pub mod tenants;
pub mod tokens;
pub mod tunnels;
pub mod users;
pub mod work;

pub use ids::{Id, Name, Ref};
pub use labels::{LABELS_MAX, LabelChanges, Labels, Selector};
pub use listing::{Deleted, LIMIT_DEFAULT, Limit, List, Wait, limit_or_default};
pub use method::{COMMON_ERRORS, Idempotency, Method, MethodRow, flag, kebab, path};
pub use network::{Address, Subnet};
pub use openapi::openapi;
pub use parse::{InvalidRequest, near, parse_request};
pub use problem::{ErrorBody, Problem, docs_path};

pub use reference::reference;
pub use scalar::{Cursor, IdempotencyKey, Int, Many, Object, Secret, Text, Time};
pub use shape::{Field, Shape, request_shape, response_shape};
pub use surface::{SurfaceChange, compare as compare_surface, surface};
pub use table::{GROUPS, Group, METHODS, find, group};
pub use views::{Amount, Condition, GpuTotals, Named};
pub use words::{Vocabulary, Word};
