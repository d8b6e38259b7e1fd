//! Rules that no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::edges;

/// A file has one reason to exist; past this it has two.
const LINES_MAX: usize = 500;
/// Never, whatever the reason.
const LINES_NEVER: usize = 1000;
const ALLOWLIST: &str = "xtask/long-files.txt";

pub fn run() -> anyhow::Result<()> {
    let mut found = edges::violations()?;
    let sources = rust_sources()?;
    long_files(&sources, &mut found)?;
    for path in &sources {
        source_rules(path, &mut found)?;
    }
    sql_time(&mut found)?;
    licence(&mut found);
    if found.is_empty() {
        println!("tidy passed: {} source files", sources.len());
        return Ok(());
    }
    for line in &found {
        eprintln!("tidy: {line}");
    }
    bail!("{} tidiness rules broken", found.len());
}

fn rust_sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for top in ["base", "control", "node", "edge", "bin", "test", "xtask"] {
        walk(Path::new(top), &mut sources)?;
    }
    sources.sort();
    Ok(sources)
}

fn walk(dir: &Path, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                walk(&path, into)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// Long files are listed with their length, and the list may only shrink.
fn long_files(sources: &[PathBuf], found: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(ALLOWLIST)?;
    let allowed: Vec<(&str, usize)> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(path, lines)| Some((path, lines.parse().ok()?)))
        .collect();
    for path in sources {
        let lines = fs::read_to_string(path)?.lines().count();
        let shown = path.display().to_string();
        let listed = allowed.iter().find(|(listed, _)| *listed == shown);
        match listed {
            _ if lines > LINES_NEVER => {
                found.push(format!("{shown} has {lines} lines; {LINES_NEVER} is never right"))
            }
            Some((_, limit)) if lines > *limit => {
                found.push(format!("{shown} grew to {lines} lines; its entry in {ALLOWLIST} says {limit}"));
            }
            Some(_) if lines <= LINES_MAX => {
                found.push(format!("{shown} has {lines} lines now: take it out of {ALLOWLIST}"));
            }
            None if lines > LINES_MAX => {
                found.push(format!(
                    "{shown} has {lines} lines; split it by reasons to change ({LINES_MAX} is a smell)"
                ));
            }
            Some(_) | None => {}
        }
    }
    for (listed, _) in allowed {
        if !sources.iter().any(|path| path.display().to_string() == listed) {
            found.push(format!("{ALLOWLIST} names {listed}, which is gone"));
        }
    }
    Ok(())
}

fn source_rules(path: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(path)?;
    let shown = path.display();
    // Put together so that this file does not name what it looks for.
    let forbidden = [
        (concat!("#[", "ignore"), "a test that does not run proves nothing"),
        (concat!("should_", "panic"), "assert on the error instead"),
    ];
    for (number, line) in text.lines().enumerate() {
        for (pattern, why) in &forbidden {
            if line.contains(pattern) {
                found.push(format!("{shown}:{}: {pattern}: {why}", number + 1));
            }
        }
    }
    if ["base", "control", "node", "edge"].iter().any(|top| path.starts_with(top))
        && path.ends_with("src/lib.rs")
        && !text.starts_with("//!")
    {
        found.push(format!("{shown} does not say what the crate is for"));
    }
    Ok(())
}

/// SQL asks the deployment's clock, never the server's, so that a simulation can move it.
fn sql_time(found: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir("migrations")? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        for (number, line) in text.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            let lower = code.to_ascii_lowercase();
            if lower.contains(" now()") || lower.contains("current_timestamp") {
                found.push(format!("{}:{}: use compute_now()", path.display(), number + 1));
            }
        }
    }
    Ok(())
}

fn licence(found: &mut Vec<String>) {
    for file in ["LICENSE", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        if !Path::new(file).is_file() {
            found.push(format!("{file} is missing"));
        }
    }
}
