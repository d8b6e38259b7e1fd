use model::{NodeId, PoolId};

use super::*;
use crate::Ref;

fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|err| err.to_string())
}

#[test]
fn a_reference_is_an_id_or_a_name() {
    let id = NodeId::from_uuid(uuid::Uuid::from_u128(7));
    assert_eq!(id.to_string().parse::<Ref<NodeId>>(), Ok(Ref::Id(id)));
    assert_eq!("sim-0".parse::<Ref<NodeId>>(), Ok(Ref::Name("sim-0".to_owned())));
    assert!("node_short".parse::<Ref<NodeId>>().is_err());
    assert!(id.to_string().parse::<Ref<PoolId>>().is_err());
}

#[test]
fn a_number_keeps_its_bounds() {
    assert_eq!(json::<Int<1, 3>>("3").map(Int::get), Ok(3));
    for bad in ["0", "4", "-1", "1.0", "\"2\"", "null", "99999999999999999999"] {
        assert!(json::<Int<1, 3>>(bad).is_err(), "{bad}");
    }
}

#[test]
fn text_is_counted_in_characters_and_has_no_control_characters() {
    assert!(json::<Text<1, 3>>("\"äöü\"").is_ok());
    for bad in ["\"\"", "\"abcd\"", "\"a\\u0007\"", "\"a\\n\"", "1"] {
        assert!(json::<Text<1, 3>>(bad).is_err(), "{bad}");
    }
}

#[test]
fn lists_and_objects_are_bounded() {
    assert!(json::<Many<Int<0, 9>, 2>>("[1,2]").is_ok());
    assert!(json::<Many<Int<0, 9>, 2>>("[1,2,3]").is_err());
    assert!(json::<Object<10>>("{\"a\":12}").is_ok());
    assert!(json::<Object<10>>("{\"a\":\"123456\"}").is_err());
    assert!(json::<Object<10>>("[]").is_err());
}

#[test]
fn a_time_is_written_in_utc() {
    let time = json::<Time>("\"2026-03-01T13:00:00+01:00\"").expect("it is RFC 3339");
    assert_eq!(serde_json::to_string(&time).expect("a string"), "\"2026-03-01T12:00:00Z\"");
}
