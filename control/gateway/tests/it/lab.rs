//! A deployment's certificates, and gateways under them on a loopback port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gateway::{Gateway, GatewayConfig, GatewayParts, Metrics, Timing, Tls, TunnelParts};
use kernel::ports::delivery::DeliveryStore;
use kernel::ports::images::ImageStore;
use kit::{Clock, OsRng, Supervisor, SystemClock, TaskKind};
use model::{GatewayId, NodeId, Role, SiteId};
use pki::ca::{CertificateAuthority, Validity};
use pki::tls::{TlsClock, TlsIdentity, server_config};
use pki::{NodeName, NodeTrust, OsEntropy, SigningKey, TrustDomain};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);

pub struct Lab {
    pub serving_ca: CertificateAuthority,
    pub node_ca: CertificateAuthority,
    pub clock: Arc<dyn Clock>,
    pub supervisor: Supervisor,
    next: AtomicU64,
}

/// A node's identity as a join would have given it.
pub struct Machine {
    pub node_id: NodeId,
    pub serial: String,
    pub tls: TlsIdentity,
}

pub struct Running {
    pub gateway: Gateway,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub ended: kit::TaskHandle,
}

pub fn trust_domain() -> TrustDomain {
    "example.test".parse().expect("a fixed trust domain")
}

impl Lab {
    pub fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let validity = Validity::starting(clock.now(), 365 * DAY);
        let ca = |name| CertificateAuthority::create(name, validity, &OsEntropy).expect("fixed parameters");
        Self {
            serving_ca: ca("serving CA"),
            node_ca: ca("node CA"),
            clock,
            supervisor: Supervisor::new(),
            next: AtomicU64::new(1),
        }
    }

    pub fn tls_clock(&self) -> TlsClock {
        let clock = self.clock.clone();
        TlsClock::new(move || clock.now())
    }

    pub fn machine(&self) -> Machine {
        let node_id =
            NodeId::from_uuid(Uuid::from_u128(u128::from(self.next.fetch_add(1, Ordering::SeqCst))));
        self.machine_of(node_id, &self.node_ca)
    }

    pub fn machine_of(&self, node_id: NodeId, ca: &CertificateAuthority) -> Machine {
        let key = SigningKey::generate(&OsEntropy);
        let name = NodeName {
            trust_domain: trust_domain(),
            site_id: SiteId::from_uuid(Uuid::from_u128(1)),
            role: Role::Node,
            node_id,
        };
        let leaf =
            ca.issue_node(&name, key.verifying_key(), self.clock.now(), &OsEntropy).expect("it issues");
        Machine { node_id, serial: leaf.serial.to_string(), tls: TlsIdentity { chain: vec![leaf.der], key } }
    }

    fn tls(&self) -> Tls {
        let key = SigningKey::generate(&OsEntropy);
        let validity = Validity::starting(self.clock.now(), 30 * DAY);
        let leaf = self
            .serving_ca
            .issue_serving(&["127.0.0.1"], key.verifying_key(), validity, &OsEntropy)
            .expect("it issues");
        let chain = vec![leaf.der, self.serving_ca.certificate_der().to_vec()];
        let cas = [self.node_ca.certificate_der()];
        let config = server_config(&TlsIdentity { chain, key }, &cas, self.tls_clock()).expect("they fit");
        let trust = NodeTrust::new(trust_domain(), &cas).expect("it is an authority");
        Tls { config, trust: Arc::new(trust) }
    }

    pub async fn gateway(&self, store: Arc<dyn DeliveryStore>) -> Running {
        self.gateway_with(store, |_| {}).await
    }

    pub async fn gateway_with(
        &self,
        store: Arc<dyn DeliveryStore>,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Running {
        self.gateway_that_joins(store, None, change).await
    }

    pub async fn gateway_with_images(
        &self,
        store: Arc<dyn DeliveryStore>,
        images: Arc<dyn ImageStore>,
    ) -> Running {
        self.gateway_of(store, None, Some(images), |_| {}).await
    }

    pub async fn gateway_that_joins(
        &self,
        store: Arc<dyn DeliveryStore>,
        tunnels: Option<TunnelParts>,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Running {
        self.gateway_of(store, tunnels, None, change).await
    }

    async fn gateway_of(
        &self,
        store: Arc<dyn DeliveryStore>,
        tunnels: Option<TunnelParts>,
        images: Option<Arc<dyn ImageStore>>,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut config = GatewayConfig::new(GatewayId::from_uuid(Uuid::new_v4()), address.to_string());
        config.timing = quick();
        change(&mut config);
        let gateway = Gateway::new(GatewayParts {
            config,
            tls: self.tls(),
            store,
            images,
            tunnels,
            clock: self.clock.clone(),
            rng: Arc::new(OsRng),
            supervisor: self.supervisor.clone(),
            metrics: Metrics::default(),
        });
        let stop = CancellationToken::new();
        let run = gateway.run(listener, stop.clone());
        let ended = self.supervisor.spawn(TaskKind::isolated("gateway"), |_| async move {
            run.await;
            Ok::<_, std::convert::Infallible>(())
        });
        let serving = gateway.clone();
        testkit::eventually(Duration::from_secs(20), || async {
            if serving.is_serving() { Ok(()) } else { Err("it does not serve yet") }
        })
        .await;
        Running { gateway, address, stop, ended }
    }
}

/// The protocol's timing, a tenth to a twentieth of it.
pub fn quick() -> Timing {
    Timing {
        heartbeat: Duration::from_secs(10),
        hello_within: Duration::from_secs(3),
        call_within: Duration::from_secs(1),
        ttl: Duration::from_secs(3),
        renew: Duration::from_millis(300),
        beat: Duration::from_millis(50),
        dispatch: Duration::from_millis(100),
        specs: Duration::from_millis(500),
        ended: Duration::from_millis(200),
        drain_window: Duration::from_millis(300),
        drain_within: Duration::from_secs(2),
    }
}
