//! Every benchmark after the other, and what they said in one report.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bench::figures::{COLUMNS, FIGURES_FILE, Figure, Verdict};
use bench::probe;

use super::{BENCHES, Bench, LONG, build, command};
use crate::run;

const FOLDER: &str = "target/bench";
const REPORT: &str = "target/bench/report.md";
/// Of the disk, before and after the benchmarks.
const PROBE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(200);

struct Ran {
    name: String,
    what: &'static str,
    took: Duration,
    figures: Vec<Figure>,
    failed: Option<String>,
}

pub fn run(long: bool) -> anyhow::Result<()> {
    build(BENCHES)?;
    std::fs::create_dir_all(FOLDER)?;
    let mut report = head()?;
    let mut all = Vec::new();
    for bench in BENCHES {
        all.push(one(bench, bench.name, bench.short, Duration::from_secs(bench.minutes * 60))?);
    }
    for bench in BENCHES.iter().filter(|bench| long && !bench.long.is_empty()) {
        all.push(one(bench, &format!("{}-long", bench.name), bench.long, LONG)?);
    }
    writeln!(report, "disk after: {}  ", disk()?)?;
    writeln!(report, "load after: {}\n", load()?)?;
    tell(&mut report, &all)?;
    std::fs::write(REPORT, &report).with_context(|| format!("write {REPORT}"))?;
    println!("\n{report}\nwritten to {REPORT}; what each printed is beside it");
    match all.iter().filter(|ran| ran.failed.is_some()).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} benchmarks did not come to their end", all.len()),
    }
}

/// Runs one with its output in a file, and ends it when it takes too long.
fn one(bench: &Bench, name: &str, args: &[&str], may_take: Duration) -> anyhow::Result<Ran> {
    println!("{name:<18} {}", bench.what);
    let figures = Path::new(FOLDER).join(format!("{name}.figures"));
    let printed = Path::new(FOLDER).join(format!("{name}.txt"));
    // Those of an earlier report.
    let _ = std::fs::remove_file(&figures);
    let output = File::create(&printed)?;
    let mut command = command(bench);
    command
        .args(args)
        .env(FIGURES_FILE, std::path::absolute(&figures)?)
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    let started = Instant::now();
    let failed = wait(command.spawn().context("start cargo")?, started, may_take)?
        .map(|why| format!("{why}; {} has its output", printed.display()));
    let text = std::fs::read_to_string(&figures).unwrap_or_default();
    let ran = Ran {
        name: name.to_owned(),
        what: bench.what,
        took: started.elapsed(),
        figures: Figure::read_all(&text)?,
        failed,
    };
    for figure in &ran.figures {
        println!("  {figure}");
    }
    if let Some(why) = &ran.failed {
        println!("  {why}");
    }
    Ok(ran)
}

/// Why it failed, when it did. One that takes too long is ended with all it started.
fn wait(mut child: Child, started: Instant, may_take: Duration) -> anyhow::Result<Option<String>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| format!("it failed ({status})")));
        }
        if started.elapsed() > may_take {
            let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            child.wait()?;
            return Ok(Some(format!("it took longer than {} s and was ended", may_take.as_secs())));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The machine and its disk, as they are before anything runs.
fn head() -> anyhow::Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let (cpu, memory) = (read("/proc/cpuinfo")?, read("/proc/meminfo")?);
    let after = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned()
    };
    let git = |args: &[&str]| run::output(Command::new("git").args(args)).unwrap_or_default();
    let changed = if git(&["status", "--porcelain"]).trim().is_empty() { "" } else { ", with changes" };
    let mut head = String::from("# Figures\n\n");
    writeln!(head, "date: {:.0}  ", jiff::Timestamp::now())?;
    writeln!(head, "commit: {}{changed}  ", git(&["rev-parse", "--short=12", "HEAD"]).trim())?;
    writeln!(
        head,
        "machine: {} cores, {}; {} of memory; Linux {}  ",
        std::thread::available_parallelism()?,
        after(&cpu, "model name"),
        after(&memory, "MemTotal"),
        read("/proc/sys/kernel/osrelease")?.trim(),
    )?;
    writeln!(head, "load before: {}  ", load()?)?;
    writeln!(head, "disk before: {}  ", disk()?)?;
    Ok(head)
}

fn load() -> anyhow::Result<String> {
    Ok(std::fs::read_to_string("/proc/loadavg")?.trim().to_owned())
}

/// The same folder that the benchmarks use.
fn disk() -> anyhow::Result<String> {
    let dir = std::env::var_os("BC_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let run = probe::append_and_sync(&dir, 8192, 1, PROBE)?;
    let (p50, p99) = (run.percentile(50), run.percentile(99));
    let short = bench::figures::short;
    Ok(format!(
        "append 8 KiB + fdatasync {:.0}/s, p50 {}, p99 {}, in {}",
        run.rate(),
        short(p50),
        short(p99),
        dir.display()
    ))
}

fn tell(report: &mut String, all: &[Ran]) -> anyhow::Result<()> {
    let count = |verdict: Verdict| {
        all.iter().flat_map(|ran| &ran.figures).filter(|figure| figure.verdict() == verdict).count()
    };
    writeln!(
        report,
        "{} at their goal, {} at their gate, {} missed",
        count(Verdict::Goal),
        count(Verdict::Gate),
        count(Verdict::Missed)
    )?;
    for ran in all {
        writeln!(report, "\n## {}\n\n{}; {} s\n", ran.name, ran.what, ran.took.as_secs())?;
        if let Some(why) = &ran.failed {
            writeln!(report, "**{why}**\n")?;
        }
        if ran.figures.is_empty() {
            writeln!(report, "no figures")?;
            continue;
        }
        writeln!(report, "| {} |\n|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()))?;
        for figure in &ran.figures {
            writeln!(report, "| {} |", figure.cells().map(|cell| cell.replace('|', "/")).join(" | "))?;
        }
    }
    Ok(())
}
