//! The real link against a real gRPC server over real TLS, both ends of one loopback connection.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper_util::rt::TokioExecutor;
use kit::SystemClock;
use model::{Role, Timestamp};
use pki::tls::server_config;
use pki::{SigningKey, Validity};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::metadata::MetadataValue;
use tonic::{Response, Streaming};
use wire::proto::agent::gateway_frame::Frame as GatewayKind;
use wire::proto::agent::node_frame::Frame as NodeKind;
use wire::proto::agent::{Heartbeat, HeartbeatAck, Hello, JoinDeferred, Welcome, join_reply};

use super::*;
use crate::testing::Deployment;

const NAME: &str = "gateway.example.test";

fn now() -> Timestamp {
    SystemClock::new().now()
}

/// Answers sessions with a Welcome and acks, joins with a deferral, renewals with a busy refusal.
#[derive(Clone)]
struct Gateway {
    /// Sessions refused as busy before one is taken.
    busy: Arc<AtomicU32>,
    with_certificate: bool,
}

type GatewayStream = futures::stream::BoxStream<'static, Result<GatewayFrame, Status>>;

fn pushed_back(ms: u32) -> Status {
    let mut status = Status::unavailable("busy");
    status.metadata_mut().insert(paths::RETRY_PUSHBACK, MetadataValue::from(ms));
    status
}

struct SessionMethod(Gateway);

impl tower_service::Service<Request<Streaming<NodeFrame>>> for SessionMethod {
    type Response = Response<GatewayStream>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<NodeFrame>>) -> Self::Future {
        let gateway = self.0.clone();
        Box::pin(async move {
            if !gateway.with_certificate {
                return Err(Status::unauthenticated("no certificate"));
            }
            if gateway.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return Err(pushed_back(4321));
            }
            let mut frames = request.into_inner();
            // The Hello is read before anything is answered, headers included.
            let first = frames.message().await?.and_then(|frame| frame.frame);
            let Some(NodeKind::Hello(hello)) = first else {
                return Err(Status::invalid_argument("no Hello"));
            };
            let welcome = Welcome { gateway_id: hello.node_id, ..Welcome::default() };
            let answers = frames.map_ok(|frame| match frame.frame {
                Some(NodeKind::Heartbeat(beat)) => {
                    GatewayKind::HeartbeatAck(HeartbeatAck { seq: beat.seq, server_time_ms: 0 })
                }
                _ => GatewayKind::Refusal(Default::default()),
            });
            let first = futures::stream::once(async { Ok(GatewayKind::Welcome(welcome)) });
            let all = first.chain(answers).map_ok(|frame| GatewayFrame { frame: Some(frame) });
            Ok(Response::new(all.boxed()))
        })
    }
}

struct JoinMethod;

impl tower_service::Service<Request<JoinRequest>> for JoinMethod {
    type Response = Response<JoinReply>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<JoinRequest>) -> Self::Future {
        let join_request_id = request.into_inner().hostname;
        let deferred = JoinDeferred { join_request_id, retry_after_ms: 5 };
        Box::pin(async {
            Ok(Response::new(JoinReply { outcome: Some(join_reply::Outcome::Deferred(deferred)) }))
        })
    }
}

async fn serve(
    request: http::Request<Incoming>,
    gateway: Gateway,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let request = request.map(Body::new);
    Ok(if path == paths::SESSION {
        tonic::server::Grpc::new(ProstCodec::<GatewayFrame, NodeFrame>::default())
            .streaming(SessionMethod(gateway), request)
            .await
    } else if path == paths::JOIN {
        tonic::server::Grpc::new(ProstCodec::<JoinReply, JoinRequest>::default())
            .unary(JoinMethod, request)
            .await
    } else {
        Status::permission_denied("not today").into_http()
    })
}

struct World {
    deployment: Deployment,
    address: Address,
    supervisor: Supervisor,
    busy: Arc<AtomicU32>,
}

