//! Sections over a small made-up tree: what a two-socket server's kernel shows, in a folder.

use std::os::unix::fs::symlink;
use std::path::Path;

use wire::inventory::{GpuProblem, GpuVerdict, Transport};

use super::*;
use crate::commands::{CannedCommands, CommandOutput};
use crate::readers::Readers;
use crate::root::Root;

struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// A link from one path of the tree to another, relative as sysfs writes them.
    fn link(self, path: &str, target: &str) -> Self {
        let at = self.folder.path().join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::create_dir_all(self.folder.path().join(target)).unwrap();
        let up = "../".repeat(Path::new(path).parent().unwrap().components().count());
        symlink(format!("{up}{target}"), at).unwrap();
        self
    }

    fn root(&self) -> Root {
        Root::at(self.folder.path())
    }
}

#[test]
fn the_system_is_named_and_placeholders_are_not() {
    let tree = Tree::new()
        .file("sys/class/dmi/id/sys_vendor", "Supermicro\n")
        .file("sys/class/dmi/id/product_name", "To be filled by O.E.M.\n")
        .file("sys/class/dmi/id/product_serial", "0123456789\n")
        .file("sys/class/dmi/id/product_uuid", "03000200-0400-0500-0006-000700080009\n")
        .file("sys/class/dmi/id/bios_version", "2.1\n")
        .file("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", [6, 0, 0, 0, 1])
        .file("sys/class/tpm/tpm0/tpm_version_major", "2\n");
    let section = system(&tree.root());
    assert_eq!(section.vendor.as_deref(), Some("Supermicro"));
    assert_eq!((section.product, section.serial, section.product_uuid), (None, None, None));
    assert_eq!(section.firmware.unwrap().version.as_deref(), Some("2.1"));
    assert_eq!((section.uefi, section.secure_boot), (Some(true), Some(true)));
    assert_eq!(section.tpm.unwrap().version.as_deref(), Some("2.0"));
    assert!(section.unread.is_empty());
}

#[test]
fn a_real_uuid_is_kept_and_bogus_ones_are_dropped() {
    let uuid = super::system::product_uuid;
    assert_eq!(
        uuid("96A929EB-4705-37C4-1EE4-B3A96764B255").as_deref(),
        Some("96a929eb-4705-37c4-1ee4-b3a96764b255")
    );
    for bogus in [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "Not Settable",
        "",
    ] {
        assert_eq!(uuid(bogus), None, "{bogus}");
    }
}

#[test]
fn a_bios_machine_has_no_secure_boot_and_a_broken_variable_is_noted() {
    let section = system(&Tree::new().file("sys/firmware/acpi/x", "").root());
    assert_eq!((section.uefi, section.secure_boot), (Some(false), Some(false)));
    let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    let section = system(&Tree::new().file(variable, [1]).root());
    assert_eq!(section.secure_boot, None);
    assert_eq!(section.unread[0].what, "secureBoot");
}

#[test]
fn cores_and_sockets_are_counted_over_online_cpus() {
    let mut tree = Tree::new()
        .file("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
        .file("sys/devices/system/cpu/online", "0-3\n")
        .file("proc/sys/kernel/arch", "x86_64\n")
        .file("sys/devices/system/node/node0/cpulist", "0-1\n")
        .file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  2048 kB\n")
        .file("sys/devices/system/node/node1/cpulist", "2-3\n")
        .file("sys/devices/system/node/node2/cpulist", "\n")
        .file("sys/devices/system/node/node10/cpulist", "what\n");
    for (cpu, package, siblings) in [(0, 0, "0-1"), (1, 0, "0-1"), (2, 1, "2"), (3, 1, "3")] {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        tree = tree
            .file(&format!("{folder}/physical_package_id"), format!("{package}\n"))
            .file(&format!("{folder}/core_cpus_list"), siblings);
    }
    let section = cpu(&tree.root());
    assert_eq!((section.sockets, section.cores, section.threads), (Some(2), Some(3), Some(4)));
    assert_eq!(section.model.as_deref(), Some("AMD EPYC 9654"));
    let ids: Vec<u32> = section.numa_nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [0, 1, 2], "a node that is only memory stays, one that cannot be read goes");
    assert_eq!(section.numa_nodes[0].memory_bytes, Some(2 << 20));
    assert_eq!(section.unread[0].what, "node10");
}

