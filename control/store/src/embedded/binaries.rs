//! Finds `initdb` and `postgres`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::EmbeddedError;

const MAJOR_MIN: u32 = 15;
/// Where Debian and Ubuntu keep one folder per major version.
const VERSIONED: &str = "/usr/lib/postgresql";

/// The bin folder to use: of the major version that made the cluster, or else the newest. What the configuration
/// names is used or refused, never passed over.
pub(super) fn find(
    configured: Option<&Path>,
    wanted: Option<u32>,
    data: &Path,
) -> Result<PathBuf, EmbeddedError> {
    let candidates = match configured {
        Some(dir) => vec![dir.to_owned()],
        None => installed(),
    };
    let mut found: Vec<(u32, PathBuf)> =
        candidates.iter().filter_map(|dir| Some((major_of(dir)?, dir.clone()))).collect();
    found.retain(|(major, _)| *major >= MAJOR_MIN);
    // Stable, so that of one version the first looked at wins.
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    let listed = |items: Vec<String>| items.join(", ");
    if found.is_empty() {
        let looked_at = listed(candidates.iter().map(|dir| dir.display().to_string()).collect());
        return Err(EmbeddedError::NotFound { looked_at });
    }
    match wanted {
        None => Ok(found.swap_remove(0).1),
        Some(wanted) => {
            found.iter().find(|(major, _)| *major == wanted).map(|(_, dir)| dir.clone()).ok_or_else(|| {
                EmbeddedError::WrongMajor {
                    dir: data.to_owned(),
                    wanted,
                    found: listed(found.iter().map(|(major, _)| major.to_string()).collect()),
                }
            })
        }
    }
}

fn installed() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    // `initdb` is not on Debian's PATH; a wrapper of another name may be.
    dirs.retain(|dir| dir.is_absolute() && dir.join("initdb").is_file());
    if let Ok(entries) = fs::read_dir(VERSIONED) {
        dirs.extend(entries.flatten().map(|entry| entry.path().join("bin")));
    }
    if dirs.is_empty() {
        dirs.extend([PathBuf::from("PATH"), PathBuf::from(VERSIONED).join("*/bin")]);
    }
    dirs
}

/// The major version, if both programs are there and say so.
fn major_of(dir: &Path) -> Option<u32> {
    if !dir.join("initdb").is_file() {
        return None;
    }
    let output = Command::new(dir.join("postgres")).arg("--version").env_clear().output().ok()?;
    parse_version(std::str::from_utf8(&output.stdout).ok()?)
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15; `16beta1` is 16.
fn parse_version(text: &str) -> Option<u32> {
    let number = text.split_once("(PostgreSQL) ")?.1;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

#[cfg(test)]
mod tests;
