use std::time::Duration;

use store::{ErrorKind, Sql, migrate, sql};
use testkit::db;

const FORGET: Sql = sql(
    "forget",
    "DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)",
);
const FUTURE: Sql =
    sql("future", "INSERT INTO schema_migrations (version, name, sha256) VALUES (9999, 'later', 'x')");
const EDITED: Sql = sql("edited", "UPDATE schema_migrations SET sha256 = 'x' WHERE version = 1");

#[tokio::test]
async fn migrating_twice_and_at_once_changes_nothing() {
    let db = db().await;
    let schema = "SELECT md5(string_agg(format('%s.%s %s', table_name, column_name, data_type), E'\\n' ORDER BY table_name, column_name))
                  FROM information_schema.columns WHERE table_schema = 'public'";
    let before = db.scalar_text(schema).await;
    let (one, two) = tokio::join!(migrate::run(&db.store), migrate::run(&db.store));
    one.unwrap();
    two.unwrap();
    assert_eq!(db.scalar_text(schema).await, before);
    migrate::check(&db.store).await.unwrap();
}

#[tokio::test]
async fn every_migration_bears_a_second_run_after_a_crash() {
    let db = db().await;
    db.batch("DELETE FROM schema_migrations").await;
    migrate::run(&db.store).await.unwrap();
    migrate::check(&db.store).await.unwrap();
    let rows = db.scalar_i64("SELECT count(*) FROM deployment").await;
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn an_older_a_newer_and_an_edited_database_are_told_apart() {
    let db = db().await;
    db.store.execute(&FORGET, &[]).await.unwrap();
    let older = migrate::check(&db.store).await.unwrap_err();
    assert!(matches!(older.kind(), ErrorKind::SchemaTooOld { .. }), "{older}");
    migrate::run(&db.store).await.unwrap();

    db.store.execute(&FUTURE, &[]).await.unwrap();
    for err in [migrate::check(&db.store).await.unwrap_err(), migrate::run(&db.store).await.unwrap_err()] {
        assert!(matches!(err.kind(), ErrorKind::SchemaTooNew { found: 9999, .. }), "{err}");
    }
    db.store.execute(&FORGET, &[]).await.unwrap();

    db.store.execute(&EDITED, &[]).await.unwrap();
    let edited = migrate::run(&db.store).await.unwrap_err();
    assert!(matches!(edited.kind(), ErrorKind::MigrationChanged { version: 1, .. }), "{edited}");
}

#[tokio::test]
async fn the_gateway_role_may_do_its_part_and_no_more() {
    let db = db().await;
    let config = store::StoreConfig { role: Some("bc_gateway".to_owned()), ..db.config() };
    let gateway = db.open(config).await;
    gateway.read(&sql("deployment", "SELECT epoch FROM deployment"), &[]).await.unwrap();
    for text in [
        "UPDATE deployment SET epoch = 99",
        "DELETE FROM audit",
        "INSERT INTO leases VALUES ('x', 'y', 1, compute_now(), compute_now())",
        "UPDATE schema_migrations SET name = 'x'",
        "SELECT partition_ensure('events', compute_now())",
        "CREATE TABLE mine (x int)",
    ] {
        let err = gateway.execute(&sql("forbidden", text), &[]).await.unwrap_err();
        assert_eq!(*err.kind(), ErrorKind::InsufficientPrivilege, "{text}: {err}");
    }
}

#[tokio::test]
async fn a_stolen_gateway_wakes_its_own_two_queues_and_does_nothing_else_to_any() {
    let db = db().await;
    let config = store::StoreConfig { role: Some("bc_gateway".to_owned()), ..db.config() };
    let gateway = db.open(config).await;
    let wake = "INSERT INTO work_wake_batches (queue, keys) VALUES ($1, $2)";
    for queue in ["node-observe", "join"] {
        gateway.execute(&sql("wake", wake), &[&queue, &["a"].as_slice()]).await.unwrap();
    }
    for queue in ["reservation-place", "node-spec"] {
        let err = gateway.execute(&sql("wake", wake), &[&queue, &["a"].as_slice()]).await.unwrap_err();
        assert_eq!(*err.kind(), ErrorKind::InsufficientPrivilege, "{queue}: {err}");
    }
    let many = vec!["a"; 33];
    let err = gateway.execute(&sql("wake", wake), &[&"join", &many]).await.unwrap_err();
    assert_eq!(*err.kind(), ErrorKind::InsufficientPrivilege, "more than a taker takes: {err}");
    for text in [
        "SELECT keys FROM work_wake_batches",
        "DELETE FROM work_wake_batches",
        "UPDATE work_wake_batches SET xid = 0",
        "INSERT INTO work_wake_batches (queue, keys, xid) VALUES ('join', ARRAY['a'], 0)",
        "SELECT work_take('join', 0, 10, false)",
        "SELECT key FROM work",
        "INSERT INTO work (queue, key, run_at, attempts_max) VALUES ('join', 'a', compute_now(), 9)",
    ] {
        let err = gateway.execute(&sql("forbidden", text), &[]).await.unwrap_err();
        assert_eq!(*err.kind(), ErrorKind::InsufficientPrivilege, "{text}: {err}");
    }
}

#[tokio::test]
async fn a_stolen_gateway_writes_no_end_twice() {
    let db = db().await;
    db.batch(
        "INSERT INTO sites (site_id, name) VALUES (gen_random_uuid(), 's');
         INSERT INTO nodes (node_id, site_id, role, name, hostname, state)
           SELECT gen_random_uuid(), site_id, 'node', 'n', 'n', 'ready' FROM sites;
         INSERT INTO commands (command_id, node_id, kind, lane, destructive, state, body, signature, not_before,
             not_after, timeout_at, created_by, settled_at)
           SELECT gen_random_uuid(), node_id, 'node.reboot', 'control', true, c.state, '', '', compute_now(),
             compute_now(), compute_now(), 'x', c.settled_at
           FROM nodes, (VALUES ('running', NULL), ('cancelled', compute_now())) AS c (state, settled_at)",
    )
    .await;
    let config = store::StoreConfig { role: Some("bc_gateway".to_owned()), ..db.config() };
    let gateway = db.open(config).await;
    let settle = "UPDATE commands SET state = 'succeeded', settled_at = compute_now()";
    assert_eq!(gateway.execute(&sql("settle", settle), &[]).await.unwrap(), 1, "the one that was open");
    let again = "UPDATE commands SET state = 'pending', settled_at = NULL";
    assert_eq!(gateway.execute(&sql("reopen", again), &[]).await.unwrap(), 0);
    assert_eq!(db.scalar_i64("SELECT count(*) FROM commands WHERE state = 'cancelled'").await, 1);
}

#[tokio::test]
async fn events_and_wake_ups_of_before_they_were_batches_are_kept() {
    let db = db().await;
    let last = store::migrate::embedded().iter().position(|migration| migration.name == "batches").unwrap();
    let version = store::migrate::embedded()[last].version;
    db.batch(&format!("DELETE FROM schema_migrations WHERE version >= {version}")).await;
    db.batch(
        "CREATE TABLE outbox (outbox_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL,
           at timestamptz NOT NULL DEFAULT compute_now(), kind text NOT NULL, subject text NOT NULL, tenant_id uuid, data jsonb NOT NULL);
         CREATE TABLE work_wakes (queue text NOT NULL, xid bigint NOT NULL DEFAULT 7, key text NOT NULL);
         INSERT INTO outbox (event_id, kind, subject, tenant_id, data)
           SELECT gen_random_uuid(), 'x', n::text, CASE WHEN n = 2 THEN gen_random_uuid() END, '{\"n\": 1}' FROM generate_series(1, 20) AS n;
         INSERT INTO work_wakes (queue, key) VALUES ('join', 'a'), ('join', 'a'), ('join', 'b'), ('node-spec', 'a')",
    )
    .await;
    migrate::run(&db.store).await.unwrap();
    let told = "SELECT string_agg(subject || coalesce('!' || left(tenant_id::text, 0), ''), ' ' ORDER BY batch_id, place) FROM outbox_events";
    assert_eq!(db.scalar_text(told).await, "1 2! 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20");
    let woken = "SELECT string_agg(queue || ' ' || key, ', ' ORDER BY queue, key) FROM work_wake_keys";
    assert_eq!(db.scalar_text(woken).await, "join a, join b, node-spec a");
    assert_eq!(
        db.scalar_i64("SELECT count(*) FROM work_wake_batches WHERE xid < 100").await,
        0,
        "woken anew"
    );
}

