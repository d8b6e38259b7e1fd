//! What every delivery store keeps to. The cases are functions over a [`World`]: a store, and the hands that the rest of the control
//! plane has on the same rows. They run on the store in memory and on the one over PostgreSQL.

#![allow(clippy::unwrap_used)] // These are tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kernel::BoxFuture;
use kernel::ports::delivery::{
    DeliveryError, DeliveryStore, GatewayLease, HelloFacts, InboxAnswer, InboxKind, InboxRequest,
    LaneCredits, ReportedEvent, ReportedEvents, ReportedSection, ReportedStatus, ReportedUpdate, SessionEnd,
    SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, CommandKind, GatewayId, IncarnationId, JournalId, NodeId, Timestamp};
use prost::Message;
use serde_json::json;
use uuid::Uuid;
use wire::proto::agent::{CommandBody, CommandState as Wire};

use crate::memory::CommandFate;

mod commands;
mod intake;
mod sessions;

pub use commands::*;
pub use intake::*;
pub use sessions::*;

/// What the rest of the control plane does, and what it reads.
pub trait World: Send + Sync {
    fn store(&self) -> Arc<dyn DeliveryStore>;
    fn add_node(&self, node_id: NodeId, cert_serial: String) -> BoxFuture<'_, ()>;
    fn revoke_node(&self, node_id: NodeId) -> BoxFuture<'_, ()>;
    fn revoke_certificate(&self, cert_serial: String) -> BoxFuture<'_, ()>;
    fn quarantine(&self, node_id: NodeId) -> BoxFuture<'_, ()>;
    fn set_observe_only(&self) -> BoxFuture<'_, ()>;
    fn put_spec(&self, spec: StoredSpec) -> BoxFuture<'_, ()>;
    /// Enqueued after every one before it, due for an hour.
    fn enqueue(&self, command: StoredCommand) -> BoxFuture<'_, ()>;
    fn request_cancel(&self, command_id: CommandId, reason: &'static str) -> BoxFuture<'_, ()>;
    /// Lets a gateway's lease run out.
    fn expire(&self, gateway_id: GatewayId) -> BoxFuture<'_, ()>;
    /// Answers the next request that is asked.
    fn answer_next(&self, answer: InboxAnswer) -> BoxFuture<'_, InboxRequest>;
    fn command_fate(&self, command_id: CommandId) -> BoxFuture<'_, CommandFate>;
    fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> BoxFuture<'_, Vec<u64>>;
    /// The status key and `observed_generation`.
    fn status(&self, node_id: NodeId) -> BoxFuture<'_, Option<(String, u64)>>;
    fn inventory(&self, node_id: NodeId) -> BoxFuture<'_, BTreeMap<String, String>>;
}

/// Declares one test per case for a world.
#[macro_export]
macro_rules! conformance_tests {
    ($world:expr) => {
        $crate::conformance_tests!(@ $world;
            a_lease_is_renewed_until_it_runs_out, a_gateway_that_registers_again_has_another_epoch,
            a_deregistered_gateway_writes_nothing, nothing_is_written_under_a_lost_lease,
            a_session_is_taken_over_by_whoever_opened_last, a_session_that_was_taken_over_writes_nothing,
            an_unknown_node_is_refused, a_revoked_node_and_a_revoked_certificate_are_refused,
            a_revoked_node_ends_its_open_session, a_node_ahead_of_the_database_is_refused,
            a_quarantined_node_is_heard_and_sent_nothing, an_observing_deployment_sends_nothing,
            the_same_journal_gets_everything_again_in_order, a_new_journal_fails_what_cannot_be_repeated,
            a_new_boot_completes_a_reboot_that_was_running, a_certificate_counts_until_it_is_revoked,
            commands_are_claimed_in_order_within_their_credits, a_long_queue_keeps_no_other_node_waiting,
            lanes_do_not_wait_for_each_other, a_command_is_claimed_once, a_busy_command_goes_out_again,
            a_cancelled_command_is_not_sent, a_command_under_way_is_named_for_cancelling,
            a_body_that_is_not_the_rows_is_not_sent, results_may_skip_steps_and_land_once,
            a_node_cannot_move_another_nodes_command, an_unknown_result_is_acknowledged,
            updates_of_many_nodes_land_together, events_are_stored_once_and_in_order,
            events_of_another_journal_are_not_taken, events_of_many_sessions_are_stored_together, a_journal_that_comes_back_is_known,
            the_latest_status_wins_and_observed_never_falls,
            a_hello_claims_no_generation_that_does_not_exist, inventory_is_asked_for_where_it_differs,
            specs_are_found_behind, a_spec_is_not_found_for_a_session_that_is_anothers,
            heartbeats_name_the_sessions_that_are_lost, a_request_is_answered_refused_or_times_out);
    };
    (@ $world:expr; $($case:ident),* $(,)?) => {$(
        #[tokio::test]
        async fn $case() {
            let world = $world.await;
            $crate::conformance::$case(&world).await;
        }
    )*};
}

const TTL: Duration = Duration::from_secs(600);

fn unique() -> Uuid {
    use std::sync::atomic::{AtomicU64, Ordering};
    // Ids of one process differ, and that is all they must.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Uuid::from_u128(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (0x7000_8000 << 64))
}

/// A gateway with its lease.
struct Bench<'a> {
    world: &'a dyn World,
    store: Arc<dyn DeliveryStore>,
    lease: GatewayLease,
}

