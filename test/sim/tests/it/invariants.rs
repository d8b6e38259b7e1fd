//! Each invariant can fail: broken on purpose in a world that was sound, it is named.

use model::{CommandId, CommandKind, JournalId, Timestamp};
use serde_json::json;
use sim::invariants::{Canary, Checker, Invariant, Violation, canonical_state, canonical_tables};
use sim::world::{EffectView, HoldView, NodeView, ReleaseView, World};
use store::{Store, sql};
use uuid::Uuid;

use crate::cloud::{Cloud, run_all};

mod hosts;

/// Rows, and what is done to them. The tables are as they were before once the case is over.
struct Case {
    breaks: Invariant,
    tables: &'static [&'static str],
    by: &'static str,
}

const fn case(breaks: Invariant, tables: &'static [&'static str], by: &'static str) -> Case {
    Case { breaks, tables, by }
}

/// Longer than the longest bound of what may last a while.
const LONG_SECONDS: u64 = 30 * 60;

const CASES: &[Case] = &[
    case(
        Invariant::AtomsBookedOnce,
        &["allocations"],
        "UPDATE allocations SET atoms = (SELECT atoms FROM allocations WHERE ended_at IS NULL ORDER BY 1 LIMIT 1),
           node_id = (SELECT node_id FROM allocations WHERE ended_at IS NULL ORDER BY atoms LIMIT 1) WHERE ended_at IS NULL",
    ),
    case(
        Invariant::EffectsOnce,
        &["outbox_batches"],
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         SELECT ARRAY[gen_random_uuid()], ARRAY[kind], ARRAY[subject], ARRAY[tenant_id], ARRAY[data] FROM events
         WHERE kind = 'reservation.active'",
    ),
    case(
        Invariant::EffectsOnce,
        &["outbox_batches"],
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         SELECT ARRAY[gen_random_uuid()], ARRAY['command.settled'], ARRAY['command/cmd_x'], ARRAY[NULL::uuid], ARRAY['{}'::jsonb]
         FROM generate_series(1, 2)",
    ),
    case(Invariant::SettledOnce, &["commands"], "UPDATE commands SET result = 'other'"),
    case(Invariant::SettledOnce, &["commands"], "UPDATE commands SET state = 'failed'"),
    case(Invariant::SettledOnce, &["commands"], "UPDATE commands SET state = 'running'"),
    case(
        Invariant::SettledOnce,
        &["commands"],
        "UPDATE commands SET state = 'running', settled_at = NULL, timeout_at = compute_now()",
    ),
    case(
        Invariant::BoundOrSaysWhy,
        &["reservations"],
        "UPDATE reservations SET state = 'scheduling', waiting_reason = '' WHERE state = 'active'",
    ),
    case(Invariant::BoundOrSaysWhy, &["reservations"], "UPDATE reservations SET state = 'draft' WHERE state = 'active'"),
    case(
        Invariant::BoundOrSaysWhy,
        &["reservations"],
        "UPDATE reservations SET expires_at = compute_now() WHERE state = 'active'",
    ),
    case(
        Invariant::BoundOrSaysWhy,
        &["allocations", "node_sessions"],
        "UPDATE allocations SET state = 'releasing' WHERE state = 'bound';
         UPDATE node_sessions SET last_heartbeat_at = compute_now() + interval '1 day'",
    ),
    case(Invariant::NothingGoesBack, &["nodes"], "UPDATE nodes SET generation = generation - 1 WHERE generation > 0"),
    case(Invariant::NothingGoesBack, &["node_sessions"], "UPDATE node_sessions SET session_epoch = 1"),
    case(Invariant::NothingGoesBack, &["node_sessions"], "UPDATE node_sessions SET acked_event_seq = 1"),
    case(Invariant::NothingGoesBack, &["node_status"], "UPDATE node_status SET observed_generation = 0"),
    case(Invariant::NothingGoesBack, &["gateways"], "UPDATE gateways SET epoch = epoch - 1"),
    case(Invariant::NothingGoesBack, &["leases"], "UPDATE leases SET epoch = epoch - 1"),
    case(Invariant::NothingGoesBack, &["deployment"], "UPDATE deployment SET fence = fence - 1"),
    case(Invariant::NothingGoesBack, &["node_status"], "UPDATE node_status SET observed_generation = 999"),
    case(
        Invariant::NothingGoesBack,
        &["allocations"],
        "UPDATE allocations SET ended_at = ended_at + interval '1 second' WHERE ended_at IS NOT NULL",
    ),
    case(Invariant::QuotasAreTheirRows, &["quota_holds"], "DELETE FROM quota_holds WHERE resource = 'gpu'"),
    case(Invariant::QuotasAreTheirRows, &["quota_holds"], "UPDATE quota_holds SET amount = amount + 1"),
    case(
        Invariant::QuotasAreTheirRows,
        &["quota_holds"],
        "INSERT INTO quota_holds SELECT reservation_id, tenant_id, 'reservations', 1 FROM reservations WHERE state = 'released'",
    ),
    case(Invariant::BooksAreSound, &["bookings"], "DELETE FROM bookings"),
    case(Invariant::BooksAreSound, &["host_bookings"], "UPDATE host_bookings SET cpu_millis = 1000000000"),
    case(Invariant::BooksAreSound, &["host_bookings"], "UPDATE host_bookings SET disk_bytes = disk_bytes + 1"),
    case(Invariant::BooksAreSound, &["allocations"], "UPDATE allocations SET ended_at = compute_now() WHERE ended_at IS NULL"),
    case(Invariant::AddressesAreOnes, &["ip_leases"], "DELETE FROM ip_leases"),
    case(Invariant::AddressesAreOnes, &["instance_allocations"], "UPDATE instance_allocations SET ended_at = compute_now()"),
    case(
        Invariant::AddressesAreOnes,
        &["ip_leases"],
        "DROP INDEX ip_leases_in_pool; UPDATE ip_leases SET address = '10.0.0.9'",
    ),
    case(
        Invariant::AddressesAreOnes,
        &["instances"],
        "DROP INDEX instances_one_mac;
         UPDATE instances SET instance_id = (left(instance_id::text, 26) || 'aaaaaaaaaa')::uuid",
    ),
    case(Invariant::QuotasAreTheirRows, &["instance_holds"], "DELETE FROM instance_holds WHERE resource = 'diskGiB'"),
    case(Invariant::QuotasAreTheirRows, &["instance_holds"], "UPDATE instance_holds SET amount = amount + 1"),
    case(
        Invariant::QuotasAreTheirRows,
        &["instances"],
        "UPDATE instances SET state = 'deleted', desired = 'deleted', ended_at = compute_now()",
    ),
    case(Invariant::BooksAreSound, &["instances"], "UPDATE instances SET state = 'scheduling'"),
    case(Invariant::BooksAreSound, &["instances"], "UPDATE instances SET vcpu = 3"),
    case(Invariant::HostsHaveWhatRowsSay, &["instances"], "UPDATE instances SET state = 'stopped', desired = 'stopped'"),
    case(Invariant::HostsHaveWhatRowsSay, &["instances"], "UPDATE instances SET boot = 3"),
    case(
        Invariant::HostsHaveWhatRowsSay,
        &["instance_allocations"],
        "UPDATE instance_allocations SET node_id = (SELECT node_id FROM nodes WHERE name = 'node-1')",
    ),
    case(
        Invariant::HostsHaveWhatRowsSay,
        &["instance_allocations", "node_sessions"],
        "UPDATE instance_allocations SET left_at = compute_now(), left_revision = 9;
         UPDATE node_sessions SET last_heartbeat_at = compute_now() + interval '1 day'",
    ),
    case(Invariant::HostsHaveWhatRowsSay, &["ip_leases"], "UPDATE ip_leases SET address = address + 7"),
    case(Invariant::InstancesSettle, &["instances"], "UPDATE instances SET state = 'scheduling'"),
    case(
        Invariant::InstancesSettle,
        &["instances", "node_sessions"],
        "UPDATE instances SET state = 'starting'; UPDATE node_sessions SET last_heartbeat_at = compute_now() + interval '1 day'",
    ),
    case(Invariant::NothingGoesBack, &["instances"], "UPDATE instances SET revision = revision - 1"),
    case(Invariant::SpecsSayTheRows, &["instances"], "UPDATE instances SET revision = revision + 1"),
    case(Invariant::SpecsSayTheRows, &["instances"], "UPDATE instances SET desired = 'stopped'"),
    case(Invariant::KeysMakeOneThing, &["instances"], "UPDATE instances SET name = 'once-1'"),
    case(Invariant::EventsWithTheirChange, &["instances"], "UPDATE instances SET state = 'error'"),
    case(
        Invariant::EffectsOnce,
        &["outbox_batches"],
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         SELECT ARRAY[gen_random_uuid()], ARRAY['instance.deleted'], ARRAY['instance/inst_x'], ARRAY[NULL::uuid],
           ARRAY['{\"state\": \"deleted\"}'::jsonb] FROM generate_series(1, 2)",
    ),
    case(Invariant::NoFalseUnreachable, &["nodes"], "UPDATE nodes SET state = 'unreachable'"),
    case(
        Invariant::NoFalseUnreachable,
        &["outbox_batches"],
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         VALUES (ARRAY[gen_random_uuid()], ARRAY['node.unreachable'], ARRAY['node/x'], ARRAY[NULL::uuid], ARRAY['{}'::jsonb])",
    ),
    case(
        Invariant::LoopsRest,
        &["work"],
        "INSERT INTO work (queue, key, run_at, attempts_max) VALUES ('node-spec', 'x', compute_now(), 3)",
    ),
    case(
        Invariant::LoopsRest,
        &["work"],
        "INSERT INTO work (queue, key, run_at, attempts_max) VALUES ('node-spec', 'x', compute_now() + interval '1 year', 3)",
    ),
    case(
        Invariant::LoopsRest,
        &["work_wake_batches"],
        "INSERT INTO work_wake_batches (queue, keys) VALUES ('node-spec', ARRAY['x'])",
    ),
    case(
        Invariant::LoopsRest,
        &["join_inbox"],
        "INSERT INTO join_inbox (inbox_id, kind, gateway_id, request, source_ip)
         VALUES (gen_random_uuid(), 'join', gen_random_uuid(), 'x', '192.0.2.1')",
    ),
    case(Invariant::LoopsRest, &["commands"], "UPDATE commands SET handled_at = NULL"),
    case(Invariant::LoopsRest, &["node_events"], "UPDATE node_events SET handled_at = NULL"),
    case(Invariant::EventsOnceInOrder, &["events"], "DELETE FROM events WHERE seq = 2"),
    case(Invariant::EventsOnceInOrder, &["events"], "UPDATE events SET event_id = (SELECT event_id FROM events WHERE seq = 1)"),
    case(Invariant::EventsOnceInOrder, &["event_head"], "UPDATE event_head SET seq = seq + 1"),
    case(Invariant::EventsOnceInOrder, &["events"], "UPDATE events SET kind = 'site.created' WHERE seq = 2"),
    case(
        Invariant::EventsOnceInOrder,
        &["outbox_batches"],
        "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
         VALUES (ARRAY[gen_random_uuid()], ARRAY['site.created'], ARRAY['site/x'], ARRAY[NULL::uuid], ARRAY['{}'::jsonb])",
    ),
    case(Invariant::SignedBytesStay, &["commands"], "UPDATE commands SET body = 'other'"),
    case(Invariant::SignedBytesStay, &["nodes"], "UPDATE nodes SET spec_body = spec_body || 'x'::bytea WHERE generation > 0"),
    case(Invariant::SpecsSayTheRows, &["nodes"], "UPDATE nodes SET spec_body = ''::bytea WHERE generation > 0"),
    case(
        Invariant::SpecsSayTheRows,
        &["allocations"],
        "UPDATE allocations SET allocation_id = gen_random_uuid() WHERE ended_at IS NULL",
    ),
    case(Invariant::AcknowledgedIsStored, &["node_sessions"], "UPDATE node_sessions SET acked_event_seq = 99"),
    case(
        Invariant::KeysMakeOneThing,
        &["reservations"],
        "UPDATE reservations SET name = 'once-1'",
    ),
    case(Invariant::KeysMakeOneThing, &["idempotency"], "UPDATE idempotency SET resource = 'rsv_01h0000000e00800000000000g'"),
    case(Invariant::SessionsHaveGateways, &["gateways"], "UPDATE gateways SET expires_at = compute_now()"),
    case(
        Invariant::NothingParked,
        &["work"],
        "INSERT INTO work (queue, key, run_at, attempts_max, state, parked_at)
         VALUES ('node-spec', 'x', compute_now(), 3, 'parked', compute_now())",
    ),
    case(Invariant::OwnersAreFenced, &["node_status"], "UPDATE node_status SET session_epoch = session_epoch + 100"),
    case(Invariant::EventsWithTheirChange, &["reservations"], "UPDATE reservations SET state = 'expired' WHERE state = 'released'"),
    case(
        Invariant::EventsWithTheirChange,
        &["reservations"],
        "DELETE FROM reservations WHERE state = 'released'",
    ),
    case(Invariant::SecretsStaySecret, &["audit"], "UPDATE audit SET detail = '{\"token\": \"canary-of-the-test\"}'"),
    case(Invariant::SecretsStaySecret, &["commands"], "UPDATE commands SET message = encode('canary-of-the-test', 'base64')"),
    case(Invariant::SecretsStaySecret, &["nodes"], "UPDATE nodes SET spec_body = 'a canary-of-the-test in a frame'"),
];

