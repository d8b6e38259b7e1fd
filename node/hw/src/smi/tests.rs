use proptest::prelude::*;
use wire::inventory::{GpuProblem, GpuVerdict, MigPlacement};

use super::*;
use crate::commands::CannedCommands;
use crate::health;

const H100: &str = include_str!("fixtures/h100.xml");

#[test]
fn every_fact_of_a_gpu_is_found() {
    let log = log(H100).unwrap();
    assert_eq!(
        (log.driver_version.as_deref(), log.cuda_version.as_deref()),
        (Some("580.10.01"), Some("13.0"))
    );
    assert_eq!((log.gpus.len(), &log.problem), (2, &None));
    let gpu = &log.gpus[0].gpu;
    assert_eq!(gpu.uuid.as_deref(), Some("GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001"), "lowercase");
    assert_eq!((gpu.index, gpu.minor), (Some(0), Some(3)));
    assert_eq!(gpu.pci_address.unwrap().to_string(), "0000:53:00.0");
    assert_eq!(gpu.memory_bytes, Some(81_559 << 20));
    assert_eq!(gpu.power_limit_mw, Some(700_000));
    let mode = gpu.mig_mode.unwrap();
    assert_eq!((mode.current, mode.pending), (false, true));
    let ecc = gpu.ecc.unwrap();
    assert_eq!((ecc.volatile_correctable, ecc.volatile_uncorrectable), (Some(11), Some(9)));
    assert_eq!((ecc.aggregate_correctable, ecc.aggregate_uncorrectable), (Some(11), Some(12)));
    let remap = gpu.row_remap.unwrap();
    assert_eq!((remap.pending, remap.failure, remap.uncorrectable), (Some(true), Some(false), Some(2)));
    let link = gpu.pcie.unwrap();
    assert_eq!((link.width, link.width_max, link.generation_max), (Some(8), Some(16), Some(5)));
    let fabric = gpu.fabric.as_ref().unwrap();
    assert_eq!((fabric.state.as_deref(), fabric.clique_id), (Some("Completed"), Some(7)));
    assert_eq!(
        (gpu.persistence, gpu.ecc_enabled, gpu.recovery_action.clone()),
        (Some(true), Some(true), None)
    );
}

#[test]
fn every_live_reading_is_found() {
    let sample = log(H100).unwrap().gpus.remove(0).sample;
    assert_eq!((sample.utilization_percent, sample.temperature_c), (Some(87), Some(61)));
    assert_eq!((sample.power_draw_mw, sample.power_limit_mw), (Some(540_250), Some(700_000)));
    assert_eq!((sample.memory_used_bytes, sample.sm_clock_mhz), (Some(1 << 30), Some(1980)));
    assert_eq!((sample.memory_temperature_c, sample.pcie_generation), (None, Some(1)));
    assert_eq!(sample.throttle_reasons, ["sw_power_cap"], "idle is no reason");
    let process = &sample.processes[0];
    assert_eq!((process.pid, process.name.as_deref()), (4321, Some("/usr/bin/python3 &<odd>")));
    assert_eq!((process.memory_bytes, process.gpu_instance), (Some(900 << 20), None));
}

#[test]
fn what_could_not_be_read_is_absent_and_named() {
    let gpu = log(H100).unwrap().gpus.remove(1);
    assert_eq!(gpu.errors, ["fb_memory_usage/used", "temperature/gpu_temp"]);
    assert_eq!((gpu.sample.memory_used_bytes, gpu.sample.temperature_c), (None, None));
    assert_eq!(gpu.sample.power_draw_mw, Some(70_100), "where older drivers have it");
    assert_eq!((gpu.gpu.ecc, gpu.gpu.pcie), (None, None));
    assert_eq!(gpu.gpu.mig_instances.len(), 2);
    assert_eq!((gpu.gpu.mig_instances[0].gpu_instance, gpu.mig_indices[1]), (9, 1));
}

#[test]
fn a_lost_gpu_is_a_problem_that_names_it_and_the_others_stay() {
    let text =
        H100.replace("<total>81559 MiB</total>\n\t\t\t<used>ERR!</used>", "<total>GPU is lost</total>");
    let log = log(&text).unwrap();
    assert_eq!(log.problem, Some(SmiError::GpuLost { device: Some("0000:d1:00.0".parse().unwrap()) }));
    assert!(log.gpus[1].gpu.lost && !log.gpus[0].gpu.lost);
    assert_eq!(health::verdict(&log.gpus[1]).verdict, GpuVerdict::Unhealthy);
    assert_eq!(log.gpus[1].gpu.memory_bytes, None);
}

