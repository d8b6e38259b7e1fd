//! What can go wrong between us and the database, without ever quoting a row or a password.

use std::error::Error as _;
use std::{fmt, io};

use tokio_postgres::error::{DbError, Severity, SqlState};

/// Says whether doing the same again may succeed. [`crate::Store::tx`] asks it of the caller's error.
pub trait IsRetryable {
    fn is_retryable(&self) -> bool;
}

/// A statement, a connection or a migration that failed.
///
/// The text names the statement, the SQLSTATE and the constraint, and never shows values: PostgreSQL's own
/// message is kept only where it can speak of nothing but names (see [`message_is_safe`]).
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    /// The statement or the step, by its name.
    at: &'static str,
}

/// The kinds a caller tells apart. Constraint names are the schema's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    UniqueViolation {
        constraint: String,
    },
    ForeignKey {
        constraint: String,
    },
    Check {
        constraint: String,
    },
    Exclusion {
        constraint: String,
    },
    NotNull {
        column: String,
    },
    /// SQLSTATE 42501: the role may not do this.
    InsufficientPrivilege,
    /// SQLSTATE 40001.
    Serialization,
    /// SQLSTATE 40P01.
    Deadlock,
    /// A prepared statement was overtaken by a migration; prepared again, it works.
    StalePlan,
    /// A lock was not had within `lock_timeout`.
    LockTimeout,
    /// The statement ran longer than `statement_timeout`, or an operator cancelled it.
    StatementTimeout,
    /// No connection, or it was lost before anything could have been committed.
    Unavailable {
        why: String,
    },
    /// The connection was lost during COMMIT: the transaction may or may not have happened.
    CommitUnknown,
    /// The closure went on after one of its statements had failed, so there is nothing to commit.
    Aborted,
    /// One row was expected.
    RowCount {
        found: usize,
    },
    /// A stored value is not what its column promises, or a parameter does not fit its type.
    Decode {
        what: String,
    },
    /// The database lacks migrations of this program.
    SchemaTooOld {
        found: u32,
        needed: u32,
    },
    /// The database was migrated by a newer program.
    SchemaTooNew {
        found: u32,
        known: u32,
    },
    /// An applied migration file was edited, renamed, or slipped in below applied ones.
    MigrationChanged {
        version: u32,
        why: &'static str,
    },
    /// Any other answer of the server.
    Database {
        sqlstate: String,
        message: Option<String>,
    },
    /// The configuration cannot be used.
    Config {
        why: String,
    },
}

impl StoreError {
    pub(crate) fn new(at: &'static str, kind: ErrorKind) -> Self {
        Self { kind, at }
    }

    pub(crate) fn lost(at: &'static str) -> Self {
        Self::new(at, ErrorKind::Unavailable { why: "the connection was closed".to_owned() })
    }

    pub(crate) fn driver(at: &'static str, err: &tokio_postgres::Error) -> Self {
        Self::new(at, classify(err))
    }

