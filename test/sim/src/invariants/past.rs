//! One look at the rows beside the one before: what only rises, and what never changes once it is written.

use std::collections::HashMap;

use store::{Sql, Store, StoreError, sql};
use uuid::Uuid;

use super::{Invariant, Violation};

/// A row that is written or changed by a transaction that may still be under way now has at least this as its `xmin`: a later
/// look needs no others. No simulation has so many transactions that these numbers begin again.
pub(super) const SNAPSHOT: Sql =
    sql("sim_snapshot", "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin");

/// Numbers that never fall, by what they count and whose they are.
const RISING: Sql = sql(
    "sim_rising",
    "SELECT 'generation' AS series, node_id::text AS key, generation AS value FROM nodes
     UNION ALL SELECT 'observed generation', node_id::text, observed_generation FROM node_status
     UNION ALL SELECT 'session epoch', node_id::text, session_epoch FROM node_sessions
     UNION ALL SELECT 'acknowledged of ' || journal_id, node_id::text, acked_event_seq FROM node_sessions
     UNION ALL SELECT 'gateway epoch', gateway_id::text, epoch FROM gateways
     UNION ALL SELECT 'lease epoch', name, epoch FROM leases
     UNION ALL SELECT 'deployment epoch', 'deployment', epoch FROM deployment
     UNION ALL SELECT 'epoch floor', 'deployment', epoch_floor FROM deployment
     UNION ALL SELECT 'fence', 'deployment', fence FROM deployment
     UNION ALL SELECT 'event number', 'events', seq FROM event_head
     UNION ALL SELECT 'version', 'iam', version FROM iam_version
     UNION ALL SELECT 'books version', node_id::text, version FROM node_capacity
     UNION ALL SELECT 'revision', instance_id::text, revision FROM instances WHERE xmin::text::bigint >= $1
     UNION ALL SELECT 'boot', instance_id::text, boot FROM instances WHERE xmin::text::bigint >= $1
     UNION ALL SELECT 'attempts', command_id::text, attempts FROM commands WHERE xmin::text::bigint >= $1
     UNION ALL SELECT 'trust version', 'bundle', coalesce(max(version), 0) FROM trust_bundles
     ORDER BY 1, 2",
);

/// Digests of what stays as it is, of the rows that were written since. Those of events are kept with what is told.
const FROZEN: Sql = sql(
    "sim_frozen",
    "SELECT 4 AS number, 'settled' AS series, command_id::text AS key,
       md5(concat_ws('|', state, reason, message, boot_id, settled_at, encode(result, 'hex'),
         encode(result_signature, 'hex'), encode(result_key_sha256, 'hex'), result_state))::uuid AS digest
     FROM commands WHERE settled_at IS NOT NULL AND xmin::text::bigint >= $1
     UNION ALL SELECT 15, 'command', command_id::text, md5(concat_ws('|', node_id, kind, lane, encode(body, 'hex'),
         encode(signature, 'hex'), not_before, not_after, min_generation))::uuid FROM commands WHERE xmin::text::bigint >= $1
     UNION ALL SELECT 15, 'spec', format('%s at %s', node_id, generation),
         md5(concat_ws('|', spec_hash, encode(spec_body, 'hex'), encode(spec_signature, 'hex')))::uuid FROM nodes
       WHERE generation > 0 AND xmin::text::bigint >= $1
     UNION ALL SELECT 15, 'trust bundle', version::text, md5(encode(message, 'hex'))::uuid FROM trust_bundles
     UNION ALL SELECT 6, 'ended allocation', allocation_id::text,
         md5(concat_ws('|', reservation_id, node_id, state, atoms, ended_at))::uuid FROM allocations
       WHERE ended_at IS NOT NULL AND xmin::text::bigint >= $1
     UNION ALL SELECT 6, 'ended reservation', reservation_id::text, md5(concat_ws('|', state, failure, ended_at))::uuid
       FROM reservations WHERE state IN ('released', 'expired', 'failed') AND xmin::text::bigint >= $1
     UNION ALL SELECT 6, 'ended instance', instance_id::text, md5(concat_ws('|', state, revision, ended_at))::uuid
       FROM instances WHERE ended_at IS NOT NULL AND xmin::text::bigint >= $1
     UNION ALL SELECT 6, 'ended place', allocation_id::text, md5(concat_ws('|', instance_id, node_id, ended_at))::uuid
       FROM instance_allocations WHERE ended_at IS NOT NULL AND xmin::text::bigint >= $1
     ORDER BY 1, 2, 3",
);

#[derive(Default)]
pub(super) struct Past {
    /// What is older was read before.
    from: i64,
    /// What is gone for a while is still not to come back lower, so nothing is forgotten.
    rising: HashMap<String, i64>,
    frozen: HashMap<String, Uuid>,
}

impl Past {
    pub async fn look(&mut self, store: &Store) -> Result<Vec<Violation>, StoreError> {
        let mut found = Vec::new();
        let snapshot = store.read_one(&SNAPSHOT, &[]).await?.get("xmin");
        for row in store.read(&RISING, &[&self.from]).await? {
            let of = format!("{} of {}", row.get::<_, &str>("series"), row.get::<_, &str>("key"));
            let value: i64 = row.get("value");
            let before = self.rising.entry(of.clone()).or_insert(value);
            if value < *before {
                let what = format!("{of} fell from {before} to {value}");
                found.push(Violation::new(Invariant::NothingGoesBack, what));
            }
            *before = value;
        }
        for row in store.read(&FROZEN, &[&self.from]).await? {
            let of = format!("{} {}", row.get::<_, &str>("series"), row.get::<_, &str>("key"));
            let digest: Uuid = row.get("digest");
            if self.frozen.insert(of.clone(), digest).is_some_and(|before| before != digest) {
                let number: i32 = row.get("number");
                let invariant = Invariant::ALL.iter().find(|one| i32::from(one.number()) == number);
                let invariant = *invariant.expect("the statement names invariants there are");
                found.push(Violation::new(invariant, format!("{of} is not what it was")));
            }
        }
        self.from = snapshot;
        Ok(found)
    }
}
