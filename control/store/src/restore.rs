//! Finds out when the database was replaced by an older copy of itself.
//!
//! Outside the database, in a folder that no database backup covers, a file keeps the highest marks seen: the
//! deployment's epoch and fencing counter, and the cluster's identifier, timeline and write position. At start and
//! from time to time [`check`] compares. Marks that went back mean a restore: the deployment only observes from then
//! on, until somebody confirms, which raises the epoch above everything that was ever seen.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Op, Sql, Store, StoreError, Tx, sql};

const FILE: &str = "database-marks.json";
const FILE_BYTES_MAX: u64 = 4_096;
const FILE_VERSION: u32 = 1;
const CHECK: Op = Op::new("restore_check");

const MARKS: Sql = sql("restore_marks", "SELECT deployment_id, epoch, fence FROM deployment FOR UPDATE");
/// Not every managed service lets one read the control file; what cannot be read is not compared.
const CLUSTER: Sql = sql(
    "restore_cluster",
    "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
       ('x' || lpad(substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8), 16, '0'))::bit(64)::bigint AS timeline,
       (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint AS lsn",
);
const RAISE_FENCE: Sql = sql("restore_raise_fence", "UPDATE deployment SET fence = fence + 1");
const SUSPECT: Sql = sql(
    "restore_suspect",
    "UPDATE deployment SET observe_only = true, observe_reason = coalesce(observe_reason, $1),
       observe_since = coalesce(observe_since, compute_now()), epoch_floor = greatest(epoch_floor, $2)
     WHERE NOT observe_only OR epoch_floor < $2",
);
const CONFIRM: Sql = sql(
    "restore_confirm",
    "UPDATE deployment SET epoch = greatest(epoch, epoch_floor) + 1, observe_only = false, observe_reason = NULL,
       observe_since = NULL, restored_at = compute_now()
     WHERE observe_only RETURNING epoch",
);

pub(crate) const STATEMENTS: &[Sql] = &[MARKS, CLUSTER, RAISE_FENCE, SUSPECT, CONFIRM];

/// How far a database had come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    pub deployment_id: String,
    pub epoch: i64,
    /// Rises with every check, so that even an idle hour's restore shows.
    pub fence: i64,
    pub cluster: Option<ClusterMarks>,
}

