use super::*;
use crate::identity::MemoryIdentity;
use crate::link::memory::MemoryLink;
use crate::testing::{Deployment, START, at, nth};
use kit::{ManualClock, SeededRng};
use pki::SeededEntropy;
use std::sync::Mutex;
use wire::proto::agent::JoinDeferred;

struct Case {
    dir: tempfile::TempDir,
    deployment: Arc<Deployment>,
    clock: Arc<ManualClock>,
    token: JoinToken,
    /// What the gateway was asked, in order.
    asked: Arc<Mutex<Vec<JoinRequest>>>,
}

impl Case {
    fn new() -> Self {
        let deployment = Arc::new(Deployment::new(1));
        let token = JoinToken::generate(nth(3), &SeededEntropy::new(4));
        Self {
            dir: tempfile::tempdir().unwrap(),
            deployment,
            clock: Arc::new(ManualClock::at(START)),
            token,
            asked: Arc::default(),
        }
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("bcd")
    }

    /// A gateway whose nth answer is `answer(n, request)`.
    fn parts(
        &self,
        answer: impl Fn(usize, &JoinRequest) -> Result<JoinReply, LinkError> + Send + Sync + 'static,
    ) -> JoinParts {
        let asked = self.asked.clone();
        let (link, _sessions) = MemoryLink::new();
        let link = link.on_join(move |request| {
            let mut asked = asked.lock().unwrap();
            asked.push(request.clone());
            answer(asked.len(), &request)
        });
        JoinParts {
            role: Role::Node,
            hostname: "gpu-1".into(),
            agent_version: "1.0.0".into(),
            hardware_key: vec![1; 32],
            data_dir: self.data_dir(),
            join_signing_pins: vec![self.deployment.join_signing.verifying_key().pin()],
            encryption_key: self.deployment.join_decryption.encryption_key().clone(),
            encryption_key_pin: self.deployment.join_decryption.encryption_key().pin(),
            timeout: Duration::from_secs(60),
            link: Arc::new(link),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(7)),
        }
    }

    fn join(&self, parts: &JoinParts) -> Result<Joined, JoinError> {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(join(parts, &self.token))
    }

    fn accepting(&self) -> JoinParts {
        let deployment = self.deployment.clone();
        self.parts(move |_, request| Ok(accepted(&deployment, request)))
    }
}

fn accepted(deployment: &Deployment, request: &JoinRequest) -> JoinReply {
    let admitted = deployment.admit(5, Role::Node, &request.csr_der, START);
    JoinReply { outcome: Some(join_reply::Outcome::Accepted(admitted)) }
}

fn deferred(retry_after_ms: u32) -> JoinReply {
    let deferred = JoinDeferred { join_request_id: "jreq_1".into(), retry_after_ms };
    JoinReply { outcome: Some(join_reply::Outcome::Deferred(deferred)) }
}

#[test]
fn a_join_leaves_an_identity_and_needs_no_token_again() {
    let case = Case::new();
    let parts = case.accepting();
    let Joined::Now(identity) = case.join(&parts).unwrap() else { panic!("it joined before") };
    assert_eq!(identity.node_id, nth(5));
    assert!(!case.data_dir().join(JOIN_KEY_FILE).exists());
    assert!(matches!(case.join(&parts).unwrap(), Joined::Already(_)));
    assert_eq!(case.asked.lock().unwrap().len(), 1);
    assert!(joined_before(&case.data_dir(), Role::Node).unwrap().is_some());
    let err = joined_before(&case.data_dir(), Role::Site).unwrap_err();
    assert!(err.to_string().contains("a node already"), "{err}");
}

#[test]
fn the_token_travels_sealed_and_bound_to_the_request() {
    let case = Case::new();
    case.join(&case.accepting()).unwrap();
    let request = case.asked.lock().unwrap().pop().unwrap();
    let text = format!("{request:?}");
    assert!(!text.contains(&*case.token.reveal()), "the token is nowhere in the clear");
    let key = &case.deployment.join_decryption;
    let opened = pki::join::open_join(&request.sealed_token, key, &request.csr_der, at(0)).unwrap();
    assert!(opened.token.hash() == case.token.hash());
    assert_eq!(opened.hostname, "gpu-1");
    let other = pki::make_csr(&SigningKey::generate(&SeededEntropy::new(8)), "x");
    assert!(pki::join::open_join(&request.sealed_token, key, &other, at(0)).is_err());
}

