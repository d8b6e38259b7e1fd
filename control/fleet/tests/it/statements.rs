use crate::world::world;

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_fits_the_schema() {
    let world = world().await;
    world.db.prepare_all(fleet::sql::STATEMENTS).await;
    world.db.prepare_all(fleet::methods::sql::STATEMENTS).await;
    world.db.prepare_all(fleet::join::asker::STATEMENTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pass_runs_often_goes_by_an_index() {
    let world = world().await;
    world.run("ANALYZE", &[]).await;
    let node = "'00000000-0000-0000-0000-000000000000'";
    let nodes = "'{00000000-0000-0000-0000-000000000000}'";
    // Small tables are read whole whatever their indexes; this asks whether an index serves.
    for (statement, literals, index) in [
        (fleet::sql::NODE_EVENTS_OPEN, &[node, "64"][..], "node_events_open"),
        (fleet::sql::NODES_EVENTS_TAKE, &[nodes, "64"][..], "node_events_pkey on node_events e"),
        (fleet::sql::COMMANDS_SETTLED, &[node, "64"][..], "commands_unhandled_by_node"),
        (fleet::sql::COMMANDS_EXPIRE, &[][..], "commands_pending|commands_in_flight"),
        (fleet::sql::COMMANDS_TIME_OUT, &[][..], "commands_in_flight"),
        (fleet::sql::NODE_EVENTS_FORGET, &[][..], "node_events_handled"),
        (fleet::sql::COMMANDS_FORGET, &[][..], "commands_handled"),
        (fleet::sql::CERTS_FORGET, &[][..], "node_certs_by_end"),
        (fleet::sql::SESSIONS_OF_EARLIER_EPOCHS, &[][..], "node_sessions_"),
    ] {
        let plan = plan_by_index(&world.db, &statement, literals).await;
        assert!(index.split('|').any(|index| plan.contains(index)), "{}: {plan}", statement.name);
    }
}

/// The plan when reading whole tables costs too much to be chosen.
async fn plan_by_index(db: &testkit::TestDb, statement: &store::Sql, literals: &[&str]) -> String {
    let mut text = statement.text.to_owned();
    for (index, literal) in literals.iter().enumerate().rev() {
        text = text.replace(&format!("${}", index + 1), literal);
    }
    let text: &'static str = Box::leak(format!("EXPLAIN {text}").into_boxed_str());
    db.store
        .tx(store::Op::new("explain"), |tx| {
            Box::pin(async move {
                tx.execute(&store::sql("no_seqscan", "SET LOCAL enable_seqscan = off"), &[]).await?;
                let rows = tx.query(&store::sql("explain", text), &[]).await?;
                Ok::<_, store::StoreError>(rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect())
            })
        })
        .await
        .unwrap()
}
