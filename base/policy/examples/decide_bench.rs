//! Decisions per second over 100 policies of 10 statements. Run with `--release`; prints the time of one decision at
//! p50 and p99 in nanoseconds, after that of reading the clock, which is part of each.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use policy::{Attributes, Compiled, Document, PolicyRef, Request, Value};

const POLICIES: usize = 100;
const STATEMENTS: usize = 10;
const DECISIONS: usize = 1_000_000;
const RESOURCES: [&str; 10] = [
    "instances",
    "sandboxes",
    "reservations",
    "volumes",
    "images",
    "nodes",
    "pools",
    "machines",
    "secrets",
    "tunnels",
];
const VERBS: [&str; 6] = ["create", "get", "list", "delete", "start", "extend"];

fn main() -> Result<(), policy::ParseError> {
    let documents: Vec<Document> =
        (0..POLICIES).map(|at| Document::parse(text(at))).collect::<Result<_, _>>()?;
    let named: Vec<_> = documents
        .iter()
        .enumerate()
        .map(|(at, document)| (PolicyRef::from(format!("pol_{at:03}")), document))
        .collect();
    let start = Instant::now();
    let compiled = Compiled::compile(&named);
    println!("compile {} statements  {:>9.1} us", POLICIES * STATEMENTS, start.elapsed().as_secs_f64() * 1e6);

    let actions: Vec<String> = RESOURCES
        .iter()
        .flat_map(|kind| VERBS.iter().map(move |verb| format!("compute:{kind}:{verb}")))
        .collect();
    let mut clock: Vec<u64> = (0..100_000).map(|_| nanos(Instant::now())).collect();
    report("reading the clock", &mut clock);
    // Allowed by one of the last statements, denied by the first, and refused after a look at all of them.
    run("allowed", &compiled, &actions, &attributes([10, 1, 2, 3], true));
    run("denied", &compiled, &actions, &attributes([192, 0, 2, 1], true));
    run("nothing matches", &compiled, &actions, &attributes([10, 1, 2, 3], false));
    Ok(())
}

fn attributes(from: [u8; 4], image_verified: bool) -> Attributes<'static> {
    Attributes::new()
        .with("principal.tenantId", "ten_01")
        .with("principal.groups", ["ops", "ml"].into_iter().collect::<Value<'_>>())
        .with("resource.vcpu", 8)
        .with("resource.memoryGiB", 32)
        .with("resource.gpus", 0)
        .with("resource.imageVerified", image_verified)
        .with("resource.projectId", "prj_07")
        .with("request.time", Value::Time(1_772_359_200_000_000))
        .with("request.sourceIp", std::net::IpAddr::from(from))
        .with("request.delegated", false)
}

fn run(what: &str, compiled: &Compiled, actions: &[String], attributes: &Attributes<'_>) {
    let resource = "compute-thing/ten_01/thing_01k5w";
    let requests: Vec<Request<'_>> =
        actions.iter().map(|action| Request { action, resource, attributes }).collect();
    let allowed = requests.iter().filter(|request| compiled.decide(request).is_allowed()).count();
    let start = Instant::now();
    for request in requests.iter().cycle().take(DECISIONS) {
        black_box(compiled.decide(black_box(request)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut times = Vec::with_capacity(DECISIONS);
    for request in requests.iter().cycle().take(DECISIONS) {
        let start = Instant::now();
        black_box(compiled.decide(black_box(request)));
        times.push(nanos(start));
    }
    report(what, &mut times);
    let per_second = DECISIONS as f64 / seconds;
    println!("{:<20} {per_second:>9.0} decisions/s; {allowed} of {} requests allowed", "", requests.len());
}

/// A policy for two kinds of resource, of exact and wildcard actions, with a deny.
fn text(policy: usize) -> String {
    let mut statements = String::new();
    for at in 0..STATEMENTS {
        let kind = RESOURCES[(policy + at) % RESOURCES.len()];
        let action = match at % 3 {
            0 => format!("compute:{kind}:*"),
            _ => format!("compute:{kind}:{}", VERBS[(policy + at) % VERBS.len()]),
        };
        let (effect, conditions) = match at {
            0 => ("deny", r#"{"NotIpAddress": {"request.sourceIp": "10.0.0.0/8"}}"#),
            1 | 2 => ("allow", r#"{"NumericLessThanEquals": {"resource.vcpu": 4}}"#),
            3 | 4 => ("allow", r#"{"StringEquals": {"resource.projectId": ["prj_01", "prj_02"]}}"#),
            5 | 6 => ("allow", r#"{"ForAnyValue:StringLike": {"principal.groups": "admin*"}}"#),
            _ => (
                "allow",
                r#"{"Bool": {"resource.imageVerified": true}, "NumericEquals": {"resource.gpus": 0}}"#,
            ),
        };
        let comma = if at == 0 { "" } else { "," };
        let resource = if at % 2 == 0 { "*" } else { "compute-thing/${principal.tenantId}/*" };
        let _ = write!(
            statements,
            r#"{comma}{{"sid": "S{at}", "effect": "{effect}", "actions": ["{action}"], "resources": ["{resource}"], "conditions": {conditions}}}"#
        );
    }
    format!(r#"{{"statements": [{statements}]}}"#)
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn report(what: &str, times: &mut [u64]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what:<20} p50 {:>6} ns  p99 {:>6} ns  worst {:>8} ns", at(0.5), at(0.99), at(1.0));
}
