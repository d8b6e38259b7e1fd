use hw::FakeHardware;
use wire::inventory::GpuProcess;

use super::*;

/// A machine that says of its GPUs what the test says.
struct Said {
    machine: FakeHardware,
    gpus: GpuSection,
    samples: Vec<GpuSample>,
}

impl Hardware for Said {
    fn inventory(&self) -> BoxFuture<'_, NodeInventory> {
        Box::pin(async move { NodeInventory { gpus: self.gpus.clone(), ..self.machine.inventory().await } })
    }

    fn gpu_samples(&self) -> BoxFuture<'_, Result<Vec<GpuSample>, hw::smi::SmiError>> {
        Box::pin(async move { Ok(self.samples.clone()) })
    }

    fn boot_id(&self) -> BoxFuture<'_, Result<String, HardwareError>> {
        self.machine.boot_id()
    }

    fn pressure(&self) -> BoxFuture<'_, PressureReport> {
        self.machine.pressure()
    }

    fn memory_info(&self) -> BoxFuture<'_, Result<MemoryInfo, HardwareError>> {
        self.machine.memory_info()
    }

    fn xids(&self, from: u64) -> BoxFuture<'_, Result<XidBatch, HardwareError>> {
        self.machine.xids(from)
    }

    fn reset_gpu<'a>(&'a self, uuid: &'a str) -> BoxFuture<'a, Result<(), ResetError>> {
        self.machine.reset_gpu(uuid)
    }

    fn reboot<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<(), HardwareError>> {
        self.machine.reboot(reason)
    }
}

async fn said() -> Said {
    let machine = FakeHardware::new(7);
    let gpus = machine.inventory().await.gpus;
    Said { machine, gpus, samples: Vec::new() }
}

fn entry(gpus: &[&Gpu], desired: DesiredInstance) -> InstanceSpec {
    let gpu_device_ids = gpus.iter().filter_map(|gpu| gpu.uuid.clone()).collect();
    InstanceSpec { gpu_device_ids, desired: desired.into(), ..InstanceSpec::default() }
}

#[tokio::test]
async fn gpus_are_found_by_their_ids_wherever_they_are() {
    let said = said().await;
    let all = &said.gpus.gpus;
    let found = find(&said, &entry(&[&all[3], &all[0]], DesiredInstance::Running)).await.unwrap();
    let addresses: Vec<&str> = found.iter().map(|gpu| gpu.address.as_str()).collect();
    assert_eq!(addresses, ["0000:61:00.0", "0000:1b:00.0"]);
    assert!(found[0].persistence);
    let facts: Gpu = serde_json::from_str(&found[0].facts).unwrap();
    assert_eq!(facts, all[3]);
    let stranger = Gpu { uuid: Some("GPU-\u{1b}[2J".into()), ..Gpu::default() };
    let missing = find(&said, &entry(&[&stranger], DesiredInstance::Running)).await.unwrap_err();
    assert_eq!((missing.reason, missing.retryable), ("GpuMissing", true));
    assert!(!missing.message.contains('\u{1b}'), "{missing:?}");
}

#[tokio::test]
async fn one_that_somebody_uses_waits() {
    let mut said = said().await;
    let gpu = said.gpus.gpus[2].clone();
    let process = |pid, name: &str| GpuProcess { pid, name: Some(name.to_owned()), ..GpuProcess::default() };
    let processes = vec![process(7, "python\u{7}"), process(8, "x"), process(9, "y"), process(10, "z")];
    said.samples.push(GpuSample { uuid: gpu.uuid.clone(), processes, ..GpuSample::default() });
    let used = find(&said, &entry(&[&gpu], DesiredInstance::Running)).await.unwrap_err();
    assert_eq!((used.reason, used.retryable), ("GpuInUse", true));
    assert!(
        used.message.ends_with("is used by process 7 python, process 8 x, process 9 y and 1 more"),
        "{used:?}"
    );
    let stopped = entry(&[&gpu], DesiredInstance::Stopped);
    find(&said, &stopped).await.expect("one that does not run takes nothing");
    let split = wire::inventory::MigMode { current: true, pending: true };
    said.gpus.gpus[2].mig_mode = Some(split);
    let used = find(&said, &stopped).await.unwrap_err();
    assert!(used.message.contains("split"), "{used:?}");
}

#[tokio::test]
async fn a_gpu_that_a_guest_has_stays_in_the_inventory() {
    let mut said = said().await;
    let handed = said.gpus.gpus.remove(1);
    let dir = tempfile::tempdir().unwrap();
    let id = model::InstanceId::from_uuid(uuid::Uuid::from_u128(1));
    let record = runtimes::libvirt::gpu_record(dir.path(), id);
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    let facts = serde_json::to_string(&handed).unwrap();
    let address = handed.pci_address.unwrap().to_string().parse().unwrap();
    let gpu = vfio::Gpu { uuid: handed.uuid.clone().unwrap(), address, persistence: true, facts };
    let pci = Arc::new(vfio::fake::FakePci::with_drivers(&["nvidia", vfio::VFIO]));
    pci.add(&gpu.address, 0x03_02_00, Some(1), Some("nvidia"));
    let passthrough =
        vfio::Passthrough::new(pci, Arc::new(hw::CannedCommands::new()), Arc::new(kit::SystemClock::new()));
    passthrough.take(&record, std::slice::from_ref(&gpu)).await.unwrap();

    let seven = said.gpus.clone();
    let machine = WithHanded::new(Arc::new(said), dir.path().to_owned());
    let inventory = machine.inventory().await;
    assert_eq!((inventory.gpus.gpus.len(), &inventory.gpus.gpus[1]), (8, &handed), "where it was");
    assert_eq!(find(&machine, &entry(&[&handed], DesiredInstance::Running)).await.unwrap()[0], gpu);
    let mut all_handed = GpuSection { problem: Some(GpuProblem::NoDevices), ..GpuSection::default() };
    machine.add_handed(&mut all_handed);
    assert_eq!(
        (all_handed.gpus.len(), all_handed.problem),
        (1, None),
        "that its driver sees none is no fault"
    );
    passthrough.give_back(&record).await.unwrap();
    assert_eq!(machine.inventory().await.gpus, seven);
}
