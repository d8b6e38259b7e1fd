//! Domain events: what the outside world, and the modules among themselves, may rely on having happened.
//!
//! An event is appended in the transaction that makes it true, so there is no event of a change that was rolled back and no
//! change without its event. The relay numbers them after their commit; readers go by that number.
//!
//! To add one: a line in the table below, then `docs/events.md` by running its test with `BC_BLESS=1`.

mod read;

use kit::Rng;
use model::{EventId, TenantId};
use serde_json::Value;
use store::{StoreError, Tx};

pub use read::{EventReader, RESOURCE, kind_matches};
pub use store::outbox::StoredEvent;

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal on $subject:literal { $($field:ident),* };)*) => {
        /// The kinds of events.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventKind {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$(EventKind::$variant),*];

            /// `reservation.placed`.
            pub const fn name(self) -> &'static str {
                match self { $(EventKind::$variant => $name,)* }
            }

            /// What the subject is: `reservation`, as in `reservation/rsv_…`.
            pub const fn subject_kind(self) -> &'static str {
                match self { $(EventKind::$variant => $subject,)* }
            }

            /// Names that its data may have.
            pub const fn fields(self) -> &'static [&'static str] {
                match self { $(EventKind::$variant => &[$(stringify!($field)),*],)* }
            }

            /// One or more sentences for the reference.
            pub fn doc(self) -> String {
                let lines: &[&str] = match self { $(EventKind::$variant => &[$($doc),+],)* };
                lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
            }
        }
    };
}

