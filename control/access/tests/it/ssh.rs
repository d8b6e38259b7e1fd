//! SSH certificates for nodes, from the call to what the node is told.

use access::SshSpec;
use kernel::ports::node::SpecContributor;
use kernel::testing::{self, Told};
use model::SshCertId;
use pki::ssh::SshPublicKey;
use serde_json::{Value, json};
use store::Op;
use wire::proto::agent::AccessSection;

use crate::world::{Token, World, ssh_ca};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti ada@desk";
const ISSUE: &str = "nodes.issueSshCert";

impl World {
    async fn with_accounts(accounts: Value) -> World {
        let world = World::new().await;
        world.set_accounts(accounts).await;
        world
    }

    async fn set_accounts(&self, accounts: Value) {
        let policy = json!({ "sshAccounts": accounts });
        self.db.batch(&format!("UPDATE pools SET policy = '{policy}'")).await;
    }

    fn cert(&self) -> Value {
        json!({ "node": "node-1", "account": "root", "publicKey": KEY, "reason": "disk full" })
    }

    async fn issue(&self) -> Value {
        self.call(ISSUE, self.cert()).await.ok()
    }

    /// What the node is to be told.
    async fn section(&self) -> Option<AccessSection> {
        let node = self.node;
        let part = self.db.store.tx(Op::new("test"), |tx| Box::pin(SshSpec.part(tx, node))).await;
        part.expect("the rows are there").access
    }

    /// Whether the node's spec is to be looked at, which is forgotten by asking.
    async fn spec_woken(&self) -> bool {
        let woken = "SELECT count(*) FROM work_wake_batches WHERE queue = 'node-spec'";
        let woken = self.db.scalar_i64(woken).await > 0;
        self.db.batch("DELETE FROM work_wake_batches WHERE queue = 'node-spec'").await;
        woken
    }

    async fn cert_events(&self) -> String {
        let events = "SELECT coalesce(string_agg(substr(kind, 15), ' ' ORDER BY batch_id, place), '') FROM outbox_events
                      WHERE kind LIKE 'node.ssh-cert-%'";
        self.db.scalar_text(events).await
    }
}

fn id_of(issued: &Value) -> SshCertId {
    issued["cert"]["id"].as_str().expect("it has an id").parse().expect("it is one")
}

fn serial_of(issued: &Value) -> String {
    issued["cert"]["serial"].as_str().expect("it has a serial").to_owned()
}

#[tokio::test]
async fn a_certificate_is_for_one_account_of_one_node_and_for_a_while() {
    let world = World::with_accounts(json!(["root", "ops"])).await;
    let mut request = world.cert();
    request["ttlMinutes"] = 15.into();
    request["sourceAddresses"] = json!(["10.0.0.0/24"]);
    let issued = world.call(ISSUE, request).await.ok();
    let (cert, line) = (&issued["cert"], issued["certificate"].as_str().unwrap());
    assert!(line.starts_with("ssh-ed25519-cert-v01@openssh.com "), "{line}");
    assert_eq!(cert["principals"], json!([format!("root@{}", world.node)]));
    assert_eq!((&cert["state"], &cert["reason"]), (&"valid".into(), &"disk full".into()));
    assert_eq!((&cert["node"]["name"], &cert["issuedTo"]["name"]), (&"node-1".into(), &"ada".into()));
    let key: SshPublicKey = KEY.parse().unwrap();
    assert_eq!(cert["keyFingerprint"], key.fingerprint());
    let minutes = "SELECT extract(epoch FROM valid_before - created_at)::bigint FROM ssh_certs";
    let seconds = world.db.scalar_i64(minutes).await;
    assert!((880..=900).contains(&seconds), "{seconds}");
    let [told] = &world.section().await.unwrap().accounts[..1] else { panic!("one account at least") };
    assert_eq!((told.account.as_str(), told.principals.len()), ("root", 1));
    assert_eq!(told.principals[0], format!("root@{}", world.node));
    assert_eq!(world.section().await.unwrap().accounts.len(), 2);
    assert_eq!(world.cert_events().await, "issued");
    let entry = "SELECT count(*) FROM audit WHERE action = 'compute:nodes:issueSshCert' AND outcome = 'ok'";
    let audited = world.db.scalar_text("SELECT string_agg(action || ' ' || resource, ',') FROM audit").await;
    assert_eq!(world.db.scalar_i64(entry).await, 1, "{audited}");
    let said = format!(
        "{issued}{}",
        world.db.scalar_text("SELECT string_agg(data::text, '') FROM outbox_events").await
    );
    assert!(said.contains("disk full") && said.contains(&serial_of(&issued)), "{said}");
}

