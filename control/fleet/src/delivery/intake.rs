//! What nodes report, stored as it came: events, status, inventory. And the specs that go out.

use std::collections::HashMap;

use kernel::ports::delivery::{
    CurrentSpec, DeliveryError, GatewayLease, ReportedEvent, ReportedEvents, ReportedSection, ReportedStatus,
    SessionKey, StoredSpec,
};
use model::{Condition, NodeId};
use serde_json::{Value, json};
use store::{Op, RowExt, Tx};
use uuid::Uuid;

use super::sessions::{columns, session_key};
use super::{Failure, PgDelivery, epoch, guard, lapsed, observe, sql, store_error, to_i64, to_u64};

/// Events of one node that wait to be handled. Past it the node keeps them: its journal is bounded, this table is everybody's.
const EVENTS_WAITING_MAX: i64 = 20_000;

impl PgDelivery {
    pub(super) async fn store_events(
        &self,
        lease: GatewayLease,
        reported: Vec<ReportedEvents>,
    ) -> Result<Vec<Option<u64>>, DeliveryError> {
        let reported = &reported;
        self.store()
            .tx(Op::new("node_events_put"), |tx| Box::pin(events_in(tx, lease, reported)))
            .await
            .map_err(DeliveryError::from)
    }

    pub(super) async fn store_statuses(
        &self,
        lease: GatewayLease,
        mut statuses: Vec<ReportedStatus>,
    ) -> Result<(), DeliveryError> {
        statuses.sort_by_key(|status| status.session.node_id);
        let statuses = &statuses;
        self.store()
            .tx(Op::new("node_status_put"), |tx| Box::pin(statuses_in(tx, lease, statuses)))
            .await
            .map_err(DeliveryError::from)
    }

    pub(super) async fn store_inventory(
        &self,
        lease: GatewayLease,
        session: SessionKey,
        sections: Vec<ReportedSection>,
    ) -> Result<(), DeliveryError> {
        let sections = &sections;
        self.store()
            .tx(Op::new("node_inventory_put"), |tx| {
                Box::pin(async move {
                    let mut stored = 0;
                    for section in sections {
                        stored += tx
                            .execute(
                                &sql::INVENTORY_PUT,
                                &[
                                    &session.node_id.uuid(),
                                    &to_i64(session.epoch),
                                    &lease.gateway_id.uuid(),
                                    &epoch(lease),
                                    &section.section,
                                    &section.hash,
                                    &section.content,
                                ],
                            )
                            .await?;
                    }
                    if stored > 0 {
                        observe(tx, [session.node_id]).await?;
                    } else {
                        guard(tx, lease).await?;
                    }
                    Ok::<_, Failure>(())
                })
            })
            .await
            .map_err(DeliveryError::from)
    }

    pub(super) async fn read_specs_behind(
        &self,
        lease: GatewayLease,
        sent: Vec<(SessionKey, u64)>,
    ) -> Result<Vec<StoredSpec>, DeliveryError> {
        let nodes: Vec<Uuid> = sent.iter().map(|(session, _)| session.node_id.uuid()).collect();
        let epochs: Vec<i64> = sent.iter().map(|(session, _)| to_i64(session.epoch)).collect();
        let generations: Vec<i64> = sent.iter().map(|(_, generation)| to_i64(*generation)).collect();
        let rows = self
            .store()
            .read(
                &sql::SPECS_BEHIND,
                &[&nodes, &epochs, &generations, &lease.gateway_id.uuid(), &epoch(lease)],
            )
            .await
            .map_err(store_error)?;
        Ok(rows
            .iter()
            .map(|row| StoredSpec {
                node_id: row.id("node_id"),
                generation: to_u64(row.get("generation")),
                body: row.get("spec_body"),
                signature: row.get("spec_signature"),
            })
            .collect())
    }