#[test]
fn health_is_judged_by_the_worst_finding() {
    let mut gpu = log(H100).unwrap().gpus.remove(0);
    let health = health::verdict(&gpu);
    assert_eq!(health.verdict, GpuVerdict::Unhealthy);
    assert_eq!(
        health.reasons,
        ["9 uncorrectable ECC errors since the driver loaded", "a row waits for a GPU reset to be remapped"]
    );
    gpu.gpu.ecc = None;
    assert_eq!(health::verdict(&gpu).verdict, GpuVerdict::Degraded);
    gpu.gpu.row_remap = None;
    assert_eq!(
        health::verdict(&gpu),
        wire::inventory::GpuHealth { verdict: GpuVerdict::Healthy, reasons: vec![] }
    );
    let text = H100.replace("<used>ERR!</used>", "<used>[GPU requires reset]</used>");
    assert_eq!(health::verdict(&log(&text).unwrap().gpus[1]).verdict, GpuVerdict::Degraded);
    gpu.gpu.recovery_action = Some("Reset".into());
    assert!(!health::may_take_work(health::verdict(&gpu).verdict));
}

#[test]
fn a_document_that_breaks_off_gives_the_gpus_before_the_break() {
    let cut = H100.find("<gpu id=\"00000000:D1").unwrap() + 200;
    let broken = log(&H100[..cut]).unwrap();
    assert_eq!(broken.gpus.len(), 1);
    assert!(matches!(broken.problem, Some(SmiError::Unparsable { .. })));
    let fewer = H100.replace("<attached_gpus>2<", "<attached_gpus>3<");
    let Some(SmiError::Unparsable { why }) = log(&fewer).unwrap().problem else { panic!("no problem") };
    assert_eq!(why, "3 GPUs attached, 2 described");
    assert!(matches!(log("No devices were found"), Err(SmiError::Unparsable { .. })));
    let deep = format!("<nvidia_smi_log>{}", "<a>".repeat(100_000));
    assert!(matches!(log(&deep).unwrap().problem, Some(SmiError::Unparsable { .. })));
}

#[test]
fn what_it_prints_when_it_fails_becomes_the_reason() {
    let at = |text: &str| Some(text.parse().unwrap());
    let cases = [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
            SmiError::DriverNotLoaded,
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", SmiError::DriverMismatch),
        ("Failed to initialize NVML: Unknown Error", SmiError::DriverNotLoaded),
        ("Failed to initialize NVML: Insufficient Permissions", SmiError::PermissionDenied),
        ("No devices were found", SmiError::NoDevices),
        (
            "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error",
            SmiError::DeviceHandle { device: at("0000:cb:00.0") },
        ),
        (
            "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\nNo devices were found",
            SmiError::DeviceHandle { device: at("0000:34:00.0") },
        ),
        (
            "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover",
            SmiError::GpuLost { device: at("0000:02:00.0") },
        ),
        ("Unable to determine GPU instance profiles: Not Supported", SmiError::NotSupported),
        ("Failed to query GPU instance profiles: Insufficient Permissions", SmiError::PermissionDenied),
    ];
    for (text, error) in cases {
        assert_eq!(classify(text), Some(error), "{text}");
    }
    assert_eq!(classify("all is well"), None);
    assert_eq!(SmiError::failed(Some(6), " odd\n thing ").problem(), GpuProblem::Failed);
}

#[tokio::test]
async fn a_query_keeps_the_gpus_beside_one_that_cannot_be_opened() {
    let said = format!("Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error\n{H100}");
    let commands = CannedCommands::new().answer("nvidia-smi -q -x", CommandOutput::ok(said));
    let log = query(&commands).await.unwrap();
    assert_eq!(log.gpus.len(), 2);
    assert!(matches!(log.problem, Some(SmiError::DeviceHandle { .. })));
    let commands =
        CannedCommands::new().answer("nvidia-smi -q -x", CommandOutput::failed(9, "No devices were found\n"));
    assert_eq!(query(&commands).await, Err(SmiError::NoDevices));
    assert_eq!(query(&CannedCommands::new()).await, Err(SmiError::NotInstalled));
    let commands = CannedCommands::new().answer("nvidia-smi -q -x", CommandOutput::failed(255, "odd"));
    assert!(matches!(query(&commands).await, Err(SmiError::Failed { code: Some(255), .. })));
}