impl<'a> Bench<'a> {
    async fn new(world: &'a dyn World) -> Self {
        let store = world.store();
        let gateway_id = GatewayId::from_uuid(unique());
        let registered = store.register(gateway_id, "gw.example.test:443", TTL).await.unwrap();
        Self { world, store, lease: registered.lease }
    }

    async fn node(&self) -> HelloFacts {
        let node_id = NodeId::from_uuid(unique());
        let cert_serial = format!("{:032x}", node_id.uuid().as_u128());
        self.world.add_node(node_id, cert_serial.clone()).await;
        HelloFacts {
            node_id,
            cert_serial,
            journal_id: JournalId::from_uuid(unique()),
            incarnation_id: IncarnationId::from_uuid(unique()),
            boot_id: "boot-1".to_owned(),
            agent_version: "1.2.3".to_owned(),
            protocol: 1,
            capabilities: vec!["devices.limits".to_owned()],
            trust_version: 0,
            applied_generation: 0,
            observed_generation: 0,
            applied_spec_hash: String::new(),
            deployment_epoch: 1,
            applied_spec: None,
            inventory_hashes: BTreeMap::new(),
            in_flight: Vec::new(),
        }
    }

    async fn try_open(&self, hello: &HelloFacts) -> Result<SessionOpened, SessionRefused> {
        self.store.open_session(self.lease, hello.clone()).await.unwrap()
    }

    async fn open(&self, hello: &HelloFacts) -> (SessionKey, SessionOpened) {
        let opened = self.try_open(hello).await.unwrap();
        (SessionKey { node_id: hello.node_id, epoch: opened.session_epoch }, opened)
    }

    async fn enqueue(&self, node_id: NodeId, kind: CommandKind) -> CommandId {
        let command = command(node_id, kind);
        let command_id = command.command_id;
        self.world.enqueue(command).await;
        command_id
    }

    async fn claim(&self, session: SessionKey, credits: &[(&str, u32)]) -> Vec<CommandId> {
        let credits = credits.iter().map(|(lane, credits)| ((*lane).to_owned(), *credits)).collect();
        let claimed = self.store.claim_commands(self.lease, vec![LaneCredits { session, credits }]).await;
        claimed.unwrap().iter().map(|command| command.command_id).collect()
    }

    async fn report(&self, session: SessionKey, command_id: CommandId, state: Wire) -> Vec<CommandId> {
        let acknowledged =
            self.store.apply_updates(self.lease, vec![update(session, command_id, state)]).await;
        acknowledged.unwrap().into_iter().map(|(_, command_id)| command_id).collect()
    }

    async fn state(&self, command_id: CommandId) -> CommandState {
        self.world.command_fate(command_id).await.state
    }
}

fn command(node_id: NodeId, kind: CommandKind) -> StoredCommand {
    let command_id = CommandId::from_uuid(unique());
    let body = CommandBody {
        command_id: command_id.to_string(),
        node_id: node_id.to_string(),
        deployment_epoch: 1,
        kind: kind.name().to_owned(),
        not_after_ms: 4_000_000_000_000,
        payload: Some(wire::command::empty_payload(kind)),
        ..CommandBody::default()
    };
    StoredCommand {
        command_id,
        node_id,
        kind: kind.name().to_owned(),
        lane: kind.policy().lane.name().to_owned(),
        body: body.encode_to_vec(),
        signature: vec![1, 2, 3],
        attempt: 0,
        cancel_requested: None,
    }
}

fn update(session: SessionKey, command_id: CommandId, state: Wire) -> ReportedUpdate {
    let event = match state {
        Wire::Acked => CommandEvent::Acked,
        Wire::Running => CommandEvent::Running,
        Wire::Succeeded => CommandEvent::Succeeded,
        Wire::Failed => CommandEvent::Failed,
        Wire::Rejected => CommandEvent::Rejected,
        Wire::Cancelled => CommandEvent::Cancelled,
        Wire::Busy | Wire::Unspecified => CommandEvent::Busy,
    };
    ReportedUpdate {
        session,
        command_id,
        wire_state: state.into(),
        event,
        result: Some(vec![9, 9]),
        signature: Some(vec![7; 64]),
        key_sha256: Some(vec![8; 32]),
        reason: "because".to_owned(),
        message: "a message".to_owned(),
        boot_id: "boot-1".to_owned(),
    }
}

fn event(seq: u64) -> ReportedEvent {
    ReportedEvent {
        seq,
        class: 2,
        report: vec![1],
        signature: None,
        key_sha256: None,
        observed_at: Timestamp::from_millis(1_772_323_200_000),
    }
}

fn status(session: SessionKey, observed_generation: u64, key: &str) -> ReportedStatus {
    ReportedStatus {
        session,
        applied_generation: observed_generation,
        observed_generation,
        applied_spec_hash: "ab".to_owned(),
        sections: json!([{ "section": "devices", "state": "CONVERGED" }]),
        conditions: Vec::new(),
        pressure: Some(json!({ "steal": 1 })),
        trust_version: 0,
        status_key: key.to_owned(),
    }
}

fn section(name: &str, hash: &str) -> ReportedSection {
    ReportedSection { section: name.to_owned(), hash: hash.to_owned(), content: json!({}) }
}

fn spec(node_id: NodeId, generation: u64) -> StoredSpec {
    StoredSpec { node_id, generation, body: vec![1; 8], signature: vec![2; 8] }
}

fn is_lease_lost<T>(result: Result<T, DeliveryError>) -> bool {
    matches!(result, Err(DeliveryError::LeaseLost))
}