/// Where in its write-ahead log, as PostgreSQL counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterMarks {
    /// Made by initdb; a copy keeps it, a reload into a new cluster does not.
    pub system_identifier: i64,
    /// Rises with every promotion and point-in-time recovery.
    pub timeline: i64,
    pub lsn: i64,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreVerdict {
    /// Nothing was recorded here before.
    FirstSeen,
    Consistent,
    /// The epoch is above the recorded one: a restore was confirmed, and the record starts over.
    Confirmed,
    Suspected {
        why: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("compare the database with its record")]
    Store(#[from] StoreError),
    #[error("keep the database's record")]
    Files(#[from] kit::fs::FsError),
    #[error(
        "read the database's record {path:?}: {why}; look whether the database is the right one, then remove the file"
    )]
    Damaged { path: PathBuf, why: &'static str },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    marks: Marks,
    sha256: String,
}

/// Compares the database with the record in `dir`. When it is suspected, the deployment is set to observe only and
/// the record is kept as it is; otherwise the record moves on.
pub async fn check(store: &Store, dir: &Path) -> Result<RestoreVerdict, RestoreError> {
    let path = dir.join(FILE);
    let recorded = read_record(&path)?;
    let recorded = recorded.as_ref();
    let (verdict, found) = store
        .tx(CHECK, |tx| {
            Box::pin(async move {
                let mut found = read_marks(tx).await?;
                let verdict = judge(recorded, &found);
                match (&verdict, recorded) {
                    (RestoreVerdict::Suspected { why }, Some(recorded)) => {
                        suspect(tx, why, recorded.epoch).await?;
                    }
                    _ => {
                        tx.execute(&RAISE_FENCE, &[]).await?;
                        found.fence += 1;
                    }
                }
                Ok::<_, StoreError>((verdict, found))
            })
        })
        .await?;
    // After the commit: a crash in between leaves the record behind the database, which is harmless.
    if let RestoreVerdict::Suspected { why } = &verdict {
        tracing::error!(
            why,
            "the database may have been restored from a backup, the deployment only observes"
        );
    } else {
        write_record(&path, &found)?;
    }
    Ok(verdict)
}

/// Sets the deployment to observe only. `epoch_seen` is the highest epoch proved by whoever found out; a
/// confirmation goes above it. False when that was known already.
pub async fn suspect(tx: &mut Tx<'_>, why: &str, epoch_seen: i64) -> Result<bool, StoreError> {
    Ok(tx.execute(&SUSPECT, &[&why, &epoch_seen]).await? == 1)
}

/// Somebody has looked and stands by this database: the deployment acts again under a new epoch, which is returned.
/// `None` when nothing was suspected.
pub async fn confirm_restore(tx: &mut Tx<'_>) -> Result<Option<i64>, StoreError> {
    Ok(tx.query_opt(&CONFIRM, &[]).await?.map(|row| row.get("epoch")))
}

/// Whether `found` can have come after `recorded`. Pure.
pub fn judge(recorded: Option<&Marks>, found: &Marks) -> RestoreVerdict {
    let Some(recorded) = recorded else { return RestoreVerdict::FirstSeen };
    let suspected = |why: String| RestoreVerdict::Suspected { why };
    if found.deployment_id != recorded.deployment_id {
        return suspected("it is the database of another deployment".to_owned());
    }
    if found.epoch > recorded.epoch {
        return RestoreVerdict::Confirmed;
    }
    if found.epoch < recorded.epoch {
        return suspected(format!("its epoch is {} and {} was seen", found.epoch, recorded.epoch));
    }
    if found.fence < recorded.fence {
        return suspected(format!("its fencing counter is {} and {} was seen", found.fence, recorded.fence));
    }
    let (Some(now), Some(then)) = (found.cluster, recorded.cluster) else {
        return RestoreVerdict::Consistent;
    };
    if now.system_identifier != then.system_identifier {
        return suspected("it lives in another cluster than before".to_owned());
    }
    if now.timeline < then.timeline {
        return suspected(format!("its timeline is {} and {} was seen", now.timeline, then.timeline));
    }
    // A promoted standby may start a new timeline below a write position that was never ours.
    if now.timeline == then.timeline && now.lsn < then.lsn {
        return suspected("its write-ahead log is behind the position seen".to_owned());
    }
    RestoreVerdict::Consistent
}

async fn read_marks(tx: &mut Tx<'_>) -> Result<Marks, StoreError> {
    let row = tx.query_one(&MARKS, &[]).await?;
    let cluster = tx.savepoint(|tx| Box::pin(async move { tx.query_one(&CLUSTER, &[]).await })).await?;
    let cluster = match cluster {
        Ok(row) => Some(ClusterMarks {
            system_identifier: row.get("system_identifier"),
            timeline: row.get("timeline"),
            lsn: row.get("lsn"),
        }),
        Err(err) if err.retryable() => return Err(err),
        Err(_) => None,
    };
    Ok(Marks {
        deployment_id: row.get::<_, uuid::Uuid>("deployment_id").to_string(),
        epoch: row.get("epoch"),
        fence: row.get("fence"),
        cluster,
    })
}

fn digest(marks: &Marks) -> String {
    hex::encode(Sha256::digest(serde_json::to_vec(marks).expect("numbers and text serialize")))
}

fn read_record(path: &Path) -> Result<Option<Marks>, RestoreError> {
    let Some(bytes) = kit::fs::read_if_present(path, FILE_BYTES_MAX)? else { return Ok(None) };
    let damaged = |why| RestoreError::Damaged { path: path.to_owned(), why };
    let record: Record = serde_json::from_slice(&bytes).map_err(|_| damaged("it does not parse"))?;
    if record.version != FILE_VERSION {
        return Err(damaged("it has a version this program does not know"));
    }
    if record.sha256 != digest(&record.marks) {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(Some(record.marks))
}

fn write_record(path: &Path, marks: &Marks) -> Result<(), RestoreError> {
    if let Some(dir) = path.parent() {
        kit::fs::create_dir(dir, 0o700)?;
    }
    let record = Record { version: FILE_VERSION, marks: marks.clone(), sha256: digest(marks) };
    let bytes = serde_json::to_vec_pretty(&record).expect("numbers and text serialize");
    Ok(kit::fs::write_atomic(path, &bytes, 0o600)?)
}

#[cfg(test)]
mod tests;
