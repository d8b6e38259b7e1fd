use super::*;
use crate::fake::{FakeHardware, Fault};
use crate::hardware::Hardware;

fn facts() -> HostFacts {
    let pool = PoolNow { page_bytes: 1 << 30, pages: 128, free: 100 };
    HostFacts { clock: ClockSync::Synchronized, vfio_pci: true, pools: vec![pool] }
}

fn status(checks: &[Check], name: &str) -> Status {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name} check")).status
}

#[tokio::test]
async fn a_good_host_is_ok_throughout() {
    let fake = FakeHardware::new(3);
    let checks = checks(&fake.inventory().await, &fake.gpu_samples().await.unwrap(), &facts());
    assert!(checks.iter().all(|check| check.status == Status::Ok && check.fix.is_none()), "{checks:#?}");
    assert_eq!(checks.iter().filter(|check| check.name == "gpu").count(), 8);
    let pages = checks.iter().find(|check| check.name == "hugepages").unwrap();
    assert_eq!(pages.detail, "100 of 128 pages of 1.0 GiB free");
}

#[test]
fn a_bare_machine_gets_warnings_for_what_it_cannot_do_and_a_failure_for_cgroups() {
    let mut inventory = NodeInventory::default();
    inventory.gpus.problem = Some(GpuProblem::NotInstalled);
    let facts = HostFacts { clock: ClockSync::Unsynchronized, vfio_pci: false, pools: Vec::new() };
    let checks = checks(&inventory, &[], &facts);
    for name in ["nvml", "kvm", "iommu", "clock"] {
        assert_eq!(status(&checks, name), Status::Warn, "{name}");
    }
    assert_eq!(status(&checks, "cgroups"), Status::Fail);
    assert!(checks.iter().all(|check| check.name != "vfio"), "no IOMMU, no vfio check");
    assert!(checks.iter().filter(|check| check.status != Status::Ok).all(|check| check.fix.is_some()));
}

#[tokio::test]
async fn a_gpu_fails_or_warns_by_its_verdict() {
    let fake = FakeHardware::new(3);
    fake.inject(Fault::EccUncorrectable { gpu: 0, count: 1 });
    fake.inject(Fault::RowRemapPending { gpu: 1 });
    let inventory = fake.inventory().await;
    let uuid = inventory.gpus.gpus[2].uuid.clone().unwrap();
    fake.set_mig_pending(&uuid, true).unwrap();
    let checks = checks(&fake.inventory().await, &[], &facts());
    let gpus: Vec<Status> =
        checks.iter().filter(|check| check.name == "gpu").map(|check| check.status).take(4).collect();
    assert_eq!(gpus, [Status::Fail, Status::Warn, Status::Warn, Status::Ok]);
}

#[tokio::test]
async fn missing_cgroup_controllers_are_named() {
    let mut inventory = FakeHardware::new(3).inventory().await;
    let controllers = |inventory: &mut NodeInventory, drop: &str| {
        inventory.os.cgroup.as_mut().unwrap().controllers.retain(|name| name != drop);
    };
    controllers(&mut inventory, "hugetlb");
    assert_eq!(status(&checks(&inventory, &[], &facts()), "cgroups"), Status::Warn);
    controllers(&mut inventory, "cpuset");
    let checks = checks(&inventory, &[], &facts());
    assert_eq!(status(&checks, "cgroups"), Status::Fail);
    assert!(checks.iter().any(|check| check.detail.contains("no cpuset controller")));
}

#[test]
fn facts_are_read_from_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pool).unwrap();
    std::fs::write(pool.join("nr_hugepages"), "10\n").unwrap();
    std::fs::write(pool.join("free_hugepages"), "4\n").unwrap();
    let facts = HostFacts::read(&Root::at(folder.path()));
    assert_eq!(facts.pools, [PoolNow { page_bytes: 2 << 20, pages: 10, free: 4 }]);
    assert_eq!((facts.clock, facts.vfio_pci), (ClockSync::Unknown, false));
}