events! {
    /// A reservation was admitted: its quota is held and it waits for a place.
    ReservationScheduling = "reservation.scheduling" on "reservation" { state, poolId, name, gpus, reason };
    /// A reservation cannot be placed yet.
    ReservationWaiting = "reservation.waiting" on "reservation" { state, poolId, reason };
    /// Devices and host resources of one node are booked.
    ReservationPlaced = "reservation.placed" on "reservation" { state, poolId, nodeId, allocationId, atoms };
    /// The node has bound what was booked: it can be used.
    ReservationActive = "reservation.active" on "reservation" { state, poolId, nodeId, allocationId, cdiDevices };
    /// Something that the reservation holds is not healthy, or is again.
    ReservationDegraded = "reservation.degraded" on "reservation" { state, nodeId, allocationId, atoms, degraded, reason };
    /// The node was lost or refused: another place is looked for.
    ReservationReplacing = "reservation.replacing" on "reservation" { state, poolId, nodeId, allocationId, reason };
    /// Its expiry was moved.
    ReservationExtended = "reservation.extended" on "reservation" { state, expiresAt, previousExpiresAt };
    /// Its end was asked for or came; the node has yet to confirm.
    ReservationReleasing = "reservation.releasing" on "reservation" { state, nodeId, allocationId, reason };
    /// It ended because somebody asked.
    ReservationReleased = "reservation.released" on "reservation" { state, reason };
    /// It ended because its time was over.
    ReservationExpired = "reservation.expired" on "reservation" { state, reason };
    /// It could not be placed, or not be kept.
    ReservationFailed = "reservation.failed" on "reservation" { state, reason };

    /// A flavor was made.
    FlavorCreated = "flavor.created" on "flavor" { name, poolId };
    /// An image was made.
    ImageCreated = "image.created" on "image" { name, sha256, shared, verified };
    /// All bytes of an announced image have come, and are what was announced.
    ImageReady = "image.ready" on "image" { name, sha256, sizeBytes };
    /// An image was deleted: by a person, or because its bytes did not come.
    ImageDeleted = "image.deleted" on "image" { name, sha256, reason };
    /// An instance was admitted: its quota is held.
    InstanceCreated = "instance.created" on "instance" { state, desiredState, poolId, name };
    /// An instance cannot be placed yet.
    InstanceWaiting = "instance.waiting" on "instance" { state, poolId, reason };
    /// A host has a place for it, and is told of it.
    InstanceScheduled = "instance.scheduled" on "instance" { state, desiredState, poolId, nodeId, allocationId, addresses };
    /// It is to run: somebody asked.
    InstanceStarting = "instance.starting" on "instance" { state, desiredState, poolId, nodeId };
    /// It runs, as its host says.
    InstanceRunning = "instance.running" on "instance" { state, desiredState, poolId, nodeId };
    /// It is to stop: somebody asked.
    InstanceStopping = "instance.stopping" on "instance" { state, desiredState, poolId, nodeId };
    /// It is stopped, as its host says.
    InstanceStopped = "instance.stopped" on "instance" { state, desiredState, poolId, nodeId };
    /// It is to go, with its disk: somebody asked, or `reason` says what else.
    InstanceDeleting = "instance.deleting" on "instance" { state, desiredState, poolId, nodeId, reason };
    /// Nothing of it is left, and all that it held was given back.
    InstanceDeleted = "instance.deleted" on "instance" { state, desiredState, poolId, reason };
    /// Its host cannot do what was asked of it.
    InstanceFailed = "instance.failed" on "instance" { state, desiredState, poolId, nodeId, reason, message };
    /// Its host is lost, or was given up with it.
    InstanceLost = "instance.lost" on "instance" { state, desiredState, poolId, nodeId };
    /// It was lost, and its host says that it is there.
    InstanceRecovered = "instance.recovered" on "instance" { state, desiredState, poolId, nodeId };
    /// It was taken off its host, and is made anew from its image on another. `reason` is `host-lost`, `force-released` or
    /// `resources-exhausted`.
    InstanceRecreating = "instance.recreating" on "instance" { state, desiredState, poolId, fromNodeId, reason, by };
    /// It has another size, from its next start on.
    InstanceResized = "instance.resized" on "instance" { state, desiredState, poolId, nodeId, flavor };
    /// Its state lasts longer than it may: somebody should look.
    InstanceStuck = "instance.stuck" on "instance" { state, desiredState, poolId, nodeId, reason };
    /// A host holds other instances than before that have no place there, or none any more. At most 100 are named. They are left as
    /// they are.
    InstanceOrphaned = "instance.orphaned" on "node" { nodeId, instanceIds };

    /// A value was kept, in the place of an earlier one or as the first of its name. It is nowhere in the event.
    SecretPut = "secret.put" on "secret" { name, version };
    /// A secret was deleted.
    SecretDeleted = "secret.deleted" on "secret" { name };

    /// Somebody is connected to an instance, or to a node's console.
    TunnelOpened = "tunnel.opened" on "tunnel" { instanceId, nodeId, op, port, by, sourceIp };
    /// It may not go on: its gateway is told to close it.
    TunnelRevoked = "tunnel.revoked" on "tunnel" { instanceId, nodeId, op, by, reason };
    /// It is closed.
    TunnelClosed = "tunnel.closed" on "tunnel" { instanceId, nodeId, op, by, reason, toNodeBytes, toClientBytes };

    /// A machine presented a join token and waits for approval.
    NodePending = "node.pending" on "join-request" { siteId, fingerprint, name };
    /// A machine joined a site and has a certificate.
    NodeJoined = "node.joined" on "node" { state, siteId, name, rejoined };
    /// A join was refused, by a person or by a rule.
    NodeRefused = "node.refused" on "join-request" { siteId, name, reason };
    /// The node was taken into a pool and is being checked.
    NodeAdopted = "node.adopted" on "node" { state, poolId, siteId };
    /// The node was taken out of its pool or moved to another.
    NodeMoved = "node.moved" on "node" { poolId, previousPoolId };
    /// The node passed its checks and takes work.
    NodeReady = "node.ready" on "node" { state, poolId };
    /// The checks of acceptance failed.
    NodeAcceptanceFailed = "node.acceptance-failed" on "node" { state, commandId, reason };
    /// The node was not heard of for several heartbeats. What runs on it is left as it is.
    NodeUnreachable = "node.unreachable" on "node" { state, lastSeenAt, reason };
    /// The node is heard of again.
    NodeReachable = "node.reachable" on "node" { state };
    /// The node was given up, by its pool's policy or by a person: what it held is placed elsewhere.
    NodeLost = "node.lost" on "node" { state, reason };
    /// A person gave the node up: nothing runs there any more, by their word.
    NodeDeclaredDead = "node.declared-dead" on "node" { state, by };
    /// The node takes no new work.
    NodeCordoned = "node.cordoned" on "node" { reason, by };
    /// The node takes new work again.
    NodeUncordoned = "node.uncordoned" on "node" { by };
    /// What is on the node is asked to leave it, or no longer.
    NodeDraining = "node.draining" on "node" { draining, reason, by };
    /// The node takes no work and is trusted with nothing until a person looked, or is released from that.
    NodeQuarantined = "node.quarantined" on "node" { quarantined, reason };
    /// The node's certificates are refused from now on.
    NodeRevoked = "node.revoked" on "node" { state, reason, by };
    /// The node's record is closed.
    NodeRemoved = "node.removed" on "node" { state, by };
    /// Somebody was given an SSH certificate for an account of the node.
    NodeSshCertIssued = "node.ssh-cert-issued" on "node" { serial, account, keyFingerprint, by, reason, sourceIp, validBefore };
    /// The node is told to take an SSH certificate no more.
    NodeSshCertRevoked = "node.ssh-cert-revoked" on "node" { serial, account, keyFingerprint, by, reason };
    /// Labels of the node were changed by a person.
    NodeLabelled = "node.labelled" on "node" { labels, by };
    /// The accepted inventory of the node changed.
    NodeInventory = "node.inventory" on "node" { sections };
    /// Conditions of the node or its devices appeared or went.
    NodeCondition = "node.condition" on "node" { raised, cleared };
    /// The node's own account of itself changed: generations, sections, conditions.
    NodeStatus = "node.status" on "node" { observedGeneration, appliedGeneration, sections, conditions };
    /// Something the node observed on its own.
    NodeEvent = "node.event" on "node" { journalId, seq, class, kind, report, observedAt };
    /// A report of the node could not be handled; it is kept and not tried again.
    NodeReportFailed = "node.report-failed" on "node" { journalId, seq, kind, handler, reason };
    /// A session of the node began.
    NodeConnected = "node.connected" on "node" { gatewayId, sessionEpoch, agentVersion };
    /// A session of the node ended.
    NodeDisconnected = "node.disconnected" on "node" { gatewayId, sessionEpoch, reason };
    /// The node lost its journal and started a new one.
    NodeJournalLost = "node.journal-lost" on "node" { journalId, previousJournalId };
    /// The node started again.
    NodeRebooted = "node.rebooted" on "node" { bootId, previousBootId };

    /// A command has an end.
    CommandSettled = "command.settled" on "command" { nodeId, kind, state, reason, message };

    /// A report named another node than the one that sent it. It reached no handler.
    SecurityNodeMismatch = "security.node-mismatch" on "node" { journalId, seq, kind, claimedNodeId };
    /// A report could not be decoded, or its signature did not hold. It reached no handler.
    SecurityInvalidReport = "security.invalid-report" on "node" { journalId, seq, kind, reason };
    /// A node asked for a secret that it may not have, or somebody asked in its name. Told once a minute of each node and reason.
    SecuritySecretRefused = "security.secret-refused" on "node" { instanceId, allocationId, secretId, reason };
    /// A node lists a device that is another node's, in use there or listed by it too. It is not taken from its owner.
    SecurityDeviceClaimed = "security.device-claimed" on "node" { atom, ownerNodeId };
    /// A node proved intent newer than this database holds: the database is older than what it ordered.
    SecurityRestoreSuspected = "security.restore-suspected" on "node" { epoch, generation, reason };

    /// Somebody stood by a restored database: intent flows again, under a new epoch.
    DeploymentRestored = "deployment.restored" on "deployment" { epoch, reason, by };

    /// A site was made.
    SiteCreated = "site.created" on "site" { name };
    /// A pool was made.
    PoolCreated = "pool.created" on "pool" { name };
    /// A pool or its policy was changed.
    PoolUpdated = "pool.updated" on "pool" { name, changed };
    /// A pool was deleted.
    PoolDeleted = "pool.deleted" on "pool" { name };
    /// A quota was set or taken away.
    QuotaChanged = "quota.changed" on "quota" { resource, amount, previousAmount, deleted };
    /// A join token was made, or revoked.
    JoinTokenChanged = "join-token.changed" on "join-token" { siteId, revoked };

    /// A tenant was made.
    IamTenantCreated = "iam.tenant.created" on "tenant" { name, parentId };
    /// A tenant is to go with all that it has: somebody asked.
    IamTenantDeleting = "iam.tenant.deleting" on "tenant" { name, has };
    /// A tenant was deleted, and nothing that it had is left.
    IamTenantDeleted = "iam.tenant.deleted" on "tenant" { name };
    /// A person or a service account was made.
    IamUserCreated = "iam.user.created" on "user" { name, kind };
    /// A user was disabled or enabled.
    IamUserChanged = "iam.user.changed" on "user" { name, disabled };
    /// A token was made. Its secret is nowhere.
    IamTokenCreated = "iam.token.created" on "token" { userId, name, expiresAt };
    /// A token was revoked.
    IamTokenRevoked = "iam.token.revoked" on "token" { userId, name };
    /// A policy was written.
    IamPolicyChanged = "iam.policy.changed" on "policy" { name, version };
    /// A policy was deleted.
    IamPolicyDeleted = "iam.policy.deleted" on "policy" { name };
    /// A policy was bound to a user.
    IamBindingCreated = "iam.binding.created" on "binding" { policyId, userId };
    /// A binding was taken away.
    IamBindingDeleted = "iam.binding.deleted" on "binding" { policyId, userId };
}

