//! What the disk can do right now, beside which every durable figure is read.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::figures::{Run, Sample};

/// Appends `bytes` and waits until they are on the disk, again and again for a while. `records` are what each append stands for.
pub fn append_and_sync(dir: &Path, bytes: usize, records: u32, lasts: Duration) -> anyhow::Result<Run> {
    let path = dir.join("probe");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let block = vec![0x5a; bytes];
    let started = Instant::now();
    let mut samples = Vec::new();
    while started.elapsed() < lasts {
        let from = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        samples.push(Sample { at: started.elapsed(), took: from.elapsed() });
    }
    let lasted = started.elapsed();
    std::fs::remove_file(&path)?;
    Ok(Run::new(format!("append {bytes} bytes + fdatasync"), lasted, samples).of_units(records))
}
