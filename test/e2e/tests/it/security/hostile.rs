//! A gateway and database in the wrong hands: whatever they hand to a real daemon, it does only what our keys signed for it, and once.

use agent::testing::{Deployment, command_id, nth};
use gateway::memory::MemoryDelivery;
use gateway::{Gateway, GatewayConfig, GatewayParts, Metrics, Tls};
use kernel::ports::delivery::{InboxAnswer, InboxKind, StoredCommand, StoredSpec};
use kit::{OsRng, TaskKind};
use model::command::RejectReason;
use model::lifecycle::CommandState;
use model::{CommandId, CommandKind, SiteId, Timestamp};
use pki::response::JoinResponse;
use pki::tls::{TlsClock, TlsIdentity, server_config};
use pki::{NodeName, NodeTrust, Purpose, Validity};
use prost::Message;
use rustix::process::Signal;
use tokio::net::TcpListener;
use wire::proto::agent::{
    Command, CommandBody, DesiredState, FreshBinding, FreshStatement, JoinReply, NodeSpec, SignedJoinResponse,
};

use super::*;

const NODE: u128 = 5;
const OTHER_NODE: u128 = 6;
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

fn now() -> Timestamp {
    SystemClock::new().now()
}

/// Serves from a store into which the test writes what a thief would.
struct Den {
    sim: Sim,
    store: MemoryDelivery,
    deployment: Arc<Deployment>,
    supervisor: Supervisor,
    _dir: tempfile::TempDir,
}

impl Drop for Den {
    fn drop(&mut self) {
        self.supervisor.token().cancel();
    }
}

impl Den {
    async fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("bc-e2e-").tempdir()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (deployment, supervisor) = (Arc::new(Deployment::new(1)), Supervisor::new());
        let store = MemoryDelivery::new(clock.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let gateway = Gateway::new(GatewayParts {
            config: GatewayConfig::new(nth(1), address.to_string()),
            tls: tls(&deployment)?,
            store: Arc::new(store.clone()),
            images: None,
            tunnels: None,
            clock,
            rng: Arc::new(OsRng),
            supervisor: supervisor.clone(),
            metrics: Metrics::default(),
        });
        supervisor.spawn(TaskKind::isolated("gateway"), |stop| async move {
            gateway.run(listener, stop).await;
            Ok::<_, std::convert::Infallible>(())
        });
        let (asked, keys) = (store.clone(), deployment.clone());
        supervisor.spawn(TaskKind::isolated("worker"), |stop| async move {
            loop {
                // Cancel-safe: nobody is left who waits for an answer.
                let item = tokio::select! {
                    item = asked.next_request() => item,
                    () = stop.cancelled() => return Ok::<_, std::convert::Infallible>(()),
                };
                let answer = answer(&asked, &keys, item.request.kind, &item.request.request);
                item.answer(InboxAnswer::Reply(answer));
            }
        });
        let sim = start(&deployment, dir.path(), address).await?;
        Ok(Self { sim, store, deployment, supervisor, _dir: dir })
    }

    fn stored(&self, command: Command) -> anyhow::Result<StoredCommand> {
        let body = CommandBody::decode(command.body.clone())?;
        let kind = CommandKind::parse(&body.kind).context("a known kind")?;
        Ok(StoredCommand {
            command_id: body.command_id.parse()?,
            node_id: nth(NODE),
            kind: body.kind,
            lane: kind.policy().lane.name().to_owned(),
            body: command.body.to_vec(),
            signature: command.signature.context("a signature")?.value.to_vec(),
            attempt: 0,
            cancel_requested: None,
        })
    }

    fn send(&self, command: Command) -> anyhow::Result<CommandId> {
        let stored = self.stored(command)?;
        let id = stored.command_id;
        self.store.enqueue(stored, now().saturating_add(Duration::from_secs(600)));
        Ok(id)
    }

    async fn settles(&self, id: CommandId) -> anyhow::Result<(CommandState, String)> {
        eventually(SETTLED_WITHIN, "the command settles", async || {
            let fate = self.store.command_fate(id).context("it was stored")?;
            let over = fate.state.terminal();
            Ok(if over { Ok((fate.state, fate.reason)) } else { Err(format!("{fate:?}")) })
        })
        .await
    }

    async fn succeeds(&self, command: Command) -> anyhow::Result<()> {
        let fate = self.settles(self.send(command)?).await?;
        ensure!(fate.0 == CommandState::Succeeded, "{fate:?}");
        Ok(())
    }

    async fn rejects(&self, command: Command, why: RejectReason) -> anyhow::Result<()> {
        let fate = self.settles(self.send(command)?).await?;
        ensure!(fate == (CommandState::Rejected, why.name().to_owned()), "{why:?}: {fate:?}");
        Ok(())
    }