impl EventKind {
    pub fn parse(text: &str) -> Option<EventKind> {
        EventKind::ALL.iter().copied().find(|kind| kind.name() == text)
    }
}

/// Appends an event about `{subject_kind}/{id}`. Readers of `tenant_id` and the tenants above may see it; `None` is for
/// what belongs to the installation, which the root tenant's readers see.
///
/// Data holds no secret. Its names are those of the table; in a debug build any other name is a panic.
pub async fn append(
    tx: &mut Tx<'_>,
    rng: &dyn Rng,
    kind: EventKind,
    id: impl std::fmt::Display,
    tenant_id: Option<TenantId>,
    data: Value,
) -> Result<(), StoreError> {
    let event = made(rng, &News { kind, id: id.to_string(), tenant_id, data });
    store::outbox::append(tx, event).await
}

/// An event to append with others.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    pub kind: EventKind,
    /// Of its subject, whose kind the event's kind says.
    pub id: String,
    pub tenant_id: Option<TenantId>,
    pub data: Value,
}

/// Many [`append`]s, numbered in this order. All events of a transaction are one statement.
pub async fn append_all(tx: &mut Tx<'_>, rng: &dyn Rng, news: &[News]) -> Result<(), StoreError> {
    for one in news {
        store::outbox::append(tx, made(rng, one)).await?;
    }
    Ok(())
}

