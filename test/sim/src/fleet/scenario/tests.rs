use super::*;
use crate::fleet::Fault;

#[test]
fn a_scenario_reads_back_from_its_text() {
    let text = "nodes 3\nhosts 2\ninstances 5\nworkers 1\nminutes 7\nseed 9\nno-pokes\nno-clients\ncalm-clients\nrestores\nrenewals\nexpect undisturbed\n\
                expect ready-within-seconds 180\n60000 2000 node-clock 1 -500\n70000 1 worker:commit-lost 0 3\n";
    let config = parse(text).expect("a scenario");
    let again = parse(&Text(&config).to_string()).expect("its text");
    assert_eq!(format!("{config:?}"), format!("{again:?}"));
    assert_eq!((config.nodes, config.gateways, config.pokes), (3, DEFAULT_GATEWAYS, false));
    assert_eq!(config.script.as_ref().map(Vec::len), Some(2));
}

#[test]
fn one_line_is_a_fault_for_each() {
    let config = parse("each 1000 500 20 gateway-upgrade\ngateways 2\nnodes 3").expect("a scenario");
    let script = config.script.expect("faults");
    assert_eq!(script.iter().map(|one| one.at.as_millis()).collect::<Vec<_>>(), [1000, 1500]);
    assert_eq!(script[1].fault, Fault::GatewayUpgrade(1));
}

#[test]
fn what_is_not_known_is_refused() {
    for wrong in
        ["nodes 0", "dance", "no-pokes 3", "expect much", "chaos some", "5 x", "each 1 2 3 database-down"]
    {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
    for nowhere in ["instances 5", "nodes 3\ninstances 5\nhosts 4"] {
        assert!(parse(nowhere).expect("a scenario").checked().is_err(), "{nowhere:?}");
    }
    let beyond = parse("nodes 3\n10 10 node-crash 3").expect("a scenario").checked();
    assert!(beyond.is_err());
}

#[test]
fn every_file_is_a_scenario_by_its_name_and_says_what_it_shows() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/fleet");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .expect("the folder of scenarios")
        .map(|entry| {
            entry.expect("an entry").file_name().to_string_lossy().trim_end_matches(".txt").to_owned()
        })
        .collect();
    files.sort();
    let mut names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(files, names);
    for (name, text) in SCENARIOS {
        let read = parse(text).and_then(Config::checked);
        assert!(read.is_ok(), "{name}: {read:?}");
        assert!(says(text).len() > 20, "{name} says nothing of itself");
    }
}
