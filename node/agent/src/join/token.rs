//! Where a join token may come from: the environment, standard input or a file. Never an argument, which every process
//! on the machine can read.

use std::io::Read;
use std::path::{Path, PathBuf};

use kit::fs::{self, FsError};
use pki::JoinToken;
use zeroize::Zeroizing;

/// A token is about 80 characters; a pasted one has white space around it.
const TOKEN_BYTES_MAX: u64 = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// `BCD_JOIN_TOKEN`, as the caller read it.
    Environment(String),
    Stdin,
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("read the join token")]
    File(#[from] FsError),
    #[error("read the join token from standard input")]
    Stdin(#[source] std::io::Error),
    #[error("read the join token from {from}: it is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong { from: &'static str },
    #[error("read the join token from {from}")]
    Malformed {
        from: &'static str,
        #[source]
        source: pki::token::TokenError,
    },
}

/// Reads the token. The file stays until the join has succeeded: see [`discard`].
pub fn read_token(source: &TokenSource, stdin: &mut dyn Read) -> Result<JoinToken, TokenError> {
    match source {
        TokenSource::Environment(text) => parse("BCD_JOIN_TOKEN", text),
        TokenSource::Stdin => {
            let mut text = Zeroizing::new(String::new());
            stdin.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).map_err(TokenError::Stdin)?;
            parse("standard input", &text)
        }
        TokenSource::File(path) => {
            fs::check_private(path)?;
            let bytes = Zeroizing::new(fs::read_bounded(path, TOKEN_BYTES_MAX)?);
            let text = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
            parse("the token file", &text)
        }
    }
}

/// Removes a token file after the join, when the token has done its work.
pub fn discard(path: &Path) -> Result<(), FsError> {
    fs::remove_if_present(path)
}

fn parse(from: &'static str, text: &str) -> Result<JoinToken, TokenError> {
    if text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLong { from });
    }
    text.trim().parse().map_err(|source| TokenError::Malformed { from, source })
}
