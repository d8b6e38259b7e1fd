use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use model::{NodeId, Timestamp};

use crate::*;

#[derive(Debug, thiserror::Error)]
#[error("failed to dial")]
struct Outer(#[source] io::Error);

#[test]
fn a_chain_names_every_cause_once() {
    let err = Outer(io::Error::other("no route"));
    assert_eq!(chain(&err), "failed to dial: no route");
}

#[test]
fn ids_made_later_sort_later() {
    let rng: &dyn Rng = &SeededRng::new(7);
    let early: NodeId = rng.id(Timestamp::from_millis(1_000));
    let late: NodeId = rng.id(Timestamp::from_millis(1_001));
    assert!(early < late);
    assert_eq!(early.uuid().get_version_num(), 7);
}

#[test]
fn a_seed_gives_the_same_bytes() {
    let (one, other): (&dyn Rng, &dyn Rng) = (&SeededRng::new(3), &SeededRng::new(3));
    assert_eq!(one.bytes::<64>(), other.bytes::<64>());
    assert_ne!(one.bytes::<64>(), [0; 64]);
}

#[test]
fn backoff_stays_under_its_ceiling_and_starts_over() {
    let rng = SeededRng::new(1);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    for _ in 0..100 {
        assert!(backoff.next_wait(&rng) < Duration::from_secs(5));
    }
    backoff.reset();
    assert!(backoff.next_wait(&rng) < Duration::from_millis(100));
}

#[tokio::test]
async fn a_signal_before_the_wait_is_not_lost() {
    let (mut wake, waker) = Wake::new();
    waker.wake();
    let woken = tokio::time::timeout(Duration::from_secs(5), wake.wait(Duration::from_secs(3600))).await;
    assert!(woken.is_ok(), "waited although a signal was there");
}

#[tokio::test]
async fn a_fatal_task_stops_the_others() {
    let supervisor = Supervisor::new();
    supervisor.spawn(TaskKind::isolated("waits"), |cancel| async move {
        cancel.cancelled().await;
        Ok::<(), Infallible>(())
    });
    supervisor.spawn(TaskKind::fatal("breaks"), |_| async { Err(io::Error::other("disk gone")) });
    supervisor.token().cancelled().await;
    assert_eq!(supervisor.fatal().as_deref(), Some("breaks failed: disk gone"));
    assert!(supervisor.shutdown(Duration::from_secs(10)).await);
}

#[tokio::test]
async fn an_isolated_failure_leaves_the_rest_alone() {
    let supervisor = Supervisor::new();
    let failed = supervisor.spawn(TaskKind::isolated("breaks"), |_| async { Err(io::Error::other("x")) });
    failed.finished().await;
    assert!(!supervisor.token().is_cancelled());
    assert_eq!(supervisor.fatal(), None);
}

#[test]
fn a_written_file_replaces_the_old_one_and_keeps_its_mode() {
    let dir = std::env::temp_dir().join(format!("kit-fs-{}", std::process::id()));
    fs::create_dir(&dir, 0o700).unwrap();
    let path = dir.join("state");
    fs::write_atomic(&path, b"one", 0o600).unwrap();
    // A temporary file that a crash left behind does not stop the next write.
    std::fs::write(dir.join(".state.new"), b"torn").unwrap();
    fs::write_atomic(&path, b"two", 0o600).unwrap();
    assert_eq!(fs::read_bounded(&path, 10).unwrap(), b"two");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!dir.join(".state.new").exists());
    assert!(fs::read_bounded(&path, 2).unwrap_err().to_string().contains("state"));
    assert!(fs::create_exclusive(&path, b"x", 0o600).is_err());
    assert!(fs::read_if_present(&dir.join("none"), 10).unwrap().is_none());
    std::fs::remove_dir_all(&dir).unwrap();
}