#[test]
fn a_deferral_is_waited_for_with_the_same_request_key() {
    let case = Case::new();
    let deployment = case.deployment.clone();
    let parts = case
        .parts(move |n, request| Ok(if n < 4 { deferred(10_000) } else { accepted(&deployment, request) }));
    case.join(&parts).unwrap();
    let asked = case.asked.lock().unwrap();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|request| request.csr_der == asked[0].csr_der));
    assert_ne!(asked[0].sealed_token, asked[1].sealed_token, "sealed anew, with the time of the try");
}

#[test]
fn a_deferral_that_lasts_ends_with_the_timeout_and_is_taken_up_by_the_next_run() {
    let case = Case::new();
    let err = case.join(&case.parts(|_, _| Ok(deferred(7_000)))).unwrap_err();
    assert!(matches!(err, JoinError::Deferred { .. }), "{err}");
    assert!(err.to_string().contains("jreq_1"));
    let first = case.asked.lock().unwrap()[0].csr_der.clone();
    case.join(&case.accepting()).unwrap();
    assert_eq!(case.asked.lock().unwrap().last().unwrap().csr_der, first, "the same machine asks");
}

#[test]
fn a_refused_token_is_not_tried_again_and_a_busy_gateway_is() {
    let case = Case::new();
    let refused = case.parts(|_, _| Err(LinkError { refused: true, ..LinkError::new("join", "bad token") }));
    assert!(matches!(case.join(&refused), Err(JoinError::Link(_))));
    assert_eq!(case.asked.lock().unwrap().len(), 1);
    let deployment = case.deployment.clone();
    let busy = case.parts(move |n, request| match n {
        2 => Err(LinkError { pushback: Some(Duration::from_secs(11)), ..LinkError::new("join", "busy") }),
        _ => Ok(accepted(&deployment, request)),
    });
    let before = case.clock.monotonic();
    case.join(&busy).unwrap();
    assert_eq!(case.clock.monotonic() - before, Duration::from_secs(11));
}

#[test]
fn nothing_is_asked_with_a_key_that_is_not_the_pinned_one() {
    let case = Case::new();
    let mut parts = case.accepting();
    parts.encryption_key_pin = case.deployment.join_signing.verifying_key().pin();
    assert!(matches!(case.join(&parts), Err(JoinError::EncryptionKey { .. })));
    assert!(case.asked.lock().unwrap().is_empty());
}

#[test]
fn an_answer_that_nobody_pinned_signed_leaves_no_identity() {
    let case = Case::new();
    let parts = case.parts(|_, request| Ok(accepted(&Deployment::new(2), request)));
    assert!(matches!(case.join(&parts), Err(JoinError::Response(_))));
    assert!(joined_before(&case.data_dir(), Role::Node).unwrap().is_none());
}

#[test]
fn another_nodes_journal_is_moved_aside() {
    let case = Case::new();
    kit::fs::create_dir(&case.data_dir(), 0o700).unwrap();
    std::fs::write(case.data_dir().join(JOURNAL_FILE), b"old").unwrap();
    case.join(&case.accepting()).unwrap();
    assert!(!case.data_dir().join(JOURNAL_FILE).exists());
}

#[test]
fn a_reset_moves_everything_of_the_node_aside_and_lets_it_join_again() {
    let case = Case::new();
    let socket = case.dir.path().join("bcd.sock");
    assert_eq!(reset(&case.data_dir(), &socket, at(1)).unwrap(), [] as [PathBuf; 0]);
    case.join(&case.accepting()).unwrap();
    std::fs::write(case.data_dir().join(JOURNAL_FILE), b"old").unwrap();
    let moved = reset(&case.data_dir(), &socket, at(1)).unwrap();
    assert_eq!(moved.len(), 3, "{moved:?}");
    assert!(moved.iter().all(|path| path.exists()));
    assert!(matches!(case.join(&case.accepting()).unwrap(), Joined::Now(_)));
}

#[test]
fn a_reset_under_a_running_daemon_is_refused() {
    let case = Case::new();
    let socket = case.dir.path().join("bcd.sock");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(reset(&case.data_dir(), &socket, at(1)), Err(JoinError::Running { .. })));
}

