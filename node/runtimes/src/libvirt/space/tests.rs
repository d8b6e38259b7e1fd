//! On a real file system that is small.

use std::sync::Arc;

use hw::HostCommands;
use kit::SystemClock;
use model::unit::MIB;

use super::*;
use crate::accel::Accelerator;
use crate::conformance::sample;
use crate::instance::{Image, ImageFormat};
use crate::lab::{fill, on_a_small_disk};
use crate::libvirt::files::record_of;
use crate::libvirt::{Options, SHUTDOWN_WITHIN};

struct Host {
    libvirt: Libvirt,
    image: Image,
}

impl Host {
    /// Keeps 8 MiB for itself.
    fn on(disk: &Path) -> Self {
        let options = Options {
            dir: disk.join("libvirt"),
            reach_from: disk.to_owned(),
            uri: "test:///default".to_owned(),
            accelerator: Accelerator::Tcg,
            shutdown_within: SHUTDOWN_WITHIN,
            kept_bytes_min: 8 * MIB,
        };
        std::fs::create_dir(&options.dir).unwrap();
        let path = disk.join("base.raw");
        std::fs::File::create(&path).unwrap().set_len(MIB).unwrap();
        let libvirt = Libvirt::new(options, Arc::new(HostCommands::new()), Arc::new(SystemClock::new()));
        Self { libvirt, image: Image { path, format: ImageFormat::Raw } }
    }

    fn instance(&self, number: u8, mib: u64) -> Instance {
        Instance { image: self.image.clone(), disk_bytes: mib * MIB, ..sample(number) }
    }

    /// As a define does it, up to the disk.
    async fn make(&self, instance: &Instance) -> Result<(), Trouble> {
        self.libvirt.admit_disk(instance)?;
        let files = self.libvirt.files(instance.id);
        kit::fs::create_dir(&files.dir, 0o711)?;
        record::write(&files.record(), &record_of(instance))?;
        disk::ensure(&HostCommands::new(), &files.disk(), &instance.image, instance.disk_bytes, false)
            .await?;
        Ok(())
    }

    fn promised(&self) -> u64 {
        promised(&self.libvirt.instances(), None).unwrap()
    }
}

fn refused(done: Result<(), Trouble>) -> String {
    match done {
        Err(trouble @ Trouble::NoDisk(_)) => {
            assert_eq!((trouble.reason(), trouble.retryable()), ("ResourcesExhausted", true));
            trouble.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_more_is_promised_than_the_file_system_holds() {
    on_a_small_disk(64, async |disk| {
        let host = Host::on(disk);
        host.make(&host.instance(1, 32)).await.unwrap();
        let sparse = host.promised();
        assert!((31 * MIB..=32 * MIB).contains(&sparse), "what is not written is promised: {sparse}");
        let message = refused(host.make(&host.instance(2, 25)).await);
        assert!(message.starts_with("ResourcesExhausted: 25 MiB of disk needed, 2"), "{message}");
        assert!(!host.libvirt.files(sample(2).id).dir.exists(), "it left nothing");
        host.make(&host.instance(2, 16)).await.unwrap();
        let grown = host.instance(1, 48);
        refused(host.make(&grown).await);
        host.make(&host.instance(1, 36)).await.expect("so much it may grow");
        host.libvirt.admit_started(sample(1).id).expect("it was promised");
    });
}

#[test]
fn of_a_disk_that_is_backed_in_part_that_part_is_promised() {
    on_a_small_disk(64, async |disk| {
        let host = Host::on(disk);
        for number in 1..=4 {
            let half = Instance { disk_backed_bytes: 12 * MIB, ..host.instance(number, 24) };
            host.make(&half).await.unwrap();
        }
        assert!(host.promised() <= 48 * MIB);
        refused(host.make(&host.instance(5, 12)).await);
        // Less of each is promised from now on, also of those that run.
        for number in 1..=4 {
            host.libvirt.back_disk(sample(number).id, 6 * MIB).unwrap();
        }
        assert!(host.promised() <= 24 * MIB);
        host.make(&host.instance(5, 12)).await.unwrap();
        host.libvirt.back_disk(sample(9).id, MIB).expect("what is not there needs none");
        assert!(!host.libvirt.files(sample(9).id).dir.exists());
        host.libvirt.back_disk(sample(1).id, 0).unwrap();
        assert!(host.promised() > 40 * MIB, "all of the first");
    });
}

#[test]
fn a_guest_whose_disk_cannot_be_filled_any_more_does_not_start() {
    on_a_small_disk(64, async |disk| {
        let host = Host::on(disk);
        host.make(&host.instance(1, 32)).await.unwrap();
        // Somebody else writes there.
        fill(disk, 20 * MIB);
        let message = refused(host.libvirt.admit_started(sample(1).id));
        assert!(message.contains(" MiB left on this host"), "{message}");
        refused(host.make(&host.instance(2, 2)).await);
        host.libvirt.admit_disk(&host.instance(1, 32)).expect("what is there is not made again");
        std::fs::remove_file(disk.join("fill")).unwrap();
        host.libvirt.admit_started(sample(1).id).unwrap();
    });
}

#[test]
fn a_disk_that_cannot_be_made_for_lack_of_room_says_so() {
    on_a_small_disk(16, async |disk| {
        let host = Host::on(disk);
        let instance = host.instance(1, 4);
        let files = host.libvirt.files(instance.id);
        kit::fs::create_dir(&files.dir, 0o711).unwrap();
        fill(disk, 0);
        let (commands, at) = (HostCommands::new(), files.disk());
        let made = disk::ensure(&commands, &at, &instance.image, instance.disk_bytes, false).await;
        let trouble = Trouble::from(made.unwrap_err());
        assert_eq!((trouble.reason(), trouble.retryable()), ("ResourcesExhausted", true), "{trouble:?}");
    });
}
