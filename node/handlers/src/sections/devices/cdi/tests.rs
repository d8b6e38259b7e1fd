use proptest::prelude::*;

use super::*;

const GPU: &str = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001";

fn allocation() -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(1))
}

fn hold() -> Hold {
    Hold {
        allocation: allocation(),
        atoms: vec![GPU.into(), format!("{GPU}/slot-1")],
        binding: Binding::Hold,
        memory_bytes: 1 << 30,
        hugepages_1gi: 0,
    }
}

fn limits() -> SliceLimits {
    SliceLimits { memory_bytes: 1 << 30, ..SliceLimits::default() }
}

fn nodes() -> Nodes {
    Nodes {
        device: BTreeMap::from([(GPU.into(), vec!["/dev/nvidia0".into()])]),
        common: vec!["/dev/nvidiactl".into(), "/dev/nvidia-uvm".into()],
    }
}

fn name() -> String {
    HostFile::Cdi(allocation()).name()
}

#[test]
fn a_hold_is_written_as_a_cdi_specification() {
    let expected = r#"{
  "cdiVersion": "0.6.0",
  "kind": "bcd.dev/gpu",
  "annotations": {
    "bcd.dev/allocation-id": "alloc_00000000000000000000000001",
    "bcd.dev/cgroup-parent": "bcd-alloc-alloc_00000000000000000000000001.slice",
    "bcd.dev/memory-bytes": "1073741824"
  },
  "devices": [
    {
      "name": "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001",
      "annotations": {
        "bcd.dev/device-id": "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001"
      },
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/nvidia0"
          }
        ]
      }
    }
  ],
  "containerEdits": {
    "env": [
      "NVIDIA_VISIBLE_DEVICES=GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001",
      "BCD_ALLOCATION_ID=alloc_00000000000000000000000001",
      "BCD_CGROUP_PARENT=bcd-alloc-alloc_00000000000000000000000001.slice"
    ],
    "deviceNodes": [
      {
        "path": "/dev/nvidiactl"
      },
      {
        "path": "/dev/nvidia-uvm"
      }
    ]
  }
}
"#;
    let hold = Hold { atoms: vec![GPU.into()], ..hold() };
    assert_eq!(String::from_utf8(render(&hold, &limits(), &nodes())).unwrap(), expected);
}

#[test]
fn a_hold_without_devices_is_a_specification_with_one_that_tells_the_workload() {
    let expected = r#"{
  "cdiVersion": "0.6.0",
  "kind": "bcd.dev/host",
  "annotations": {
    "bcd.dev/allocation-id": "alloc_00000000000000000000000001",
    "bcd.dev/cgroup-parent": "bcd-alloc-alloc_00000000000000000000000001.slice",
    "bcd.dev/memory-bytes": "1073741824"
  },
  "devices": [
    {
      "name": "alloc_00000000000000000000000001",
      "annotations": {
        "bcd.dev/device-id": "alloc_00000000000000000000000001"
      },
      "containerEdits": {
        "env": [
          "BCD_ALLOCATION_ID=alloc_00000000000000000000000001",
          "BCD_CGROUP_PARENT=bcd-alloc-alloc_00000000000000000000000001.slice"
        ]
      }
    }
  ]
}
"#;
    let hold = Hold { atoms: Vec::new(), ..hold() };
    let bytes = render(&hold, &limits(), &nodes());
    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), expected);
    assert_eq!(parse(&name(), &bytes), Ok(hold));
    assert_eq!(devices(allocation(), &[]), ["bcd.dev/host=alloc_00000000000000000000000001"]);
    let broken = [
        String::from_utf8(render(&self::hold(), &limits(), &nodes())).unwrap().replace("dev/gpu", "dev/host"),
        expected.replace("\"name\": \"alloc_00000000000000000000000001\"", "\"name\": \"alloc\""),
        expected.replace("bcd.dev/device-id", "bcd.dev/id"),
        expected.replacen("\"devices\": [", "\"devices\": [{\"name\": \"all\"},", 1),
    ];
    for (at, text) in broken.iter().enumerate() {
        assert!(parse(&name(), text.as_bytes()).is_err(), "case {at}");
    }
}

