//! What goes through a tunnel, beside a connection without one to the same port of the same guest.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bench::figures::Figure;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Host, Made, Network};
use crate::program;

/// In the guest: the first takes what comes; each of the others says zeros to one at a time.
const SINK: u16 = 5001;
const SOURCES: [u16; TUNNELS] = sources();
const BYTES: usize = 48 << 20;
const PIECE_BYTES: usize = 64 * 1024;
const ROUNDS: usize = 3;
const STALLED_ROUNDS: usize = 12;
/// Tunnels of a node at once.
const TUNNELS: usize = 16;
const READS_FOR: Duration = Duration::from_secs(3);
const UP_WITHIN: Duration = Duration::from_secs(60);

const fn sources() -> [u16; TUNNELS] {
    let (mut ports, mut at) = ([0; TUNNELS], 0);
    while at < TUNNELS {
        ports[at] = SINK + 1 + at as u16;
        at += 1;
    }
    ports
}

/// A program that listens, ended when dropped.
struct Forward {
    child: Child,
    local: Vec<SocketAddr>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn run(host: &Host, network: &Network, made: &Made) -> anyhow::Result<()> {
    let serve = format!(
        "nc -ll -p {SINK} -e /bin/dd of=/dev/null bs=64k >/dev/null 2>&1 & \
         for port in $(seq {} {}); do nc -ll -p $port -e /bin/cat /dev/zero >/dev/null 2>&1 & done; echo up",
        SOURCES[0],
        SOURCES[TUNNELS - 1],
    );
    let said = program::done(&mut ssh(host, made, &[&serve])?)?;
    ensure!(said.contains("up"), "{said}");
    let tunnel = forward(host, made, &[SINK])?;
    let ssh_forward = ssh_forward(host, network, made).await?;
    let (mut direct, mut tunnelled, mut by_ssh) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct.push(sent(network.connect(SocketAddr::new(made.address, SINK)).await?).await?);
        tunnelled.push(sent(TcpStream::connect(tunnel.local[0]).await?).await?);
        by_ssh.push(sent(network.connect(ssh_forward.local[0]).await?).await?);
    }
    let (direct, tunnelled, by_ssh) = (median(&mut direct), median(&mut tunnelled), median(&mut by_ssh));
    Figure::of("a tunnel to a port of a guest", tunnelled, "MiB/s")
        .beside("the same without a tunnel", direct)
        .note(format!("ssh -L to the same port {by_ssh:.1} MiB/s; the guest is emulated and has one CPU"))
        .say()?;
    drop((ssh_forward, tunnel));
    let sources = forward(host, made, &SOURCES)?;
    stalled(&sources.local).await
}

/// Fifteen that read, with one beside them that does not.
async fn stalled(sources: &[SocketAddr]) -> anyhow::Result<()> {
    let (others, last) = sources.split_at(TUNNELS - 1);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..STALLED_ROUNDS {
        // Each comes first in turn: what a guest carries drifts within seconds.
        let order = if round % 2 == 0 { [false, true] } else { [true, false] };
        for with_one in order {
            if !with_one {
                alone.push(read_by_many(others).await?);
                continue;
            }
            let mut stands_still = TcpStream::connect(last[0]).await?;
            // Until all that lies between is full.
            stands_still.read_exact(&mut [0; 1]).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            beside.push(read_by_many(others).await?);
            drop(stands_still);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        println!(
            "  15 tunnels alone {:.1} MiB/s, beside a stalled one {:.1} MiB/s",
            alone[round], beside[round]
        );
    }
    // All that went through: of rates that differ by a tenth from one look to the next, a median says less.
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let (alone, beside) = (mean(&alone), mean(&beside));
    Figure::of("15 tunnels of a node beside one that nobody reads from", beside, "MiB/s")
        .beside("the 15 alone", alone)
        .note(format!("means of {STALLED_ROUNDS} looks of {} s each, in turns", READS_FOR.as_secs()))
        .ratio_at_least(0.95, 0.95)
        .say()
}

async fn read_by_many(sources: &[SocketAddr]) -> anyhow::Result<f64> {
    let streams = join_all(sources.iter().map(|local| async move {
        let mut stream = TcpStream::connect(local).await?;
        // It is there once its first byte is.
        stream.read_exact(&mut [0; 1]).await?;
        Ok::<_, std::io::Error>(stream)
    }));
    let mut streams = streams.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let from = Instant::now();
    let counts = join_all(streams.iter_mut().map(|stream| async {
        let (mut buffer, mut count) = (vec![0; PIECE_BYTES], 0_usize);
        while let Some(left) = READS_FOR.checked_sub(from.elapsed()) {
            match tokio::time::timeout(left, stream.read(&mut buffer)).await {
                Ok(read) => count += read?,
                Err(_) => break,
            }
        }
        Ok::<_, std::io::Error>(count)
    }));
    let total: usize = counts.await.into_iter().collect::<Result<Vec<_>, _>>()?.iter().sum();
    drop(streams);
    // Their tunnels are given back before others are asked for.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(mib(total) / READS_FOR.as_secs_f64())
}

/// MiB a second, until the guest has taken all of it.
async fn sent(mut stream: TcpStream) -> anyhow::Result<f64> {
    let piece = vec![7; PIECE_BYTES];
    let from = Instant::now();
    for _ in 0..BYTES / PIECE_BYTES {
        stream.write_all(&piece).await?;
    }
    stream.shutdown().await?;
    // Its other end closes when it has taken the last.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(UP_WITHIN, stream.read_to_end(&mut rest)).await?;
    Ok(mib(BYTES) / from.elapsed().as_secs_f64())
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn ssh(host: &Host, made: &Made, args: &[&str]) -> anyhow::Result<Command> {
    let key = host.key.to_str().context("a path")?;
    host.cli(&[&["ssh", &made.id, "-i", key, "-o", "BatchMode=yes"], args].concat())
}

/// To these ports, by one program.
fn forward(host: &Host, made: &Made, ports: &[u16]) -> anyhow::Result<Forward> {
    let mut command = host.cli(&["port-forward", &made.id])?;
    command.args(ports.iter().map(|port| format!("0:{port}")));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let local = lines.take(ports.len()).map(|line| {
        let line = line?;
        let local = line.split(' ').next().context("where it listens")?.parse();
        local.with_context(|| format!("where it listens: {line:?}"))
    });
    let local = local.collect::<anyhow::Result<_>>()?;
    Ok(Forward { child, local })
}

/// OpenSSH's own, in the network that the guest is in.
async fn ssh_forward(host: &Host, network: &Network, made: &Made) -> anyhow::Result<Forward> {
    let local: SocketAddr = ([127, 0, 0, 1], 5999).into();
    let child = Command::new("nsenter")
        .arg(format!("--net={}", host.libvirtd.network()?.display()))
        .args([
            "ssh",
            "-N",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ])
        .arg("-i")
        .arg(&host.key)
        .args(["-L", &format!("{local}:127.0.0.1:{SINK}"), &format!("root@{}", made.address)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let forward = Forward { child, local: vec![local] };
    let started = Instant::now();
    while network.connect(local).await.is_err() {
        ensure!(started.elapsed() < UP_WITHIN, "ssh -L does not listen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(forward)
}
