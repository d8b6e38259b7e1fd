use super::*;
use crate::fake::{FakeHardware, Fault};
use crate::hardware::Hardware;

async fn report(fake: &FakeHardware) -> HardwareReport {
    HardwareReport::new(fake.inventory().await, fake.gpu_samples().await)
}

#[test]
fn sizes_are_rounded_to_a_tenth() {
    for (size, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (81_559 << 20, "79.6 GiB"),
        (2 << 40, "2.0 TiB"),
        (960_197_124_096, "894.3 GiB"),
        (u64::MAX, "16.0 EiB"),
    ] {
        assert_eq!(bytes(size), text);
    }
}

#[tokio::test]
async fn the_text_says_what_the_machine_is() {
    let fake = FakeHardware::new(5);
    let text = report(&fake).await.text();
    for line in [
        "system   Supermicro SYS-821GE-TNHR, serial ",
        "cpu      Intel(R) Xeon(R) Platinum 8480C, x86_64, 2 sockets, 112 cores, 224 threads\n",
        "node 1, CPUs 56-111,168-223, 1.0 TiB\n",
        "memory   2.0 TiB\n",
        "nvme0n1, 894.3 GiB, nvme, SAMSUNG",
        "gpus     driver 580.105.08, CUDA 13.0, 8 GPUs\n",
        "NVIDIA H100 80GB HBM3, 79.6 GiB, 0000:1b:00.0, node 0, compute 9.0, 18 NVLinks\n",
        "0% busy, ",
        "16 IOMMU units\n",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    assert!(!text.contains("HEALTHY"), "{text}");
}

#[tokio::test]
async fn what_is_wrong_or_unread_is_said() {
    let fake = FakeHardware::new(5);
    fake.inject(Fault::RowRemapFailure { gpu: 4 });
    let text = report(&fake).await.text();
    assert!(text.contains("UNHEALTHY: a row could not be remapped"), "{text}");
    let bare = HardwareReport::new(NodeInventory::default(), Err(SmiError::NotInstalled));
    assert!(bare.text().contains("disks    nothing known"), "{}", bare.text());
    assert_eq!(
        bare.gpu_error.as_deref(),
        Some("nvidia-smi is not installed: this host has no NVIDIA driver")
    );
}

#[tokio::test]
async fn the_json_holds_the_hash_of_every_section() {
    let report = report(&FakeHardware::new(5)).await;
    let json = serde_json::to_value(&report).unwrap();
    for name in SectionName::ALL {
        let hash = json["hashes"][name.as_str()].as_str().unwrap();
        assert_eq!(hash, report.inventory.hash(name).to_string());
    }
    assert_eq!(json["inventory"]["gpus"]["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(json["gpuSamples"].as_array().unwrap().len(), 8);
}
