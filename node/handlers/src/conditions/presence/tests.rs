use hw::fake::Fault;
use hw::{FakeHardware, Hardware as _};
use tempfile::TempDir;

use super::*;

async fn seen(hardware: &FakeHardware) -> GpuSection {
    hardware.inventory().await.gpus
}

fn fresh() -> (TempDir, Presence) {
    let dir = tempfile::tempdir().unwrap();
    let presence = Presence::at(dir.path().join(FILE));
    (dir, presence)
}

fn kinds(presence: &Presence) -> Vec<(String, String)> {
    presence.facts().into_iter().map(|fact| (fact.kind, fact.reason)).collect()
}

#[tokio::test]
async fn a_whole_machine_has_no_conditions_and_knows_its_addresses() {
    let (_dir, mut presence) = fresh();
    let section = seen(&FakeHardware::new(1)).await;
    presence.take(&section).unwrap();
    assert!(presence.facts().is_empty());
    assert_eq!(presence.addresses().len(), section.gpus.len());
}

#[tokio::test]
async fn a_gpu_that_goes_missing_without_a_word_is_found_out_at_the_second_look() {
    let (dir, mut presence) = fresh();
    let mut section = seen(&FakeHardware::new(1)).await;
    presence.take(&section).unwrap();
    let gone = section.gpus.remove(3).uuid.unwrap();
    // Also by a process that never saw it.
    let mut presence = Presence::at(dir.path().join(FILE));
    presence.take(&section).unwrap();
    assert!(presence.facts().is_empty());
    presence.take(&section).unwrap();
    let facts = presence.facts();
    assert_eq!((facts[0].kind.as_str(), facts[0].device.as_str()), ("GpuMissing", gone.as_str()));
    assert_eq!(facts[0].severity, Severity::Blocking);
    assert!(facts[0].message.contains("remove") && facts[0].message.contains(FILE), "it names its way out");
    presence.take(&seen(&FakeHardware::new(1)).await).unwrap();
    assert!(presence.facts().is_empty());
}

#[tokio::test]
async fn a_gpu_the_driver_calls_lost_is_missing_at_once() {
    let (_dir, mut presence) = fresh();
    let hardware = FakeHardware::new(1);
    presence.take(&seen(&hardware).await).unwrap();
    hardware.inject(Fault::GpuLost { gpu: 2 });
    presence.take(&seen(&hardware).await).unwrap();
    assert!(kinds(&presence).contains(&("GpuMissing".into(), "Lost".into())), "{:?}", presence.facts());
}

#[tokio::test]
async fn a_driver_that_does_not_answer_is_one_condition_and_not_eight() {
    let (_dir, mut presence) = fresh();
    let hardware = FakeHardware::new(1);
    presence.take(&seen(&hardware).await).unwrap();
    hardware.inject(Fault::SmiFails(hw::smi::SmiError::TimedOut));
    presence.take(&seen(&hardware).await).unwrap();
    assert!(presence.facts().is_empty(), "one slow answer is no fault");
    presence.take(&seen(&hardware).await).unwrap();
    assert_eq!(kinds(&presence), [("GpuDriver".into(), "TimedOut".into())]);
}

#[test]
fn a_machine_that_never_had_a_gpu_misses_none() {
    let (_dir, mut presence) = fresh();
    let section = GpuSection { problem: Some(GpuProblem::NotInstalled), ..GpuSection::default() };
    for _ in 0..3 {
        presence.take(&section).unwrap();
    }
    assert!(presence.facts().is_empty());
}

#[tokio::test]
async fn a_gpu_the_driver_does_not_call_healthy_takes_no_work_until_it_does() {
    let (_dir, mut presence) = fresh();
    let hardware = FakeHardware::new(1);
    hardware.inject(Fault::RowRemapPending { gpu: 0 });
    presence.take(&seen(&hardware).await).unwrap();
    let facts = presence.facts();
    assert_eq!((facts[0].kind.as_str(), facts[0].severity), ("GpuUnhealthy", Severity::Blocking));
    assert!(facts[0].message.contains("waits for a GPU reset"), "{}", facts[0].message);
    hardware.clear(|_| true);
    presence.take(&seen(&hardware).await).unwrap();
    assert!(presence.facts().is_empty());
}
