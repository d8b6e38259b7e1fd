use std::time::Duration;

use kit::OsRng;
use pki::OsEntropy;
use serde_json::json;

use crate::world::{World, text};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn an_installation_is_made_once() {
    let world = World::new().await;
    let again = iam::bootstrap(&world.db.store, &OsRng, &OsEntropy, HOUR).await.expect("it looks");
    assert!(again.is_none(), "the second call makes nothing");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM tokens").await, 1);
    let whoami = world.does("tokens.whoami", json!({})).await;
    assert_eq!(
        (text(&whoami["user"]["name"]), text(&whoami["user"]["kind"])),
        ("admin".into(), "service".into())
    );
}

#[tokio::test]
async fn two_processes_that_start_together_make_one_installation() {
    let db = testkit::db().await;
    let (one, two) = tokio::join!(
        iam::bootstrap(&db.store, &OsRng, &OsEntropy, HOUR),
        iam::bootstrap(&db.store, &OsRng, &OsEntropy, HOUR),
    );
    let made = [one.expect("it waits"), two.expect("it waits")].into_iter().flatten().count();
    assert_eq!(made, 1);
    assert_eq!(db.scalar_i64("SELECT count(*) FROM tenants").await, 1);
}

#[tokio::test]
async fn a_lost_administrator_gets_a_new_token_from_the_database() {
    let world = World::new().await;
    world.db.batch("UPDATE tokens SET revoked_at = compute_now()").await;
    assert_eq!(world.call(&world.admin, "tokens.whoami", json!({})).await.code(), "UNAUTHENTICATED");
    let made = iam::bootstrap::admin_token(&world.db.store, &OsRng, &OsEntropy, HOUR).await.expect("a token");
    world.call(&made.secret, "tenants.list", json!({})).await.ok();
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM audit WHERE action = 'iam.adminToken'").await, 2);
}

#[tokio::test]
async fn no_secret_is_stored() {
    let world = World::new().await;
    let secret = world.admin.rsplit_once('_').expect("a secret part").1;
    let user = world.user(&world.root, "someone").await;
    let found: i64 = world
        .db
        .scalar_i64(&format!(
            "SELECT (SELECT count(*) FROM tokens t WHERE t::text LIKE '%{secret}%' OR t::text LIKE '%{0}%')
                  + (SELECT count(*) FROM audit a WHERE a::text LIKE '%{secret}%' OR a::text LIKE '%{0}%')
                  + (SELECT count(*) FROM outbox_events o WHERE o::text LIKE '%{secret}%' OR o::text LIKE '%{0}%')
                  + (SELECT count(*) FROM idempotency i WHERE i::text LIKE '%{0}%')",
            user.token.rsplit_once('_').expect("a secret part").1
        ))
        .await;
    assert_eq!(found, 0);
}
