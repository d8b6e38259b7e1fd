//! Whether what must be true is, and what a run came to.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};
use store::{Sql, sql};

use super::{REST_EVERY, REST_WITHIN, Run};
use crate::fleet::node::SimNode;
use crate::fleet::outcome::Outcome;
use crate::invariants::{self, Violation};
use crate::world::{DestroyedView, NodeView, ReleaseView, World};

const COMMANDS: Sql =
    sql("sim_commands", "SELECT state::text AS state, count(*) AS count FROM commands GROUP BY 1 ORDER BY 1");
const RESERVATIONS: Sql = sql(
    "sim_reservations",
    "SELECT state::text AS state, count(*) AS count FROM reservations GROUP BY 1 ORDER BY 1",
);
const INSTANCES: Sql = sql(
    "sim_instances",
    "SELECT state::text AS state, count(*) AS count FROM instances GROUP BY 1 ORDER BY 1",
);
const UNREACHABLE: Sql =
    sql("sim_unreachable", "SELECT count(*) AS count FROM events WHERE kind = 'node.unreachable'");
const EVENTS: Sql = sql(
    "sim_events",
    "SELECT seq, kind, subject, data::text AS data FROM events WHERE seq > $1 ORDER BY seq LIMIT 5000",
);

/// What is asked depends on what was put in.
#[derive(Clone, Copy)]
enum When {
    OfHosts,
    Moving,
    AtRest,
    AtEnd,
}

impl Run<'_> {
    /// Everything that must be true at any moment.
    pub(super) async fn check(&mut self) -> anyhow::Result<()> {
        if self.database_is_down() || self.restoring > 0 {
            return Ok(());
        }
        let found = self.ask(When::Moving).await?;
        self.judge(found)
    }

    /// What can be asked of hosts by one statement.
    pub(super) async fn check_hosts(&mut self) -> anyhow::Result<()> {
        if self.database_is_down() || self.restoring > 0 {
            return Ok(());
        }
        let found = self.ask(When::OfHosts).await?;
        self.judge(found)
    }

    async fn ask(&mut self, when: When) -> anyhow::Result<Vec<Violation>> {
        let nodes: Vec<NodeView> = self.nodes.iter().map(SimNode::view).collect();
        let releases: Vec<ReleaseView> =
            self.nodes.iter().flat_map(|node| node.releases.iter().cloned()).collect();
        let destroyed: Vec<DestroyedView> =
            self.nodes.iter().flat_map(|node| node.destroyed.iter().cloned()).collect();
        let world = World {
            store: &self.plant.store,
            now: self.core.now(),
            nodes: &nodes,
            releases: &releases,
            destroyed: &destroyed,
        };
        let checker = &mut self.checker;
        let found = async move {
            match when {
                When::OfHosts => checker.of_hosts(&world).await,
                When::Moving => checker.every_minute(&world).await,
                When::AtRest => checker.at_rest(&world).await,
                When::AtEnd => checker.at_end(&world).await,
            }
        };
        Ok(self.core.outside("(invariants)", found).await?)
    }

    fn judge(&self, found: Vec<Violation>) -> anyhow::Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        Err(self.broken(found.iter().map(ToString::to_string).collect()))
    }

    /// Nothing is put in any more, everything is undone: the world comes to rest within a bound; and again when every instance
    /// was deleted.
    pub(super) async fn rest(&mut self) -> anyhow::Result<()> {
        self.quiet = true;
        self.tenants.hush();
        self.heal().await?;
        self.come_to_rest(When::AtRest).await?;
        if self.config.instances > 0 {
            self.tenants.end(&self.core);
            self.come_to_rest(When::AtEnd).await?;
        }
        Ok(())
    }

    async fn come_to_rest(&mut self, when: When) -> anyhow::Result<()> {
        let begun = self.core.elapsed();
        loop {
            let next = self.core.elapsed() + REST_EVERY;
            self.until(next).await?;
            self.check().await?;
            let found = self.ask(when).await?;
            let unfinished = self.tenants.unfinished();
            if found.is_empty() && unfinished == 0 {
                return Ok(());
            }
            if self.core.elapsed().saturating_sub(begun) >= REST_WITHIN {
                self.judge(found)?;
                return Err(self.broken(vec![format!("{unfinished} tenants have no answer")]));
            }
            let first = found.first().map(ToString::to_string).unwrap_or_default();
            (self.progress)(format!(
                "  not at rest yet: {first} among {}, and {unfinished} tenants",
                found.len()
            ));
        }
    }

    pub(super) async fn outcome(&mut self) -> anyhow::Result<Outcome> {
        let store = &self.plant.store;
        let (mut digest, mut after, mut events) = (Sha256::new(), 0i64, 0i64);
        loop {
            let rows = store.read(&EVENTS, &[&after]).await?;
            for row in &rows {
                let (kind, subject): (&str, &str) = (row.get("kind"), row.get("subject"));
                digest.update(format!("{kind} {subject} {}\n", row.get::<_, &str>("data")));
                after = row.get("seq");
                events += 1;
            }
            if rows.is_empty() {
                break;
            }
        }
        self.show().await?;
        let store = &self.plant.store;
        let unreachable = store.read_one(&UNREACHABLE, &[]).await?.get("count");
        let tables = invariants::canonical_tables(store).await?;
        Ok(Outcome {
            state: invariants::canonical_state(&tables),
            tables,
            events_digest: digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            events,
            faults: self.faults.clone(),
            commands: self.counts(&COMMANDS).await?,
            reservations: self.counts(&RESERVATIONS).await?,
            instances: self.counts(&INSTANCES).await?,
            answers: self.clients.answers().into_iter().chain(self.tenants.answers()).collect(),
            unreachable,
            shown: self.shown.clone(),
            polls: self.executor.polls,
            transactions: self.core.transactions(),
            virtual_time: self.core.elapsed().saturating_sub(self.begun),
            took: Duration::ZERO,
            bytes_per_node: 0,
        })
    }

    async fn counts(&self, of: &Sql) -> anyhow::Result<BTreeMap<String, i64>> {
        let rows = self.plant.store.read(of, &[]).await?;
        Ok(rows.iter().map(|row| (row.get("state"), row.get("count"))).collect())
    }
}
