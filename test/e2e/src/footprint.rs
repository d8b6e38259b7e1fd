//! What a host and its control plane have on account of instances, as lines. Taken before and after, the difference is what
//! instances left.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use guests::Libvirtd;
use store::{Sql, Store, StoreConfig, sql};

use crate::serve::eventually;

mod files;
mod network;
mod processes;

/// Passes of the daemon and of the control plane, on two busy cores.
const BACK_WITHIN: Duration = Duration::from_secs(45);
/// What has not changed for so long has settled.
const STILL_FOR: Duration = Duration::from_secs(1);
/// A hundred lines of what is left say enough.
const SAID_MAX: usize = 100;

/// What is live of instances, reservations and tunnels.
const ROWS: Sql = sql(
    "footprint",
    "SELECT 'row of ip_leases ' || to_jsonb(t)::text FROM ip_leases t
     UNION ALL SELECT 'row of bookings ' || to_jsonb(t)::text FROM bookings t
     UNION ALL SELECT 'row of host_bookings ' || to_jsonb(t)::text FROM host_bookings t
     UNION ALL SELECT 'row of instance_holds ' || to_jsonb(t)::text FROM instance_holds t
     UNION ALL SELECT 'row of quota_holds ' || to_jsonb(t)::text FROM quota_holds t
     UNION ALL SELECT 'row of instance_allocations ' || to_jsonb(t)::text FROM instance_allocations t WHERE ended_at IS NULL
     UNION ALL SELECT 'row of allocations ' || to_jsonb(t)::text FROM allocations t WHERE state IN ('placed', 'bound', 'releasing')
     UNION ALL SELECT 'row of instances ' || to_jsonb(t)::text FROM instances t WHERE ended_at IS NULL
     UNION ALL SELECT 'row of tunnels ' || to_jsonb(t)::text FROM tunnels t WHERE taken_at IS NOT NULL AND closed_at IS NULL
     UNION ALL SELECT 'host ' || n.name || ' has not seen generation ' || n.generation::text FROM nodes n
       JOIN node_status s USING (node_id) WHERE n.state = 'ready' AND s.observed_generation IS DISTINCT FROM n.generation
     ORDER BY 1",
);

/// A host, and the control plane that it takes work from.
pub struct Grounds<'a> {
    pub libvirtd: &'a Libvirtd,
    /// The process that the daemon runs in, and the folder of all that it writes.
    pub daemon: u32,
    pub dir: &'a Path,
    pub database: &'a Store,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint(BTreeSet<String>);

impl Footprint {
    /// What is there and was not, and what was and is not.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        let more = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        // A connection that was idle is given up at some time.
        let less = before.0.difference(&self.0).filter(|line| !line.starts_with(files::A_SOCKET));
        let less = less.map(|line| format!("- {line}"));
        more.chain(less).collect()
    }
}

impl Grounds<'_> {
    pub async fn footprint(&self) -> anyhow::Result<Footprint> {
        let mut lines = Lines::default();
        network::lines(self.libvirtd, &mut lines)?;
        machines(self.libvirtd, &mut lines)?;
        files::lines(self.dir, &mut lines)?;
        files::open_lines(self.daemon, self.dir, &mut lines)?;
        processes::lines(self.libvirtd, self.daemon, &mut lines)?;
        for row in self.database.read(&ROWS, &[]).await? {
            lines.add(row.get::<_, String>(0));
        }
        Ok(Footprint(lines.0))
    }

    /// Once nothing changes any more.
    pub async fn settled(&self) -> anyhow::Result<Footprint> {
        let mut last = self.footprint().await?;
        eventually(BACK_WITHIN, "the host and its control plane settle", async || {
            tokio::time::sleep(STILL_FOR).await;
            let now = self.footprint().await?;
            let changed = now.beyond(&last);
            last = now;
            Ok(if changed.is_empty() { Ok(last.clone()) } else { Err(changed.join("\n")) })
        })
        .await
    }

    /// Waits until all is as it was, and fails with what is left.
    pub async fn back_to(&self, before: &Footprint) -> anyhow::Result<()> {
        let started = std::time::Instant::now();
        loop {
            let mut left = self.footprint().await?.beyond(before);
            if left.is_empty() {
                return Ok(());
            }
            if started.elapsed() > BACK_WITHIN {
                left.truncate(SAID_MAX);
                bail!("this is left after {BACK_WITHIN:?}:\n{}", left.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}

/// Equal lines are numbered, so that none goes unseen.
#[derive(Default)]
struct Lines(BTreeSet<String>);

impl Lines {
    fn add(&mut self, line: String) {
        let mut numbered = line.clone();
        let mut number = 1;
        while !self.0.insert(numbered) {
            number += 1;
            numbered = format!("{line} ({number})");
        }
    }
}

/// Everything that libvirt keeps by name.
fn machines(libvirtd: &Libvirtd, lines: &mut Lines) -> anyhow::Result<()> {
    let lists = [
        ("domain", &["list", "--all", "--name"][..]),
        ("running domain", &["list", "--name"]),
        ("network", &["net-list", "--all", "--name"]),
        ("pool", &["pool-list", "--all", "--name"]),
        ("secret", &["secret-list"]),
    ];
    for (what, list) in lists {
        for name in libvirtd.virsh_ok(list)?.lines().map(str::trim).filter(|name| !name.is_empty()) {
            lines.add(format!("libvirt's {what} {name}"));
        }
    }
    Ok(())
}

/// The database of a `better-compute dev` that keeps its data in `dir`, as its owner.
pub async fn database_of_dev(dir: &Path) -> anyhow::Result<Store> {
    let pg = dir.join("pg");
    let password = std::fs::read_to_string(pg.join("password"))?;
    let socket = pg.join("run").display().to_string().replace('%', "%25").replace('/', "%2F");
    let url = store::Secret::new(format!("postgres://bc:{}@{socket}/postgres", password.trim()));
    Ok(Store::open(StoreConfig { pool_size: 1, ..StoreConfig::new(url) }).await?)
}
