use super::*;
use crate::testing::{Deployment, at, nth};
use model::Section;
use wire::proto::agent::{AccessSection, DeviceAssignment, DevicesSection};

const NONCE: &[u8] = &[9; 32];

fn spec(hold: &str) -> NodeSpec {
    let assignment = DeviceAssignment { allocation_id: hold.into(), ..DeviceAssignment::default() };
    NodeSpec { devices: Some(DevicesSection { assignments: vec![assignment] }), ..NodeSpec::default() }
}

fn held(generation: u64) -> HeldSpec {
    HeldSpec { generation, hash: "h".into(), spec: spec("held"), unknown: vec![] }
}

struct Case {
    deployment: Deployment,
    verifier: CommandVerifier,
    held: Option<HeldSpec>,
    marks: Marks,
    validators: Vec<Validator>,
}

impl Case {
    /// A node at generation 4.
    fn new() -> Self {
        let deployment = Deployment::new(1);
        let verifier = CommandVerifier::new(deployment.id, &deployment.trust().command_roots);
        let marks = Marks { server_time_ms: 0, generation: 4, deployment_epoch: 1 };
        Self { deployment, verifier, held: Some(held(4)), marks, validators: vec![] }
    }

    fn judge(&self, delivered: &DesiredState) -> Result<(StoredSpec, HeldSpec), SpecRefused> {
        let facts = Facts {
            node_id: nth(5),
            held: self.held.as_ref(),
            marks: self.marks,
            nonce: NONCE,
            now: at(10),
            verifier: &self.verifier,
            validators: &self.validators,
        };
        judge(&facts, delivered)
    }

    fn judge_body(
        &self,
        change: impl FnOnce(&mut DesiredStateBody),
    ) -> Result<(StoredSpec, HeldSpec), SpecRefused> {
        let mut body = self.deployment.spec_body(5, 5, spec("new"));
        change(&mut body);
        self.judge(&self.deployment.signed_spec(&body, None))
    }
}

#[test]
fn a_newer_signed_spec_is_taken_as_it_is() {
    let case = Case::new();
    let (stored, held) = case.judge_body(|_| {}).unwrap();
    assert_eq!((stored.generation, held.generation), (5, 5));
    assert_eq!(held.spec, spec("new"));
    assert_eq!(from_stored(&stored).unwrap(), held, "what the journal gives back is what was taken");
}

#[test]
fn what_is_not_newer_signed_and_ours_is_refused() {
    let case = Case::new();
    type Change = fn(&mut DesiredStateBody);
    let table: [(&str, Change, &str); 4] = [
        ("another node", |body| body.node_id = nth::<NodeId>(6).to_string(), "names another node"),
        ("the generation held", |body| body.generation = 4, "generation 4 is held"),
        ("an older generation", |body| body.generation = 3, "generation 4 is held"),
        ("an older deployment", |body| body.deployment_epoch = 0, "has seen 1"),
    ];
    for (name, change, expected) in table {
        let err = case.judge_body(change).unwrap_err();
        assert!(err.to_string().contains(expected), "{name}: {err}");
    }
    let body = case.deployment.spec_body(5, 5, spec("new"));
    let mut unsigned = case.deployment.signed_spec(&body, None);
    unsigned.signature = None;
    assert_eq!(case.judge(&unsigned).unwrap_err(), SpecRefused::Signature(SignatureRefused::Missing));
    let foreign = Deployment::new(2).signed_spec(&body, None);
    assert!(matches!(case.judge(&foreign), Err(SpecRefused::Signature(_))));
}

#[test]
fn a_lost_journal_does_not_bring_back_an_older_spec() {
    let mut case = Case::new();
    case.held = None;
    let err = case.judge_body(|body| body.generation = 3).unwrap_err();
    assert_eq!(err, SpecRefused::BelowMark { given: 3, mark: 4 });
    assert!(case.judge_body(|body| body.generation = 4).is_ok(), "the one it had held comes again");
}

#[test]
fn a_node_without_a_mark_takes_only_a_spec_bound_to_its_hello() {
    let mut case = Case::new();
    (case.held, case.marks) = (None, Marks::default());
    let body = case.deployment.spec_body(5, 5, spec("new"));
    let signed = |nonce| case.deployment.signed_spec(&body, nonce);
    assert_eq!(case.judge(&signed(None)).unwrap_err(), SpecRefused::Unbound);
    assert_eq!(case.judge(&signed(Some(&[8; 32]))).unwrap_err(), SpecRefused::Unbound);
    let mut other = signed(Some(NONCE));
    other.fresh = case.deployment.signed_spec(&case.deployment.spec_body(5, 6, spec("x")), Some(NONCE)).fresh;
    assert_eq!(case.judge(&other).unwrap_err(), SpecRefused::Unbound, "a binding of another spec");
    let mut forged = signed(Some(NONCE));
    forged.fresh = Deployment::new(2).signed_spec(&body, Some(NONCE)).fresh;
    assert!(matches!(case.judge(&forged), Err(SpecRefused::Signature(_))));
    assert!(case.judge(&signed(Some(NONCE))).is_ok());
}

#[test]
fn a_patch_applies_to_its_base_and_survives_a_restart_whole() {
    let case = Case::new();
    let patch = |base| {
        move |body: &mut DesiredStateBody| {
            body.base_generation = base;
            body.spec = Some(NodeSpec {
                access: Some(AccessSection { ssh_ca_keys: vec!["key".into()], ..AccessSection::default() }),
                ..NodeSpec::default()
            });
        }
    };
    let (stored, held) = case.judge_body(patch(4)).unwrap();
    assert_eq!(held.spec.devices, spec("held").devices);
    assert!(held.spec.access.is_some());
    assert_eq!(from_stored(&stored).unwrap().spec, held.spec);
    assert_eq!(case.judge_body(patch(3)).unwrap_err(), SpecRefused::OtherBase { base: 3 });
}

#[test]
fn a_validator_refuses_the_whole_spec() {
    let mut case = Case::new();
    case.validators.push(Validator {
        section: Section::Access,
        check: |spec, _| if spec.access.is_some() { Err("no access today".into()) } else { Ok(()) },
    });
    assert!(case.judge_body(|_| {}).is_ok());
    let err = case
        .judge_body(|body| body.spec.as_mut().unwrap().access = Some(AccessSection::default()))
        .unwrap_err();
    assert_eq!(err.to_string(), "take a spec: its access section is invalid: no access today");
}

#[test]
fn a_section_of_the_future_is_kept_by_its_number() {
    let case = Case::new();
    let body = case.deployment.spec_body(5, 5, spec("new"));
    let mut bytes = body.encode_to_vec();
    // Field 6 once more, as an encoder may split a message: a spec with only section 9 in it.
    bytes.extend([6 << 3 | 2, 4, 9 << 3 | 2, 2, 1, 2]);
    let delivered = DesiredState {
        signature: Some(case.deployment.sign(Purpose::DesiredState, &bytes)),
        body: bytes.into(),
        fresh: None,
    };
    let (stored, held) = case.judge(&delivered).unwrap();
    assert_eq!(held.unknown, [9]);
    assert_eq!(from_stored(&stored).unwrap().unknown, [9]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_refused_and_none_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let case = Case::new();
        let delivered = DesiredState { body: bytes.into(), signature: None, fresh: None };
        proptest::prop_assert!(case.judge(&delivered).is_err());
    }
}
