//! `nodes.issueSshCert`: who may log in, where and as whom, and the certificate for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::nodes::ssh_certs::{IssueSshCert, IssuedSshCert};
use api::{Method, Ref};
use kernel::events::{self, EventKind};
use kernel::module::wake_in;
use kernel::ports::iam::Resource;
use kernel::ports::tunnels::NodeDoor;
use kernel::{ApiError, Call, Fault, ResultExt};
use model::{ErrorCode, NodeId, SshCertId, Timestamp};
use pki::ssh::{
    Principal, RSA_BITS_MIN, SourceAddress, SshPublicKey, SshUserCertificate, UserCertificateRequest,
    issue_user_certificate,
};
use serde_json::json;
use store::{Op, Row, Tx};

use super::view::{KIND, of_account, view};
use super::watch::{LOOK_EVERY, QUEUE};
use super::{SshCa, accounts, key_of, read};
use crate::Access;
use crate::sql::ssh as sql;

const CERT_ISSUE: Op = Op::new("ssh_cert_issue");
pub(super) const ISSUE: &str = api::nodes::ssh_certs::Issue::ACTION;
const SEE_NODE: &str = "compute:nodes:get";
const TTL_MINUTES: u64 = 60;
/// What a node's clock may be behind by.
const CLOCK_ALLOWANCE: Duration = Duration::from_secs(60);

/// Good ones of a node: what its section may have to name as revoked.
const OF_NODE_MAX: i64 = 256;
/// Of those, one user's, so that nobody keeps others from having any.
const OF_NODE_AND_USER_MAX: i64 = 32;
/// Of a user, within [`OF_USER_SECS`], over all nodes.
const OF_USER_MAX: i64 = 200;
const OF_USER_SECS: i32 = 600;

/// A request that was read.
struct Wanted {
    key: SshPublicKey,
    principal: Principal,
    sources: Vec<SourceAddress>,
    not_after: Timestamp,
}

pub(super) async fn issue(
    access: Access,
    call: Arc<Call>,
    request: IssueSshCert,
) -> Result<IssuedSshCert, Fault> {
    let account = request.account.as_str();
    let node = access.node_for(&call, &request.node, account).await?;
    let ca = access.0.ssh.as_ref().ok_or_else(|| {
        let message =
            "this deployment has no key that signs SSH certificates: better-compute pki ssh-ca makes one";
        ApiError::new(ErrorCode::Unsupported, message)
    })?;
    let wanted = Wanted::parse(&request, node.node_id, call.now)?;
    let id: SshCertId = access.id();
    let signed = sign(ca, &call, id, &wanted, request.port_forwarding)?;
    call.about(format!("ssh-cert/{id}"));
    let (this, of_call, request) = (&access, &*call, &request);
    let (node, wanted, signed) = (&node, &wanted, &signed);
    let hostname = call
        .tx(access.store(), CERT_ISSUE, |tx| {
            Box::pin(async move {
                let hostname = admit(tx, of_call, node, account).await?;
                this.put(tx, of_call, node, id, ca, request, wanted, signed).await?;
                Ok::<_, Fault>(hostname)
            })
        })
        .await?;
    let cert = view(&read::one(&access, id).await?);
    Ok(IssuedSshCert { cert, certificate: signed.line.clone(), hostname })
}

impl Wanted {
    fn parse(request: &IssueSshCert, node_id: NodeId, now: Timestamp) -> Result<Self, ApiError> {
        let refused = |err: pki::ssh::SshError| ApiError::invalid("/publicKey", format!("failed to {err}"));
        let key: SshPublicKey = request.public_key.as_str().parse().map_err(refused)?;
        if let Some(bits) = key.rsa_bits().filter(|bits| *bits < RSA_BITS_MIN) {
            let message = format!(
                "this RSA key has {bits} bits, and {RSA_BITS_MIN} are the least: make another with ssh-keygen -t ed25519"
            );
            return Err(ApiError::invalid("/publicKey", message));
        }
        let principal = format!("{}@{node_id}", request.account.as_str()).parse().map_err(|_| {
            let message = "an account is 1 to 32 of a-z, 0-9, '_', '-', '.', the first a letter or '_'";
            ApiError::invalid("/account", message)
        })?;
        let mut sources = Vec::new();
        for (at, text) in request.source_addresses.as_slice().iter().enumerate() {
            sources.push(text.as_str().parse().map_err(|err: pki::ssh::SshError| {
                ApiError::invalid(&format!("/sourceAddresses/{at}"), format!("failed to {err}"))
            })?);
        }
        let minutes = request.ttl_minutes.map_or(TTL_MINUTES, |minutes| minutes.get());
        let not_after = now.saturating_add(Duration::from_secs(minutes * 60));
        // A certificate's times are whole seconds.
        let not_after = Timestamp::from_millis(not_after.millis().div_euclid(1000) * 1000);
        Ok(Self { key, principal, sources, not_after })
    }
}