#[tokio::test]
async fn disks_of_instances_of_before_are_counted_on_hosts_that_shrank_too() {
    let db = db().await;
    let last = store::migrate::embedded().iter().find(|one| one.name == "flavor_placement").unwrap();
    // A host that offers less memory than is booked, with an instance that is there, and one that is gone.
    db.batch(
        "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 't');
         INSERT INTO users (user_id, tenant_id, kind, name) SELECT gen_random_uuid(), tenant_id, 'person', 'u' FROM tenants;
         INSERT INTO sites (site_id, name) VALUES (gen_random_uuid(), 's');
         INSERT INTO pools (pool_id, tenant_id, name, class, policy) SELECT gen_random_uuid(), tenant_id, 'p', 'vps-host', '{}' FROM tenants;
         INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state)
           SELECT gen_random_uuid(), site_id, pool_id, 'node', 'n', 'n', 'ready' FROM sites, pools;
         INSERT INTO node_capacity (node_id, pool_id, cpu_millis, memory_bytes, machine_cpu_millis, machine_memory_bytes)
           SELECT node_id, pool_id, 8000, 4096, 8000, 4096 FROM nodes;
         INSERT INTO flavors (flavor_id, pool_id, name, vcpu, memory_mib, disk_gib) SELECT gen_random_uuid(), pool_id, 'f', 1, 512, 10 FROM pools;
         INSERT INTO images (image_id, tenant_id, name, url, sha256, format)
           SELECT gen_random_uuid(), tenant_id, 'i', 'https://a', sha256('x'), 'qcow2' FROM tenants;
         INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime, vcpu, memory_mib, disk_gib)
           SELECT gen_random_uuid(), u.tenant_id, p.pool_id, f.flavor_id, i.image_id, u.user_id, 'running', 'running', 'libvirt-kvm', 1, 512, n * 10
           FROM users u, pools p, flavors f, images i, generate_series(1, 2) AS n;
         INSERT INTO instance_allocations (allocation_id, instance_id, node_id, ended_at)
           SELECT gen_random_uuid(), instance_id, node_id, CASE WHEN disk_gib = 20 THEN compute_now() END FROM instances, nodes;
         INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi)
           SELECT allocation_id, node_id, 1000, 2048, 0 FROM instance_allocations;
         UPDATE node_capacity SET memory_bytes = 1",
    )
    .await;
    let version = last.version;
    db.batch(&format!("DELETE FROM schema_migrations WHERE version >= {version}")).await;
    migrate::run(&db.store).await.unwrap();
    let counted = "SELECT string_agg((disk_bytes >> 30)::text, ' ' ORDER BY disk_bytes) FROM host_bookings";
    assert_eq!(db.scalar_text(counted).await, "0 10");
    db.batch("UPDATE node_capacity SET memory_bytes = 4096, disk_bytes = 1").await;
    // Whoever asks for disk is judged by it, and nobody else.
    db.batch("UPDATE host_bookings SET cpu_millis = 500 WHERE disk_bytes = 0").await;
    let more = sql("more", "UPDATE host_bookings SET disk_bytes = disk_bytes + 1 WHERE disk_bytes > 0");
    let err = db.store.execute(&more, &[]).await.unwrap_err();
    assert!(err.is_check("host_bookings_within_node"), "{err}");
}

