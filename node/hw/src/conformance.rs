//! What every [`Hardware`] owes its callers. One function, run on the fake and on the machine the tests run on.

use std::sync::Arc;

use wire::inventory::{GpuProblem, NodeInventory, PressureLine, SectionName, decode};

use crate::commands::HostCommands;
use crate::diag;
use crate::fake::{FakeHardware, Fault};
use crate::hardware::{Hardware, ResetError};
use crate::host::HostHardware;
use crate::root::Root;
use crate::smi::SmiError;

async fn conforms(hardware: &dyn Hardware) {
    let inventory = hardware.inventory().await;
    sections_travel(&inventory);
    cpus_and_memory_agree(&inventory);

    let boot_id = hardware.boot_id().await.expect("a machine that runs has booted");
    assert_eq!(inventory.os.boot_id.as_deref(), Some(boot_id.as_str()));
    assert_eq!(boot_id.len(), 36);

    let memory = hardware.memory_info().await.expect("every kernel tells");
    assert!(memory.available_bytes > 0 && memory.available_bytes <= memory.total_bytes);

    let again = hardware.inventory().await;
    for name in [SectionName::System, SectionName::Cpu, SectionName::Disks, SectionName::Os] {
        assert_eq!(inventory.hash(name), again.hash(name), "{name} changed between two passes");
    }
    // A virtual machine may be given memory at any moment: the reading is between the two passes.
    let totals =
        [&inventory, &again].map(|inventory| inventory.memory.total_bytes.expect("every kernel tells"));
    assert!((totals[0].min(totals[1])..=totals[0].max(totals[1])).contains(&memory.total_bytes));

    pressure_is_in_range(hardware).await;
    samples_are_of_the_inventory(hardware, &inventory).await;
    the_log_is_read_by_cursor(hardware, &boot_id).await;
    unknown_gpus_are_not_reset(hardware).await;
}

fn sections_travel(inventory: &NodeInventory) {
    let mut received = NodeInventory::default();
    for name in SectionName::ALL {
        let section = decode(name, &inventory.encode(name));
        received.set(section.unwrap_or_else(|error| panic!("section {name} is refused: {error:?}")));
    }
    assert_eq!(&received, inventory);
}

fn cpus_and_memory_agree(inventory: &NodeInventory) {
    let cpu = &inventory.cpu;
    let online = cpu.online.as_ref().expect("every kernel lists its CPUs");
    assert_eq!(cpu.threads, u32::try_from(online.count()).ok());
    assert!(cpu.cores <= cpu.threads, "{cpu:?}");
    assert!(cpu.sockets <= cpu.threads, "{cpu:?}");
    assert!(cpu.numa_nodes.iter().flat_map(|node| node.cpus.iter()).all(|cpu| online.contains(cpu)));
    assert!(cpu.arch.is_some());
    let in_nodes: u64 = cpu.numa_nodes.iter().filter_map(|node| node.memory_bytes).sum();
    assert!(in_nodes <= inventory.memory.total_bytes.expect("every kernel tells"));
}

async fn pressure_is_in_range(hardware: &dyn Hardware) {
    hardware.pressure().await;
    let report = hardware.pressure().await;
    let within = |line: Option<PressureLine>| line.is_none_or(|line| line.avg10_centi_percent <= 10_000);
    for pressure in [report.cpu, report.memory, report.io].into_iter().flatten() {
        assert!(within(pressure.some) && within(pressure.full), "{report:?}");
    }
    assert!(report.steal_centi_percent.is_none_or(|steal| steal <= 10_000));
}

async fn samples_are_of_the_inventory(hardware: &dyn Hardware, inventory: &NodeInventory) {
    match hardware.gpu_samples().await {
        Ok(samples) => {
            for sample in samples {
                assert!(inventory.gpus.gpus.iter().any(|gpu| gpu.uuid == sample.uuid), "{sample:?}");
            }
        }
        Err(error) => assert_eq!(inventory.gpus.problem, Some(error.problem())),
    }
    let checks = diag::nvml(&inventory.gpus, &[]);
    assert_eq!(checks[0].passed, inventory.gpus.problem.is_none() && !inventory.gpus.gpus.is_empty());
}

async fn the_log_is_read_by_cursor(hardware: &dyn Hardware, boot_id: &str) {
    let batch = hardware.xids(0).await.expect("the tests run where the kernel log can be read");
    assert_eq!(batch.boot_id, boot_id);
    assert!(batch.events.iter().all(|event| event.sequence < batch.next));
    assert!(batch.events.is_sorted_by_key(|event| event.sequence));
    let rest = hardware.xids(batch.next).await.expect("it could be read before");
    assert!(rest.events.iter().all(|event| event.sequence >= batch.next), "an event came twice");
    let all = hardware.xids(0).await.expect("it could be read before");
    assert!(all.events.len() >= batch.events.len(), "another cursor sees everything");
}

async fn unknown_gpus_are_not_reset(hardware: &dyn Hardware) {
    let absent = "GPU-00000000-0000-4000-8000-00000000dead";
    match hardware.reset_gpu(absent).await {
        Err(ResetError::Unknown { uuid }) => assert_eq!(uuid, absent),
        Err(ResetError::Smi { .. }) => {}
        other => panic!("resetting a GPU that is not there gave {other:?}"),
    }
    for odd in ["", "--help", "GPU-1", "0"] {
        let answer = hardware.reset_gpu(odd).await;
        assert!(
            matches!(answer, Err(ResetError::Unknown { .. } | ResetError::Smi { .. })),
            "{odd:?}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn the_fake_machine_conforms_whole_and_broken() {
    conforms(&FakeHardware::new(11)).await;
    for fault in [
        Fault::GpuLost { gpu: 7 },
        Fault::Xid { gpu: 0, code: 48 },
        Fault::EccUncorrectable { gpu: 0, count: 9 },
        Fault::Slow { gpu: 3 },
        Fault::SmiFails(SmiError::DriverNotLoaded),
        Fault::SmiFails(SmiError::DeviceHandle { device: None }),
    ] {
        let fake = FakeHardware::new(11);
        fake.inject(fault);
        conforms(&fake).await;
    }
}

#[tokio::test]
async fn this_machine_conforms() {
    let host = HostHardware::new(Root::host(), Arc::new(HostCommands::new()));
    conforms(&host).await;
}

#[tokio::test]
async fn a_machine_without_a_gpu_says_so_truly() {
    // Without programs, any machine is one without a driver's tool.
    let host =
        HostHardware::new(Root::host(), Arc::new(HostCommands::new().with_search_path("/nonexistent")));
    let section = host.inventory().await.gpus;
    assert_eq!(section.problem, Some(GpuProblem::NotInstalled));
    assert_eq!(host.gpu_samples().await, Err(SmiError::NotInstalled));
    let checks = diag::nvml(&section, &[]);
    assert_eq!(checks[0].name, diag::CheckName::NvmlInit);
    assert!(!checks[0].passed);
    assert!(checks[0].detail.contains("nvidia-smi is not installed"), "{}", checks[0].detail);
}
