//! Parsers over outputs captured from real machines, where those are at hand.
//!
//! The captures are not part of the repository: they are looked for in `../shared/data` beside the workspace, or where
//! `BC_SHARED_DATA` says. Without them each test says that it was skipped; the crate's own small fixtures still hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hw::smi::{self, SmiError, SmiLog};
use hw::{proc, xid};

fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("BC_SHARED_DATA").map_or(beside, PathBuf::from);
    let found = folder.is_dir();
    if !found {
        println!("skipped: no captures at {}", folder.display());
    }
    found.then_some(folder)
}

fn text(folder: &Path, name: &str) -> String {
    let bytes = std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn log(folder: &Path, name: &str) -> SmiLog {
    smi::log(&text(folder, &format!("nvidia-smi/{name}"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_xml_gives_gpus_with_sane_values() {
    let Some(folder) = data() else { return };
    let mut seen = 0;
    for entry in std::fs::read_dir(folder.join("nvidia-smi")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".xml") {
            continue;
        }
        seen += 1;
        let log = log(&folder, &name);
        assert!(!log.gpus.is_empty(), "{name}");
        for smi in &log.gpus {
            let gpu = &smi.gpu;
            assert!(gpu.uuid.as_ref().is_some_and(|uuid| uuid.len() == 40), "{name}: {gpu:?}");
            assert!(gpu.model.is_some() && gpu.pci_address.is_some(), "{name}: {gpu:?}");
            // One capture holds only what its publisher looked at.
            if !gpu.lost && text(&folder, &format!("nvidia-smi/{name}")).contains("<fb_memory_usage>") {
                let memory = gpu.memory_bytes.unwrap_or_else(|| panic!("{name}: no memory"));
                assert!((1 << 30..1u64 << 39).contains(&memory), "{name}: {memory}");
                assert!(
                    smi.sample.temperature_c.is_some_and(|celsius| (10..110).contains(&celsius)),
                    "{name}"
                );
            }
            for milliwatts in [gpu.power_limit_mw, smi.sample.power_draw_mw].into_iter().flatten() {
                assert!(milliwatts < 3_000_000, "{name}: {milliwatts}");
            }
            if let (Some(used), Some(total)) = (smi.sample.memory_used_bytes, smi.sample.memory_total_bytes) {
                assert!(used <= total, "{name}");
            }
            for percent in [smi.sample.utilization_percent, smi.sample.memory_utilization_percent] {
                assert!(percent.unwrap_or(0) <= 100, "{name}");
            }
        }
        // A single GPU cut out of a larger machine's log is less than the log counts.
        let cut = matches!(&log.problem, Some(SmiError::Unparsable { why }) if why.contains("attached"));
        let lost = matches!(log.problem, Some(SmiError::GpuLost { .. }));
        assert!(log.problem.is_none() || cut || lost, "{name}: {:?}", log.problem);
    }
    assert!(seen >= 30, "only {seen} documents");
}

#[test]
fn well_known_machines_read_as_they_are() {
    let Some(folder) = data() else { return };
    // Name, GPUs, model, memory in MiB, power limit in W, whether ECC counts, PCIe width now of at most.
    type Known<'a> = (&'a str, usize, &'a str, u64, Option<u64>, bool, (u32, u32));
    let known: &[Known<'_>] = &[
        ("hw-h100.xml", 8, "NVIDIA H100 80GB HBM3", 81_559, Some(700), true, (16, 16)),
        ("hw-b200.xml", 8, "NVIDIA B200", 183_359, Some(1000), true, (16, 16)),
        ("hw-a100.xml", 1, "NVIDIA A100-SXM4-40GB", 40_960, Some(400), true, (16, 16)),
        ("hw-t4.xml", 1, "Tesla T4", 15_360, Some(70), true, (0, 16)),
        ("telegraf-tesla-t4.xml", 1, "Tesla T4", 15_360, Some(70), true, (0, 16)),
        ("telegraf-a10g.xml", 1, "NVIDIA A10G", 23_028, Some(300), true, (0, 16)),
        ("netdata-tesla-p100.xml", 1, "Tesla P100-PCIE-16GB", 16_384, Some(250), true, (16, 16)),
        ("netdata-rtx-4090-driver-535.xml", 1, "NVIDIA GeForce RTX 4090", 24_564, None, false, (0, 16)),
    ];
    for (name, count, model, mib, watts, ecc, (width, width_max)) in known {
        let log = log(&folder, name);
        assert_eq!(log.gpus.len(), *count, "{name}");
        let gpu = &log.gpus[0].gpu;
        assert_eq!(gpu.model.as_deref(), Some(*model), "{name}");
        assert_eq!(gpu.memory_bytes.map(|bytes| bytes >> 20), Some(*mib), "{name}");
        if watts.is_some() {
            assert_eq!(gpu.power_limit_mw.map(|limit| limit / 1000), *watts, "{name}");
        }
        assert_eq!(
            gpu.ecc.and_then(|ecc| ecc.volatile_uncorrectable).is_some(),
            *ecc,
            "{name}: {:?}",
            gpu.ecc
        );
        let link = gpu.pcie.unwrap();
        assert_eq!(link.width_max, Some(*width_max), "{name}");
        assert!(*width == 0 || link.width == Some(*width), "{name}: {link:?}");
    }
    let h100 = log(&folder, "hw-h100.xml");
    let uuids: std::collections::BTreeSet<_> =
        h100.gpus.iter().filter_map(|gpu| gpu.gpu.uuid.clone()).collect();
    assert_eq!(uuids.len(), 8);
    assert_eq!(h100.driver_version.as_deref(), Some("580.105.08"));
    assert_eq!(h100.gpus[0].gpu.pci_address.unwrap().to_string(), "0000:53:00.0");
    assert_eq!(h100.gpus[0].sample.power_draw_mw, Some(68_920));
}

#[test]
fn fabric_membership_and_its_health_are_read() {
    let Some(folder) = data() else { return };
    let gb200 = log(&folder, "hw-gb200.xml");
    assert_eq!(gb200.gpus.len(), 4);
    assert!(gb200.gpus.iter().all(|gpu| gpu.gpu.fabric.as_ref().is_some_and(|f| f.clique_id.is_some())));
    let buses: Vec<u8> = gb200.gpus.iter().filter_map(|gpu| Some(gpu.gpu.pci_address?.bus)).collect();
    assert_eq!(buses, [0x29, 0x3f, 0x9c, 0xb2]);
    let degraded = log(&folder, "mocknvml-gb200-fabric-degraded.xml");
    let unhealthy: Vec<bool> = degraded.gpus.iter().map(|gpu| gpu.fabric_unhealthy).collect();
    assert_eq!(unhealthy, [false, true]);
}

#[test]
fn mig_devices_of_a100s_are_read() {
    let Some(folder) = data() else { return };
    for (name, count, first_mib) in
        [("netdata-a100-sxm4-mig.xml", 2, Some(19_968)), ("telegraf-a100-sxm4-v12.xml", 4, Some(19_968))]
    {
        let gpu = &log(&folder, name).gpus[0];
        assert!(gpu.gpu.mig_mode.unwrap().current, "{name}");
        assert_eq!(gpu.gpu.mig_instances.len(), count, "{name}: {:?}", gpu.gpu.mig_instances);
        assert_eq!(gpu.gpu.mig_instances[0].memory_bytes.map(|bytes| bytes >> 20), first_mib, "{name}");
    }
}

#[test]
fn faults_in_captures_become_verdicts() {
    let Some(folder) = data() else { return };
    let lost = log(&folder, "mocknvml-gb200-lost.xml");
    assert!(matches!(lost.problem, Some(SmiError::GpuLost { .. })));
    assert_eq!(lost.gpus.iter().map(|gpu| gpu.gpu.lost).collect::<Vec<_>>(), [false, true]);
    let injected = log(&folder, "mocknvml-gb200-ecc-injected.xml");
    let ecc = injected.gpus[0].gpu.ecc.unwrap();
    assert_eq!((ecc.volatile_uncorrectable, ecc.aggregate_uncorrectable), (Some(5), Some(8)));
    let health = hw::verdict(&injected.gpus[0]);
    assert_eq!(health.verdict, wire::inventory::GpuVerdict::Unhealthy);
    assert!(health.reasons.iter().any(|reason| reason.contains("5 uncorrectable")), "{health:?}");
    assert!(health.reasons.iter().any(|reason| reason.contains("could not be remapped")), "{health:?}");
    let healthy = log(&folder, "hw-h100.xml");
    for gpu in &healthy.gpus {
        assert_eq!(hw::verdict(gpu).verdict, wire::inventory::GpuVerdict::Healthy);
    }
}

#[test]
fn every_error_text_is_its_error() {
    let Some(folder) = data() else { return };
    let at = |address: &str| Some(address.parse().unwrap());
    let cases = [
        ("err-driver-comm.txt", SmiError::DriverNotLoaded),
        ("err-no-devices.txt", SmiError::NoDevices),
        ("err-device-handle-new.txt", SmiError::DeviceHandle { device: at("0000:cb:00.0") }),
        ("err-device-handle-indexed.txt", SmiError::DeviceHandle { device: at("0000:34:00.0") }),
        ("err-device-handle-no-devices.txt", SmiError::DeviceHandle { device: at("0000:01:00.0") }),
        ("err-lgip-not-supported.txt", SmiError::NotSupported),
        ("err-lgip-permissions.txt", SmiError::PermissionDenied),
    ];
    for (name, error) in &cases {
        let found = smi::classify(&text(&folder, &format!("nvidia-smi/{name}")));
        assert_eq!(found.as_ref(), Some(error), "{name}");
    }
    let files = std::fs::read_dir(folder.join("nvidia-smi")).unwrap();
    let errors =
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("err-"));
    assert_eq!(errors.count(), cases.len(), "an error text without an expectation");
}

#[test]
fn lists_tables_links_and_matrices_are_read() {
    let Some(folder) = data() else { return };
    let smi_text = |name: &str| text(&folder, &format!("nvidia-smi/{name}"));
    let h200 = smi::list(&smi_text("L-h200-8gpu-mig.txt"));
    assert_eq!((h200.gpus.len(), h200.gpus[0].mig.len(), h200.skipped), (8, 6, 0));
    assert_eq!(h200.gpus[0].mig[0].profile, "2g.35gb");
    assert_eq!(smi::list(&smi_text("L-a100-dgx-station-mig.txt")).gpus[0].mig.len(), 7);
    for (name, gpus) in [("1", 0), ("2", 2), ("3", 1), ("4", 1)] {
        let listed = smi::list(&smi_text(&format!("insights-nvidia-nvidia_smi_l_unparsable_{name}.txt")));
        assert_eq!(listed.gpus.len(), gpus, "{name}: {listed:?}");
    }

    let old = smi::gpu_instances(&smi_text("mig-lgi-a100-40gb-old.txt"));
    assert_eq!(
        old.iter().map(|it| (it.id, it.placement.start)).collect::<Vec<_>>(),
        [(11, 0), (12, 1), (6, 2), (1, 4)]
    );
    assert_eq!(smi::gpu_instances(&smi_text("mig-lgi-a100-40gb-new.txt")).len(), 3);
    let compute = smi::compute_instances(&smi_text("mig-lci-a100-40gb.txt"));
    assert_eq!(
        compute.iter().map(|it| (it.gpu_instance, it.id)).collect::<Vec<_>>(),
        [(9, 0), (3, 0), (3, 1), (2, 0)]
    );
    let profiles = smi::instance_profiles(&smi_text("mig-lgip-h200-141gb.txt"));
    assert_eq!(
        profiles.iter().map(|it| (it.id, it.total)).collect::<Vec<_>>(),
        [(19, 7), (20, 1), (14, 3), (0, 1)]
    );
    for name in ["mig-lgip-a30.txt", "mig-lgip-gh200-96gb.txt", "mig-lgip-h100-nvl-94gb.txt"] {
        assert_eq!(smi::instance_profiles(&smi_text(name)).len(), 3, "{name}");
    }

    let links = smi::nvlinks_up(&smi_text("nvlink-status-a100-8gpu.txt"));
    assert_eq!(links.len(), 8);
    assert!(links.values().all(|count| *count == 12), "{links:?}");

    let rows = smi::topology(&smi_text("topo-m-8x-h100-class-8nic.txt"));
    assert_eq!(
        rows.iter().map(|row| row.numa_node).collect::<Vec<_>>(),
        [[Some(0); 4], [Some(1); 4]].concat()
    );
    assert!(rows.iter().all(|row| row.cpu_affinity.as_ref().is_some_and(|list| list.count() == 128)));
    let hidden = smi::topology(&smi_text("topo-m-8x-h100-restricted-cpuset.txt"));
    assert_eq!((hidden.len(), &hidden[0].cpu_affinity, hidden[0].numa_node), (8, &None, Some(0)));
    let two = smi::topology(&smi_text("topo-m-2x-h100-pcie-no-nic.txt"));
    assert_eq!(two[1].cpu_affinity.as_ref().map(|list| list.to_string()).as_deref(), Some("32-63,96-127"));
    assert_eq!(smi::topology(&smi_text("topo-m-8x-h100-vm-1nic.txt"))[7].numa_node, Some(1));
}

/// Code by line number, as the captures' own index gives it; absent for a line without an Xid.
fn codes(folder: &Path, name: &str) -> BTreeMap<usize, Option<u32>> {
    let index = text(folder, name);
    index
        .lines()
        .skip(1)
        .map(|line| {
            let mut fields = line.split('\t');
            let number = fields.next().and_then(|number| number.parse().ok());
            let code = fields.next().and_then(|code| code.parse().ok());
            (number.expect("each line of the index begins with a line number"), code)
        })
        .collect()
}

#[test]
fn every_xid_line_gives_its_code_and_address() {
    let Some(folder) = data() else { return };
    for (name, at_least) in [("xid-lines", 100), ("xid-lines-constructed", 70), ("sxid-lines", 20)] {
        let wanted = codes(&folder, &format!("kmsg/{name}.origin.tsv"));
        let mut found = 0;
        for (at, line) in text(&folder, &format!("kmsg/{name}.txt")).lines().enumerate() {
            let xid = xid::find(line);
            assert_eq!(xid.as_ref().map(|xid| xid.code), wanted[&(at + 1)], "{name} line {}: {line}", at + 1);
            let Some(xid) = xid else { continue };
            found += 1;
            // One published line names a device number that no bus has.
            let Some(address) = xid.pci_address.map(|at| at.to_string()) else {
                assert!(line.contains("PCI:0001:ab:cd"), "{name} line {}: {line}", at + 1);
                continue;
            };
            let short = address.trim_end_matches(".0");
            assert!(line.contains(short), "{name} line {}: {address} is not in {line}", at + 1);
        }
        assert!(found >= at_least, "{name}: {found}");
    }
}

#[test]
fn kernel_log_records_are_parsed_whole() {
    let Some(folder) = data() else { return };
    for name in ["kmsg/gpud-kmsg.1.log", "kmsg/gpud-kmsg.2.peermem.log"] {
        let text = text(&folder, name);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let records: Vec<_> = lines.iter().filter_map(|line| hw::kmsg::parse(line)).collect();
        assert!(!records.is_empty(), "{name}");
        let continuations = lines.iter().filter(|line| line.starts_with(' ')).count();
        assert_eq!(records.len() + continuations, lines.len(), "{name}");
        assert!(records.iter().all(|record| record.level <= 7), "{name}");
    }
}

#[test]
fn host_files_are_read() {
    let Some(folder) = data() else { return };
    let host = |name: &str| text(&folder, &format!("host/{name}"));
    let epyc = proc::cpuinfo(&host("proc-cpuinfo-epyc-7451.txt"));
    assert_eq!((epyc.threads, epyc.sockets, epyc.cores), (96, Some(2), Some(48)));
    assert_eq!((epyc.vendor.as_deref(), epyc.flags.contains(&"svm".into())), (Some("AuthenticAMD"), true));
    assert!(epyc.model.unwrap().starts_with("AMD EPYC 7451"));
    let grace = proc::cpuinfo(&host("proc-cpuinfo-grace-one-cpu.txt"));
    assert_eq!((grace.model.as_deref(), grace.vendor.as_deref()), (Some("Neoverse-V2"), Some("ARM")));
    assert!(grace.flags.contains(&"sve2".into()));
    let xeon = proc::cpuinfo(&host("proc-cpuinfo-xeon-64cpu.txt"));
    assert!(xeon.model.unwrap().contains("Xeon"));
    assert!(proc::cpuinfo(&host("proc-cpuinfo-arm64.txt")).threads >= 1);
    for name in ["node_exporter-proc-cpuinfo.txt", "jc-cpuinfo2.txt", "insights-cpuinfo-cpuinfo.txt"] {
        let info = proc::cpuinfo(&host(name));
        assert!(info.threads > 0 && info.model.is_some(), "{name}: {info:?}");
        assert!(info.cores.unwrap_or(1) <= info.threads, "{name}: {info:?}");
    }

    for name in ["jc-meminfo.txt", "node_exporter-proc-meminfo.txt", "insights-meminfo-meminfo.txt"] {
        let info = proc::meminfo(&host(name));
        assert!(info.total.is_some_and(|total| total > 1 << 28), "{name}: {info:?}");
        assert!(info.free <= info.total, "{name}");
    }
    let huge = proc::meminfo(&host("meminfo-1g-hugepages-excerpt.txt"));
    assert_eq!((huge.total, huge.hugetlb), (None, Some(32 << 30)));

    for name in ["cpu", "io", "memory"] {
        let pressure = proc::pressure(&host(&format!("proc-pressure-{name}.txt")));
        assert!(pressure.some.is_some(), "{name}");
    }
    let irq = proc::pressure(&host("proc-pressure-irq.txt"));
    assert!(irq.some.is_none() && irq.full.is_some());
    let io = proc::pressure(&host("proc-pressure-io.txt")).some.unwrap();
    assert_eq!((io.avg10_centi_percent, io.avg60_centi_percent, io.total_us), (18, 34, 159_886_802));
    let nodes: Vec<usize> = (0..2)
        .map(|node| host(&format!("insights-numa_cpus-node{node}_cpulist.txt")))
        .map(|list| list.parse::<wire::inventory::CpuList>().unwrap().count())
        .collect();
    assert_eq!(nodes, [24, 24]);
}
