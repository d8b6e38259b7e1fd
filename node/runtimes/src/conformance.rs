//! What every [`Runtime`] owes its callers. One function, run on the fake and on a real hypervisor.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use model::InstanceId;
use model::unit::MIB;

use crate::disk::DiskError;
use crate::instance::{AuthorizedKey, Image, ImageFormat, Instance, Nic, Placement};
use crate::name;
use crate::qcow2::{Problem, Qcow2Error};
use crate::runtime::{DomainState, Progress, Reboot, Runtime, RuntimeError, SeedInput, Trouble};
use crate::seed::UserData;

pub const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIElv1Bms/5qP5yjVYcq8qQtEKWkWmuYQmyhTLrcWGsvV alice@laptop";
pub const USER_DATA: &str = "#cloud-config\nmanage_etc_hosts: true\n";

pub fn id(number: u8) -> InstanceId {
    InstanceId::from_uuid(uuid::Uuid::from_u128(
        0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number),
    ))
}

/// A small instance, of an image that is not there.
pub fn sample(number: u8) -> Instance {
    let ip = |text: String| text.parse().expect("an address");
    Instance {
        id: id(number),
        vcpus: 1,
        memory_bytes: 192 * MIB,
        disk_bytes: 256 * MIB,
        image: Image { path: "/nonexistent".into(), format: ImageFormat::Qcow2 },
        nics: vec![Nic {
            mac: format!("52:54:00:00:00:{number:02x}").parse().expect("an address"),
            bridge: "br0".parse().expect("a name"),
            addresses: vec![format!("10.88.7.{}/24", 10 + number).parse().expect("an address")],
            gateways: vec![ip("10.88.7.1".into())],
            nameservers: vec![ip("10.88.7.1".into())],
        }],
        hostname: format!("tiny-{number}").parse().expect("a name"),
        ssh_keys: vec![AuthorizedKey::parse(SSH_KEY).expect("a key")],
        placement: Placement::default(),
        gpus: Vec::new(),
        disk_backed_bytes: 0,
    }
}

/// A runtime, and what the suite does beside it.
pub trait Bench: Sync {
    fn runtime(&self) -> &dyn Runtime;
    /// A bootable one.
    fn image(&self) -> Image;
    /// For images that are not.
    fn dir(&self) -> &Path;
    /// Waits until the guest hears its power button.
    fn wait_booted(&self, id: InstanceId) -> BoxFuture<'_, ()>;
    /// Makes a stopped domain of this name that is nobody's instance.
    fn add_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()>;
    fn remove_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()>;
    /// Lets time pass until a guest may have obeyed.
    fn wait(&self, look_in: Duration) -> BoxFuture<'_, ()>;
    /// What is left of instances on the host, in words.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>>;
}

pub async fn conforms(bench: &dyn Bench) {
    assert_eq!(bench.leftovers().await, Vec::<String>::new(), "the host is clean before");
    what_is_not_there_is_gone_and_stopped(bench).await;
    a_bad_image_is_refused_and_leaves_nothing(bench).await;
    a_stranger_is_listed_and_never_touched(bench).await;
    one_life(bench).await;
    a_running_instance_can_be_destroyed(bench).await;
    assert_eq!(bench.leftovers().await, Vec::<String>::new(), "the host is clean after");
}

fn instance(bench: &dyn Bench, number: u8) -> Instance {
    Instance { image: bench.image(), ..sample(number) }
}

fn user_data() -> UserData {
    UserData::new(USER_DATA.as_bytes().to_vec()).expect("it is short")
}

async fn state(bench: &dyn Bench, id: InstanceId) -> Option<DomainState> {
    let seen = bench.runtime().observe(id).await.expect("it can be looked at");
    let listed = bench.runtime().list().await.expect("they can be listed");
    assert_eq!(seen.as_ref(), listed.iter().find(|domain| domain.instance == Some(id)), "both tell the same");
    seen.map(|domain| domain.state)
}

fn trouble<T: std::fmt::Debug>(result: Result<T, RuntimeError>) -> Trouble {
    match result.expect_err("it is refused") {
        RuntimeError::Instance { trouble, .. }
        | RuntimeError::List(trouble)
        | RuntimeError::Bases(trouble) => trouble,
    }
}

/// Calls again until it is stopped.
async fn stop(bench: &dyn Bench, id: InstanceId) -> u32 {
    const WITHIN: Duration = Duration::from_secs(60);
    let started = Instant::now();
    for call in 1.. {
        match bench.runtime().stop(id).await.expect("it can be stopped") {
            Progress::Done => return call,
            Progress::Waiting { look_in } => bench.wait(look_in).await,
        }
        assert!(started.elapsed() < WITHIN, "it did not stop: {:?}", state(bench, id).await);
    }
    unreachable!("calls are not counted to the end")
}

async fn what_is_not_there_is_gone_and_stopped(bench: &dyn Bench) {
    let runtime = bench.runtime();
    let absent = id(9);
    assert_eq!(state(bench, absent).await, None);
    assert_eq!(runtime.stop(absent).await.expect("it is stopped"), Progress::Done);
    runtime.destroy(absent).await.expect("it is gone");
    assert!(matches!(trouble(runtime.start(absent).await), Trouble::NotDefined));
    assert!(matches!(trouble(runtime.reboot(absent, Reboot::Hard).await), Trouble::NotDefined));
    assert!(matches!(trouble(runtime.console(absent).await.map(drop)), Trouble::NotDefined));
    let unseeded = runtime.define(&instance(bench, 9), SeedInput::Keep).await;
    assert!(matches!(trouble(unseeded), Trouble::NoSeed));
    assert_eq!(state(bench, absent).await, None);
}

