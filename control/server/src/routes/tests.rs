use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{bearer, is_json, trace_id};

fn headers(name: &'static str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_str(value).expect("a header of the test"));
    headers
}

#[test]
fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
    assert_eq!(bearer(&headers("authorization", "Bearer bct_x")), Some("bct_x"));
    assert_eq!(bearer(&headers("authorization", "bearer  bct_x ")), Some("bct_x"));
    for other in ["Basic abc", "bct_x", "Bearer"] {
        assert_eq!(bearer(&headers("authorization", other)), None, "{other}");
    }
    assert_eq!(bearer(&HeaderMap::new()), None);
}

#[test]
fn json_is_told_by_its_media_type_alone() {
    for yes in ["application/json", "Application/JSON; charset=utf-8"] {
        assert!(is_json(&headers("content-type", yes)), "{yes}");
    }
    for no in ["text/plain", "application/jsonx", "application/x-www-form-urlencoded", ""] {
        assert!(!is_json(&headers("content-type", no)), "{no}");
    }
}

#[test]
fn a_trace_is_taken_from_a_valid_traceparent_only() {
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let valid = format!("00-{id}-00f067aa0ba902b7-01");
    assert_eq!(trace_id(&headers("traceparent", &valid)).as_deref(), Some(id));
    for invalid in [
        format!("ff-{id}-00f067aa0ba902b7-01"),
        format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
        format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
        "00-1234-00f067aa0ba902b7-01".to_owned(),
        "garbage".to_owned(),
    ] {
        assert_eq!(trace_id(&headers("traceparent", &invalid)), None, "{invalid}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_header_is_read_or_ignored(value in "[ -~]{0,80}") {
        for name in ["traceparent", "authorization", "content-type"] {
            let headers = headers(name, &value);
            let _ = (trace_id(&headers), bearer(&headers), is_json(&headers));
        }
    }
}