    pub(super) async fn read_current_spec(
        &self,
        node_id: NodeId,
        known: u64,
    ) -> Result<CurrentSpec, DeliveryError> {
        let row = self.store().read_opt(&sql::SPEC_CURRENT, &[&node_id.uuid(), &to_i64(known)]).await;
        let Some(row) = row.map_err(store_error)? else { return Ok(CurrentSpec::None) };
        let body: Option<Vec<u8>> = row.get("spec_body");
        Ok(body.map_or(CurrentSpec::Known, |body| {
            CurrentSpec::Newer(StoredSpec {
                node_id,
                generation: to_u64(row.get("generation")),
                body,
                signature: row.get::<_, Option<Vec<u8>>>("spec_signature").unwrap_or_default(),
            })
        }))
    }
}

/// A session that events may be stored under.
struct Journal {
    journal_id: Uuid,
    acked: i64,
    /// As many of its node's events wait as may.
    full: bool,
}

/// Up to where each session's events are stored, in their order.
async fn events_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    reported: &[ReportedEvents],
) -> Result<Vec<Option<u64>>, Failure> {
    let journals = journals(tx, lease, reported).await?;
    let held = |one: &ReportedEvents| {
        journals.get(&one.session).filter(|journal| journal.journal_id == one.journal_id.uuid())
    };
    let mut fresh: Vec<(SessionKey, Uuid, Vec<&ReportedEvent>)> = Vec::new();
    for one in reported {
        let Some(journal) = held(one).filter(|journal| !journal.full) else { continue };
        let events: Vec<&ReportedEvent> =
            one.events.iter().filter(|event| to_i64(event.seq) > journal.acked).collect();
        if !events.is_empty() {
            fresh.push((one.session, journal.journal_id, events));
        }
    }
    let stored = insert(tx, &fresh);
    observe(tx, fresh.iter().map(|(session, ..)| session.node_id)).await?;
    let answer = |one: &ReportedEvents| {
        let journal = held(one)?;
        Some(to_u64(stored.get(&one.session).copied().unwrap_or(journal.acked)))
    };
    Ok(reported.iter().map(answer).collect())
}

async fn journals(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    reported: &[ReportedEvents],
) -> Result<HashMap<SessionKey, Journal>, Failure> {
    let sessions: Vec<SessionKey> = reported.iter().map(|one| one.session).collect();
    let (nodes, epochs) = columns(&sessions);
    let (gateway, most) = (lease.gateway_id.uuid(), EVENTS_WAITING_MAX - 1);
    let rows = tx.query(&sql::SESSIONS_JOURNALS, &[&nodes, &epochs, &gateway, &epoch(lease), &most]).await?;
    match rows.first() {
        None => guard(tx, lease).await?,
        Some(row) if !row.get::<_, bool>("held") => lapsed()?,
        Some(_) => {}
    }
    let journal = |row: &store::Row| Journal {
        journal_id: row.get("journal_id"),
        acked: row.get("acked_event_seq"),
        full: row.get("full"),
    };
    Ok(rows.iter().map(|row| (session_key(row), journal(row))).collect())
}

