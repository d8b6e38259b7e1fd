//! Ethernet frames, byte by byte (RFC 791, 826, 4861, 8200).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::name::Mac;

#[derive(Clone)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// The address of every card.
    pub const EVERYBODY: Option<Mac> = None;

    fn new(from: Mac, to: impl Into<Option<Mac>>, kind: u16, payload: &[u8]) -> Self {
        let to = to.into().map_or([0xff; 6], Mac::octets);
        Self([&to[..], &from.octets(), &kind.to_be_bytes(), payload].concat())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same with one byte changed.
    pub fn with(mut self, at: usize, byte: u8) -> Self {
        self.0[at] = byte;
        self
    }

    /// The same in VLAN 7 (IEEE 802.1Q).
    pub fn tagged(mut self) -> Self {
        self.0.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        self
    }

    /// A request that is also an answer: the sender says where its address is.
    pub fn arp(from: Mac, to: impl Into<Option<Mac>>, (mac, own): (Mac, Ipv4Addr), wanted: Ipv4Addr) -> Self {
        let payload =
            [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac.octets(), &own.octets(), &[0; 6], &wanted.octets()].concat();
        Self::new(from, to, 0x0806, &payload)
    }

    pub fn is_arp_answer(frame: &[u8], of: Ipv4Addr) -> bool {
        frame.get(12..14) == Some(&[8, 6])
            && frame.get(20..22) == Some(&[0, 2])
            && frame.get(28..32) == Some(&of.octets())
    }

    pub fn udp4(from: Mac, to: Mac, source: (Ipv4Addr, u16), target: (Ipv4Addr, u16)) -> Self {
        Self::ip4(from, to, 17, source.0, target.0, &ports(source.1, target.1, &[0, 8, 0, 0]))
    }

    /// The first of a connection.
    pub fn tcp4(from: Mac, to: Mac, source: (Ipv4Addr, u16), target: (Ipv4Addr, u16)) -> Self {
        let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0];
        Self::ip4(from, to, 6, source.0, target.0, &ports(source.1, target.1, &rest))
    }

    fn ip4(from: Mac, to: Mac, protocol: u8, source: Ipv4Addr, target: Ipv4Addr, payload: &[u8]) -> Self {
        let length = u16::try_from(20 + payload.len()).expect("a short packet");
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        header.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        header.extend(source.octets());
        header.extend(target.octets());
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("16 bits");
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Self::new(from, to, 0x0800, &[&header, payload].concat())
    }

    /// Who sent an IPv4 packet to whom; none of any other frame.
    pub fn ends4(frame: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let octets = |at: usize| -> Option<[u8; 4]> { frame.get(at..at + 4)?.try_into().ok() };
        (frame.get(12..14)? == [8, 0]).then_some((octets(26)?.into(), octets(30)?.into()))
    }

    pub fn udp6(from: Mac, to: Mac, source: (Ipv6Addr, u16), target: (Ipv6Addr, u16)) -> Self {
        Self::ip6(from, to, 17, source.0, target.0, &ports(source.1, target.1, &[0, 8, 0, 0]))
    }

    pub fn icmp6(from: Mac, to: Mac, source: Ipv6Addr, target: Ipv6Addr, kind: u8) -> Self {
        let mut message = vec![kind];
        message.resize(40, 0);
        Self::ip6(from, to, 58, source, target, &message)
    }

    /// A neighbour advertisement: `source` says where `of` is.
    pub fn advertisement(from: Mac, to: Mac, source: Ipv6Addr, of: Ipv6Addr) -> Self {
        let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
        message.extend(of.octets());
        message.extend([2, 1]);
        message.extend(from.octets());
        Self::ip6(from, to, 58, source, Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 0x12), &message)
    }

    /// Whether anybody has this address, asked by who has none yet.
    pub fn solicitation(from: Mac, to: Mac, of: Ipv6Addr) -> Self {
        let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
        message.extend(of.octets());
        let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
        Self::ip6(from, to, 58, Ipv6Addr::UNSPECIFIED, everybody, &message)
    }

    fn ip6(from: Mac, to: Mac, protocol: u8, source: Ipv6Addr, target: Ipv6Addr, payload: &[u8]) -> Self {
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(u16::try_from(payload.len()).expect("a short packet").to_be_bytes());
        header.extend([protocol, 255]);
        header.extend(source.octets());
        header.extend(target.octets());
        Self::new(from, to, 0x86dd, &[&header, payload].concat())
    }
}

fn ports(source: u16, target: u16, rest: &[u8]) -> Vec<u8> {
    [&source.to_be_bytes()[..], &target.to_be_bytes(), rest].concat()
}
