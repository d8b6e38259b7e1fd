//! Virtual machines from the call to their host's report and back, on simulated hosts.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::serve::{Api, Cloud, Serve, eventually, items};
use serde_json::{Value, json};

const READY_WITHIN: Duration = Duration::from_secs(90);
const HOSTS: u32 = 2;

/// A pool of hosts with a flavor and an image, and hosts that are ready.
async fn hosts(cloud: &Cloud, api: &Api, server: &e2e::serve::Server) -> anyhow::Result<e2e::serve::Sim> {
    api.ok("sites.create", json!({ "name": "e2e" })).await?;
    let network = json!({ "subnet": "10.0.0.0/24", "gateway": "10.0.0.1" });
    let pool = json!({ "name": "vps", "class": "vps-host", "policy": { "network": network } });
    api.ok("pools.create", pool).await?;
    let flavor = json!({ "pool": "vps", "name": "small", "vcpu": 1, "memoryMiB": 512, "diskGiB": 4 });
    api.ok("flavors.create", flavor).await?;
    let image = json!({
        "name": "debian-12", "url": "https://cloud.example.com/debian-12.qcow2", "sha256": "ab".repeat(32),
        "format": "qcow2",
    });
    api.ok("images.create", image).await?;
    let token = json!({ "site": "e2e", "pool": "vps", "usesMax": HOSTS, "expiresInHours": 1 });
    let made = api.ok("joinTokens.create", token).await?;
    let token = made["secret"].as_str().context("the token's secret")?;
    let sim = cloud.start_sim(server.gateway.context("it listens for nodes")?, HOSTS, token)?;
    eventually(READY_WITHIN, "every host is ready", async || {
        let listed = api.ok("nodes.list", json!({})).await?;
        let states: Vec<Value> = items(&listed).iter().map(|node| node["state"].clone()).collect();
        let ready = states.iter().filter(|state| *state == "ready").count();
        Ok(if ready == HOSTS as usize { Ok(()) } else { Err(format!("{states:?}")) })
    })
    .await?;
    Ok(sim)
}

/// What the hypervisors of all hosts hold.
fn domains(sim: &e2e::serve::Sim) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for machine in std::fs::read_dir(&sim.machines)? {
        let Ok(bytes) = std::fs::read(machine?.path().join("hypervisor.json")) else { continue };
        let host: Value = serde_json::from_slice(&bytes)?;
        found.extend(host["domains"].as_object().into_iter().flatten().map(|(_, domain)| domain.clone()));
    }
    Ok(found)
}

async fn until(api: &Api, method: &str, id: &Value, state: &str) -> anyhow::Result<Value> {
    let told = api.ok(method, json!({ "id": id, "wait": { "timeoutMs": 20_000 } })).await?;
    ensure!(told["state"] == state, "{method}: {told}");
    Ok(told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_reaches_its_host_runs_stops_starts_and_goes_without_a_trace() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let server =
        cloud.serve(&Serve::new("all", &["api", "worker", "scheduler", "gateway"], &cloud.db.url))?;
    let api = cloud.api(&server)?;
    let sim = hosts(&cloud, &api, &server).await?;

    let asked = json!({
        "pool": "vps", "flavor": "small", "image": "debian-12", "name": "web", "wait": { "timeoutMs": 20_000 },
    });
    let made = api.ok("instances.create", asked).await?;
    ensure!(made["state"] == "running", "{made}");
    ensure!(made["addresses"] == json!(["10.0.0.2"]), "{made}");
    let held = domains(&sim)?;
    ensure!(held.len() == 1 && held[0]["running"] == true && held[0]["hostname"] == "web", "{held:?}");
    ensure!(held[0]["memory_bytes"] == 512 << 20, "{held:?}");

    let id = &made["id"];
    until(&api, "instances.stop", id, "stopped").await?;
    ensure!(domains(&sim)?[0]["running"] == false);
    until(&api, "instances.start", id, "running").await?;
    until(&api, "instances.reboot", id, "running").await?;
    let held = domains(&sim)?;
    ensure!(held[0]["starts"] == 3, "{held:?}");

    until(&api, "instances.delete", id, "deleted").await?;
    ensure!(domains(&sim)?.is_empty());
    let left = "SELECT (SELECT count(*) FROM host_bookings) + (SELECT count(*) FROM ip_leases)
       + (SELECT count(*) FROM instance_holds) + (SELECT count(*) FROM instance_allocations WHERE ended_at IS NULL)";
    ensure!(cloud.db.scalar_i64(left).await == 0);
    eventually(READY_WITHIN, "no host is told of it any more", async || {
        let listed = api.ok("nodes.list", json!({})).await?;
        let behind: Vec<Value> = items(&listed)
            .iter()
            .filter(|node| node["observedGeneration"] != node["generation"])
            .map(|node| node["name"].clone())
            .collect();
        Ok(if behind.is_empty() { Ok(()) } else { Err(format!("{behind:?}")) })
    })
    .await?;
    drop(sim);
    Ok(())
}
