use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use kit::{Supervisor, SystemClock};
use runtimes::FakeRuntime;
use runtimes::firewall::FakeKernel;
use runtimes::images::{FetchError, ImageSource, Incoming};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use wire::proto::agent::{DesiredInstance, InstancePlacement};

use super::*;

/// Has one image.
struct Shelf(Vec<u8>);

impl ImageSource for Shelf {
    fn open<'a>(&'a self, _: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        let rest = Bytes::copy_from_slice(&self.0[usize::try_from(offset).unwrap()..]);
        let total_bytes = self.0.len() as u64;
        let bytes = futures::stream::once(async move { Ok(rest) }).boxed();
        std::future::ready(Ok(Incoming { total_bytes, anew: false, bytes })).boxed()
    }
}

struct Host {
    dir: TempDir,
    hosted: Hosted,
    runtime: Arc<FakeRuntime>,
    memory: Arc<AtomicU64>,
    /// Of the disk, to others.
    promised: Arc<AtomicU64>,
    arrived: tokio::sync::watch::Receiver<u32>,
    kernel: Arc<FakeKernel>,
}

fn content() -> Vec<u8> {
    vec![7; 64 * 512]
}

fn host() -> Host {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new());
    let (tell, arrived) = tokio::sync::watch::channel(0);
    // However full the disk is that the tests run on.
    let images = Images::keeping_free(
        0,
        dir.path().join("images"),
        Arc::new(Shelf(content())),
        clock.clone(),
        Supervisor::new(),
        Arc::new(move || tell.send_modify(|count| *count += 1)),
    );
    let promised = Arc::new(AtomicU64::new(0));
    let others = promised.clone();
    let images = images.beside(Box::new(move || others.load(Ordering::Relaxed)));
    let runtime = Arc::new(FakeRuntime::new("libvirt-kvm", clock, Duration::from_secs(1)));
    let memory = Arc::new(AtomicU64::new(16 << 30));
    let total = memory.clone();
    let memory_of: HostMemoryOf = Box::new(move || {
        let total_bytes = total.load(Ordering::Relaxed);
        Some(HostMemory { total_bytes, hugetlb_bytes: 0, free_pages: Vec::new() })
    });
    let kernel = Arc::new(FakeKernel::default());
    let firewall = Arc::new(Firewall::new(kernel.clone(), Arc::new(SystemClock::new())));
    let hosted = Hosted::new(runtime.clone(), images, firewall, None, memory_of, None);
    Host { dir, hosted, runtime, memory, promised, arrived, kernel }
}

fn entry(number: u128) -> InstanceSpec {
    InstanceSpec {
        instance_id: id(number).to_string(),
        desired: DesiredInstance::Running.into(),
        runtime: "libvirt-kvm".into(),
        vcpus: 1,
        memory_bytes: 1 << 30,
        disk_bytes: 1 << 30,
        image: Some(InstanceImage {
            url: String::new(),
            sha256: hex::encode(Sha256::digest(content())),
            format: WireFormat::Raw.into(),
        }),
        hostname: "web".into(),
        ..InstanceSpec::default()
    }
}

fn place(cpus: &str, mems: &str, hugepage_bytes: u64) -> Option<InstancePlacement> {
    Some(InstancePlacement { cpus: cpus.into(), mems: mems.into(), hugepage_bytes })
}

fn id(number: u128) -> InstanceId {
    InstanceId::from_uuid(uuid::Uuid::from_u128(number))
}

impl Host {
    /// Defines it, once its image has come.
    async fn define(&mut self, entry: &InstanceSpec) -> Result<(), Trouble> {
        self.define_told(entry, Told::Nothing).await
    }

    async fn define_told(&mut self, entry: &InstanceSpec, told: Told<'_>) -> Result<(), Trouble> {
        loop {
            match self.hosted.define(entry, told).await {
                Err(trouble) if trouble.reason == "ImageComing" => self.arrived.changed().await.unwrap(),
                done => return done,
            }
        }
    }

    fn images(&self) -> usize {
        let entries = std::fs::read_dir(self.dir.path().join("images")).into_iter().flatten().flatten();
        entries.filter(|entry| !entry.file_name().to_string_lossy().contains(".from-")).count()
    }
}

#[tokio::test]
async fn an_instance_waits_for_its_image_and_is_made_of_it() {
    let mut host = host();
    let coming = host.hosted.define(&entry(1), Told::Nothing).await.unwrap_err();
    assert_eq!((coming.reason, coming.retryable), ("ImageComing", true));
    host.define(&entry(1)).await.unwrap();
    host.hosted.start(id(1), 0).await.unwrap();
    let held = host.hosted.list().await.unwrap();
    assert_eq!(held, [Held { id: id(1), power: Power::Running }]);
}

