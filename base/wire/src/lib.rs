//! The protocol: message layouts, their bounds, and the codecs between them and the model.
//!
//! Only this crate knows layouts. Transports carry [`proto::agent::NodeFrame`] and [`proto::agent::GatewayFrame`]
//! through the codec of their RPC library; everything else decodes through [`decode`], which bounds first.

pub mod command;
pub mod instance;
pub mod inventory;
pub mod limits;
pub mod map;
pub mod paths;
pub mod proto;
pub mod secret;
pub mod spec;
pub mod tunnel;
pub mod versions;

use prost::Message;

/// A message from the other side that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{what} is {len} bytes, the limit is {max}")]
    TooLarge { what: &'static str, len: usize, max: usize },
    #[error("{what} is not a valid message")]
    Malformed { what: &'static str },
    #[error("{what} lacks {field}")]
    Missing { what: &'static str, field: &'static str },
    #[error("{what} has an invalid {field}")]
    Invalid { what: &'static str, field: &'static str },
}

/// Decodes `bytes` when they are at most `max` long. `what` names the message in errors.
pub fn decode<M: Message + Default>(what: &'static str, bytes: &[u8], max: usize) -> Result<M, DecodeError> {
    if bytes.len() > max {
        return Err(DecodeError::TooLarge { what, len: bytes.len(), max });
    }
    M::decode(bytes).map_err(|_| DecodeError::Malformed { what })
}

#[cfg(test)]
mod baseline;
#[cfg(test)]
mod tests;
