use proptest::prelude::*;

use super::*;

fn gpu() -> Gpu {
    Gpu {
        uuid: Some("GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001".into()),
        index: Some(0),
        model: Some("NVIDIA H100 80GB HBM3".into()),
        pci_address: Some("00000000:53:00.0".parse().unwrap()),
        cpu_affinity: Some("0-55,112-167".parse().unwrap()),
        memory_bytes: Some(81_559 << 20),
        mig_mode: Some(MigMode { current: true, pending: true }),
        mig_instances: vec![MigInstance {
            uuid: Some("MIG-b5aa6ad1-c744-5539-bdb8-93513a2323f7".into()),
            profile: Some("1g.10gb".into()),
            gpu_instance: 7,
            placement: Some(MigPlacement { start: 0, size: 1 }),
            ..MigInstance::default()
        }],
        health: GpuHealth { verdict: GpuVerdict::Healthy, reasons: Vec::new() },
        ..Gpu::default()
    }
}

fn inventory() -> NodeInventory {
    NodeInventory {
        system: SystemSection { vendor: Some("Supermicro".into()), uefi: Some(true), ..Default::default() },
        cpu: CpuSection {
            threads: Some(4),
            online: Some("0-3".parse().unwrap()),
            numa_nodes: vec![NumaNode { id: 0, cpus: "0-3".parse().unwrap(), memory_bytes: Some(1 << 34) }],
            ..Default::default()
        },
        gpus: GpuSection { gpus: vec![gpu()], ..Default::default() },
        os: OsSection { kernel: Some("6.8.0".into()), kvm: Some(false), ..Default::default() },
        ..Default::default()
    }
}

#[test]
fn every_section_survives_encoding_and_decoding() {
    let sent = inventory();
    let mut received = NodeInventory::default();
    for name in SectionName::ALL {
        let bytes = sent.encode(name);
        let section = decode(name, &bytes).unwrap();
        assert_eq!(section.name(), name);
        assert_eq!(SectionHash::of(&bytes), sent.hash(name));
        received.set(section);
    }
    assert_eq!(received, sent);
    assert_eq!(received.hashes(), sent.hashes());
}

#[test]
fn the_bytes_of_a_section_are_sorted_compact_json() {
    let bytes = inventory().encode(SectionName::Os);
    assert_eq!(String::from_utf8(bytes).unwrap(), r#"{"kernel":"6.8.0","kvm":false}"#);
    let bytes = inventory().encode(SectionName::Cpu);
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        r#"{"numaNodes":[{"cpus":"0-3","id":0,"memoryBytes":17179869184}],"online":"0-3","threads":4}"#
    );
}

#[test]
fn a_changed_disk_changes_only_the_disks_hash() {
    let before = inventory();
    let mut after = before.clone();
    after.disks.disks.push(Disk { name: "nvme0n1".into(), ..Disk::default() });
    for name in SectionName::ALL {
        assert_eq!(before.hash(name) == after.hash(name), name != SectionName::Disks, "{name}");
    }
}

#[test]
fn a_machine_that_numbers_its_sockets_in_turn_is_no_longer_than_the_bounds() {
    let interleaved = |node: u32| NumaNode {
        id: node,
        cpus: CpuList::from_cpus((0..CPUS_MAX).filter(|cpu| cpu % 2 == node)),
        memory_bytes: Some(u64::MAX),
    };
    let mut inventory = inventory();
    inventory.cpu.numa_nodes = vec![interleaved(0), interleaved(1)];
    assert!(decode(SectionName::Cpu, &inventory.encode(SectionName::Cpu)).is_ok());
}

#[test]
fn the_most_devices_there_may_be_fit_a_section() {
    let text = |len: usize| Some("x".repeat(len));
    let mut inventory = inventory();
    inventory.disks.disks = vec![
        Disk {
            name: "nvme1000n1".into(),
            model: text(64),
            serial: text(64),
            size_bytes: Some(u64::MAX),
            rotational: Some(false),
            transport: Some(Transport::Nvme),
            wwn: text(64),
        };
        DISKS_MAX
    ];
    inventory.nics.nics = vec![
        Nic {
            name: "enp154s0f0v255np0".into(),
            mac: text(17),
            speed_mbps: Some(400_000),
            driver: text(16),
            pci_address: Some("0000:9a:00.0".parse().unwrap()),
            numa_node: Some(7),
            sriov: Some(Sriov { vfs_max: 256, vfs: 256 }),
            rdma_devices: vec!["mlx5_1000".into()],
        };
        NICS_MAX
    ];
    let split = MigInstance { uuid: text(40), profile: text(12), ..gpu().mig_instances[0].clone() };
    inventory.gpus.gpus = vec![Gpu { mig_instances: vec![split; MIG_INSTANCES_MAX], ..gpu() }; GPUS_MAX];
    for name in [SectionName::Disks, SectionName::Nics, SectionName::Gpus] {
        let bytes = inventory.encode(name);
        assert!(decode(name, &bytes).is_ok(), "{name}: {} bytes", bytes.len());
    }
}

#[test]
fn section_names_round_trip_and_others_are_refused() {
    for name in SectionName::ALL {
        assert_eq!(name.as_str().parse::<SectionName>().unwrap(), name);
        assert_eq!(serde_json::to_string(&name).unwrap(), format!("{:?}", name.as_str()));
    }
    assert!("gpu".parse::<SectionName>().is_err());
    assert!("".parse::<SectionName>().is_err());
}

