use uuid::Uuid;

use super::*;

fn command(n: u128) -> CommandId {
    CommandId::from_uuid(Uuid::from_u128(n))
}

fn reported(control: u32) -> BTreeMap<String, u32> {
    BTreeMap::from([("control".to_owned(), control)])
}

#[test]
fn what_was_sent_since_the_heartbeat_is_taken_off() {
    let mut credits = Credits::default();
    assert_eq!(credits.left(Lane::Control), 0);
    credits.report(&reported(3));
    credits.sent(command(1), Lane::Control);
    credits.sent(command(2), Lane::Control);
    assert_eq!(credits.left(Lane::Control), 1);
    assert_eq!(credits.left(Lane::Bulk), 0);
}

#[test]
fn a_heartbeat_on_its_way_does_not_give_a_credit_twice() {
    let mut credits = Credits::default();
    credits.report(&reported(1));
    credits.sent(command(1), Lane::Control);
    // Written before the node saw the command.
    credits.report(&reported(1));
    assert_eq!(credits.left(Lane::Control), 0);
    // The next one counts it.
    credits.report(&reported(0));
    assert_eq!(credits.left(Lane::Control), 0);
}

#[test]
fn a_result_gives_its_credit_back_at_once() {
    let mut credits = Credits::default();
    credits.report(&reported(1));
    credits.sent(command(1), Lane::Control);
    credits.update(command(1), CommandEvent::Acked);
    assert_eq!(credits.left(Lane::Control), 0);
    credits.update(command(1), CommandEvent::Succeeded);
    assert_eq!(credits.left(Lane::Control), 1);
    // Said again, it gives nothing more.
    credits.update(command(1), CommandEvent::Succeeded);
    assert_eq!(credits.left(Lane::Control), 1);
}

#[test]
fn a_busy_node_gets_nothing_more_until_it_speaks() {
    let mut credits = Credits::default();
    credits.report(&reported(4));
    credits.sent(command(1), Lane::Control);
    credits.update(command(1), CommandEvent::Busy);
    assert_eq!(credits.left(Lane::Control), 0);
    credits.report(&reported(4));
    assert_eq!(credits.left(Lane::Control), 4);
}

#[test]
fn a_node_cannot_claim_more_than_a_lane_has() {
    let mut credits = Credits::default();
    credits.report(&reported(u32::MAX));
    assert_eq!(credits.left(Lane::Control), Lane::Control.credits());
}

#[test]
fn a_cancel_goes_out_once() {
    let mut credits = Credits::default();
    assert!(!credits.cancel(command(1)));
    credits.sent(command(1), Lane::Control);
    assert!(credits.cancel(command(1)));
    assert!(!credits.cancel(command(1)));
}
