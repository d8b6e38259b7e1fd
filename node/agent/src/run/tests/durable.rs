//! What is durable, and when: before it is said or run, and for the next process.

use kit::SystemClock;

use super::*;
use crate::journal::RedbJournal;

/// A store in memory that counts its commits, and makes them wait while its gate is shut.
struct Counted {
    store: MemoryJournal,
    commits: AtomicU32,
    open: watch::Sender<bool>,
}

impl Counted {
    fn new() -> Arc<Self> {
        let store = MemoryJournal::new(journal_id(1));
        Arc::new(Self { store, commits: AtomicU32::new(0), open: watch::channel(true).0 })
    }
}

impl JournalStore for Counted {
    fn id(&self) -> model::JournalId {
        self.store.id()
    }

    fn load(&self) -> Result<crate::journal::Loaded, JournalError> {
        self.store.load()
    }

    fn commit(&self, writes: Vec<crate::journal::Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.open.subscribe().wait_for(|open| *open).await.expect("the sender is in the store");
            self.store.commit(writes).await
        })
    }

    fn entry(&self, id: model::CommandId) -> Result<Option<crate::journal::Entry>, JournalError> {
        self.store.entry(id)
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<crate::journal::StoredEvent>, JournalError> {
        self.store.events_after(seq, limit, bytes_max)
    }

    fn spec(&self) -> Result<Option<crate::journal::StoredSpec>, JournalError> {
        self.store.spec()
    }
}

#[tokio::test(start_paused = true)]
async fn commands_that_come_together_share_an_fsync() {
    let mut world = World::new();
    let store = Counted::new();
    world.journal = store.clone();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session.until("a heartbeat", |frame| matches!(frame, Frame::Heartbeat(_)).then_some(())).await;
    let before = store.commits.load(Ordering::SeqCst);
    for n in 1..=16 {
        let command = world.deployment.command(NODE, command_id(n), CommandKind::InventoryRefresh);
        let frame = GatewayFrame { frame: Some(Gateway::Command(command)) };
        session.end.to_node.try_send(Ok(frame)).expect("the channel has room");
    }
    for n in 1..=16 {
        assert_eq!(session.outcome(n).await.state(), CommandState::Succeeded);
    }
    // Sixteen commands are 48 writes: accepted, running and done.
    let commits = store.commits.load(Ordering::SeqCst) - before;
    assert!(commits <= 12, "{commits} commits");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_or_run_before_it_is_durable() {
    let mut world = World::new();
    let store = Counted::new();
    world.journal = store.clone();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session.until("a status", |frame| matches!(frame, Frame::Status(_)).then_some(())).await;
    store.open.send_replace(false);
    let before = store.commits.load(Ordering::SeqCst);
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::InventoryRefresh)))
        .await;
    let quiet = async {
        while let Some(frame) = session.end.from_node.recv().await {
            if let Some(Frame::CommandUpdate(update)) = frame.frame {
                return update;
            }
        }
        panic!("the agent hung up");
    };
    let early = tokio::time::timeout(Duration::from_secs(20), quiet).await;
    assert!(early.is_err(), "said before it was durable: {early:?}");
    assert!(store.commits.load(Ordering::SeqCst) > before, "the commit is what it waits for");
    assert_eq!(world.runs.load(Ordering::SeqCst), 0);
    store.open.send_replace(true);
    assert_eq!(session.outcome(1).await.state(), CommandState::Succeeded);
    agent.stop().await;
}

/// Real time, because the disk's threads do not know virtual time.
#[tokio::test]
async fn the_same_agent_runs_over_a_journal_on_disk_and_its_status_socket() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new();
    world.clock = Arc::new(ClockFromStart(SystemClock::new()));
    let path = dir.path().join("journal.db");
    let open = |seed| {
        RedbJournal::open(&path, crate::journal::FILE_BYTES_MAX, &SeededRng::new(seed), START).unwrap()
    };
    world.journal = Arc::new(open(1));
    let agent = world.start();
    let socket = dir.path().join("run/bcd.sock");
    let serving = crate::status::serve(&socket, agent.handle.clone(), &world.supervisor).unwrap();
    assert!(
        crate::status::serve(&socket, agent.handle.clone(), &world.supervisor).is_err(),
        "one daemon serves it"
    );
    let (mut session, hello) = world.accept().await;
    let spec = world.deployment.spec_body(NODE, 1, NodeSpec::default());
    session.say(Gateway::DesiredState(world.deployment.signed_spec(&spec, Some(&hello.nonce)))).await;
    for n in 1..=4 {
        session
            .say(Gateway::Command(world.deployment.command(
                NODE,
                command_id(n),
                CommandKind::InventoryRefresh,
            )))
            .await;
    }
    for n in 1..=4 {
        assert_eq!(session.outcome(n).await.state(), CommandState::Succeeded);
    }
    let status = crate::status::ask(&socket).await.unwrap();
    assert_eq!(status["appliedGeneration"], 1);
    assert_eq!(status["journal"]["unackedResults"], 4);
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    serving.cancel();
    serving.finished().await;
    agent.crash().await;
    drop(session);
    world.journal = Arc::new(MemoryJournal::new(journal_id(9)));
    world.journal = Arc::new(open(2));
    let agent = world.start();
    let (_session, hello) = world.accept().await;
    assert_eq!((hello.applied_generation, hello.unacked_results.len()), (1, 4));
    agent.stop().await;
    assert!(crate::status::ask(&socket).await.is_err());
}

struct ClockFromStart(SystemClock);

impl Clock for ClockFromStart {
    fn now(&self) -> Timestamp {
        START.saturating_add(self.0.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}
