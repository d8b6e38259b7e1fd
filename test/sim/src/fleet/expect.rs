//! What must come of a run besides that no invariant was broken.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Asked while it runs or at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Every node takes work, so soon after the begin.
    ReadyWithin(Duration),
    /// Once all nodes were served, none is without a session with a living gateway for longer.
    ServedAgainWithin(Duration),
    /// No node is called unreachable.
    NeverUnreachable,
    /// No reservation is moved or fails.
    Undisturbed,
    /// At least so many certificates were renewed.
    Renewals(u64),
    /// At least so many reservations were made.
    Reservations(u64),
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expect::ReadyWithin(within) => write!(f, "ready-within-seconds {}", within.as_secs()),
            Expect::ServedAgainWithin(within) => {
                write!(f, "served-again-within-seconds {}", within.as_secs())
            }
            Expect::NeverUnreachable => write!(f, "never-unreachable"),
            Expect::Undisturbed => write!(f, "undisturbed"),
            Expect::Renewals(least) => write!(f, "renewals {least}"),
            Expect::Reservations(least) => write!(f, "reservations {least}"),
        }
    }
}

impl FromStr for Expect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(' ').unwrap_or((text, ""));
        let number = || value.parse::<u64>().map_err(|_| format!("{text:?} is without its number"));
        let seconds = || number().map(Duration::from_secs);
        match name {
            "ready-within-seconds" => Ok(Expect::ReadyWithin(seconds()?)),
            "served-again-within-seconds" => Ok(Expect::ServedAgainWithin(seconds()?)),
            "never-unreachable" if value.is_empty() => Ok(Expect::NeverUnreachable),
            "undisturbed" if value.is_empty() => Ok(Expect::Undisturbed),
            "renewals" => Ok(Expect::Renewals(number()?)),
            "reservations" => Ok(Expect::Reservations(number()?)),
            _ => Err(format!("{text:?} is nothing that can be expected")),
        }
    }
}

/// What a run showed of itself, for what is expected of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// When every node took work for the first time, since the begin.
    pub ready_after: Option<Duration>,
    /// The longest time in which some node had no session, once all had one.
    pub unserved_longest: Duration,
    /// Reservations that were moved or failed.
    pub disturbed: i64,
    pub renewals: u64,
}

impl Expect {
    /// What is otherwise, if anything.
    pub fn unmet(self, shown: &Shown, unreachable: i64, reservations: i64) -> Option<String> {
        let (met, was) = match self {
            Expect::ReadyWithin(within) => {
                let after = shown.ready_after;
                (after.is_some_and(|after| after <= within), format!("{after:?}"))
            }
            Expect::ServedAgainWithin(within) => {
                let longest = shown.unserved_longest;
                (longest <= within, format!("{longest:?}"))
            }
            Expect::NeverUnreachable => (unreachable == 0, format!("{unreachable} times")),
            Expect::Undisturbed => (shown.disturbed == 0, format!("{} were", shown.disturbed)),
            Expect::Renewals(least) => (shown.renewals >= least, format!("{}", shown.renewals)),
            Expect::Reservations(least) => {
                (reservations >= i64::try_from(least).unwrap_or(i64::MAX), format!("{reservations}"))
            }
        };
        (!met).then(|| format!("expected was {self}; it was {was}"))
    }
}
