use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use kernel::CallLimits;
use kernel::rate::Rate;
use serde_json::{Value, json};
use server::{Server, ServerConfig, ServerError};

use crate::world::{World, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_its_user_over_http() {
    let world = World::new().await;
    let got = world.post(&world.admin, "tokens.whoami", "{}").await;
    assert!(got.headers["x-request-id"].to_str().unwrap().starts_with("req_"));
    assert_eq!(got.headers["cache-control"], "no-store");
    let identity = got.ok();
    assert_eq!(identity["user"]["name"], "admin");
    assert_eq!(identity["tenants"][0]["name"], "root");
    let without_body = world.post(&world.admin, "tokens.whoami", "").await;
    assert_eq!(without_body.status, 200, "a method without parameters needs no body");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_valid_token_is_not_known() {
    let world = World::new().await;
    let last = if world.admin.ends_with('A') { 'E' } else { 'A' };
    let wrong = format!("{}{last}", &world.admin[..world.admin.len() - 1]);
    for token in ["", "nonsense", "bct_", wrong.as_str()] {
        let got = world.post(token, "tenants.list", "{}").await;
        assert_eq!((got.status.as_u16(), got.code().as_str()), (401, "UNAUTHENTICATED"), "{token}");
        assert_eq!(got.headers["www-authenticate"], "Bearer");
        assert!(!got.text.contains("revoked at") && !got.text.contains(token) || token.is_empty());
    }
    let request = world.request(Method::POST, "/api/compute/tenants/list").body(Full::default()).unwrap();
    assert_eq!(world.send(request).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_says_what_was_meant() {
    let world = World::new().await;
    let got = world.post(&world.admin, "tenant.list", "{}").await;
    assert_eq!((got.status, got.code().as_str()), (StatusCode::NOT_FOUND, "NOT_FOUND"));
    assert_eq!(got.json()["error"]["details"]["didYouMean"], "tenants.list");

    let got = world.get("/api/compute/tenants/lst").await;
    assert_eq!(got.status, 405);
    let got = world.get("/api/comput/tenants/list").await;
    assert_eq!(got.status, 404);
    assert_eq!(got.json()["error"]["details"]["didYouMean"], "/api/compute/tenants/list");
    assert_eq!(world.get("/").await.code(), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_takes_post_with_json() {
    let world = World::new().await;
    let got = world.get("/api/compute/tenants/list").await;
    assert_eq!(got.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(got.headers["allow"], "POST");

    let form = world
        .request(Method::POST, "/api/compute/tenants/list")
        .header("authorization", format!("Bearer {}", world.admin))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Full::from("{}"))
        .unwrap();
    let got = world.send(form).await;
    assert_eq!((got.status, got.code().as_str()), (StatusCode::UNSUPPORTED_MEDIA_TYPE, "INVALID_INPUT"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_strict_json_that_names_known_fields() {
    let world = World::new().await;
    for malformed in ["{", "[]", "{\"name\":\"a\",\"name\":\"b\"}", "{} {}", "\u{1}"] {
        let got = world.post(&world.admin, "tenants.create", malformed.to_owned()).await;
        assert_eq!((got.status.as_u16(), got.code().as_str()), (400, "INVALID_INPUT"), "{malformed}");
    }
    let got = world.post(&world.admin, "tenants.create", r#"{"name":"a","parnet":"x"}"#).await;
    let error = &got.json()["error"];
    assert_eq!(error["code"], "INVALID_INPUT");
    assert_eq!(error["details"]["pointer"], "/parnet");
    assert!(error["message"].as_str().unwrap().contains("parent"), "{error}");
    assert_eq!(error["docs"], "docs/errors/INVALID_INPUT.md");
    assert_eq!(error["requestId"], got.headers["x-request-id"].to_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_one_mebibyte_is_refused_whether_or_not_it_says_its_length() {
    let world = World::new().await;
    let large = format!("{{\"name\":\"{}\"}}", "a".repeat(1024 * 1024));
    let got = world.post(&world.admin, "tenants.create", large).await;
    assert_eq!((got.status.as_u16(), got.code().as_str()), (413, "INVALID_INPUT"));

    // Chunked, so that no length is announced.
    let mut socket = tokio::net::TcpStream::connect(world.address()).await.unwrap();
    let head = format!(
        "POST /api/compute/tenants/list HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        world.admin
    );
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    socket.write_all(head.as_bytes()).await.unwrap();
    let chunk = vec![b' '; 64 * 1024];
    for _ in 0..17 {
        let wrote = async {
            socket.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
            socket.write_all(&chunk).await?;
            socket.write_all(b"\r\n").await
        };
        // The server may have answered and closed by now.
        if wrote.await.is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_may_bring_its_request_id() {
    let world = World::new().await;
    let id = "req_01k5w000000000000000000000";
    let ask = |given: &str| {
        world
            .request(Method::POST, "/api/compute/tokens/whoami")
            .header("authorization", format!("Bearer {}", world.admin))
            .header("x-request-id", given)
            .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(world.send(ask(id)).await.headers["x-request-id"], id);
    let other = world.send(ask("made up\tby me")).await;
    assert_eq!(other.status, 200);
    assert!(other.headers["x-request-id"].to_str().unwrap().starts_with("req_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_is_spent_says_when_to_come_back() {
    let slow = Rate { per_second: 1, burst: 3 };
    let world = World::with(config(), CallLimits { calls: slow, unknown: slow }).await;
    let mut codes = Vec::new();
    for _ in 0..6 {
        codes.push(world.post(&world.admin, "tokens.whoami", "{}").await);
    }
    let limited = codes.iter().find(|got| got.status == 429).expect("six calls are more than three");
    assert_eq!(limited.code(), "RATE_LIMITED");
    assert!(limited.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    assert!(codes.iter().take(3).all(|got| got.status == 200), "the burst is granted");
    // Guessing is limited by address.
    let mut guesses = Vec::new();
    for _ in 0..6 {
        guesses.push(world.post("bct_guess", "tokens.whoami", "{}").await.status.as_u16());
    }
    assert!(guesses.contains(&401) && guesses.contains(&429), "{guesses:?}");
    // Who was known before does not pay for it.
    let known = testkit::eventually(Duration::from_secs(10), || async {
        let got = world.post(&world.admin, "tokens.whoami", "{}").await;
        assert_eq!(world.post("bct_guess", "tokens.whoami", "{}").await.status.as_u16() / 100, 4);
        if got.status == 200 { Ok(got) } else { Err(got.text) }
    });
    known.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_a_live_process_from_a_ready_one() {
    let world = World::new().await;
    assert_eq!(world.get("/healthz").await.text, "ok\n");
    assert_eq!(world.get("/readyz").await.status, 200);
    world
        .db
        .batch("UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()")
        .await;
    let got = testkit::eventually(Duration::from_secs(5), || async {
        let got = world.get("/readyz").await;
        if got.status == 503 { Ok(got) } else { Err(got.status) }
    })
    .await;
    assert!(got.json()["reason"].as_str().unwrap().contains("observe-only"));
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_and_metrics_are_served() {
    let mut config = config();
    config.discovery = json!({"gateway": {"url": "https://gw.example.test:8443"}});
    let world = World::with(config, CallLimits::default()).await;
    assert_eq!(
        world.get("/.well-known/better-compute").await.ok()["gateway"]["url"],
        "https://gw.example.test:8443"
    );
    assert_eq!(world.get("/openapi.json").await.ok()["openapi"], "3.1.0");
    world.call("tokens.whoami", json!({})).await;
    world.post(&world.admin, "no.suchMethod", "{}").await;
    let metrics = world.get("/metrics").await.text;
    assert!(
        metrics.contains(r#"better_compute_api_calls_total{method="tokens.whoami",code="OK"} 1"#),
        "{metrics}"
    );
    assert!(metrics.contains(r#"better_compute_api_calls_total{method="none",code="NOT_FOUND"} 1"#));
    assert!(!metrics.contains("suchMethod"), "a caller chooses no label");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_from_a_header_counts_only_behind_a_trusted_proxy() {
    let mut behind = config();
    behind.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let (world, direct) = (World::with(behind, CallLimits::default()).await, World::new().await);
    for (world, seen) in [(&world, "203.0.113.9"), (&direct, "127.0.0.1")] {
        let request = world
            .request(Method::POST, "/api/compute/tenants/create")
            .header("authorization", format!("Bearer {}", world.admin))
            .header("content-type", "application/json")
            .header("x-forwarded-for", "203.0.113.9")
            .body(Full::from(r#"{"name":"from-afar"}"#))
            .unwrap();
        assert_eq!(world.send(request).await.status, 200);
        let entry = &world.call("audit.list", json!({"action": "compute:tenants:create"})).await["items"][0];
        assert_eq!(entry["sourceIp"], seen);
    }
    let metrics = world.request(Method::GET, "/metrics").header("x-forwarded-for", "203.0.113.9");
    assert_eq!(world.send(metrics.body(Full::default()).unwrap()).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_address_needs_a_certificate_or_a_proxy() {
    let world = World::new().await;
    let open = ServerConfig::new("0.0.0.0:0".parse().unwrap());
    let refused = Server::start(open.clone(), world.pipeline.clone(), world.running.clone()).await;
    assert!(matches!(refused, Err(ServerError::Exposed { .. })));
    let mut proxied = open;
    proxied.trusted_proxies = vec!["10.0.0.1".parse().unwrap()];
    Server::start(proxied, world.pipeline.clone(), world.running.clone())
        .await
        .expect("a proxy terminates TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_lets_a_call_finish_and_takes_no_other() {
    let world = World::new().await;
    let (world, locked) = (&world, &tokio::sync::Notify::new());
    let call = async {
        locked.notified().await;
        world.post(&world.admin, "tenants.list", "{}").await
    };
    // The call is held up at its decision while the stop begins.
    let held = world.db.store.tx(store::Op::new("hold_up"), |tx| {
        Box::pin(async move {
            tx.execute(&LOCK, &[]).await?;
            locked.notify_one();
            until_count(world, WAITING, 1).await;
            world.running.supervisor.token().cancel();
            Ok::<_, store::StoreError>(())
        })
    });
    let (got, held) = tokio::join!(call, held);
    held.unwrap();
    assert_eq!(got.status, 200);
    let supervisor = &world.running.supervisor;
    assert!(supervisor.shutdown(BOUND).await, "tasks that still run: {:?}", supervisor.running());
    assert!(tokio::net::TcpStream::connect(world.address()).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_internal_cause_stays_inside() {
    let world = World::new().await;
    world.db.batch("ALTER TABLE tenants RENAME COLUMN created_at TO made_at").await;
    let request = Request::post(format!("http://{}/api/compute/tenants/list", world.address()))
        .header("authorization", format!("Bearer {}", world.admin))
        .body(Full::<Bytes>::default())
        .unwrap();
    let got = world.send(request).await;
    assert_eq!((got.status.as_u16(), got.code().as_str()), (500, "INTERNAL"));
    let error: Value = got.json()["error"].clone();
    assert!(!error.to_string().contains("created_at") && !error.to_string().contains("42703"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_tried_is_entered_though_it_went_away() {
    let world = World::new().await;
    let whoami = world.call("tokens.whoami", json!({})).await;
    let (_, nobody) = world.user(whoami["tenants"][0]["id"].as_str().unwrap(), "nobody").await;
    let entries =
        "SELECT count(*) FROM audit WHERE action = 'compute:tenants:create' AND outcome = 'ACCESS_DENIED'";
    let body = r#"{"name":"x"}"#;
    let text = format!(
        "POST /api/compute/tenants/create HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {nobody}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    use tokio::io::AsyncWriteExt;
    let (world, text) = (&world, &text);
    // The call is held up at its decision, its request read, until its client is gone.
    let held: Result<(), store::StoreError> = world
        .db
        .store
        .tx(store::Op::new("hold_up"), |tx| {
            Box::pin(async move {
                tx.execute(&LOCK, &[]).await?;
                let mut socket = tokio::net::TcpStream::connect(world.address()).await.unwrap();
                socket.write_all(text.as_bytes()).await.unwrap();
                until_count(world, WAITING, 1).await;
                socket.set_zero_linger().unwrap();
                drop(socket);
                until_alone(world).await;
                Ok(())
            })
        })
        .await;
    held.unwrap();
    until_count(world, entries, 1).await;
}

const LOCK: store::Sql = store::sql("lock_bindings", "LOCK TABLE bindings IN ACCESS EXCLUSIVE MODE");
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

const BOUND: Duration = Duration::from_secs(10);

async fn until_count(world: &World, text: &str, wanted: i64) {
    testkit::eventually(BOUND, || async {
        match world.db.scalar_i64(text).await {
            count if count == wanted => Ok(()),
            count => Err(format!("{count} where {wanted} are wanted: {text}")),
        }
    })
    .await;
}

/// Until this client's own connection is the only one.
async fn until_alone(world: &World) {
    testkit::eventually(BOUND, || async {
        let metrics = world.get("/metrics").await.text;
        if metrics.contains("better_compute_api_connections 1\n") {
            Ok(())
        } else {
            Err("others are connected")
        }
    })
    .await;
}

/// Announces a body of one mebibyte and sends a little of it.
async fn announce(world: &World, token: &str) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt;
    let mut socket = tokio::net::TcpStream::connect(world.address()).await.unwrap();
    let head = format!(
        "POST /api/compute/tenants/list HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 1048576\r\n\r\n{{"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

async fn status(socket: &mut tokio::net::TcpStream) -> String {
    use tokio::io::AsyncReadExt;
    let mut answer = [0; 12];
    let read = tokio::time::timeout(BOUND, socket.read_exact(&mut answer));
    read.await.expect("the answer does not wait for the body").expect("there is one");
    String::from_utf8(answer[9..].to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_callers_who_are_not_known_are_not_waited_for() {
    let world = World::new().await;
    let mut sockets = Vec::new();
    for _ in 0..200 {
        sockets.push(announce(&world, "bct_nobody").await);
    }
    let mut told = Vec::new();
    for socket in &mut sockets {
        told.push(status(socket).await);
    }
    assert!(told.iter().all(|status| status == "401" || status == "429"), "{told:?}");
    assert!(told.contains(&"401".to_owned()) && told.contains(&"429".to_owned()), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_has_room_for_so_many_large_bodies_at_once() {
    let world = World::new().await;
    let mut answers = tokio::task::JoinSet::new();
    // Sixteen have room and say nothing more; every other one is told at once.
    for _ in 0..20 {
        let mut socket = announce(&world, &world.admin).await;
        answers.spawn(async move { status(&mut socket).await });
    }
    for _ in 0..4 {
        assert_eq!(answers.join_next().await.expect("one is told").expect("it is read"), "503");
    }
    assert_eq!(world.post(&world.admin, "tenants.list", "{}").await.status, 200, "small ones go by");
    assert!(answers.try_join_next().is_none(), "the others are waited for");
}