#[test]
fn the_list_names_mig_devices_below_their_gpu() {
    let listed = list(
        "GPU 0: NVIDIA H200 (UUID: GPU-cd251136-5147-a8da-93ae-4297345765f7)\n  \
           MIG 2g.35gb     Device  0: (UUID: MIG-b5aa6ad1-c744-5539-bdb8-93513a2323f7)\n  \
           MIG 1g.18gb     Device  1: (UUID: MIG-b34d2e36-9c29-59cf-f0f0-c8a2db3febbd)\n\
         GPU 1 NVIDIA H200 (UUID: GPU-0b40ee6e-8790-1ac9-be73-d844bddafe5f)\n  \
           MIG 1g.18gb     Device  0: (UUID: MIG-1160e601-f6a0-5256-301f-d5d80e9f5a72)\n\
         GPU 2: NVIDIA H200 (UUID: )\n",
    );
    assert_eq!(listed.gpus.len(), 1);
    assert_eq!(listed.skipped, 3, "a broken GPU line hides what is below it");
    assert_eq!((listed.gpus[0].mig[1].profile.as_str(), listed.gpus[0].mig[1].index), ("1g.18gb", 1));
}

#[test]
fn compute_capabilities_are_by_uuid() {
    let text = "GPU-5F1C0F52-6a77-4c11-9d5f-3a2f7f6b0001, 9.0\nGPU-x, 8.0\nGPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0002, [N/A]\n";
    let found = compute_capabilities(text);
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001".to_owned(), "9.0".to_owned())]
    );
}

#[test]
fn mig_tables_are_read_at_any_width() {
    let text = "+----+\n| GPU instances: |\n| GPU   Name   Profile  Instance   Placement  |\n|====|\n\
                |   0  MIG 1g.10gb+me  20   13    6:1     |\n+----+\n|   1  MIG 3g.40gb    9  1   4:4 |\n";
    let instances = gpu_instances(text);
    assert_eq!(instances.len(), 2);
    assert_eq!(
        (instances[0].profile.as_str(), instances[0].profile_id, instances[0].id),
        ("1g.10gb+me", 20, 13)
    );
    assert_eq!(instances[1].placement, MigPlacement { start: 4, size: 4 });
    let text = "|   0      3       MIG 1c.2g.10gb       0         1          1:1     |\n";
    let compute = compute_instances(text);
    assert_eq!((compute[0].gpu_instance, compute[0].id, compute[0].placement.start), (3, 1, 1));
    assert!(gpu_instances(text).is_empty(), "one table is not the other");
    let text = "|   0  MIG 1g.18gb+me      20     1/7        16.00      No     16     1     0   |\n\
                |                                            1     1     1   |\n";
    let profiles = instance_profiles(text);
    assert_eq!((profiles[0].id, profiles[0].free, profiles[0].total), (20, 1, 7));
}

#[test]
fn the_matrix_tells_where_each_gpu_is() {
    let tabs = "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n\
                GPU0\t X \tNV18\tPIX\t0-63,128-191\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t\t1\t\tN/A\n\
                NIC0\tPIX\tSYS\t X \t\t\t\t\n\nLegend:\n  X    = Self\n";
    let rows = topology(tabs);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].cpu_affinity.as_ref().unwrap().count(), 128);
    assert_eq!((&rows[1].cpu_affinity, rows[1].numa_node), (&None, Some(1)));
    let blanks = "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n\
                  GPU0     X      NV12    32-63,96-127    1               N/A\n\
                  GPU1    NV12     X      32-63,96-127,130-150            N/A\n";
    let rows = topology(blanks);
    assert_eq!(rows[0].cpu_affinity.as_ref().unwrap().to_string(), "32-63,96-127");
    assert_eq!(rows[1].cpu_affinity, None, "half a list would be a wrong one");
}

#[test]
fn links_that_are_up_are_counted() {
    let text = "GPU 0: NVIDIA H100 (UUID: GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001)\n\
                \t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n\
                GPU 1: NVIDIA H100 (UUID: GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0002)\n";
    assert_eq!(nvlinks_up(text).into_values().collect::<Vec<_>>(), [2, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_text_makes_a_parser_panic(text in "(GPU 0: |MIG |Device |\\(UUID: |GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001|\\)|Link 0: |GB/s|CPU Affinity|NUMA Affinity|GPU NUMA ID|\t|\n|\\||4:4|1/7|\\x1b\\[|[0-9 ,.]|\\PC){0,40}") {
        list(&text);
        compute_capabilities(&text);
        gpu_instances(&text);
        compute_instances(&text);
        instance_profiles(&text);
        topology(&text);
        nvlinks_up(&text);
        classify(&text);
        let _ = log(&text);
    }

    #[test]
    fn no_damage_to_a_document_makes_the_parser_panic(at in 0..H100.len(), len in 0usize..400, junk in "(<|>|&|;|/|gpu|\"|\\PC){0,8}") {
        let end = (at + len).min(H100.len());
        if let (Some(head), Some(tail)) = (H100.get(..at), H100.get(end..))
            && let Ok(log) = log(&format!("{head}{junk}{tail}"))
        {
            prop_assert!(log.gpus.len() <= 3);
        }
    }
}
