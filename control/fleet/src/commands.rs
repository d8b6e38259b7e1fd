//! Commands: made, signed and queued here; sent and settled by gateways; swept by time.

use std::collections::BTreeSet;
use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{ApiError, BoxFuture, Fault};
use model::{CommandId, NodeId, Timestamp};
use pki::Purpose;
use prost::Message;
use std::time::SystemTime;
use store::{Op, RowExt, Tx};
use wire::proto::agent::CommandBody;
use wire::proto::agent::command_body::Payload;

use crate::core::{Fleet, node_key};
use crate::{DELIVERY_CHANNEL, OBSERVE_QUEUE, sql};

const SWEEP: Op = Op::new("commands_sweep");
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// More than a person queues for one node, and few enough that a gateway reads them in one look.
const WAITING_MAX: i64 = 256;

/// What is asked of a node.
#[derive(Debug, Clone)]
pub struct NewCommand {
    pub node_id: NodeId,
    pub payload: Payload,
    /// How long it may wait to be accepted by the node.
    pub valid_for: Duration,
    /// The spec it presupposes; 0 for none.
    pub min_generation: u64,
    /// Locked on the node while it runs.
    pub resource_keys: Vec<String>,
    /// Who asked, for people: a user's name, or `system`.
    pub created_by: String,
}

impl Fleet {
    /// Signs and stores a command under an id that the caller made; it leaves when the transaction commits. INVALID_STATE when
    /// the node has more waiting than it could work off.
    pub async fn enqueue(
        &self,
        tx: &mut Tx<'_>,
        command_id: CommandId,
        command: NewCommand,
    ) -> Result<(), Fault> {
        let kind = wire::command::payload_kind(&command.payload);
        let policy = kind.policy();
        let waiting =
            tx.query_one(&sql::COMMANDS_PENDING_COUNT, &[&command.node_id.uuid(), &WAITING_MAX]).await?;
        if waiting.get::<_, i64>("waiting") >= WAITING_MAX {
            let message = format!(
                "node {} has {WAITING_MAX} commands waiting: let it take some, or cancel some",
                command.node_id
            );
            return Err(ApiError::invalid_state(message).into());
        }
        let now = tx.now().await?;
        let not_after = now.saturating_add(command.valid_for);
        let epoch = tx.query_one(&sql::DEPLOYMENT, &[]).await?.get::<_, i64>("epoch");
        let body = CommandBody {
            command_id: command_id.to_string(),
            node_id: command.node_id.to_string(),
            deployment_epoch: u64::try_from(epoch).unwrap_or(0),
            kind: kind.name().to_owned(),
            not_before_ms: wire_millis(now),
            not_after_ms: wire_millis(not_after),
            min_generation: command.min_generation,
            resource_keys: command.resource_keys,
            batch_id: String::new(),
            payload: Some(command.payload),
        }
        .encode_to_vec();
        if body.len() > wire::limits::COMMAND_BODY_BYTES_MAX {
            return Err(ApiError::invalid("", "the command is larger than 1 MiB").into());
        }
        let signature = self.sign(Purpose::Command, &body, now)?;
        let timeout_at = not_after.saturating_add(policy.timeout);
        tx.execute(
            &sql::COMMAND_INSERT,
            &[
                &command_id.uuid(),
                &command.node_id.uuid(),
                &kind.name(),
                &policy.lane.name(),
                &policy.destructive,
                &body,
                &signature,
                &SystemTime::from(now),
                &SystemTime::from(not_after),
                &SystemTime::from(timeout_at),
                &i64::try_from(command.min_generation).unwrap_or(i64::MAX),
                &command.created_by,
            ],
        )
        .await?;
        tx.notify(DELIVERY_CHANNEL, node_key(command.node_id));
        Ok(())
    }

    /// One look at every open command's time.
    pub async fn sweep(&self) -> Result<PassOutcome, Fault> {
        let swept: usize = self
            .store()
            .tx(SWEEP, |tx| {
                Box::pin(async move {
                    let mut rows = tx.query(&sql::COMMANDS_EXPIRE, &[]).await?;
                    rows.extend(tx.query(&sql::COMMANDS_TIME_OUT, &[]).await?);
                    let nodes: BTreeSet<String> =
                        rows.iter().map(|row| node_key(row.id::<NodeId>("node_id"))).collect();
                    let keys: Vec<String> = nodes.into_iter().collect();
                    store::work::enqueue_all(tx, kernel::module::queue(OBSERVE_QUEUE), &keys).await?;
                    Ok::<_, Fault>(rows.len())
                })
            })
            .await?;
        Ok(if swept == 0 { PassOutcome::Idle } else { PassOutcome::More })
    }
}

fn wire_millis(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}

/// Settles what time settles: a command never sent expires, one without a result fails.
pub struct Sweeper(pub Fleet);

impl Pass for Sweeper {
    fn name(&self) -> &'static str {
        "command-sweeper"
    }

    fn period(&self) -> Duration {
        SWEEP_PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.sweep())
    }
}
