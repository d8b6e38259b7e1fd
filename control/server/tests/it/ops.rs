//! The listener of a process that serves no API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::CallLimits;
use prometheus_client::metrics::counter::Counter;
use server::{OpsConfig, Parts, ServerError, Vitals, serve_ops};

use crate::world::{LOOPBACK, World, config};

fn ops() -> OpsConfig {
    OpsConfig { listen: LOOPBACK.parse().expect("an address"), metrics_from: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_the_api_tells_its_health_and_what_it_counts() {
    let world = World::new().await;
    let (able, counted) = (Arc::new(AtomicBool::new(true)), Counter::<u64>::default());
    let (asked, shown) = (able.clone(), counted.clone());
    let parts = Parts {
        metrics: vec![Arc::new(move |registry| registry.register("part_things", "Things", shown.clone()))],
        ready: vec![Arc::new(move || (!asked.load(Ordering::Relaxed)).then(|| "no lease".to_owned()))],
    };
    counted.inc_by(3);
    let vitals = Vitals::new(&world.running, &parts);
    let address = serve_ops(ops(), vitals, &world.running).await.unwrap();
    assert_eq!(world.get_at(address, "/healthz").await.text, "ok\n");
    assert_eq!(world.get_at(address, "/readyz").await.text, "ready\n");
    let metrics = world.get_at(address, "/metrics").await.text;
    assert!(metrics.contains("better_compute_part_things_total 3\n"), "{metrics}");
    assert!(!metrics.contains("better_compute_api"), "nothing of an API that is not there: {metrics}");
    for path in ["/api/compute/tokens/whoami", "/openapi.json", "/"] {
        assert_eq!(world.get_at(address, path).await.status, 404, "{path}");
    }

    able.store(false, Ordering::Relaxed);
    let unready = testkit::eventually(std::time::Duration::from_secs(5), || async {
        let got = world.get_at(address, "/readyz").await;
        if got.status == 503 { Ok(got) } else { Err(got.status) }
    });
    assert_eq!(unready.await.json()["reason"], "no lease");
    assert_eq!(world.get_at(address, "/healthz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_listener_of_an_api_shows_the_same() {
    let world = World::with(config(), CallLimits::default()).await;
    let address = serve_ops(ops(), world.server.vitals(), &world.running).await.unwrap();
    world.call("tokens.whoami", serde_json::json!({})).await;
    let metrics = world.get_at(address, "/metrics").await.text;
    assert!(
        metrics.contains(r#"better_compute_api_calls_total{method="tokens.whoami",code="OK"} 1"#),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named() {
    let world = World::new().await;
    let taken = OpsConfig { listen: world.address(), ..ops() };
    let refused = serve_ops(taken, world.server.vitals(), &world.running).await;
    assert!(matches!(refused, Err(ServerError::Listen { address, .. }) if address == world.address()));
}
