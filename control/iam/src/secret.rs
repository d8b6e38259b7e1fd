//! Tokens' secrets: made here, told once, and kept as a hash.

use model::TokenId;
use pki::{ApiToken, Entropy};
use zeroize::Zeroizing;

/// A new token's text and what the database keeps of it.
pub(crate) struct NewSecret {
    pub(crate) text: Zeroizing<String>,
    pub(crate) sha256: Vec<u8>,
}

pub(crate) fn generate(token_id: TokenId, entropy: &dyn Entropy) -> NewSecret {
    let token = ApiToken::generate(token_id, entropy);
    NewSecret { text: token.reveal(), sha256: token.hash().as_bytes().to_vec() }
}

/// A token as a caller shows it; `None` when it is not the text of one.
pub(crate) fn parse(text: &str) -> Option<ApiToken> {
    text.parse().ok()
}

/// Whether the shown token is the one that was kept. In constant time.
pub(crate) fn matches(token: &ApiToken, kept_sha256: &[u8]) -> bool {
    kept_sha256.try_into().is_ok_and(|kept| token.hash() == pki::TokenHash::from_bytes(kept))
}
