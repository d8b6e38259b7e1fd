use hw::{CannedCommands, CommandOutput};
use tempfile::TempDir;

use super::fake::FakePci;
use super::*;

const DISPLAY: u32 = 0x03_02_00;
const AUDIO: u32 = 0x04_03_00;
const BRIDGE: u32 = 0x06_04_00;
const NETWORK: u32 = 0x02_00_00;
const OFF: &str = "nvidia-smi -i GPU-a -pm 0";
const ON: &str = "nvidia-smi -i GPU-a -pm 1";

fn clock() -> Arc<dyn Clock> {
    Arc::new(kit::SystemClock::new())
}

fn at(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

fn gpu(uuid: &str, address: &str) -> Gpu {
    Gpu {
        uuid: uuid.into(),
        address: at(address),
        persistence: true,
        facts: format!("{{\"uuid\":\"{uuid}\"}}"),
    }
}

struct Host {
    dir: TempDir,
    pci: Arc<FakePci>,
    commands: Arc<CannedCommands>,
    passthrough: Passthrough,
}

impl Host {
    /// A GPU with its audio function behind a bridge, all in one group; and another GPU in one of its own.
    fn new() -> Self {
        let pci =
            Arc::new(FakePci::with_drivers(&["nvidia", "snd_hda_intel", "pcieport", VFIO, "mlx5_core"]));
        pci.add(&at("0000:52:01.0"), BRIDGE, Some(7), Some("pcieport"));
        pci.add(&at("0000:53:00.0"), DISPLAY, Some(7), Some("nvidia"));
        pci.add(&at("0000:53:00.1"), AUDIO, Some(7), Some("snd_hda_intel"));
        pci.add(&at("0000:61:00.0"), DISPLAY, Some(8), Some("nvidia"));
        let done = CommandOutput::ok("");
        let commands = Arc::new(CannedCommands::new().answer(OFF, done.clone()).answer(ON, done));
        let passthrough = Passthrough::new(pci.clone(), commands.clone(), clock());
        Self { dir: TempDir::new().expect("a folder"), pci, commands, passthrough }
    }

    fn record(&self) -> std::path::PathBuf {
        self.dir.path().join("gpus")
    }

    async fn take(&self) -> Result<(), VfioError> {
        self.passthrough.take(&self.record(), &[gpu("GPU-a", "0000:53:00.0")]).await
    }

    async fn give_back(&self) -> Result<(), VfioError> {
        self.passthrough.give_back(&self.record()).await
    }

    fn driver(&self, address: &str) -> String {
        self.pci.driver(&at(address)).expect("it can be read").unwrap_or_default()
    }
}

#[tokio::test]
async fn a_gpu_waits_for_its_guest_with_all_its_functions_and_goes_back_as_it_was() {
    let host = Host::new();
    let before = host.pci.bindings();
    let addresses = host.passthrough.addresses(&[gpu("GPU-a", "0000:53:00.0")]).expect("they can be had");
    assert_eq!(addresses, [at("0000:53:00.0"), at("0000:53:00.1")]);
    host.take().await.expect("they are taken");
    assert_eq!((host.driver("0000:53:00.0"), host.driver("0000:53:00.1")), (VFIO.into(), VFIO.into()));
    assert_eq!(
        (host.driver("0000:52:01.0"), host.driver("0000:61:00.0")),
        ("pcieport".into(), "nvidia".into())
    );
    assert_eq!(facts(&host.record()).expect("they are told"), ["{\"uuid\":\"GPU-a\"}"]);
    let changes = host.pci.changes();
    host.take().await.expect("they are taken already");
    assert_eq!(host.pci.changes(), changes, "nothing was left to do");
    host.give_back().await.expect("they go back");
    assert_eq!(host.pci.bindings(), before);
    assert!(!host.record().exists());
    assert_eq!(host.commands.ran(), [OFF, ON], "the driver lets go of what nobody keeps ready");
    host.give_back().await.expect("there is nothing any more");
    assert_eq!(facts(&host.record()).expect("nothing"), Vec::<String>::new());
}

#[tokio::test]
async fn whatever_a_daemon_died_of_the_next_one_completes_it_or_undoes_it() {
    for cut in 0..8 {
        for completes in [false, true] {
            let host = Host::new();
            let before = host.pci.bindings();
            host.pci.cut_short(Some(cut));
            let taken = host.take().await;
            host.pci.cut_short(None);
            // Each function is overridden, unbound and probed.
            assert_eq!(taken.is_ok(), cut >= 6, "after {cut} changes: {taken:?}");
            if completes {
                host.take().await.expect("it is completed");
                assert_eq!(host.driver("0000:53:00.1"), VFIO);
            }
            let again = host.pci.changes();
            // And it dies while it gives them back, at every point of that.
            for short in 0.. {
                host.pci.cut_short(Some(short));
                let done = host.give_back().await;
                host.pci.cut_short(None);
                if done.is_ok() {
                    break;
                }
                assert!(host.record().exists(), "what is not undone is written down");
                assert!(short < 20, "it never ends: {done:?}");
            }
            assert_eq!(host.pci.bindings(), before, "after {cut} changes, {again} in all");
            assert!(!host.record().exists());
        }
    }
}

#[tokio::test]
async fn a_host_that_boots_anew_gives_back_what_was_and_takes_it_again() {
    let host = Host::new();
    let before = host.pci.bindings();
    host.take().await.expect("they are taken");
    host.pci.reboot();
    assert_eq!(host.driver("0000:53:00.0"), "nvidia");
    host.take().await.expect("they are taken in this boot too");
    assert_eq!(host.driver("0000:53:00.0"), VFIO);
    host.pci.reboot();
    host.give_back().await.expect("nothing is to be done");
    assert_eq!(host.pci.bindings(), before);
}

#[tokio::test]
async fn what_cannot_be_handed_over_is_refused_before_anything_moves() {
    let host = Host::new();
    let plain = "0000:70:00.0";
    host.pci.add(&at(plain), DISPLAY, None, Some("nvidia"));
    let crowded = "0000:80:00.0";
    host.pci.add(&at(crowded), DISPLAY, Some(9), Some("nvidia"));
    host.pci.add(&at("0000:81:00.0"), NETWORK, Some(9), Some("mlx5_core"));
    let cases = [(plain, "IommuOff"), (crowded, "GpuGroupShared"), ("0000:99:00.0", "GpuMissing")];
    for (address, reason) in cases {
        let refused = host.passthrough.take(&host.record(), &[gpu("GPU-x", address)]).await.unwrap_err();
        assert_eq!(refused.reason(), reason, "{refused}");
    }
    let bare = Arc::new(FakePci::with_drivers(&["nvidia"]));
    bare.add(&at(plain), DISPLAY, Some(1), Some("nvidia"));
    let bare = Passthrough::new(bare, host.commands.clone(), clock());
    let refused = bare.take(&host.record(), &[gpu("GPU-x", plain)]).await.unwrap_err();
    assert_eq!((refused.reason(), refused.retryable()), ("NoGpuPassthrough", false));
    assert_eq!(host.pci.changes(), 0);
    assert!(!host.record().exists() && host.commands.ran().is_empty());
    // Two of one group are one guest's, where it has both.
    host.pci.add(&at("0000:81:00.0"), DISPLAY, Some(9), Some("nvidia"));
    let both = [gpu("GPU-x", crowded), gpu("GPU-y", "0000:81:00.0")];
    assert_eq!(host.passthrough.addresses(&both).expect("both").len(), 2);
    assert_eq!(host.passthrough.addresses(&both[..1]).unwrap_err().reason(), "GpuGroupShared");
}

#[tokio::test]
async fn a_gpu_that_somebody_has_open_is_left_to_them() {
    let host = Host::new();
    let before = host.pci.bindings();
    host.pci.set_open(&at("0000:53:00.0"), true);
    let refused = host.take().await.expect_err("it is open");
    assert!(refused.retryable(), "{refused}");
    host.give_back().await.expect("what was begun is undone");
    assert_eq!(host.pci.bindings(), before);
    assert_eq!(host.commands.ran(), [OFF, ON]);
}

#[test]
fn an_address_is_one_as_sysfs_has_it() {
    for wrong in [
        "",
        "53:00.0",
        "0000:53:00.8",
        "0000:53:00.0/..",
        "0000:53:00.0\n",
        "0000:5G:00.0",
        "00000000:53:00.0",
    ] {
        assert!(wrong.parse::<PciAddress>().is_err(), "{wrong:?}");
    }
    assert_eq!(at("0000:c3:1f.7").parts(), ["0000", "c3", "1f", "7"]);
    assert!(serde_json::from_str::<PciAddress>("\"../../x\"").is_err());
}

/// A tree as the kernel lays it out, of plain files: what is written to them is there to be read.
#[test]
fn the_kernels_files_are_read_and_written_where_they_are() {
    let dir = TempDir::new().expect("a folder");
    let sys = dir.path();
    let make = |path: &str, text: &str| {
        let path = sys.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    let link = |from: &str, to: &str| {
        let from = sys.join(from);
        std::fs::create_dir_all(from.parent().expect("a folder")).expect("a folder");
        std::os::unix::fs::symlink(to, from).expect("a link");
    };
    let home = "devices/pci0000:50/0000:50:02.0";
    for (name, class) in
        [("0000:53:00.0", "0x030200\n"), ("0000:53:00.1", "0x040300\n"), ("0000:50:02.0", "0x060400\n")]
    {
        let home = if name == "0000:50:02.0" { home.to_owned() } else { format!("{home}/{name}") };
        make(&format!("{home}/class"), class);
        make(&format!("{home}/driver_override"), "(null)\n");
        link(&format!("bus/pci/devices/{name}"), &format!("../../../{home}"));
        link(&format!("kernel/iommu_groups/12/devices/{name}"), &format!("../../../../{home}"));
        link(&format!("{home}/iommu_group"), sys.join("kernel/iommu_groups/12").to_str().expect("text"));
    }
    make("bus/pci/drivers/nvidia/unbind", "");
    make("bus/pci/drivers/vfio-pci/unbind", "");
    make("bus/pci/drivers_probe", "");
    let driver = sys.join("bus/pci/drivers/nvidia");
    link(&format!("{home}/0000:53:00.0/driver"), driver.to_str().expect("text"));

    let pci = SysfsPci::at(sys);
    let gpu = at("0000:53:00.0");
    let group = pci.group(&gpu).expect("it can be read").expect("it is in one");
    let seen: Vec<_> =
        group.iter().map(|one| (one.address.as_str(), one.is_bridge(), one.driver.as_deref())).collect();
    let expected = [
        ("0000:50:02.0", true, None),
        ("0000:53:00.0", false, Some("nvidia")),
        ("0000:53:00.1", false, None),
    ];
    assert_eq!(seen, expected);
    assert!(pci.has_driver(VFIO) && !pci.has_driver("nouveau") && !pci.is_there(&at("0000:54:00.0")));
    pci.set_override(&gpu, Some(VFIO)).expect("written");
    pci.unbind(&gpu).expect("written");
    pci.probe(&gpu).expect("written");
    let read = |path: &str| std::fs::read_to_string(sys.join(path)).expect("a file");
    // A kernel's file takes each write for itself, and this one keeps what was behind it.
    assert!(read(&format!("{home}/0000:53:00.0/driver_override")).starts_with("vfio-pci\n"));
    assert_eq!(read("bus/pci/drivers/nvidia/unbind"), "0000:53:00.0");
    assert_eq!(read("bus/pci/drivers_probe"), "0000:53:00.0");
    pci.set_override(&gpu, None).expect("written");
    assert!(read(&format!("{home}/0000:53:00.0/driver_override")).starts_with('\n'));
    let unbound = pci.unbind(&at("0000:53:00.1")).expect_err("no driver has it, and no file is made");
    assert_eq!(unbound.source.kind(), std::io::ErrorKind::NotFound);
    let nowhere = SysfsPci::at(&sys.join("nowhere"));
    assert!(nowhere.group(&gpu).expect("there is none").is_none());
}
