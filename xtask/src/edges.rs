//! Which crate may depend on which. The rules are the architecture's; the metadata is cargo's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::run;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// What a crate of our own may use of our own.
const ALLOWED: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("kit", &["model"]),
    ("wire", &["model"]),
    ("placer", &["model"]),
    ("policy", &["model"]),
    ("pki", &["model"]),
    ("api", &["model"]),
    ("store", &["model", "kit"]),
    ("kernel", &["model", "kit", "store", "api", "policy", "wire", "pki"]),
    ("iam", &["model", "kit", "store", "kernel", "api", "policy", "pki"]),
    ("capacity", &["model", "kit", "store", "kernel", "api", "policy", "placer", "wire", "pki"]),
    ("fleet", &["model", "kit", "store", "kernel", "api", "policy", "wire", "pki"]),
    ("instances", &["model", "kit", "store", "kernel", "api", "policy", "wire", "pki", "capacity", "fleet"]),
    ("access", &["model", "kit", "store", "kernel", "api", "policy", "wire", "pki"]),
    ("secrets", &["model", "kit", "store", "kernel", "api", "pki"]),
    ("ledger", &["model", "kit", "store", "kernel", "api", "policy"]),
    ("gateway", &["model", "kit", "kernel", "wire", "pki"]),
    ("server", &["model", "kit", "store", "kernel", "api"]),
    ("hw", &["model", "kit", "wire"]),
    ("agent", &["model", "kit", "wire", "pki"]),
    ("runtimes", &["model", "kit", "pki", "hw"]),
    ("handlers", &["model", "kit", "wire", "pki", "agent", "hw", "runtimes"]),
    ("client", &["model", "kit", "api"]),
    ("testkit", &["model", "kit", "store"]),
    ("guests", &[]),
];
/// Composition roots and tests put everything together.
const UNRESTRICTED: &[&str] = &["better-compute", "bcd", "e2e", "sim", "xtask"];
/// Only `store` names the database driver; only `wire` knows message layouts; only `api` derives schemas.
const NAMED_ONCE: &[(&str, &[&str])] = &[
    ("tokio-postgres", &["store"]),
    ("deadpool-postgres", &["store"]),
    ("protox", &["wire"]),
    ("prost-build", &["wire"]),
    ("schemars", &["api"]),
    ("axum", &["server"]),
    ("redb", &["agent"]),
];
/// No copy of these in the whole graph, whoever asks for it.
const BANNED: &[&str] = &["openssl-sys", "openssl", "aws-lc-rs", "aws-lc-sys", "native-tls"];

pub fn violations() -> anyhow::Result<Vec<String>> {
    let text = run::output(run::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&text)?;
    let members: BTreeSet<&str> = metadata.workspace_members.iter().map(String::as_str).collect();
    let ours: Vec<&Package> = metadata.packages.iter().filter(|p| members.contains(p.id.as_str())).collect();
    let names: BTreeSet<&str> = ours.iter().map(|package| package.name.as_str()).collect();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut found = Vec::new();
    for package in &ours {
        for dependency in &package.dependencies {
            check(package, dependency, &names, &allowed, &mut found);
        }
        let folder = std::path::Path::new(&package.manifest_path).parent().and_then(|dir| dir.file_name());
        if folder.is_none_or(|folder| folder != package.name.as_str()) {
            found.push(format!("crate {} lies in a folder of another name", package.name));
        }
    }
    for package in &metadata.packages {
        if BANNED.contains(&package.name.as_str()) {
            found.push(format!(
                "banned crate {} is in the graph; `cargo tree -i {}` says why",
                package.name, package.name
            ));
        }
    }
    Ok(found)
}

fn check(
    package: &Package,
    dependency: &Dependency,
    names: &BTreeSet<&str>,
    allowed: &BTreeMap<&str, &[&str]>,
    found: &mut Vec<String>,
) {
    let (from, to) = (package.name.as_str(), dependency.name.as_str());
    if UNRESTRICTED.contains(&from) {
        return;
    }
    if let Some((_, may)) = NAMED_ONCE.iter().find(|(name, _)| *name == to)
        && !may.contains(&from)
    {
        found.push(format!("{from} names {to}; only {} may", may.join(", ")));
    }
    // Tests may lean on the test kit and on neighbours; what ships may not.
    if dependency.kind.as_deref() == Some("dev") || !names.contains(to) {
        return;
    }
    match allowed.get(from) {
        None => found.push(format!("crate {from} has no line in xtask/src/edges.rs")),
        Some(may) if !may.contains(&to) => {
            found.push(format!("edge {from} -> {to} does not exist in the architecture"))
        }
        Some(_) => {}
    }
}
