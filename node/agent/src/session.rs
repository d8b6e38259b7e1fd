//! One node's side of the session: when to dial, greet, beat and let go. No I/O and no clock; the engine feeds it moments.
//!
//! ```text
//! waiting --due--> dialing --connected--> greeting --Welcome--> open
//!    ^                |                       |                  |  no heartbeat ack for 3 intervals,
//!    +----------------+-----------------------+------------------+  drained, refused, closed
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use kit::{Backoff, Rng, mutant};
use model::CommandId;

/// Waits between dials: full jitter, so that a fleet does not come back at one instant.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_CEILING: Duration = Duration::from_secs(60);
/// A pushback is honoured exactly, within what an operator would still call a pause.
const PUSHBACK_MAX: Duration = Duration::from_secs(3600);
/// A gateway that took the connection answers a Hello at once, or something is wrong with it.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
const INTERVAL_DEFAULT: Duration = Duration::from_secs(10);
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(120);
/// Intervals without an acknowledgement after which the other side is taken for gone.
const MISSED_MAX: u32 = 3;
/// Every how many heartbeats carry the inventory's hashes.
const HASHES_EVERY: u64 = 10;
/// Events under way without an acknowledgement.
pub const EVENT_WINDOW: u64 = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    Waiting { until: Duration },
    Dialing,
    Greeting { since: Duration },
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Dial,
    /// Close, for this reason.
    Close(&'static str),
    Heartbeat {
        seq: u64,
        with_hashes: bool,
    },
}

/// What lasts as long as one connection.
#[derive(Debug, Default)]
struct Connection {
    /// Results that went with the Hello.
    greeted: BTreeSet<CommandId>,
    nonce: Vec<u8>,
    epoch: u64,
    interval: Duration,
    next_beat: Duration,
    beats: u64,
    hashes_changed: bool,
    last_ack: Duration,
    acked_once: bool,
    sent_seq: u64,
    opened_at: Duration,
    drain_at: Option<Duration>,
    upgrade_only: bool,
}

#[derive(Debug)]
pub struct Session {
    phase: Phase,
    backoff: Backoff,
    connection: Connection,
    /// Why the last session ended, for status.
    last_end: String,
}

