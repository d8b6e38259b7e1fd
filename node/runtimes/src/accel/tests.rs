use std::cell::Cell;

use futures::FutureExt;
use tempfile::TempDir;

use super::*;

struct Bench {
    dir: TempDir,
    tries: Cell<u32>,
}

impl Bench {
    fn new() -> Self {
        Self { dir: TempDir::new().expect("a folder"), tries: Cell::new(0) }
    }

    async fn choose(&self, asked: Accel, has_device: bool, boot_id: &str, outcome: Tried) -> Choice {
        let memory = self.dir.path().join("accel");
        let canary = || {
            self.tries.set(self.tries.get() + 1);
            std::future::ready(outcome).boxed()
        };
        choose(asked, has_device, boot_id, &memory, canary).await.expect("the folder can be written")
    }
}

const BOOTED: Tried = Tried::Booted { took: Duration::from_millis(1500) };

fn stuck() -> Tried {
    Tried::DidNotBoot { why: "nothing within 20 s".into() }
}

#[tokio::test]
async fn what_is_configured_is_not_tried() {
    let bench = Bench::new();
    assert_eq!(bench.choose(Accel::Kvm, false, "one", stuck()).await.accelerator, Accelerator::Kvm);
    assert_eq!(bench.choose(Accel::Tcg, true, "one", BOOTED).await.accelerator, Accelerator::Tcg);
    assert_eq!(bench.choose(Accel::Auto, false, "one", BOOTED).await.because, Because::NoDevice);
    assert_eq!(bench.tries.get(), 0);
}

#[tokio::test]
async fn a_kernel_is_tried_once_a_boot() {
    let bench = Bench::new();
    let first = bench.choose(Accel::Auto, true, "one", BOOTED).await;
    assert_eq!(first.accelerator, Accelerator::Kvm);
    assert_eq!(first.to_string(), "kvm: a kernel reached userspace on it in 1.5 s");
    assert_eq!(bench.choose(Accel::Auto, true, "one", stuck()).await, first);
    assert_eq!(bench.tries.get(), 1);
    let next = bench.choose(Accel::Auto, true, "two", stuck()).await;
    assert_eq!(next.accelerator, Accelerator::Tcg);
    assert_eq!(next.to_string(), "tcg: no kernel boots on this host's kvm: nothing within 20 s");
    assert_eq!(bench.choose(Accel::Auto, true, "two", BOOTED).await, next);
    assert_eq!(bench.tries.get(), 2);
}

#[tokio::test]
async fn what_could_not_be_tried_is_tried_again() {
    let bench = Bench::new();
    let missing = Tried::NotTried { why: "no kernel in /boot".into() };
    let choice = bench.choose(Accel::Auto, true, "one", missing).await;
    assert_eq!(choice.to_string(), "tcg: kvm could not be tried: no kernel in /boot");
    assert_eq!(bench.choose(Accel::Auto, true, "one", BOOTED).await.accelerator, Accelerator::Kvm);
    std::fs::write(bench.dir.path().join("accel"), "damaged").expect("a file");
    assert_eq!(bench.choose(Accel::Auto, true, "one", stuck()).await.accelerator, Accelerator::Tcg);
    assert_eq!(bench.tries.get(), 3);
}

#[test]
fn the_configuration_knows_three_words() {
    for (word, accel) in [("auto", Accel::Auto), ("kvm", Accel::Kvm), ("tcg", Accel::Tcg)] {
        assert_eq!(word.parse(), Ok(accel));
    }
    for odd in ["", "KVM", "hvf", "auto "] {
        assert!(odd.parse::<Accel>().is_err(), "{odd}");
    }
}
