//! Small runs of the fleet simulator.

use std::time::Duration;

use sim::fleet::scenario::{SCENARIOS, named, parse};
use sim::fleet::{Chaos, Config, Outcome, run};

const MINUTE: Duration = Duration::from_secs(60);

async fn outcome(config: &Config) -> Outcome {
    match run(config, &mut |_| {}).await {
        Ok(outcome) => outcome,
        Err(err) => panic!("{err:#}"),
    }
}

#[tokio::test]
async fn a_fleet_in_which_nothing_fails_is_never_called_unreachable_and_ends_the_same_twice() {
    let config = Config::new(4, 2, 3 * MINUTE, 11);
    let first = outcome(&config).await;
    assert_eq!(first.unreachable, 0);
    assert!(first.reservations.values().sum::<i64>() > 0, "clients have booked: {first}");
    assert!(first.commands.contains_key("succeeded"), "nodes were diagnosed: {first}");
    let second = outcome(&config).await;
    assert!(first.same_as(&second), "one seed, two ends:\n{first}\n{second}");
}

#[tokio::test]
async fn a_fleet_in_which_much_fails_comes_to_rest_with_every_invariant_whole() {
    crate::mutants::choose();
    let config = Config { chaos: Chaos::Heavy, ..Config::new(8, 2, 5 * MINUTE, 12) };
    let outcome = outcome(&config).await;
    assert!(outcome.faults.values().sum::<u64>() > 20, "there were faults: {outcome}");
}

/// With a few machines: what a scenario shows of sixty, it shows of six.
const FEW: &str = "\nnodes 6\n";

async fn ends_as_it_says(is_chosen: impl Fn(&str) -> bool) {
    for (name, text) in SCENARIOS.iter().filter(|(name, _)| is_chosen(name)) {
        let config = parse(&format!("{text}{FEW}")).and_then(Config::checked);
        let config = config.unwrap_or_else(|why| panic!("{name}: {why}"));
        match run(&config, &mut |_| {}).await {
            Ok(outcome) => println!("{name}: {} s in {:?}", outcome.virtual_time.as_secs(), outcome.took),
            Err(err) => panic!("{name}: {err:#}"),
        }
    }
}

/// In a test of its own, as the longest of them.
const RESTORES: &str = "restores";
/// In a test of its own, with its own machines.
const INSTANCES: &str = "instances";
/// The same, with hosts that are gone for long.
const LOST: &str = "lost-hosts";

#[tokio::test]
async fn every_named_scenario_ends_as_it_says() {
    ends_as_it_says(|name| name != RESTORES && name != INSTANCES && name != LOST).await;
}

#[tokio::test]
async fn the_scenario_of_a_restored_database_ends_as_it_says() {
    crate::mutants::choose();
    ends_as_it_says(|name| name == RESTORES).await;
}

/// Every instance that was made is gone, and hosts were asked for all that can be asked of one.
fn lived_and_ended(outcome: &Outcome, instances: i64) {
    let ended = outcome.instances.get("deleted").copied();
    assert_eq!(
        (ended, outcome.instances.len()),
        (Some(instances), 1),
        "each was made once and is deleted: {outcome}"
    );
    for verb in ["create", "start", "stop", "reboot", "resize", "delete"] {
        let answers = outcome.answers.get(&format!("instances.{verb} ok"));
        assert!(answers.is_some_and(|answers| *answers > 0), "nobody was answered to {verb}: {outcome}");
    }
}

#[tokio::test]
async fn two_hundred_instances_live_and_end_on_three_hosts_and_nothing_of_any_is_left() {
    let config = named(INSTANCES).and_then(|config| config.checked().map_err(anyhow::Error::msg));
    let config = config.expect("a scenario");
    assert_eq!((config.instances, config.hosts, config.chaos), (200, 3, Chaos::Light));
    let outcome = outcome(&config).await;
    assert!(outcome.faults.values().sum::<u64>() > 5, "there were faults: {outcome}");
    lived_and_ended(&outcome, 200);
}

#[tokio::test]
async fn the_same_instances_twice_end_the_same() {
    let some = Config { instances: 40, hosts: 2, chaos: Chaos::Light, ..Config::new(2, 2, 3 * MINUTE, 5) };
    let first = outcome(&some).await;
    lived_and_ended(&first, 40);
    let second = outcome(&some).await;
    assert!(first.same_as(&second), "one seed, two ends:\n{first}\n{second}");
}

#[tokio::test]
async fn hosts_that_are_lost_come_back_or_are_dead_and_nothing_runs_twice() {
    crate::mutants::choose();
    let config = named(LOST).and_then(|config| config.checked().map_err(anyhow::Error::msg));
    let outcome = outcome(&config.expect("a scenario")).await;
    let answers = outcome.answers.get("nodes.abandon ok");
    assert_eq!(answers, Some(&2), "both were declared dead: {outcome}");
    assert_eq!(outcome.instances.keys().collect::<Vec<_>>(), ["deleted"], "{outcome}");
}

/// Where mutants are looked for, by the seeds of the environment.
#[tokio::test]
async fn instances_come_to_rest_on_hosts_that_much_happens_to() {
    crate::mutants::choose();
    let seed = std::env::var("BC_SIM_SEED").ok().map_or(11, |seed| seed.parse().expect("it is a number"));
    let some = Config { instances: 40, hosts: 2, chaos: Chaos::Heavy, ..Config::new(2, 2, 4 * MINUTE, seed) };
    let outcome = outcome(&Config { check_every: Duration::from_secs(15), ..some }).await;
    assert!(outcome.faults.values().sum::<u64>() > 40, "there were faults: {outcome}");
    lived_and_ended(&outcome, 40);
}

#[tokio::test]
async fn a_restored_database_destroys_no_instance_that_it_does_not_know() {
    crate::mutants::choose();
    let text = "
        nodes 3
        hosts 3
        instances 50
        gateways 2
        minutes 9
        seed 4
        60000 1000 database-backup
        90000 5000 node-crash 0
        150000 20000 hypervisor-down 1
        180000 60000 database-restore
        200000 20000 node-power 2
        270000 1000 database-backup
        300000 60000 gateway-kill 0
        360000 100000 database-restore
        380000 5000 node-journal-lost 1";
    let config = parse(text).and_then(Config::checked).expect("a scenario");
    let outcome = outcome(&config).await;
    assert_eq!(outcome.instances.keys().collect::<Vec<_>>(), ["deleted"], "{outcome}");
}
