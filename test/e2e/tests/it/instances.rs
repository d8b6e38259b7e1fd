//! Virtual machines from the call to their host's report and back, on simulated hosts, and through the deaths of either side.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::serve::{Api, Cloud, Serve, eventually, items};
use kit::{Rng, SeededRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const READY_WITHIN: Duration = Duration::from_secs(90);
const HOSTS: u32 = 2;

/// Rows of what instances hold.
const HELD: &str = "SELECT (SELECT count(*) FROM secrets) + (SELECT count(*) FROM host_bookings) + (SELECT count(*) FROM ip_leases)
   + (SELECT count(*) FROM instance_holds) + (SELECT count(*) FROM instance_allocations WHERE ended_at IS NULL)";

/// What a tenant may leave behind, but for rows of what has ended.
const ROWS: &str = "SELECT (SELECT count(*) FROM tenants WHERE deleted_at IS NULL) || ' ' || (SELECT count(*) FROM images WHERE deleted_at IS NULL)
   || ' ' || (SELECT count(*) FROM instances WHERE ended_at IS NULL) || ' ' || (SELECT count(*) FROM reservations WHERE ended_at IS NULL)
   || ' ' || (SELECT count(*) FROM secrets) || ' ' || (SELECT count(*) FROM quotas)";

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

    let told = "#cloud-config\npassword: told-to-one-guest\n";
    let asked = json!({
        "pool": "vps", "flavor": "small", "image": "debian-12", "name": "web", "wait": { "timeoutMs": 20_000 },
        "userData": told,
    });
    let made = api.ok("instances.create", asked).await?;
    ensure!(made["state"] == "running", "{made}");
    ensure!(made["addresses"] == json!(["10.0.0.2"]), "{made}");
    let held = domains(&sim)?;
    ensure!(held.len() == 1 && held[0]["running"] == true && held[0]["hostname"] == "web", "{held:?}");
    ensure!(held[0]["memory_bytes"] == 512 << 20, "{held:?}");
    let digest: String = Sha256::digest(told).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(held[0]["told"] == digest, "it was told something else: {held:?}");

    let id = &made["id"];
    until(&api, "instances.stop", id, "stopped").await?;
    ensure!(domains(&sim)?[0]["running"] == false);
    until(&api, "instances.start", id, "running").await?;
    until(&api, "instances.reboot", id, "running").await?;
    let held = domains(&sim)?;
    ensure!(held[0]["starts"] == 3, "{held:?}");

    until(&api, "instances.delete", id, "deleted").await?;
    ensure!(domains(&sim)?.is_empty());
    ensure!(cloud.db.scalar_i64(HELD).await == 0);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_goes_with_its_instances_secrets_and_reservations_without_a_trace() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let server =
        cloud.serve(&Serve::new("all", &["api", "worker", "scheduler", "gateway"], &cloud.db.url))?;
    let api = cloud.api(&server)?;
    let sim = hosts(&cloud, &api, &server).await?;
    let before = cloud.db.scalar_text(ROWS).await;

    let tenant = api.ok("tenants.create", json!({ "name": "acme" })).await?["id"].clone();
    let image = json!({
        "tenant": tenant, "name": "own", "url": "https://cloud.example.com/own.qcow2", "sha256": "cd".repeat(32),
        "format": "qcow2",
    });
    api.ok("images.create", image).await?;
    api.ok("secrets.put", json!({ "tenant": tenant, "name": "seed", "value": "#cloud-config\n" })).await?;
    api.ok("quotas.set", json!({ "tenant": tenant, "resource": "vcpu", "amount": 8 })).await?;
    for (name, user_data) in [("a", "secret://seed"), ("b", "#cloud-config\nhostname: b\n")] {
        let asked = json!({
            "tenant": tenant, "pool": "vps", "flavor": "small", "image": "own", "name": name, "userData": user_data,
            "wait": { "timeoutMs": 20_000 },
        });
        let made = api.ok("instances.create", asked).await?;
        ensure!(made["state"] == "running", "{made}");
    }
    ensure!(domains(&sim)?.len() == 2);
    let refused = api.call("tenants.delete", json!({ "id": tenant })).await;
    let refused = format!("{:?}", refused.err());
    ensure!(refused.contains("2 instances, 1 image, 1 secret"), "{refused}");
    let delete = json!({ "id": tenant, "withContents": true, "wait": { "timeoutMs": 30_000 } });
    let gone = api.ok("tenants.delete", delete).await?;
    ensure!(gone["state"] == "deleted", "{gone}");
    ensure!(domains(&sim)?.is_empty());
    ensure!(cloud.db.scalar_i64(HELD).await == 0);
    ensure!(cloud.db.scalar_text(ROWS).await == before);
    drop(sim);
    Ok(())
}

