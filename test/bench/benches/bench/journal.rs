//! Commits of the daemon's journal, each on the disk before the next, beside appending the same bytes to a file.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::journal::{Entry, FILE_BYTES_MAX, JournalStore, RedbJournal, Stage, Write};
use bench::figures::{Figure, Run, Sample, median};
use bench::probe;
use kit::{Clock, OsRng, Rng, SystemClock};
use model::{CommandId, Timestamp};

#[derive(clap::Args)]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// How often ours and the bound take turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const WRITERS: usize = 64;
/// What an accepted command takes in the journal, with its key and checksum.
const RECORD_BYTES: usize = 128;
/// Each writer goes round over so many commands, so that the file stays as small as a node's.
const COMMANDS: usize = 64;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let runtime = crate::runtime()?;
    let lasts = Duration::from_secs(args.seconds);
    let (mut one, mut many, mut batch) = (Vec::new(), Vec::new(), Vec::new());
    let (mut raw, mut raw_batch) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        say(&mut raw, probe::append_and_sync(dir.path(), RECORD_BYTES, 1, lasts)?);
        let journal = open(&dir.path().join(format!("journal-{round}")))?;
        say(&mut one, runtime.block_on(commits("journal, 1 writer", &journal, 1, 1, lasts))?);
        say(&mut many, runtime.block_on(commits("journal, 64 writers", &journal, WRITERS, 1, lasts))?);
        say(
            &mut raw_batch,
            probe::append_and_sync(dir.path(), RECORD_BYTES * WRITERS, WRITERS as u32, lasts)?,
        );
        say(
            &mut batch,
            runtime.block_on(commits("journal, 64 records a commit", &journal, 1, WRITERS, lasts))?,
        );
    }
    println!();
    let (one_at_once, of_batch) = ("append 128 bytes + fdatasync", "append 64 x 128 bytes + fdatasync");
    Figure::rate("journal appends, 1 writer", "/s", &one)
        .beside(one_at_once, median(&raw))
        .ratio_at_least(0.6, 0.95)
        .say()?;
    Figure::rate("journal appends, 64 writers", "/s", &many)
        .beside(one_at_once, median(&raw))
        .ratio_at_least(8.0, 20.0)
        .say()?;
    Figure::rate("journal appends, 64 records a commit", "/s", &batch)
        .beside(of_batch, median(&raw_batch))
        .say()?;
    Ok(())
}

fn say(runs: &mut Vec<Run>, run: Run) {
    println!("{run}");
    runs.push(run);
}

fn open(path: &Path) -> anyhow::Result<Arc<RedbJournal>> {
    Ok(Arc::new(RedbJournal::open(path, FILE_BYTES_MAX, &OsRng, SystemClock::new().now())?))
}

/// `writers` that each commit `records` at a time, and again when that is on the disk.
async fn commits(
    what: &str,
    journal: &Arc<RedbJournal>,
    writers: usize,
    records: usize,
    lasts: Duration,
) -> anyhow::Result<Run> {
    let now = SystemClock::new().now();
    let started = Instant::now();
    let writing = (0..writers).map(|_| write(journal, records, now, started, lasts));
    let samples = futures::future::try_join_all(writing).await?.concat();
    Ok(Run::new(what, started.elapsed(), samples).of_units(u32::try_from(records)?))
}

async fn write(
    journal: &Arc<RedbJournal>,
    records: usize,
    now: Timestamp,
    started: Instant,
    lasts: Duration,
) -> anyhow::Result<Vec<Sample>> {
    let rng: &dyn Rng = &OsRng;
    let ids: Vec<CommandId> = (0..COMMANDS.max(records)).map(|_| rng.id(now)).collect();
    let incarnation = rng.id(now);
    let mut next = ids.iter().cycle();
    let mut samples = Vec::new();
    while started.elapsed() < lasts {
        let accepted = next.by_ref().take(records).map(|id| {
            Write::Entry(Entry {
                command_id: *id,
                kind: "inventory.refresh".to_owned(),
                incarnation,
                at: now,
                stage: Stage::Accepted,
            })
        });
        let writes: Vec<Write> = accepted.collect();
        let from = Instant::now();
        journal.commit(writes).await?;
        samples.push(Sample { at: started.elapsed(), took: from.elapsed() });
    }
    Ok(samples)
}