impl Session {
    /// Dials at once.
    pub fn new() -> Self {
        Self {
            phase: Phase::Waiting { until: Duration::ZERO },
            backoff: Backoff::new(BACKOFF_FIRST, BACKOFF_CEILING),
            connection: Connection::default(),
            last_end: String::new(),
        }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub fn epoch(&self) -> u64 {
        if self.is_open() { self.connection.epoch } else { 0 }
    }

    pub fn nonce(&self) -> &[u8] {
        &self.connection.nonce
    }

    pub fn upgrade_only(&self) -> bool {
        self.connection.upgrade_only
    }

    pub fn last_end(&self) -> &str {
        &self.last_end
    }

    /// What is due now. Called until it says nothing more.
    pub fn due(&mut self, now: Duration) -> Option<Due> {
        match self.phase {
            Phase::Waiting { until } if until <= now => {
                self.phase = Phase::Dialing;
                Some(Due::Dial)
            }
            Phase::Waiting { .. } | Phase::Dialing => None,
            Phase::Greeting { since } => {
                (since + WELCOME_TIMEOUT <= now).then_some(Due::Close("no Welcome within 30 s"))
            }
            Phase::Open => self.due_open(now),
        }
    }

    fn due_open(&mut self, now: Duration) -> Option<Due> {
        let connection = &mut self.connection;
        if connection.drain_at.is_some_and(|at| at <= now) {
            return Some(Due::Close("drained"));
        }
        if connection.last_ack + connection.interval * MISSED_MAX < now {
            return Some(Due::Close("no heartbeat acknowledged for 3 intervals"));
        }
        if connection.next_beat > now {
            return None;
        }
        connection.beats += 1;
        // A late tick beats once, not once for every beat it missed.
        connection.next_beat = now + connection.interval;
        let with_hashes =
            std::mem::take(&mut connection.hashes_changed) || connection.beats.is_multiple_of(HASHES_EVERY);
        Some(Due::Heartbeat { seq: connection.beats, with_hashes })
    }

    /// When `due` next has something to say, if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Waiting { until } => Some(until),
            Phase::Dialing => None,
            Phase::Greeting { since } => Some(since + WELCOME_TIMEOUT),
            Phase::Open => {
                let connection = &self.connection;
                let missed =
                    connection.last_ack + connection.interval * MISSED_MAX + Duration::from_millis(1);
                let beat = connection.next_beat.min(missed);
                Some(connection.drain_at.map_or(beat, |drain| drain.min(beat)))
            }
        }
    }

    /// The connection is there; a Hello with this nonce and these results is on its way.
    pub fn greeting(&mut self, nonce: Vec<u8>, results: BTreeSet<CommandId>, now: Duration) {
        self.phase = Phase::Greeting { since: now };
        let sent_seq = if mutant::on("agent.events-not-sent-again") { self.connection.sent_seq } else { 0 };
        self.connection = Connection { greeted: results, nonce, sent_seq, ..Connection::default() };
    }

    /// The Welcome was taken. Results that did not go with the Hello are for the caller to send.
    pub fn opened(
        &mut self,
        epoch: u64,
        interval_ms: u32,
        upgrade_only: bool,
        now: Duration,
    ) -> BTreeSet<CommandId> {
        let interval = if interval_ms == 0 {
            INTERVAL_DEFAULT
        } else {
            Duration::from_millis(interval_ms.into()).clamp(INTERVAL_MIN, INTERVAL_MAX)
        };
        self.phase = Phase::Open;
        let connection = &mut self.connection;
        connection.epoch = epoch;
        connection.interval = interval;
        connection.opened_at = now;
        connection.next_beat = now;
        connection.last_ack = now;
        connection.upgrade_only = upgrade_only;
        std::mem::take(&mut connection.greeted)
    }

    /// A heartbeat came back. True for the first of a session.
    pub fn heartbeat_acked(&mut self, seq: u64, now: Duration) -> bool {
        // An ack of a beat we did not send says nothing.
        if !self.is_open() || seq == 0 || seq > self.connection.beats {
            return false;
        }
        self.connection.last_ack = now;
        // Only a session that works ends the backoff: one that closes right after Welcome must not be dialed in a loop.
        self.backoff.reset();
        !std::mem::replace(&mut self.connection.acked_once, true)
    }

    /// Beat now, with the inventory's hashes.
    pub fn hashes_changed(&mut self, now: Duration) {
        self.connection.hashes_changed = true;
        self.connection.next_beat = self.connection.next_beat.min(now);
    }

    /// Everything up to `seq` is known to be stored, by a Welcome or an Ack.
    pub fn events_acked(&mut self, seq: u64) {
        self.connection.sent_seq = self.connection.sent_seq.max(seq);
    }

    /// The next events to send, as `(after, through)`, given the ack and the last one there is.
    pub fn next_events(&mut self, acked: u64, last: u64, batch: u64) -> Option<(u64, u64)> {
        if !self.is_open() {
            return None;
        }
        let after = self.connection.sent_seq.max(acked);
        let through = last.min(after.saturating_add(batch)).min(acked.saturating_add(EVENT_WINDOW));
        if through <= after {
            return None;
        }
        self.connection.sent_seq = through;
        Some((after, through))
    }

    /// Reconnect after `delay`, to whichever gateway answers; what runs goes on.
    pub fn drain(&mut self, delay: Duration, now: Duration) {
        if self.is_open() {
            self.connection.drain_at = Some(now + delay.min(PUSHBACK_MAX));
        }
    }

    /// The connection is gone, or the dial failed. `pushback` is a busy gateway's exact wish.
    pub fn ended(&mut self, why: &str, pushback: Option<Duration>, now: Duration, rng: &dyn Rng) {
        // A gateway that drains every session as soon as it is open is not one to dial in a loop.
        let drained = self.connection.drain_at.is_some()
            && now.saturating_sub(self.connection.opened_at) >= BACKOFF_FIRST;
        let wait = match pushback {
            Some(pushback) => pushback.min(PUSHBACK_MAX),
            // The gateway has already spread its nodes by the delay it gave each.
            None if drained => Duration::ZERO,
            None => self.backoff.next_wait(rng),
        };
        self.last_end = why.to_owned();
        let sent_seq = if mutant::on("agent.events-not-sent-again") { self.connection.sent_seq } else { 0 };
        self.connection = Connection { sent_seq, ..Connection::default() };
        self.phase = Phase::Waiting { until: now + wait };
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