    /// A stored value that does not parse. `what` names the column or type and never the value.
    pub fn decode(at: &'static str, what: impl Into<String>) -> Self {
        Self::new(at, ErrorKind::Decode { what: what.into() })
    }

    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The statement or step that failed, by name.
    pub fn at(&self) -> &'static str {
        self.at
    }

    /// Whether this is a violation of the named unique constraint or index.
    pub fn is_unique(&self, name: &str) -> bool {
        matches!(&self.kind, ErrorKind::UniqueViolation { constraint } if constraint == name)
    }

    /// Whether this is a violation of the named foreign key.
    pub fn is_foreign_key(&self, name: &str) -> bool {
        matches!(&self.kind, ErrorKind::ForeignKey { constraint } if constraint == name)
    }

    /// Whether this is a violation of the named check constraint.
    pub fn is_check(&self, name: &str) -> bool {
        matches!(&self.kind, ErrorKind::Check { constraint } if constraint == name)
    }

    /// Whether the same transaction may succeed when run again, knowing that it did not happen.
    pub fn retryable(&self) -> bool {
        match &self.kind {
            ErrorKind::Serialization
            | ErrorKind::Deadlock
            | ErrorKind::StalePlan
            | ErrorKind::LockTimeout
            | ErrorKind::Unavailable { .. } => true,
            ErrorKind::UniqueViolation { .. }
            | ErrorKind::ForeignKey { .. }
            | ErrorKind::Check { .. }
            | ErrorKind::Exclusion { .. }
            | ErrorKind::NotNull { .. }
            | ErrorKind::InsufficientPrivilege
            | ErrorKind::StatementTimeout
            | ErrorKind::CommitUnknown
            | ErrorKind::Aborted
            | ErrorKind::RowCount { .. }
            | ErrorKind::Decode { .. }
            | ErrorKind::SchemaTooOld { .. }
            | ErrorKind::SchemaTooNew { .. }
            | ErrorKind::MigrationChanged { .. }
            | ErrorKind::Database { .. }
            | ErrorKind::Config { .. } => false,
        }
    }

    /// The label of this kind in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match &self.kind {
            ErrorKind::UniqueViolation { .. } => "unique",
            ErrorKind::ForeignKey { .. } => "foreign_key",
            ErrorKind::Check { .. } => "check",
            ErrorKind::Exclusion { .. } => "exclusion",
            ErrorKind::NotNull { .. } => "not_null",
            ErrorKind::InsufficientPrivilege => "privilege",
            ErrorKind::Serialization => "serialization",
            ErrorKind::Deadlock => "deadlock",
            ErrorKind::StalePlan => "stale_plan",
            ErrorKind::LockTimeout => "lock_timeout",
            ErrorKind::StatementTimeout => "statement_timeout",
            ErrorKind::Unavailable { .. } => "unavailable",
            ErrorKind::CommitUnknown => "commit_unknown",
            ErrorKind::Aborted => "aborted",
            ErrorKind::RowCount { .. } => "row_count",
            ErrorKind::Decode { .. } => "decode",
            ErrorKind::SchemaTooOld { .. } => "schema_too_old",
            ErrorKind::SchemaTooNew { .. } => "schema_too_new",
            ErrorKind::MigrationChanged { .. } => "migration_changed",
            ErrorKind::Database { .. } => "database",
            ErrorKind::Config { .. } => "config",
        }
    }
}

impl IsRetryable for StoreError {
    fn is_retryable(&self) -> bool {
        self.retryable()
    }
}

impl std::error::Error for StoreError {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {:?}: {}", self.at, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UniqueViolation { constraint } => write!(f, "unique constraint {constraint:?} is violated"),
            Self::ForeignKey { constraint } => write!(f, "foreign key {constraint:?} is violated"),
            Self::Check { constraint } => write!(f, "check constraint {constraint:?} is violated"),
            Self::Exclusion { constraint } => write!(f, "exclusion constraint {constraint:?} is violated"),
            Self::NotNull { column } => write!(f, "column {column:?} may not be null"),
            Self::InsufficientPrivilege => f.write_str("the database role may not do this (42501)"),
            Self::Serialization => f.write_str("a concurrent transaction got in the way (40001)"),
            Self::Deadlock => f.write_str("a deadlock was broken (40P01)"),
            Self::StalePlan => f.write_str("a prepared statement is out of date"),
            Self::LockTimeout => f.write_str("a lock was not had in time (55P03)"),
            Self::StatementTimeout => f.write_str("the statement ran too long or was cancelled (57014)"),
            Self::Unavailable { why } => write!(f, "the database cannot be reached: {why}"),
            Self::CommitUnknown => {
                f.write_str("the connection was lost during commit, its outcome is unknown")
            }
            Self::Aborted => f.write_str("an earlier statement of the transaction had failed"),
            Self::RowCount { found } => write!(f, "one row was expected and {found} were found"),
            Self::Decode { what } => write!(f, "a value does not fit its type: {what}"),
            Self::SchemaTooOld { found, needed } => write!(
                f,
                "the database is at migration {found:04} and this program needs {needed:04}: run `better-compute migrate`"
            ),
            Self::SchemaTooNew { found, known } => write!(
                f,
                "the database is at migration {found:04} and this program knows only {known:04}: start a newer program"
            ),
            Self::MigrationChanged { version, why } => {
                write!(f, "migration {version:04} differs from the one applied: {why}")
            }
            Self::Database { sqlstate, message: Some(message) } => {
                write!(f, "the database answered {sqlstate}: {message}")
            }
            Self::Database { sqlstate, message: None } => write!(f, "the database answered {sqlstate}"),
            Self::Config { why } => write!(f, "the database configuration cannot be used: {why}"),
        }
    }
}

