//! Which addresses are this host's own, as its kernel routes them (rtnetlink).

use std::io;
use std::net::IpAddr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

// linux/rtnetlink.h and linux/netlink.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;
/// The header of netlink, and that of a route behind it.
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
/// Of a route's header.
const TYPE_AT: usize = 7;
/// A route is a few attributes of some bytes each.
const ANSWER_BYTES: usize = 4096;

/// Whether what is sent there stays on this host, whatever interface or rule makes it so.
pub(super) fn is_own(address: IpAddr) -> io::Result<bool> {
    // The kernel has answered before the request is sent: nobody waits here.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::send(&socket, &request(address), SendFlags::empty())?;
    let mut answer = [0; ANSWER_BYTES];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    read(&answer[..length])
}

fn request(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec()),
    };
    // Both are far below what the fields hold.
    let (family, bits) = (family.as_raw() as u8, octets.len() as u8 * 8);
    let attribute = 4 + octets.len();
    let length = HEADER_BYTES + ROUTE_BYTES + attribute;
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(RTM_GETROUTE.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.resize(HEADER_BYTES, 0);
    message.extend([family, bits]);
    message.resize(HEADER_BYTES + ROUTE_BYTES, 0);
    message.extend((attribute as u16).to_ne_bytes());
    message.extend(RTA_DST.to_ne_bytes());
    message.extend(octets);
    message
}

fn read(answer: &[u8]) -> io::Result<bool> {
    let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read");
    let body = answer.get(HEADER_BYTES..).ok_or_else(unreadable)?;
    match u16::from_ne_bytes([answer[4], answer[5]]) {
        RTM_NEWROUTE => {
            let kind = *body.get(TYPE_AT).ok_or_else(unreadable)?;
            Ok(kind == RTN_LOCAL || kind == RTN_ANYCAST)
        }
        NLMSG_ERROR => {
            let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code)).ok_or_else(unreadable)?;
            let err = io::Error::from_raw_os_error(code.wrapping_neg());
            match err.kind() {
                // There is no way there: it is nobody's, and connecting says so.
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => Ok(false),
                _ => Err(err),
            }
        }
        _ => Err(unreadable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_this_hosts_addresses() {
        for own in ["127.0.0.1", "127.255.0.9", "::1"] {
            assert!(is_own(own.parse().unwrap()).unwrap(), "{own}");
        }
        // Whatever address this machine speaks from is its own.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("198.41.0.4:53").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(is_own(own).unwrap(), "{own}");
        }
        for other in ["198.41.0.4", "2001:503:ba3e::2:30"] {
            assert!(!is_own(other.parse().unwrap()).unwrap(), "{other}");
        }
    }

    #[test]
    fn an_answer_is_a_route_or_why_there_is_none() {
        let answer = |kind: u16, body: &[u8]| {
            let mut message = vec![0; HEADER_BYTES];
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message.extend(body);
            message
        };
        let route = |kind| answer(RTM_NEWROUTE, &[2, 32, 0, 0, 255, 0, 0, kind, 0, 0, 0, 0]);
        let error = |errno: rustix::io::Errno| answer(NLMSG_ERROR, &(-errno.raw_os_error()).to_ne_bytes());
        assert!(read(&route(RTN_LOCAL)).unwrap() && read(&route(RTN_ANYCAST)).unwrap());
        assert!(!read(&route(1)).unwrap());
        assert!(!read(&error(rustix::io::Errno::NETUNREACH)).unwrap());
        assert!(read(&error(rustix::io::Errno::PERM)).is_err());
        for torn in [&[][..], &route(1)[..20], &answer(7, &[0; 12])] {
            assert!(read(torn).is_err(), "{torn:?}");
        }
    }
}
