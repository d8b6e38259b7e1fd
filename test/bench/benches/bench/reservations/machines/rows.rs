//! The rows of machines that joined, were adopted and are connected.

use std::collections::BTreeMap;

use kernel::ports::delivery::GatewayLease;
use model::unit::GIB;
use model::{JournalId, NodeId};
use pki::VerifyingKey;
use store::{Op, Sql, Store, sql};
use wire::inventory::{CpuList, Gpu, NodeInventory, NumaNode, SectionName};

use super::{GPUS, Machine, uuid};

const NODES: Sql = sql(
    "bench_nodes",
    "INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state, adopted_at)
     SELECT gen_random_uuid(), s.site_id, p.pool_id, 'node', 'bench-' || n, 'bench-' || n, 'ready', compute_now()
     FROM generate_series(1, $1::bigint) n, sites s, pools p WHERE s.name = 'bench' AND p.name = 'gpu'",
);
const CERTIFICATES: Sql = sql(
    "bench_certificates",
    "INSERT INTO node_certs (serial, node_id, spki_der, spki_sha256, not_before, not_after, csr_sha256, reply)
     SELECT md5(n.name), n.node_id, $1::bytea, sha256($1::bytea), compute_now() - interval '1 hour',
       compute_now() + interval '30 days', sha256(n.name::bytea), ''
     FROM nodes n",
);
const STATUSES: Sql = sql(
    "bench_statuses",
    "INSERT INTO node_status (node_id, session_epoch, capabilities) SELECT node_id, 1, '{devices.limits}' FROM nodes",
);
/// Their heartbeats are a day ahead: no heartbeat is part of what is measured.
const SESSIONS: Sql = sql(
    "bench_sessions",
    "INSERT INTO node_sessions (node_id, gateway_id, gateway_epoch, session_epoch, cert_serial, journal_id,
       incarnation_id, boot_id, last_heartbeat_at, heartbeats_good)
     SELECT n.node_id, $1, $2, nextval('session_epoch'), md5(n.name), gen_random_uuid(), gen_random_uuid(), 'boot',
       compute_now() + interval '1 day', 10
     FROM nodes n",
);
const INVENTORY: Sql = sql(
    "bench_inventory",
    "INSERT INTO node_inventory (node_id, section, hash, content)
     SELECT n.node_id, $1, md5(n.name), replace($2, 'MACHINE', n.name)::jsonb FROM nodes n",
);
const MADE: Sql =
    sql("bench_made", "SELECT node_id, session_epoch, journal_id FROM node_sessions ORDER BY node_id");
pub const OFFERED: Sql = sql("bench_offered", "SELECT count(*) AS gpus FROM atoms WHERE health = 'healthy'");
pub const OPEN: Sql = sql("bench_open", "SELECT count(*) AS open FROM node_events WHERE handled_at IS NULL");

pub async fn insert(
    store: &Store,
    count: u32,
    lease: GatewayLease,
    key: &VerifyingKey,
) -> anyhow::Result<BTreeMap<NodeId, Machine>> {
    let inventory = inventory();
    let section = |name: SectionName| String::from_utf8(inventory.encode(name));
    let sections = [
        ("cpu", section(SectionName::Cpu)?),
        ("memory", section(SectionName::Memory)?),
        ("gpus", section(SectionName::Gpus)?),
    ];
    let (sections, epoch, spki) = (&sections, i64::try_from(lease.epoch)?, key.spki_der());
    let rows = store
        .tx(Op::new("bench_machines"), |tx| {
            Box::pin(async move {
                tx.execute(&NODES, &[&i64::from(count)]).await?;
                tx.execute(&CERTIFICATES, &[&spki]).await?;
                tx.execute(&STATUSES, &[]).await?;
                tx.execute(&SESSIONS, &[&lease.gateway_id.uuid(), &epoch]).await?;
                for (name, content) in sections {
                    tx.execute(&INVENTORY, &[name, content]).await?;
                }
                tx.query(&MADE, &[]).await
            })
        })
        .await?;
    let machine = |row: &store::Row| -> anyhow::Result<(NodeId, Machine)> {
        let (node_id, journal_id): (NodeId, JournalId) = (uuid(row, "node_id"), uuid(row, "journal_id"));
        let session_epoch = u64::try_from(row.get::<_, i64>("session_epoch"))?;
        Ok((node_id, Machine::new(node_id, session_epoch, journal_id)))
    };
    rows.iter().map(machine).collect()
}

/// [`GPUS`] on two sockets.
fn inventory() -> NodeInventory {
    let mut inventory = NodeInventory::default();
    let cpus = |from: u32, to: u32| CpuList::from_cpus(from..to);
    let memory_bytes = Some(512 * GIB);
    inventory.cpu.online = Some(cpus(0, 128));
    inventory.cpu.numa_nodes = vec![
        NumaNode { id: 0, cpus: cpus(0, 64), memory_bytes },
        NumaNode { id: 1, cpus: cpus(64, 128), memory_bytes },
    ];
    inventory.memory.total_bytes = Some(1024 * GIB);
    inventory.gpus.gpus = (0..GPUS)
        .map(|index| Gpu {
            uuid: Some(format!("GPU-MACHINE-{index}")),
            index: Some(index),
            model: Some("H100".to_owned()),
            memory_bytes: Some(80 * GIB),
            numa_node: Some(index / (GPUS / 2)),
            nvlink_count: Some(18),
            ..Gpu::default()
        })
        .collect();
    inventory
}
