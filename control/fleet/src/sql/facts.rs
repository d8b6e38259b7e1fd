//! What nodes offer, and whether it is news.

use store::{Sql, sql};

pub const NODE_FACTS: Sql = sql(
    "node_facts",
    "SELECT n.node_id, n.state, n.pool_id, p.tenant_id, coalesce(s.conditions, '[]') AS conditions
     FROM nodes n LEFT JOIN pools p USING (pool_id) LEFT JOIN node_status s USING (node_id)
     WHERE n.node_id = $1",
);
pub const NODE_INVENTORY: Sql =
    sql("node_inventory", "SELECT section, content FROM node_inventory WHERE node_id = $1 ORDER BY section");

macro_rules! facts {
    ($columns:literal, $rest:literal) => {
        concat!(
            "SELECT f.node_id, ",
            $columns,
            " FROM (
       SELECT n.node_id, n.quarantined_at, n.state, md5(concat_ws('|', n.pool_id, p.tenant_id, p.version, s.conditions, s.capabilities,
         (SELECT string_agg(i.section || ':' || i.hash, ',' ORDER BY i.section) FROM node_inventory i
          WHERE i.node_id = n.node_id))) AS digest
       FROM nodes n LEFT JOIN pools p USING (pool_id) LEFT JOIN node_status s USING (node_id)
       WHERE n.node_id = ANY(ARRAY(SELECT unnest($1::uuid[])))) f
     LEFT JOIN node_facts_told t USING (node_id) ",
            $rest,
            " ORDER BY f.node_id"
        )
    };
}

/// Of these nodes, whether their facts are not what was last told, or are to be told again; and whether more can come of them.
pub const FACTS_NEWS: Sql = sql(
    "facts_news",
    facts!(
        "f.digest, t.digest IS DISTINCT FROM f.digest OR t.again_at < compute_now() AS news,
       f.state NOT IN ('revoked', 'removed') AS there",
        ""
    ),
);
/// What there is to look at of these nodes, beside their events: whether one claims to be ahead, has news in its facts, or has
/// commands that have ended.
pub const NODES_LOOK: Sql = sql(
    "nodes_look",
    facts!(
        "t.digest IS DISTINCT FROM f.digest OR t.again_at < compute_now() AS news,
       f.quarantined_at IS NOT NULL OR EXISTS (SELECT 1 FROM restore_claims c WHERE c.node_id = f.node_id) AS in_doubt,
       EXISTS (SELECT 1 FROM commands c
         WHERE c.node_id = f.node_id AND c.settled_at IS NOT NULL AND c.handled_at IS NULL) AS settled",
        ""
    ),
);
pub const FACTS_TOLD: Sql = sql(
    "facts_told",
    "INSERT INTO node_facts_told (node_id, digest, told_at, again_at)
     SELECT node_id, digest, compute_now(), compute_now() + lasts * interval '1 second'
     FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS w (node_id, digest, lasts)
     ON CONFLICT (node_id) DO UPDATE SET digest = excluded.digest, told_at = excluded.told_at, again_at = excluded.again_at",
);