#[test]
fn fields_and_values_of_a_newer_daemon_are_ignored() {
    let bytes = br#"{"gpus":[{"uuid":"GPU-1","flux":{"capacitor":[1]},"health":{"verdict":"sleepy"}}],
        "problem":"eclipse","x":null}"#;
    let Section::Gpus(section) = decode(SectionName::Gpus, bytes).unwrap() else { panic!("not the gpus") };
    assert_eq!(section.gpus[0].uuid.as_deref(), Some("GPU-1"));
    assert_eq!(section.gpus[0].health.verdict, GpuVerdict::Unknown);
    assert_eq!(section.problem, Some(GpuProblem::Failed));
}

#[test]
fn what_is_too_long_too_many_too_deep_or_not_an_integer_is_refused() {
    let gpus = |inner: String| decode(SectionName::Gpus, inner.as_bytes());
    assert!(matches!(gpus("x".repeat(SECTION_BYTES_MAX + 1)), Err(DecodeError::TooLong { .. })));
    assert!(matches!(
        gpus(format!(r#"{{"driverVersion":"{}"}}"#, "x".repeat(TEXT_BYTES_MAX + 1))),
        Err(DecodeError::TextTooLong { .. })
    ));
    let many = vec!["{}"; GPUS_MAX + 1].join(",");
    assert!(matches!(gpus(format!(r#"{{"gpus":[{many}]}}"#)), Err(DecodeError::TooMany { .. })));
    let many = vec!["{}"; MIG_INSTANCES_MAX + 1].join(",");
    assert!(matches!(
        gpus(format!(r#"{{"gpus":[{{"migInstances":[{many}]}}]}}"#)),
        Err(DecodeError::TooMany { .. })
    ));
    let deep = format!(r#"{{"x":{}{}}}"#, "[".repeat(40), "]".repeat(40));
    assert!(matches!(gpus(deep), Err(DecodeError::TooDeep { .. })));
    assert!(matches!(gpus(r#"{"x":1.5}"#.into()), Err(DecodeError::NotAnInteger { .. })));
    assert!(matches!(
        gpus(r#"{"driverVersion":"\u001b[2J"}"#.into()),
        Err(DecodeError::ControlCharacter { .. })
    ));
    for bad in [
        r#"{"gpus":{}}"#,
        r#"{"driverVersion":"1","driverVersion":"2"}"#,
        "{} {}",
        "",
        r#"{"gpus":[{"index":-1}]}"#,
    ] {
        assert!(matches!(gpus(bad.into()), Err(DecodeError::Json { .. })), "{bad}");
    }
}

#[test]
fn cpu_lists_are_merged_and_counted() {
    let list: CpuList = "8,0-3,2-5,10-11\n".parse().unwrap();
    assert_eq!(list.to_string(), "0-5,8,10-11");
    assert_eq!(list.count(), 9);
    assert!(list.contains(5) && !list.contains(6));
    assert_eq!(list, CpuList::from_cpus([11, 10, 8, 0, 1, 2, 3, 4, 5]));
    assert_eq!("".parse::<CpuList>().unwrap().count(), 0);
    for bad in ["3-1", "a", "1,", ",", "-", "0-8192", "+1", "1--2", "99999999999"] {
        assert!(bad.parse::<CpuList>().is_err(), "{bad}");
    }
}

#[test]
fn all_forms_of_a_pci_address_are_one_address() {
    let sysfs: PciAddress = "0000:cb:00.0".parse().unwrap();
    for form in ["00000000:CB:00.0", "0000:cb:00", "CB:00.0"] {
        assert_eq!(form.parse::<PciAddress>().unwrap(), sysfs, "{form}");
    }
    assert_eq!(sysfs.to_string(), "0000:cb:00.0");
    assert_eq!("00000009:01:00.0".parse::<PciAddress>().unwrap().to_string(), "0009:01:00.0");
    assert_eq!("10000:e1:1f.7".parse::<PciAddress>().unwrap().to_string(), "10000:e1:1f.7");
    assert!("0000:cb:00.1".parse::<PciAddress>().unwrap().same_device(sysfs));
    for bad in ["", "0000:cb:20.0", "0000:cb:00.8", "1:0000:cb:00.0", "0000:cb:00.0 ", "000000000:01:00.0"] {
        assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_never_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        for name in SectionName::ALL {
            let _ = decode(name, &bytes);
        }
    }

    #[test]
    fn arbitrary_json_is_decoded_or_refused_and_reencodes_the_same(text in r#"\{("(gpus|disks|unread|cpus|online|x)":(\[\]|1|"0-3"|\{\}|\[\{\}\]),?){0,4}\}"#) {
        for name in SectionName::ALL {
            if let Ok(section) = decode(name, text.as_bytes()) {
                let mut inventory = NodeInventory::default();
                inventory.set(section.clone());
                prop_assert_eq!(decode(name, &inventory.encode(name)).unwrap(), section);
            }
        }
    }

    #[test]
    fn a_cpu_list_prints_what_parses_to_itself(cpus in proptest::collection::btree_set(0..CPUS_MAX, 0..64)) {
        let list = CpuList::from_cpus(cpus.iter().copied());
        prop_assert_eq!(list.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
    }

    #[test]
    fn texts_never_panic_the_small_parsers(text in "[0-9a-f:.,\\-]{0,24}") {
        let _ = text.parse::<CpuList>();
        if let Ok(address) = text.parse::<PciAddress>() {
            prop_assert_eq!(address.to_string().parse::<PciAddress>().unwrap(), address);
        }
    }
}
