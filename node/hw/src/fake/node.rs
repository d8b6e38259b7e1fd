//! The machine itself: what an HGX H100 server of this kind reports when nothing is wrong.

use sha2::{Digest, Sha256};
use wire::inventory::{
    CgroupInfo, CpuSection, Disk, DiskSection, Distribution, EccCounters, Fabric, Firmware, Gpu, GpuHealth,
    GpuSample, GpuSection, GpuVerdict, HugePagePool, MemoryInfo, MemorySection, MigMode, Nic, NicSection,
    NodeInventory, NumaNode, OsSection, PciAddress, PcieLink, RowRemap, Sriov, SystemSection, Tpm, Transport,
};

const MEMORY_BYTES: u64 = 2 << 40;
const HUGE_PAGES_PER_NODE: u64 = 64;
/// The data disks as one.
const INSTANCES_BYTES: u64 = 28_000 << 30;
const GPU_MEMORY_BYTES: u64 = 81_559 << 20;
const POWER_LIMIT_MW: u64 = 700_000;
/// The buses of the eight GPUs, four below each socket.
const GPU_BUSES: [u8; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];
/// The buses of the adapters beside them.
const NIC_BUSES: [u8; 8] = [0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc];
const SERVER_CPUS: [&str; 2] = ["0-55,112-167", "56-111,168-223"];

/// Bytes that follow from the seed, a name and a number.
fn derive(seed: u64, name: &str, number: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(seed.to_be_bytes());
    hash.update(number.to_be_bytes());
    hash.update(name.as_bytes());
    hash.finalize().into()
}

