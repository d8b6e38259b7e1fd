use super::*;
use crate::testing::{Deployment, at, command_id, nth};
use model::NodeId;

const HANDLED: [CommandKind; 4] =
    [CommandKind::InventoryRefresh, CommandKind::DiagNvml, CommandKind::GpuReset, CommandKind::NodeReboot];

struct Case {
    deployment: Deployment,
    verifier: CommandVerifier,
    node_id: String,
}

impl Case {
    fn new() -> Self {
        let deployment = Deployment::new(1);
        let verifier = CommandVerifier::new(deployment.id, &deployment.trust().command_roots);
        Self { deployment, verifier, node_id: nth::<NodeId>(5).to_string() }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            node_id: &self.node_id,
            role: Role::Node,
            upgrade_only: false,
            handled: &HANDLED,
            applied_generation: 3,
            deployment_epoch: 1,
            now: at(10),
            verifier: &self.verifier,
        }
    }

    fn body(&self, kind: CommandKind) -> CommandBody {
        self.deployment.command_body(5, command_id(1), kind)
    }

    fn check(&self, facts: &Facts<'_>, change: impl FnOnce(&mut CommandBody)) -> Verdict {
        let mut body = self.body(CommandKind::DiagNvml);
        change(&mut body);
        check(facts, &body, &self.deployment.signed_command(&body))
    }
}

fn reason(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Reject(reason, _) => reason.name(),
        Verdict::Admit(_) => "admitted",
        Verdict::Defer => "deferred",
        Verdict::Early => "early",
    }
}

#[test]
fn each_check_names_its_own_answer() {
    let case = Case::new();
    type Change = fn(&mut CommandBody);
    let table: [(&str, Change, &str); 12] = [
        ("all is well", |_| {}, "admitted"),
        ("another node", |body| body.node_id = nth::<NodeId>(6).to_string(), "UNSUPPORTED"),
        ("an unknown kind", |body| body.kind = "disk.wipe".into(), "UNSUPPORTED"),
        ("no handler", |body| body.kind = "logs.collect".into(), "UNSUPPORTED"),
        ("a newer spec is needed", |body| body.min_generation = 4, "deferred"),
        ("the spec held is enough", |body| body.min_generation = 3, "admitted"),
        ("no deadline", |body| body.not_after_ms = 0, "EXPIRED"),
        ("past its deadline", |body| body.not_after_ms = crate::testing::at_ms(9), "EXPIRED"),
        ("at its deadline", |body| body.not_after_ms = crate::testing::at_ms(10), "admitted"),
        ("an older deployment", |body| body.deployment_epoch = 0, "STALE_GENERATION"),
        ("a newer deployment", |body| body.deployment_epoch = 2, "admitted"),
        ("before its time", |body| body.not_before_ms = crate::testing::at_ms(60), "early"),
    ];
    for (name, change, expected) in table {
        let verdict = case.check(&case.facts(), change);
        assert_eq!(reason(&verdict), expected, "{name}: {verdict:?}");
    }
}

#[test]
fn a_command_whose_spec_never_came_is_stale_and_not_expired() {
    let case = Case::new();
    let verdict = case.check(&case.facts(), |body| {
        body.min_generation = 4;
        body.not_after_ms = crate::testing::at_ms(5);
    });
    assert_eq!(reason(&verdict), "STALE_GENERATION");
}

#[test]
fn the_first_check_that_fails_answers() {
    let case = Case::new();
    let everything_wrong = |body: &mut CommandBody| {
        body.node_id = "nobody".into();
        body.not_after_ms = 1;
        body.min_generation = 9;
        body.deployment_epoch = 0;
    };
    assert_eq!(reason(&case.check(&case.facts(), everything_wrong)), "UNSUPPORTED");
}

#[test]
fn nothing_runs_without_a_signature_that_verifies() {
    let case = Case::new();
    let body = case.body(CommandKind::DiagNvml);
    let signed = case.deployment.signed_command(&body);
    let other = Deployment::new(2).signed_command(&body);
    let spec_purpose = Command {
        signature: Some(case.deployment.sign(Purpose::DesiredState, &signed.body)),
        ..signed.clone()
    };
    let cases = [
        ("missing", Command { signature: None, ..signed.clone() }),
        ("from another deployment", other),
        ("made for another purpose", spec_purpose),
        (
            "over other bytes",
            Command { signature: Some(case.deployment.sign(Purpose::Command, b"x")), ..signed },
        ),
    ];
    for (name, command) in cases {
        assert_eq!(reason(&check(&case.facts(), &body, &command)), "BAD_SIGNATURE", "{name}");
    }
}

#[test]
fn a_node_without_roots_runs_nothing() {
    let case = Case::new();
    let none = CommandVerifier::new(case.deployment.id, &[]);
    let facts = Facts { verifier: &none, ..case.facts() };
    assert_eq!(reason(&case.check(&facts, |_| {})), "BAD_SIGNATURE");
}

#[test]
fn a_role_takes_only_its_kinds() {
    let case = Case::new();
    let facts = Facts { role: Role::Site, ..case.facts() };
    let body = case.body(CommandKind::NodeReboot);
    let verdict = check(&facts, &body, &case.deployment.signed_command(&body));
    assert_eq!(reason(&verdict), "UNSUPPORTED");
}

#[test]
fn an_upgrade_only_session_runs_nothing_else() {
    let case = Case::new();
    let facts = Facts { upgrade_only: true, ..case.facts() };
    assert_eq!(reason(&case.check(&facts, |_| {})), "UNSUPPORTED");
}
