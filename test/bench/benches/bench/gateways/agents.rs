//! The daemon's own agents, a thousand in one process, with journals in memory and nothing to do but hold their session.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use agent::hardware::{NoHardware, NoHost};
use agent::identity::{Identity, MemoryIdentity};
use agent::journal::{EVENTS_MAX, Limits, Marks, MemoryJournal};
use agent::run::AgentParts;
use agent::transport::{Address, GrpcLink};
use agent::tunnel::NoTunnels;
use kit::{Clock, OnEnd, OsRng, Rng, Supervisor, SystemClock};
use model::{DeploymentId, JournalId, Role, SiteId, Timestamp};
use pki::{SeededEntropy, SigningKey, TrustBundle};
use serde_json::json;
use uuid::Uuid;

use crate::sessions::{identities, part};

mod watch;

pub use watch::{Recovery, Stages};
use watch::{Watch, Watched};

/// The smallest journal that a configuration may ask for; these hold nothing.
const JOURNAL_BYTES_MAX: u64 = 16 << 20;

/// Starts them all; they run until the benchmark is over. Each line is answered by how those came back that did since the last.
pub async fn run(numbers: Range<u64>, at: Timestamp, gateway: SocketAddr) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng: Arc<dyn Rng> = Arc::new(OsRng);
    let (ca, trust, supervisor) = (identities::node_ca(at)?, trust(at)?, Supervisor::new());
    let signed_trust = trust.sign(&SigningKey::generate(&SeededEntropy::new(9))).encode();
    let watch = Watch::default();
    for number in numbers {
        let node = identities::node(number, &ca, at)?;
        let identity = Identity {
            node_id: node.node_id,
            site_id: SiteId::from_uuid(Uuid::from_u128(1)),
            role: Role::Node,
            key: node.identity.key,
            chain: node.identity.chain,
            serial: node.certificate.serial,
            not_before: node.certificate.validity.not_before,
            not_after: node.certificate.validity.not_after,
            trust: trust.clone(),
            signed_trust: signed_trust.clone().into(),
            marks: Marks::default(),
        };
        let address = Address {
            host: gateway.ip().to_string(),
            port: gateway.port(),
            server_name: gateway.ip().to_string(),
        };
        let link = GrpcLink::new(address, trust.serving_ca_pins.clone(), clock.clone(), supervisor.clone());
        let journal_id: JournalId = rng.id(clock.now());
        let parts = AgentParts {
            agent_version: "bench".to_owned(),
            boot_id: format!("boot-{number}"),
            limits: Limits::for_file(JOURNAL_BYTES_MAX, EVENTS_MAX),
            clock: clock.clone(),
            rng: rng.clone(),
            link: Arc::new(Watched::new(link, watch.clone())),
            journal: Arc::new(MemoryJournal::new(journal_id)),
            identity: Arc::new(MemoryIdentity::holding(identity)),
            convergers: Vec::new(),
            kinds: Vec::new(),
            hardware: Arc::new(NoHardware),
            host: Arc::new(NoHost),
            tunnels: Arc::new(NoTunnels),
            on_end: OnEnd::Isolate,
        };
        agent::run::run(parts, &supervisor)?;
    }
    part::say(&json!("started"));
    loop {
        part::line().await?;
        part::say(&serde_json::to_value(watch.take())?);
    }
}

fn trust(at: Timestamp) -> anyhow::Result<TrustBundle> {
    let join_signing = SigningKey::generate(&SeededEntropy::new(9));
    Ok(TrustBundle {
        version: 1,
        deployment_id: DeploymentId::from_uuid(Uuid::from_u128(1)),
        deployment_epoch: 1,
        trust_domain: identities::TRUST_DOMAIN.parse()?,
        command_roots: vec![SigningKey::generate(&SeededEntropy::new(8)).verifying_key().clone()],
        serving_ca_pins: vec![identities::serving_ca(at)?.pin()],
        join_signing_pins: vec![join_signing.verifying_key().pin()],
        node_cas: vec![identities::node_ca(at)?.certificate_der().to_vec()],
        issued_at: at,
    })
}
