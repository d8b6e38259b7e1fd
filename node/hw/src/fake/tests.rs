use wire::inventory::SectionName;

use super::*;

#[tokio::test]
async fn a_seed_is_one_machine_and_another_seed_another() {
    let (first, same, other) = (FakeHardware::new(1), FakeHardware::new(1), FakeHardware::new(2));
    let hashes = |inventory: NodeInventory| inventory.hashes();
    assert_eq!(hashes(first.inventory().await), hashes(same.inventory().await));
    let (one, two) = (first.inventory().await, other.inventory().await);
    assert_ne!(one.system.product_uuid, two.system.product_uuid);
    assert_ne!(one.os.boot_id, two.os.boot_id);
    assert!(one.gpus.gpus.iter().zip(&two.gpus.gpus).all(|(one, two)| one.uuid != two.uuid));
}

#[tokio::test]
async fn it_is_the_machine_it_says() {
    let inventory = FakeHardware::new(42).inventory().await;
    assert_eq!(inventory.gpus.gpus.len(), 8);
    assert_eq!(inventory.cpu.threads, Some(224));
    assert_eq!(inventory.memory.total_bytes, Some(2 << 40));
    let per_node: Vec<usize> = inventory.cpu.numa_nodes.iter().map(|node| node.cpus.count()).collect();
    assert_eq!(per_node, [112, 112]);
    assert!(inventory.gpus.gpus.iter().all(|gpu| gpu.mig_mode.is_some()), "every GPU can do MIG");
    for name in SectionName::ALL {
        assert!(inventory.unread(name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_fault_shows_until_it_is_cleared() {
    let fake = FakeHardware::new(1);
    let before = fake.inventory().await.hash(SectionName::Gpus);
    fake.inject(Fault::EccUncorrectable { gpu: 3, count: 2 });
    let broken = fake.inventory().await;
    assert_eq!(broken.gpus.gpus[3].health.verdict, GpuVerdict::Unhealthy);
    assert_ne!(broken.hash(SectionName::Gpus), before);
    fake.clear(|fault| matches!(fault, Fault::EccUncorrectable { .. }));
    assert_eq!(fake.inventory().await.hash(SectionName::Gpus), before);
}

#[tokio::test]
async fn a_lost_gpu_is_unhealthy_keeps_its_name_and_comes_back_with_a_reboot() {
    let fake = FakeHardware::new(1);
    let uuid = fake.inventory().await.gpus.gpus[5].uuid.clone().unwrap();
    fake.inject(Fault::GpuLost { gpu: 5 });
    let gpu = fake.inventory().await.gpus.gpus[5].clone();
    assert_eq!((gpu.uuid.as_deref(), gpu.lost), (Some(uuid.as_str()), true));
    assert_eq!(gpu.health.verdict, GpuVerdict::Unhealthy);
    assert!(matches!(
        fake.reset_gpu(&uuid).await,
        Err(ResetError::Smi { source: SmiError::GpuLost { .. }, .. })
    ));
    fake.power_cycle();
    assert_eq!(fake.inventory().await.gpus.problem, None);
}

#[tokio::test]
async fn a_reset_applies_what_waits_for_it() {
    let fake = FakeHardware::new(1);
    let uuid = fake.inventory().await.gpus.gpus[0].uuid.clone().unwrap();
    fake.inject(Fault::RowRemapPending { gpu: 0 });
    fake.set_mig_pending(&uuid, true).unwrap();
    assert_eq!(fake.create_mig(&uuid, "1g.10gb", 0), Err(MigRefused::ModeOff));
    assert_eq!(fake.inventory().await.gpus.gpus[0].health.verdict, GpuVerdict::Degraded);
    fake.reset_gpu(&uuid).await.unwrap();
    let gpu = fake.inventory().await.gpus.gpus[0].clone();
    assert_eq!(gpu.health.verdict, GpuVerdict::Healthy);
    assert!(gpu.mig_mode.unwrap().current);
    fake.inject(Fault::ResetRefused { gpu: 0 });
    assert!(matches!(fake.reset_gpu(&uuid).await, Err(ResetError::Refused { .. })));
}

#[tokio::test]
async fn a_reboot_changes_the_boot_id_empties_the_log_and_loses_mig_instances() {
    let fake = FakeHardware::new(1);
    let uuid = fake.inventory().await.gpus.gpus[0].uuid.clone().unwrap();
    fake.set_mig_pending(&uuid, true).unwrap();
    fake.reset_gpu(&uuid).await.unwrap();
    fake.create_mig(&uuid, "3g.40gb", 4).unwrap();
    fake.inject(Fault::Xid { gpu: 0, code: 63 });
    let before = fake.boot_id().await.unwrap();
    let batch = fake.xids(0).await.unwrap();
    assert_eq!((batch.events.len(), &batch.boot_id), (1, &before));
    fake.reboot("kernel update").await.unwrap();
    let after = fake.xids(batch.next).await.unwrap();
    assert_ne!(after.boot_id, before);
    assert!(after.events.is_empty());
    assert!(fake.inventory().await.gpus.gpus[0].mig_instances.is_empty());
    assert_eq!(fake.reboots(), ["kernel update"]);
    fake.inject(Fault::RebootRefused);
    assert!(fake.reboot("again").await.is_err());
    assert_eq!(fake.boot_id().await.unwrap(), after.boot_id);
}

#[tokio::test]
async fn mig_instances_take_slices_that_no_other_has() {
    let fake = FakeHardware::new(1);
    let uuid = fake.inventory().await.gpus.gpus[0].uuid.clone().unwrap();
    fake.set_mig_pending(&uuid, true).unwrap();
    fake.reset_gpu(&uuid).await.unwrap();
    let first = fake.create_mig(&uuid, "3g.40gb", 0).unwrap();
    fake.create_mig(&uuid, "3g.40gb", 4).unwrap();
    assert_eq!(fake.create_mig(&uuid, "1g.10gb", 2), Err(MigRefused::Taken));
    assert!(matches!(fake.create_mig(&uuid, "3g.40gb", 1), Err(MigRefused::BadStart { .. })));
    assert!(matches!(fake.create_mig(&uuid, "9g.1tb", 0), Err(MigRefused::UnknownProfile(_))));
    fake.destroy_mig(&uuid, first).unwrap();
    assert_eq!(fake.destroy_mig(&uuid, first), Err(MigRefused::UnknownInstance(first)));
    fake.create_mig(&uuid, "4g.40gb", 0).unwrap();
    let instances = fake.inventory().await.gpus.gpus[0].mig_instances.clone();
    assert_eq!(instances.len(), 2);
    assert_ne!(instances[0].uuid, instances[1].uuid);
    assert_eq!(fake.create_mig("GPU-x", "1g.10gb", 0), Err(MigRefused::UnknownGpu));
}

#[tokio::test]
async fn a_hot_gpu_is_slow_in_its_samples_and_nowhere_else() {
    let fake = FakeHardware::new(1);
    let before = fake.inventory().await.hash(SectionName::Gpus);
    fake.inject(Fault::Slow { gpu: 2 });
    assert_eq!(fake.inventory().await.hash(SectionName::Gpus), before);
    let samples = fake.gpu_samples().await.unwrap();
    assert_eq!(samples[2].throttle_reasons, ["hw_slowdown", "hw_thermal_slowdown"]);
    assert!(samples[1].throttle_reasons.is_empty());
}

#[tokio::test]
async fn a_failing_nvidia_smi_leaves_what_the_module_lists() {
    let fake = FakeHardware::new(1);
    fake.inject(Fault::SmiFails(SmiError::TimedOut));
    let section = fake.inventory().await.gpus;
    assert_eq!(section.gpus.len(), 8);
    assert!(section.gpus.iter().all(|gpu| gpu.uuid.is_some() && gpu.ecc.is_none()));
    assert_eq!(fake.gpu_samples().await, Err(SmiError::TimedOut));
    fake.clear(|_| true);
    fake.inject(Fault::SmiFails(SmiError::NotInstalled));
    assert!(fake.inventory().await.gpus.gpus.is_empty());
}