#[tokio::test]
async fn what_is_no_good_public_key_is_refused_by_its_field() {
    let world = World::with_accounts(json!(["root"])).await;
    let private =
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n";
    let rsa_1024 = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC71tWTOJCsWnvVuVEn+mmYIbH2dEC0uj5EPRbC+keobFg6LDg7qbli2zViPrymuyyfxcoYpUXgFJ/COSffwzmaw/TMVm7tjtTt/Qz9GvR4E//PvzB4w+t1cYbU+oJfQyVO8xbVkJmUgyuhB56o/w17uvxq29N9l9BE+vsSYCMAFw==";
    let cases = [
        ("publicKey", json!(private), "private key"),
        ("publicKey", json!(format!("{KEY}\n{KEY}")), "control characters"),
        ("publicKey", json!(format!("command=\"id\" {KEY}")), "without options"),
        ("publicKey", json!(""), "1 to 8192"),
        ("publicKey", json!("ssh-ed25519 AAAA"), "public key"),
        ("publicKey", json!(rsa_1024), "1024 bits"),
        ("account", json!("Root"), "an account is"),
        ("account", json!("a b"), "an account is"),
        ("ttlMinutes", json!(0), "from 1 to 720"),
        ("ttlMinutes", json!(721), "from 1 to 720"),
        ("reason", json!(""), "1 to 200"),
        ("sourceAddresses", json!(["10.0.0.1/24"]), "first address"),
    ];
    for (field, value, said) in cases {
        let mut request = world.cert();
        request[field] = value;
        let told = world.call(ISSUE, request.clone()).await;
        assert_eq!(told.code(), "INVALID_INPUT", "{request}: {}", told.body);
        let body = told.body.to_string();
        assert!(body.contains(&format!("/{field}")) && body.contains(said), "{field}: {body}");
        assert!(!body.contains("b3BlbnNzaC1rZXktdjEA"), "{body}");
    }
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM ssh_certs").await, 0);
}

#[tokio::test]
async fn nobody_is_certified_for_what_is_not_theirs_or_not_meant_for_it() {
    let world = World::new().await;
    let refused = world.call(ISSUE, world.cert()).await;
    assert_eq!(refused.code(), "INVALID_STATE", "its pool names no accounts: {}", refused.body);
    assert!(world.section().await.is_none(), "and its sshd is left alone");
    world.set_accounts(json!(["ops"])).await;
    let refused = world.call(ISSUE, world.cert()).await;
    assert!(
        refused.code() == "INVALID_STATE" && refused.body.to_string().contains("ops"),
        "{}",
        refused.body
    );
    world.set_accounts(json!(["root"])).await;
    let mut other = world.cert();
    other["node"] = "node-2".into();
    assert_eq!(world.call(ISSUE, other).await.code(), "NOT_FOUND");
    world.change(|doors| doors.deny("compute:nodes:issueSshCert"));
    assert_eq!(world.call(ISSUE, world.cert()).await.code(), "ACCESS_DENIED");
    world.change(|doors| doors.deny("compute:nodes:get"));
    assert_eq!(world.call(ISSUE, world.cert()).await.code(), "NOT_FOUND");
    world.change(|doors| doors.denied = [].into());
    world.db.batch("UPDATE nodes SET pool_id = NULL, state = 'joined'").await;
    assert_eq!(world.call(ISSUE, world.cert()).await.code(), "INVALID_STATE", "it is in no pool");
    let without = world.with_ssh_ca(None).await;
    assert_eq!(testing::invoke(&without, Some("token"), ISSUE, world.cert()).await.code(), "UNSUPPORTED");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM ssh_certs").await, 0);
}

