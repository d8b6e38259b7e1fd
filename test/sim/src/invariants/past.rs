//! One look at the rows beside the one before: what only rises, and what never changes once it is written.

use std::collections::BTreeMap;

use store::{Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

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
     UNION ALL SELECT 'attempts', command_id::text, attempts FROM commands
     UNION ALL SELECT 'trust version', 'bundle', coalesce(max(version), 0) FROM trust_bundles
     ORDER BY 1, 2",
);

/// Digests of what stays as it is. A row that retention deletes is not asked about again.
const FROZEN: Sql = sql(
    "sim_frozen",
    "SELECT 4 AS number, 'settled' AS series, command_id::text AS key,
       md5(concat_ws('|', state, reason, message, boot_id, settled_at, encode(result, 'hex'),
         encode(result_signature, 'hex'), encode(result_key_sha256, 'hex'), result_state)) AS digest
     FROM commands WHERE settled_at IS NOT NULL
     UNION ALL SELECT 15, 'command', command_id::text, md5(concat_ws('|', node_id, kind, lane, encode(body, 'hex'),
         encode(signature, 'hex'), not_before, not_after, min_generation)) FROM commands
     UNION ALL SELECT 15, 'spec', format('%s at %s', node_id, generation),
         md5(concat_ws('|', spec_hash, encode(spec_body, 'hex'), encode(spec_signature, 'hex'))) FROM nodes WHERE generation > 0
     UNION ALL SELECT 15, 'trust bundle', version::text, md5(encode(message, 'hex')) FROM trust_bundles
     UNION ALL SELECT 14, 'event', seq::text, md5(concat_ws('|', event_id, at, kind, subject, tenant_id, data)) FROM events
     UNION ALL SELECT 6, 'ended allocation', allocation_id::text,
         md5(concat_ws('|', reservation_id, node_id, state, atoms, ended_at)) FROM allocations WHERE ended_at IS NOT NULL
     UNION ALL SELECT 6, 'ended reservation', reservation_id::text, md5(concat_ws('|', state, failure, ended_at))
       FROM reservations WHERE state IN ('released', 'expired', 'failed')
     ORDER BY 1, 2, 3",
);

#[derive(Default)]
pub(super) struct Past {
    rising: BTreeMap<(String, String), i64>,
    frozen: BTreeMap<(String, String), String>,
}

impl Past {
    pub async fn look(&mut self, store: &Store) -> Result<Vec<Violation>, StoreError> {
        let mut found = Vec::new();
        for row in store.read(&RISING, &[]).await? {
            let (series, key, value): (String, String, i64) =
                (row.get("series"), row.get("key"), row.get("value"));
            // What is gone for a while is still not to come back lower, so nothing is forgotten here.
            let before = self.rising.entry((series, key)).or_insert(value);
            if value < *before {
                let what = format!("{} of {} fell from {before} to {value}", series_of(&row), key_of(&row));
                found.push(Violation::new(Invariant::NothingGoesBack, what));
            }
            *before = value;
        }
        let mut now = BTreeMap::new();
        for row in store.read(&FROZEN, &[]).await? {
            let digest: String = row.get("digest");
            let at = (series_of(&row).to_owned(), key_of(&row).to_owned());
            if self.frozen.get(&at).is_some_and(|before| *before != digest) {
                let number: i32 = row.get("number");
                let invariant = Invariant::ALL.iter().find(|one| i32::from(one.number()) == number);
                let invariant = *invariant.expect("the statement names invariants there are");
                found.push(Violation::new(invariant, format!("{} {} is not what it was", at.0, at.1)));
            }
            now.insert(at, digest);
        }
        self.frozen = now;
        Ok(found)
    }
}

fn series_of(row: &store::Row) -> &str {
    row.get("series")
}

fn key_of(row: &store::Row) -> &str {
    row.get("key")
}
