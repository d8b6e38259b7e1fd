//! Files below a root, reached one folder at a time so that no link on the way is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{ENTRIES_MAX, FILE_BYTES_MAX, Files, FilesError, HostDir, HostFile, HostPaths};

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The real files.
#[derive(Debug, Clone)]
pub struct HostFiles(Arc<HostPaths>);

/// What went wrong, before it is told which file it was about.
enum Trouble {
    Refused(String),
    Io(io::Error),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::LOOP => Trouble::Refused("a symbolic link is in its place".into()),
            errno => Trouble::Io(errno.into()),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(source: io::Error) -> Self {
        Trouble::Io(source)
    }
}

impl Trouble {
    fn of(self, doing: &'static str, path: String) -> FilesError {
        match self {
            Trouble::Refused(why) => FilesError::Refused { doing, path, why },
            Trouble::Io(source) => FilesError::Io { doing, path, source },
        }
    }
}

impl HostFiles {
    pub fn new(paths: HostPaths) -> Self {
        Self(Arc::new(paths))
    }

    /// Files and their fsyncs wait for disks, so they are kept off the async threads.
    async fn blocking<T: Send + 'static>(
        &self,
        doing: &'static str,
        path: String,
        work: impl FnOnce(&HostPaths) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, FilesError> {
        let paths = self.0.clone();
        let worked = tokio::task::spawn_blocking(move || work(&paths)).await;
        let stopped = |_| Trouble::Io(io::Error::other("the task that did it ended early"));
        worked.map_err(stopped).and_then(|worked| worked).map_err(|trouble| trouble.of(doing, path))
    }
}

impl Files for HostFiles {
    fn list(&self, dir: HostDir) -> BoxFuture<'_, Result<Vec<String>, FilesError>> {
        Box::pin(self.blocking("list", format!("/{}", dir.path()), move |paths| list(paths, dir)))
    }

    fn read<'a>(&'a self, dir: HostDir, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, FilesError>> {
        let path = format!("/{}/{name}", dir.path());
        let name = name.to_owned();
        Box::pin(self.blocking("read", path, move |paths| read(paths, dir, &name)))
    }

    fn write<'a>(&'a self, file: &'a HostFile, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), FilesError>> {
        let wanted = file.clone();
        Box::pin(self.blocking("write", file.to_string(), move |paths| write(paths, &wanted, &bytes)))
    }

    fn remove<'a>(&'a self, file: &'a HostFile) -> BoxFuture<'a, Result<(), FilesError>> {
        let wanted = file.clone();
        Box::pin(self.blocking("remove", file.to_string(), move |paths| remove(paths, &wanted)))
    }

    fn has_device(&self, path: &str) -> bool {
        if self.0.devices_assumed {
            return true;
        }
        let path = self.0.root.join(path.trim_start_matches('/'));
        rustix::fs::lstat(&path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
    }
}

/// One name below a folder, whatever else somebody made of it.
fn single(name: &str) -> Result<&str, Trouble> {
    let plain =
        !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.contains(['/', '\0']);
    if plain { Ok(name) } else { Err(Trouble::Refused("its name is not that of one file".into())) }
}

/// Opens a folder from the root down. `None` when it is not there and not to be made.
fn open_dir(paths: &HostPaths, dir: HostDir, create: bool) -> Result<Option<OwnedFd>, Trouble> {
    // The root itself is given by whoever runs the daemon; a simulated one is made with its first file.
    if create && !paths.strict {
        std::fs::create_dir_all(&paths.root)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = match rustix::fs::open(&paths.root, flags, Mode::empty()) {
        Err(Errno::NOENT) if !create => return Ok(None),
        root => root?,
    };
    for name in Path::new(dir.path()) {
        at = match rustix::fs::openat(&at, name, DIR_FLAGS, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT) if create => make_dir(&at, name)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let why = format!("{:?} on the way is a link or no folder", name.to_string_lossy());
                return Err(Trouble::Refused(why));
            }
            Err(errno) => return Err(errno.into()),
        };
        if paths.strict {
            check_dir(&at, name)?;
        }
    }
    Ok(Some(at))
}

fn make_dir(above: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Trouble> {
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let made = rustix::fs::openat(above, name, DIR_FLAGS, Mode::empty())?;
    // Whatever the umask.
    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
    rustix::fs::fsync(above)?;
    Ok(made)
}

fn check_dir(dir: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
    let stat = rustix::fs::fstat(dir)?;
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        let name = name.to_string_lossy();
        return Err(Trouble::Refused(format!("the folder {name:?} on the way is not root's alone to write")));
    }
    Ok(())
}

fn list(paths: &HostPaths, dir: HostDir) -> Result<Vec<String>, Trouble> {
    let Some(fd) = open_dir(paths, dir, false)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.first() == Some(&b'.') {
            continue;
        }
        if names.len() == ENTRIES_MAX {
            return Err(Trouble::Refused(format!("it has more than {ENTRIES_MAX} entries")));
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

fn read(paths: &HostPaths, dir: HostDir, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
    let name = single(name)?;
    let Some(fd) = open_dir(paths, dir, false)? else { return Ok(None) };
    // Without NONBLOCK a pipe in the file's place would hold us for ever.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&fd, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Trouble::Refused("it is no regular file".into()));
    }
    let mut bytes = Vec::new();
    File::from(file).take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Trouble::Refused(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(Some(bytes))
}

fn write(paths: &HostPaths, file: &HostFile, bytes: &[u8]) -> Result<(), Trouble> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Trouble::Refused(format!("it would be larger than {FILE_BYTES_MAX} bytes")));
    }
    let name = file.name();
    let Some(dir) = open_dir(paths, file.dir(), true)? else {
        return Err(Trouble::Refused("its folder could not be made".into()));
    };
    let temporary = format!(".{name}.new");
    unlink(&dir, &temporary)?;
    let written = fill(&dir, &temporary, bytes)
        .and_then(|()| rustix::fs::renameat(&dir, &temporary, &dir, &name).map_err(Trouble::from));
    if let Err(trouble) = written {
        // The first failure is what counts; a left-over name is taken away by the next write.
        let _ = unlink(&dir, &temporary);
        return Err(trouble);
    }
    Ok(rustix::fs::fsync(&dir)?)
}

fn fill(dir: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Trouble> {
    let mode = Mode::from_raw_mode(0o644);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
    rustix::fs::fchmod(file.as_fd(), mode)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

fn remove(paths: &HostPaths, file: &HostFile) -> Result<(), Trouble> {
    let Some(dir) = open_dir(paths, file.dir(), false)? else { return Ok(()) };
    unlink(&dir, &file.name())?;
    Ok(rustix::fs::fsync(&dir)?)
}

fn unlink(dir: &OwnedFd, name: &str) -> Result<(), Trouble> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