#[test]
fn a_slash_in_an_atom_is_an_underscore_in_the_name_and_reads_back() {
    assert_eq!(devices(allocation(), &hold().atoms)[1], format!("bcd.dev/gpu={GPU}_slot-1"));
    assert_eq!(parse(&name(), &render(&hold(), &limits(), &nodes())), Ok(hold()));
}

#[test]
fn a_file_that_is_not_exactly_a_hold_is_none() {
    let text = String::from_utf8(render(&hold(), &limits(), &nodes())).unwrap();
    let broken = [
        text.replace("bcd.dev/gpu\"", "nvidia.com/gpu\""),
        text.replace("bcd.dev/allocation-id", "bcd.dev/other"),
        text.replace(
            "alloc_00000000000000000000000001\",\n    \"bcd.dev/cgroup",
            "alloc_00000000000000000000000002\",\n    \"bcd.dev/cgroup",
        ),
        text.replace("_slot-1\"", "_slot-2\""),
        text.replace("/slot-1\"", "/slot-1 x\""),
        text.replace("\"1073741824\"", "\"-1\""),
        text.replace("bcd.dev/device-id", "bcd.dev/id"),
        "{}".into(),
        "[]".into(),
        "[".repeat(100_000),
    ];
    for (at, text) in broken.iter().enumerate() {
        assert!(parse(&name(), text.as_bytes()).is_err(), "case {at}");
    }
    let twice = Hold { atoms: vec![GPU.into(), GPU.into()], ..hold() };
    assert!(parse(&name(), &render(&twice, &limits(), &nodes())).is_err());
    assert!(parse("bcd-other.json", text.as_bytes()).is_err());
}

#[test]
fn a_field_of_a_newer_version_is_no_fault() {
    let text = String::from_utf8(render(&hold(), &limits(), &nodes())).unwrap();
    let newer = text.replacen("{\n", "{\n  \"mountsOfTomorrow\": [1, {\"a\": null}],\n", 1);
    assert_eq!(parse(&name(), newer.as_bytes()), Ok(hold()));
}

#[test]
fn a_part_overlaps_its_whole_and_nothing_else() {
    assert!(overlap("GPU-1", "GPU-1"));
    assert!(overlap("GPU-1", "GPU-1/slot-0") && overlap("GPU-1/slot-0", "GPU-1"));
    assert!(!overlap("GPU-1/slot-0", "GPU-1/slot-1"));
    assert!(!overlap("GPU-1", "GPU-10") && !overlap("GPU-1/slot-1", "GPU-1/slot-10"));
}

fn atom() -> impl Strategy<Value = String> {
    "[A-Za-z0-9][A-Za-z0-9_.:-]{0,20}(/[A-Za-z0-9_.:-]{1,10}){0,2}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = parse(&name(), &bytes);
    }

    #[test]
    fn every_hold_reads_back(
        atoms in proptest::collection::btree_set(atom(), 0..8),
        kubernetes in any::<bool>(),
        memory_bytes in any::<u64>(),
        hugepages_1gi in any::<u64>(),
    ) {
        let binding = if kubernetes { Binding::Kubernetes } else { Binding::Hold };
        let hold = Hold { allocation: allocation(), atoms: atoms.into_iter().collect(), binding, memory_bytes, hugepages_1gi };
        prop_assert_eq!(parse(&name(), &render(&hold, &limits(), &nodes())), Ok(hold));
    }

    /// Rot in one place: what still reads is a hold of this file's allocation, with names that are safe.
    #[test]
    fn rot_never_makes_another_allocations_hold(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = render(&hold(), &limits(), &nodes());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = parse(&name(), &bytes) {
            prop_assert_eq!(read.allocation, allocation());
            prop_assert!(read.atoms.iter().all(|atom| is_atom(atom)));
        }
    }
}