#[test]
fn a_count_that_not_every_cpu_tells_is_absent() {
    let tree = Tree::new()
        .file("proc/cpuinfo", "processor : 0\nprocessor : 1\n")
        .file("sys/devices/system/cpu/online", "0-1")
        .file("sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
        .file("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0");
    let section = cpu(&tree.root());
    assert_eq!((section.sockets, section.cores, section.threads), (None, None, Some(2)));
}

#[test]
fn huge_pages_are_by_node_and_size() {
    let tree = Tree::new()
        .file("proc/meminfo", "MemTotal: 1048576 kB\n")
        .file("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "32\n")
        .file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "7\n")
        .file("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
    let section = memory(&tree.root());
    assert_eq!(section.total_bytes, Some(1 << 30));
    let pools: Vec<_> =
        section.huge_pages.iter().map(|pool| (pool.numa_node, pool.page_bytes, pool.pages)).collect();
    assert_eq!(pools, [(Some(0), 2 << 20, 7), (Some(1), 1 << 30, 32)]);
    let flat = Tree::new().file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "5\n");
    assert_eq!(memory(&flat.root()).huge_pages[0].numa_node, None);
}

#[test]
fn disks_are_described_and_what_is_no_disk_is_left_out() {
    let sata = "sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda";
    let tree = Tree::new()
        .file("sys/block/nvme0n1/device/model", "SAMSUNG MZQL23T8HCLS-00A07              \n")
        .file("sys/block/nvme0n1/device/serial", "S64HNE0R000001\n")
        .file("sys/block/nvme0n1/wwid", "eui.36344830526000010025384500000001\n")
        .file("sys/block/nvme0n1/size", "7501476528\n")
        .file("sys/block/nvme0n1/queue/rotational", "0\n")
        .file("sys/block/nvme0c0n1/device/model", "a path")
        .file("sys/block/nvme0c0n1/hidden", "1\n")
        .file(&format!("{sata}/device/model"), "ST16000NM001G\n")
        .file(&format!("{sata}/device/vpd_pg80"), b"\x00\x80\x00\x08  ZL2ABC")
        .file(&format!("{sata}/size"), "31251759104\n")
        .file(&format!("{sata}/queue/rotational"), "1\n")
        .file("sys/block/vda/device/x", "")
        .file("sys/block/vda/size", "big\n")
        .file("sys/block/loop0/size", "8\n")
        .file("sys/block/md0/size", "8\n")
        .file("sys/block/sr0/device/model", "DVD")
        .link("sys/block/sda", sata);
    let section = disks(&tree.root());
    let names: Vec<&str> = section.disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["nvme0n1", "sda", "vda"]);
    let (nvme, sda, vda) = (&section.disks[0], &section.disks[1], &section.disks[2]);
    assert_eq!((nvme.size_bytes, nvme.rotational), (Some(3_840_755_982_336), Some(false)));
    assert_eq!(nvme.model.as_deref(), Some("SAMSUNG MZQL23T8HCLS-00A07"));
    assert_eq!((sda.transport, sda.rotational), (Some(Transport::Sata), Some(true)));
    assert_eq!(sda.serial.as_deref(), Some("ZL2ABC"));
    assert_eq!((vda.transport, vda.size_bytes), (Some(Transport::Virtio), None));
    assert_eq!(section.unread[0].what, "vda: size");
}

