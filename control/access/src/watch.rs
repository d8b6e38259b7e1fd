//! Looks at each tunnel every few seconds, for as long as it is open: whether it still may be, and whether its gateway is
//! still there. What became of it is told and entered in the audit log here, since a gateway may write neither.

use std::time::Duration;

use api::Ref;
use kernel::events::{self, EventKind};
use kernel::module::QueueHandler;
use kernel::ports::iam::{Identity, Resource};
use kernel::{BoxFuture, Call, Fault, audit};
use model::lifecycle::InstanceState;
use model::{ErrorCode, Timestamp, TokenId, TunnelId};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use crate::open::{EXEC, NODE_EXEC};
use crate::view::Stored;
use crate::{Access, sql};

/// The queue of tunnels to look at. Key: the tunnel's UUID.
pub const QUEUE: &str = "tunnel";
/// With what a gateway takes to hear of it, a tunnel that may not go on is closed within five seconds.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What gateways say of a ticket that was used up and led to nothing.
const NOT_OPENED: &str = "not-opened";
/// A gateway that has not closed a tunnel so long after its time is not asked any more; and a ticket that was not taken so long
/// after its last moment never will be.
const GRACE: Duration = Duration::from_secs(60);
/// A tunnel of which nobody could say for so long whether it may go on does not.
const UNDECIDED_MAX: Duration = Duration::from_secs(30);
/// That it may is written down this often.
const DECIDED_EVERY: Duration = Duration::from_secs(5);

const TUNNEL_WATCH: Op = Op::new("tunnel_watch");

pub(crate) fn tunnel_key(id: TunnelId) -> String {
    id.uuid().hyphenated().to_string()
}

pub(crate) struct Watch(pub Access);

impl QueueHandler for Watch {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    /// It only ever ends what may not go on, which is no less needed while nothing else is acted on.
    fn acts(&self) -> bool {
        false
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match Uuid::parse_str(key) {
                Ok(id) => self.0.look_at(TunnelId::from_uuid(id)).await,
                Err(_) => Ok(None),
            }
        })
    }
}

/// A tunnel, and what only its watch asks of it.
struct Watched {
    stored: Stored,
    token_id: TokenId,
    /// When it was last decided that it may go on.
    decided_at: Option<Timestamp>,
    /// The gateway that took it has the lease it had then.
    gateway_is_there: bool,
    told_open: bool,
    told_closed: bool,
}

impl Watched {
    fn of_row(row: &Row) -> Self {
        Self {
            stored: Stored::of_row(row),
            token_id: row.id("token_id"),
            decided_at: row.opt_ts("decided_at"),
            gateway_is_there: row.get("gateway_is_there"),
            told_open: row.get("told_open"),
            told_closed: row.get("told_closed"),
        }
    }

    /// Since it was known that it may go on; it was when it was opened.
    fn undecided_for(&self) -> Duration {
        let known = self.decided_at.or(self.stored.taken_at).unwrap_or(self.stored.created_at);
        self.stored.now.since(known)
    }

    fn data(&self) -> Value {
        let stored = &self.stored;
        json!({
            "instanceId": stored.instance_id.map(|id| id.to_string()), "nodeId": stored.node_id.to_string(),
            "op": stored.op, "by": stored.user_name,
        })
    }

    fn with(&self, more: Value) -> Value {
        let mut data = self.data();
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        data
    }
}

impl Access {
    async fn look_at(&self, id: TunnelId) -> Result<Option<Duration>, Fault> {
        let Some(row) = self.store().read_opt(&sql::TUNNEL_WATCH, &[&id.uuid()]).await? else {
            return Ok(None);
        };
        let seen = Watched::of_row(&row);
        let stored = &seen.stored;
        match (stored.taken_at, stored.closed_at) {
            // One that was taken at the last moment may not be seen yet.
            (None, _)
                if stored.revoked_at.is_some() || stored.open_until.saturating_add(GRACE) < stored.now =>
            {
                Ok(None)
            }
            (None, _) => Ok(Some(LOOK_EVERY)),
            (Some(_), Some(_)) => {
                // Also of one that was over before anybody looked; not of one whose ends never met.
                if !seen.told_open && !seen.told_closed && stored.close_reason != NOT_OPENED {
                    self.tell_open(&seen).await?;
                }
                self.tell_closed(&seen).await
            }
            (Some(_), None) => {
                if !seen.told_open {
                    self.tell_open(&seen).await?;
                }
                let over = stored.ends_at.saturating_add(GRACE) < stored.now;
                if !seen.gateway_is_there || over {
                    let reason = if over { "time-over" } else { "gateway-lost" };
                    self.close_for_gateway(&seen, reason).await?;
                    // And tell of it.
                    return Ok(Some(Duration::ZERO));
                }
                if stored.revoked_at.is_none() {
                    match self.may_not_go_on(&seen).await {
                        Ok(Some(reason)) => self.revoke(&seen, reason).await?,
                        Ok(None) => self.decided(&seen).await?,
                        // Asked again as soon as ever: with a pause that grows, somebody would stay in who may not any more.
                        Err(fault) => {
                            tracing::warn!(tunnel_id = %id, err = kit::chain(&fault), "whether a tunnel may go on is not known now");
                            if seen.undecided_for() > UNDECIDED_MAX {
                                self.revoke(&seen, "not-decided").await?;
                            }
                        }
                    }
                }
                Ok(Some(LOOK_EVERY))
            }
        }
    }

