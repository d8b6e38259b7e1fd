use super::*;

#[test]
fn an_id_reads_back_from_its_text() {
    let id = NodeId::from_uuid(Uuid::from_u128(0x0188_bac7_4afa_78aa_bc3b_bd1e_ef28_d881));
    assert_eq!(id.to_string(), "node_01h2xcejqtf2nbrexx3vqjhp41");
    assert_eq!(id.to_string().parse::<NodeId>(), Ok(id));
}

#[test]
fn the_extremes_of_the_range_survive() {
    for value in [0, u128::MAX] {
        let id = PoolId::from_uuid(Uuid::from_u128(value));
        assert_eq!(id.to_string().parse::<PoolId>(), Ok(id));
    }
}

#[test]
fn an_id_of_another_kind_is_refused_by_name() {
    let err = "pool_01h2xcejqtf2nbrexx3vqjhp41".parse::<NodeId>().unwrap_err();
    assert_eq!(
        err.to_string(),
        "\"pool_01h2xcejqtf2nbrexx3vqjhp41\" is not a node id: one starts with \"node_\""
    );
}

#[test]
fn malformed_suffixes_are_refused() {
    for text in [
        "node_",
        "node_01h2xcejqtf2nbrexx3vqjhp4",
        "node_01h2xcejqtf2nbrexx3vqjhp411",
        "node_81h2xcejqtf2nbrexx3vqjhp41",
        "node_01H2XCEJQTF2NBREXX3VQJHP41",
        "node_01h2xcejqtf2nbrexx3vqjhpu1",
        "node_01h2xcejqtf2nbrexx3vqjhé1",
    ] {
        assert!(matches!(text.parse::<NodeId>(), Err(IdError::Malformed { .. })), "{text}");
    }
}

#[test]
fn no_two_kinds_share_a_prefix() {
    for (at, (kind, prefix)) in ID_KINDS.iter().enumerate() {
        assert!(prefix.ends_with('_'), "{kind}");
        for (other, other_prefix) in &ID_KINDS[at + 1..] {
            assert_ne!(prefix, other_prefix, "{kind} and {other}");
        }
    }
}

#[test]
fn a_kind_has_the_article_that_is_spoken_before_it() {
    let an: Vec<&str> = ID_KINDS.iter().map(|(kind, _)| *kind).filter(|kind| article(kind) == "an").collect();
    let wanted =
        ["allocation", "instance", "SSH certificate", "image", "event", "audit entry", "incarnation"];
    assert_eq!(an, wanted);
    let err = "node_01h2xcejqtf2nbrexx3vqjhp41".parse::<InstanceId>().unwrap_err();
    assert!(err.to_string().contains("is not an instance id"), "{err}");
    let err = "sshc_short".parse::<SshCertId>().unwrap_err();
    assert!(err.to_string().contains("is not an SSH certificate id"), "{err}");
}
