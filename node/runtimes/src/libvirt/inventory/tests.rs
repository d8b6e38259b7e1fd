use proptest::prelude::*;

use super::*;

const LIST: &str = "\
00000000-0000-0000-0000-000000000007 bc-inst_00000000000000000000000007  
5d0f3c5e-6b2a-4a63-9d4c-2f7a9a5b1c11 a stranger's own               
5d0f3c5e-6b2a-4a63-9d4c-2f7a9a5b1c12 bc-inst_00000000000000000000000008
5d0f3c5e-6b2a-4a63-9d4c-2f7a9a5b1c13 bc-canary

";
const STATS: &str = "\
Domain: 'bc-inst_00000000000000000000000007'
  state.state=1
  state.reason=1
  vcpu.current=2
  vcpu.maximum=4
  vcpu.0.state=1
  balloon.current=524288
  balloon.maximum=1048576

Domain: 'a stranger's own'
  state.state=5
  state.reason=3
  vcpu.maximum=1
  balloon.maximum=2048

Domain: 'bc-inst_00000000000000000000000008'
  state.state=5
  state.reason=1
  balloon.maximum=2048

Domain: 'bc-canary'
  state.state=3
  state.reason=1

";

fn id(bits: u128) -> InstanceId {
    InstanceId::from_uuid(uuid::Uuid::from_u128(bits))
}

fn seen() -> Inventory {
    merge(ids(LIST).expect("a list"), &statistics(STATS).expect("statistics"), vec![id(7), id(9)])
}

#[test]
fn a_domain_is_ours_by_its_name_and_its_uuid() {
    let ours = seen().get(id(7)).expect("it is ours").expect("it is there");
    let expected = Domain {
        name: "bc-inst_00000000000000000000000007".into(),
        instance: Some(id(7)),
        state: DomainState::Running,
        vcpus: 4,
        memory_bytes: 1 << 30,
        place: MemoryPlace::default(),
    };
    assert_eq!(ours, Found { domain: expected, is_defined: true });
    // The name alone may be anybody's.
    assert_eq!(seen().get(id(8)), Err("bc-inst_00000000000000000000000008".into()));
    assert_eq!(seen().get(id(10)), Ok(None));
    let states: Vec<_> = seen().domains().into_iter().map(|domain| (domain.name, domain.state)).collect();
    assert_eq!(
        states,
        [
            ("a stranger's own".to_owned(), DomainState::Crashed),
            (name::domain(id(7)), DomainState::Running),
            (name::domain(id(8)), DomainState::Stopped),
            (name::domain(id(9)), DomainState::Incomplete),
        ]
    );
}

#[test]
fn files_without_a_domain_are_an_incomplete_instance() {
    let found = seen().get(id(9)).expect("it is ours").expect("it is there");
    assert_eq!(found.domain.state, DomainState::Incomplete);
    assert!(!found.is_defined);
}

#[test]
fn an_answer_that_is_none_is_no_empty_list() {
    assert_eq!(ids("\n").expect("an empty list"), BTreeMap::new());
    assert_eq!(statistics("").expect("no statistics"), BTreeMap::new());
    for odd in ["no uuid here", "5d0f3c5e-6b2a-4a63-9d4c-2f7a9a5b1c11", "error"] {
        assert!(ids(odd).is_err(), "{odd}");
    }
    for odd in ["Domain: 'a'\n", "Domain: 'a'\n  state.state=9\n", "Domain: 'a'\n  state.state=x\n"] {
        assert!(statistics(odd).is_err(), "{odd}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_answer_makes_it_panic(text in "(Domain: '[a-z]{0,3}'\n|  [a-z.]{1,12}=[0-9]{0,20}\n|.{0,20}\n){0,8}") {
        let _ = ids(&text);
        let _ = statistics(&text);
    }
}