    /// A row that claims `generation`, whatever is in it.
    fn put_spec(&self, generation: u64, spec: DesiredState) -> anyhow::Result<()> {
        self.store.put_spec(StoredSpec {
            node_id: nth(NODE),
            generation,
            body: spec.body.to_vec(),
            signature: spec.signature.context("a signature")?.value.to_vec(),
        });
        Ok(())
    }

    async fn stands_at(&self, generation: u64) -> anyhow::Result<()> {
        eventually(SETTLED_WITHIN, "the node stands at its spec", async || {
            let status = self.store.status(nth(NODE));
            let there = status.as_ref().is_some_and(|(_, observed)| *observed == generation);
            Ok(if there { Ok(()) } else { Err(format!("{status:?}")) })
        })
        .await
    }

    /// Waits until the daemon has refused a spec for this reason.
    async fn refuses_spec(&self, why: &str) -> anyhow::Result<()> {
        eventually(SETTLED_WITHIN, "the spec is refused", async || {
            let log = self.sim.log();
            let said = log.lines().any(|line| line.contains("spec refused") && line.contains(why));
            Ok(if said { Ok(()) } else { Err(log) })
        })
        .await
    }
}

fn tls(deployment: &Deployment) -> anyhow::Result<Tls> {
    let key = SigningKey::generate(&OsEntropy);
    let validity = Validity::starting(now(), Duration::from_secs(3600));
    let issued =
        deployment.serving_ca.issue_serving(&[GATEWAY_NAME], key.verifying_key(), validity, &OsEntropy)?;
    let chain = vec![issued.der, deployment.serving_ca.certificate_der().to_vec()];
    let cas = vec![deployment.node_ca.certificate_der().to_vec()];
    Ok(Tls {
        config: server_config(&TlsIdentity { chain, key }, &cas, TlsClock::new(now))?,
        trust: Arc::new(NodeTrust::new(deployment.trust_domain.clone(), &cas)?),
    })
}

/// An honest worker's part: certificates for who asks, and the binding of a first spec.
fn answer(store: &MemoryDelivery, deployment: &Deployment, kind: InboxKind, request: &[u8]) -> Vec<u8> {
    match kind {
        InboxKind::Join => {
            let request = JoinRequest::decode(request).expect("the gateway passes on what it decoded");
            joined(store, deployment, &request.csr_der)
        }
        InboxKind::Fresh => {
            let asked = FreshStatement::decode(request).expect("the gateway asks in the worker's own words");
            let statement = spec(deployment, 1, NODE).fresh_statement(asked.nonce);
            let signature = Some(deployment.sign(Purpose::DeploymentEpoch, &statement));
            FreshBinding { statement: statement.into(), signature }.encode_to_vec()
        }
        InboxKind::Renew | InboxKind::Secret => Vec::new(),
    }
}

fn joined(store: &MemoryDelivery, deployment: &Deployment, csr: &[u8]) -> Vec<u8> {
    let key = pki::verify_csr(csr).expect("the daemon's own request");
    let name = NodeName {
        trust_domain: deployment.trust_domain.clone(),
        site_id: nth::<SiteId>(1),
        role: Role::Node,
        node_id: nth(NODE),
    };
    let issued = deployment.node_ca.issue_node(&name, &key, now(), &OsEntropy).expect("fixed parameters");
    store.add_node(name.node_id, &issued.serial.to_string());
    let response = JoinResponse {
        node_id: name.node_id,
        site_id: name.site_id,
        role: name.role,
        chain: vec![issued.der],
        csr_sha256: pki::csr_sha256(csr),
        trust_bundle: deployment.trust().sign(&deployment.join_signing),
        served_at: now(),
        deployment_id: deployment.id,
        deployment_epoch: deployment.epoch,
    };
    let value = response.sign(&deployment.join_signing).encode().into();
    let outcome = Some(join_reply::Outcome::Accepted(SignedJoinResponse { value }));
    JoinReply { outcome }.encode_to_vec()
}

/// A spec that asks for nothing, signed for a node.
struct Spec {
    body: wire::proto::agent::DesiredStateBody,
    signed: DesiredState,
}

fn spec(deployment: &Deployment, generation: u64, node: u128) -> Spec {
    let body = deployment.spec_body(node, generation, NodeSpec::default());
    let signed = deployment.signed_spec(&body, None);
    Spec { body, signed }
}

impl Spec {
    fn fresh_statement(&self, nonce: impl Into<prost::bytes::Bytes>) -> Vec<u8> {
        FreshStatement {
            node_id: self.body.node_id.clone(),
            nonce: nonce.into(),
            generation: self.body.generation,
            deployment_epoch: self.body.deployment_epoch,
            spec_hash: self.body.spec_hash.clone(),
        }
        .encode_to_vec()
    }
}

