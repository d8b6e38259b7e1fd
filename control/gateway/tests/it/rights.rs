//! What a stolen gateway may not do with the database it can reach.

use gateway::conformance::{World, a_node_ahead_of_the_database_is_refused};
use model::NodeId;
use store::{ErrorKind, Store, sql};
use testkit::TestDb;
use uuid::Uuid;

use crate::postgres::{Postgres, restore_claims};

async fn as_gateway(db: &TestDb) -> Store {
    let mut config = db.config();
    config.role = Some("bc_gateway".to_owned());
    db.open(config).await
}

#[tokio::test]
async fn a_gateway_may_not_write_what_is_not_its_own() {
    let world = Postgres::under(Some("bc_gateway")).await;
    world.add_node(NodeId::from_uuid(Uuid::from_u128(7)), "00ff".to_owned()).await;
    let store = as_gateway(&world.db).await;
    let forbidden = [
        "UPDATE tokens SET revoked_at = NULL",
        "INSERT INTO tokens (token_id) VALUES (gen_random_uuid())",
        "SELECT secret_sha256 FROM tokens",
        "UPDATE policies SET document = '{}'",
        "INSERT INTO policies (policy_id) VALUES (gen_random_uuid())",
        "INSERT INTO bindings (binding_id) VALUES (gen_random_uuid())",
        "DELETE FROM bindings",
        "UPDATE users SET disabled_at = NULL",
        "INSERT INTO node_certs (serial) VALUES ('aa')",
        "UPDATE node_certs SET revoked_at = NULL",
        "DELETE FROM node_certs",
        "INSERT INTO commands (command_id) VALUES (gen_random_uuid())",
        "UPDATE commands SET body = 'x'",
        "UPDATE commands SET signature = 'x'",
        "UPDATE commands SET kind = 'node.reboot'",
        "UPDATE commands SET not_after = 'infinity'",
        "UPDATE commands SET node_id = gen_random_uuid()",
        "UPDATE commands SET handled_at = compute_now()",
        "DELETE FROM commands",
        "UPDATE nodes SET spec_body = 'x'",
        "UPDATE nodes SET spec_signature = 'x'",
        "UPDATE nodes SET generation = 99",
        "UPDATE nodes SET state = 'ready'",
        "UPDATE nodes SET quarantined_at = NULL",
        "INSERT INTO nodes (node_id) VALUES (gen_random_uuid())",
        "DELETE FROM nodes",
        "UPDATE restore_claims SET proved = true",
        "INSERT INTO restore_claims (node_id, generation, epoch, body, signature, proved)
         VALUES (gen_random_uuid(), 1, 1, 'x', 'x', true)",
        "UPDATE join_inbox SET reply = 'x'",
        "INSERT INTO join_inbox (inbox_id, kind, gateway_id, request, source_ip, reply)
         VALUES (gen_random_uuid(), 'join', gen_random_uuid(), 'x', '', 'x')",
        "SELECT request FROM join_inbox",
        "SELECT * FROM join_tokens",
        "UPDATE join_tokens SET uses = 0",
        "UPDATE join_requests SET state = 'approved'",
        "INSERT INTO trust_bundles (version, message) VALUES (99, 'x')",
        "UPDATE deployment SET observe_only = false",
        "UPDATE node_events SET handled_at = compute_now()",
        "DELETE FROM node_events",
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         VALUES (ARRAY[gen_random_uuid()], ARRAY['x'], ARRAY['x'], ARRAY[NULL::uuid], ARRAY['{}'::jsonb])",
        "INSERT INTO audit (audit_id) VALUES (gen_random_uuid())",
        "DELETE FROM work",
        "UPDATE work SET payload = '{}'",
        "UPDATE leases SET epoch = 1",
        "UPDATE pools SET policy = '{}'",
        "SELECT sealed FROM secrets",
        "INSERT INTO secrets (secret_id) VALUES (gen_random_uuid())",
        "UPDATE secrets SET tenant_id = gen_random_uuid()",
        "UPDATE instances SET user_data_secret = gen_random_uuid()",
        "DELETE FROM secret_requests",
        "CREATE TABLE public.mine (x int)",
    ];
    let mut allowed = Vec::new();
    for text in forbidden {
        match store.execute(&sql("forbidden", text), &[]).await {
            Err(err) if *err.kind() == ErrorKind::InsufficientPrivilege => {}
            other => allowed.push(format!("{text}: {other:?}")),
        }
    }
    assert!(allowed.is_empty(), "{}", allowed.join("\n"));
}

#[tokio::test]
async fn a_claim_to_be_ahead_is_left_for_a_worker_and_no_judgement_is_touched() {
    let world = Postgres::under(Some("bc_gateway")).await;
    a_node_ahead_of_the_database_is_refused(&world).await;
    let claims = restore_claims(&world.db).await;
    assert_eq!(claims.len(), 2, "{claims:?}");
}
