//! Virtual machines on this host: how soon one takes SSH, beside the same image started by hand with the same hypervisor, and
//! what a tunnel carries, beside a plain connection and `ssh -L`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bench::figures::{Figure, short};
use futures::future::join_all;
use guests::{Libvirtd, Tiny};
use serde_json::{Value, json};

use crate::plane::Api;
use crate::program::{self, Running};

mod carried;
mod hand;
mod reached;

use hand::ByHand;
use reached::Network;

#[derive(clap::Args)]
pub struct Args {
    /// Instances made one after the other, each beside one by hand.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Instances made at once.
    #[arg(long, default_value_t = 20)]
    at_once: u32,
    /// Instances made of one image and not started.
    #[arg(long, default_value_t = 50)]
    stopped: u32,
}

const READY_WITHIN: Duration = Duration::from_secs(120);
/// An emulated guest beside twenty others.
const BOOTS_WITHIN: Duration = Duration::from_secs(400);
const POOL: &str = "host";

/// `better-compute dev` with this machine as a host, and what it takes to ask it.
pub(crate) struct Host {
    // Fields drop in order: the programs end before their files go, and libvirt after what uses it.
    _dev: Running,
    pub api: Api,
    pub dir: PathBuf,
    pub key: PathBuf,
    pub libvirtd: Libvirtd,
    config: PathBuf,
}

impl Host {
    fn start(dir: &std::path::Path) -> anyhow::Result<Self> {
        let libvirtd = Libvirtd::start()?;
        let (ready, config, data) = (dir.join("ready.json"), dir.join("config.toml"), dir.join("data"));
        let mut command = Command::new(program::path("better-compute")?);
        command
            .args(["dev", "--host", "--sim", "0", "--listen", "127.0.0.1:0", "--libvirt", &libvirtd.uri()])
            .arg("--network-namespace")
            .arg(libvirtd.network()?)
            .arg("--data-dir")
            .arg(&data)
            .arg("--ready-file")
            .arg(&ready)
            .env("BETTER_COMPUTE_CONFIG", &config);
        let dev = Running::start(&mut command, &dir.join("dev.log"))?;
        let started = Instant::now();
        while !ready.is_file() {
            ensure!(started.elapsed() < READY_WITHIN, "{}", std::fs::read_to_string(&dev.log)?);
            std::thread::sleep(Duration::from_millis(50));
        }
        let facts: Value = serde_json::from_slice(&std::fs::read(&ready)?)?;
        let token = std::fs::read_to_string(data.join("admin.token"))?;
        let api = Api::new(facts["api"].as_str().context("where the API is")?, token.trim())?;
        let key = dir.join("key");
        program::done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        Ok(Self { _dev: dev, api, dir: data.join("host"), key, libvirtd, config })
    }

    /// `better-compute ARGS` here.
    pub fn cli(&self, args: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(program::path("better-compute")?);
        command.args(args).env("BETTER_COMPUTE_CONFIG", &self.config);
        Ok(command)
    }

    async fn prepare(&self, image: &std::path::Path) -> anyhow::Result<()> {
        let import =
            ["images", "import", image.to_str().context("a path")?, "--name", "tiny", "--login-user", "root"];
        program::done(&mut self.cli(&import)?)?;
        // As many as there is memory for: what is measured is not how many CPUs the machine has, nor how large its disk is.
        let pool = self.api.ok("pools.get", json!({ "pool": POOL })).await?;
        let mut policy = pool["policy"].clone();
        policy["overcommit"] = json!({ "vcpu": 32, "disk": 32 });
        self.api.ok("pools.update", json!({ "pool": POOL, "policy": policy })).await?;
        let flavor = json!({ "pool": POOL, "name": "small", "vcpu": 1, "memoryMiB": 192, "diskGiB": 1 });
        self.api.ok("flavors.create", flavor).await?;
        Ok(())
    }

    /// Asks for one. It has its address with the answer.
    pub async fn create(&self, name: &str) -> anyhow::Result<Made> {
        let key = std::fs::read_to_string(self.key.with_extension("pub"))?;
        let request = json!({ "pool": POOL, "flavor": "small", "image": "tiny", "name": name, "sshKeys": [key.trim()] });
        let made = self.api.ok("instances.create", request).await?;
        let address = made["addresses"][0].as_str().context("its address")?.parse()?;
        Ok(Made { id: made["id"].as_str().context("its id")?.to_owned(), address })
    }

    /// Those that the host has fetched, without the marks of where each came from.
    pub fn images(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut images = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("libvirt/images"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|format| format == "qcow2") {
                images.push(path);
            }
        }
        Ok(images)
    }

    pub async fn delete(&self, made: &Made) -> anyhow::Result<()> {
        let request = json!({ "id": made.id, "wait": { "timeoutMs": 30_000 } });
        let gone = self.api.ok("instances.delete", request).await?;
        ensure!(gone["state"] == "deleted", "{gone}");
        Ok(())
    }
}

pub(crate) struct Made {
    pub id: String,
    pub address: std::net::IpAddr,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let image = Tiny::built()?;
    let host = Host::start(dir.path())?;
    let network = Network::of(&host.libvirtd)?;
    crate::runtime()?.block_on(async {
        host.prepare(&image.disk()).await?;
        many(&host, &network, args.at_once).await?;
        stopped(&host, args.stopped).await?;
        // The bridge stays with it, for what is started by hand.
        let anchor = host.create("anchor").await?;
        network.ssh(anchor.address, BOOTS_WITHIN).await?;
        create(&host, &network, &anchor, dir.path(), args.rounds).await?;
        carried::run(&host, &network, &anchor).await?;
        host.delete(&anchor).await
    })
}

