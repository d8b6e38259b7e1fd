//! Every kind of fault there is, by what it is a fault of. A run counts those that hit something under these names; one that is
//! not here, and one that a few hundred seeds never hit, fails a test.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What faults are faults of, and their names.
pub const KINDS: &[(&str, &[&str])] = &[
    (
        "a daemon dies at one of its waits",
        &[
            "crash-started",
            "crash-decided",
            "crash-appended",
            "crash-committed",
            "crash-mirror",
            "crash-effect",
            "crash-acted",
            "crash-passed",
        ],
    ),
    ("a machine", &["reboot", "slow", "clock", "disk-full"]),
    ("the network", &["partition", "one-way-partition", "cut", "delay"]),
    ("a gateway", &["kill-gateway", "pause", "suspend", "drain", "gateway-clock"]),
    (
        "a gateway dies in one of its calls",
        &[
            "gateway-dies-renew",
            "gateway-dies-open",
            "gateway-dies-heartbeats",
            "gateway-dies-ended",
            "gateway-dies-claim",
            "gateway-dies-cancels",
            "gateway-dies-updates",
            "gateway-dies-events",
            "gateway-dies-statuses",
            "gateway-dies-specs-behind",
            "gateway-dies-spec",
        ],
    ),
    ("the control plane", &["database", "late-renewal", "workers", "restore", "certificate-revoked"]),
    (
        "versions",
        &["node-release", "gateway-release", "old-agent", "new-agent", "old-gateway", "new-gateway"],
    ),
    (
        "a hostile gateway",
        &[
            "replay",
            "divert",
            "withhold",
            "swap",
            "double",
            "forge-command",
            "alter-command",
            "forge-spec",
            "old-spec",
            "stale-spec",
            "forge-ack",
            "old-ack",
            "high-ack",
            "forge-cancel",
            "past-welcome",
            "future-welcome",
            "future-beat",
            "revoke",
            "garbage",
        ],
    ),
    (
        "a hostile node",
        &[
            "other-node",
            "high-generation",
            "high-observed",
            "high-epoch",
            "foreign-result",
            "regress",
            "old-events",
            "foreign-events",
            "foreign-status",
            "node-double",
            "second-hello",
        ],
    ),
];

/// What follows from other faults. It is told, and not counted as one.
pub const FOLLOWS: &[&str] = &[
    "lost-writes",
    "torn-record",
    "journal-lost",
    "truncated",
    "zombie-write",
    "unknown-frame",
    "upgrade-required",
];

pub fn faults() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|(_, names)| names.iter().copied())
}

/// Hits by kind, one group a line, and what was never hit.
pub fn table(hits: &BTreeMap<&'static str, u64>) -> String {
    let count = |name: &&str| hits.get(name).copied().unwrap_or(0);
    let mut text = String::new();
    for (group, names) in KINDS.iter().copied().chain([("what follows", FOLLOWS)]) {
        let counts: Vec<String> = names.iter().map(|name| format!("{name} {}", count(name))).collect();
        let _ = writeln!(text, "  {group}: {}", counts.join(", "));
    }
    let never: Vec<&str> = faults().filter(|name| count(name) == 0).collect();
    if !never.is_empty() {
        let _ = writeln!(text, "  never hit: {}", never.join(", "));
    }
    text
}
