//! A machine's files in memory, and what else a simulated machine is made of.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use handlers::files::{Files, FilesError, HostDir, HostFile};
use handlers::logs::LogSource;
use handlers::node::NodePorts;
use handlers::sections::instances::port::Hypervisor;
use handlers::slices::FakeSlices;
use handlers::sshd::NoSshd;
use handlers::upload::{Destination, Upload, UploadError};
use hw::FakeHardware;
use kit::Clock;

#[derive(Default)]
pub struct MemoryFiles(Mutex<BTreeMap<(&'static str, String), Vec<u8>>>);

impl MemoryFiles {
    fn files(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Vec<u8>>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// What a reboot does to files below /run.
    pub fn reboot(&self) {
        self.files().retain(|(dir, _), _| !dir.starts_with("run/"));
    }
}

impl Files for MemoryFiles {
    fn list(&self, dir: HostDir) -> BoxFuture<'_, Result<Vec<String>, FilesError>> {
        let files = self.files();
        let names = files.keys().filter(|(of, _)| *of == dir.path()).map(|(_, name)| name.clone()).collect();
        ready(Ok(names)).boxed()
    }

    fn read<'a>(&'a self, dir: HostDir, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, FilesError>> {
        ready(Ok(self.files().get(&(dir.path(), name.to_owned())).cloned())).boxed()
    }

    fn write<'a>(&'a self, file: &'a HostFile, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), FilesError>> {
        self.files().insert((file.dir().path(), file.name()), bytes);
        ready(Ok(())).boxed()
    }

    fn remove<'a>(&'a self, file: &'a HostFile) -> BoxFuture<'a, Result<(), FilesError>> {
        self.files().remove(&(file.dir().path(), file.name()));
        ready(Ok(())).boxed()
    }

    fn has_device(&self, _path: &str) -> bool {
        true
    }
}

/// A simulated machine logs nothing of its own.
struct NoLogs;

impl LogSource for NoLogs {
    fn recent(&self, _since: Duration) -> String {
        String::new()
    }
}

/// There is nowhere to put anything.
struct NoUpload;

impl Upload for NoUpload {
    fn put<'a>(&'a self, _destination: Destination, _body: Bytes) -> BoxFuture<'a, Result<(), UploadError>> {
        ready(Ok(())).boxed()
    }
}

pub fn ports(
    hardware: &Arc<FakeHardware>,
    slices: &Arc<FakeSlices>,
    files: &Arc<MemoryFiles>,
    data_dir: &Path,
    clock: Arc<dyn Clock>,
    hypervisor: Option<Arc<dyn Hypervisor>>,
) -> NodePorts {
    NodePorts {
        hardware: hardware.clone(),
        files: files.clone(),
        slices: slices.clone(),
        sshd: Arc::new(NoSshd),
        tunnels: None,
        shell: Arc::new(handlers::shell::EchoShell),
        hypervisor,
        logs: Arc::new(NoLogs),
        upload: Arc::new(NoUpload),
        clock,
        data_dir: data_dir.to_owned(),
    }
}