/// A random-looking UUID (RFC 9562, version 4).
pub fn uuid(seed: u64, name: &str, number: u64) -> String {
    let mut bytes = derive(seed, name, number);
    bytes[6] = 0x40 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    let hex = hex::encode(&bytes[..16]);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn serial(seed: u64, name: &str, number: u64) -> String {
    hex::encode_upper(&derive(seed, name, number)[..6])
}

fn mac(seed: u64, number: u64) -> String {
    let bytes = derive(seed, "mac", number);
    // Locally administered: no maker's address is taken.
    format!("02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4])
}

fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn cpus(node: usize) -> wire::inventory::CpuList {
    SERVER_CPUS[node].parse().expect("the list is written as the kernel writes it")
}

pub fn inventory(seed: u64) -> NodeInventory {
    NodeInventory {
        system: system(seed),
        cpu: cpu(),
        memory: memory_section(),
        disks: disks(seed),
        nics: nics(seed),
        gpus: gpus(seed),
        os: os(seed),
    }
}

fn system(seed: u64) -> SystemSection {
    SystemSection {
        vendor: text("Supermicro"),
        product: text("SYS-821GE-TNHR"),
        serial: Some(serial(seed, "chassis", 0)),
        product_uuid: Some(uuid(seed, "product", 0)),
        firmware: Some(Firmware {
            vendor: text("American Megatrends International, LLC."),
            version: text("2.1"),
            date: text("03/14/2024"),
        }),
        uefi: Some(true),
        secure_boot: Some(true),
        tpm: Some(Tpm { version: text("2.0") }),
        unread: Vec::new(),
    }
}

fn cpu() -> CpuSection {
    let node = |id: usize| NumaNode { id: id as u32, cpus: cpus(id), memory_bytes: Some(MEMORY_BYTES / 2) };
    let flags = [
        "aes", "amx_bf16", "amx_int8", "amx_tile", "avx", "avx2", "avx512f", "ept", "fma", "la57", "lm",
        "vmx",
    ];
    CpuSection {
        model: text("Intel(R) Xeon(R) Platinum 8480C"),
        vendor: text("GenuineIntel"),
        arch: text("x86_64"),
        sockets: Some(2),
        cores: Some(112),
        threads: Some(224),
        numa_nodes: vec![node(0), node(1)],
        online: Some(wire::inventory::CpuList::from_cpus(0..224)),
        flags: flags.map(str::to_owned).to_vec(),
        unread: Vec::new(),
    }
}

fn memory_section() -> MemorySection {
    let pool =
        |node: u32| HugePagePool { numa_node: Some(node), page_bytes: 1 << 30, pages: HUGE_PAGES_PER_NODE };
    MemorySection { total_bytes: Some(MEMORY_BYTES), huge_pages: vec![pool(0), pool(1)], unread: Vec::new() }
}

/// Idle: the pools and a little for the system are taken.
pub fn memory() -> MemoryInfo {
    let hugetlb = (2 * HUGE_PAGES_PER_NODE) << 30;
    let available = MEMORY_BYTES - hugetlb - (16 << 30);
    MemoryInfo {
        total_bytes: MEMORY_BYTES,
        available_bytes: available,
        free_bytes: Some(available - (4 << 30)),
        hugetlb_bytes: Some(hugetlb),
        swap_total_bytes: Some(0),
        swap_free_bytes: Some(0),
    }
}

/// Two boot disks, then eight for data.
fn disks(seed: u64) -> DiskSection {
    let disk = |number: u64| {
        let (model, size_bytes) = if number < 2 {
            ("SAMSUNG MZ1L2960HCJR-00A07", 960_197_124_096)
        } else {
            ("SAMSUNG MZQL23T8HCLS-00A07", 3_840_755_982_336)
        };
        Disk {
            name: format!("nvme{number}n1"),
            model: text(model),
            serial: Some(format!("S{}", serial(seed, "disk", number))),
            size_bytes: Some(size_bytes),
            rotational: Some(false),
            transport: Some(Transport::Nvme),
            wwn: Some(format!("eui.{}", hex::encode(&derive(seed, "wwn", number)[..16]))),
        }
    };
    DiskSection {
        disks: (0..10).map(disk).collect(),
        instances_bytes: Some(INSTANCES_BYTES),
        unread: Vec::new(),
    }
}

/// Two ports for the site's network, then one 400G adapter beside each GPU.
fn nics(seed: u64) -> NicSection {
    let front = |port: u8| Nic {
        name: format!("ens3f{port}np{port}"),
        mac: Some(mac(seed, u64::from(port))),
        speed_mbps: Some(100_000),
        driver: text("mlx5_core"),
        pci_address: Some(PciAddress { function: port, ..pci(0x29) }),
        numa_node: Some(0),
        sriov: Some(Sriov { vfs_max: 64, vfs: 0 }),
        rdma_devices: vec![format!("mlx5_{port}")],
    };
    let back = |number: usize| Nic {
        name: format!("enp{}s0np0", NIC_BUSES[number]),
        mac: Some(mac(seed, 2 + number as u64)),
        speed_mbps: Some(400_000),
        driver: text("mlx5_core"),
        pci_address: Some(pci(NIC_BUSES[number])),
        numa_node: Some(number as u32 / 4),
        sriov: Some(Sriov { vfs_max: 16, vfs: 0 }),
        rdma_devices: vec![format!("mlx5_{}", 2 + number)],
    };
    let mut nics: Vec<Nic> = [front(0), front(1)].into_iter().chain((0..8).map(back)).collect();
    nics.sort_by(|left, right| left.name.cmp(&right.name));
    NicSection { nics, unread: Vec::new() }
}

fn gpus(seed: u64) -> GpuSection {
    GpuSection {
        driver_version: text("580.105.08"),
        cuda_version: text("13.0"),
        gpus: (0..GPU_BUSES.len()).map(|at| gpu(seed, at)).collect(),
        problem: None,
        unread: Vec::new(),
    }
}

fn gpu(seed: u64, at: usize) -> Gpu {
    let number = at as u32;
    Gpu {
        uuid: Some(format!("GPU-{}", uuid(seed, "gpu", at as u64))),
        index: Some(number),
        minor: Some(number),
        model: text("NVIDIA H100 80GB HBM3"),
        serial: Some(serial(seed, "gpu", at as u64)),
        pci_address: Some(pci(GPU_BUSES[at])),
        numa_node: Some(number / 4),
        cpu_affinity: Some(cpus(at / 4)),
        memory_bytes: Some(GPU_MEMORY_BYTES),
        compute_capability: text("9.0"),
        architecture: text("Hopper"),
        vbios_version: text("96.00.99.00.01"),
        mig_mode: Some(MigMode::default()),
        mig_instances: Vec::new(),
        ecc_enabled: Some(true),
        ecc: Some(EccCounters {
            volatile_correctable: Some(0),
            volatile_uncorrectable: Some(0),
            aggregate_correctable: Some(0),
            aggregate_uncorrectable: Some(0),
        }),
        row_remap: Some(RowRemap {
            correctable: Some(0),
            uncorrectable: Some(0),
            pending: Some(false),
            failure: Some(false),
        }),
        power_limit_mw: Some(POWER_LIMIT_MW),
        persistence: Some(true),
        compute_mode: text("Default"),
        pcie: Some(PcieLink { width: Some(16), width_max: Some(16), generation_max: Some(5) }),
        nvlink_count: Some(18),
        fabric: Some(Fabric {
            state: text("Completed"),
            status: text("Success"),
            clique_id: Some(0),
            cluster_uuid: text("00000000-0000-0000-0000-000000000000"),
        }),
        recovery_action: None,
        lost: false,
        health: GpuHealth { verdict: GpuVerdict::Healthy, reasons: Vec::new() },
    }
}

/// An idle GPU, or one that heat holds down.
pub fn sample(seed: u64, at: usize, gpu: &Gpu, slow: bool) -> GpuSample {
    let noise = derive(seed, "sample", at as u64)[0];
    GpuSample {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        utilization_percent: Some(0),
        memory_utilization_percent: Some(0),
        temperature_c: Some(if slow { 92 } else { 28 + i32::from(noise % 8) }),
        memory_temperature_c: Some(if slow { 95 } else { 36 + i32::from(noise % 6) }),
        power_draw_mw: Some(66_000 + u64::from(noise) * 20),
        power_limit_mw: gpu.power_limit_mw,
        memory_used_bytes: Some(0),
        memory_total_bytes: gpu.memory_bytes,
        sm_clock_mhz: Some(if slow { 345 } else { 1_980 }),
        memory_clock_mhz: Some(2_619),
        pcie_generation: Some(5),
        throttle_reasons: if slow {
            vec!["hw_slowdown".into(), "hw_thermal_slowdown".into()]
        } else {
            Vec::new()
        },
        processes: Vec::new(),
    }
}

fn os(seed: u64) -> OsSection {
    let controllers = ["cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma"];
    OsSection {
        kernel: text("6.8.0-60-generic"),
        distribution: Some(Distribution {
            id: text("ubuntu"),
            version_id: text("24.04"),
            pretty_name: text("Ubuntu 24.04.2 LTS"),
        }),
        boot_id: Some(uuid(seed, "boot", 0)),
        hostname: Some(format!("hgx-{:04x}", seed & 0xffff)),
        cgroup: Some(CgroupInfo { version: 2, controllers: controllers.map(str::to_owned).to_vec() }),
        kvm: Some(true),
        iommu_units: Some(16),
        unread: Vec::new(),
    }
}
