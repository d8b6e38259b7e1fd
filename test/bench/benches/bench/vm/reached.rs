//! Connections into the network that instances are in.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use guests::Libvirtd;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const TRY_EVERY: Duration = Duration::from_millis(20);
/// A SYN that nobody answers is not waited for; a guest that has little of a CPU takes its time to say who it is.
const CONNECT_FOR: Duration = Duration::from_millis(250);
const BANNER_FOR: Duration = Duration::from_secs(5);

pub struct Network(PathBuf);

impl Network {
    pub fn of(libvirtd: &Libvirtd) -> anyhow::Result<Self> {
        Ok(Self(libvirtd.network()?))
    }

    pub async fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = runtimes::network::tcp_socket(Some(&self.0), to.ip())?.connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Waits until an SSH server says what it is.
    pub async fn ssh(&self, address: IpAddr, within: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < within {
            let connected = self.connect(SocketAddr::new(address, 22));
            if let Ok(Ok(mut stream)) = tokio::time::timeout(CONNECT_FOR, connected).await {
                let mut begin = [0; 4];
                let banner = tokio::time::timeout(BANNER_FOR, stream.read_exact(&mut begin)).await;
                if matches!(banner, Ok(Ok(_))) && begin == *b"SSH-" {
                    return Ok(());
                }
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
        bail!("{address} takes no SSH within {within:?}")
    }
}
