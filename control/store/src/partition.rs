//! History by UTC month: the months ahead are made, the months past their keeping are dropped.

use std::time::Duration;

use crate::lease::millis;
use crate::{Op, Sql, Store, StoreError, sql};

const OP: Op = Op::new("partition_pass");
const ENSURE: Sql = sql(
    "partition_ensure",
    "SELECT coalesce(sum(partition_ensure($1, date_trunc('month', compute_now()) + month * interval '1 month')::int), 0) AS made
     FROM generate_series(0, 1) AS month",
);
const DROP: Sql = sql(
    "partition_drop",
    "SELECT partition_drop_before($1, compute_now() - $2::bigint * interval '1 millisecond') AS dropped",
);

pub(crate) const STATEMENTS: &[Sql] = &[ENSURE, DROP];

/// A table partitioned by month on a column of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitioned {
    pub table: &'static str,
    /// A month goes when all of it is older than this.
    pub keep: Duration,
}

const DAY: Duration = Duration::from_secs(86_400);

/// Events and audit with the retention that documentation promises. Modules append their own tables.
pub const DEFAULTS: [Partitioned; 2] = [
    Partitioned { table: "events", keep: DAY.saturating_mul(90) },
    Partitioned { table: "audit", keep: DAY.saturating_mul(400) },
];

/// What a pass changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed {
    pub made: i64,
    pub dropped: i32,
}

/// Makes this month's and next month's partition of each table and drops what is past its keeping. Any number of
/// processes may run it at once; run it at start and daily.
pub async fn pass(store: &Store, tables: &[Partitioned]) -> Result<Changed, StoreError> {
    let mut changed = Changed::default();
    for partitioned in tables {
        let (made, dropped) = store
            .tx(OP, |tx| {
                Box::pin(async move {
                    let made: i64 = tx.query_one(&ENSURE, &[&partitioned.table]).await?.get("made");
                    let keep = millis(partitioned.keep);
                    let dropped: i32 =
                        tx.query_one(&DROP, &[&partitioned.table, &keep]).await?.get("dropped");
                    Ok::<_, StoreError>((made, dropped))
                })
            })
            .await?;
        changed.made += made;
        changed.dropped += dropped;
    }
    Ok(changed)
}
