//! What a list shows of each thing, by method.

use serde_json::Value;

use super::table::Column;
use super::text::{age, at, get, gib_pair, model, number, plain, printable, short};

const fn column(head: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { head, wide: false, cell }
}

const fn wide(head: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { head, wide: true, cell }
}

const ID: Column = column("ID", |v| at(v, "id"));
const NAME: Column = column("NAME", |v| at(v, "name"));
const STATE: Column = column("STATE", |v| at(v, "state"));
const AGE: Column = column("AGE", |v| age(number(v, "ageSeconds")));
const TENANT: Column = column("TENANT", |v| at(v, "tenant.name"));
const TENANT_WIDE: Column = wide("TENANT", |v| at(v, "tenant.name"));
const ID_WIDE: Column = wide("ID", |v| at(v, "id"));
const EXPIRES: Column = column("EXPIRES", |v| match get(v, "expiresInSeconds").as_u64() {
    None => "never".to_owned(),
    Some(0) => "over".to_owned(),
    Some(seconds) => format!("in {}", age(seconds)),
});

/// The columns of a list, or none for a method whose answer is one thing.
pub fn of(method: &str) -> Option<&'static [Column]> {
    Some(match method {
        "tenants.list" => TENANTS,
        "users.list" => USERS,
        "tokens.list" => TOKENS,
        "policies.list" => POLICIES,
        "bindings.list" => BINDINGS,
        "sites.list" => SITES,
        "pools.list" => POOLS,
        "joinTokens.list" => JOIN_TOKENS,
        "joinRequests.list" => JOIN_REQUESTS,
        "nodes.list" => NODES,
        "nodes.listSshCerts" => SSH_CERTS,
        "commands.list" => COMMANDS,
        "reservations.list" => RESERVATIONS,
        "flavors.list" => FLAVORS,
        "images.list" => IMAGES,
        "instances.list" => INSTANCES,
        "secrets.list" => SECRETS,
        "tunnels.list" => TUNNELS,
        "quotas.list" => QUOTAS,
        "events.list" => EVENTS,
        "audit.list" => AUDIT,
        "work.listParked" => WORK,
        _ => return None,
    })
}

const TENANTS: &[Column] = &[NAME, STATE, column("PARENT", |v| at(v, "parent.name")), ID, AGE];

const SECRETS: &[Column] = &[
    NAME,
    column("VERSION", |v| number(v, "version").to_string()),
    column("BYTES", |v| number(v, "sizeBytes").to_string()),
    TENANT_WIDE,
    ID,
    AGE,
];

const USERS: &[Column] = &[
    NAME,
    column("KIND", |v| at(v, "kind")),
    TENANT,
    wide("EMAIL", |v| at(v, "email")),
    ID,
    column(
        "STATE",
        |v| if get(v, "disabledAt").is_null() { "active".to_owned() } else { "disabled".to_owned() },
    ),
    AGE,
];

const TOKENS: &[Column] = &[
    ID,
    NAME,
    column("USER", |v| at(v, "user.name")),
    column("STATE", |v| match (get(v, "revokedAt").is_null(), number(v, "expiresInSeconds")) {
        (false, _) => "revoked".to_owned(),
        (true, 0) => "expired".to_owned(),
        (true, _) => "active".to_owned(),
    }),
    EXPIRES,
    wide("LAST USED", |v| at(v, "lastUsedAt")),
    AGE,
];

const POLICIES: &[Column] = &[
    NAME,
    TENANT,
    column("VERSION", |v| at(v, "version")),
    ID,
    AGE,
    wide("UPDATED", |v| at(v, "updatedAt")),
];

const BINDINGS: &[Column] =
    &[ID, column("USER", |v| at(v, "user.name")), column("POLICY", |v| at(v, "policy.name")), TENANT, AGE];

const SITES: &[Column] = &[NAME, column("NODES", |v| at(v, "nodes")), ID, AGE];

