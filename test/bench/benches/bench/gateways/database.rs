//! A PostgreSQL that fsyncs, with nodes that joined, and what it did by statement.

use std::path::Path;
use std::time::Duration;

use model::Timestamp;
use store::embedded::{Embedded, EmbeddedConfig};
use store::{Op, Sql, Store, sql};
use uuid::Uuid;

use crate::sessions::identities;
use crate::statements::{self, Counts, Statement};

const SITE: Sql = sql("bench_site", "INSERT INTO sites (site_id, name) VALUES ($1, 'bench')");
const NODES: Sql = sql(
    "bench_nodes",
    "INSERT INTO nodes (node_id, site_id, role, name, hostname, state, adopted_at)
     SELECT n, $1, 'node', 'bench-' || n, 'bench-' || n, 'ready', compute_now() FROM unnest($2::uuid[]) n",
);
const CERTIFICATES: Sql = sql(
    "bench_certificates",
    "INSERT INTO node_certs (serial, node_id, spki_der, spki_sha256, not_before, not_after, csr_sha256, reply)
     SELECT k.serial, k.node_id, k.spki, sha256(k.spki), compute_now() - interval '1 hour', compute_now() + interval '30 days',
       sha256(k.spki), ''
     FROM unnest($1::text[], $2::uuid[], $3::bytea[]) AS k (serial, node_id, spki)",
);
const OPEN: Sql = sql("bench_open", "SELECT count(*) AS sessions FROM node_sessions WHERE closed_at IS NULL");
const HELD_BY: Sql = sql(
    "bench_held_by",
    "SELECT node_id, session_epoch FROM node_sessions WHERE gateway_id = $1 AND closed_at IS NULL ORDER BY node_id",
);
const NOW: Sql = sql("bench_now", "SELECT extract(epoch FROM compute_now())::float8 AS now");
/// Seconds since $3 until each of these nodes had another session.
const MOVED: Sql = sql(
    "bench_moved",
    "SELECT extract(epoch FROM s.connected_at)::float8 - $3 AS took
     FROM unnest($1::uuid[], $2::bigint[]) AS k (node_id, session_epoch) JOIN node_sessions s USING (node_id)
     WHERE s.session_epoch > k.session_epoch AND s.closed_at IS NULL ORDER BY 1",
);
pub struct Database {
    pub store: Store,
    pub embedded: Embedded,
}

impl Database {
    /// With `nodes` nodes, each with its certificate.
    pub fn start(dir: &Path, nodes: u64, at: Timestamp) -> anyhow::Result<Self> {
        let config = EmbeddedConfig::durable(dir.join("pg"));
        let embedded = statements::start(&config, Counts::Outer)?;
        let runtime = crate::runtime()?;
        let store = runtime.block_on(async {
            let store = Store::open(embedded.store_config(Embedded::DATABASE)).await?;
            store::migrate::run(&store).await?;
            fill(&store, nodes, at).await?;
            statements::analyze(&store).await?;
            // Its connections were made on a runtime that ends here.
            store.close();
            anyhow::Ok(())
        });
        store?;
        drop(runtime);
        let store = crate::runtime()?.block_on(Store::open(embedded.store_config(Embedded::DATABASE)))?;
        Ok(Self { store, embedded })
    }

    pub fn url(&self) -> String {
        self.embedded.url(Embedded::DATABASE).reveal().to_owned()
    }

    pub async fn open_sessions(&self) -> anyhow::Result<i64> {
        Ok(self.store.read_one(&OPEN, &[]).await?.get("sessions"))
    }

    /// Open sessions of a gateway: their nodes and epochs.
    pub async fn held_by(&self, gateway: u64) -> anyhow::Result<(Vec<Uuid>, Vec<i64>)> {
        let rows = self.store.read(&HELD_BY, &[&Uuid::from_u128(u128::from(gateway))]).await?;
        Ok(rows.iter().map(|row| (row.get::<_, Uuid>("node_id"), row.get::<_, i64>("session_epoch"))).unzip())
    }

    /// Seconds of the database's clock.
    pub async fn now(&self) -> anyhow::Result<f64> {
        Ok(self.store.read_one(&NOW, &[]).await?.get("now"))
    }

    /// How long after `from` each of these nodes was in a session again, as far as they are.
    pub async fn moved(&self, held: &(Vec<Uuid>, Vec<i64>), from: f64) -> anyhow::Result<Vec<Duration>> {
        let rows = self.store.read(&MOVED, &[&held.0, &held.1, &from]).await?;
        Ok(rows.iter().map(|row| Duration::from_secs_f64(row.get::<_, f64>("took").max(0.0))).collect())
    }

    pub async fn statements(&self) -> anyhow::Result<Vec<Statement>> {
        statements::read(&self.store).await
    }
}

pub fn say_statements(all: &[Statement], lasted: Duration, shown: usize) {
    for one in all.iter().take(shown) {
        println!(
            "  {:>8.2}/s {:>9.3} ms each   {}",
            one.calls as f64 / lasted.as_secs_f64(),
            one.ms / one.calls as f64,
            one.text
        );
    }
}

async fn fill(store: &Store, count: u64, at: Timestamp) -> anyhow::Result<()> {
    let ca = identities::node_ca(at)?;
    let (mut ids, mut serials, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..count {
        let node = identities::node(number, &ca, at)?;
        ids.push(node.node_id.uuid());
        serials.push(node.serial);
        keys.push(node.identity.key.verifying_key().spki_der().to_vec());
    }
    let (site, ids, serials, keys) = (Uuid::from_u128(1), &ids, &serials, &keys);
    store
        .tx(Op::new("bench_nodes"), |tx| {
            Box::pin(async move {
                tx.execute(&SITE, &[&site]).await?;
                tx.execute(&NODES, &[&site, ids]).await?;
                tx.execute(&CERTIFICATES, &[serials, ids, keys]).await?;
                Ok::<_, store::StoreError>(())
            })
        })
        .await?;
    Ok(())
}
