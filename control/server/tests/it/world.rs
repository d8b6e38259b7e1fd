//! A running API with its first administrator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kernel::run::{Running, run_relay};
use kernel::{CallLimits, Pipeline};
use kit::{OsRng, Supervisor, SystemClock};
use pki::OsEntropy;
use serde_json::{Value, json};
use server::{Server, ServerConfig};
use testkit::TestDb;

pub const LOOPBACK: &str = "127.0.0.1:0";

pub struct World {
    pub db: TestDb,
    pub running: Running,
    pub pipeline: Arc<Pipeline>,
    pub server: Server,
    /// The first administrator's token.
    pub admin: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read to its end.
pub struct Got {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|err| panic!("{err}: {}", self.text))
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("ok").to_owned()
    }

    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }
}

pub fn config() -> ServerConfig {
    ServerConfig::new(LOOPBACK.parse().expect("an address"))
}

impl World {
    pub async fn new() -> Self {
        Self::with(config(), CallLimits::default()).await
    }

    pub async fn with(config: ServerConfig, limits: CallLimits) -> Self {
        let db = testkit::db().await;
        let store = db.store.clone();
        let admin = iam::bootstrap(&store, &OsRng, &OsEntropy, Duration::from_secs(3600)).await;
        let admin = admin.expect("the database takes it").expect("the database is new");
        let (rng, clock) = (Arc::new(OsRng), Arc::new(SystemClock::new()));
        let iam =
            iam::Iam::new(store.clone(), Arc::new(kit::SystemClock::new()), rng.clone(), Arc::new(OsEntropy));
        let ledger = ledger::Ledger::new(store.clone());
        let modules = [iam::module(&iam), ledger::module(&ledger)];
        let authorizer = iam::Authorizer::new(store.clone());
        let pipeline =
            Pipeline::new(&modules, iam, authorizer, store.clone(), clock.clone(), rng.clone(), limits);
        let pipeline = Arc::new(pipeline.expect("the modules fit the table"));
        let running = Running::new("test", store, Supervisor::new(), clock, rng);
        run_relay(&running);
        let server =
            Server::start(config, pipeline.clone(), running.clone()).await.expect("the server starts");
        // Without a pool: a test that counts connections counts those it made.
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { db, running, pipeline, server, admin: admin.secret.to_string(), http }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub async fn open(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        self.http.request(request).await.expect("the server answers")
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        let (parts, body) = self.open(request).await.into_parts();
        let body = body.collect().await.expect("the answer is whole").to_bytes();
        let text = String::from_utf8(body.to_vec()).expect("answers are text");
        Got { status: parts.status, headers: parts.headers, text }
    }

    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address()))
    }

    pub async fn get(&self, path: &str) -> Got {
        self.get_at(self.address(), path).await
    }

    /// Of another listener.
    pub async fn get_at(&self, address: SocketAddr, path: &str) -> Got {
        let request = Request::builder().uri(format!("http://{address}{path}"));
        self.send(request.body(Full::default()).expect("a request")).await
    }

    /// A call with this token and body.
    pub async fn post(&self, token: &str, method: &str, body: impl Into<Bytes>) -> Got {
        let request = self
            .request(Method::POST, &api::path(method))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).expect("a request")).await
    }

    pub async fn call(&self, method: &str, request: Value) -> Value {
        self.post(&self.admin, method, request.to_string()).await.ok()
    }

    /// A new service user below a tenant, with its token.
    pub async fn user(&self, tenant: &str, name: &str) -> (String, String) {
        let user =
            self.call("users.create", json!({"tenant": tenant, "kind": "service", "name": name})).await;
        let id = user["id"].as_str().expect("an id").to_owned();
        let token = self.call("tokens.create", json!({"user": id, "name": "test"})).await;
        (id, token["secret"].as_str().expect("a secret").to_owned())
    }

    pub async fn tenant(&self, name: &str) -> String {
        let tenant = self.call("tenants.create", json!({"name": name})).await;
        tenant["id"].as_str().expect("an id").to_owned()
    }
}
