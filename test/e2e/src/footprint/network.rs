//! The network that instances are in: links, addresses, routes, and the kernel's rules.

use std::process::Command;

use anyhow::{Context, bail};
use guests::Libvirtd;
use serde_json::Value;

use super::Lines;

pub fn lines(libvirtd: &Libvirtd, lines: &mut Lines) -> anyhow::Result<()> {
    for link in list(libvirtd, &["ip", "-json", "address"])? {
        // Whether it carries anything follows from what is on it.
        let facts = ["ifname", "mtu", "address", "master", "ifalias"].map(|name| link[name].to_string());
        lines.add(format!("link {}", facts.join(" ")));
        for address in link["addr_info"].as_array().into_iter().flatten() {
            let facts = ["local", "prefixlen", "scope"].map(|name| address[name].to_string());
            lines.add(format!("address of {}: {}", link["ifname"], facts.join(" ")));
        }
    }
    for family in ["-4", "-6"] {
        for route in list(libvirtd, &["ip", "-json", family, "route", "show", "table", "all"])? {
            let facts = ["type", "dst", "via", "gateway", "dev", "table", "prefsrc"]
                .map(|name| route[name].to_string());
            lines.add(format!("route {family} {}", facts.join(" ")));
        }
    }
    let rules = Command::new("nsenter")
        .arg(format!("--net={}", libvirtd.network()?.display()))
        .args(["nft", "-j", "list", "ruleset"])
        .output()?;
    if !rules.status.success() {
        bail!("nft: {}", String::from_utf8_lossy(&rules.stderr));
    }
    let mut rules: Value = serde_json::from_slice(&rules.stdout)?;
    for rule in rules["nftables"].as_array_mut().into_iter().flatten() {
        if rule.get("metainfo").is_none() {
            forget(rule);
            lines.add(format!("rule {rule}"));
        }
    }
    Ok(())
}

/// Nothing but a list, which an empty answer is too.
fn list(libvirtd: &Libvirtd, words: &[&str]) -> anyhow::Result<Vec<Value>> {
    let shown = Command::new("nsenter")
        .arg(format!("--net={}", libvirtd.network()?.display()))
        .args(words)
        .output()?;
    if !shown.status.success() {
        bail!("{words:?}: {}", String::from_utf8_lossy(&shown.stderr));
    }
    if shown.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    serde_json::from_slice(&shown.stdout).with_context(|| format!("{words:?}"))
}

/// What counts and what numbers.
fn forget(rule: &mut Value) {
    match rule {
        Value::Object(fields) => {
            for name in ["handle", "packets", "bytes"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
