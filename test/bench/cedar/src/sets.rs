//! Policies and requests as plain values, from which each side writes its own.

use std::net::Ipv4Addr;

pub struct Set {
    pub name: &'static str,
    pub policies: Vec<Policy>,
    pub requests: Vec<Asked>,
}

pub struct Policy {
    pub statements: Vec<Statement>,
}

pub struct Statement {
    pub allow: bool,
    /// One action, or all of one kind of resource.
    pub action: Action,
    pub resources: Resources,
    pub conditions: Vec<Condition>,
}

pub enum Action {
    One { kind: &'static str, verb: &'static str },
    AllOf { kind: &'static str },
}

pub enum Resources {
    All,
    /// Every resource of this type.
    Of(&'static str),
    /// Those of this type that belong to the caller's tenant.
    OwnTenant(&'static str),
}

#[derive(Clone, Copy)]
pub enum Condition {
    TextIs {
        attribute: &'static str,
        values: &'static [&'static str],
    },
    AtMost {
        attribute: &'static str,
        value: i64,
    },
    Equals {
        attribute: &'static str,
        value: i64,
    },
    IsTrue {
        attribute: &'static str,
    },
    InGroup {
        group: &'static str,
    },
    /// An address with the length of its prefix.
    NotFrom {
        block: &'static str,
    },
}

/// A request, with what it is about.
#[derive(Clone)]
pub struct Asked {
    pub kind: &'static str,
    pub verb: &'static str,
    pub resource_type: &'static str,
    pub texts: Vec<(&'static str, &'static str)>,
    pub numbers: Vec<(&'static str, i64)>,
    pub flags: Vec<(&'static str, bool)>,
    pub source_ip: Ipv4Addr,
}

pub const TENANT: &str = "ten_01";
pub const GROUPS: [&str; 2] = ["ops", "ml"];

pub const KINDS: [&str; 10] = [
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
pub const VERBS: [&str; 6] = ["create", "get", "list", "delete", "start", "extend"];

const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A reservation of at most eight H100, and an extension to at most 72 hours.
pub fn roadmap() -> Set {
    let allow = |verb, conditions| Policy {
        statements: vec![Statement {
            allow: true,
            action: Action::One { kind: "reservations", verb },
            resources: Resources::Of("reservation"),
            conditions,
        }],
    };
    let asked = |verb, model: &'static str, gpus, hours| Asked {
        kind: "reservations",
        verb,
        resource_type: "reservation",
        texts: vec![("gpuModel", model)],
        numbers: vec![("gpus", gpus), ("totalHours", hours)],
        flags: vec![],
        source_ip: INSIDE,
    };
    Set {
        name: "two policies",
        policies: vec![
            allow(
                "create",
                vec![
                    Condition::TextIs { attribute: "gpuModel", values: &["H100"] },
                    Condition::AtMost { attribute: "gpus", value: 8 },
                ],
            ),
            allow("extend", vec![Condition::AtMost { attribute: "totalHours", value: 72 }]),
        ],
        requests: vec![
            asked("create", "H100", 8, 24),
            asked("create", "H100", 9, 24),
            asked("create", "H200", 1, 24),
            asked("extend", "H100", 8, 72),
            asked("extend", "H100", 8, 73),
            asked("release", "H100", 8, 24),
        ],
    }
}

/// A hundred policies of ten statements each: denies by address, limits, projects, groups and verified images.
pub fn hundred() -> Set {
    let request = |kind, verb, verified, source_ip| Asked {
        kind,
        verb,
        resource_type: "thing",
        texts: vec![("projectId", "prj_07")],
        numbers: vec![("vcpu", 8), ("gpus", 0), ("memoryGiB", 32)],
        flags: vec![("imageVerified", verified)],
        source_ip,
    };
    let each = |verified, source_ip| {
        KINDS
            .iter()
            .flat_map(move |kind| VERBS.iter().map(move |verb| request(kind, verb, verified, source_ip)))
    };
    Set {
        name: "a hundred policies",
        policies: (0..100)
            .map(|at| Policy { statements: (0..10).map(|of| statement(at, of)).collect() })
            .collect(),
        // Allowed by one of the last statements of a policy, denied by a first, and refused after a look at all.
        requests: each(true, INSIDE).chain(each(true, OUTSIDE)).chain(each(false, INSIDE)).collect(),
    }
}

fn statement(policy: usize, of: usize) -> Statement {
    let kind = KINDS[(policy + of) % KINDS.len()];
    let action = match of % 3 {
        0 => Action::AllOf { kind },
        _ => Action::One { kind, verb: VERBS[(policy + of) % VERBS.len()] },
    };
    let resources = if of.is_multiple_of(2) { Resources::All } else { Resources::OwnTenant("thing") };
    let conditions = match of {
        0 => vec![Condition::NotFrom { block: "10.0.0.0/8" }],
        1 | 2 => vec![Condition::AtMost { attribute: "vcpu", value: 4 }],
        3 | 4 => vec![Condition::TextIs { attribute: "projectId", values: &["prj_01", "prj_02"] }],
        5 | 6 => vec![Condition::InGroup { group: "admins" }],
        _ => vec![
            Condition::IsTrue { attribute: "imageVerified" },
            Condition::Equals { attribute: "gpus", value: 0 },
        ],
    };
    Statement { allow: of != 0, action, resources, conditions }
}