const POOLS: &[Column] = &[
    NAME,
    column("CLASS", |v| at(v, "class")),
    STATE,
    column("READY", |v| format!("{}/{}", number(v, "nodesReady"), number(v, "nodes"))),
    column("GPUS", gpus),
    column("FREE", free_gpus),
    column("PLACEMENT", |v| match at(v, "policy.placement") {
        text if text.is_empty() => "pack".to_owned(),
        text => text,
    }),
    TENANT_WIDE,
    ID_WIDE,
    AGE,
];

const SSH_CERTS: &[Column] = &[
    column("SERIAL", |v| at(v, "serial")),
    column("NODE", |v| at(v, "node.name")),
    column("ACCOUNT", |v| at(v, "account")),
    STATE,
    column("ISSUED TO", |v| at(v, "issuedTo.name")),
    column("REASON", |v| at(v, "reason")),
    column("VALID BEFORE", |v| at(v, "validBefore")),
    wide("KEY", |v| at(v, "keyFingerprint")),
    wide("FROM", |v| at(v, "sourceIp")),
    AGE,
];

const JOIN_TOKENS: &[Column] = &[
    ID,
    column("SITE", |v| at(v, "site.name")),
    column("POOL", |v| at(v, "pool.name")),
    column("ROLE", |v| at(v, "role")),
    STATE,
    column("USES", |v| format!("{}/{}", number(v, "uses"), number(v, "usesMax"))),
    column("APPROVAL", |v| if get(v, "deferred") == true { "each".to_owned() } else { "none".to_owned() }),
    EXPIRES,
    wide("BY", |v| at(v, "createdBy.name")),
    AGE,
];

const JOIN_REQUESTS: &[Column] = &[
    ID,
    column("HOSTNAME", |v| at(v, "hostname")),
    STATE,
    column("SITE", |v| at(v, "site.name")),
    column("ROLE", |v| at(v, "role")),
    column("SOURCE", |v| at(v, "sourceIp")),
    column("FINGERPRINT", |v| short(&at(v, "fingerprint"), 16)),
    wide("AGENT", |v| at(v, "agentVersion")),
    wide("NODE", |v| at(v, "node.name")),
    column("LAST SEEN", |v| age(number(v, "lastSeenSeconds"))),
];

const FLAVORS: &[Column] = &[
    NAME,
    column("VCPU", |v| at(v, "vcpu")),
    column("MEMORY", |v| format!("{} MiB", number(v, "memoryMiB"))),
    column("DISK", |v| format!("{} GiB", number(v, "diskGiB"))),
    column("GPUS", |v| format!("{} {}", number(v, "gpus"), model(&at(v, "gpuModel"))).trim_end().to_owned()),
    wide("PLACEMENT", placement),
    wide("POOL", |v| at(v, "pool.name")),
    ID,
    AGE,
];

const IMAGES: &[Column] = &[
    NAME,
    STATE,
    column("FORMAT", |v| at(v, "format")),
    column("SHARED", |v| if get(v, "shared") == true { "yes".to_owned() } else { "no".to_owned() }),
    column("VERIFIED", |v| if get(v, "verified") == true { "yes".to_owned() } else { "no".to_owned() }),
    column("SHA256", |v| short(&at(v, "sha256"), 16)),
    TENANT_WIDE,
    wide("URL", |v| at(v, "url")),
    ID,
    AGE,
];

const INSTANCES: &[Column] = &[
    ID,
    NAME,
    STATE,
    column("POOL", |v| at(v, "pool.name")),
    column("FLAVOR", |v| at(v, "flavor.name")),
    column("IMAGE", |v| at(v, "image.name")),
    column("NODE", |v| at(v, "node.name")),
    column("ADDRESS", |v| get(v, "addresses").get(0).map(plain).unwrap_or_default()),
    TENANT_WIDE,
    wide("BY", |v| at(v, "createdBy.name")),
    AGE,
    column("WHY", |v| {
        let condition = get(v, "conditions").get(0).map(|first| at(first, "message")).unwrap_or_default();
        if condition.is_empty() { at(v, "waitingReason") } else { condition }
    }),
];

