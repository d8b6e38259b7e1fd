//! What has come of an image.

use std::io;
use std::path::{Path, PathBuf};

use kit::fs::FsError;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

/// Open at its end.
pub(super) struct Part {
    pub path: PathBuf,
    pub got: u64,
    file: tokio::fs::File,
    hash: Sha256,
}

impl Part {
    /// Opens what has come so far, and reads it for its digest.
    pub async fn open(path: &Path) -> Result<Self, FsError> {
        let path = path.to_owned();
        let at = path.clone();
        let opened = tokio::task::spawn_blocking(move || {
            use std::io::Read;
            let mut options = std::fs::OpenOptions::new();
            // QEMU's own user reads it later.
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o644);
            let mut file = options.read(true).append(true).create(true).open(&at)?;
            let (mut hash, mut got, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok((file, hash, got)),
                    read => {
                        hash.update(&buffer[..read]);
                        got += read as u64;
                    }
                }
            }
        });
        let opened = opened.await.unwrap_or_else(|err| Err(io::Error::other(err)));
        let (file, hash, got) =
            opened.map_err(|source| FsError { doing: "open", path: path.clone(), source })?;
        Ok(Self { path, file: tokio::fs::File::from_std(file), hash, got })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        let written = self.file.write_all(bytes).await;
        written.map_err(|source| self.failed(source))?;
        self.hash.update(bytes);
        self.got += bytes.len() as u64;
        Ok(())
    }

    /// Throws away what has come.
    pub async fn begin_anew(&mut self) -> Result<(), FsError> {
        // What is written next goes to the end, which is the beginning then.
        self.file.set_len(0).await.map_err(|source| self.failed(source))?;
        (self.hash, self.got) = (Sha256::new(), 0);
        Ok(())
    }

    /// Where it is, safe on the disk, and its digest.
    pub async fn close(mut self) -> Result<(PathBuf, [u8; 32]), FsError> {
        self.file.flush().await.map_err(|source| self.failed(source))?;
        self.file.sync_all().await.map_err(|source| self.failed(source))?;
        Ok((self.path, self.hash.finalize().into()))
    }

    fn failed(&self, source: io::Error) -> FsError {
        FsError { doing: "write", path: self.path.clone(), source }
    }
}
