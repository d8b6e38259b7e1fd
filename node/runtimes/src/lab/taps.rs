//! Taps of the test's own: what is written to one enters the bridge as a guest's frame would.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

pub struct Tap(OwnedFd);

/// The calling thread, and what it starts, is in a network of its own from here on.
pub fn leave_the_hosts_network() {
    // SAFETY: a network namespace is a thread's own, and no memory or descriptor goes by it. What was opened before stays in
    // the namespace in which it was opened.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("a network of our own, as root");
}

impl Tap {
    pub fn open(name: &str) -> Self {
        const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
        const IFF_TAP_NO_PI: u16 = 0x1002;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).expect("/dev/net/tun");
        let mut request = [0u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        request[16..18].copy_from_slice(&IFF_TAP_NO_PI.to_ne_bytes());
        // SAFETY: the request is a `struct ifreq`, which is 40 bytes on 64-bit Linux: the name, and flags behind 16 bytes.
        // The kernel reads it, and writes back no more than the name.
        unsafe {
            let set = rustix::ioctl::Setter::<TUNSETIFF, [u8; 40]>::new(request);
            rustix::ioctl::ioctl(&file, set).expect("a tap");
        }
        Self(file)
    }

    /// As a port of the bridge, with no address of its own.
    pub fn on_bridge(name: &str, bridge: &str) -> Self {
        let tap = Self::open(name);
        super::ip(&format!("link set {name} addrgenmode none"));
        super::ip(&format!("link set {name} master {bridge} up"));
        tap
    }

    pub fn send(&self, frame: &[u8]) {
        assert!(self.try_send(frame), "the tap is down");
    }

    /// Whether the tap took it: one that is down does not.
    pub fn try_send(&self, frame: &[u8]) -> bool {
        match rustix::io::write(&self.0, frame) {
            Ok(sent) => sent == frame.len(),
            Err(rustix::io::Errno::IO) => false,
            Err(err) => panic!("write to a tap: {err}"),
        }
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 2_048];
        let length = rustix::io::read(&self.0, &mut buffer[..]).ok()?;
        buffer.truncate(length);
        Some(buffer)
    }

    /// Forgets what has come so far.
    pub fn drain(&self) {
        while self.read().is_some() {}
    }

    pub fn hears(&self, frame: &[u8], within: Duration) -> bool {
        self.hears_any(within, |heard| heard == frame)
    }

    pub fn hears_any(&self, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> bool {
        let since = Instant::now();
        loop {
            while let Some(heard) = self.read() {
                if wanted(&heard) {
                    return true;
                }
            }
            if since.elapsed() >= within {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
