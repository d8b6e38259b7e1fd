//! Four processes that reserve, extend and release through two API processes: nothing is booked twice, nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::program;
use e2e::serve::{Api, Cloud, Serve, Server, eventually, items};
use serde_json::{Value, json};

const PROCESSES: u64 = 4;
const CALLS: u64 = 1_000;
const NODES: u32 = 4;
/// For the last placements, releases and what the machines make of them.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// The devices in every CDI spec of the machines, by machine; a device in two specs is an error.
fn on_machines(machines: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut devices = BTreeSet::new();
    for machine in std::fs::read_dir(machines)? {
        let Ok(files) = std::fs::read_dir(machine?.path().join("root/etc/cdi")) else { continue };
        for file in files {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            // It may go while we look.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let spec: Value = serde_json::from_slice(&bytes)?;
            for device in spec["devices"].as_array().into_iter().flatten() {
                let id =
                    device["annotations"]["bcd.dev/device-id"].as_str().context("a device has its id")?;
                ensure!(devices.insert(id.to_owned()), "{id} is in two specs");
            }
        }
    }
    Ok(devices)
}

/// Live reservations, when none of them is under way to somewhere else.
async fn at_rest(api: &Api) -> anyhow::Result<Result<Vec<Value>, String>> {
    let listed = api.ok("reservations.list", json!({ "limit": 200 })).await?;
    ensure!(listed["cursor"].is_null(), "more reservations than a page");
    let moving: Vec<_> = items(&listed)
        .iter()
        .filter(|reservation| !matches!(reservation["state"].as_str(), Some("active" | "scheduling")))
        .map(|reservation| format!("{} {}", reservation["id"], reservation["state"]))
        .collect();
    Ok(if moving.is_empty() { Ok(items(&listed).to_vec()) } else { Err(moving.join(", ")) })
}

fn storm(api: &Server, token: &Path, seed: u64) -> anyhow::Result<std::process::Child> {
    Ok(Command::new(program::path("e2e-storm")?)
        .arg(api.api.as_deref().context("it has an API")?)
        .arg(token)
        .args([seed.to_string(), (CALLS / PROCESSES).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_book_nothing_twice_and_leave_nothing_behind() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let one = cloud.serve(&Serve::new("one", &["api", "worker", "scheduler", "gateway"], &cloud.db.url))?;
    let two = cloud.serve(&Serve::new("two", &["api", "worker"], &cloud.db.url))?;
    let api = cloud.api(&one)?;
    let sim = cloud.sim(&api, one.gateway.context("it listens for nodes")?, NODES).await?;

    let token = cloud.admin_token();
    let mut children = Vec::new();
    for seed in 0..PROCESSES {
        children.push(storm(if seed % 2 == 0 { &one } else { &two }, &token, seed)?);
    }
    let mut told = BTreeMap::<String, u64>::new();
    for child in children {
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
        let done = program::Done::from(output);
        for (answer, times) in done.json()?.as_object().context("counts")? {
            *told.entry(answer.clone()).or_default() += times.as_u64().context("a count")?;
        }
    }
    eprintln!("{told:?}");
    ensure!(told.values().sum::<u64>() == CALLS, "{told:?}");
    for method in ["reservations.create ok", "reservations.extend ok", "reservations.release ok"] {
        ensure!(told.get(method).is_some_and(|times| *times > 20), "{told:?}");
    }

    let live = eventually(SETTLED_WITHIN, "the books come to rest", async || {
        let live = match at_rest(&api).await? {
            Ok(live) => live,
            Err(moving) => return Ok(Err(moving)),
        };
        let booked: BTreeSet<String> = live
            .iter()
            .filter(|reservation| reservation["state"] == "active")
            .flat_map(|reservation| reservation["devices"].as_array().cloned().unwrap_or_default())
            .filter_map(|device| Some(device["uuid"].as_str()?.to_owned()))
            .collect();
        let machines = on_machines(&sim.machines)?;
        Ok(if machines == booked { Ok(live) } else { Err(format!("{machines:?} for {booked:?}")) })
    })
    .await?;
    let broken = capacity::invariants(&cloud.db.store).await?;
    ensure!(broken.is_empty(), "{broken:?}");
    let doubles = "SELECT count(*) FROM (
        SELECT unnest(atoms) AS atom FROM allocations WHERE state IN ('placed', 'bound', 'releasing')) live
        GROUP BY atom HAVING count(*) > 1 UNION ALL SELECT 0 ORDER BY 1 DESC LIMIT 1";
    ensure!(cloud.db.scalar_i64(doubles).await == 0);
    let held = cloud.db.scalar_i64("SELECT count(DISTINCT reservation_id) FROM quota_holds").await;
    ensure!(usize::try_from(held)? == live.len(), "{held} hold quota, {} live", live.len());
    let gpus = cloud
        .db
        .scalar_i64("SELECT coalesce(sum(amount), 0)::bigint FROM quota_holds WHERE resource = 'gpu'")
        .await;
    let reserved: i64 = live.iter().filter_map(|reservation| reservation["gpus"].as_i64()).sum();
    ensure!(gpus == reserved, "{gpus} held, {reserved} reserved");
    Ok(())
}