async fn a_bad_image_is_refused_and_leaves_nothing(bench: &dyn Bench) {
    let mut bad = instance(bench, 8);
    bad.image = Image { path: bench.dir().join("bad.qcow2"), format: ImageFormat::Qcow2 };
    std::fs::write(&bad.image.path, "no disk at all").expect("a file");
    let user_data = user_data();
    let seed = SeedInput::UserData(&user_data);
    let refused = trouble(bench.runtime().define(&bad, seed).await);
    let Trouble::Disk(DiskError::Qcow2(Qcow2Error::Refused { problem, .. })) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(*problem, Problem::NotQcow2);
    assert!(!refused.retryable());
    let small = Instance { disk_bytes: MIB, ..instance(bench, 8) };
    let refused = trouble(bench.runtime().define(&small, seed).await);
    assert!(matches!(refused, Trouble::Disk(DiskError::SmallerThanImage { .. })), "{refused:?}");
    let odd = Instance { vcpus: 0, ..instance(bench, 8) };
    assert!(matches!(trouble(bench.runtime().define(&odd, seed).await), Trouble::Spec(_)));
    assert_eq!(state(bench, bad.id).await, None);
}

async fn a_stranger_is_listed_and_never_touched(bench: &dyn Bench) {
    let runtime = bench.runtime();
    // One that is named like an instance of ours, which anybody may do.
    let stranger = name::domain(id(7));
    bench.add_stranger(&stranger).await;
    let listed = runtime.list().await.expect("they can be listed");
    let seen = listed.iter().find(|domain| domain.name == stranger).expect("it is listed");
    assert_eq!((seen.instance, seen.state), (None, DomainState::Stopped));
    let user_data = user_data();
    let defined = runtime.define(&instance(bench, 7), SeedInput::UserData(&user_data)).await;
    assert!(matches!(trouble(defined), Trouble::Foreign { .. }));
    assert!(matches!(trouble(runtime.start(id(7)).await), Trouble::Foreign { .. }));
    assert!(matches!(trouble(runtime.stop(id(7)).await), Trouble::Foreign { .. }));
    assert!(matches!(trouble(runtime.destroy(id(7)).await), Trouble::Foreign { .. }));
    assert!(matches!(trouble(runtime.observe(id(7)).await), Trouble::Foreign { .. }));
    assert!(runtime.list().await.expect("they can be listed").contains(seen), "it is as it was");
    bench.remove_stranger(&stranger).await;
}

async fn one_life(bench: &dyn Bench) {
    let runtime = bench.runtime();
    let mut wanted = instance(bench, 1);
    let id = wanted.id;
    let user_data = user_data();
    for _ in 0..2 {
        runtime.define(&wanted, SeedInput::UserData(&user_data)).await.expect("it can be defined");
        assert_eq!(state(bench, id).await, Some(DomainState::Stopped), "a definition starts nothing");
    }
    assert_eq!(stop(bench, id).await, 1, "it is stopped already");
    assert!(matches!(trouble(runtime.reboot(id, Reboot::Hard).await), Trouble::NotRunning));
    assert!(matches!(trouble(runtime.console(id).await.map(drop)), Trouble::NotRunning));

    for _ in 0..2 {
        runtime.start(id).await.expect("it can be started");
        assert_eq!(state(bench, id).await, Some(DomainState::Running));
    }
    runtime.define(&wanted, SeedInput::Keep).await.expect("nothing changes");
    assert_eq!(state(bench, id).await, Some(DomainState::Running));
    let seen = runtime.observe(id).await.expect("it can be looked at").expect("it is there");
    assert_eq!((seen.vcpus, seen.memory_bytes), (wanted.vcpus, wanted.memory_bytes));
    bench.wait_booted(id).await;
    runtime.reboot(id, Reboot::Hard).await.expect("it runs");
    assert_eq!(state(bench, id).await, Some(DomainState::Running));
    bench.wait_booted(id).await;
    let calls = stop(bench, id).await;
    assert!(calls > 1, "the guest was asked first");
    assert_eq!(state(bench, id).await, Some(DomainState::Stopped));

    wanted.disk_bytes += 64 * MIB;
    wanted.memory_bytes += 64 * MIB;
    wanted.vcpus += 1;
    runtime.define(&wanted, SeedInput::Keep).await.expect("it grows");
    let seen = runtime.observe(id).await.expect("it can be looked at").expect("it is there");
    assert_eq!((seen.vcpus, seen.memory_bytes), (wanted.vcpus, wanted.memory_bytes));
    wanted.disk_bytes -= 64 * MIB;
    let shrunk = trouble(runtime.define(&wanted, SeedInput::Keep).await);
    assert!(matches!(shrunk, Trouble::Disk(DiskError::Shrinks { .. })), "{shrunk:?}");
    for _ in 0..2 {
        runtime.destroy(id).await.expect("it can be removed");
        assert_eq!(state(bench, id).await, None);
    }
}

async fn a_running_instance_can_be_destroyed(bench: &dyn Bench) {
    let runtime = bench.runtime();
    let wanted = instance(bench, 2);
    let user_data = user_data();
    runtime.define(&wanted, SeedInput::UserData(&user_data)).await.expect("it can be defined");
    runtime.start(wanted.id).await.expect("it can be started");
    runtime.destroy(wanted.id).await.expect("it can be removed");
    assert_eq!(state(bench, wanted.id).await, None);
}
