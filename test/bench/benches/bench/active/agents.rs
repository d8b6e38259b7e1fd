//! A thousand of the daemon's agents on simulated hardware, in one process. They are in the database as if they had joined: joins of one
//! address are slow on purpose.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use agent::identity::{FileIdentity, Identity, IdentityStore};
use agent::journal::Marks;
use anyhow::ensure;
use kit::{Clock, OsRng, Rng, SystemClock};
use model::{NodeId, Role, SiteId, Timestamp};
use pki::ca::CertificateAuthority;
use pki::{NodeName, OsEntropy, SignedMessage, SigningKey, TrustBundle};
use serde_json::json;
use store::{Op, Row, Sql, Store, sql};
use uuid::Uuid;

use crate::plane::Plane;
use crate::program::{self, Running};

const OFFERED_WITHIN: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(200);

const TRUST: Sql = sql("bench_trust", "SELECT message FROM trust_bundles ORDER BY version DESC LIMIT 1");
const SITE: Sql = sql("bench_site", "SELECT site_id FROM sites WHERE name = 'bench'");
const NODES: Sql = sql(
    "bench_nodes",
    "INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state, adopted_at)
     SELECT n.node_id, s.site_id, p.pool_id, 'node', 'bench-' || n.number, 'bench-' || n.number, 'ready', compute_now()
     FROM unnest($1::uuid[]) WITH ORDINALITY AS n (node_id, number), sites s, pools p
     WHERE s.name = 'bench' AND p.name = 'gpu'",
);
const CERTIFICATES: Sql = sql(
    "bench_certificates",
    "INSERT INTO node_certs (serial, node_id, spki_der, spki_sha256, not_before, not_after, csr_sha256, reply)
     SELECT k.serial, k.node_id, k.spki, sha256(k.spki), compute_now() - interval '1 hour', compute_now() + interval '30 days',
       sha256(k.spki), ''
     FROM unnest($1::text[], $2::uuid[], $3::bytea[]) AS k (serial, node_id, spki)",
);
const OFFERING: Sql =
    sql("bench_offering", "SELECT count(DISTINCT node_id) AS nodes FROM atoms WHERE health = 'healthy'");

/// Ended when dropped.
pub struct Agents(Running);

impl Agents {
    /// Puts `count` machines into a pool `gpu`, starts their agents, and waits until the control plane offers all of their GPUs.
    pub async fn start(plane: &Plane, store: &Store, dir: &Path, count: u32) -> anyhow::Result<Self> {
        let admin = plane.admin()?;
        admin.ok("sites.create", json!({ "name": "bench" })).await?;
        admin.ok("pools.create", json!({ "name": "gpu", "class": "gpu" })).await?;
        let home = dir.join("agents");
        let config = plane.daemon_config(&home)?;
        join(plane, store, &home.join("data/sim"), count).await?;
        let mut command = Command::new(program::path("bcd")?);
        command.args(["sim", "--nodes", &count.to_string(), "--config"]).arg(&config);
        command.env("RUST_LOG", "warn");
        let agents = Self(Running::start(&mut command, &home.join("log"))?);
        let started = Instant::now();
        loop {
            let nodes: i64 = store.read_one(&OFFERING, &[]).await?.get("nodes");
            if nodes == i64::from(count) {
                return Ok(agents);
            }
            ensure!(
                started.elapsed() < OFFERED_WITHIN,
                "{nodes} nodes offer GPUs after {OFFERED_WITHIN:?}, not {count}"
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// What a join leaves on both sides.
async fn join(plane: &Plane, store: &Store, dir: &Path, count: u32) -> anyhow::Result<()> {
    let at = SystemClock::new().now();
    let site_id = SiteId::from_uuid(store.read_one(&SITE, &[]).await?.get("site_id"));
    let signed_trust = trust(store).await?;
    let bundle = TrustBundle::parse(&SignedMessage::decode(&signed_trust)?.body)?;
    let key = std::fs::read_to_string(plane.pki.join("worker/node-ca.key.pem"))?;
    let certificate = std::fs::read(plane.pki.join("public/node-ca.crt.der"))?;
    let ca = CertificateAuthority::load(certificate, SigningKey::from_pkcs8_pem(&key)?)?;
    kit::fs::create_dir(dir.parent().unwrap_or(dir), 0o700)?;
    kit::fs::create_dir(dir, 0o700)?;
    let (mut ids, mut serials, mut keys): (Vec<Uuid>, Vec<String>, Vec<Vec<u8>>) = Default::default();
    for number in 0..count {
        let identity = identity(site_id, at, &ca, &bundle, &signed_trust)?;
        ids.push(identity.node_id.uuid());
        serials.push(identity.serial.to_string());
        keys.push(identity.key.verifying_key().spki_der().to_vec());
        FileIdentity::new(dir.join(number.to_string())).store(&identity)?;
    }
    let (ids, serials, keys) = (&ids, &serials, &keys);
    store
        .tx(Op::new("bench_nodes"), |tx| {
            Box::pin(async move {
                tx.execute(&NODES, &[ids]).await?;
                tx.execute(&CERTIFICATES, &[serials, ids, keys]).await?;
                Ok::<_, store::StoreError>(())
            })
        })
        .await?;
    Ok(())
}

/// The newest bundle, which a worker stores when it starts.
async fn trust(store: &Store) -> anyhow::Result<Vec<u8>> {
    let started = Instant::now();
    loop {
        let row: Option<Row> = store.read_opt(&TRUST, &[]).await?;
        if let Some(row) = row {
            return Ok(row.get("message"));
        }
        ensure!(started.elapsed() < OFFERED_WITHIN, "no worker stores a trust bundle");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn identity(
    site_id: SiteId,
    at: Timestamp,
    ca: &CertificateAuthority,
    bundle: &TrustBundle,
    signed_trust: &[u8],
) -> anyhow::Result<Identity> {
    let rng: &dyn Rng = &OsRng;
    let node_id: NodeId = rng.id(at);
    let key = SigningKey::generate(&OsEntropy);
    let name = NodeName { trust_domain: bundle.trust_domain.clone(), site_id, role: Role::Node, node_id };
    let leaf = ca.issue_node(&name, key.verifying_key(), at, &OsEntropy)?;
    Ok(Identity {
        node_id,
        site_id,
        role: Role::Node,
        key,
        chain: vec![leaf.der],
        serial: leaf.serial,
        not_before: leaf.validity.not_before,
        not_after: leaf.validity.not_after,
        trust: bundle.clone(),
        signed_trust: signed_trust.to_vec().into(),
        marks: Marks::default(),
    })
}
