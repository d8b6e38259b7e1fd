//! The error catalogue. API, CLI and docs share it: each code has a page in `docs/errors/`, and a test compares them.

/// What a caller can act on. The wire text is the variant in SCREAMING_SNAKE_CASE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorCode {
    InvalidInput,
    Unauthenticated,
    AccessDenied,
    ConfirmationRequired,
    NotFound,
    Conflict,
    InvalidState,
    InvalidConfig,
    Unsupported,
    QuotaExceeded,
    CapacityUnavailable,
    SpendLimitReached,
    RateLimited,
    ProviderError,
    Unavailable,
    Internal,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 16] = [
        ErrorCode::InvalidInput,
        ErrorCode::Unauthenticated,
        ErrorCode::AccessDenied,
        ErrorCode::ConfirmationRequired,
        ErrorCode::NotFound,
        ErrorCode::Conflict,
        ErrorCode::InvalidState,
        ErrorCode::InvalidConfig,
        ErrorCode::Unsupported,
        ErrorCode::QuotaExceeded,
        ErrorCode::CapacityUnavailable,
        ErrorCode::SpendLimitReached,
        ErrorCode::RateLimited,
        ErrorCode::ProviderError,
        ErrorCode::Unavailable,
        ErrorCode::Internal,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::InvalidInput => "INVALID_INPUT",
            ErrorCode::Unauthenticated => "UNAUTHENTICATED",
            ErrorCode::AccessDenied => "ACCESS_DENIED",
            ErrorCode::ConfirmationRequired => "CONFIRMATION_REQUIRED",
            ErrorCode::NotFound => "NOT_FOUND",
            ErrorCode::Conflict => "CONFLICT",
            ErrorCode::InvalidState => "INVALID_STATE",
            ErrorCode::InvalidConfig => "INVALID_CONFIG",
            ErrorCode::Unsupported => "UNSUPPORTED",
            ErrorCode::QuotaExceeded => "QUOTA_EXCEEDED",
            ErrorCode::CapacityUnavailable => "CAPACITY_UNAVAILABLE",
            ErrorCode::SpendLimitReached => "SPEND_LIMIT_REACHED",
            ErrorCode::RateLimited => "RATE_LIMITED",
            ErrorCode::ProviderError => "PROVIDER_ERROR",
            ErrorCode::Unavailable => "UNAVAILABLE",
            ErrorCode::Internal => "INTERNAL",
        }
    }

    pub fn parse(text: &str) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|code| code.name() == text)
    }

    pub const fn http_status(self) -> u16 {
        match self {
            ErrorCode::InvalidInput | ErrorCode::InvalidConfig => 400,
            ErrorCode::Unauthenticated => 401,
            ErrorCode::SpendLimitReached => 402,
            ErrorCode::AccessDenied => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::Conflict | ErrorCode::InvalidState => 409,
            ErrorCode::Unsupported => 422,
            ErrorCode::ConfirmationRequired => 428,
            ErrorCode::QuotaExceeded | ErrorCode::RateLimited => 429,
            ErrorCode::Internal => 500,
            ErrorCode::ProviderError => 502,
            ErrorCode::CapacityUnavailable | ErrorCode::Unavailable => 503,
        }
    }

    /// The same call, later and unchanged, may succeed.
    pub const fn retryable(self) -> bool {
        match self {
            ErrorCode::CapacityUnavailable
            | ErrorCode::RateLimited
            | ErrorCode::ProviderError
            | ErrorCode::Unavailable => true,
            ErrorCode::InvalidInput
            | ErrorCode::Unauthenticated
            | ErrorCode::AccessDenied
            | ErrorCode::ConfirmationRequired
            | ErrorCode::NotFound
            | ErrorCode::Conflict
            | ErrorCode::InvalidState
            | ErrorCode::InvalidConfig
            | ErrorCode::Unsupported
            | ErrorCode::QuotaExceeded
            | ErrorCode::SpendLimitReached
            | ErrorCode::Internal => false,
        }
    }
}