#[test]
fn nics_are_described_and_virtual_ones_are_left_out() {
    let device = "sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0";
    let virtio = "sys/devices/pci0000:00/0000:00:03.0/virtio2";
    let tree = Tree::new()
        .file(&format!("{device}/numa_node"), "1\n")
        .file(&format!("{device}/sriov_totalvfs"), "16\n")
        .file(&format!("{device}/sriov_numvfs"), "4\n")
        .file(&format!("{device}/infiniband/mlx5_2/x"), "")
        .link(&format!("{device}/driver"), "sys/bus/pci/drivers/mlx5_core")
        .file("sys/class/net/enp24s0np0/address", "A0:88:C2:00:00:01\n")
        .file("sys/class/net/enp24s0np0/speed", "400000\n")
        .link("sys/class/net/enp24s0np0/device", device)
        .file("sys/class/net/eth0/address", "02:00:00:00:00:01\n")
        .file("sys/class/net/eth0/speed", "-1\n")
        .link("sys/class/net/eth0/device", virtio)
        .file("sys/class/net/lo/address", "00:00:00:00:00:00\n");
    let section = nics(&tree.root());
    assert_eq!(section.nics.len(), 2);
    let (fast, eth0) = (&section.nics[0], &section.nics[1]);
    assert_eq!((fast.mac.as_deref(), fast.speed_mbps), (Some("a0:88:c2:00:00:01"), Some(400_000)));
    assert_eq!((fast.driver.as_deref(), fast.numa_node), (Some("mlx5_core"), Some(1)));
    assert_eq!(fast.pci_address.unwrap().to_string(), "0000:18:00.0");
    let sriov = fast.sriov.unwrap();
    assert_eq!((sriov.vfs_max, sriov.vfs, fast.rdma_devices.as_slice()), (16, 4, &["mlx5_2".to_owned()][..]));
    assert_eq!((eth0.speed_mbps, eth0.sriov, eth0.driver.clone()), (None, None, None));
    assert_eq!(eth0.pci_address.unwrap().to_string(), "0000:00:03.0", "the device above the virtio one");
}