/// Kills on each side, and how late after the call at most: a create is through within half of that.
const KILLS: u64 = 10;
const LATEST_MS: u64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_killed_in_a_create_the_instance_runs_once_and_goes_without_a_trace() -> anyhow::Result<()>
{
    let cloud = Cloud::new().await?;
    let url = cloud.db.url.clone();
    let all = Serve::new("all", &["api", "worker", "scheduler", "gateway"], &url);
    let mut server = cloud.serve(&all)?;
    let gateway_listen = server.gateway.context("it listens for nodes")?;
    let mut api = cloud.api(&server)?;
    let mut sim = hosts(&cloud, &api, &server).await?;
    let rng: &dyn Rng = &SeededRng::new(7);
    let asked = |key: &str| json!({ "pool": "vps", "flavor": "small", "image": "debian-12", "name": key, "idempotencyKey": key });

    for kill in 0..KILLS {
        let delay = Duration::from_millis(rng.below(LATEST_MS));
        let key = format!("daemon-{kill}");
        let made = api.ok("instances.create", asked(&key)).await?;
        tokio::time::sleep(delay).await;
        sim.running.kill()?;
        sim = cloud.start_sim(gateway_listen, HOSTS, "")?;
        // A simulated machine whose process is killed boots anew, and what runs on it starts again.
        runs_once(&api, &sim, &made["id"], 2, &format!("the daemon killed after {delay:?}")).await?;
    }
    for kill in 0..KILLS {
        let delay = Duration::from_millis(rng.below(LATEST_MS));
        let key = format!("plane-{kill}");
        let call = async {
            let _ = api.call("instances.create", asked(&key)).await;
            std::future::pending::<()>().await;
        };
        // Whether it was answered is chance, and what it made is found by its key.
        let _ = tokio::time::timeout(delay, call).await;
        server.running.kill()?;
        server = cloud.serve(&Serve { gateway_listen, ..Serve::new("all", all.roles, &url) })?;
        api = cloud.api(&server)?;
        let made = api.ok("instances.create", asked(&key)).await?;
        runs_once(&api, &sim, &made["id"], 1, &format!("the control plane killed after {delay:?}")).await?;
    }

    let listed = api.ok("instances.list", json!({ "limit": 200 })).await?;
    let count = usize::try_from(2 * KILLS)?;
    ensure!(items(&listed).len() == count, "{listed}");
    ensure!(domains(&sim)?.len() == count, "{:?}", domains(&sim)?);
    for instance in items(&listed) {
        api.ok("instances.delete", json!({ "id": instance["id"] })).await?;
    }
    eventually(READY_WITHIN, "nothing of any is left", async || {
        let (rows, domains) = (cloud.db.scalar_i64(HELD).await, domains(&sim)?.len());
        Ok(if rows == 0 && domains == 0 { Ok(()) } else { Err(format!("{rows} rows, {domains} domains")) })
    })
    .await
}

/// By its rows and by its host, where it was started so often at most.
async fn runs_once(
    api: &Api,
    sim: &e2e::serve::Sim,
    id: &Value,
    starts_max: u64,
    when: &str,
) -> anyhow::Result<()> {
    eventually(READY_WITHIN, when, async || {
        let told = api.ok("instances.get", json!({ "id": id })).await?;
        let held = domains(sim)?;
        let name = told["name"].as_str().unwrap_or_default();
        let own: Vec<&Value> = held.iter().filter(|domain| domain["hostname"] == name).collect();
        let starts = own.first().and_then(|own| own["starts"].as_u64()).unwrap_or(0);
        let once = own.len() == 1 && own[0]["running"] == true && (1..=starts_max).contains(&starts);
        Ok(if told["state"] == "running" && once { Ok(()) } else { Err(format!("{told} with {own:?}")) })
    })
    .await
}
