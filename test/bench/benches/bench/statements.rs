//! What a PostgreSQL did by statement, as pg_stat_statements counts it.

use store::embedded::{Embedded, EmbeddedConfig};
use store::{Sql, Store, sql};

const LIBRARY: Sql = sql("bench_library", "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
/// Those that functions and triggers run are counted by themselves, and in what ran them. Known once the library is there.
const NESTED: Sql = sql("bench_nested", "ALTER SYSTEM SET pg_stat_statements.track = 'all'");
const PLANNING: Sql = sql("bench_planning", "ALTER SYSTEM SET pg_stat_statements.track_planning = on");
const RELOAD: Sql = sql("bench_reload", "SELECT pg_reload_conf()");
const EXTENSION: Sql = sql("bench_extension", "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
const STATEMENTS: Sql = sql(
    "bench_statements",
    "SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 100) AS text, bool_and(toplevel) AS outer, sum(calls)::bigint AS calls,
       sum(total_exec_time + total_plan_time)::float8 AS ms
     FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
     WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_stat_wal%'
     GROUP BY 1 ORDER BY 3 DESC, 1",
);

const ANALYZE: Sql = sql("bench_analyze", "ANALYZE");

/// What the server does by itself within a minute: a plan made for a table that was empty is not what is measured.
pub async fn analyze(store: &Store) -> anyhow::Result<()> {
    Ok(store.execute(&ANALYZE, &[]).await.map(drop)?)
}

/// One statement as the server counted it; those that differ in no more than their values are one.
#[derive(Debug, Clone)]
pub struct Statement {
    pub text: String,
    /// Asked for by a client, and not by a function or a trigger.
    pub outer: bool,
    pub calls: i64,
    pub ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    Outer,
    Nested,
}

/// A server that counts from its start on.
pub fn start(config: &EmbeddedConfig, counts: Counts) -> anyhow::Result<Embedded> {
    let runtime = crate::runtime()?;
    let first = Embedded::start_blocking(config)?;
    runtime.block_on(run(&first, &[LIBRARY]))?;
    drop(first);
    let embedded = Embedded::start_blocking(config)?;
    let counting: &[Sql] = match counts {
        Counts::Outer => &[EXTENSION],
        Counts::Nested => &[EXTENSION, NESTED, PLANNING, RELOAD],
    };
    runtime.block_on(run(&embedded, counting))?;
    Ok(embedded)
}

async fn run(server: &Embedded, statements: &[Sql]) -> anyhow::Result<()> {
    let store = Store::open(server.store_config(Embedded::DATABASE)).await?;
    for statement in statements {
        store.execute(statement, &[]).await?;
    }
    store.close();
    Ok(())
}

pub async fn read(store: &Store) -> anyhow::Result<Vec<Statement>> {
    let rows = store.read(&STATEMENTS, &[]).await?;
    let one = |row: &store::Row| Statement {
        text: row.get("text"),
        outer: row.get("outer"),
        calls: row.get("calls"),
        ms: row.get("ms"),
    };
    Ok(rows.iter().map(one).collect())
}

/// What was run since, the most often first.
pub fn since(now: Vec<Statement>, before: &[Statement]) -> Vec<Statement> {
    let mut all: Vec<Statement> = now
        .into_iter()
        .map(|mut one| {
            if let Some(earlier) = before.iter().find(|earlier| earlier.text == one.text) {
                one.calls -= earlier.calls;
                one.ms -= earlier.ms;
            }
            one
        })
        .filter(|one| one.calls > 0)
        .collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.calls));
    all
}