const TUNNELS: &[Column] = &[
    ID,
    STATE,
    column("OP", |v| at(v, "op")),
    column("PORT", |v| at(v, "port")),
    column("INSTANCE", |v| at(v, "instance")),
    column("NODE", |v| at(v, "node.name")),
    column("BY", |v| at(v, "openedBy.name")),
    column("FROM", |v| at(v, "sourceIp")),
    TENANT_WIDE,
    wide("TO NODE", |v| at(v, "toNodeBytes")),
    wide("TO CLIENT", |v| at(v, "toClientBytes")),
    AGE,
    column("WHY", |v| at(v, "reason")),
];

const NODES: &[Column] = &[
    NAME,
    column("STATE", node_state),
    column("POOL", |v| at(v, "pool.name")),
    column("GPUS", gpus),
    column("FREE", free_gpus),
    column("CPU FREE", |v| format!("{}/{}", number(v, "vcpu.free"), number(v, "vcpu.total"))),
    column("MEM FREE", |v| gib_pair(number(v, "memoryGiB.free"), number(v, "memoryGiB.total"))),
    wide("DISK FREE", |v| match get(v, "diskGiB").is_null() {
        true => "-".to_owned(),
        false => gib_pair(number(v, "diskGiB.free"), number(v, "diskGiB.total")),
    }),
    column("LAST SEEN", |v| get(v, "lastSeenSeconds").as_u64().map(age).unwrap_or_default()),
    wide("SITE", |v| at(v, "site.name")),
    wide("AGENT", |v| at(v, "agentVersion")),
    wide("GENERATION", |v| {
        let of = |name| number(v, name);
        format!("{}/{}/{}", of("observedGeneration"), of("appliedGeneration"), of("generation"))
    }),
    ID_WIDE,
    column("CONDITIONS", node_conditions),
];

const COMMANDS: &[Column] = &[
    ID,
    column("NODE", |v| at(v, "node.name")),
    column("KIND", |v| at(v, "kind")),
    STATE,
    wide("LANE", |v| at(v, "lane")),
    wide("ATTEMPTS", |v| at(v, "attempts")),
    wide("BY", |v| at(v, "createdBy")),
    AGE,
    column("MESSAGE", |v| match (at(v, "reason"), at(v, "message")) {
        (reason, message) if reason.is_empty() => message,
        (reason, message) if message.is_empty() => reason,
        (reason, message) => format!("{reason}: {message}"),
    }),
];

const RESERVATIONS: &[Column] = &[
    ID,
    NAME,
    STATE,
    column("POOL", |v| at(v, "pool.name")),
    column("HOLDS", reservation_holds),
    column("NODE", |v| at(v, "node.name")),
    EXPIRES,
    AGE,
    TENANT_WIDE,
    wide("BY", |v| at(v, "createdBy.name")),
    column("WHY", |v| {
        let condition = get(v, "conditions").get(0).map(|first| at(first, "message")).unwrap_or_default();
        [at(v, "failure"), at(v, "waitingReason"), condition]
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    }),
];

const QUOTAS: &[Column] = &[
    column("RESOURCE", |v| at(v, "resource")),
    column("USED", |v| at(v, "used")),
    column("LIMIT", |v| at(v, "amount")),
    TENANT,
    ID_WIDE,
];

const EVENTS: &[Column] = &[
    column("SEQ", |v| at(v, "seq")),
    column("TIME", |v| at(v, "time")),
    column("TYPE", |v| at(v, "type")),
    column("SUBJECT", |v| at(v, "subject")),
    wide("ID", |v| at(v, "id")),
    column("DATA", |v| at(v, "data")),
];

const AUDIT: &[Column] = &[
    AGE,
    column("WHO", |v| at(v, "principal")),
    column("ACTION", |v| at(v, "action")),
    column("RESOURCE", |v| at(v, "resource")),
    column("DECISION", |v| at(v, "decision")),
    column("OUTCOME", |v| at(v, "outcome")),
    wide("FROM", |v| at(v, "sourceIp")),
    wide("REQUEST", |v| at(v, "requestId")),
    ID_WIDE,
];

const WORK: &[Column] = &[
    ID,
    column("QUEUE", |v| at(v, "queue")),
    column("KEY", |v| at(v, "key")),
    column("ATTEMPTS", |v| at(v, "attempts")),
    column("PARKED", |v| age(number(v, "parkedSeconds"))),
    column("ERROR", |v| at(v, "lastError")),
];

