//! Where the time from a reservation's creation to its activity goes, by what the database wrote down of it.

use store::{Sql, Store, sql};
use uuid::Uuid;

/// Of reservations that were made one after the other on a node, the spec is known of the last alone: its time is overwritten.
const STAGES: Sql = sql(
    "bench_stages",
    "WITH stage AS (
       SELECT r.created_at, r.placed_at, r.active_at, e.received_at, e.observed_at,
         CASE WHEN n.spec_at BETWEEN r.placed_at AND e.observed_at THEN n.spec_at END AS spec_at
       FROM reservations r JOIN allocations a USING (reservation_id) JOIN nodes n ON n.node_id = a.node_id
       CROSS JOIN LATERAL (
         SELECT x.received_at, x.observed_at FROM node_events x
         WHERE x.node_id = a.node_id AND x.received_at > r.placed_at AND x.received_at <= r.active_at
         ORDER BY x.received_at DESC LIMIT 1) e
       WHERE r.reservation_id = ANY($1) AND r.active_at IS NOT NULL
     ), took AS (
       SELECT t.place, t.name, extract(epoch FROM t.took)::float8 * 1000 AS ms FROM stage s
       CROSS JOIN LATERAL (VALUES
         (1, 'created to placed', s.placed_at - s.created_at),
         (2, 'placed to its spec signed', s.spec_at - s.placed_at),
         (3, 'placed to bound by its node', s.observed_at - s.placed_at),
         (4, 'bound to stored', s.received_at - s.observed_at),
         (5, 'stored to active', s.active_at - s.received_at)) AS t (place, name, took)
       WHERE t.took IS NOT NULL
     )
     SELECT name, count(*) AS count, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) AS p99
     FROM took GROUP BY place, name ORDER BY place",
);

pub async fn say(store: &Store, reservations: &[Uuid]) -> anyhow::Result<()> {
    for row in store.read(&STAGES, &[&reservations]).await? {
        let (name, count): (&str, i64) = (row.get("name"), row.get("count"));
        let (p50, p99): (f64, f64) = (row.get("p50"), row.get("p99"));
        println!("  {name:<28} p50 {p50:>6.1} ms   p99 {p99:>6.1} ms   of {count}");
    }
    Ok(())
}
