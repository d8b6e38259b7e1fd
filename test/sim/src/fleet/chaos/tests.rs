use super::*;

fn config(seed: u64) -> Config {
    let six_hours = Duration::from_secs(6 * 3600);
    let hosts = Config { instances: 9, hosts: 3, ..Config::new(60, 3, six_hours, seed) };
    Config { chaos: Chaos::Heavy, restores: true, ..hosts }
}

#[test]
fn a_seed_deals_the_same_faults() {
    assert_eq!(deal(&config(3)), deal(&config(3)));
    assert_ne!(deal(&config(3)), deal(&config(4)));
}

#[test]
fn hosts_of_instances_have_faults_of_their_own_and_all_others_stay_as_they_are() {
    let without = deal(&Config { instances: 0, ..config(3) });
    let mut with = deal(&config(3));
    assert!(with.len() > without.len());
    with.retain(|one| !matches!(one.fault, Fault::HypervisorDown(_) | Fault::HypervisorCut(..)));
    assert_eq!(with, without);
}

#[test]
fn every_fault_reads_as_it_is_written() {
    let planned = deal(&config(7));
    let mut names: Vec<&str> = planned.iter().map(|one| one.fault.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 19, "six heavy hours have every kind of fault: {names:?}");
    for one in planned {
        assert_eq!(one.to_string().parse::<Planned>(), Ok(one));
    }
}

#[test]
fn what_is_no_fault_is_refused() {
    for line in [
        "",
        "1 2",
        "1 2 node-crash",
        "1 2 node-crash x",
        "x 2 node-crash 1",
        "1 2 worker:dies 1 2",
        "1 2 other 1",
    ] {
        assert!(line.parse::<Planned>().is_err(), "{line:?}");
    }
}
