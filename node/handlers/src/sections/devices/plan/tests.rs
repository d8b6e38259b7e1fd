use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::files::HostFile;
use crate::sections::devices::observe::{LiveHolds, Memory, SeenGpu};

const GPU: &str = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001";
const OTHER: &str = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0002";

fn allocation(number: u128) -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(number))
}

fn wanted() -> Wanted {
    Wanted {
        atoms: vec![GPU.into()],
        device_class: "gpu".into(),
        binding: Some(Binding::Hold),
        limits: SliceLimits { memory_bytes: 1 << 30, ..SliceLimits::default() },
    }
}

fn observed() -> Observed {
    let gpu = |node: &str| SeenGpu { lost: false, nodes: Some(vec![node.to_owned()]) };
    Observed {
        holds: LiveHolds::default(),
        envs: BTreeMap::new(),
        slices: Ok(BTreeSet::new()),
        in_force: BTreeSet::new(),
        gpus: BTreeMap::from([(GPU.into(), gpu("/dev/nvidia0")), (OTHER.into(), gpu("/dev/nvidia1"))]),
        unsure: None,
        common_nodes: vec!["/dev/nvidiactl".into()],
        memory: Some(Memory { total_bytes: 64 << 30, hugetlb_bytes: 0, pages_1gi: Some(0) }),
    }
}

fn plan(observed: &Observed) -> Plan {
    hold(allocation(1), &wanted(), &Desired::default(), observed)
}

fn names(plan: &Plan) -> Vec<&'static str> {
    let name = |step: &Step| match step {
        Step::ApplySlice(_) => "slice",
        Step::WriteEnv(_) => "env",
        Step::WriteCdi(_) => "cdi",
        Step::RemoveCdi => "no cdi",
        Step::RemoveEnv => "no env",
    };
    plan.steps.iter().map(name).collect()
}

/// The host after the plan was carried out.
fn done(plan: &Plan, mut observed: Observed) -> Observed {
    for step in &plan.steps {
        match step {
            Step::ApplySlice(_) => {
                observed.in_force.insert(allocation(1));
            }
            Step::WriteEnv(text) => {
                observed.envs.insert(allocation(1), text.clone().into());
            }
            Step::WriteCdi(bytes) => observed.holds.insert(&HostFile::Cdi(allocation(1)).name(), bytes),
            Step::RemoveCdi => observed.holds.remove(&HostFile::Cdi(allocation(1)).name()),
            Step::RemoveEnv => {
                observed.envs.remove(&allocation(1));
            }
        }
    }
    observed
}

#[test]
fn the_slice_comes_first_and_the_hold_last() {
    let plan = plan(&observed());
    assert_eq!((names(&plan), &plan.verdict), (vec!["slice", "env", "cdi"], &Verdict::Held));
}

#[test]
fn a_plan_carried_out_leaves_nothing_to_do() {
    let after = done(&plan(&observed()), observed());
    assert_eq!(plan(&after), Plan::only(Verdict::Held));
}

#[test]
fn a_released_hold_goes_file_first_and_then_there_is_nothing_to_do() {
    let after = done(&plan(&observed()), observed());
    assert_eq!(release(allocation(1), &after), [Step::RemoveCdi, Step::RemoveEnv]);
    assert_eq!(release(allocation(1), &observed()), []);
}

#[test]
fn a_moved_device_node_is_written_again_and_nothing_else() {
    let mut after = done(&plan(&observed()), observed());
    after.gpus.get_mut(GPU).unwrap().nodes = Some(vec!["/dev/nvidia5".into()]);
    assert_eq!(names(&plan(&after)), ["cdi"]);
    // While it is not to be seen the file stays.
    after.gpus.clear();
    assert_eq!(plan(&after), Plan::only(Verdict::Held));
}

#[test]
fn a_lost_slice_comes_back_though_the_device_is_not_to_be_seen() {
    let mut after = done(&plan(&observed()), observed());
    after.in_force.clear();
    after.gpus.clear();
    assert_eq!(names(&plan(&after)), ["slice"]);
}

#[test]
fn a_device_without_its_node_is_waited_for() {
    let mut observed = observed();
    observed.gpus.get_mut(GPU).unwrap().nodes = None;
    assert!(matches!(plan(&observed).verdict, Verdict::Wait { reason: "DeviceNodeMissing", .. }));
}

#[test]
fn a_gpu_being_released_is_waited_for_and_a_held_one_is_not() {
    let mut observed = observed();
    let other = Hold {
        allocation: allocation(2),
        atoms: vec![GPU.into()],
        binding: Binding::Hold,
        memory_bytes: 0,
        hugepages_1gi: 0,
    };
    let nodes = Nodes { device: BTreeMap::new(), common: Vec::new() };
    let bytes = cdi::render(&other, &SliceLimits::default(), &nodes);
    observed.holds.insert(&HostFile::Cdi(allocation(2)).name(), &bytes);
    assert!(matches!(plan(&observed).verdict, Verdict::Failed { reason: Reason::Overlap, .. }));
    let desired = Desired { released: [allocation(2)].into(), ..Desired::default() };
    let plan = hold(allocation(1), &wanted(), &desired, &observed);
    assert!(matches!(plan.verdict, Verdict::Wait { reason: "Releasing", .. }));
}

#[test]
fn memory_nobody_can_read_binds_with_a_warning() {
    let plan = plan(&Observed { memory: None, ..observed() });
    assert_eq!((plan.verdict, plan.warning), (Verdict::Held, Some("the host's memory cannot be read")));
}