/// How a flavor's instances have their host: `numa pinned pages of 1Gi`.
fn placement(v: &Value) -> String {
    let is = |name: &str| get(v, name) == true;
    let pages = at(v, "placement.hugepages");
    let words = [
        is("placement.numaAffine").then(|| "numa".to_owned()),
        is("placement.pinned").then(|| "pinned".to_owned()),
        (!pages.is_empty()).then(|| format!("pages of {pages}")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { "-".to_owned() } else { words.join(" ") }
}

/// `8× H100`.
fn gpus(v: &Value) -> String {
    match number(v, "gpus.total") {
        0 => "-".to_owned(),
        total => format!("{total}× {}", model(&at(v, "gpus.model"))).trim_end().to_owned(),
    }
}

fn free_gpus(v: &Value) -> String {
    match number(v, "gpus.total") {
        0 => "-".to_owned(),
        _ => at(v, "gpus.free"),
    }
}

/// With a mark when it is not as it should be.
fn node_state(v: &Value) -> String {
    let state = at(v, "state");
    let troubled = get(v, "conditions")
        .as_array()
        .is_some_and(|all| all.iter().any(|one| at(one, "severity") != "info"));
    match troubled || (state == "ready" && get(v, "schedulable") == false) {
        true => format!("{state}!"),
        false => state,
    }
}

/// The worst thing a person must know, and how many more there are.
fn node_conditions(v: &Value) -> String {
    let mut all = Vec::new();
    if !get(v, "quarantineReason").is_null() {
        all.push(format!("quarantined: {}", at(v, "quarantineReason")));
    }
    if let Some(cordon) = v.get("cordon").filter(|cordon| !cordon.is_null()) {
        let what = if get(v, "drainingSince").is_null() { "cordoned" } else { "draining" };
        let mut text = format!("{what} by {} {} ago", at(cordon, "by"), age(number(cordon, "sinceSeconds")));
        if !at(cordon, "reason").is_empty() {
            text.push_str(&format!(" ({})", at(cordon, "reason")));
        }
        all.push(text);
    }
    let mut conditions: Vec<&Value> = get(v, "conditions").as_array().into_iter().flatten().collect();
    conditions.sort_by_key(|one| match at(one, "severity").as_str() {
        "blocking" => 0,
        "warning" => 1,
        _ => 2,
    });
    for one in conditions {
        let device = match at(one, "device") {
            device if device.is_empty() => String::new(),
            device => format!(" on {}", short(&device, 8)),
        };
        let since = age(number(one, "sinceSeconds"));
        all.push(format!("{}{device}: {} {since} ago", at(one, "kind"), printable(&at(one, "message"))));
    }
    match all.len() {
        0 => String::new(),
        1 => all.remove(0),
        more => format!("{} (+{})", all[0], more - 1),
    }
}

/// `4× H100, 32 vcpu, 256 GiB`.
fn reservation_holds(v: &Value) -> String {
    if get(v, "wholeNode") == true {
        return "whole node".to_owned();
    }
    let mut parts = Vec::new();
    if number(v, "gpus") > 0 {
        let known = match at(v, "gpuModel") {
            asked if asked.is_empty() => {
                get(v, "devices").get(0).map(|first| at(first, "model")).unwrap_or_default()
            }
            asked => asked,
        };
        let gpus = format!("{}× {}", number(v, "gpus"), model(&known));
        parts.push(if known.is_empty() { format!("{} GPU", number(v, "gpus")) } else { gpus });
    }
    // Whole GiB where it was asked for in such, and of an older server.
    let whole = number(v, "memoryMiB").is_multiple_of(1024);
    let memory = if whole { ("memoryGiB", "GiB") } else { ("memoryMiB", "MiB") };
    for (path, unit) in [("vcpu", "vcpu"), memory, ("hugepages1Gi", "GiB pages")] {
        if number(v, path) > 0 {
            parts.push(format!("{} {unit}", number(v, path)));
        }
    }
    parts.join(", ")
}
