//! What the database did, by its own counters.

use std::time::Duration;

use store::{Sql, Store, sql};

/// Sessions hand their counters in about once a second, and at their ends.
const SETTLES: Duration = Duration::from_millis(1_500);

const COUNTERS: Sql = sql(
    "bench_counters",
    "SELECT d.tup_inserted + d.tup_updated + d.tup_deleted AS rows, d.xact_commit AS transactions,
       d.tup_fetched AS fetched, d.tup_returned - d.tup_fetched AS scanned,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction,
       w.wal_bytes::bigint AS log_bytes, w.wal_sync AS log_syncs
     FROM pg_stat_database d, pg_stat_wal w WHERE d.datname = current_database()",
);

const TABLES: Sql = sql(
    "bench_tables",
    "SELECT relname::text AS name, n_tup_ins + n_tup_upd + n_tup_del AS written, coalesce(seq_scan, 0) AS scans,
       coalesce(seq_tup_read, 0) AS scanned, coalesce(idx_tup_fetch, 0) AS fetched
     FROM pg_stat_user_tables ORDER BY relname",
);

/// What was done to one table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub name: String,
    pub written: i64,
    pub scans: i64,
    pub scanned: i64,
    pub fetched: i64,
}

pub async fn tables(store: &Store) -> anyhow::Result<Vec<Table>> {
    let rows = store.read(&TABLES, &[]).await?;
    let table = |row: &store::Row| Table {
        name: row.get("name"),
        written: row.get("written"),
        scans: row.get("scans"),
        scanned: row.get("scanned"),
        fetched: row.get("fetched"),
    };
    Ok(rows.iter().map(table).collect())
}

/// The busiest first.
pub fn tables_since(now: Vec<Table>, earlier: &[Table]) -> Vec<Table> {
    let mut all: Vec<Table> = now
        .into_iter()
        .map(|mut table| {
            if let Some(before) = earlier.iter().find(|before| before.name == table.name) {
                table.written -= before.written;
                table.scans -= before.scans;
                table.scanned -= before.scanned;
                table.fetched -= before.fetched;
            }
            table
        })
        .collect();
    all.sort_by_key(|table| std::cmp::Reverse(table.written * 10 + table.scanned + table.fetched));
    all
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Inserted, updated or deleted.
    pub rows: u64,
    /// That committed, those that only read included.
    pub transactions: u64,
    /// Transaction ids given out, which only writers get: one each, and one for each savepoint under which they wrote.
    pub writing_transactions: u64,
    pub rows_fetched: u64,
    pub rows_scanned: u64,
    pub log_bytes: u64,
    pub log_syncs: u64,
}

impl Counters {
    pub async fn read(store: &Store) -> anyhow::Result<Self> {
        tokio::time::sleep(SETTLES).await;
        let row = store.read_one(&COUNTERS, &[]).await?;
        let count = |column: &str| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
        Ok(Self {
            rows: count("rows"),
            transactions: count("transactions"),
            writing_transactions: count("next_transaction"),
            rows_fetched: count("fetched"),
            rows_scanned: count("scanned"),
            log_bytes: count("log_bytes"),
            log_syncs: count("log_syncs"),
        })
    }

    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            rows: self.rows.saturating_sub(earlier.rows),
            transactions: self.transactions.saturating_sub(earlier.transactions),
            writing_transactions: self.writing_transactions.saturating_sub(earlier.writing_transactions),
            rows_fetched: self.rows_fetched.saturating_sub(earlier.rows_fetched),
            rows_scanned: self.rows_scanned.saturating_sub(earlier.rows_scanned),
            log_bytes: self.log_bytes.saturating_sub(earlier.log_bytes),
            log_syncs: self.log_syncs.saturating_sub(earlier.log_syncs),
        }
    }
}
