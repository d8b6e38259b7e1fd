use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::world::World;

const STREAM: &str = "/api/compute/events/stream";
const BOUND: Duration = Duration::from_secs(20);

/// A client of the stream that remembers the last id it was told.
struct Follower {
    body: Incoming,
    text: String,
    last_id: Option<String>,
}

impl Follower {
    async fn open(world: &World, token: &str, query: &str, last_id: Option<&str>) -> Self {
        let mut request = world
            .request(Method::GET, &format!("{STREAM}{query}"))
            .header("authorization", format!("Bearer {token}"));
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        let response = world.open(request.body(Full::<Bytes>::default()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new(), last_id: last_id.map(str::to_owned) }
    }

    /// The next frame as its fields; `None` at the end of the stream.
    async fn frame(&mut self) -> Option<Vec<(String, String)>> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let frame: String = self.text.drain(..end + 2).collect();
                let fields: Vec<(String, String)> = frame
                    .trim_end()
                    .lines()
                    .filter_map(|line| line.split_once(':'))
                    .map(|(name, value)| (name.to_owned(), value.trim_start().to_owned()))
                    .collect();
                if let Some((_, id)) = fields.iter().find(|(name, _)| name == "id") {
                    self.last_id = Some(id.clone());
                }
                return Some(fields);
            }
            let chunk =
                tokio::time::timeout(BOUND, self.body.frame()).await.expect("a frame within the bound")?;
            let data = chunk.ok()?.into_data().ok()?;
            self.text.push_str(std::str::from_utf8(&data).expect("the stream is text"));
        }
    }

    async fn event(&mut self) -> Option<Value> {
        loop {
            let frame = self.frame().await?;
            if let Some((_, data)) = frame.iter().find(|(name, _)| name == "data") {
                return Some(serde_json::from_str(data).expect("an event is JSON"));
            }
        }
    }

    async fn events(&mut self, count: usize) -> Vec<Value> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.event().await.expect("the stream goes on"));
        }
        events
    }
}