#[tokio::test]
async fn there_are_so_many_certificates_of_a_node_and_no_more() {
    let world = World::with_accounts(json!(["root"])).await;
    world.issue().await;
    let more = |count: i64, user: &str| {
        format!(
            "INSERT INTO ssh_certs SELECT gen_random_uuid(), 1000 + (SELECT count(*) FROM ssh_certs) + n, ca_key, node_id, tenant_id,
               account, key_fingerprint, {user}, token_id, source_ip, 'more', created_at, valid_before
             FROM (SELECT * FROM ssh_certs WHERE reason = 'disk full' LIMIT 1) c, generate_series(1, {count}) n"
        )
    };
    world.db.batch(&more(31, "user_id")).await;
    let full = world.call(ISSUE, world.cert()).await;
    assert_eq!(full.code(), "RATE_LIMITED", "32 of one user: {}", full.body);
    // Those of another, and the whole node is full for everybody.
    let user = "INSERT INTO users (user_id, tenant_id, kind, name)
                SELECT gen_random_uuid(), tenant_id, kind, 'eve' FROM users LIMIT 1";
    world.db.batch(user).await;
    world
        .db
        .batch("UPDATE ssh_certs SET over_at = compute_now() WHERE serial > 1000 AND serial < 1020")
        .await;
    world.issue().await;
    world.db.batch(&more(250, "(SELECT user_id FROM users WHERE name = 'eve')")).await;
    assert_eq!(world.call(ISSUE, world.cert()).await.code(), "RATE_LIMITED");
}

