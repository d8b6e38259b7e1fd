//! What may be so for a while and not for good: each is reported once it has been so at every look for longer than its bound.
//!
//! Bounds are of the database's clock, which a simulation moves. They are the time in which a healthy deployment gets over the
//! last fault, with room: a session lost (50 s), a gateway's lease (15 s), a claim that lapsed (60 s), a sweep (5 s).

use std::collections::BTreeMap;
use std::time::Duration;

use model::Timestamp;
use store::{RowExt, Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

struct Lasts {
    invariant: Invariant,
    bound: Duration,
    /// Answers `key`, which is the same at the next look while it is still so, and `what`.
    statement: Sql,
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

const NOW: Sql = sql("sim_now", "SELECT compute_now() AS now");

const LASTS: &[Lasts] = &[
    Lasts {
        invariant: Invariant::BoundOrSaysWhy,
        bound: minutes(1),
        statement: sql(
            "sim_waits_silently",
            "SELECT reservation_id::text AS key, format('%s waits and nothing says for what', reservation_id) AS what
             FROM reservations WHERE state = 'scheduling' AND waiting_reason = '' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::BoundOrSaysWhy,
        bound: minutes(15),
        statement: sql(
            "sim_draft_stays",
            "SELECT reservation_id::text AS key, format('%s is a draft', reservation_id) AS what
             FROM reservations WHERE state = 'draft' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::BoundOrSaysWhy,
        bound: minutes(5),
        statement: sql(
            "sim_not_bound",
            "SELECT format('%s %s', a.allocation_id, a.state) AS key,
               format('%s is %s on node %s, which is there', a.allocation_id, a.state, a.node_id) AS what
             FROM allocations a JOIN nodes n USING (node_id) JOIN node_sessions s USING (node_id) CROSS JOIN deployment d
             WHERE a.ended_at IS NULL AND a.state IN ('placed', 'releasing', 'failed') AND n.state = 'ready'
               AND n.quarantined_at IS NULL AND s.closed_at IS NULL AND NOT d.observe_only
               AND s.last_heartbeat_at > compute_now() - interval '30 seconds' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::BoundOrSaysWhy,
        bound: minutes(2),
        statement: sql(
            "sim_outlives_its_end",
            "SELECT reservation_id::text AS key, format('%s is %s past its end', reservation_id, state) AS what
             FROM reservations r CROSS JOIN deployment d
             WHERE r.state IN ('scheduling', 'placed', 'active') AND r.expires_at <= compute_now() AND NOT d.observe_only
             ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::InstancesSettle,
        bound: minutes(1),
        statement: sql(
            "sim_instance_waits_silently",
            "SELECT instance_id::text AS key, format('%s waits and nothing says for what', instance_id) AS what
             FROM instances WHERE state IN ('pending', 'scheduling') AND waiting_reason = '' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::InstancesSettle,
        bound: minutes(5),
        statement: sql(
            "sim_instance_hangs",
            "SELECT format('%s %s', i.instance_id, i.revision) AS key,
               format('%s is %s on node %s, which is there and says nothing of it', i.instance_id, i.state, a.node_id) AS what
             FROM instances i JOIN instance_allocations a ON a.instance_id = i.instance_id AND a.ended_at IS NULL AND a.left_at IS NULL
             JOIN nodes n USING (node_id) JOIN node_sessions s USING (node_id) CROSS JOIN deployment d
             WHERE i.state IN ('provisioning', 'starting', 'stopping', 'deleting') AND i.said_reason = '' AND n.state = 'ready'
               AND n.quarantined_at IS NULL AND s.closed_at IS NULL AND NOT d.observe_only
               AND s.last_heartbeat_at > compute_now() - interval '30 seconds' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::HostsHaveWhatRowsSay,
        bound: minutes(5),
        statement: sql(
            "sim_left_behind_stays",
            "SELECT a.allocation_id::text AS key,
               format('%s was left on node %s, which is there and has not deleted it', a.instance_id, a.node_id) AS what
             FROM instance_allocations a JOIN nodes n USING (node_id) JOIN node_sessions s USING (node_id) CROSS JOIN deployment d
             WHERE a.ended_at IS NULL AND a.left_at IS NOT NULL AND n.state = 'ready'
               AND n.quarantined_at IS NULL AND s.closed_at IS NULL AND NOT d.observe_only
               AND s.last_heartbeat_at > compute_now() - interval '30 seconds' ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::SessionsHaveGateways,
        bound: minutes(2),
        statement: sql(
            "sim_session_orphaned",
            "SELECT format('%s %s', s.node_id, s.session_epoch) AS key,
               format('%s is on gateway %s of epoch %s', s.node_id, s.gateway_id, s.gateway_epoch) AS what
             FROM node_sessions s LEFT JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch
             WHERE s.closed_at IS NULL AND (g.gateway_id IS NULL OR g.expires_at <= compute_now()) ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::SettledOnce,
        bound: minutes(2),
        statement: sql(
            "sim_never_settles",
            "SELECT command_id::text AS key, format('%s is %s past its time', command_id, state) AS what FROM commands
             WHERE settled_at IS NULL AND timeout_at <= compute_now() ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::EventsOnceInOrder,
        bound: minutes(2),
        statement: sql(
            "sim_outbox_stays",
            "SELECT event_id::text AS key, format('%s of %s has no number', kind, subject) AS what FROM outbox_events ORDER BY 1",
        ),
    },
    Lasts {
        invariant: Invariant::LoopsRest,
        bound: minutes(5),
        statement: sql(
            "sim_work_stays",
            "SELECT format('%s %s %s', queue, key, claim) AS key, format('%s %s is due and nobody takes it', queue, key) AS what
             FROM work CROSS JOIN deployment d
             WHERE state = 'ready' AND run_at <= compute_now() AND NOT d.observe_only
             UNION ALL SELECT DISTINCT format('%s %s woken by %s', queue, key, xid), format('%s %s was woken and nobody takes it', queue, key)
             FROM work_wake_keys CROSS JOIN deployment d WHERE NOT d.observe_only ORDER BY 1",
        ),
    },
];

#[derive(Default)]
pub(super) struct Lasting {
    /// Since when each was so, by its statement's name and its key.
    since: BTreeMap<(&'static str, String), Timestamp>,
}

impl Lasting {
    pub async fn look(&mut self, store: &Store) -> Result<Vec<Violation>, StoreError> {
        let now: Timestamp = store.read_one(&NOW, &[]).await?.ts("now");
        let mut still = BTreeMap::new();
        let mut found = Vec::new();
        for Lasts { invariant, bound, statement } in LASTS {
            for row in store.read(statement, &[]).await? {
                let at = (statement.name, row.get::<_, String>("key"));
                let since = self.since.get(&at).copied().unwrap_or(now);
                let lasted = now.since(since);
                if lasted > *bound {
                    let what: &str = row.get("what");
                    found.push(Violation::new(
                        *invariant,
                        format!("{what}, for {} s by now", lasted.as_secs()),
                    ));
                }
                still.insert(at, since);
            }
        }
        self.since = still;
        Ok(found)
    }
}