#[test]
fn a_token_comes_from_the_environment_standard_input_or_a_private_file() {
    use std::os::unix::fs::PermissionsExt;
    let case = Case::new();
    let text = format!("  {}\n", *case.token.reveal());
    let read = |source: &TokenSource| read_token(source, &mut text.as_bytes());
    assert!(read(&TokenSource::Environment(text.clone())).unwrap().hash() == case.token.hash());
    assert!(read(&TokenSource::Stdin).unwrap().hash() == case.token.hash());
    let path = case.dir.path().join("token");
    std::fs::write(&path, &text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(read(&TokenSource::File(path.clone())).is_err());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(read(&TokenSource::File(path.clone())).unwrap().hash() == case.token.hash());
    discard(&path).unwrap();
    assert!(!path.exists());
    let err = read(&TokenSource::Environment("bcjt_secret".into())).unwrap_err();
    assert!(!kit::chain(&err).contains("secret"), "{}", kit::chain(&err));
}

fn document(deployment: &Deployment) -> serde_json::Value {
    let key = deployment.join_decryption.encryption_key();
    serde_json::json!({
        "gateway": { "url": "https://gw.example.com:8443", "serverName": "gw" },
        "join": { "encryptionJwk": serde_json::from_str::<serde_json::Value>(&key.to_jwk()).unwrap() },
        "pins": {
            "servingCa": [deployment.serving_ca.pin().to_string()],
            "joinSigning": [deployment.join_signing.verifying_key().pin().to_string()],
            "joinEncryption": key.pin().to_string(),
        },
        "somethingNewer": true,
    })
}

fn pins(deployment: &Deployment) -> Pins {
    Pins {
        serving_ca: vec![deployment.serving_ca.pin()],
        join_signing: vec![deployment.join_signing.verifying_key().pin()],
        join_encryption: deployment.join_decryption.encryption_key().pin(),
    }
}

#[test]
fn a_document_that_matches_every_pin_becomes_the_configuration() {
    let case = Case::new();
    let bytes = document(&case.deployment).to_string();
    let known = well_known::check(bytes.as_bytes(), &pins(&case.deployment), case.data_dir()).unwrap();
    let path = case.dir.path().join("etc/config.toml");
    write_config(&path, &known.config, &known.encryption_key).unwrap();
    kit::fs::check_private(&path).unwrap();
    let read = crate::config::load(&path).unwrap();
    assert_eq!(read, known.config);
    assert_eq!((read.gateway.port, read.gateway.server_name.as_str()), (8443, "gw"));
    let stored = stored_encryption_key(path.parent().unwrap()).unwrap().unwrap();
    assert_eq!(stored.pin(), known.encryption_key.pin());
}

#[test]
fn a_document_that_differs_in_one_pin_is_refused() {
    let case = Case::new();
    let foreign = pins(&Deployment::new(2));
    let ours = pins(&case.deployment);
    let bytes = document(&case.deployment).to_string();
    for (flag, pins) in [
        ("--serving-ca-pin", Pins { serving_ca: foreign.serving_ca.clone(), ..ours.clone() }),
        ("--join-signing-pin", Pins { join_signing: foreign.join_signing.clone(), ..ours.clone() }),
        ("--join-encryption-pin", Pins { join_encryption: foreign.join_encryption, ..ours.clone() }),
        ("--serving-ca-pin", Pins { serving_ca: vec![], ..ours.clone() }),
    ] {
        let err = well_known::check(bytes.as_bytes(), &pins, case.data_dir()).unwrap_err();
        assert!(err.to_string().ends_with(flag), "{err}");
    }
    let mut swapped = document(&case.deployment);
    let other = Deployment::new(2);
    swapped["join"]["encryptionJwk"] =
        serde_json::from_str(&other.join_decryption.encryption_key().to_jwk()).unwrap();
    assert!(well_known::check(swapped.to_string().as_bytes(), &ours, case.data_dir()).is_err());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn any_document_is_refused_and_none_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let pins = pins(&Deployment::new(1));
        proptest::prop_assert!(well_known::check(&bytes, &pins, "/x".into()).is_err());
    }
}

#[test]
fn a_memory_identity_is_an_identity_store() {
    let store = MemoryIdentity::default();
    assert!(store.load().unwrap().is_none());
    store.store(&Deployment::new(1).identity(5)).unwrap();
    assert!(store.load().unwrap().is_some());
}
