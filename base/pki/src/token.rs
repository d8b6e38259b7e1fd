//! Bearer tokens: an id to find the row by and 32 random bytes to prove it. The database keeps only a hash.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use model::{Id, JoinTokenId, TokenId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::codec;
use crate::entropy::Entropy;

const SECRET_BYTES: usize = 32;
/// Base64url of 32 bytes, unpadded.
const SECRET_CHARS: usize = 43;

/// Which kind of token: its prefix and what its id names.
pub trait TokenKind: Clone + fmt::Debug + Send + Sync + 'static {
    type Id: Id;
    /// With its underscore.
    const PREFIX: &'static str;
    const WHAT: &'static str;
}

/// `bct_<token id>_<secret>`: a principal's API token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiTokenKind;

impl TokenKind for ApiTokenKind {
    type Id = TokenId;
    const PREFIX: &'static str = "bct_";
    const WHAT: &'static str = "API token";
}

/// `bcjt_<join token id>_<secret>`: permission for machines to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinTokenKind;

impl TokenKind for JoinTokenKind {
    type Id = JoinTokenId;
    const PREFIX: &'static str = "bcjt_";
    const WHAT: &'static str = "join token";
}

pub type ApiToken = Token<ApiTokenKind>;
pub type JoinToken = Token<JoinTokenKind>;

/// A text is not a token. Never repeats the text, which may be one with a slip in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read a {what}: it is {prefix}<id>_ and 43 characters")]
pub struct TokenError {
    what: &'static str,
    prefix: &'static str,
}

/// A token with its secret. Wiped when dropped; `Debug` shows the id only, and there is no `Display`.
#[derive(Clone)]
pub struct Token<K: TokenKind> {
    id: K::Id,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    kind: PhantomData<K>,
}

impl<K: TokenKind> Token<K> {
    pub fn generate(id: K::Id, entropy: &dyn Entropy) -> Self {
        let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
        entropy.fill(secret.as_mut_slice());
        Self { id, secret, kind: PhantomData }
    }

    pub fn id(&self) -> K::Id {
        self.id
    }

    /// The text handed to the owner, once.
    pub fn reveal(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(codec::to_base64url(self.secret.as_slice()));
        Zeroizing::new(format!("{}{}_{}", K::PREFIX, self.id, *secret))
    }

    /// SHA-256 of the whole text, so that a hash belongs to one id. The secret is 256 random bits: it needs no salt and
    /// no slow hash.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.reveal().as_bytes()).into())
    }
}

impl<K: TokenKind> FromStr for Token<K> {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        parse(text).ok_or(TokenError { what: K::WHAT, prefix: K::PREFIX })
    }
}

fn parse<K: TokenKind>(text: &str) -> Option<Token<K>> {
    let rest = text.strip_prefix(K::PREFIX)?;
    // The secret's alphabet holds '_', so the parts are told apart by length, not by the separator.
    let (head, secret) = rest.split_at_checked(rest.len().checked_sub(SECRET_CHARS)?)?;
    let id = head.strip_suffix('_')?.parse().ok()?;
    let decoded = Zeroizing::new(codec::from_base64url(secret)?);
    let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
    if decoded.len() != SECRET_BYTES {
        return None;
    }
    secret.copy_from_slice(&decoded);
    Some(Token { id, secret, kind: PhantomData })
}

impl<K: TokenKind> fmt::Debug for Token<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}_[secret]", K::PREFIX, self.id)
    }
}

/// What the database keeps of a token: SHA-256 of its text. Compared in constant time.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

#[cfg(test)]
mod tests;
