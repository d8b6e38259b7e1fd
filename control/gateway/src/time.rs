//! The database's time, as an offset to the monotonic clock that every answer of the database refreshes. The wall clock of the
//! machine plays no part: a gateway whose clock is wrong must not tell nodes so.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use model::Timestamp;

#[derive(Debug)]
pub(crate) struct ServerTime(AtomicI64);

impl ServerTime {
    /// `guess` stands in until the first answer; nothing is served before it.
    pub(crate) fn new(guess: Timestamp, monotonic: Duration) -> Self {
        let time = Self(AtomicI64::new(0));
        time.set(guess, monotonic, monotonic);
        time
    }

    /// The database said `server` between these two moments: it is taken to be the middle.
    pub(crate) fn set(&self, server: Timestamp, asked: Duration, answered: Duration) {
        let middle = micros(asked).saturating_add(micros(answered.saturating_sub(asked)) / 2);
        self.0.store(server.micros().saturating_sub(middle), Ordering::Relaxed);
    }

    pub(crate) fn at(&self, monotonic: Duration) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed).saturating_add(micros(monotonic)))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_taken_to_have_spoken_in_the_middle() {
        let time = ServerTime::new(Timestamp::from_millis(0), Duration::ZERO);
        time.set(Timestamp::from_millis(5_000), Duration::from_millis(100), Duration::from_millis(300));
        assert_eq!(time.at(Duration::from_millis(200)), Timestamp::from_millis(5_000));
        assert_eq!(time.at(Duration::from_millis(1_200)), Timestamp::from_millis(6_000));
    }
}
