//! Events, statuses, inventory, specs and the inbox.

use kernel::ports::delivery::CurrentSpec;

use super::*;

pub async fn events_are_stored_once_and_in_order(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, opened) = bench.open(&hello).await;
    assert_eq!(opened.acked_event_seq, 0);
    let put = |seqs: &[u64]| {
        let events = seqs.iter().map(|seq| event(*seq)).collect();
        bench.store.put_events(bench.lease, session, hello.journal_id, events)
    };
    assert_eq!(put(&[1, 2]).await.unwrap(), Some(2));
    assert_eq!(put(&[1, 2]).await.unwrap(), Some(2));
    // Metric events that a full journal dropped leave a gap.
    assert_eq!(put(&[2, 3, 7]).await.unwrap(), Some(7));
    assert_eq!(put(&[4, 5]).await.unwrap(), Some(7));
    assert_eq!(put(&[]).await.unwrap(), Some(7));
    assert_eq!(world.event_seqs(hello.node_id, hello.journal_id).await, [1, 2, 3, 7]);
    let (_, opened) = bench.open(&hello).await;
    assert_eq!(opened.acked_event_seq, 7);
}

pub async fn events_of_another_journal_are_not_taken(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let other = JournalId::from_uuid(unique());
    assert_eq!(bench.store.put_events(bench.lease, session, other, vec![event(1)]).await.unwrap(), None);
    assert!(world.event_seqs(hello.node_id, other).await.is_empty());
}

pub async fn events_of_many_sessions_are_stored_together(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two, three) = (bench.node().await, bench.node().await, bench.node().await);
    let (first, _) = bench.open(&one).await;
    let (second, _) = bench.open(&two).await;
    let (gone, _) = bench.open(&three).await;
    bench.open(&three).await;
    let of = |session, hello: &HelloFacts, seqs: &[u64]| ReportedEvents {
        session,
        journal_id: hello.journal_id,
        events: seqs.iter().map(|seq| event(*seq)).collect(),
    };
    let put = |reported| bench.store.put_events_of(bench.lease, reported);
    let other = HelloFacts { journal_id: JournalId::from_uuid(unique()), ..two.clone() };
    let batch = vec![of(first, &one, &[1, 2]), of(second, &other, &[1]), of(gone, &three, &[1])];
    assert_eq!(put(batch).await.unwrap(), [Some(2), None, None]);
    let batch = vec![of(second, &two, &[3, 9]), of(first, &one, &[2, 3]), of(gone, &three, &[])];
    assert_eq!(put(batch).await.unwrap(), [Some(9), Some(3), None]);
    assert_eq!(put(vec![]).await.unwrap(), []);
    assert_eq!(world.event_seqs(one.node_id, one.journal_id).await, [1, 2, 3]);
    assert_eq!(world.event_seqs(two.node_id, two.journal_id).await, [3, 9]);
    assert!(world.event_seqs(three.node_id, three.journal_id).await.is_empty());
}

pub async fn a_journal_that_comes_back_is_known(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    bench.store.put_events(bench.lease, session, hello.journal_id, vec![event(1), event(2)]).await.unwrap();
    let mut other = hello.clone();
    other.journal_id = JournalId::from_uuid(unique());
    let (_, opened) = bench.open(&other).await;
    assert_eq!(opened.acked_event_seq, 0);
    let (session, opened) = bench.open(&hello).await;
    assert_eq!(opened.acked_event_seq, 2);
    let put = bench.store.put_events(bench.lease, session, hello.journal_id, vec![event(2), event(3)]).await;
    assert_eq!(put.unwrap(), Some(3));
    assert_eq!(world.event_seqs(hello.node_id, hello.journal_id).await, [1, 2, 3]);
}

pub async fn the_latest_status_wins_and_observed_never_falls(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (hello, other) = (bench.node().await, bench.node().await);
    world.put_spec(spec(hello.node_id, 9)).await;
    let (session, _) = bench.open(&hello).await;
    let (second, _) = bench.open(&other).await;
    let put = |statuses| bench.store.put_statuses(bench.lease, statuses);
    put(vec![status(session, 5, "a"), status(second, 0, "x")]).await.unwrap();
    put(vec![status(session, 4, "b")]).await.unwrap();
    assert_eq!(world.status(hello.node_id).await, Some(("b".to_owned(), 5)));
    assert_eq!(world.status(other.node_id).await, Some(("x".to_owned(), 0)));
    // Nobody has converged to what does not exist.
    put(vec![status(session, u64::MAX, "c")]).await.unwrap();
    assert_eq!(world.status(hello.node_id).await, Some(("c".to_owned(), 9)));
    let mut plain = status(session, 9, "d");
    plain.pressure = None;
    put(vec![plain]).await.unwrap();
    assert_eq!(world.status(hello.node_id).await, Some(("d".to_owned(), 9)));
}