#[tokio::test]
async fn a_revoked_serial_is_told_to_its_node_until_the_certificate_is_over() {
    let world = World::with_accounts(json!(["root"])).await;
    let (kept, taken) = (world.issue().await, world.issue().await);
    world.spec_woken().await;
    let serial = json!({ "serial": serial_of(&taken) });
    let told = world.call("nodes.revokeSshCert", serial.clone()).await.ok();
    assert_eq!((&told["state"], &told["revokeReason"]), (&"revoked".into(), &"revoked-by-call".into()));
    assert!(world.spec_woken().await, "the node is to be told");
    world.call("nodes.revokeSshCert", serial.clone()).await.ok();
    assert!(!world.spec_woken().await, "once");
    assert_eq!(world.cert_events().await, "issued issued revoked");
    let revoked = world.section().await.unwrap().revoked_serials;
    assert_eq!(revoked, [serial_of(&taken).parse::<u64>().unwrap()]);

    let listed = world.call("nodes.listSshCerts", json!({ "node": "node-1" })).await.ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert_eq!(listed["items"][0]["serial"], serial_of(&kept).as_str());
    let all = json!({ "includeEnded": true, "limit": 1 });
    let listed = world.call("nodes.listSshCerts", all).await.ok();
    assert_eq!(listed["items"][0]["serial"], serial_of(&taken).as_str());
    assert!(listed["cursor"].is_string());

    // The other expires: that is nothing to tell a node.
    world.db.batch("UPDATE ssh_certs SET valid_before = compute_now() - interval '1 minute'").await;
    world.run_passes().await;
    assert_eq!(world.section().await.unwrap().revoked_serials.len(), 1, "a node's clock may be behind");
    let late = world.call("nodes.revokeSshCert", json!({ "serial": serial_of(&kept) })).await.ok();
    assert_eq!(late["state"], "expired", "there is nothing left to revoke");
    world.spec_woken().await;
    world.db.batch("UPDATE ssh_certs SET valid_before = compute_now() - interval '1 hour'").await;
    world.run_passes().await;
    assert!(world.spec_woken().await);
    assert!(world.section().await.unwrap().revoked_serials.is_empty());
    world.run_passes().await;
    assert!(!world.spec_woken().await);

    for wrong in ["0", "007", "-1", "+1", "1e3", "9223372036854775808", "x"] {
        let told = world.call("nodes.revokeSshCert", json!({ "serial": wrong })).await;
        assert_eq!(told.code(), "INVALID_INPUT", "{wrong}: {}", told.body);
    }
    assert_eq!(world.call("nodes.revokeSshCert", json!({ "serial": "12345" })).await.code(), "NOT_FOUND");
    world.change(|doors| doors.deny("compute:nodes:revokeSshCert"));
    assert_eq!(world.call("nodes.revokeSshCert", serial.clone()).await.code(), "ACCESS_DENIED");
    world.change(|doors| doors.deny("compute:nodes:listSshCerts"));
    assert_eq!(world.call("nodes.revokeSshCert", serial).await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn who_may_not_have_it_any_more_loses_it_at_the_next_look() {
    let world = World::with_accounts(json!(["root"])).await;
    let soon = Some(std::time::Duration::from_secs(10));
    for reason in ["token-over", "not-allowed", "node-gone"] {
        let cert = id_of(&world.issue().await);
        assert_eq!(world.look_at_cert(cert).await, soon);
        world.change(|doors| doors.token = Token::Unknown);
        assert_eq!(world.look_at_cert(cert).await, soon, "nobody knows: asked again, and not taken back");
        world.change(|doors| doors.token = Token::Good);
        assert_eq!(world.section().await.unwrap().revoked_serials.len(), revoked_before(&world).await);
        world.spec_woken().await;
        world.change(|doors| match reason {
            "token-over" => doors.token = Token::Revoked,
            "not-allowed" => doors.deny(ISSUE_ACTION),
            _ => doors.node = false,
        });
        world.look_at_cert(cert).await;
        assert!(world.spec_woken().await, "{reason}");
        assert_eq!(world.look_at_cert(cert).await, None, "{reason}: it is not looked at any more");
        world.change(|doors| {
            (doors.token, doors.node) = (Token::Good, true);
            doors.denied.clear();
        });
        let why = format!("SELECT revoke_reason FROM ssh_certs WHERE cert_id = '{}'", cert.uuid());
        assert_eq!(world.db.scalar_text(&why).await, reason);
    }
    assert_eq!(world.section().await.unwrap().revoked_serials.len(), 3);
    let entries = "SELECT count(*) FROM audit WHERE action = 'compute:nodes:revokeSshCert'";
    assert_eq!(world.db.scalar_i64(entries).await, 3);
    assert_eq!(world.cert_events().await, "issued revoked issued revoked issued revoked");
}

const ISSUE_ACTION: &str = "compute:nodes:issueSshCert";

async fn revoked_before(world: &World) -> usize {
    let count = "SELECT count(*) FROM ssh_certs WHERE revoked_at IS NOT NULL";
    usize::try_from(world.db.scalar_i64(count).await).expect("a count")
}

#[tokio::test]
async fn a_key_that_was_replaced_is_trusted_while_a_certificate_of_it_is_good() {
    let world = World::with_accounts(json!(["root"])).await;
    let first = world.section().await.unwrap().ssh_ca_keys;
    let before = world.issue().await;
    world.spec_woken().await;
    let next = world.with_ssh_ca(Some(ssh_ca(2))).await;
    assert!(world.spec_woken().await, "nodes hear of the new key");
    world.with_ssh_ca(Some(ssh_ca(2))).await;
    assert!(!world.spec_woken().await, "once, however many processes start");
    world.run_passes().await;
    let both = world.section().await.unwrap().ssh_ca_keys;
    assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
    // A process that was not restarted yet signs with the key before, which nodes still trust.
    let late = world.issue().await;
    let issue = |pipeline, cert| async move { testing::invoke(pipeline, Some("token"), ISSUE, cert).await };
    let told: Told = issue(&next, world.cert()).await;
    assert!(told.ok()["certificate"].is_string());

    for one in [&before, &late] {
        let serial = json!({ "serial": serial_of(one) });
        world.call("nodes.revokeSshCert", serial).await.ok();
    }
    world.spec_woken().await;
    world.run_passes().await;
    assert!(world.spec_woken().await, "no good certificate is of the key before");
    let keys = world.section().await.unwrap().ssh_ca_keys;
    assert!(keys.len() == 1 && keys != first, "{keys:?}");
    let refused = world.call(ISSUE, world.cert()).await;
    assert_eq!(refused.code(), "UNAVAILABLE", "who has the key before signs no more: {}", refused.body);
    // Put back by whoever runs the deployment.
    world.with_ssh_ca(Some(ssh_ca(1))).await;
    world.issue().await;
    world.run_passes().await;
    assert_eq!(world.section().await.unwrap().ssh_ca_keys.len(), 2);
}

#[tokio::test]
async fn a_gateway_reads_and_writes_nothing_of_it() {
    let world = World::with_accounts(json!(["root"])).await;
    world.issue().await;
    let mut config = world.db.config();
    config.role = Some("bc_gateway".to_owned());
    let store = world.db.open(config).await;
    for text in [
        "SELECT 1 FROM ssh_certs",
        "UPDATE ssh_certs SET revoked_at = NULL",
        "DELETE FROM ssh_certs",
        "SELECT 1 FROM ssh_ca_keys",
        "INSERT INTO ssh_ca_keys (public_key) VALUES ('ssh-ed25519 AAAA')",
    ] {
        let done = store.execute(&store::sql("forbidden", text), &[]).await;
        let refused = done.expect_err(text);
        assert_eq!(*refused.kind(), store::ErrorKind::InsufficientPrivilege, "{text}");
    }
}