/// Something of everything: holds, one that has ended, a session with events and a command that went well.
async fn world() -> Cloud {
    let cloud = Cloud::new(1, 2).await;
    let process = &cloud.processes[0];
    let mut made = Vec::new();
    for at in 0..3 {
        let request = json!({ "pool": "gpu", "gpus": 1, "vcpu": 2, "memoryGiB": 4, "name": format!("once-{at}"),
            "idempotencyKey": format!("key-{at}") });
        made.push(process.call("reservations.create", request).await.ok());
    }
    cloud.settle().await;
    process.call("reservations.release", json!({ "id": made[0]["id"] })).await.ok();
    cloud.settle().await;
    hosts::instances(&cloud).await;
    run_all(
        &cloud.store,
        "INSERT INTO gateways (gateway_id, epoch, address, expires_at)
         VALUES ('00000000-0000-0000-0000-000000000007', 3, 'a:1', compute_now() + interval '10 years');
         INSERT INTO node_sessions (node_id, gateway_id, gateway_epoch, session_epoch, cert_serial, journal_id,
           incarnation_id, boot_id, acked_event_seq)
         SELECT node_id, '00000000-0000-0000-0000-000000000007', 3, 5, 'ab', node_id, node_id, 'boot-1', 2 FROM nodes;
         INSERT INTO node_events (node_id, journal_id, seq, class, report, observed_at, handled_at)
         SELECT node_id, node_id, seq, 1, 'x', compute_now(), compute_now() FROM nodes, generate_series(1, 2) AS seq",
    )
    .await;
    let node = cloud.machines[0].lock().await.node_id.uuid();
    run_all(
        &cloud.store,
        &format!(
            "UPDATE deployment SET fence = 4;
             INSERT INTO commands (command_id, node_id, kind, lane, destructive, state, body, signature, not_before, not_after,
               timeout_at, created_by, session_epoch, settled_at, handled_at, result)
             VALUES ('{node}', '{node}', 'gpu.reset', 'control', true, 'succeeded', 'body', 'signature', compute_now(),
               compute_now(), compute_now(), 'ada', 5, compute_now(), compute_now(), 'result');
             INSERT INTO audit (audit_id, principal, action, resource, decision, outcome)
             VALUES ('{node}', 'ada', 'x', 'y', 'allowed', 'ok')",
        ),
    )
    .await;
    cloud
}

