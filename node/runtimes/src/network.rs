//! The network namespace in which a host's instances are: the host's own, or one apart.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::TcpSocket;

/// Does something where the instances' network is. A socket that is made there stays there, whoever uses it.
pub fn within<T: Send>(
    namespace: Option<&Path>,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(path) = namespace else { return act() };
    // A thread's namespace is its own, and this one ends here.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let space = File::open(path)?;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        });
        thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
    })
}

/// A TCP socket there, to be connected from here. Made by a thread of its own where there is a namespace, which takes no time.
pub fn tcp_socket(namespace: Option<&Path>, to: IpAddr) -> io::Result<TcpSocket> {
    let made = within(namespace, || {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
    })?;
    Ok(TcpSocket::from_std_stream(made.into()))
}
