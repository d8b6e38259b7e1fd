//! A disk that fills up under `dev`.

use std::fs::OpenOptions;

use super::*;

/// A cluster with its first log segments takes some 60 MB; the rest is room that the test takes away.
const DISK_BYTES: &str = "size=256m";
const PIECE: usize = 1 << 20;
/// Small writes go on in the space that files already have, so it takes a while until one needs more.
const NOTICED_WITHIN: Duration = Duration::from_secs(40);

struct Disk {
    dir: PathBuf,
}

/// A small disk, which goes with the test.
impl Disk {
    fn mount(dir: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir(&dir)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("{DISK_BYTES},mode=755"), "e2e"])
            .arg(&dir)
            .status()?;
        ensure!(mounted.success(), "mount: {mounted}");
        Ok(Self { dir })
    }

    /// Leaves no byte.
    fn fill(&self) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.dir.join("fill"))?;
        let mut piece = vec![0; PIECE];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        Ok(())
    }

    fn free(&self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.dir.join("fill"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.dir).status();
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost_by_it() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount a small disk");
        return Ok(());
    }
    let temp = temp()?;
    let disk = Disk::mount(temp.path().join("disk"))?;
    let data = disk.dir.join("data");
    let data = data.to_str().context("a plain path")?;
    let args = ["--sim", "1", "--data-dir", data];
    let stderr = temp.path().join("stderr");
    let id = {
        let mut dev = Dev::start_logged(temp.path(), &args, &stderr)?;
        let made = dev.json(&["reservations", "create", "--pool", "gpu", "--gpus", "2", "--wait"])?;
        disk.fill()?;
        let started = Instant::now();
        let mut n = 0;
        while dev.running.has_ended()?.is_none()
            && !std::fs::read_to_string(&stderr)?.contains("No space left")
        {
            ensure!(
                started.elapsed() < NOTICED_WITHIN,
                "nobody noticed: {}",
                std::fs::read_to_string(&stderr)?
            );
            // Some fail, which is what we wait for.
            n += 1;
            dev.cli(&["sites", "create", "--name", &format!("site-{n}")])?;
        }
        made["id"].as_str().context("an id")?.to_owned()
    };
    let said = std::fs::read_to_string(&stderr)?;
    ensure!(said.contains("No space left"), "{said}");
    disk.free()?;
    let dev = Dev::start_in(temp.path(), &args)?;
    let read = dev.json(&["reservations", "get", &id])?;
    ensure!(read["state"] == "active", "{read}");
    let more = dev.json(&["reservations", "create", "--pool", "gpu", "--gpus", "1", "--wait"])?;
    ensure!(more["state"] == "active", "{more}");
    Ok(())
}
