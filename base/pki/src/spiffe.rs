//! The name in a node's certificate: `spiffe://<trust-domain>/site/<site-id>/<role>/<node-id>` (SPIFFE ID standard).

use std::fmt;
use std::str::FromStr;

use model::{NodeId, Role, SiteId};

/// A URI of this shape is far shorter; SPIFFE allows 2048.
pub const SPIFFE_ID_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    #[error("read a trust domain: it is 1 to 255 characters of a-z, 0-9, '.', '-' and '_'")]
    TrustDomain,
    #[error("read a SPIFFE id: it is spiffe://<trust domain>/site/<site id>/<role>/<node id>")]
    SpiffeId,
}

/// The namespace of a deployment's node names, as SPIFFE spells it: lowercase, no port, no user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(String);

impl TrustDomain {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TrustDomain {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if text.is_empty() || text.len() > 255 || !text.bytes().all(allowed) {
            return Err(SpiffeError::TrustDomain);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which node, of which role, at which site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName {
    pub trust_domain: TrustDomain,
    pub site_id: SiteId,
    pub role: Role,
    pub node_id: NodeId,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, site_id, role, node_id } = self;
        write!(f, "spiffe://{trust_domain}/site/{site_id}/{}/{node_id}", role.name())
    }
}

impl FromStr for NodeName {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        if text.len() > SPIFFE_ID_BYTES_MAX {
            return Err(SpiffeError::SpiffeId);
        }
        let path = text.strip_prefix("spiffe://").ok_or(SpiffeError::SpiffeId)?;
        let parts: Vec<&str> = path.split('/').collect();
        let [trust_domain, "site", site_id, role, node_id] = parts[..] else {
            return Err(SpiffeError::SpiffeId);
        };
        Ok(Self {
            trust_domain: trust_domain.parse()?,
            site_id: site_id.parse().map_err(|_| SpiffeError::SpiffeId)?,
            role: Role::parse(role).ok_or(SpiffeError::SpiffeId)?,
            node_id: node_id.parse().map_err(|_| SpiffeError::SpiffeId)?,
        })
    }
}

#[cfg(test)]
mod tests;
