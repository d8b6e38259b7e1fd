//! Why a call did not give an answer.

use model::ErrorCode;

use api::Problem;

/// The server's own refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// HTTP.
    pub status: u16,
    pub problem: Problem,
    /// Seconds.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// The code; by the status where a newer server uses one this build does not know.
    pub fn code(&self) -> ErrorCode {
        self.problem.code().unwrap_or(match self.status {
            401 => ErrorCode::Unauthenticated,
            403 => ErrorCode::AccessDenied,
            404 => ErrorCode::NotFound,
            409 => ErrorCode::Conflict,
            429 => ErrorCode::RateLimited,
            503 => ErrorCode::Unavailable,
            400..=499 => ErrorCode::InvalidInput,
            _ => ErrorCode::Internal,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{}", .0.problem.message)]
    Refused(Box<Refusal>),
    /// Nothing was sent.
    #[error("failed to reach {url}")]
    Connect {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// Nothing was sent: there is no secure connection with this server, now or later.
    #[error("failed to trust {url}")]
    Untrusted {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// It was sent; whether it was done is not known.
    #[error("{url} did not answer in time")]
    Timeout { url: String },
    /// It was sent; whether it was done is not known.
    #[error("the connection to {url} broke")]
    Broken {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// Something else than the API answered, or one of another age.
    #[error("{url} answered what the API does not ({what})")]
    Answer { url: String, what: String },
    #[error("failed to write the request as JSON")]
    Encode(#[source] serde_json::Error),
}

impl ClientError {
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            ClientError::Refused(refusal) => Some(refusal),
            ClientError::Connect { .. }
            | ClientError::Untrusted { .. }
            | ClientError::Timeout { .. }
            | ClientError::Broken { .. }
            | ClientError::Answer { .. }
            | ClientError::Encode(_) => None,
        }
    }
}