pub async fn a_hello_claims_no_generation_that_does_not_exist(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    world.put_spec(spec(hello.node_id, 3)).await;
    hello.observed_generation = u64::MAX;
    let (session, _) = bench.open(&hello).await;
    bench.store.put_statuses(bench.lease, vec![status(session, 0, "a")]).await.unwrap();
    assert_eq!(world.status(hello.node_id).await, Some(("a".to_owned(), 3)));
}

pub async fn inventory_is_asked_for_where_it_differs(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    hello.inventory_hashes =
        BTreeMap::from([("cpu".to_owned(), "aa".to_owned()), ("gpus".to_owned(), "bb".to_owned())]);
    let (session, opened) = bench.open(&hello).await;
    assert_eq!(opened.inventory_sections, ["cpu", "gpus"]);
    bench.store.put_inventory(bench.lease, session, vec![section("cpu", "aa")]).await.unwrap();
    bench.store.put_inventory(bench.lease, session, vec![section("gpus", "cc")]).await.unwrap();
    let (session, opened) = bench.open(&hello).await;
    assert_eq!(opened.inventory_sections, ["gpus"]);
    bench.store.put_inventory(bench.lease, session, vec![section("gpus", "bb")]).await.unwrap();
    assert_eq!(world.inventory(hello.node_id).await, hello.inventory_hashes);
    let (_, opened) = bench.open(&hello).await;
    assert!(opened.inventory_sections.is_empty());
}

pub async fn specs_are_found_behind(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    let (first, opened) = bench.open(&one).await;
    assert_eq!(opened.generation, 0);
    let (second, _) = bench.open(&two).await;
    let behind = |sent| bench.store.specs_behind(bench.lease, sent);
    assert_eq!(bench.store.spec(bench.lease, first).await.unwrap(), None);
    world.put_spec(spec(one.node_id, 3)).await;
    world.put_spec(spec(two.node_id, 1)).await;
    assert_eq!(behind(vec![(first, 2), (second, 1)]).await.unwrap(), [spec(one.node_id, 3)]);
    assert_eq!(behind(vec![(first, 3), (second, 0)]).await.unwrap(), [spec(two.node_id, 1)]);
    assert_eq!(behind(vec![]).await.unwrap(), []);
    assert_eq!(bench.store.spec(bench.lease, first).await.unwrap(), Some(spec(one.node_id, 3)));
    let (_, opened) = bench.open(&one).await;
    assert_eq!(opened.generation, 3);
    let current = async |node_id, known| bench.store.current_spec(node_id, known).await.unwrap();
    assert_eq!(current(one.node_id, 0).await, CurrentSpec::Newer(spec(one.node_id, 3)));
    assert_eq!(current(one.node_id, 3).await, CurrentSpec::Known);
    assert_eq!(current(bench.node().await.node_id, 0).await, CurrentSpec::None);
    world.quarantine(one.node_id).await;
    world.revoke_node(two.node_id).await;
    assert_eq!(current(one.node_id, 3).await, CurrentSpec::None);
    assert_eq!(current(two.node_id, 0).await, CurrentSpec::None);
}

pub async fn a_spec_is_not_found_for_a_session_that_is_anothers(world: &dyn World) {
    let (one, two) = (Bench::new(world).await, Bench::new(world).await);
    let hello = one.node().await;
    world.put_spec(spec(hello.node_id, 3)).await;
    let (first, _) = one.open(&hello).await;
    two.open(&hello).await;
    assert_eq!(one.store.specs_behind(one.lease, vec![(first, 0)]).await.unwrap(), []);
    world.revoke_node(hello.node_id).await;
    assert_eq!(one.store.spec(one.lease, first).await.unwrap(), None);
}

pub async fn a_request_is_answered_refused_or_times_out(world: &dyn World) {
    let bench = Bench::new(world).await;
    let request = |kind| InboxRequest {
        kind,
        request: vec![1, 2, 3],
        source_ip: "192.0.2.1".to_owned(),
        peer_serial: Some("ab".to_owned()),
    };
    let patience = Duration::from_secs(20);
    let answers = [
        InboxAnswer::Reply(vec![4, 5]),
        InboxAnswer::Refused("the token is spent".to_owned()),
        InboxAnswer::Reply(vec![6; 100_000]),
    ];
    let kinds = [InboxKind::Join, InboxKind::Renew, InboxKind::Secret];
    for (kind, answer) in kinds.into_iter().zip(answers) {
        let (answered, asked) = tokio::join!(
            bench.store.ask(bench.lease, request(kind), patience),
            world.answer_next(answer.clone())
        );
        assert_eq!(answered.unwrap(), answer);
        assert_eq!(asked.kind, kind);
        assert_eq!((asked.request, asked.peer_serial), (vec![1, 2, 3], Some("ab".to_owned())));
    }
    let brief = Duration::from_millis(20);
    let answered = bench.store.ask(bench.lease, request(InboxKind::Fresh), brief).await;
    assert_eq!(answered.unwrap(), InboxAnswer::TimedOut);
}
