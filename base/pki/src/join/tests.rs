use proptest::prelude::*;

use super::*;
use crate::csr::make_csr;
use crate::testing::at;
use crate::{SeededEntropy, SigningKey};

struct Setup {
    join_key: DecryptionKey,
    node_key: SigningKey,
    csr: Vec<u8>,
    payload: JoinPayload,
}

fn setup() -> Setup {
    let entropy = SeededEntropy::new(1);
    let node_key = SigningKey::generate(&entropy);
    let id = format!("jt_{:0>26}", 3).parse().unwrap();
    Setup {
        join_key: DecryptionKey::generate(&entropy),
        csr: make_csr(&node_key, "host-1"),
        node_key,
        payload: JoinPayload {
            token: JoinToken::generate(id, &entropy),
            issued_at: at(0),
            hostname: "host-1.example.test".to_owned(),
            role: Role::Site,
        },
    }
}

fn sealed(setup: &Setup) -> String {
    seal_join(&setup.payload, &setup.csr, setup.join_key.encryption_key(), &SeededEntropy::new(2))
}

#[test]
fn a_join_opens_beside_its_csr() {
    let setup = setup();
    let request = open_join(&sealed(&setup), &setup.join_key, &setup.csr, at(30)).unwrap();
    assert_eq!(request.token.hash(), setup.payload.token.hash());
    assert_eq!((request.role, request.hostname.as_str()), (Role::Site, "host-1.example.test"));
    assert_eq!((&request.key, request.issued_at), (setup.node_key.verifying_key(), at(0)));
}

#[test]
fn a_relayed_token_under_another_csr_is_refused() {
    let setup = setup();
    let thief = make_csr(&SigningKey::generate(&SeededEntropy::new(66)), "host-1");
    let refused = open_join(&sealed(&setup), &setup.join_key, &thief, at(30)).unwrap_err();
    assert_eq!(refused, JoinRefused::OtherCsr);
}

#[test]
fn a_join_is_taken_ten_minutes_either_way() {
    let setup = setup();
    let tick = Duration::from_micros(1);
    let end = at(0).saturating_add(JOIN_AGE_MAX);
    let start = at(0).saturating_sub(JOIN_AGE_MAX);
    for (when, taken) in
        [(start, true), (end, true), (start.saturating_sub(tick), false), (end.saturating_add(tick), false)]
    {
        let opened = open_join(&sealed(&setup), &setup.join_key, &setup.csr, when);
        assert_eq!(opened.is_ok(), taken, "at {when}: {:?}", opened.err());
    }
}

#[test]
fn a_join_sealed_to_another_key_is_refused() {
    let setup = setup();
    let other = DecryptionKey::generate(&SeededEntropy::new(8));
    let refused = open_join(&sealed(&setup), &other, &setup.csr, at(0)).unwrap_err();
    assert_eq!(refused, JoinRefused::Sealed(OpenError::OtherRecipient));
}

#[test]
fn a_csr_that_proves_nothing_is_refused() {
    let setup = setup();
    let mut csr = setup.csr.clone();
    *csr.last_mut().unwrap() ^= 1;
    assert!(matches!(open_join(&sealed(&setup), &setup.join_key, &csr, at(0)), Err(JoinRefused::Csr(_))));
}

#[test]
fn the_payload_is_strict() {
    let setup = setup();
    let good = format!(
        "{{\"v\":1,\"token\":\"{}\",\"csrSha256\":\"{}\",\"issuedAt\":\"{}\",\"hostname\":\"h\",\"role\":\"node\"}}",
        *setup.payload.token.reveal(),
        hex::encode(csr_sha256(&setup.csr)),
        at(0)
    );
    let open = |text: &str| {
        let to = setup.join_key.encryption_key();
        let sealed =
            seal::seal(text.as_bytes(), to, &to.key_id().to_string(), &SeededEntropy::new(4)).unwrap();
        open_join(&sealed, &setup.join_key, &setup.csr, at(0)).map(|_| ())
    };
    assert_eq!(open(&good), Ok(()));
    for (from, to) in [
        ("\"v\":1", "\"v\":2"),
        ("\"v\":1", "\"v\":1,\"x\":1"),
        ("\"role\":\"node\"", "\"role\":\"root\""),
        ("\"hostname\":\"h\"", "\"hostname\":\"\""),
        ("\"hostname\":\"h\"", "\"hostname\":\"a\\nb\""),
        ("bcjt_", "bct_"),
        ("\"csrSha256\":\"", "\"csrSha256\":\"A"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good);
        let refused = open(&text).unwrap_err();
        assert!(matches!(refused, JoinRefused::Malformed(_)), "{to}: {refused:?}");
        let shown = format!("{refused} {refused:?}");
        assert!(!shown.contains(&setup.payload.token.reveal()[40..50]), "{shown}");
    }
    let long = good.replacen("\"h\"", &format!("\"{}\"", "h".repeat(JOIN_PAYLOAD_BYTES_MAX)), 1);
    assert!(matches!(open(&long), Err(JoinRefused::Malformed(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn opening_never_panics(text in ".{0,200}") {
        let setup = setup();
        prop_assert!(open_join(&text, &setup.join_key, &setup.csr, at(0)).is_err());
        let to = setup.join_key.encryption_key();
        let sealed = seal::seal(text.as_bytes(), to, &to.key_id().to_string(), &SeededEntropy::new(4)).unwrap();
        prop_assert!(open_join(&sealed, &setup.join_key, &setup.csr, at(0)).is_err());
    }
}
