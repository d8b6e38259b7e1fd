//! A real machine, made while its host's daemon or the control plane is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use e2e::footprint::Grounds;
use e2e::serve::{Api, Cloud, Host, POOL, Serve, eventually, items};
use guests::{Libvirtd, Tiny};
use kit::{Rng, SeededRng};
use serde_json::{Value, json};

/// Moments of a create at which each of the two is killed, spread over the time until its hypervisor is started and a little more.
const KILLS: u32 = 10;
const PAST_THE_START: f64 = 1.25;
const RUNS_WITHIN: Duration = Duration::from_secs(90);
const DELETED_WITHIN_MS: u32 = 30_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_killed_in_a_create_one_machine_runs_and_nothing_is_left() -> anyhow::Result<()> {
    let tiny = Tiny::built()?;
    let libvirtd = Libvirtd::start()?;
    let cloud = Cloud::new().await?;
    let url = cloud.db.url.clone();
    let all = Serve::new("all", &["api", "worker", "scheduler", "gateway"], &url);
    let mut server = cloud.serve(&all)?;
    let gateway = server.gateway.context("it listens for nodes")?;
    let mut api = cloud.api(&server)?;
    let mut host = cloud.host(&api, gateway, &libvirtd).await?;
    let flavor = json!({ "pool": POOL, "name": "small", "vcpu": 1, "memoryMiB": 128, "diskGiB": 1 });
    api.ok("flavors.create", flavor).await?;
    let disk = tiny.disk();
    let import = ["images", "import", disk.to_str().context("a path")?, "--name", "tiny"];
    cloud.cli(&api, &cloud.admin_token(), &import)?.ok()?;
    let before = on(&cloud, &host, &libvirtd).settled().await?;

    // The first one waits for what later ones find.
    let mut starts = Duration::ZERO;
    for whole in ["cold", "warm"] {
        let from = Instant::now();
        let made = create(&api, whole).await?;
        starts = eventually(RUNS_WITHIN, "its hypervisor is started", async || {
            Ok(if libvirtd.hypervisors()?.is_empty() { Err("none".to_owned()) } else { Ok(from.elapsed()) })
        })
        .await?;
        runs_once(&api, &libvirtd, &made, "nobody is killed").await?;
        delete(&api, &made).await?;
        on(&cloud, &host, &libvirtd).back_to(&before).await?;
    }

    let rng: &dyn Rng = &SeededRng::new(7);
    let moment = |kill: u32| {
        let part = (f64::from(kill) + rng.below(1000) as f64 / 1000.0) / f64::from(KILLS);
        starts.mul_f64(part * PAST_THE_START)
    };
    for kill in 0..KILLS {
        let delay = moment(kill);
        let from = Instant::now();
        let made = create(&api, &format!("killed-{kill}")).await?;
        tokio::time::sleep(delay).await;
        host.running.kill()?;
        let when = format!("the daemon killed after {delay:.1?}, with {}", there(&host.dir, &libvirtd)?);
        host = cloud.start_host(gateway, &libvirtd, "")?;
        runs_once(&api, &libvirtd, &made, &when).await?;
        delete(&api, &made).await?;
        on(&cloud, &host, &libvirtd).back_to(&before).await.with_context(|| when.clone())?;
        eprintln!("{when}; ran once and was gone after {:.1?}", from.elapsed());
    }
    for kill in 0..KILLS {
        let (delay, from) = (moment(kill), Instant::now());
        let name = format!("planned-{kill}");
        let call = async {
            let _ = create(&api, &name).await;
            std::future::pending::<()>().await;
        };
        // Whether it was answered is chance, and what it made is found by its key.
        let _ = tokio::time::timeout(delay, call).await;
        server.running.kill()?;
        let when =
            format!("the control plane killed after {delay:.1?}, with {}", there(&host.dir, &libvirtd)?);
        server = cloud.serve(&Serve { gateway_listen: gateway, ..Serve::new("all", all.roles, &url) })?;
        api = cloud.api(&server)?;
        let made = create(&api, &name).await?;
        runs_once(&api, &libvirtd, &made, &when).await?;
        delete(&api, &made).await?;
        on(&cloud, &host, &libvirtd).back_to(&before).await.with_context(|| when.clone())?;
        eprintln!("{when}; ran once and was gone after {:.1?}", from.elapsed());
    }
    let listed = api.ok("instances.list", json!({ "limit": 200 })).await?;
    ensure!(items(&listed).is_empty(), "{listed}");
    Ok(())
}

fn on<'a>(cloud: &'a Cloud, host: &'a Host, libvirtd: &'a Libvirtd) -> Grounds<'a> {
    Grounds { libvirtd, daemon: host.running.pid(), dir: &host.dir, database: &cloud.db.store }
}

async fn create(api: &Api, name: &str) -> anyhow::Result<String> {
    let asked =
        json!({ "pool": POOL, "flavor": "small", "image": "tiny", "name": name, "idempotencyKey": name });
    let made = api.ok("instances.create", asked).await?;
    Ok(made["id"].as_str().context("its id")?.to_owned())
}

async fn delete(api: &Api, id: &str) -> anyhow::Result<()> {
    let asked = json!({ "id": id, "wait": { "timeoutMs": DELETED_WITHIN_MS } });
    let told = api.ok("instances.delete", asked).await?;
    ensure!(told["state"] == "deleted", "{told}");
    Ok(())
}

/// By its rows, by libvirt, and by the processes that are there.
async fn runs_once(api: &Api, libvirtd: &Libvirtd, id: &str, when: &str) -> anyhow::Result<()> {
    eventually(RUNS_WITHIN, when, async || {
        let told: Value = api.ok("instances.get", json!({ "id": id })).await?;
        let all = libvirtd.virsh_ok(&["list", "--all", "--name"])?;
        let running = libvirtd.virsh_ok(&["list", "--name"])?;
        let processes = libvirtd.hypervisors()?;
        let count = |text: &str| text.lines().filter(|name| !name.trim().is_empty()).count();
        let own = processes.iter().filter(|line| line.contains(id)).count();
        let once = count(&all) == 1 && count(&running) == 1 && processes.len() == 1 && own == 1;
        Ok(match told["state"] == "running" && once {
            true => Ok(()),
            false => Err(format!("{told} with {all:?}, of which run {running:?}, by {processes:?}")),
        })
    })
    .await
}

/// How far it has got.
fn there(host: &Path, libvirtd: &Libvirtd) -> anyhow::Result<String> {
    let running = libvirtd.virsh_ok(&["list", "--name"])?;
    let defined = libvirtd.virsh_ok(&["list", "--all", "--name"])?;
    if !running.trim().is_empty() {
        return Ok("its machine running".to_owned());
    }
    if !defined.trim().is_empty() {
        return Ok("its domain".to_owned());
    }
    let mut names = Vec::new();
    // Beside each is where it came from.
    for image in inside(&host.join("libvirt/images")).iter().filter(|name| !name.contains(".from-")) {
        let what = if image.ends_with(".part") { "a part of its image" } else { "its image" };
        names.push(what.to_owned());
    }
    let instances = host.join("libvirt/instances");
    names.extend(inside(&instances).iter().flat_map(|id| inside(&instances.join(id))));
    Ok(if names.is_empty() { "nothing of it".to_owned() } else { names.join(", ") })
}

/// What is in the folder, when it is there.
fn inside(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