fn made(rng: &dyn Rng, news: &News) -> store::outbox::Event {
    let News { kind, id, tenant_id, data } = news;
    if cfg!(debug_assertions) {
        let unknown = data
            .as_object()
            .and_then(|data| data.keys().find(|name| !kind.fields().contains(&name.as_str())));
        assert!(
            unknown.is_none(),
            "event {} has no field {unknown:?}: add it in kernel::events",
            kind.name()
        );
    }
    let subject = format!("{}/{id}", kind.subject_kind());
    let id = EventId::from_uuid(uuid::Builder::from_random_bytes(rng.bytes()).into_uuid());
    store::outbox::Event { id, kind: kind.name(), subject, tenant_id: *tenant_id, data: data.clone() }
}

/// The reference page, from the table.
pub fn reference() -> String {
    let mut page = String::from(
        "# Events\n\nEvery event has a number that only rises, a kind, a subject, a time, and data. They are read with \
         `events.list` or followed at\n`GET /api/compute/events/stream`, which resumes after the number in \
         `Last-Event-ID`. Data may gain fields; a reader ignores those it does\nnot know.\n\n| Kind | Subject | Data | \
         When |\n|---|---|---|---|\n",
    );
    for kind in EventKind::ALL {
        let fields: Vec<String> = kind.fields().iter().map(|field| format!("`{field}`")).collect();
        let line = format!(
            "| `{}` | `{}/…` | {} | {} |\n",
            kind.name(),
            kind.subject_kind(),
            if fields.is_empty() { "–".to_owned() } else { fields.join(", ") },
            kind.doc(),
        );
        page.push_str(&line);
    }
    page
}

#[cfg(test)]
mod tests;