impl World {
    /// A gateway that serves under `NAME`, with a certificate of the deployment's serving CA.
    async fn new() -> Self {
        let deployment = Deployment::new(1);
        let key = SigningKey::generate(&deployment.entropy);
        let validity = Validity::starting(now(), Duration::from_secs(3600));
        let issued = deployment
            .serving_ca
            .issue_serving(&[NAME], key.verifying_key(), validity, &deployment.entropy)
            .unwrap();
        let identity =
            TlsIdentity { chain: vec![issued.der, deployment.serving_ca.certificate_der().to_vec()], key };
        let config = server_config(&identity, &deployment.trust().node_cas, TlsClock::new(now)).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = Address {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            server_name: NAME.into(),
        };
        let (supervisor, busy) = (Supervisor::new(), Arc::new(AtomicU32::new(0)));
        let (accepting, counter) = (supervisor.clone(), busy.clone());
        supervisor.spawn(TaskKind::isolated("test gateway"), |stop| async move {
            let acceptor = TlsAcceptor::from(config);
            loop {
                let (tcp, _) = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = stop.cancelled() => return Ok::<_, Infallible>(()),
                };
                let (acceptor, busy) = (acceptor.clone(), counter.clone());
                accepting.spawn(TaskKind::isolated("test connection"), |stop| async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return Ok::<_, Infallible>(()) };
                    let with_certificate = tls.get_ref().1.peer_certificates().is_some();
                    let service = hyper::service::service_fn(move |request| {
                        serve(request, Gateway { busy: busy.clone(), with_certificate })
                    });
                    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(tls), service);
                    tokio::select! {
                        _ = connection => {}
                        () = stop.cancelled() => {}
                    }
                    Ok(())
                });
            }
        });
        Self { deployment, address, supervisor, busy }
    }

    fn link(&self, pins: Vec<Pin>) -> GrpcLink {
        GrpcLink::new(self.address.clone(), pins, Arc::new(SystemClock::new()), self.supervisor.clone())
    }

    /// A node that joined just now, by this machine's clock.
    fn credentials(&self) -> Credentials {
        let key = SigningKey::generate(&self.deployment.entropy);
        let csr_der = pki::make_csr(&key, "node");
        let at = now();
        let admitted = self.deployment.admit(5, Role::Node, &csr_der, at);
        let expected = pki::response::Expected {
            pins: &[self.deployment.join_signing.verifying_key().pin()],
            csr_der: &csr_der,
            key: key.verifying_key(),
            role: Role::Node,
            node_id: None,
            at,
        };
        let joined = pki::response::verify_join_response(&admitted.value, &expected).unwrap();
        crate::identity::Identity::from_joined(joined, key, Default::default()).credentials()
    }
}

fn hello() -> NodeFrame {
    let hello = Hello { node_id: "me".into(), ..Hello::default() };
    NodeFrame { frame: Some(NodeKind::Hello(hello)) }
}

async fn next(connection: &mut Connection) -> Result<GatewayKind, LinkError> {
    let frame =
        tokio::time::timeout(Duration::from_secs(30), connection.incoming.next()).await.expect("in time");
    frame.expect("not over").map(|frame| frame.frame.expect("a frame holds something"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_carries_frames_both_ways_over_mutual_tls() {
    let world = World::new().await;
    let credentials = world.credentials();
    let mut connection = world.link(vec![]).connect(&credentials).await.unwrap();
    assert!(connection.outgoing.send(|| Some(hello())).await);
    let GatewayKind::Welcome(welcome) = next(&mut connection).await.unwrap() else { panic!("no Welcome") };
    assert_eq!(welcome.gateway_id, "me");
    for seq in 1..=100 {
        let beat = NodeKind::Heartbeat(Heartbeat { seq, ..Heartbeat::default() });
        connection.outgoing.send(|| Some(NodeFrame { frame: Some(beat) })).await;
        let GatewayKind::HeartbeatAck(ack) = next(&mut connection).await.unwrap() else { panic!("no ack") };
        assert_eq!(ack.seq, seq);
    }
    drop(connection);
    assert!(world.supervisor.shutdown(Duration::from_secs(10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_busy_gateway_says_exactly_how_long() {
    let world = World::new().await;
    world.busy.store(1, Ordering::SeqCst);
    let credentials = world.credentials();
    let mut connection = world.link(vec![]).connect(&credentials).await.unwrap();
    connection.outgoing.send(|| Some(hello())).await;
    let err = next(&mut connection).await.unwrap_err();
    assert_eq!(err.pushback, Some(Duration::from_millis(4321)), "{err}");
    assert!(!err.refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_join_needs_no_certificate_and_the_pin_of_the_serving_ca() {
    let world = World::new().await;
    let request = || JoinRequest { hostname: "gpu-1".into(), ..JoinRequest::default() };
    let reply = world.link(vec![world.deployment.serving_ca.pin()]).join(request()).await.unwrap();
    assert!(
        matches!(reply.outcome, Some(join_reply::Outcome::Deferred(deferred)) if deferred.join_request_id == "gpu-1")
    );
    let err = world.link(vec![Deployment::new(2).serving_ca.pin()]).join(request()).await.unwrap_err();
    assert!(err.to_string().contains("TLS"), "{err}");
    let mut elsewhere = world.link(vec![world.deployment.serving_ca.pin()]);
    elsewhere.address.server_name = "other.example.test".into();
    assert!(elsewhere.join(request()).await.is_err(), "the certificate must carry the name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_refusal_is_told_from_a_failure() {
    let world = World::new().await;
    let credentials = world.credentials();
    let err = world.link(vec![]).renew(&credentials, RenewRequest::default()).await.unwrap_err();
    assert!(err.refused, "{err}");
    let (_dead, port) = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        ((), port)
    };
    let mut gone = world.link(vec![]);
    gone.address.port = port;
    let err = gone.renew(&credentials, RenewRequest::default()).await.unwrap_err();
    assert!(!err.refused, "{err}");
}
