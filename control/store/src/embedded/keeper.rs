//! The thread that has the server as its child.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::sync::watch;

use super::user::Ids;
use super::{EmbeddedError, STOP_WITHIN};

/// Lines of the server's log kept for an error message.
const LAST_WORDS: usize = 20;
/// A longer line of the log is cut.
const LINE_LEN_MAX: u64 = 4_096;
const POLL: Duration = Duration::from_millis(5);
/// After a shutdown that hangs: an immediate one, then SIGKILL.
const IMMEDIATE_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub data: PathBuf,
    pub owner: Option<Ids>,
    pub durable: bool,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    last_words: VecDeque<String>,
    /// The exit status in words, once every process of the server is gone.
    ended: Option<String>,
}

pub(super) struct Keeper {
    pid: u32,
    /// Names the process itself, so that no signal can reach another one that got its number.
    pidfd: OwnedFd,
    seen: watch::Receiver<Seen>,
    data: PathBuf,
    durable: bool,
}

impl Keeper {
    pub(super) fn start(launch: Launch) -> Result<Self, EmbeddedError> {
        let data = launch.data.clone();
        let durable = launch.durable;
        let failed = |source| EmbeddedError::Io { doing: "start the server in", path: data.clone(), source };
        let (report, seen) = watch::channel(Seen::default());
        let (spawned_tx, spawned_rx) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || {
                let spawned = spawn(&launch).and_then(|child| {
                    let pid = Pid::from_child(&child);
                    Ok((rustix::process::pidfd_open(pid, PidfdFlags::empty())?, child))
                });
                match spawned {
                    Ok((pidfd, child)) => {
                        let _ = spawned_tx.send(Ok((child.id(), pidfd)));
                        keep(child, &report);
                    }
                    Err(err) => drop(spawned_tx.send(Err(err))),
                }
            })
            .map_err(failed)?;
        let (pid, pidfd) = spawned_rx.recv().expect("the thread sends before it ends").map_err(failed)?;
        Ok(Self { pid, pidfd, seen, data, durable })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The server says in its pid file when it takes connections.
    pub(super) fn wait_ready(&self, within: Duration) -> Result<(), EmbeddedError> {
        let started = Instant::now();
        loop {
            let seen = self.seen.borrow().clone();
            let said = seen.last_words.iter().cloned().collect::<Vec<_>>().join(" | ");
            if let Some(status) = seen.ended {
                return Err(EmbeddedError::Start { dir: self.data.clone(), status, said });
            }
            let pid_file = std::fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
            let mut lines = pid_file.lines();
            let ours = lines.next().is_some_and(|line| line.trim() == self.pid.to_string());
            if ours && lines.nth(6).is_some_and(|line| line.trim() == "ready") {
                return Ok(());
            }
            if started.elapsed() > within {
                let _ = self.stop(IMMEDIATE_WITHIN);
                return Err(EmbeddedError::Slow { dir: self.data.clone(), within, said });
            }
            std::thread::sleep(POLL);
        }
    }

    pub(super) async fn ended(&self) -> String {
        let mut seen = self.seen.clone();
        let last = seen.wait_for(|seen| seen.ended.is_some()).await;
        last.map_or_else(
            |_| "the thread that kept it is gone".to_owned(),
            |seen| {
                let said = seen.last_words.iter().cloned().collect::<Vec<_>>().join(" | ");
                format!("{}: {said}", seen.ended.as_deref().unwrap_or_default())
            },
        )
    }

    /// A fast shutdown, or for a server without durable data an immediate one. Does nothing once it has ended.
    pub(super) fn stop(&self, within: Duration) -> Result<(), EmbeddedError> {
        let polite = if self.durable { Signal::INT } else { Signal::QUIT };
        if self.signal_and_wait(polite, within) {
            return Ok(());
        }
        if !self.signal_and_wait(Signal::QUIT, IMMEDIATE_WITHIN) {
            self.signal_and_wait(Signal::KILL, IMMEDIATE_WITHIN);
        }
        Err(EmbeddedError::Killed { dir: self.data.clone(), within })
    }

    fn signal_and_wait(&self, signal: Signal, within: Duration) -> bool {
        let started = Instant::now();
        // Fails only when the process is gone already, which is what the wait will find.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        while self.seen.borrow().ended.is_none() {
            if started.elapsed() > within {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(err) = self.stop(STOP_WITHIN) {
            tracing::warn!(err = %kit::chain(&err), "the private database did not stop cleanly");
        }
    }
}

/// The kernel signals the child when this *thread* ends, so the thread must outlive it: [`keep`] sees to that.
fn spawn(launch: &Launch) -> std::io::Result<Child> {
    let parent = rustix::process::getpid();
    let on_orphaned = if launch.durable { Signal::INT } else { Signal::QUIT };
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .env_clear()
        .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("PATH", "/usr/bin:/bin")])
        .current_dir(&launch.data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Its own group: an interrupt at the terminal is ours to handle, and we stop the server in order.
        .process_group(0);
    if let Some(ids) = launch.owner {
        // As root, std clears the supplementary groups too.
        command.gid(ids.gid).uid(ids.uid);
    }
    // SAFETY: between fork and exec the closure makes two system calls, prctl and getppid, and touches no memory
    // but its captured integers: no allocation, no lock, nothing of the parent's other threads. It runs after std
    // has set the uid, which would otherwise clear the setting again.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(on_orphaned))?;
            // The parent may have died before the setting was made.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::Error::from_raw_os_error(rustix::io::Errno::CHILD.raw_os_error()));
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Reads the log until every process of the server has closed it, then takes the exit status.
fn keep(mut child: Child, report: &watch::Sender<Seen>) {
    let stderr = child.stderr.take().expect("it was asked for");
    let mut reader = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::debug!(target: "postgres", line);
        report.send_modify(|seen| {
            if seen.last_words.len() == LAST_WORDS {
                seen.last_words.pop_front();
            }
            seen.last_words.push_back(line);
        });
    }
    let status = child.wait().map_or_else(|err| err.to_string(), |status| status.to_string());
    report.send_modify(|seen| seen.ended = Some(status));
}
