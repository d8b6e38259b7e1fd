use store::restore::{self, RestoreVerdict};
use store::{StoreError, deployment};
use testkit::db;

use crate::in_tx;

#[tokio::test]
async fn an_older_copy_is_suspected_observes_only_and_acts_again_under_a_higher_epoch() {
    let db = db().await;
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(restore::check(&db.store, dir.path()).await.unwrap(), RestoreVerdict::FirstSeen);
    assert_eq!(restore::check(&db.store, dir.path()).await.unwrap(), RestoreVerdict::Consistent);
    let before = deployment::read(&db.store).await.unwrap();
    assert!(!before.observe_only);

    // What a restore does to the row.
    db.batch("UPDATE deployment SET fence = fence - 1").await;
    for _ in 0..2 {
        let verdict = restore::check(&db.store, dir.path()).await.unwrap();
        assert!(
            matches!(&verdict, RestoreVerdict::Suspected { why } if why.contains("fencing")),
            "{verdict:?}"
        );
    }
    let found = deployment::read(&db.store).await.unwrap();
    assert!(found.observe_only && found.observe_since.is_some());

    let epoch = in_tx!(db.store, |tx| restore::confirm_restore(tx)).unwrap();
    assert_eq!(epoch, before.epoch + 1);
    assert!(in_tx!(db.store, |tx| restore::confirm_restore(tx)).is_none());
    assert!(!deployment::read(&db.store).await.unwrap().observe_only);
    assert_eq!(restore::check(&db.store, dir.path()).await.unwrap(), RestoreVerdict::Confirmed);
    assert_eq!(restore::check(&db.store, dir.path()).await.unwrap(), RestoreVerdict::Consistent);
}

#[tokio::test]
async fn a_confirmed_epoch_is_above_any_that_was_proved() {
    let db = db().await;
    assert!(in_tx!(db.store, |tx| restore::suspect(tx, "a node holds our signature over epoch 7", 7)));
    assert!(!in_tx!(db.store, |tx| restore::suspect(tx, "another node says so too", 5)));
    let found = deployment::read(&db.store).await.unwrap();
    assert_eq!(found.observe_reason.as_deref(), Some("a node holds our signature over epoch 7"));
    assert_eq!(in_tx!(db.store, |tx| restore::confirm_restore(tx)), Some(8));
}

#[tokio::test]
async fn a_real_copy_of_the_files_is_found_out() {
    use std::os::unix::fs::PermissionsExt;
    use store::Store;
    use store::embedded::{Embedded, EmbeddedConfig};

    let temp = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let (live, backup, marks) =
        (temp.path().join("pg"), temp.path().join("backup"), temp.path().join("marks"));
    let checked = async || {
        let server = Embedded::start(EmbeddedConfig::durable(&live)).await.unwrap();
        let store = Store::open(server.store_config(Embedded::DATABASE)).await.unwrap();
        store::migrate::run(&store).await.unwrap();
        let verdict = restore::check(&store, &marks).await.unwrap();
        store.close();
        server.stop().await.unwrap();
        verdict
    };
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    assert_eq!(checked().await, RestoreVerdict::FirstSeen);
    copy(&live, &backup);
    assert_eq!(checked().await, RestoreVerdict::Consistent);
    std::fs::remove_dir_all(&live).unwrap();
    copy(&backup, &live);
    let verdict = checked().await;
    assert!(matches!(verdict, RestoreVerdict::Suspected { .. }), "{verdict:?}");
}
