//! Conditions: named facts about a resource that a person or a placer must know.

use crate::Timestamp;

/// How bad a condition is for new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; placement goes on.
    Info,
    /// Placement goes on; a person should look.
    Warning,
    /// The subject takes no new work.
    Blocking,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Blocking => "blocking",
        }
    }

    pub fn parse(text: &str) -> Option<Severity> {
        [Severity::Info, Severity::Warning, Severity::Blocking].into_iter().find(|s| s.name() == text)
    }
}

/// One fact. Agents report its age; the control plane derives `since` on its own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// CamelCase, like `Xid`, `SectionUnsupported`, `RestoreSuspected`.
    pub kind: String,
    pub severity: Severity,
    /// A device (a GPU UUID) when the fact is about one, else empty for the whole node.
    pub device: String,
    /// One stable word for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    pub since: Timestamp,
}