fn names(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["data"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_and_resumes_misses_nothing_and_repeats_nothing() {
    let world = World::new().await;
    let make = async {
        for n in 0..30 {
            world.tenant(&format!("t{n}")).await;
        }
    };
    let follow = async {
        let mut seen = Vec::new();
        let mut last_id = "0".to_owned();
        // Broken off after every few events, in the middle of what is being made.
        while seen.len() < 30 {
            let mut follower =
                Follower::open(&world, &world.admin, "?type=iam.tenant.created", Some(&last_id)).await;
            let take = 4.min(30 - seen.len());
            seen.extend(follower.events(take).await);
            last_id = seen.last().expect("some were seen")["seq"].to_string();
        }
        seen
    };
    let (seen, ()) = tokio::join!(follow, make);
    let expected: Vec<String> = (0..30).map(|n| format!("t{n}")).collect();
    assert_eq!(names(&seen), expected);
    let seqs: Vec<u64> = seen.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|left, right| left < right), "{seqs:?}");
    assert_eq!(seen[0]["specversion"], "1.0");
    assert!(seen[0]["source"].as_str().unwrap().starts_with("/deployments/dep_"));

    // The list tells the same, oldest first after a number and newest first without.
    let query = json!({"type": "iam.tenant", "afterSeq": 0, "limit": 200});
    let listed = world.call("events.list", query).await["items"].as_array().unwrap().clone();
    assert_eq!(listed, seen);
    let newest = world.call("events.list", json!({"type": "iam.tenant", "limit": 2})).await;
    assert_eq!(names(newest["items"].as_array().unwrap()), ["t29", "t28"]);
    let next = json!({"type": "iam.tenant", "limit": 2, "cursor": newest["cursor"]});
    assert_eq!(names(world.call("events.list", next).await["items"].as_array().unwrap()), ["t27", "t26"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_now_and_its_heartbeat_carries_the_number() {
    let world = World::new().await;
    world.tenant("before").await;
    let mut follower = Follower::open(&world, &world.admin, "?type=iam.tenant", None).await;
    let first = follower.frame().await.expect("a heartbeat comes at once");
    assert_eq!(first[0], (String::new(), "heartbeat".to_owned()));
    let at = follower.last_id.clone().expect("with the number");
    world.tenant("after").await;
    let event = follower.event().await.expect("the stream goes on");
    // Whether `before` had its number by then is a race; it comes first if it comes.
    let event = if event["data"]["name"] == "before" { follower.event().await.unwrap() } else { event };
    assert_eq!(event["data"]["name"], "after");
    assert!(event["seq"].as_u64().unwrap() > at.parse().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_the_events_of_its_tenants_alone() {
    let world = World::new().await;
    let (ours, theirs) = (world.tenant("ours").await, world.tenant("theirs").await);
    let (user, token) = world.user(&ours, "reader").await;
    let got = world.get_with(&token, STREAM).await;
    assert_eq!((got.status.as_u16(), got.code().as_str()), (403, "ACCESS_DENIED"));

    let document = json!({"statements": [
        {"sid": "Read", "effect": "allow", "actions": ["compute:events:list"], "resources": ["*"]},
    ]});
    world.call("policies.put", json!({"tenant": ours, "name": "reader", "document": document})).await;
    world.call("bindings.put", json!({"tenant": ours, "policy": "reader", "user": user})).await;
    let mut follower = Follower::open(&world, &token, "?type=iam.user.created", Some("0")).await;
    world.user(&theirs, "hidden").await;
    world.user(&ours, "shown").await;
    assert_eq!(names(&follower.events(2).await), ["reader", "shown"]);
    let listed =
        world.post(&token, "events.list", json!({"type": "iam.user.created"}).to_string()).await.ok();
    assert_eq!(names(listed["items"].as_array().unwrap()), ["shown", "reader"]);
    let theirs = world.get_with(&token, &format!("{STREAM}?tenant={theirs}")).await;
    assert_eq!(theirs.code(), "NOT_FOUND", "what one may not see is not there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_its_streams() {
    let world = World::new().await;
    let token = world.call("tokens.create", json!({"name": "short"})).await;
    let secret = token["secret"].as_str().unwrap().to_owned();
    let mut follower = Follower::open(&world, &secret, "", None).await;
    world.call("tokens.revoke", json!({"id": token["token"]["id"]})).await;
    // Each new event makes the stream look; the caller is looked up again within a second.
    for n in 0.. {
        assert!(n < 100, "the stream still goes on");
        world.tenant(&format!("t{n}")).await;
        let ended = async { while follower.frame().await.is_some() {} };
        if tokio::time::timeout(Duration::from_millis(100), ended).await.is_ok() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_cannot_be_resumed_from_is_refused() {
    let world = World::new().await;
    for (last_id, status, code) in
        [("1000000", 409, "INVALID_STATE"), ("-1", 400, "INVALID_INPUT"), ("x", 400, "INVALID_INPUT")]
    {
        let request = world
            .request(Method::GET, STREAM)
            .header("authorization", format!("Bearer {}", world.admin))
            .header("last-event-id", last_id);
        let got = world.send(request.body(Full::default()).unwrap()).await;
        assert_eq!((got.status.as_u16(), got.code().as_str()), (status, code), "{last_id}");
    }
    assert_eq!(world.get(STREAM).await.status, 401);
    assert_eq!(world.get_with(&world.admin, &format!("{STREAM}?tenat=x")).await.code(), "INVALID_INPUT");
}

impl World {
    async fn get_with(&self, token: &str, path: &str) -> crate::world::Got {
        let request = self.request(Method::GET, path).header("authorization", format!("Bearer {token}"));
        self.send(request.body(Full::default()).unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_nothing_is_cut_and_holds_nobody_up() {
    let mut config = crate::world::config();
    config.slow_after = Duration::from_millis(200);
    let world = World::with(config, kernel::CallLimits::default()).await;
    // Enough to fill the sockets' buffers on both sides.
    world
        .db
        .batch(
            "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
             SELECT ARRAY[gen_random_uuid()], ARRAY['node.status'], ARRAY['node/x'], ARRAY[NULL::uuid],
               ARRAY[jsonb_build_object('sections', repeat('x', 60000))]
             FROM generate_series(1, 400)",
        )
        .await;
    let slow = Follower::open(&world, &world.admin, "?type=node.status", Some("0")).await;
    let mut quick = Follower::open(&world, &world.admin, "?type=node.status", Some("0")).await;
    assert_eq!(quick.events(400).await.len(), 400);
    testkit::eventually(BOUND, || async {
        let metrics = world.get("/metrics").await.text;
        match metrics.contains("better_compute_api_event_streams_cut_total 1") {
            true => Ok(()),
            false => Err("not cut yet"),
        }
    })
    .await;
    drop(slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_a_bounded_number_of_streams() {
    let world = World::new().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(Follower::open(&world, &world.admin, "", None).await);
    }
    assert_eq!(world.get_with(&world.admin, STREAM).await.code(), "RATE_LIMITED");
    drop(open);
    testkit::eventually(BOUND, || async {
        let request =
            world.request(Method::GET, STREAM).header("authorization", format!("Bearer {}", world.admin));
        let response = world.open(request.body(Full::<Bytes>::default()).unwrap()).await;
        if response.status() == 200 { Ok(()) } else { Err(response.status()) }
    })
    .await;
}
