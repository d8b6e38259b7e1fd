//! The local socket of `bcd status`: one JSON document per connection, for root only.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kit::fs::FsError;
use kit::{Supervisor, TaskHandle, TaskKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::run::AgentHandle;

const SOCKET: TaskKind = TaskKind::isolated("status socket");
/// A status with the most conditions there can be.
const STATUS_BYTES_MAX: u64 = 4 << 20;
/// A caller that does not read holds up the next one only this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept, so that a lasting failure does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("prepare the status socket's directory")]
    Directory(#[from] FsError),
    #[error("serve the status at {path:?}")]
    Serve {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("ask the daemon at {path:?}; is bcd running, and are you root?")]
    Ask {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("ask the daemon at {path:?}: its answer is not JSON of at most 4 MiB")]
    Answer { path: PathBuf },
}

/// Serves `handle`'s status at `path`: mode 0600 in a directory of 0700. Callers take turns.
pub fn serve(path: &Path, handle: AgentHandle, supervisor: &Supervisor) -> Result<TaskHandle, StatusError> {
    let failed = |source| StatusError::Serve { path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        kit::fs::create_dir(dir, 0o700)?;
    }
    // A socket file that a crash left refuses connections; one that answers belongs to a running daemon.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed(io::Error::new(io::ErrorKind::AddrInUse, "another daemon serves it")));
    }
    kit::fs::remove_if_present(path)?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let path = path.to_owned();
    Ok(supervisor.spawn(SOCKET, |stop| async move {
        loop {
            // Cancel-safe: a connection that is not returned stays in the listener's queue.
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let answered = tokio::time::timeout(WRITE_TIMEOUT, answer(stream, &handle)).await;
                    if let Ok(Err(err)) = answered {
                        tracing::debug!(err = %err, "status caller went away");
                    }
                }
                Err(err) => {
                    tracing::warn!(err = %err, "status socket could not accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        let _ = std::fs::remove_file(&path);
        Ok::<_, StatusError>(())
    }))
}

async fn answer(mut stream: UnixStream, handle: &AgentHandle) -> io::Result<()> {
    let status = handle.status().await.map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&status).expect("a status is structs, lists, texts and integers");
    json.push(b'\n');
    stream.write_all(&json).await?;
    stream.shutdown().await
}

/// Asks the daemon that serves `path`. The value is the JSON of [`crate::run::StatusView`].
pub async fn ask(path: &Path) -> Result<serde_json::Value, StatusError> {
    let failed = |source| StatusError::Ask { path: path.to_owned(), source };
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let mut bytes = Vec::new();
    stream.take(STATUS_BYTES_MAX + 1).read_to_end(&mut bytes).await.map_err(failed)?;
    let answer = StatusError::Answer { path: path.to_owned() };
    if bytes.len() as u64 > STATUS_BYTES_MAX {
        return Err(answer);
    }
    serde_json::from_slice(&bytes).map_err(|_| answer)
}