async fn start(
    deployment: &Deployment,
    dir: &std::path::Path,
    gateway: std::net::SocketAddr,
) -> anyhow::Result<Sim> {
    let to = deployment.join_decryption.encryption_key();
    let pins = json!({
        "servingCaPin": deployment.serving_ca.pin().to_string(),
        "joinSigningPin": deployment.join_signing.verifying_key().pin().to_string(),
        "joinEncryptionPin": to.pin().to_string(),
        "joinEncryptionJwk": serde_json::from_str::<Value>(&to.to_jwk())?,
    });
    let token = JoinToken::generate(nth(1), &OsEntropy).reveal().to_string();
    let dir = dir.join("machines");
    // It waits for the daemon, which waits for us.
    let starting = move || e2e::serve::start_sim(&dir, gateway, GATEWAY_NAME, &pins, 1, &token);
    tokio::task::spawn_blocking(starting).await?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_does_only_what_our_keys_signed_for_it_and_once() -> anyhow::Result<()> {
    let den = Den::new().await?;
    let ours = &den.deployment;
    let thief = Deployment::new(2);
    den.put_spec(1, spec(ours, 1, NODE).signed)?;
    den.stands_at(1).await?;

    let until = u64::try_from(now().saturating_add(Duration::from_secs(600)).millis())?;
    let body = |n: u128, node: u128, kind: CommandKind| CommandBody {
        not_after_ms: until,
        ..ours.command_body(node, command_id(n), kind)
    };
    let refresh = |n| body(n, NODE, CommandKind::InventoryRefresh);
    den.succeeds(ours.signed_command(&refresh(10))).await?;

    den.rejects(thief.signed_command(&refresh(11)), RejectReason::BadSignature).await?;
    // The signature of something harmless under something that is not.
    let mut swapped = ours.signed_command(&refresh(12));
    swapped.body = body(12, NODE, CommandKind::NodeReboot).encode_to_vec().into();
    den.rejects(swapped, RejectReason::BadSignature).await?;
    let mut repurposed = ours.signed_command(&refresh(13));
    repurposed.signature = Some(ours.sign(Purpose::DesiredState, &repurposed.body));
    den.rejects(repurposed, RejectReason::BadSignature).await?;
    // What is signed for another node does not even leave the gateway.
    let id = den.send(ours.signed_command(&body(14, OTHER_NODE, CommandKind::NodeReboot)))?;
    let fate = den.settles(id).await?;
    ensure!(fate == (CommandState::Cancelled, "invalid-body".to_owned()), "{fate:?}");
    let old = CommandBody { deployment_epoch: 0, ..refresh(15) };
    den.rejects(ours.signed_command(&old), RejectReason::StaleGeneration).await?;
    let late = CommandBody { not_after_ms: agent::testing::at_ms(3600), ..refresh(16) };
    den.rejects(ours.signed_command(&late), RejectReason::Expired).await?;

    specs(&den, &thief).await?;

    // A replay is answered and not done again.
    let reboot = ours.signed_command(&body(20, NODE, CommandKind::NodeReboot));
    den.succeeds(reboot.clone()).await?;
    den.send(reboot)?;
    den.succeeds(ours.signed_command(&refresh(21))).await?;
    stopped_after(den, 1)
}

async fn specs(den: &Den, thief: &Deployment) -> anyhow::Result<()> {
    let ours = &den.deployment;
    den.put_spec(3, spec(ours, 3, NODE).signed)?;
    den.stands_at(3).await?;
    den.put_spec(4, spec(thief, 4, NODE).signed)?;
    den.refuses_spec("signature").await?;
    den.put_spec(5, spec(ours, 5, OTHER_NODE).signed)?;
    den.refuses_spec("another node").await?;
    let mut old = spec(ours, 6, NODE).body;
    old.deployment_epoch = 0;
    den.put_spec(6, ours.signed_spec(&old, None))?;
    den.refuses_spec("epoch").await?;
    // An earlier one of our own under a newer number: what is in it counts.
    den.put_spec(7, spec(ours, 2, NODE).signed)?;
    let mut forged = spec(ours, 8, NODE).signed;
    forged.body = spec(ours, 9, NODE).signed.body;
    den.put_spec(8, forged)?;
    den.put_spec(9, spec(ours, 9, NODE).signed)?;
    den.stands_at(9).await?;
    let log = den.sim.log();
    let took: Vec<&str> = log.lines().filter(|line| line.contains("took a spec")).collect();
    ensure!(took.len() == 3, "{took:?}");
    Ok(())
}

/// Stops the machine, which counts how often it was rebooted.
fn stopped_after(mut den: Den, reboots: usize) -> anyhow::Result<()> {
    den.sim.running.signal(Signal::TERM)?;
    let status = den.sim.running.stop(Duration::from_secs(20))?;
    let log = den.sim.log();
    ensure!(status.success(), "{status}\n{log}");
    ensure!(log.contains(&format!("stopped; 1 machines, {reboots} reboots")), "{log}");
    Ok(())
}
