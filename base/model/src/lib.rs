//! What things are: ids, units, shapes, states and their moves, conditions, error codes, command kinds, sections.
//!
//! Nothing here does I/O or reads a clock. Core types are not `Serialize`; wire, API and row types live at their edge.

pub mod command;
pub mod condition;
pub mod error;
pub mod id;
pub mod label;
pub mod lifecycle;
pub mod section;
pub mod time;
pub mod unit;

pub use command::{CommandKind, Lane, Role};
pub use condition::Condition;
pub use error::ErrorCode;
pub use id::*;
pub use section::{Section, SectionState};
pub use time::Timestamp;