/// Whether the server ended the session with this error, so that what was in flight may have happened.
pub(crate) fn ends_session(err: &tokio_postgres::Error) -> bool {
    match err.as_db_error() {
        Some(db) => matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
        None => lost_connection(err),
    }
}

fn lost_connection(err: &tokio_postgres::Error) -> bool {
    err.is_closed() || err.source().is_some_and(|cause| cause.is::<io::Error>())
}

fn classify(err: &tokio_postgres::Error) -> ErrorKind {
    let Some(db) = err.as_db_error() else {
        // The driver's texts here name parameter positions and types, or a socket's failure; never values.
        return if lost_connection(err) {
            let why =
                err.source().map_or_else(|| "the connection was closed".to_owned(), ToString::to_string);
            ErrorKind::Unavailable { why }
        } else {
            ErrorKind::Decode { what: err.to_string() }
        };
    };
    let constraint = || db.constraint().unwrap_or_default().to_owned();
    let code = db.code();
    match *code {
        SqlState::UNIQUE_VIOLATION => ErrorKind::UniqueViolation { constraint: constraint() },
        SqlState::FOREIGN_KEY_VIOLATION => ErrorKind::ForeignKey { constraint: constraint() },
        SqlState::CHECK_VIOLATION => ErrorKind::Check { constraint: constraint() },
        SqlState::EXCLUSION_VIOLATION => ErrorKind::Exclusion { constraint: constraint() },
        SqlState::NOT_NULL_VIOLATION => {
            ErrorKind::NotNull { column: db.column().unwrap_or_default().to_owned() }
        }
        SqlState::INSUFFICIENT_PRIVILEGE => ErrorKind::InsufficientPrivilege,
        SqlState::T_R_SERIALIZATION_FAILURE => ErrorKind::Serialization,
        SqlState::T_R_DEADLOCK_DETECTED => ErrorKind::Deadlock,
        SqlState::INVALID_SQL_STATEMENT_NAME => ErrorKind::StalePlan,
        // "cached plan must not change result type" has no code of its own, but a place of its own.
        SqlState::FEATURE_NOT_SUPPORTED if db.routine() == Some("RevalidateCachedQuery") => {
            ErrorKind::StalePlan
        }
        SqlState::LOCK_NOT_AVAILABLE => ErrorKind::LockTimeout,
        SqlState::QUERY_CANCELED => ErrorKind::StatementTimeout,
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        | SqlState::READ_ONLY_SQL_TRANSACTION => ErrorKind::Unavailable { why: server_message(db) },
        _ if code.code().starts_with("08") => ErrorKind::Unavailable { why: server_message(db) },
        _ => ErrorKind::Database {
            sqlstate: code.code().to_owned(),
            message: message_is_safe(code.code()).then(|| db.message().to_owned()),
        },
    }
}

fn server_message(db: &DbError) -> String {
    format!("{} ({})", db.message(), db.code().code())
}

/// Classes whose primary message speaks of names, roles, limits and system state, not of values in rows.
fn message_is_safe(sqlstate: &str) -> bool {
    const CLASSES: [&str; 10] = ["0A", "25", "28", "3D", "3F", "42", "53", "54", "55", "58"];
    CLASSES.iter().any(|class| sqlstate.starts_with(class)) || sqlstate.starts_with("57")
}