#[tokio::test]
async fn a_migration_that_waits_for_a_table_lets_others_have_it() {
    let db = db().await;
    let pools = migrate::embedded().iter().find(|one| one.name == "pools_end").unwrap();
    db.batch(&format!("DELETE FROM schema_migrations WHERE version >= {}", pools.version)).await;
    let read = sql("read", "SELECT count(*) FROM pools");
    let (store, (reads, done)) = (&db.store, &(tokio::sync::Notify::new(), tokio::sync::Notify::new()));
    let long = store.tx(store::Op::new("long_read"), |tx| {
        Box::pin(async move {
            tx.query(&read, &[]).await?;
            reads.notify_one();
            done.notified().await;
            Ok::<_, store::StoreError>(())
        })
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let others = async {
        testkit::eventually(Duration::from_secs(20), async || {
            (db.scalar_i64(waits).await > 0).then_some(()).ok_or("nobody waits")
        })
        .await;
        // Behind the migration, which itself waits behind the long one.
        store.read(&read, &[]).await.unwrap();
        done.notify_one();
    };
    let migrating = async {
        reads.notified().await;
        migrate::run(store).await
    };
    let (read, migrated, ()) = tokio::join!(long, migrating, others);
    read.unwrap();
    migrated.unwrap();
    migrate::check(store).await.unwrap();
}