#[test]
fn the_running_system_is_read_in_both_cgroup_worlds() {
    let tree = Tree::new()
        .file("proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
        .file("proc/sys/kernel/hostname", "hgx-1\n")
        .file("proc/sys/kernel/random/boot_id", "0a3c9a5e-8f46-4a33-9a5e-3f6f1a7b0c11\n")
        .file(
            "etc/os-release",
            "NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_ID=\"24.04\"\nPRETTY_NAME='Ubuntu 24.04'\n",
        )
        .file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n")
        .file("sys/class/iommu/dmar0/x", "")
        .file("dev/kvm", "");
    let section = os(&tree.root());
    assert_eq!(section.kernel.as_deref(), Some("6.8.0-60-generic"));
    let distribution = section.distribution.unwrap();
    assert_eq!(
        (distribution.id.as_deref(), distribution.version_id.as_deref()),
        (Some("ubuntu"), Some("24.04"))
    );
    let cgroup = section.cgroup.unwrap();
    assert_eq!((cgroup.version, cgroup.controllers.join(" ")), (2, "cpu cpuset io memory".into()));
    assert_eq!((section.kvm, section.iommu_units), (Some(true), Some(1)));
    let old = Tree::new()
        .file("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nrdma\t2\t1\t0\n")
        .file("proc/sys/kernel/random/boot_id", "not an id\n");
    let section = os(&old.root());
    let cgroup = section.cgroup.unwrap();
    assert_eq!((cgroup.version, cgroup.controllers.join(" ")), (1, "cpu".into()));
    assert_eq!((section.boot_id, section.unread[0].what.as_str()), (None, "bootId"));
}

const H100: &str = include_str!("../smi/fixtures/h100.xml");
const UUIDS: [&str; 2] =
    ["GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001", "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0002"];

fn driver() -> CannedCommands {
    let ok = |text: String| CommandOutput::ok(text);
    CannedCommands::new()
        .answer("nvidia-smi -q -x", ok(H100.into()))
        .answer(
            "nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader",
            ok(format!("{}, 9.0\n{}, 9.0\n", UUIDS[0], UUIDS[1])),
        )
        .answer("nvidia-smi nvlink -s", ok(format!("GPU 0: x (UUID: {})\n\t Link 0: 26.5 GB/s\n", UUIDS[0])))
        .answer(
            "nvidia-smi topo -m",
            ok("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU1\tNV18\t X \t4-7\t1\t\tN/A\n"
                .into()),
        )
        .answer(
            "nvidia-smi -L",
            ok(format!(
                "GPU 0: a (UUID: {})\nGPU 1: b (UUID: {})\n  \
                 MIG 1g.10gb     Device  0: (UUID: MIG-11111111-0000-4000-8000-000000000009)\n  \
                 MIG 3g.40gb     Device  1: (UUID: MIG-11111111-0000-4000-8000-000000000002)\n",
                UUIDS[0], UUIDS[1]
            )),
        )
        .answer(
            "nvidia-smi mig -lgi",
            ok("|   1  MIG 1g.10gb   19   9   6:1 |\n|   1  MIG 3g.40gb   9   2   0:4 |\n".into()),
        )
}

#[tokio::test]
async fn gpus_are_put_together_from_every_source() {
    let tree = Tree::new()
        .file("sys/bus/pci/devices/0000:53:00.0/numa_node", "0\n")
        .file("sys/bus/pci/devices/0000:53:00.0/local_cpulist", "0-3\n")
        .file("sys/bus/pci/devices/0000:d1:00.0/numa_node", "-1\n");
    let section = gpus(&tree.root(), &driver(), &Readers::new()).await;
    assert_eq!(section.problem, None);
    let (first, second) = (&section.gpus[0], &section.gpus[1]);
    assert_eq!((first.numa_node, first.cpu_affinity.as_ref().unwrap().to_string()), (Some(0), "0-3".into()));
    assert_eq!((first.compute_capability.as_deref(), first.nvlink_count), (Some("9.0"), Some(1)));
    assert_eq!(first.health.verdict, GpuVerdict::Unhealthy);
    assert_eq!(second.numa_node, Some(1), "the matrix where the kernel does not know");
    assert_eq!(second.health.verdict, GpuVerdict::Healthy);
    let named: Vec<_> = second
        .mig_instances
        .iter()
        .map(|mig| (mig.gpu_instance, mig.profile.as_deref().unwrap(), mig.placement.unwrap().start))
        .collect();
    assert_eq!(named, [(2, "3g.40gb", 0), (9, "1g.10gb", 6)]);
    assert!(second.mig_instances[1].uuid.as_ref().unwrap().ends_with("009"));
    assert_eq!(section.unread.len(), 2, "the two readings that failed: {:?}", section.unread);
}

#[tokio::test]
async fn without_nvidia_smi_the_kernel_modules_own_files_are_read() {
    let information = format!(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 300\nGPU UUID: \t {}\nVideo BIOS: \t 96.00\n\
         Bus Location: \t 0000:53:00.0\nDevice Minor: \t 3\n",
        UUIDS[0]
    );
    let tree = Tree::new()
        .file("proc/driver/nvidia/gpus/0000:53:00.0/information", information)
        .file(
            "proc/driver/nvidia/gpus/0000:d1:00.0/information",
            "Model: NVIDIA H100\nGPU UUID: GPU-????????-????-????-????-????????????\nVideo BIOS: ??.??.??.??.??\n",
        )
        .file(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@x)\nGCC version: 13.2\n",
        );
    let section = gpus(&tree.root(), &CannedCommands::new(), &Readers::new()).await;
    assert_eq!(section.problem, Some(GpuProblem::NotInstalled));
    assert_eq!(section.driver_version.as_deref(), Some("580.65.06"));
    assert_eq!(section.gpus.len(), 2);
    assert_eq!((section.gpus[0].uuid.as_deref(), section.gpus[0].minor), (Some(UUIDS[0]), Some(3)));
    assert_eq!((&section.gpus[1].uuid, &section.gpus[1].vbios_version), (&None, &None));
    assert_eq!(section.gpus[0].health.verdict, GpuVerdict::Unknown);
    assert_eq!(section.unread[0].what, "nvidia-smi", "a driver without its tool is worth a note");
    let none = gpus(&Tree::new().root(), &CannedCommands::new(), &Readers::new()).await;
    assert!(none.unread.is_empty() && none.gpus.is_empty(), "a host without GPUs is complete");
}

#[tokio::test]
async fn a_gpu_that_nvidia_smi_leaves_out_is_not_forgotten() {
    let uuid = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0003";
    let tree = Tree::new()
        .file("proc/driver/nvidia/gpus/0000:cb:00.0/information", format!("GPU UUID: {uuid}\n"))
        .file("proc/driver/nvidia/gpus/0000:53:00.0/information", format!("GPU UUID: {}\n", UUIDS[0]));
    let section = gpus(&tree.root(), &driver(), &Readers::new()).await;
    let at: Vec<String> = section.gpus.iter().map(|gpu| gpu.pci_address.unwrap().to_string()).collect();
    assert_eq!(at, ["0000:53:00.0", "0000:cb:00.0", "0000:d1:00.0"]);
    assert_eq!(section.gpus[1].health.verdict, GpuVerdict::Unknown);
}
