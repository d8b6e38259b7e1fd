//! Connections that stay open for hours.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Silence after which the other end is asked for a sign of life, how often it is asked again, and how often in vain.
const IDLE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// Lets the kernel find out within two minutes that the other end of a TCP connection vanished without a word, however little is
/// said on it.
pub fn keep_alive(tcp: impl AsFd) -> io::Result<()> {
    let tcp = tcp.as_fd();
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, IDLE)?;
    sockopt::set_tcp_keepintvl(tcp, INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(tcp, PROBES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_vanished_is_found_out_within_two_minutes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        keep_alive(&tcp).unwrap();
        assert!(sockopt::socket_keepalive(&tcp).unwrap());
        let (idle, interval) = (sockopt::tcp_keepidle(&tcp).unwrap(), sockopt::tcp_keepintvl(&tcp).unwrap());
        assert!(idle + interval * sockopt::tcp_keepcnt(&tcp).unwrap() <= Duration::from_secs(120));
    }
}
