//! What is expected of a run besides, looked at every second and at its end.

use store::{Sql, sql};

use super::{Run, WATCH_EVERY};
use crate::fleet::event::Event;
use crate::fleet::outcome::Outcome;

const SERVED: Sql = sql(
    "sim_served",
    "SELECT count(*) FILTER (WHERE n.state = 'ready') AS ready, count(g.gateway_id) AS served
     FROM nodes n LEFT JOIN node_sessions s ON s.node_id = n.node_id AND s.closed_at IS NULL
       LEFT JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch AND g.expires_at > compute_now()",
);
const DISTURBED: Sql = sql(
    "sim_disturbed",
    "SELECT count(*) AS count FROM events WHERE kind IN ('reservation.replacing', 'reservation.failed')",
);

impl Run<'_> {
    pub(super) async fn watch(&mut self) -> anyhow::Result<()> {
        if self.quiet {
            return Ok(());
        }
        self.core.post(WATCH_EVERY, Event::Watch);
        if self.database_is_down() {
            return Ok(());
        }
        let row = self.core.outside("(watch)", self.plant.store.read_one(&SERVED, &[])).await?;
        let (ready, served): (i64, i64) = (row.get("ready"), row.get("served"));
        let all = i64::try_from(self.nodes.len()).unwrap_or(i64::MAX);
        let elapsed = self.core.elapsed();
        if ready == all && self.shown.ready_after.is_none() {
            self.shown.ready_after = Some(elapsed.saturating_sub(self.begun));
        }
        if served == all {
            self.unserved_since = None;
        } else if self.shown.ready_after.is_some() {
            let since = *self.unserved_since.get_or_insert(elapsed);
            let lasted = elapsed.saturating_sub(since) + WATCH_EVERY;
            self.shown.unserved_longest = self.shown.unserved_longest.max(lasted);
        }
        Ok(())
    }

    pub(super) async fn show(&mut self) -> anyhow::Result<()> {
        self.shown.disturbed = self.plant.store.read_one(&DISTURBED, &[]).await?.get("count");
        self.shown.renewals = self.nodes.iter().map(|node| node.renewals).sum();
        Ok(())
    }

    pub(super) fn judge_expected(&self, outcome: &Outcome) -> anyhow::Result<()> {
        let reservations = outcome.reservations.values().sum();
        let unmet: Vec<String> = self
            .config
            .expects
            .iter()
            .filter_map(|expect| expect.unmet(&outcome.shown, outcome.unreachable, reservations))
            .collect();
        if unmet.is_empty() { Ok(()) } else { Err(self.broken(unmet)) }
    }
}
