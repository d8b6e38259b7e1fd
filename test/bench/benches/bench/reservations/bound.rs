//! What the same PostgreSQL does when all it has to do is to insert as many rows.

use std::time::{Duration, Instant};

use bench::figures::{Run, Sample};
use store::{Sql, Store, StoreConfig, sql};

const TABLE: Sql = sql(
    "bench_table",
    "CREATE TABLE IF NOT EXISTS bench_rows (key uuid PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now(), body text NOT NULL)",
);
const EMPTY: Sql = sql("bench_empty", "TRUNCATE bench_rows");
const INSERT: Sql = sql(
    "bench_insert",
    "INSERT INTO bench_rows (key, body) SELECT gen_random_uuid(), $2 FROM generate_series(1, $1::bigint)",
);

/// A row of ours with its ids and times is about this long.
const ROW_BYTES: usize = 120;

/// The server has a hundred, and the control plane keeps some of them.
const CONNECTIONS_MAX: usize = 64;

/// `rows` for each unit, spread over `transactions`, by as many connections as ours has callers, [`CONNECTIONS_MAX`] at most.
pub async fn run(
    store: &Store,
    connections: usize,
    rows: f64,
    transactions: f64,
    lasts: Duration,
) -> anyhow::Result<Run> {
    let connections = connections.min(CONNECTIONS_MAX);
    // Sessions of its own: an idle one keeps its counters to itself for a while, and these end with the run.
    let store = &Store::open(StoreConfig { pool_size: connections, ..store.config().clone() }).await?;
    store.execute(&TABLE, &[]).await?;
    store.execute(&EMPTY, &[]).await?;
    let rows_each = ((rows / transactions).round() as i64).max(1);
    let transactions = (transactions.round() as u32).max(1);
    let started = Instant::now();
    let inserting = (0..connections).map(|_| insert(store, rows_each, transactions, started, lasts));
    let samples = futures::future::try_join_all(inserting).await?.concat();
    let lasted = started.elapsed();
    store.close();
    let what = match transactions {
        1 => format!("bound: {rows_each} rows in one transaction"),
        many => format!("bound: {many} transactions of {rows_each} rows"),
    };
    Ok(Run::new(what, lasted, samples))
}

async fn insert(
    store: &Store,
    rows: i64,
    transactions: u32,
    started: Instant,
    lasts: Duration,
) -> anyhow::Result<Vec<Sample>> {
    let body = "x".repeat(ROW_BYTES);
    let mut samples = Vec::new();
    while started.elapsed() < lasts {
        let from = Instant::now();
        for _ in 0..transactions {
            store.execute(&INSERT, &[&rows, &body]).await?;
        }
        samples.push(Sample { at: started.elapsed(), took: from.elapsed() });
    }
    Ok(samples)
}