/// Constraints and triggers stand between a case and its rows.
async fn defenceless(store: &Store) {
    let free = sql(
        "test_free",
        "DO $$ DECLARE t record; BEGIN
           FOR t IN SELECT conrelid::regclass AS of, conname FROM pg_constraint JOIN pg_class c ON c.oid = conrelid
             WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f') AND NOT c.relispartition LOOP
             EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', t.of, t.conname);
           END LOOP;
           FOR t IN SELECT tgrelid::regclass AS of, tgname FROM pg_trigger WHERE NOT tgisinternal LOOP
             EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, t.of);
           END LOOP;
         END $$",
    );
    store.execute(&free, &[]).await.unwrap();
}

fn named(found: &[Violation], invariant: Invariant) -> bool {
    found.iter().any(|violation| violation.invariant == invariant)
}

fn shown(found: &[Violation]) -> String {
    found.iter().map(|violation| format!("{violation}\n")).collect()
}

#[tokio::test]
async fn every_rule_of_rows_can_be_broken_and_says_so() {
    let cloud = world().await;
    let canary = || Canary::new("the test's canary", None, b"canary-of-the-test");
    let mut sound = Checker::new();
    sound.plant(canary());
    for _ in 0..2 {
        let found = cloud.violations(&mut sound, true).await;
        assert!(found.is_empty(), "a sound world:\n{}", shown(&found));
        cloud.clock.pass(LONG_SECONDS);
    }
    defenceless(&cloud.store).await;
    let mut missed = Vec::new();
    for Case { breaks, tables, by } in CASES {
        for table in *tables {
            run_all(&cloud.store, &format!("CREATE TABLE kept_{table} AS TABLE {table}")).await;
        }
        let mut checker = Checker::new();
        checker.plant(canary());
        cloud.violations(&mut checker, true).await;
        run_all(&cloud.store, by).await;
        let mut found = cloud.violations(&mut checker, true).await;
        cloud.clock.pass(LONG_SECONDS);
        found.extend(cloud.violations(&mut checker, true).await);
        if !named(&found, *breaks) {
            missed.push(format!("{by}\n  was to break {breaks}; found:\n{}", shown(&found)));
        }
        for table in *tables {
            let mend = format!(
                "DO $$ DECLARE columns text; BEGIN
                   SELECT string_agg(quote_ident(column_name), ', ') INTO columns FROM information_schema.columns
                     WHERE table_name = '{table}' AND is_generated = 'NEVER';
                   DELETE FROM {table};
                   EXECUTE format('INSERT INTO {table} (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM kept_{table}', columns, columns);
                   DROP TABLE kept_{table};
                 END $$"
            );
            run_all(&cloud.store, &mend).await;
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    let found = cloud.violations(&mut sound, true).await;
    assert!(found.is_empty(), "the cases left something behind:\n{}", shown(&found));
}

/// What the nodes show, changed, and what it breaks.
#[tokio::test]
async fn every_rule_of_nodes_can_be_broken_and_says_so() {
    let cloud = world().await;
    let (mut nodes, mut releases) = (Vec::new(), Vec::new());
    for machine in &cloud.machines {
        let machine = machine.lock().await;
        nodes.push(machine.view());
        releases.extend(machine.releases.iter().cloned());
    }
    let ask = async |checker: &mut Checker, nodes: &[NodeView], releases: &[ReleaseView]| {
        let now = Timestamp::from_millis(0);
        let world = World { store: &cloud.store, now, nodes, releases, destroyed: &[] };
        checker.every_minute(&world).await.unwrap()
    };
    let sound = ask(&mut Checker::new(), &nodes, &releases).await;
    assert!(sound.is_empty(), "a sound world:\n{}", shown(&sound));
    let held = nodes.iter().position(|node| !node.holds.is_empty()).expect("something is held");
    let effect = |kind| EffectView {
        command_id: CommandId::from_uuid(Uuid::from_u128(5)),
        kind,
        at: Timestamp::from_millis(0),
        journal_id: JournalId::from_uuid(Uuid::from_u128(6)),
        boot_id: "boot-1".to_owned(),
    };
    type Breaks<'a> = Box<dyn Fn(&mut Vec<NodeView>, &mut Vec<ReleaseView>) + 'a>;
    let cases: Vec<(Invariant, Breaks<'_>)> = vec![
        (
            Invariant::AtomsHeldOnce,
            Box::new(|nodes, _| {
                let hold = nodes[held].holds[0].clone();
                nodes[1 - held].holds.push(hold);
            }),
        ),
        (
            Invariant::AtomsHeldOnce,
            Box::new(|nodes, _| {
                let hold = nodes[held].holds[0].clone();
                let allocation_id = model::AllocationId::from_uuid(Uuid::from_u128(4));
                nodes[held].holds.push(HoldView { allocation_id, ..hold });
            }),
        ),
        (
            Invariant::EffectsOnce,
            Box::new(|nodes, _| nodes[0].effects = vec![effect(CommandKind::GpuReset); 2]),
        ),
        (Invariant::NothingGoesBack, Box::new(|nodes, _| nodes[held].marks.generation -= 1)),
        (
            Invariant::NodesHoldWhatRowsSay,
            Box::new(|nodes, _| {
                let mut hold = nodes[held].holds[0].clone();
                hold.allocation_id = model::AllocationId::from_uuid(Uuid::from_u128(4));
                hold.atoms = vec!["GPU-of-nobody".to_owned()];
                nodes[held].holds.push(hold);
            }),
        ),
        (
            Invariant::NodesHoldWhatRowsSay,
            Box::new(|nodes, _| nodes[held].holds[0].atoms = vec!["GPU-of-nobody".to_owned()]),
        ),
        (Invariant::DestroyedByIntent, Box::new(|_, releases| releases[0].intended = false)),
        (Invariant::AcknowledgedIsStored, Box::new(|nodes, _| nodes[0].acked_event_seq = 1)),
    ];
    for (breaks, by) in cases {
        let mut checker = Checker::new();
        ask(&mut checker, &nodes, &releases).await;
        let (mut broken, mut went) = (nodes.clone(), releases.clone());
        by(&mut broken, &mut went);
        let found = ask(&mut checker, &broken, &went).await;
        assert!(named(&found, breaks), "{breaks}; found:\n{}", shown(&found));
    }
    // What may be repeated, may be.
    let mut repeated = nodes.clone();
    repeated[0].effects = vec![effect(CommandKind::InventoryRefresh); 2];
    assert_eq!(ask(&mut Checker::new(), &repeated, &releases).await, []);
}

#[tokio::test]
async fn a_secret_in_a_log_is_found_in_any_of_its_forms() {
    let mut checker = Checker::new();
    let secret = [0xfb, 0xef, 0xbe, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05];
    checker.plant(Canary::new("a token", None, &secret));
    assert!(checker.scan("the log", b"nothing to see").is_empty());
    let leaks: [&[u8]; 4] = [&secret, b"x=fbefbe000102030405;", b"x=----AAECAwQF", b"x=++++AAECAwQF"];
    for text in leaks {
        assert_eq!(checker.scan("the log", text).len(), 1, "{text:?}");
    }
    assert!(checker.scan("the log", b"x=++--AAECAwQF").is_empty());
}

#[test]
fn invariants_are_numbered_from_one_and_say_what_they_ask() {
    for (at, invariant) in Invariant::ALL.iter().enumerate() {
        assert_eq!(usize::from(invariant.number()), at + 1);
        assert!(!invariant.says().is_empty() && !invariant.says().ends_with('.'));
    }
}

#[tokio::test]
async fn equal_rows_have_equal_digests_and_every_table_counts() {
    let db = testkit::db().await;
    let tables = async || canonical_tables(&db.store).await.unwrap();
    let state = async || canonical_state(&tables().await);
    let before = state().await;
    let tables = tables().await;
    assert!(
        tables.len() > 25
            && tables.contains_key("reservations")
            && !tables.keys().any(|name| name.contains("_y20"))
    );
    run_all(&db.store, "INSERT INTO sites (site_id, name) VALUES (gen_random_uuid(), 'x')").await;
    assert_ne!(state().await, before);
    run_all(&db.store, "DELETE FROM sites").await;
    assert_eq!(state().await, before);
    // What only this server knows does not count.
    let work = "INSERT INTO work (queue, key, run_at, attempts_max, created_at) VALUES ('q', 'k', 'epoch', 3, 'epoch')";
    run_all(&db.store, work).await;
    let one = state().await;
    run_all(&db.store, &format!("DELETE FROM work; {work}")).await;
    assert_eq!(state().await, one);
    assert_ne!(one, before);
}
