use std::time::Duration;

use super::*;

#[tokio::test]
async fn eventually_returns_what_came_true() {
    let mut left = 3;
    let value = eventually(Duration::from_secs(5), || {
        left -= 1;
        let seen = left;
        async move { if seen == 0 { Ok("done") } else { Err(format!("{seen} left")) } }
    })
    .await;
    assert_eq!(value, "done");
}

#[tokio::test]
async fn every_database_is_migrated_and_its_own() {
    let (one, two) = tokio::join!(db(), db());
    assert_ne!(one.name(), two.name());
    store::migrate::check(&one.store).await.unwrap();
    one.batch("CREATE TABLE mine (x int)").await;
    let found = two.scalar_text("SELECT coalesce(to_regclass('mine')::text, 'absent')").await;
    assert_eq!(found, "absent");
}
