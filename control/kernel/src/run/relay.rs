//! The relay of events: gives those that were committed their number.

use std::convert::Infallible;
use std::time::Duration;

use kit::{Pace, TaskKind};
use store::StoreError;
use store::outbox::{self, Relay, Relayed};

use super::Running;
use super::passes::Held;

const RELAY: TaskKind = TaskKind::fatal("event_relay");
/// Events moved by one transaction, and the rest of a row.
const BATCH: u32 = 1_000;
/// What a pass costs is mostly its own price until it moves a hundred events.
const PACE: Pace = Pace::new(16, Duration::from_millis(40));
/// Without any wake-up, how often to look.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Relays events until the supervisor stops; one process at a time, whichever holds the lease. It runs in observe-only too:
/// it only records.
pub fn run_relay(running: &Running) {
    let context = running.clone();
    running.supervisor.spawn(RELAY, move |cancel| async move {
        let mut held = Held::new(context.clone(), outbox::RELAY_LEASE.to_owned());
        cancel.run_until_cancelled(repeat(&context, &mut held)).await;
        held.release().await;
        Ok::<(), Infallible>(())
    });
}

async fn repeat(running: &Running, held: &mut Held) {
    let mut signal = running.signals.of(outbox::OUTBOX_CHANNEL);
    let (mut relay, mut pace) = (Relay::default(), PACE);
    loop {
        signal.borrow_and_update();
        let began = running.clock.monotonic();
        match pass(running, held, &mut relay).await {
            Ok(moved) => pace.took(began, moved),
            Err(err) => tracing::warn!(err = kit::chain(&err), "failed to relay events"),
        }
        let period = running.clock.sleep(running.jittered(LOOK_EVERY));
        // Both arms are cancel-safe: a signal that is not looked at stays.
        tokio::select! {
            _ = signal.changed() => {}
            () = period => {}
        }
        pace.wait(&*running.clock).await;
    }
}

/// How many events were moved: all there were, while this process is the one that moves them.
pub(super) async fn pass(running: &Running, held: &mut Held, relay: &mut Relay) -> Result<usize, StoreError> {
    let mut moved = 0;
    loop {
        if !held.hold().await? {
            relay.forget();
            return Ok(moved);
        }
        let lease = held.lease().expect("it was just taken");
        match relay.pass(&running.store, lease, BATCH).await? {
            Relayed::Moved(events) => {
                moved += events;
                if events < BATCH as usize {
                    return Ok(moved);
                }
            }
            Relayed::NotHolder => {
                held.lose();
                return Ok(moved);
            }
        }
    }
}