/// Stores them with the commit. Says what is acknowledged of each session by then.
fn insert(tx: &mut Tx<'_>, fresh: &[(SessionKey, Uuid, Vec<&ReportedEvent>)]) -> HashMap<SessionKey, i64> {
    if fresh.is_empty() {
        return HashMap::new();
    }
    let last = |events: &[&ReportedEvent]| {
        let last = events.last().map_or(0, |event| to_i64(event.seq));
        last + i64::from(kit::mutant::on("fleet.acknowledged-past-the-last"))
    };
    let acked: HashMap<SessionKey, i64> =
        fresh.iter().map(|(session, _, events)| (*session, last(events))).collect();
    let dropped = usize::from(fresh.len() > 1 && kit::mutant::on("fleet.last-event-of-a-batch-is-dropped"));
    let kept = fresh.iter().map(|(.., events)| events.len()).sum::<usize>() - dropped;
    let all = || {
        fresh
            .iter()
            .flat_map(|(session, journal, events)| events.iter().map(move |event| (session, journal, *event)))
            .take(kept)
    };
    let nodes: Vec<Uuid> = all().map(|(session, ..)| session.node_id.uuid()).collect();
    let journals: Vec<Uuid> = all().map(|(_, journal, _)| *journal).collect();
    let seqs: Vec<i64> = all().map(|(.., event)| to_i64(event.seq)).collect();
    let classes: Vec<i16> = all().map(|(.., event)| i16::try_from(event.class).unwrap_or(0)).collect();
    let reports: Vec<Vec<u8>> = all().map(|(.., event)| event.report.clone()).collect();
    let signatures: Vec<Option<Vec<u8>>> = all().map(|(.., event)| event.signature.clone()).collect();
    let keys: Vec<Option<Vec<u8>>> =
        all().map(|(.., event)| event.key_sha256.as_deref().map(<[u8]>::to_vec)).collect();
    // Microseconds fit a double exactly until the year 2255.
    let times: Vec<f64> = all().map(|(.., event)| event.observed_at.micros() as f64).collect();
    let events: Vec<store::Owned> = vec![
        Box::new(nodes),
        Box::new(journals),
        Box::new(seqs),
        Box::new(classes),
        Box::new(reports),
        Box::new(signatures),
        Box::new(keys),
        Box::new(times),
    ];
    tx.later(&sql::EVENTS_INSERT, events);
    let sessions: Vec<SessionKey> = fresh.iter().map(|(session, ..)| *session).collect();
    let (nodes, epochs) = columns(&sessions);
    let lasts: Vec<i64> = fresh.iter().map(|(_, _, events)| last(events)).collect();
    tx.later(&sql::EVENTS_ACKED, vec![Box::new(nodes), Box::new(epochs), Box::new(lasts)]);
    acked
}

async fn statuses_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    statuses: &[ReportedStatus],
) -> Result<(), Failure> {
    let column = |of: fn(&ReportedStatus) -> u64| -> Vec<i64> {
        statuses.iter().map(|status| to_i64(of(status))).collect()
    };
    let nodes: Vec<Uuid> = statuses.iter().map(|status| status.session.node_id.uuid()).collect();
    let hashes: Vec<&str> = statuses.iter().map(|status| status.applied_spec_hash.as_str()).collect();
    let sections: Vec<&Value> = statuses.iter().map(|status| &status.sections).collect();
    let conditions: Vec<Value> = statuses
        .iter()
        .map(|status| Value::Array(status.conditions.iter().map(condition_row).collect()))
        .collect();
    let pressures: Vec<Value> =
        statuses.iter().map(|status| status.pressure.clone().unwrap_or(Value::Null)).collect();
    let keys: Vec<&str> = statuses.iter().map(|status| status.status_key.as_str()).collect();
    let rows = tx
        .query(
            &sql::STATUSES_PUT,
            &[
                &lease.gateway_id.uuid(),
                &epoch(lease),
                &nodes,
                &column(|status| status.session.epoch),
                &column(|status| status.applied_generation),
                &column(|status| status.observed_generation),
                &hashes,
                &sections,
                &conditions,
                &pressures,
                &column(|status| status.trust_version),
                &keys,
            ],
        )
        .await?;
    if rows.is_empty() {
        guard(tx, lease).await?;
    }
    let news: Vec<NodeId> = rows.iter().filter(|row| row.get("news")).map(|row| row.id("node_id")).collect();
    observe(tx, news).await?;
    Ok(())
}

/// How a condition is stored, and read back by `facts` and by the API.
fn condition_row(condition: &Condition) -> Value {
    json!({
        "kind": condition.kind,
        "severity": condition.severity.name(),
        "device": condition.device,
        "reason": condition.reason,
        "message": condition.message,
        "since": condition.since.to_string(),
    })
}