    async fn decided(&self, seen: &Watched) -> Result<(), Fault> {
        if seen.decided_at.is_none() || seen.undecided_for() >= DECIDED_EVERY {
            self.store().execute(&sql::TUNNEL_DECIDED, &[&seen.stored.id.uuid()]).await?;
        }
        Ok(())
    }

    /// Why it may not, if so: decided anew, as its user is now.
    async fn may_not_go_on(&self, seen: &Watched) -> Result<Option<&'static str>, Fault> {
        let stored = &seen.stored;
        let identity = match self.0.authentication.again(seen.token_id).await {
            Ok(identity) => identity,
            Err(Fault::Refused(refusal)) if refusal.code == ErrorCode::Unauthenticated => {
                return Ok(Some("token-over"));
            }
            Err(fault) => return Err(fault),
        };
        // The keys of one that is revoked count no more, whatever it still runs.
        let Some(node) = self.0.nodes.node(&Ref::Id(stored.node_id)).await? else {
            return Ok(Some("node-gone"));
        };
        let (action, resource) = match stored.instance_id {
            Some(id) => {
                let Some(door) = self.0.instances.instance(id).await? else {
                    return Ok(Some("instance-gone"));
                };
                // One that is stopped ends what goes into it by itself; what was let into it is not let into its next run.
                if door.node_id != Some(stored.node_id) || door.state != InstanceState::Running {
                    return Ok(Some("instance-gone"));
                }
                (EXEC, door.resource)
            }
            None => (NODE_EXEC, node.resource),
        };
        let allowed = self.allows(&identity, &stored.source_ip, action, &resource).await?;
        Ok((!allowed).then_some("not-allowed"))
    }

    /// As a call would be decided that came from there now.
    pub(crate) async fn allows(
        &self,
        identity: &Identity,
        source_ip: &str,
        action: &'static str,
        resource: &Resource,
    ) -> Result<bool, Fault> {
        let source =
            source_ip.parse().map_err(|_| store::StoreError::decode("way in", "a source address"))?;
        let (principal, authorization) = (identity.principal.clone(), self.0.authorization.clone());
        let call = Call::new(self.id(), self.id(), action, principal, source, identity.now, authorization);
        Ok(call.decide(action, resource).await?.allowed)
    }

    async fn revoke(&self, seen: &Watched, reason: &'static str) -> Result<(), Fault> {
        let (id, data) = (seen.stored.id, seen.with(json!({ "reason": reason })));
        let data = &data;
        self.store()
            .tx(TUNNEL_WATCH, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::TUNNEL_REVOKE, &[&id.uuid(), &reason]).await? > 0 {
                        self.tell(tx, seen, EventKind::TunnelRevoked, "compute:tunnels:revoke", data.clone())
                            .await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    /// Of a gateway that is not there any more, whose tunnels went with it.
    async fn close_for_gateway(&self, seen: &Watched, reason: &'static str) -> Result<(), Fault> {
        self.store().execute(&sql::TUNNEL_CLOSE, &[&seen.stored.id.uuid(), &reason]).await?;
        Ok(())
    }

    async fn tell_open(&self, seen: &Watched) -> Result<(), Fault> {
        let stored = &seen.stored;
        let data = &seen.with(json!({ "port": stored.port, "sourceIp": stored.source_ip }));
        self.store()
            .tx(TUNNEL_WATCH, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::TUNNEL_TOLD_OPEN, &[&stored.id.uuid()]).await? > 0 {
                        let kind = EventKind::TunnelOpened;
                        self.tell(tx, seen, kind, "compute:tunnels:opened", data.clone()).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    async fn tell_closed(&self, seen: &Watched) -> Result<Option<Duration>, Fault> {
        if seen.told_closed {
            return Ok(None);
        }
        let stored = &seen.stored;
        let (to_node, to_client) = stored.bytes.unwrap_or_default();
        let said = json!({ "reason": stored.reason(), "toNodeBytes": to_node, "toClientBytes": to_client });
        let data = &seen.with(said);
        self.store()
            .tx(TUNNEL_WATCH, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::TUNNEL_TOLD_CLOSED, &[&stored.id.uuid()]).await? > 0 {
                        let kind = EventKind::TunnelClosed;
                        self.tell(tx, seen, kind, "compute:tunnels:closed", data.clone()).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await?;
        Ok(None)
    }

    /// An event, and an entry in the audit log.
    async fn tell(
        &self,
        tx: &mut Tx<'_>,
        seen: &Watched,
        kind: EventKind,
        action: &'static str,
        data: Value,
    ) -> Result<(), Fault> {
        let (id, tenant_id) = (seen.stored.id, seen.stored.tenant_id);
        events::append(tx, &*self.0.rng, kind, id, Some(tenant_id), data.clone()).await?;
        let resource = format!("tunnel/{id}");
        Ok(audit::write_system(tx, self.id(), Some(tenant_id), action, &resource, data).await?)
    }
}
