//! Changes of our tables, as the kernel tells them (netfilter's netlink, group nftables).

use std::io;
use std::path::Path;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use tokio::net::UnixDatagram;

use super::FirewallError;
use super::rules::TABLES;
use crate::network;

/// NFNLGRP_NFTABLES is the seventh group of a mask (linux/netfilter/nfnetlink.h).
const GROUP: u32 = 1 << (7 - 1);
/// NFNL_SUBSYS_NFTABLES, in the upper byte of a message's type.
const SUBSYSTEM: u8 = 10;
/// Messages are some hundred bytes, and a load of many rules is many of them.
const BUFFER_BYTES: usize = 64 * 1024;
/// The header of netlink and that of netfilter behind it.
const HEADERS_BYTES: usize = 16 + 4;
/// Of every object but a generation, the first attribute is its table's name.
const TABLE_ATTRIBUTE: u16 = 1;

/// Tells of changes to our tables from when it was opened.
pub struct Changes {
    /// A datagram socket like any other to whoever waits for it and reads it; only its family is netlink.
    socket: UnixDatagram,
    buffer: Vec<u8>,
}

impl Changes {
    /// Of the network in which the caller is, or of this one.
    ///
    /// # Errors
    /// Without netfilter's netlink, or the right to it (CAP_NET_ADMIN).
    pub fn open(namespace: Option<&Path>) -> Result<Self, FirewallError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listening = network::within(namespace, || {
            let family = AddressFamily::NETLINK;
            let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
            rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
            Ok(socket)
        });
        let socket = listening.and_then(|socket| UnixDatagram::from_std(socket.into()));
        let socket = socket.map_err(FirewallError::Listen)?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Waits for the next change of one of our tables, by whomever. Everything that was told until then is one change.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            self.socket.readable().await?;
            let mut ours = false;
            loop {
                match self.socket.try_recv(&mut self.buffer) {
                    Ok(length) => ours |= tells_of_ours(&self.buffer[..length]),
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                    Err(err) => return Err(err),
                }
            }
            if ours {
                return Ok(());
            }
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Whether any of these messages is about a table of ours. What cannot be read is taken for one.
fn tells_of_ours(mut messages: &[u8]) -> bool {
    while !messages.is_empty() {
        let length = messages.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
        let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else { return true };
        let Some(message) = messages.get(..length).filter(|message| message.len() >= 16) else { return true };
        if is_of_ours(message) {
            return true;
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn is_of_ours(message: &[u8]) -> bool {
    let kind = u16_at(message, 4).unwrap_or(0);
    if kind >> 8 != u16::from(SUBSYSTEM) {
        return false;
    }
    let mut attributes = message.get(HEADERS_BYTES..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let Some(value) = attributes.get(4..usize::from(length)) else { return true };
        if kind & 0x3fff == TABLE_ATTRIBUTE {
            let name = value.strip_suffix(b"\0").unwrap_or(value);
            return TABLES.iter().any(|(_, table)| table.as_bytes() == name);
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u8, attribute: u16, name: &str) -> Vec<u8> {
        let mut attributes = u16::try_from(4 + name.len() + 1).unwrap().to_ne_bytes().to_vec();
        attributes.extend(attribute.to_ne_bytes());
        attributes.extend(name.as_bytes());
        attributes.push(0);
        attributes.resize(attributes.len().next_multiple_of(4), 0);
        let mut message = u32::try_from(HEADERS_BYTES + attributes.len()).unwrap().to_ne_bytes().to_vec();
        message.extend([kind, SUBSYSTEM]);
        message.resize(HEADERS_BYTES, 0);
        message.extend(attributes);
        message
    }

    #[test]
    fn a_change_of_one_of_our_tables_is_found_among_others() {
        let (other, ours) = (message(2, 1, "kube-proxy"), message(8, 1, "bcd_taps"));
        assert!(!tells_of_ours(&other));
        assert!(tells_of_ours(&ours));
        assert!(tells_of_ours(&[other.clone(), ours].concat()));
        // A generation has a number where others have a name.
        assert!(!tells_of_ours(&message(15, 2, "bcd_taps")));
        assert!(!tells_of_ours(&[]));
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            tells_of_ours(&bytes);
        }
    }

    #[test]
    fn a_message_that_is_cut_short_is_taken_for_one_of_ours() {
        let whole = message(8, 1, "kube-proxy");
        for end in 1..whole.len() {
            assert!(tells_of_ours(&whole[..end]), "cut at {end}");
        }
        assert!(!tells_of_ours(&whole));
    }
}
