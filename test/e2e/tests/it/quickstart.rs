//! README's quickstart, as a new user pastes it.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::dev::{Dev, eventually};
use serde_json::Value;

/// The CDI specs on any simulated machine, with their device ids.
fn cdi_specs(dev: &Dev) -> anyhow::Result<Vec<(std::path::PathBuf, BTreeSet<String>)>> {
    let mut specs = Vec::new();
    for machine in std::fs::read_dir(dev.data_dir.join("sim"))? {
        let Ok(files) = std::fs::read_dir(machine?.path().join("root/etc/cdi")) else { continue };
        for file in files {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let spec: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            let devices = spec["devices"].as_array().into_iter().flatten();
            let ids = devices
                .filter_map(|device| Some(device["annotations"]["bcd.dev/device-id"].as_str()?.to_owned()))
                .collect();
            specs.push((path, ids));
        }
    }
    Ok(specs)
}

fn booked(reservation: &Value) -> BTreeSet<String> {
    let devices = reservation["devices"].as_array().into_iter().flatten();
    devices.filter_map(|device| Some(device["uuid"].as_str()?.to_owned())).collect()
}

#[test]
fn a_reservation_binds_exactly_what_it_booked_and_a_release_leaves_nothing() -> anyhow::Result<()> {
    let mut dev = Dev::start(&["--memory", "--sim", "2"])?;
    let nodes = dev.json(&["nodes", "list"])?;
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(2), "{nodes}");

    let made = dev.json(&["reservations", "create", "--pool", "gpu", "--gpus", "4", "--wait"])?;
    assert_eq!(made["state"], "active", "{made}");
    let id = made["id"].as_str().unwrap_or_default();
    let read = dev.json(&["reservations", "get", id])?;
    let specs = cdi_specs(&dev)?;
    assert_eq!(specs.len(), 1, "{specs:?}");
    assert_eq!(booked(&read).len(), 4, "{read}");
    assert_eq!(specs[0].1, booked(&read));

    let too_many = dev.cli(&["reservations", "create", "--pool", "gpu", "--gpus", "16"])?;
    assert_eq!(too_many.code, 1, "{too_many:?}");
    assert!(too_many.stderr.contains("CAPACITY_UNAVAILABLE"), "{}", too_many.stderr);

    let released = dev.json(&["reservations", "release", id, "--wait", "--yes"])?;
    assert_eq!(released["state"], "released", "{released}");
    eventually(Duration::from_secs(10), "the CDI spec goes", || {
        let specs = cdi_specs(&dev)?;
        Ok(if specs.is_empty() { Ok(()) } else { Err(format!("{specs:?}")) })
    })?;
    let status = dev.running.stop(Duration::from_secs(30))?;
    assert!(status.success(), "{status}");
    assert!(!dev.data_dir.exists(), "--memory left {}", dev.data_dir.display());
    Ok(())
}

#[test]
fn what_was_there_is_there_when_it_runs_again() -> anyhow::Result<()> {
    let temp = tempfile::Builder::new().prefix("bc-e2e-").tempdir()?;
    std::fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let (id, names) = {
        let mut dev = Dev::start_in(temp.path(), &["--sim", "1"])?;
        let made = dev.json(&["reservations", "create", "--pool", "gpu", "--gpus", "2", "--wait"])?;
        let names = dev.ready["nodes"].clone();
        dev.running.stop(Duration::from_secs(30))?;
        (made["id"].as_str().unwrap_or_default().to_owned(), names)
    };
    let dev = Dev::start_in(temp.path(), &["--sim", "1"])?;
    assert_eq!(dev.ready["nodes"], names);
    let read = dev.json(&["reservations", "get", &id])?;
    assert_eq!(read["state"], "active", "{read}");
    assert_eq!(booked(&read).len(), 2);
    Ok(())
}
