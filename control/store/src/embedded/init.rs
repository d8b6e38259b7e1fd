//! Makes the cluster, all or nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::folder::Folder;
use super::user::{Owner, chown_tree};
use super::{EmbeddedError, SUPERUSER};
use crate::config::Secret;

const PASSWORD_BYTES_MAX: u64 = 128;
/// Socket connections with the password; nothing over TCP, nothing for replication.
const HBA: &str = "local all all scram-sha-256\n";

/// The superuser's password, and behind it a cluster that takes it.
pub(super) fn ensure(folder: &Folder, bin_dir: &Path, owner: &Owner) -> Result<Secret, EmbeddedError> {
    let password_file = folder.root().join("password");
    if folder.data().join("PG_VERSION").is_file() {
        return read_password(&password_file);
    }
    // The password is written first: a crash in between leaves one without a cluster, which is made with it.
    if !password_file.exists() {
        let rng: &dyn kit::Rng = &kit::OsRng;
        let password = hex::encode(rng.bytes::<24>());
        kit::fs::write_atomic(&password_file, password.as_bytes(), 0o600).map_err(EmbeddedError::Files)?;
    }
    let password = read_password(&password_file)?;
    let fresh = folder.root().join("pgdata.new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(io("clear", &fresh))?;
    }
    init_cluster(&fresh, bin_dir, owner, &password, folder.is_durable())?;
    fs::rename(&fresh, folder.data()).map_err(io("rename", &fresh))?;
    if folder.is_durable() {
        kit::fs::sync_dir(folder.root()).map_err(EmbeddedError::Files)?;
    }
    Ok(password)
}

fn read_password(path: &Path) -> Result<Secret, EmbeddedError> {
    kit::fs::check_private(path).map_err(EmbeddedError::Files)?;
    let bytes = kit::fs::read_bounded(path, PASSWORD_BYTES_MAX).map_err(EmbeddedError::Files)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    if text.len() != 48 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let damaged = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not a password of ours");
        return Err(io("use", path)(damaged));
    }
    Ok(Secret::new(text))
}

/// initdb runs in a folder of its own, whose files then change hands.
fn init_cluster(
    fresh: &Path,
    bin_dir: &Path,
    owner: &Owner,
    password: &Secret,
    durable: bool,
) -> Result<(), EmbeddedError> {
    fs::create_dir(fresh).map_err(io("create", fresh))?;
    fs::set_permissions(fresh, fs::Permissions::from_mode(0o700)).map_err(io("protect", fresh))?;
    let cluster = fresh.join("cluster");
    let pwfile = fresh.join("pw");
    kit::fs::create_exclusive(&pwfile, password.reveal().as_bytes(), 0o600).map_err(EmbeddedError::Files)?;

    let mut command = Command::new(bin_dir.join("initdb"));
    command
        .arg("--pgdata")
        .arg(&cluster)
        .args([
            "--username",
            SUPERUSER,
            "--encoding",
            "UTF8",
            "--locale",
            "C.UTF-8",
            "--lc-collate",
            "C",
            "--data-checksums",
        ])
        .args([
            "--auth-local",
            "scram-sha-256",
            "--auth-host",
            "scram-sha-256",
            "--no-instructions",
            "--pwfile",
        ])
        .arg(&pwfile)
        .args((!durable).then_some("--no-sync"))
        .env_clear()
        .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("PATH", "/usr/bin:/bin")])
        .current_dir(fresh)
        .stdin(Stdio::null());
    if let Some(ids) = owner.initialises_as() {
        chown_tree(fresh, ids).map_err(io("hand over", fresh))?;
        command.gid(ids.gid).uid(ids.uid);
    }
    let output = command.output().map_err(io("run initdb for", fresh))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(2_000).collect();
        return Err(EmbeddedError::Init { dir: fresh.to_owned(), said });
    }
    fs::write(cluster.join("pg_hba.conf"), HBA).map_err(io("write", &cluster))?;
    promote(fresh, &cluster, &pwfile, owner)?;
    if durable { sync_file(&fresh.join("pg_hba.conf")) } else { Ok(()) }
}

/// Moves the cluster up, so that `fresh` is it.
fn promote(fresh: &Path, cluster: &Path, pwfile: &Path, owner: &Owner) -> Result<(), EmbeddedError> {
    fs::remove_file(pwfile).map_err(io("remove", pwfile))?;
    let aside: PathBuf = fresh.with_extension("old");
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(io("clear", &aside))?;
    }
    fs::rename(fresh, &aside).map_err(io("rename", fresh))?;
    let cluster = aside.join(cluster.file_name().expect("it was joined from a name"));
    fs::rename(&cluster, fresh).map_err(io("rename", &cluster))?;
    fs::remove_dir_all(&aside).map_err(io("clear", &aside))?;
    if let Some(ids) = owner.runs_as() {
        chown_tree(fresh, ids).map_err(io("hand over", fresh))?;
    }
    Ok(())
}

fn sync_file(path: &Path) -> Result<(), EmbeddedError> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(io("sync", path))
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { doing, path, source }
}
