//! Leases taken, kept, lost and given back, and writes under them, while the clock jumps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kit::{Clock, Rng};
use sim::invariants::{Invariant, Violation};
use store::lease::{self, Lease};
use store::{Sql, Store, StoreConfig, StoreError, sql};

use super::{Outcome, Run, WORKERS, at_once, pause, sound};
use crate::clock::HandClock;
use crate::cloud::{OP, run_all};

const NAMES: [&str; 2] = ["pool:a", "pool:b"];
const TTL: Duration = Duration::from_secs(10);
/// A lease that changed hands fewer times than this says nothing.
const EPOCHS_MIN: i64 = 5;

/// What was written under a lease: the place in time is drawn after the guard, under the guard's lock.
const WRITE: Sql = sql(
    "test_owned_write",
    "INSERT INTO owned (at, name, holder, epoch) VALUES (nextval('owned_at'), $1, $2, $3)",
);
/// Whether a lease as it was had has run out, and stays as it is until the transaction ends.
const IS_OVER: Sql = sql(
    "test_lease_over",
    "SELECT expires_at <= compute_now() AS over FROM leases WHERE name = $1 AND holder = $2 AND epoch = $3 FOR UPDATE",
);
const WRITTEN: Sql = sql("test_owned", "SELECT at, name, holder, epoch FROM owned ORDER BY at");

struct Holder {
    store: Store,
    name: String,
    leases: BTreeMap<&'static str, Lease>,
    /// Leases that were kept although they had run out.
    revived: Vec<String>,
}

impl Holder {
    async fn operate(&mut self, clock: &HandClock, dice: &dyn Rng) {
        let name = NAMES[usize::try_from(dice.below(2)).expect("two")];
        match dice.below(16) {
            0..5 => {
                // Whoever takes a lease over writes under it at once.
                self.acquire(name).await;
                self.write(name, dice).await;
            }
            5..7 => self.renew(name).await,
            7 => self.release(name).await,
            8 if dice.below(3) == 0 => clock.pass(TTL.as_secs() + 1),
            8 => clock.pass(dice.below(4)),
            _ => self.write(name, dice).await,
        }
    }

    async fn acquire(&mut self, name: &'static str) {
        let holder = self.name.as_str();
        let lease = self
            .store
            .tx(OP, |tx| Box::pin(async move { lease::acquire(tx, name, holder, TTL).await }))
            .await;
        if let Some(lease) = lease.map_err(|err: StoreError| err).unwrap() {
            // One that was lost is kept beside: its holder may not have noticed.
            self.leases.insert(name, lease);
        }
    }

    async fn renew(&mut self, name: &'static str) {
        let Some(lease) = self.leases.get(name).cloned() else { return };
        let lease = &lease;
        let renewed = self.store.tx(OP, |tx| {
            Box::pin(async move {
                let key: [&(dyn store::Param + Sync); 3] = [&lease.name, &lease.holder, &lease.epoch];
                let over = tx.query_opt(&IS_OVER, &key).await?.is_some_and(|row| row.get("over"));
                let mut lease = lease.clone();
                Ok(lease::renew(tx, &mut lease, TTL).await? && over)
            })
        });
        if renewed.await.map_err(|err: StoreError| err).unwrap() {
            self.revived.push(format!("{name} of {} had run out and was renewed", self.name));
        }
    }

    async fn release(&mut self, name: &'static str) {
        let Some(lease) = self.leases.get(name) else { return };
        self.store
            .tx(OP, |tx| Box::pin(async move { lease::release(tx, lease).await }))
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
    }

    /// Guarded, and slow between the guard and the write.
    async fn write(&mut self, name: &'static str, dice: &dyn Rng) {
        let Some(lease) = self.leases.get(name) else { return };
        self.store
            .tx(OP, |tx| {
                Box::pin(async move {
                    if !lease::guard(tx, lease).await? {
                        return Ok(());
                    }
                    // Long enough for somebody to take over, write and commit, if nothing keeps him.
                    if dice.below(5) == 0 {
                        tokio::time::sleep(Duration::from_millis(dice.below(40))).await;
                    }
                    tx.execute(&WRITE, &[&lease.name, &lease.holder, &lease.epoch]).await?;
                    pause(dice).await;
                    Ok(())
                })
            })
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
    }
}

/// Writes of an epoch come after all those of the epochs before it, and are one holder's.
async fn broken(store: &Store) -> Vec<Violation> {
    let mut newest: BTreeMap<String, (i64, String)> = BTreeMap::new();
    let mut found = Vec::new();
    for row in store.read(&WRITTEN, &[]).await.unwrap() {
        let (at, name, holder, epoch): (i64, String, String, i64) =
            (row.get("at"), row.get("name"), row.get("holder"), row.get("epoch"));
        let (before, owner) = newest.entry(name.clone()).or_insert((epoch, holder.clone()));
        if epoch < *before || (epoch == *before && holder != *owner) {
            let what = format!("write {at} of {name}: {holder} at epoch {epoch} after {owner} at {before}");
            found.push(Violation::new(Invariant::OwnersAreFenced, what));
        }
        if epoch > *before {
            (*before, *owner) = (epoch, holder);
        }
    }
    found
}

pub async fn scenario(run: Run) -> Outcome {
    let db = testkit::db().await;
    run_all(
        &db.store,
        "CREATE SEQUENCE owned_at;
         CREATE TABLE owned (at bigint PRIMARY KEY, name text NOT NULL, holder text NOT NULL, epoch bigint NOT NULL)",
    )
    .await;
    let clock = Arc::new(HandClock::new());
    let mut holders = Vec::new();
    for at in 0..WORKERS {
        let told = clock.clone();
        let virtual_clock: store::VirtualClock = Arc::new(move || told.now());
        let config = StoreConfig { virtual_clock: Some(virtual_clock), pool_size: 1, ..db.config() };
        holders.push(Holder {
            store: db.open(config).await,
            name: format!("worker-{at}"),
            leases: BTreeMap::new(),
            revived: Vec::new(),
        });
    }
    let (mut round, mut tried) = (0, 0);
    while run.goes_on(round, tried, EPOCHS_MIN) {
        let mut tasks = Vec::new();
        for (at, mut holder) in holders.drain(..).enumerate() {
            let (clock, dice) = (clock.clone(), run.dice(round, at));
            tasks.push(async move {
                for _ in 0..40 {
                    holder.operate(&clock, &*dice).await;
                    pause(&*dice).await;
                }
                holder
            });
        }
        holders = at_once(tasks).await;
        let mut found = broken(&db.store).await;
        let revived = holders.iter_mut().flat_map(|holder| holder.revived.drain(..));
        found.extend(revived.map(|what| Violation::new(Invariant::OwnersAreFenced, what)));
        if !found.is_empty() {
            return Err(found);
        }
        tried = db.scalar_i64("SELECT coalesce(max(epoch), 0) FROM owned").await;
        round += 1;
    }
    assert!(tried >= EPOCHS_MIN, "the leases changed hands {tried} times only: nothing was tried");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_lost_a_lease_writes_nothing_under_it() {
    sound(scenario(Run::from_env(6)).await);
}
