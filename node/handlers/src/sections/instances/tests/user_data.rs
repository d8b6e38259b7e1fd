//! Instances that are told something at their first boot.

use agent::secrets::{SecretTold, SecretValue, SecretWanted};
use model::{AllocationId, SecretId};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::*;

const CONFIG: &[u8] = b"#cloud-config\npassword: hunter2\n";

fn secret() -> SecretId {
    SecretId::from_uuid(uuid::Uuid::from_u128(77))
}

fn place(number: u128) -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(500 + number))
}

fn told_one(number: u128, revision: u64) -> InstanceSpec {
    InstanceSpec {
        user_data: wire::secret::reference(secret()),
        allocation_id: place(number).to_string(),
        ..running(number, revision)
    }
}

fn wanted(number: u128) -> SecretWanted {
    SecretWanted { instance_id: id(number), allocation_id: place(number), secret_id: secret() }
}

fn value() -> SecretTold {
    SecretTold::Value(SecretValue::new(Zeroizing::new(CONFIG.to_vec())))
}

impl Host {
    async fn told(&self, number: u128) -> Option<String> {
        self.hypervisor.domains().await.unwrap().get(&id(number)).and_then(|domain| domain.told.clone())
    }
}

#[tokio::test]
async fn an_instance_waits_for_its_user_data_and_costs_no_other() {
    let host = Host::new();
    let mut daemon = host.process();
    let report = daemon.pass(1, &[told_one(1, 1), running(2, 1)]).await;
    assert_eq!(told(&report), ["1@1 pending UserDataComing", "2@1 running"]);
    assert_eq!((report.state, report.secrets.as_slice()), (SectionState::Progressing, &[wanted(1)][..]));
    daemon.desk.put(wanted(1), value());
    let report = daemon.pass(1, &[told_one(1, 1), running(2, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["1@1 running".into()]));
    assert_eq!(report.secrets, []);
    assert_eq!(host.told(1).await, Some(hex::encode(Sha256::digest(CONFIG))));
    assert!(!format!("{report:?}").contains("hunter2"));

    // It was told: neither a start anew nor a change of it asks again.
    let report = daemon.pass(2, &[told_one(1, 2), running(2, 1)]).await;
    assert_eq!((told(&report), report.secrets.len()), (vec!["1@2 running".into()], 0));
    assert_eq!(host.hypervisor.starts(id(1)).await, Some(2));
}

#[tokio::test]
async fn a_process_that_dies_before_it_has_made_it_asks_again() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[told_one(1, 1)]).await;
    daemon.desk.put(wanted(1), value());
    // Whatever was fetched is gone with it, and nothing of it is on the host.
    host.hypervisor.cut_short(Some(0));
    daemon.pass(1, &[told_one(1, 1)]).await;
    host.hypervisor.cut_short(None);
    let found = std::fs::read_dir(host.root.path()).unwrap().flatten();
    for file in found.filter(|file| file.path().is_file()) {
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{:?}", file.path());
    }
    let mut next = host.process();
    let report = next.pass(1, &[told_one(1, 1)]).await;
    assert_eq!(report.secrets, [wanted(1)]);
    next.desk.put(wanted(1), value());
    assert_eq!(told(&next.pass(1, &[told_one(1, 1)]).await), ["1@1 running"]);
}

#[tokio::test]
async fn one_that_is_refused_fails_until_something_else_is_asked_for() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[told_one(1, 1), running(2, 1)]).await;
    let message = "there is no such secret".to_owned();
    daemon.desk.put(wanted(1), SecretTold::Refused { message });
    let report = daemon.pass(1, &[told_one(1, 1), running(2, 1)]).await;
    assert_eq!(told(&report), ["1@1 error SecretRefused"]);
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "SecretRefused"));
    assert!(report.message.contains("no such secret"), "{}", report.message);
    let report = daemon.pass(1, &[told_one(1, 1), running(2, 1)]).await;
    assert_eq!((told(&report), report.secrets.len()), (Vec::new(), 0), "it is not asked again and again");
    let report = daemon.pass(2, &[told_one(1, 2), running(2, 1)]).await;
    assert_eq!((told(&report), report.secrets.len()), (vec!["1@2 pending UserDataComing".into()], 1));
}

#[tokio::test]
async fn while_nobody_answers_it_is_asked_for_at_each_pass_and_told_once() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[told_one(1, 1)]).await;
    for at in 0..3 {
        daemon.desk.put(wanted(1), SecretTold::Later { message: "no worker has answered".into() });
        let report = daemon.pass(1, &[told_one(1, 1)]).await;
        assert_eq!((report.state, report.secrets.len()), (SectionState::Progressing, 1));
        assert!(report.message.contains("no worker has answered"), "{}", report.message);
        assert_eq!(told(&report).len(), usize::from(at == 0), "it is news once");
        // Asked for and not answered yet: the same is said.
        assert_eq!(told(&daemon.pass(1, &[told_one(1, 1)]).await).len(), 0);
    }
}

#[tokio::test]
async fn what_came_for_an_instance_that_is_gone_is_let_go_of() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[told_one(1, 1)]).await;
    daemon.desk.put(wanted(1), value());
    let gone = InstanceSpec { user_data: String::new(), ..entry(1, DesiredInstance::Deleted, 2, 1) };
    assert_eq!(told(&daemon.pass(2, &[gone]).await), ["1@2 absent"]);
    assert_eq!(daemon.desk.take(&wanted(1)), None);
}

#[tokio::test]
async fn what_is_no_user_data_fails_that_instance_alone() {
    let host = Host::new();
    let mut daemon = host.process();
    let odd = InstanceSpec { user_data: "secret://of-a-newer-kind".into(), ..told_one(1, 1) };
    let report = daemon.pass(1, &[odd, told_one(2, 1)]).await;
    assert_eq!(told(&report), ["1@1 error InvalidInstance", "2@1 pending UserDataComing"]);
    let long = SecretValue::new(Zeroizing::new(vec![b'x'; 64 * 1024 + 1]));
    daemon.desk.put(wanted(2), SecretTold::Value(long));
    assert_eq!(told(&daemon.pass(1, &[told_one(2, 1)]).await), ["2@1 error SecretRefused"]);
}