/// On a host that has the image of none yet.
async fn many(host: &Host, network: &Network, count: u32) -> anyhow::Result<()> {
    let from = Instant::now();
    let names: Vec<String> = (0..count).map(|at| format!("many-{at}")).collect();
    let made = join_all(names.iter().map(|name| host.create(name))).await;
    let made: Vec<Made> = made.into_iter().collect::<anyhow::Result<_>>()?;
    let admitted = from.elapsed();
    let reached = join_all(made.iter().map(|one| async {
        network.ssh(one.address, BOOTS_WITHIN).await?;
        Ok::<_, anyhow::Error>(from.elapsed())
    }));
    let mut took: Vec<Duration> = reached.await.into_iter().collect::<anyhow::Result<_>>()?;
    took.sort_unstable();
    let images = host.images()?.len();
    ensure!(images == 1, "{images} images where {count} instances have the same");
    let (median, last) = (took[took.len() / 2], took[took.len() - 1]);
    Figure::of(format!("{count} instances at once, all take SSH"), last.as_secs_f64(), "s")
        .times(median, last)
        .note(format!(
            "all admitted and placed after {}; one image was fetched, and is the base of all",
            short(admitted)
        ))
        .say()?;
    let from = Instant::now();
    join_all(made.iter().map(|one| host.delete(one)))
        .await
        .into_iter()
        .collect::<anyhow::Result<Vec<()>>>()?;
    Figure::of(format!("{count} instances deleted at once"), from.elapsed().as_secs_f64(), "s").say()
}

/// What they cost is a part of the disk each, on one base.
async fn stopped(host: &Host, count: u32) -> anyhow::Result<()> {
    let flavor = json!({ "pool": POOL, "name": "least", "vcpu": 1, "memoryMiB": 64, "diskGiB": 1 });
    host.api.ok("flavors.create", flavor).await?;
    let from = Instant::now();
    let names: Vec<String> = (0..count).map(|at| format!("stopped-{at}")).collect();
    let made = join_all(names.iter().map(|name| async move {
        let request =
            json!({ "pool": POOL, "flavor": "least", "image": "tiny", "name": name, "stopped": true });
        let mut made = host.api.ok("instances.create", request).await?;
        while made["state"] != "stopped" {
            ensure!(from.elapsed() < BOOTS_WITHIN, "{made}");
            let look = json!({ "id": made["id"], "wait": { "timeoutMs": 30_000 } });
            made = host.api.ok("instances.get", look).await?;
        }
        let address = made["addresses"][0].as_str().context("its address")?.parse()?;
        Ok(Made { id: made["id"].as_str().context("its id")?.to_owned(), address })
    }));
    let made: Vec<Made> = made.await.into_iter().collect::<anyhow::Result<_>>()?;
    let took = from.elapsed();
    let images = host.images()?;
    ensure!(images.len() == 1, "{} images where {count} instances have the same", images.len());
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let each = made.iter().map(|one| Ok(allocated(&host.dir.join("libvirt/instances").join(&one.id))?));
    let own: u64 = each.collect::<anyhow::Result<Vec<u64>>>()?.iter().sum();
    Figure::of(format!("{count} instances made and not started"), took.as_secs_f64(), "s")
        .note(format!(
            "one base of {:.1} MiB for all; each has {:.2} MiB of its own",
            mib(images[0].metadata()?.len()),
            mib(own) / f64::from(count)
        ))
        .say()?;
    join_all(made.iter().map(|one| host.delete(one)))
        .await
        .into_iter()
        .collect::<anyhow::Result<Vec<()>>>()
        .map(drop)
}

/// Bytes of the disk that the files of a folder take.
fn allocated(folder: &std::path::Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.blocks() * 512)).sum()
}

async fn create(
    host: &Host,
    network: &Network,
    anchor: &Made,
    dir: &std::path::Path,
    rounds: u32,
) -> anyhow::Result<()> {
    let hand = ByHand::like(host, anchor, &dir.join("hand"))?;
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let from = Instant::now();
        let made = host.create(&format!("one-{round}")).await?;
        network.ssh(made.address, BOOTS_WITHIN).await?;
        ours.push(from.elapsed());
        host.delete(&made).await?;

        let from = Instant::now();
        hand.start()?;
        network.ssh(ByHand::ADDRESS, BOOTS_WITHIN).await?;
        by_hand.push(from.elapsed());
        hand.remove()?;
    }
    let (ours, by_hand) = (median(&mut ours), median(&mut by_hand));
    let allowed = by_hand.mul_f64(0.1) + Duration::from_millis(100);
    let over = ours.as_secs_f64() * 1e3 - by_hand.as_secs_f64() * 1e3;
    Figure::of("create to SSH, over the same by hand", over, "ms")
        .at_most(allowed.as_secs_f64() * 1e3, allowed.as_secs_f64() * 1e3)
        .note(format!(
            "{} from the call to the banner; {} from qemu-img, a seed, define and start by hand; medians of {rounds}",
            short(ours),
            short(by_hand)
        ))
        .say()
}

fn median(took: &mut [Duration]) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
