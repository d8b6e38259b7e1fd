use placer::Cordon;

use super::*;

fn ask(gpus: u32) -> Ask {
    Ask {
        gpus,
        gpu_model: None,
        vcpu: 0,
        memory_mib: 0,
        hugepages_1gi: 0,
        whole_node: false,
        binding: Binding::Hold,
        selector: Default::default(),
    }
}

#[test]
fn a_claim_is_said_in_words() {
    assert_eq!(wanted(&ask(16)), "16 GPUs together");
    assert_eq!(wanted(&ask(1)), "1 GPU");
    let limited = Ask { vcpu: 4, memory_mib: 64 * 1024, gpu_model: Some("H100".to_owned()), ..ask(2) };
    assert_eq!(wanted(&limited), "2 H100 GPUs together and 4 CPUs and 64 GiB of memory");
    assert_eq!(wanted(&Ask { memory_mib: 512, ..ask(0) }), "512 MiB of memory");
    assert_eq!(wanted(&Ask { vcpu: 1, hugepages_1gi: 3, ..ask(0) }), "1 CPU and 3 pages of 1 GiB");
    assert_eq!(wanted(&Ask { whole_node: true, ..ask(0) }), "a whole node");
}

#[test]
fn a_cordon_is_told_in_full_only_to_who_sees_the_node() {
    let cordon = Cordon { by: "alice".to_owned(), why: "firmware".to_owned(), when: "0".to_owned() };
    let reason = Reason::Cordoned(Arc::new(cordon));
    let now = Timestamp::from_micros(2 * 3_600_000_000);
    assert_eq!(full(&reason, now), "cordoned by alice, 2h ago (\"firmware\")");
    assert_eq!(open(&reason), "cordoned");
}

#[test]
fn the_explaining_command_repeats_the_claim() {
    let text = command("gpu", &Ask { vcpu: 4, ..ask(16) });
    assert_eq!(text, "better-compute reservations explain --pool gpu --gpus 16 --vcpu 4");
    let small = command("gpu", &Ask { memory_mib: 1536, ..ask(0) });
    assert_eq!(small, "better-compute reservations explain --pool gpu --memory-mib 1536");
    let host = Ask { memory_mib: 64 * 1024, hugepages_1gi: 2, whole_node: true, ..ask(0) };
    let text = command("gpu", &host);
    assert_eq!(
        text,
        "better-compute reservations explain --pool gpu --memory-gib 64 --hugepages-1gi 2 --whole-node"
    );
}

#[test]
fn a_hint_is_what_to_write_instead() {
    assert_eq!(hint(&Hint::MemoryBytes { memory_bytes: 65 * GIB - 1 }), "--memory-gib 64");
    assert_eq!(hint(&Hint::MemoryBytes { memory_bytes: 512 * MIB + 1 }), "--memory-mib 512");
    assert_eq!(hint(&Hint::Hugepages1gi { hugepages_1gi: 2 }), "--hugepages-1gi 2");
    assert_eq!(hint(&Hint::Model { model: "H100".into() }), "--gpu-model \"H100\"");
    assert_eq!(hint(&Hint::CpuMillis { cpu_millis: 4500 }), "--vcpu 4");
}
