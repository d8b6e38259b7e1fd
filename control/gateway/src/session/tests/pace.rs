//! A node that says more than its rate.

use super::*;

fn batch(first: u64, count: u64, bytes: usize) -> In {
    let report = vec![0; bytes];
    let event = |seq| NodeEvent { seq, class: 1, report: report.clone().into(), ..NodeEvent::default() };
    let events = (first..first + count).map(event).collect();
    In::Events(EventBatch { journal_id: JOURNAL.to_string(), events })
}

#[test]
fn events_past_their_rate_are_not_read_until_it_is_made_up_for() {
    for (count, bytes, batches) in [(256, 1, 4), (60, 50_000, 3)] {
        let mut bench = Bench::open();
        for n in 0..batches {
            assert!(bench.session.reads(), "{count} events, batch {n}");
            assert_eq!(bench.frame(batch(n * count + 1, count, bytes)), [format!("store {count} events")]);
            bench.answer(Answer::Events(Some((n + 1) * count)));
        }
        assert!(!bench.session.reads(), "{count} events of {bytes} bytes");
        bench.now = at(2);
        assert!(bench.give(Input::Tick).is_empty());
        assert!(bench.session.reads());
    }
}

#[test]
fn inventory_past_its_rate_ends_the_session() {
    let mut bench = Bench::open();
    let section =
        |json: Vec<u8>| InventorySection { name: "cpu".to_owned(), json: json.into(), ..Default::default() };
    let report = || In::Inventory(InventoryReport { sections: vec![section(vec![b' '; 1 << 20])] });
    let mut taken = 0;
    let end = loop {
        let said = bench.frame(report());
        if !said.is_empty() {
            break said;
        }
        taken += 1;
        assert!(taken < 100, "nothing stops it");
    };
    assert_eq!(taken, 15);
    assert!(end[0].contains("rate"), "{end:?}");
}

#[test]
fn after_events_that_were_refused_none_are_taken_until_the_node_comes_again() {
    let mut bench = Bench::open();
    assert_eq!(bench.frame(batch(1, 2, 1)), ["store 2 events"]);
    assert!(bench.answer(Answer::EventsRefused).is_empty());
    assert!(!bench.session.takes_events());
    assert!(bench.frame(batch(3, 2, 1)).is_empty());
    for seconds in [15, 30, 45, 60] {
        bench.now = at(seconds);
        assert_eq!(bench.frame(In::Heartbeat(Heartbeat { seq: 1, ..Heartbeat::default() })), ["beat 1"]);
        assert!(bench.give(Input::Tick).is_empty());
    }
    bench.now = at(61);
    assert_eq!(bench.give(Input::Tick), ["drain"]);
    assert!(bench.give(Input::Tick).is_empty());
}
