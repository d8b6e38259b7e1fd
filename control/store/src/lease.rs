//! Leases: who owns a name, until when, and since which change of owner.
//!
//! Durable: the row, so that the epoch never falls; a released lease stays as a row that has expired.
//!
//! Owning a name is worth nothing without the fence. A write under a lease either runs in a transaction that called
//! [`guard`], or carries the guard itself:
//!
//! ```ignore
//! const PLACE: Sql = sql("place", concat!("UPDATE … WHERE … AND ", lease_guard!(4, 5, 6)));
//! tx.execute(&PLACE, &[…, &lease.name, &lease.holder, &lease.epoch]).await?; // 0 rows for a stale holder
//! ```
//!
//! Both lock the lease's row against a change of holder until the transaction ends, so the fence holds also for a
//! statement that had to wait in between.

use std::time::Duration;

use kit::mutant;

use crate::{RowExt, Sql, Store, StoreError, Tx, sql};
use model::Timestamp;

/// A condition that holds while the lease is held: `lease_guard!(name, holder, epoch)` with parameter numbers.
#[macro_export]
macro_rules! lease_guard {
    ($name:literal, $holder:literal, $epoch:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM leases WHERE name = $",
            $name,
            " AND holder = $",
            $holder,
            " AND epoch = $",
            $epoch,
            " AND expires_at > compute_now() FOR SHARE)"
        )
    };
}

/// A lease as it was had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    /// Unique per process start: a restarted process is another holder.
    pub holder: String,
    /// One more at every change of holder, from 1.
    pub epoch: i64,
    pub expires_at: Timestamp,
}

const ACQUIRE: Sql = sql(
    "lease_acquire",
    "INSERT INTO leases AS l (name, holder, epoch, acquired_at, expires_at)
     VALUES ($1, $2, 1, compute_now(), compute_now() + $3::bigint * interval '1 millisecond')
     ON CONFLICT (name) DO UPDATE SET
       epoch = l.epoch + CASE WHEN l.holder = excluded.holder THEN 0 ELSE 1 END,
       acquired_at = CASE WHEN l.holder = excluded.holder THEN l.acquired_at ELSE excluded.acquired_at END,
       holder = excluded.holder, expires_at = excluded.expires_at
     WHERE l.holder = excluded.holder OR l.expires_at <= compute_now()
     RETURNING epoch, expires_at",
);
const TAKEN: Sql = sql(
    "lease_taken",
    "SELECT ceil(extract(epoch FROM expires_at - compute_now()) * 1000)::bigint AS left_ms FROM leases
     WHERE name = $1 AND holder <> $2 AND expires_at > compute_now()",
);
const RENEW: Sql = sql(
    "lease_renew",
    "UPDATE leases SET expires_at = compute_now() + $4::bigint * interval '1 millisecond'
     WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > compute_now() RETURNING expires_at",
);
/// What a mutant puts in its place.
const RENEW_LAPSED: Sql = sql(
    "lease_renew_lapsed",
    "UPDATE leases SET expires_at = compute_now() + $4::bigint * interval '1 millisecond'
     WHERE name = $1 AND holder = $2 AND epoch = $3 RETURNING expires_at",
);
const RELEASE: Sql = sql(
    "lease_release",
    "UPDATE leases SET expires_at = compute_now() WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > compute_now()",
);
const GUARD: Sql = sql("lease_guard", concat!("SELECT ", lease_guard!(1, 2, 3), " AS held"));
/// What a mutant puts in its place.
const GUARD_UNLOCKED: Sql = sql(
    "lease_guard_unlocked",
    "SELECT EXISTS (SELECT 1 FROM leases WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > compute_now()) AS held",
);

pub(crate) const STATEMENTS: &[Sql] = &[ACQUIRE, TAKEN, RENEW, RENEW_LAPSED, RELEASE, GUARD, GUARD_UNLOCKED];

/// How long another than `holder` still has the lease, unless it is renewed; none when it can be had. It writes nothing,
/// where [`acquire`] writes even when it is refused: for those who ask again and again.
pub async fn taken(store: &Store, name: &str, holder: &str) -> Result<Option<Duration>, StoreError> {
    let row = store.read_opt(&TAKEN, &[&name, &holder]).await?;
    Ok(row.map(|row| Duration::from_millis(u64::try_from(row.get::<_, i64>("left_ms")).unwrap_or(0))))
}

/// Takes the lease if it is free, expired or already the holder's; `None` while another has it.
pub async fn acquire(
    tx: &mut Tx<'_>,
    name: &str,
    holder: &str,
    ttl: Duration,
) -> Result<Option<Lease>, StoreError> {
    let row = tx.query_opt(&ACQUIRE, &[&name, &holder, &millis(ttl)]).await?;
    Ok(row.map(|row| Lease {
        name: name.to_owned(),
        holder: holder.to_owned(),
        epoch: row.get("epoch"),
        expires_at: row.ts("expires_at"),
    }))
}

/// Extends the lease from now. False when it had expired or went to another: what was owned under it is not ours.
pub async fn renew(tx: &mut Tx<'_>, lease: &mut Lease, ttl: Duration) -> Result<bool, StoreError> {
    let renew = if mutant::on("store.lapsed-lease-renews") { &RENEW_LAPSED } else { &RENEW };
    let row = tx.query_opt(renew, &[&lease.name, &lease.holder, &lease.epoch, &millis(ttl)]).await?;
    if let Some(row) = &row {
        lease.expires_at = row.ts("expires_at");
    }
    Ok(row.is_some())
}

/// Gives the lease back before its time. False when it was not held any more.
pub async fn release(tx: &mut Tx<'_>, lease: &Lease) -> Result<bool, StoreError> {
    Ok(tx.execute(&RELEASE, &[&lease.name, &lease.holder, &lease.epoch]).await? == 1)
}

/// Whether the lease is held, and if so keeps it from changing hands until this transaction ends.
pub async fn guard(tx: &mut Tx<'_>, lease: &Lease) -> Result<bool, StoreError> {
    if mutant::on("store.lease-guard-always-holds") {
        return Ok(true);
    }
    let guard = if mutant::on("store.lease-guard-takes-no-lock") { &GUARD_UNLOCKED } else { &GUARD };
    Ok(tx.query_one(guard, &[&lease.name, &lease.holder, &lease.epoch]).await?.get("held"))
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