fn sign(
    ca: &SshCa,
    call: &Call,
    id: SshCertId,
    wanted: &Wanted,
    port_forwarding: bool,
) -> Result<SshUserCertificate, Fault> {
    // What sshd writes into its log: who, and which row of ours.
    let key_id = format!("{}/{id}", call.principal.user_id);
    let request = UserCertificateRequest {
        key: &wanted.key,
        key_id: &key_id,
        principals: std::slice::from_ref(&wanted.principal),
        not_before: call.now.saturating_sub(CLOCK_ALLOWANCE),
        not_after: wanted.not_after,
        sources: &wanted.sources,
        port_forwarding,
    };
    issue_user_certificate(&ca.key, &request, &*ca.entropy).doing("issue an SSH certificate")
}

/// Whether the node takes certificates for the account, and has room for one more. Gives what the node calls itself.
async fn admit(tx: &mut Tx<'_>, call: &Call, node: &NodeDoor, account: &str) -> Result<String, Fault> {
    let held: Option<Row> = tx.query_opt(&sql::NODE_HOLD, &[&node.node_id.uuid()]).await?;
    let held = held.ok_or_else(|| ApiError::not_found("node", &node.name))?;
    let Some(pool) = held.get::<_, Option<String>>("pool") else {
        let message = format!(
            "node {} is in no pool, and nobody logs in there; try: better-compute nodes adopt {} --pool POOL",
            node.name, node.name
        );
        return Err(ApiError::invalid_state(message).detail("state", held.get::<_, &str>("state")).into());
    };
    let named = accounts(held.get("accounts"));
    if !named.iter().any(|one| one == account) {
        let message = match named.is_empty() {
            true => format!("pool {pool} lets nobody log in on its nodes: its policy names no sshAccounts"),
            false => {
                format!("pool {pool} lets people log in as {}, and not as {account:?}", named.join(", "))
            }
        };
        let help = format!("better-compute pools get {pool}");
        return Err(ApiError::invalid_state(message).detail("sshAccounts", named).detail("see", help).into());
    }
    let user_id = call.principal.user_id.uuid();
    let counted = tx.query_one(&sql::CERTS_COUNT, &[&node.node_id.uuid(), &user_id, &OF_USER_SECS]).await?;
    let limits = [
        ("of_node", OF_NODE_MAX, "the node"),
        ("of_both", OF_NODE_AND_USER_MAX, "the node for one user"),
        ("of_user", OF_USER_MAX, "one user within ten minutes"),
    ];
    for (column, most, whose) in limits {
        if counted.get::<_, i64>(column) >= most {
            let message =
                format!("there are {most} SSH certificates of {whose}, which is the most there may be");
            let refusal = ApiError::new(ErrorCode::RateLimited, message).detail("limit", most);
            return Err(ApiError { retry_after: Some(60), ..refusal }.into());
        }
    }
    Ok(held.get("hostname"))
}

impl Access {
    async fn node_for(&self, call: &Call, node: &Ref<NodeId>, account: &str) -> Result<NodeDoor, Fault> {
        let shown = match node {
            Ref::Id(id) => id.to_string(),
            Ref::Name(name) => name.clone(),
        };
        let Some(door) = self.0.nodes.node(node).await? else {
            call.decide(ISSUE, &Resource::any(KIND, call.principal.tenant_id)).await?;
            return Err(ApiError::not_found("node", shown).into());
        };
        let resource = of_account(door.resource.clone(), account);
        call.require_on(ISSUE, SEE_NODE, &resource, "node", &shown).await?;
        Ok(door)
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is one row")]
    async fn put(
        &self,
        tx: &mut Tx<'_>,
        call: &Call,
        node: &NodeDoor,
        id: SshCertId,
        ca: &SshCa,
        request: &IssueSshCert,
        wanted: &Wanted,
        signed: &SshUserCertificate,
    ) -> Result<(), Fault> {
        let ca_key = ca.public.line();
        if tx.query_opt(&sql::CA_KEY_HOLD, &[&ca_key]).await?.is_none() {
            let message = "the key that signs SSH certificates was replaced, and this process has the one before: restart it";
            return Err(ApiError::new(ErrorCode::Unavailable, message).into());
        }
        let (principal, source_ip) = (&call.principal, call.source_ip.to_string());
        let serial = i64::try_from(signed.serial).doing("store an SSH certificate's serial")?;
        let (account, reason) = (request.account.as_str(), request.reason.as_str());
        let valid_before = SystemTime::from(wanted.not_after);
        let fingerprint = wanted.key.fingerprint();
        let values: [&(dyn store::Param + Sync); 12] = [
            &id.uuid(),
            &serial,
            &ca_key,
            &node.node_id.uuid(),
            &node.tenant_id.uuid(),
            &account,
            &fingerprint,
            &principal.user_id.uuid(),
            &principal.token_id.uuid(),
            &source_ip,
            &reason,
            &valid_before,
        ];
        tx.execute(&sql::CERT_INSERT, &values).await?;
        let data = json!({
            "serial": serial.to_string(), "account": account, "keyFingerprint": fingerprint, "by": principal.name,
            "reason": reason, "sourceIp": source_ip, "validBefore": wanted.not_after.to_string(),
        });
        let kind = EventKind::NodeSshCertIssued;
        events::append(tx, &*self.0.rng, kind, node.node_id, Some(node.tenant_id), data).await?;
        Ok(wake_in(tx, QUEUE, &key_of(id.uuid()), LOOK_EVERY).await?)
    }
}
