//! Faults, as they happen to what there is, and how they end.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::DeploymentId;
use store::{Sql, sql};

use super::{BACKUP_EVERY, Run};
use crate::fleet::chaos::{Fault, Planned};
use crate::fleet::event::{Event, ToNode};
use crate::fleet::exec::ProcessId;

/// Faults that are told with a broken invariant.
const RECENT: usize = 25;
const SETTLE_TRIES: u32 = 2_000;

/// Sessions of dead processes that the server has not ended yet.
const UNSETTLED: Sql = sql(
    "sim_unsettled",
    "SELECT count(*) AS count FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'",
);
const CUT: Sql = sql(
    "sim_cut",
    "SELECT count(pg_terminate_backend(pid)) AS count FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
);
const DEPLOYMENT: Sql = sql("sim_deployment", "SELECT deployment_id, epoch, observe_only FROM deployment");
const OTHERS: Sql = sql(
    "sim_others",
    "SELECT count(*) AS count FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
);

impl Run<'_> {
    pub(super) async fn fault(&mut self, planned: Planned) -> anyhow::Result<()> {
        let restore = planned.fault == Fault::DatabaseRestore;
        if self.quiet || (restore && (!self.server.has_backup() || self.restoring > 0)) {
            return Ok(());
        }
        self.checker.disturbed();
        *self.faults.entry(planned.fault.name()).or_default() += 1;
        if self.recent.len() >= RECENT {
            self.recent.remove(0);
        }
        self.recent.push(planned.to_string());
        let core = self.core.clone();
        if planned.fault.is_of_database() {
            core.outside("(fault)", self.put_in(&planned.fault)).await?;
        } else {
            self.put_in(&planned.fault).await?;
        }
        self.core.post(planned.lasts, Event::FaultEnds(planned.fault));
        Ok(())
    }

    async fn put_in(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::NodeCrash(node) => {
                self.kept[node] += 1;
                self.nodes[node].crash();
            }
            Fault::NodeUpgrade(node) => {
                self.kept[node] += 1;
                self.nodes[node].upgrade();
            }
            Fault::NodePower(node) => {
                self.kept[node] += 1;
                self.nodes[node].power_off();
            }
            Fault::NodeJournalLost(node) => {
                self.kept[node] += 1;
                self.nodes[node].lose_journal();
            }
            Fault::NodePartition(node) => {
                self.nodes[node].partitioned = true;
                if let Some(line) = self.nodes[node].line() {
                    line.cut();
                }
            }
            Fault::NodeSlow(node) => self.set_slow(node, true),
            Fault::DeclaredDead(node) => self.declare_dead(node),
            Fault::HypervisorDown(node) => self.nodes[node].set_hypervisor_down(true),
            Fault::HypervisorCut(node, after) => self.nodes[node].cut_short(Some(after)),
            Fault::NodeClock(node, off_ms) => self.nodes[node].clock.set_skew(off_ms * 1000),
            Fault::GatewayKill(gateway) => self.core.kill(self.gateways[gateway].process),
            Fault::GatewayUpgrade(gateway) => {
                if let Some(served) = self.gateways[gateway].served() {
                    served.driven.drain();
                }
            }
            Fault::ControlKill(control) | Fault::ControlUpgrade(control) => {
                self.core.kill(self.controls[control].process);
            }
            Fault::GatewayPause(gateway) => self.executor.pause(self.gateways[gateway].process),
            Fault::ControlPause(control) => self.executor.pause(self.controls[control].process),
            Fault::ControlTrap(control, trap, passed) => self.controls[control].schedule.arm(trap, passed),
            Fault::GatewayTrap(gateway, trap, passed) => self.gateways[gateway].schedule.arm(trap, passed),
            Fault::DatabaseBackup => {
                self.server.back_up().await?;
                self.noticed().await;
            }
            Fault::DatabaseDown => self.cut_database().await?,
            Fault::DatabasePower => {
                self.plant.database.down.store(true, Ordering::Relaxed);
                self.server.power_cut().await?;
                self.noticed().await;
            }
            Fault::DatabaseRestore => {
                self.restoring += 1;
                self.server.restore().await?;
                self.noticed().await;
                self.checker.database_restored();
                self.clients.forget();
            }
            Fault::SitePower(half) => {
                for node in (half..self.nodes.len()).step_by(2) {
                    self.kept[node] += 1;
                    self.nodes[node].power_off();
                }
            }
        }
        Ok(())
    }

    pub(super) async fn fault_ends(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::NodeCrash(node)
            | Fault::NodePower(node)
            | Fault::NodeUpgrade(node)
            | Fault::NodeJournalLost(node) => {
                self.let_start(node, Duration::ZERO);
            }
            Fault::SitePower(half) => {
                for node in (half..self.nodes.len()).step_by(2) {
                    self.let_start(node, self.core.up_to(Duration::from_secs(20)));
                }
            }
            Fault::NodePartition(node) => self.nodes[node].partitioned = false,
            Fault::NodeSlow(node) => self.set_slow(node, false),
            Fault::HypervisorDown(node) => self.nodes[node].set_hypervisor_down(false),
            Fault::HypervisorCut(node, _) => self.nodes[node].cut_short(None),
            Fault::NodeClock(node, _) => self.nodes[node].clock.set_skew(0),
            Fault::GatewayPause(gateway) => self.executor.resume(self.gateways[gateway].process),
            Fault::ControlPause(control) => self.executor.resume(self.controls[control].process),
            Fault::DatabaseDown | Fault::DatabasePower => {
                self.plant.database.down.store(false, Ordering::Relaxed);
            }
            Fault::DatabaseRestore => self.confirm_restore().await?,
            // Who was killed is started by whoever saw it die.
            Fault::GatewayUpgrade(gateway) => self.core.kill(self.gateways[gateway].process),
            Fault::GatewayKill(_) | Fault::ControlKill(_) | Fault::ControlUpgrade(_) => {}
            Fault::ControlTrap(..)
            | Fault::GatewayTrap(..)
            | Fault::DatabaseBackup
            | Fault::DeclaredDead(_) => {}
        }
        Ok(())
    }

    /// The clients' side of the database's connections learns of their end from its sockets.
    async fn noticed(&self) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    pub(super) async fn back_up(&mut self) -> anyhow::Result<()> {
        if !self.quiet {
            self.core.post(BACKUP_EVERY, Event::Backup);
            if !self.database_is_down() && self.restoring == 0 {
                self.core.outside("(backup)", self.server.back_up()).await?;
                self.core.outside("(backup)", self.noticed()).await;
            }
        }
        Ok(())
    }

    /// An operator looks, and says that this database is the right one. Nobody does before it was found out.
    async fn confirm_restore(&mut self) -> anyhow::Result<()> {
        let row = self.core.outside("(look)", self.plant.store.read_one(&DEPLOYMENT, &[])).await?;
        let serving = self.controls.iter().find_map(|one| Some((one.process, one.pipeline()?)));
        if row.get::<_, bool>("observe_only")
            && let Some((process, pipeline)) = serving
        {
            let deployment_id = DeploymentId::from_uuid(row.get("deployment_id"));
            let epoch: i64 = row.get("epoch");
            self.clients.confirm_restore(&self.core, process, &pipeline, deployment_id, epoch);
            self.restoring = 0;
        } else if self.restoring > 0 {
            let again = Event::FaultEnds(Fault::DatabaseRestore);
            self.core.post(Duration::from_secs(20), again);
        }
        Ok(())
    }

    /// From now on what runs there may run elsewhere too, until it has heard that it is not to.
    fn declare_dead(&mut self, node: usize) {
        self.nodes[node].declared_dead = true;
        if let Some((process, pipeline)) = self.serving() {
            self.clients.declare_dead(&self.core, process, &pipeline, &self.nodes[node].hostname);
        }
    }

    fn let_start(&mut self, node: usize, after: Duration) {
        self.kept[node] = self.kept[node].saturating_sub(1);
        let life = self.nodes[node].life;
        self.core.post(after, Event::NodeStarts { node, life });
    }

    fn set_slow(&mut self, node: usize, slow: bool) {
        self.nodes[node].slow = slow;
        if let Some(line) = self.nodes[node].line() {
            line.set_slow(slow);
        }
    }

    /// Processes died, or connections: what they held is let go, and they start again after a while.
    pub(super) async fn buried(&mut self, killed: BTreeSet<ProcessId>) -> anyhow::Result<()> {
        self.core.outside("(burial)", self.settle_database()).await?;
        for gateway in self.gateways.iter_mut().filter(|gateway| killed.contains(&gateway.process)) {
            gateway.up = false;
            *gateway.serving.lock().expect("no holder of this lock panics") = None;
            // Its machine closes what it held.
            for line in std::mem::take(&mut gateway.lines) {
                line.answer(ToNode::Ended { why: "connection reset".to_owned(), pushback: None });
                line.cut();
            }
            let after = self.core.between(Duration::from_secs(1), Duration::from_secs(40));
            self.core.post(after, Event::GatewayStarts { gateway: gateway.index });
        }
        for control in self.controls.iter_mut().filter(|control| killed.contains(&control.process)) {
            control.up = false;
            *control.pipeline.lock().expect("no holder of this lock panics") = None;
            let after = self.core.between(Duration::from_secs(1), Duration::from_secs(40));
            self.core.post(after, Event::ControlStarts { control: control.index });
        }
        Ok(())
    }

    /// Waits until the server has rolled back what was cut off: what comes next must not depend on how fast it is.
    async fn settle_database(&self) -> anyhow::Result<()> {
        for _ in 0..SETTLE_TRIES {
            let left: i64 = self.plant.store.read_one(&UNSETTLED, &[]).await?.get("count");
            if left == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::bail!("the database does not end the sessions of a process that died")
    }

    async fn cut_database(&mut self) -> anyhow::Result<()> {
        self.plant.database.down.store(true, Ordering::Relaxed);
        self.plant.store.read(&CUT, &[]).await?;
        for _ in 0..SETTLE_TRIES {
            let left: i64 = self.plant.store.read_one(&OTHERS, &[]).await?.get("count");
            if left == 0 {
                self.noticed().await;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::bail!("the database does not end its sessions")
    }

    /// Ends every fault, and opens what clients closed.
    pub(super) async fn heal(&mut self) -> anyhow::Result<()> {
        self.plant.database.down.store(false, Ordering::Relaxed);
        for gateway in 0..self.gateways.len() {
            self.executor.resume(self.gateways[gateway].process);
            self.core.post(Duration::ZERO, Event::GatewayStarts { gateway });
        }
        for control in 0..self.controls.len() {
            self.executor.resume(self.controls[control].process);
            self.core.post(Duration::ZERO, Event::ControlStarts { control });
        }
        for node in 0..self.nodes.len() {
            self.kept[node] = 0;
            self.nodes[node].partitioned = false;
            self.nodes[node].clock.set_skew(0);
            self.nodes[node].set_hypervisor_down(false);
            self.nodes[node].cut_short(None);
            self.set_slow(node, false);
            self.let_start(node, Duration::ZERO);
        }
        self.until(self.core.elapsed() + Duration::from_secs(10)).await?;
        let serving = self.controls.iter().find_map(|one| Some((one.process, one.pipeline()?)));
        if let Some((process, pipeline)) = serving {
            self.clients.settle(&self.core, process, &pipeline);
        }
        Ok(())
    }
}
