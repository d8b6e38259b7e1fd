//! The folder of one server: whose it is, who uses it, what a crash left in it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::Signal;

use super::user::{Ids, Owner, chown_tree};
use super::{EmbeddedError, Mode};

/// A socket's path is 107 bytes at most, and PostgreSQL appends `/.s.PGSQL.5432.lock`.
const SOCKET_DIR_LEN_MAX: usize = 86;
/// A server whose process was killed shuts down by itself meanwhile.
const STALE_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// A container's usual 64 MB of shared memory hold no cluster.
const MEMORY_ROOM_BYTES: u64 = 2 << 30;
const MEMORY_PREFIX: &str = "bcpg-";
/// Removes a memory server's folder when this process is gone, however it went: standard input ends then.
const SWEEPER: &str = r#"read _; n=0
while kill -0 "$2" 2>/dev/null && [ "$n" -lt 300 ]; do sleep 0.1; n=$((n+1)); done
rm -rf -- "$1""#;

pub(super) struct Folder {
    root: PathBuf,
    socket_dir: PathBuf,
    durable: bool,
    _lock: Lock,
    sweeper: std::sync::Mutex<Option<Child>>,
}

/// Held as long as the folder is in use.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread starts just now has a copy until it becomes its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Folder {
    pub(super) fn open(mode: &Mode, owner: &Owner) -> Result<Self, EmbeddedError> {
        let (root, lock, durable) = match mode {
            Mode::Durable { dir } => {
                let root = open_durable(dir, owner)?;
                check_passable(&root, owner)?;
                let lock = lock(&root.join("lock"))?;
                (root, lock, true)
            }
            Mode::Memory => {
                let (root, lock) = create_temporary(owner)?;
                (root, lock, false)
            }
        };
        let socket_dir = socket_dir(&root, owner)?;
        let folder = Self { root, socket_dir, durable, _lock: lock, sweeper: std::sync::Mutex::new(None) };
        folder.adopt(owner)?;
        Ok(folder)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn data(&self) -> PathBuf {
        self.root.join("pgdata")
    }

    pub(super) fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// The major version that made the cluster, if there is one.
    pub(super) fn major(&self) -> Result<Option<u32>, EmbeddedError> {
        let path = self.data().join("PG_VERSION");
        let read = kit::fs::read_if_present(&path, 16).map_err(EmbeddedError::Files)?;
        Ok(read.and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok()))
    }

    /// Waits for a server that a killed process left behind, asking it to stop, and clears its pid file. We hold
    /// the lock, so whatever still runs here is not looked after by anybody.
    ///
    /// The pid file goes only when no process works in the folder: it is what keeps a second postmaster from data
    /// that a leftover backend still writes.
    pub(super) fn clear_stale_server(&self) -> Result<(), EmbeddedError> {
        let pid_file = self.data().join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(()) };
        let postmaster: Option<i32> = text.lines().next().and_then(|line| line.trim().parse().ok());
        let started = Instant::now();
        let mut asked = false;
        loop {
            let running = working_in(&self.data());
            if running.is_empty() {
                break;
            }
            if let (false, Some(pid)) = (asked, postmaster.filter(|pid| running.contains(pid))) {
                asked = true;
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, Signal::INT);
                }
            }
            if started.elapsed() > STALE_WITHIN {
                return Err(EmbeddedError::AlreadyRunning { dir: self.root.clone() });
            }
            std::thread::sleep(POLL);
        }
        kit::fs::remove_if_present(&pid_file).map_err(EmbeddedError::Files)
    }

    /// From here on a memory server's folder goes even when this process is killed.
    pub(super) fn watch_over(&self, postmaster: u32) -> Result<(), EmbeddedError> {
        if self.durable {
            return Ok(());
        }
        let sweeper = Command::new("/bin/sh")
            .args(["-c", SWEEPER, "sh"])
            .arg(&self.root)
            .arg(postmaster.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Its own group, so that an interrupt at the terminal leaves it to its work.
            .process_group(0)
            .spawn()
            .map_err(io("watch over", &self.root))?;
        *self.sweeper.lock().expect("no holder of this lock panics") = Some(sweeper);
        Ok(())
    }

    /// Gives the cluster to the user the server runs as now.
    fn adopt(&self, owner: &Owner) -> Result<(), EmbeddedError> {
        let data = self.data();
        let Ok(metadata) = fs::symlink_metadata(&data) else { return Ok(()) };
        match owner.runs_as() {
            Some(ids) if metadata.uid() != ids.uid => chown_tree(&data, ids).map_err(io("hand over", &data)),
            None if metadata.uid() != owner.ours().uid => {
                Err(EmbeddedError::ForeignFolder { dir: data, owner: metadata.uid(), ours: owner.ours().uid })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.socket_dir.starts_with(&self.root) {
            let _ = fs::remove_dir_all(&self.socket_dir);
        }
        if !self.durable {
            let _ = fs::remove_dir_all(&self.root);
        }
        if let Some(mut sweeper) = self.sweeper.get_mut().ok().and_then(Option::take) {
            drop(sweeper.stdin.take());
            let _ = sweeper.wait();
        }
    }
}

fn open_durable(dir: &Path, owner: &Owner) -> Result<PathBuf, EmbeddedError> {
    // Passing through is all the server's user needs; what is inside protects itself.
    let mode = if owner.runs_as().is_some() { 0o711 } else { 0o700 };
    kit::fs::create_dir(dir, mode).map_err(EmbeddedError::Files)?;
    let root = dir.canonicalize().map_err(io("resolve", dir))?;
    let metadata = fs::metadata(&root).map_err(io("look at", &root))?;
    let ours = owner.ours().uid;
    if metadata.uid() != ours {
        return Err(EmbeddedError::ForeignFolder { dir: root, owner: metadata.uid(), ours });
    }
    let empty = fs::read_dir(&root).map_err(io("list", &root))?.next().is_none();
    if !empty && !root.join("lock").is_file() {
        return Err(EmbeddedError::NotOurs { dir: root });
    }
    if metadata.mode() & 0o777 != mode {
        fs::set_permissions(&root, fs::Permissions::from_mode(mode)).map_err(io("protect", &root))?;
    }
    Ok(root)
}

/// A new folder in [`memory_parent`]; leftovers of processes that could not clean up go first.
fn create_temporary(owner: &Owner) -> Result<(PathBuf, Lock), EmbeddedError> {
    let above = memory_parent();
    let above = above.canonicalize().map_err(io("resolve", &above))?;
    sweep(&above, owner.ours());
    let rng: &dyn kit::Rng = &kit::OsRng;
    let root = above.join(format!("{MEMORY_PREFIX}{}", hex::encode(rng.bytes::<8>())));
    fs::create_dir(&root).map_err(io("create", &root))?;
    let mode = if owner.runs_as().is_some() { 0o711 } else { 0o700 };
    fs::set_permissions(&root, fs::Permissions::from_mode(mode)).map_err(io("protect", &root))?;
    check_passable(&root, owner)?;
    // It is locked before it has the name by which others look whether it is.
    let (made, path) = (root.join("lock.new"), root.join("lock"));
    let lock = lock(&made)?;
    fs::rename(&made, &path).map_err(io("name", &path))?;
    Ok((root, lock))
}

/// `TMPDIR` where it is set, else memory where there is enough of it, else `/tmp`. Copying a template database is
/// hundreds of small files: 15 ms in memory and 400 ms on a disk.
fn memory_parent() -> PathBuf {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    match std::env::var_os("TMPDIR") {
        None if room >= MEMORY_ROOM_BYTES => shm.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Best effort: removes folders of ours whose lock nobody holds and in which no server works.
fn sweep(above: &Path, ours: Ids) {
    let Ok(entries) = fs::read_dir(above) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MEMORY_PREFIX));
        let own =
            fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == ours.uid);
        // A folder without a lock file is one being made at this moment.
        if !named || !own || !path.join("lock").is_file() {
            continue;
        }
        if let Ok(_unused) = lock(&path.join("lock"))
            && working_in(&path.join("pgdata")).is_empty()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn lock(path: &Path) -> Result<Lock, EmbeddedError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(io("open", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(EmbeddedError::AlreadyRunning { dir: path.with_file_name("") });
        }
        Err(err) => return Err(io("lock", path)(err.into())),
    }
    let mut lock = Lock(file);
    let _ = lock.0.set_len(0).and_then(|()| writeln!(lock.0, "{}", std::process::id()));
    Ok(lock)
}

fn socket_dir(root: &Path, owner: &Owner) -> Result<PathBuf, EmbeddedError> {
    let inside = root.join("run");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let text = inside.as_os_str().as_encoded_bytes();
    let dir = if text.len() <= SOCKET_DIR_LEN_MAX && text.iter().all(|byte| plain(*byte)) {
        inside
    } else {
        let rng: &dyn kit::Rng = &kit::OsRng;
        PathBuf::from("/tmp").join(format!("{MEMORY_PREFIX}{}", hex::encode(rng.bytes::<8>())))
    };
    if !dir.is_dir() {
        fs::create_dir(&dir).map_err(io("create", &dir))?;
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(io("protect", &dir))?;
    if owner.runs_as().is_some() {
        chown_tree(&dir, owner.effective()).map_err(io("hand over", &dir))?;
    }
    Ok(dir)
}

/// The users we drop to must be able to reach the folder from `/`.
fn check_passable(root: &Path, owner: &Owner) -> Result<(), EmbeddedError> {
    for ids in [owner.runs_as(), owner.initialises_as()].into_iter().flatten() {
        for dir in root.ancestors() {
            let metadata = fs::metadata(dir).map_err(io("look at", dir))?;
            let mode = metadata.mode();
            let passes = match (metadata.uid() == ids.uid, metadata.gid() == ids.gid) {
                (true, _) => mode & 0o100 != 0,
                (false, true) => mode & 0o010 != 0,
                (false, false) => mode & 0o001 != 0,
            };
            if !passes {
                return Err(EmbeddedError::BlockedPath {
                    dir: root.to_owned(),
                    blocked: dir.to_owned(),
                    uid: ids.uid,
                });
            }
        }
    }
    Ok(())
}

/// The processes whose working folder this is: a postmaster and everything it forks.
fn working_in(data: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            (fs::read_link(entry.path().join("cwd")).ok()? == data).then_some(pid)
        })
        .collect()
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_free_although_a_process_that_is_starting_has_a_copy_of_its_lock() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let held = lock(&path).unwrap();
        let copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(&path), Err(EmbeddedError::AlreadyRunning { .. })));
        drop(held);
        lock(&path).unwrap();
        drop(copy);
    }
}
