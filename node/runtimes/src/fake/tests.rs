use std::path::Path;

use kit::ManualClock;
use model::Timestamp;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::conformance::{self, Bench, sample};
use crate::instance::{Image, ImageFormat};
use crate::seed::UserData;

const WITHIN: Duration = Duration::from_secs(60);

struct Host {
    dir: TempDir,
    clock: Arc<ManualClock>,
    runtime: FakeRuntime,
}

impl Host {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder");
        let image = dir.path().join("image.raw");
        std::fs::File::create(image).and_then(|file| file.set_len(2 << 20)).expect("a file");
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
        let runtime = FakeRuntime::new("libvirt-kvm", clock.clone(), WITHIN);
        Self { dir, clock, runtime }
    }

    async fn running(&self, number: u8) -> InstanceId {
        let instance = Instance { image: self.image(), ..sample(number) };
        let user_data = UserData::none();
        self.runtime.define(&instance, SeedInput::UserData(&user_data)).await.expect("it can be defined");
        self.runtime.start(instance.id).await.expect("it can be started");
        instance.id
    }
}

impl Bench for Host {
    fn runtime(&self) -> &dyn Runtime {
        &self.runtime
    }

    fn image(&self) -> Image {
        Image { path: self.dir.path().join("image.raw"), format: ImageFormat::Raw }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn wait_booted(&self, id: InstanceId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut console = self.runtime.console(id).await.expect("the console can be opened");
            console.write_all(b"hello").await.expect("it can be written to");
            let mut said = vec![0; ECHO.len() + 5];
            console.read_exact(&mut said).await.expect("it can be read from");
            assert_eq!(said, b"console: hello");
        })
    }

    fn add_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        self.runtime.add_stranger(name);
        Box::pin(ready(()))
    }

    fn remove_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        self.runtime.locked().strangers.remove(name);
        Box::pin(ready(()))
    }

    fn wait(&self, look_in: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(look_in);
        Box::pin(ready(()))
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        let left = self.runtime.locked().guests.keys().map(|id| id.to_string()).collect();
        Box::pin(ready(left))
    }
}

#[tokio::test]
async fn the_fake_conforms() {
    conformance::conforms(&Host::new()).await;
}

#[tokio::test]
async fn a_guest_that_does_not_hear_is_powered_off_in_the_end() {
    let host = Host::new();
    let id = host.running(1).await;
    host.runtime.guests_are_deaf(true);
    assert_ne!(host.runtime.stop(id).await.expect("it is asked"), Progress::Done);
    host.clock.advance(WITHIN - Duration::from_millis(1));
    assert_ne!(host.runtime.stop(id).await.expect("it is asked"), Progress::Done);
    host.clock.advance(Duration::from_millis(1));
    assert_eq!(host.runtime.stop(id).await.expect("it is powered off"), Progress::Done);
}

#[tokio::test]
async fn a_start_takes_back_a_stop() {
    let host = Host::new();
    let id = host.running(1).await;
    host.runtime.guests_are_deaf(true);
    assert_ne!(host.runtime.stop(id).await.expect("it is asked"), Progress::Done);
    host.runtime.start(id).await.expect("it runs");
    host.clock.advance(WITHIN);
    assert_ne!(host.runtime.stop(id).await.expect("it is asked anew"), Progress::Done);
}

#[tokio::test]
async fn nothing_runs_after_the_host_was_restarted() {
    let host = Host::new();
    let id = host.running(1).await;
    host.runtime.host_reboots();
    let seen = host.runtime.observe(id).await.expect("it can be looked at").expect("it is there");
    assert_eq!(seen.state, DomainState::Stopped);
    host.runtime.start(id).await.expect("it can be started");
    assert_eq!(host.runtime.boots(id), 2);
    assert!(host.runtime.set_state(id, DomainState::Crashed));
    host.runtime.start(id).await.expect("it can be started");
    assert_eq!(host.runtime.boots(id), 3);
}
