//! What nodes report, stored as it came: events, status, inventory. And the specs that go out.

use kernel::ports::delivery::{
    DeliveryError, GatewayLease, ReportedEvent, ReportedSection, ReportedStatus, SessionKey, StoredSpec,
};
use model::{Condition, JournalId, NodeId};
use serde_json::{Value, json};
use store::{Op, RowExt, Tx};
use uuid::Uuid;

use super::{Failure, PgDelivery, epoch, guard, observe, sql, store_error, to_i64, to_u64};

/// Events of one node that wait to be handled. Past it the node keeps them: its journal is bounded, this table is everybody's.
const EVENTS_WAITING_MAX: i64 = 20_000;

impl PgDelivery {
    pub(super) async fn store_events(
        &self,
        lease: GatewayLease,
        session: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Result<Option<u64>, DeliveryError> {
        let events = &events;
        self.store()
            .tx(Op::new("node_events_put"), |tx| Box::pin(events_in(tx, lease, session, journal_id, events)))
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
}

async fn events_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    session: SessionKey,
    journal_id: JournalId,
    events: &[ReportedEvent],
) -> Result<Option<u64>, Failure> {
    let (node_id, session_epoch) = (session.node_id.uuid(), to_i64(session.epoch));
    let held = tx
        .query_opt(
            &sql::SESSION_JOURNAL,
            &[&node_id, &session_epoch, &lease.gateway_id.uuid(), &epoch(lease)],
        )
        .await?;
    let Some(held) = held.filter(|row| row.get::<_, Uuid>("journal_id") == journal_id.uuid()) else {
        guard(tx, lease).await?;
        return Ok(None);
    };
    let acked: i64 = held.get("acked_event_seq");
    let fresh: Vec<&ReportedEvent> = events.iter().filter(|event| to_i64(event.seq) > acked).collect();
    let Some(last) = fresh.last() else { return Ok(Some(to_u64(acked))) };
    if tx.query_opt(&sql::EVENTS_FULL, &[&node_id, &(EVENTS_WAITING_MAX - 1)]).await?.is_some() {
        return Ok(Some(to_u64(acked)));
    }
    let last = to_i64(last.seq) + i64::from(kit::mutant::on("fleet.acknowledged-past-the-last"));
    let seqs: Vec<i64> = fresh.iter().map(|event| to_i64(event.seq)).collect();
    let classes: Vec<i16> = fresh.iter().map(|event| i16::try_from(event.class).unwrap_or(0)).collect();
    let reports: Vec<&[u8]> = fresh.iter().map(|event| event.report.as_slice()).collect();
    let signatures: Vec<Option<&[u8]>> = fresh.iter().map(|event| event.signature.as_deref()).collect();
    let keys: Vec<Option<&[u8]>> = fresh.iter().map(|event| event.key_sha256.as_deref()).collect();
    // Microseconds fit a double exactly until the year 2255.
    let times: Vec<f64> = fresh.iter().map(|event| event.observed_at.micros() as f64).collect();
    tx.execute(
        &sql::EVENTS_INSERT,
        &[&node_id, &journal_id.uuid(), &seqs, &classes, &reports, &signatures, &keys, &times],
    )
    .await?;
    tx.execute(&sql::EVENTS_ACKED, &[&node_id, &session_epoch, &last]).await?;
    observe(tx, [session.node_id]).await?;
    Ok(Some(to_u64(last)))
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