#[tokio::test]
async fn one_that_was_not_told_what_it_has_to_be_is_not_made_and_is_told_once() {
    let mut host = host();
    let untold = host.define_told(&entry(1), Told::Before).await.unwrap_err();
    assert_eq!(untold.reason, super::super::port::NO_USER_DATA);
    assert_eq!(host.hosted.list().await.unwrap(), []);
    let user_data = UserData::new(b"#cloud-config\n".to_vec()).unwrap();
    host.define_told(&entry(1), Told::Now(&user_data)).await.unwrap();
    host.define_told(&entry(1), Told::Before).await.expect("it was told");
}

#[tokio::test]
async fn what_an_entry_says_wrongly_is_told_and_lasts() {
    let mut host = host();
    let of = |change: fn(&mut InstanceSpec)| {
        let mut entry = entry(1);
        change(&mut entry);
        entry
    };
    for (wrong, reason, word) in [
        (of(|entry| entry.image = None), "InvalidInstance", "image"),
        (of(|entry| entry.image.as_mut().unwrap().sha256 = "ab".into()), "InvalidInstance", "SHA-256"),
        (of(|entry| entry.image.as_mut().unwrap().format = 99), "InvalidInstance", "update"),
        (
            of(|entry| entry.image.as_mut().unwrap().sha256 = "ab".repeat(32)),
            "ImageDigestMismatch",
            "SHA-256",
        ),
        (of(|entry| entry.hostname = "no_label".into()), "InvalidInstance", "host name"),
        (
            of(|entry| entry.ssh_keys = vec!["-----BEGIN OPENSSH PRIVATE KEY-----".into()]),
            "InvalidInstance",
            "private",
        ),
        (
            of(|entry| entry.nics = vec![InstanceNic { mac: "?".into(), ..InstanceNic::default() }]),
            "InvalidInstance",
            "MAC",
        ),
        (of(|entry| entry.disk_bytes = 512), "InvalidInstance", "disk"),
        (of(|entry| entry.disk_backed_bytes = 2 << 30), "InvalidInstance", "backed"),
        (of(|entry| entry.placement = place("0-", "", 0)), "InvalidInstance", "CPU"),
        (of(|entry| entry.placement = place("", "0,9999", 0)), "InvalidInstance", "NUMA"),
        (of(|entry| entry.placement = place("", "", 4096)), "InvalidInstance", "pages of 4096"),
        (
            of(|entry| (entry.placement, entry.vcpus) = (place("0-2", "", 0), 4)),
            "InvalidInstance",
            "3 CPUs of the host for 4 vCPUs",
        ),
        (
            of(|entry| (entry.placement, entry.memory_bytes) = (place("", "", 1 << 30), 3 << 29)),
            "InvalidInstance",
            "multiple",
        ),
        (of(|entry| entry.gpu_device_ids = vec!["GPU-1".into()]), "NoGpuPassthrough", "GPU"),
    ] {
        let told = host.define(&wrong).await.unwrap_err();
        assert_eq!((told.reason, told.retryable), (reason, false), "{told:?}");
        assert!(told.message.contains(word), "{word}: {told:?}");
    }
    assert_eq!(host.hosted.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_start_that_the_host_has_no_memory_for_waits() {
    let mut host = host();
    for number in [1, 2] {
        host.define(&entry(number)).await.unwrap();
    }
    // Room for one: its memory and its hypervisor's, and the host's own.
    host.memory.store((2 << 30) + (600 << 20), Ordering::Relaxed);
    host.hosted.start(id(1), 0).await.unwrap();
    let told = host.hosted.start(id(2), 0).await.unwrap_err();
    assert_eq!((told.reason, told.retryable), ("ResourcesExhausted", true));
    assert!(told.message.starts_with("ResourcesExhausted: "), "{}", told.message);
    host.hosted.start(id(1), 0).await.expect("it runs already, which takes nothing");
    host.memory.store(8 << 30, Ordering::Relaxed);
    let told = host.hosted.start(id(2), 7 << 30).await.unwrap_err();
    assert_eq!(told.reason, "ResourcesExhausted", "holds have the rest");
    host.hosted.start(id(2), 0).await.unwrap();
}

#[tokio::test]
async fn an_image_that_finds_no_room_is_told_of_the_instance_that_wants_it_and_of_no_other() {
    let mut host = host();
    host.define(&entry(1)).await.unwrap();
    host.promised.store(u64::MAX, Ordering::Relaxed);
    let mut other = entry(2);
    other.image.as_mut().unwrap().format = WireFormat::Qcow2.into();
    let told = host.define(&other).await.unwrap_err();
    assert_eq!((told.reason, told.retryable), ("ResourcesExhausted", true));
    assert!(told.message.starts_with("ResourcesExhausted: fetch the image: "), "{}", told.message);
    host.define(&entry(3)).await.expect("its image is here");
    for number in [1, 3] {
        host.hosted.start(id(number), 0).await.unwrap();
    }
}

#[tokio::test]
async fn a_start_in_huge_pages_waits_for_those() {
    let mut host = host();
    let paged = InstanceSpec { placement: place("", "", 1 << 30), ..entry(1) };
    host.define(&paged).await.unwrap();
    let told = host.hosted.start(id(1), 0).await.unwrap_err();
    assert_eq!((told.reason, told.retryable), ("ResourcesExhausted", true));
    assert!(told.message.contains("1024 MiB of memory in huge pages needed, 0 MiB left"), "{}", told.message);
    host.define(&entry(1)).await.unwrap();
    host.hosted.start(id(1), 0).await.expect("in normal ones it does");
}

#[tokio::test]
async fn an_image_goes_with_the_last_that_is_based_on_it() {
    let mut host = host();
    host.define(&entry(1)).await.unwrap();
    host.hosted.tidy(&[]).await.unwrap();
    assert_eq!(host.images(), 1, "an instance that no entry names has it still");
    host.hosted.destroy(id(1)).await.unwrap();
    host.hosted.tidy(&[&entry(2)]).await.unwrap();
    assert_eq!(host.images(), 1, "another wants it");
    host.hosted.tidy(&[]).await.unwrap();
    assert_eq!(host.images(), 0);
}

#[tokio::test]
async fn strangers_are_nobodys_instances() {
    let host = host();
    host.runtime.add_stranger("somebody-elses");
    assert_eq!(host.hosted.list().await.unwrap(), []);
}

#[tokio::test]
async fn each_card_is_guarded_by_the_name_its_tap_will_have() {
    let host = host();
    let card = InstanceNic {
        mac: "02:00:00:00:00:01".into(),
        bridge: "vm0".into(),
        addresses: vec!["10.9.0.11/24".into()],
        ..InstanceNic::default()
    };
    let one = InstanceSpec { nics: vec![card.clone()], ..entry(1) };
    let private =
        |card| InstanceSpec { network_policy: WirePolicy::Private.into(), nics: vec![card], ..entry(2) };
    let without = private(InstanceNic { addresses: Vec::new(), ..card.clone() });
    let unguarded = host.hosted.guard(&[&one, &without]).await.unwrap();
    assert!(host.kernel.text().contains(&name::tap(id(1), 0)));
    assert!(!host.kernel.text().contains(&name::tap(id(2), 0)));
    assert_eq!(unguarded.keys().copied().collect::<Vec<_>>(), [id(2)]);
    assert!(!unguarded[&id(2)].retryable && unguarded[&id(2)].message.contains("egress"));
    let reserved =
        InstanceSpec { nics: vec![InstanceNic { bridge: "bc0".into(), ..card.clone() }], ..entry(3) };
    let unguarded = host.hosted.guard(&[&reserved]).await.unwrap();
    assert!(unguarded[&id(3)].message.contains("begin with"), "{unguarded:?}");
    let second = InstanceSpec { nics: vec![card.clone()], ..entry(4) };
    let elsewhere = InstanceNic { bridge: "vm1".into(), ..card.clone() };
    let elsewhere = InstanceSpec { nics: vec![elsewhere], ..entry(5) };
    let unguarded = host.hosted.guard(&[&one, &second, &elsewhere]).await.unwrap();
    assert_eq!(unguarded.keys().copied().collect::<Vec<_>>(), [id(4)], "two cards with one address");
    assert_eq!((unguarded[&id(4)].reason, unguarded[&id(4)].retryable), ("DuplicateMac", false));
    assert!(unguarded[&id(4)].message.contains(&id(1).to_string()), "{unguarded:?}");
    host.kernel.refuse(true);
    let trouble = host.hosted.guard(&[&private(card)]).await.unwrap_err();
    assert_eq!((trouble.reason, trouble.retryable), ("NetworkRules", true));
}
