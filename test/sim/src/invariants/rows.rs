//! Rules that rows keep by themselves, whatever came before.

use store::{Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

/// A statement whose rows, in a column `what`, break an invariant.
pub(super) struct Rule {
    pub invariant: Invariant,
    pub statement: Sql,
}

pub(super) const fn rule(invariant: Invariant, name: &'static str, text: &'static str) -> Rule {
    Rule { invariant, statement: sql(name, text) }
}

pub(super) async fn broken(store: &Store, rules: &[Rule]) -> Result<Vec<Violation>, StoreError> {
    let mut found = Vec::new();
    for Rule { invariant, statement } in rules {
        let rows = store.read(statement, &[]).await?;
        found.extend(rows.iter().map(|row| Violation::new(*invariant, row.get::<_, String>("what"))));
    }
    Ok(found)
}

/// One round trip for what can be asked of indexes and small tables.
const CHEAP: Sql = sql(
    "sim_cheap",
    "SELECT 1 AS number, format('%s on %s: %s allocations', atom, node_id, count(*)) AS what FROM (
       SELECT node_id, unnest(atoms) AS atom FROM allocations WHERE ended_at IS NULL) live
     GROUP BY node_id, atom HAVING count(*) > 1
     UNION ALL
     SELECT 4, format('%s is %s, settled %s', command_id, state, settled_at) FROM commands
     WHERE (settled_at IS NOT NULL) <> (state IN ('succeeded', 'failed', 'rejected', 'cancelled', 'expired'))
     UNION ALL
     SELECT 8, format('%s has ended and %s is booked for it', a.allocation_id, b.atom)
     FROM bookings b JOIN allocations a USING (allocation_id) WHERE a.ended_at IS NOT NULL
     UNION ALL
     SELECT 14, format('numbered up to %s, told up to %s', h.seq, e.last) FROM event_head h,
       (SELECT coalesce(max(seq), 0) AS last FROM events) e WHERE h.seq <> e.last AND e.last > 0
     ORDER BY 1, 2",
);

pub(super) async fn cheap(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let rows = store.read(&CHEAP, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| {
            let number: i32 = row.get("number");
            let invariant = Invariant::ALL.iter().find(|one| i32::from(one.number()) == number);
            Violation::new(
                *invariant.expect("the statement names invariants there are"),
                row.get::<_, String>("what"),
            )
        })
        .collect())
}

const RULES: &[Rule] = &[
    rule(
        Invariant::AcknowledgedIsStored,
        "sim_acked_unstored",
        "SELECT format('%s is acknowledged up to %s of %s and stored up to %s', s.node_id, s.acked_event_seq, s.journal_id,
                       e.last) AS what
         FROM node_sessions s CROSS JOIN LATERAL (
           SELECT coalesce(max(seq), 0) AS last FROM node_events n
           WHERE n.node_id = s.node_id AND n.journal_id = s.journal_id) e
         WHERE s.acked_event_seq > e.last ORDER BY 1",
    ),
    rule(
        Invariant::NothingGoesBack,
        "sim_observed_ahead",
        "SELECT format('%s observed %s of %s', n.node_id, s.observed_generation, n.generation) AS what
         FROM node_status s JOIN nodes n USING (node_id) WHERE s.observed_generation > n.generation ORDER BY 1",
    ),
    rule(
        Invariant::OwnersAreFenced,
        "sim_session_epochs",
        "SELECT format('%s reported on session %s, the last one is %s', t.node_id, t.session_epoch, s.session_epoch) AS what
         FROM node_status t JOIN node_sessions s USING (node_id) WHERE t.session_epoch > s.session_epoch
         UNION ALL
         SELECT format('%s was sent on session %s, the last one is %s', c.command_id, c.session_epoch, s.session_epoch)
         FROM commands c JOIN node_sessions s USING (node_id) WHERE c.session_epoch > s.session_epoch ORDER BY 1",
    ),
    rule(
        Invariant::NothingParked,
        "sim_parked",
        "SELECT format('%s %s: %s', queue, key, last_error) AS what FROM work WHERE state = 'parked' ORDER BY 1",
    ),
];

pub(super) async fn all(store: &Store) -> Result<Vec<Violation>, StoreError> {
    broken(store, RULES).await
}

const UNDISTURBED: &[Rule] = &[rule(
    Invariant::NoFalseUnreachable,
    "sim_false_unreachable",
    "SELECT format('%s at %s', subject, at) AS what FROM (
       SELECT kind, subject, at FROM outbox_events UNION ALL SELECT kind, subject, at FROM events) told
     WHERE kind IN ('node.unreachable', 'node.lost')
     UNION ALL
     SELECT format('%s is %s', node_id, state) FROM nodes WHERE state IN ('unreachable', 'lost') ORDER BY 1",
)];

pub(super) async fn undisturbed(store: &Store) -> Result<Vec<Violation>, StoreError> {
    broken(store, UNDISTURBED).await
}
