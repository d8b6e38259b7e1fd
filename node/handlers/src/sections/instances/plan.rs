//! What is to be done about one instance. Pure.

use wire::proto::agent::{DesiredInstance, InstanceObservedState as Seen};

use super::port::Power;

/// In two rounds: what takes away, of all instances, before what adds, of any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Destroy,
    Stop,
    Define,
    Start,
}

impl Step {
    /// It frees what others may be waiting for.
    pub const fn takes_away(self) -> bool {
        match self {
            Step::Destroy | Step::Stop => true,
            Step::Define | Step::Start => false,
        }
    }
}

/// `boot` is the start that is wanted, `booted` the one that what runs was started for; none when that is not known, and
/// then it is taken for the wanted one.
pub fn plan(desired: DesiredInstance, boot: u64, held: Option<Power>, booted: Option<u64>) -> Vec<Step> {
    use Step::{Define, Destroy, Start, Stop};
    match (desired, held) {
        (DesiredInstance::Deleted, Some(_)) => vec![Destroy],
        (DesiredInstance::Deleted, None) => Vec::new(),
        (DesiredInstance::Stopped, None | Some(Power::Incomplete)) => vec![Define],
        (DesiredInstance::Stopped, Some(Power::Stopped)) => Vec::new(),
        (DesiredInstance::Stopped, Some(Power::Running | Power::Paused)) => vec![Stop],
        (DesiredInstance::Running, None | Some(Power::Incomplete | Power::Stopped)) => vec![Define, Start],
        (DesiredInstance::Running, Some(Power::Running | Power::Paused))
            if booted.is_some_and(|at| at < boot) && !kit::mutant::on("instances.later-start-is-none") =>
        {
            vec![Stop, Define, Start]
        }
        (DesiredInstance::Running, Some(Power::Paused)) => vec![Start],
        (DesiredInstance::Running, Some(Power::Running)) => Vec::new(),
        // Of a newer control plane: nothing is done to what is there, and nothing is made.
        (DesiredInstance::Unspecified, _) => Vec::new(),
    }
}

/// What is to be done about one that must not run.
pub fn stop(held: Option<Power>) -> Vec<Step> {
    match held {
        Some(Power::Running | Power::Paused) => vec![Step::Stop],
        Some(Power::Stopped | Power::Incomplete) | None => Vec::new(),
    }
}

/// What is reported of an instance as it is.
pub fn seen(desired: DesiredInstance, held: Option<Power>) -> Seen {
    match (desired, held) {
        (DesiredInstance::Deleted, None) => Seen::Absent,
        (_, Some(Power::Running)) => Seen::Running,
        (_, Some(Power::Paused)) => Seen::Paused,
        (_, Some(Power::Stopped)) => Seen::Stopped,
        (_, Some(Power::Incomplete) | None) => Seen::Pending,
    }
}

#[cfg(test)]
mod tests {
    use DesiredInstance as D;
    use Step::{Define, Destroy, Start, Stop};

    use super::*;

    #[test]
    fn what_is_as_wanted_is_left_alone() {
        assert_eq!(plan(D::Running, 1, Some(Power::Running), Some(1)), []);
        assert_eq!(plan(D::Running, 1, Some(Power::Running), None), []);
        assert_eq!(plan(D::Stopped, 1, Some(Power::Stopped), Some(1)), []);
        assert_eq!(plan(D::Deleted, 1, None, Some(1)), []);
    }

    #[test]
    fn each_step_is_made_where_it_is_wanted() {
        assert_eq!(plan(D::Running, 1, None, None), [Define, Start]);
        assert_eq!(plan(D::Running, 1, Some(Power::Incomplete), None), [Define, Start]);
        assert_eq!(plan(D::Running, 1, Some(Power::Paused), None), [Start]);
        assert_eq!(plan(D::Stopped, 1, Some(Power::Paused), None), [Stop]);
        assert_eq!(plan(D::Stopped, 1, None, None), [Define]);
        for power in [Power::Incomplete, Power::Stopped, Power::Running, Power::Paused] {
            assert_eq!(plan(D::Deleted, 1, Some(power), Some(1)), [Destroy]);
            assert_eq!(plan(D::Unspecified, 1, Some(power), Some(1)), []);
        }
    }

    #[test]
    fn one_that_runs_since_an_earlier_start_starts_anew_once() {
        assert_eq!(plan(D::Running, 4, Some(Power::Running), Some(3)), [Stop, Define, Start]);
        assert_eq!(plan(D::Running, 4, Some(Power::Running), Some(4)), []);
        assert_eq!(plan(D::Running, 4, Some(Power::Stopped), Some(3)), [Define, Start]);
    }

    #[test]
    fn nothing_is_absent_but_what_was_to_go() {
        assert_eq!(seen(D::Deleted, None), Seen::Absent);
        assert_eq!(seen(D::Running, None), Seen::Pending);
        assert_eq!(seen(D::Deleted, Some(Power::Incomplete)), Seen::Pending);
    }
}
