use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use store::embedded::{Embedded, EmbeddedConfig, EmbeddedError};
use store::{Sql, Store, sql};
use testkit::eventually;

const VALUE: Sql = sql("value", "SELECT v FROM kept");

fn alive(pid: u32) -> bool {
    // A zombie of ours would still be listed; the state tells.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

async fn gone(pid: u32) {
    eventually(Duration::from_secs(20), || async { if alive(pid) { Err("it still runs") } else { Ok(()) } })
        .await;
}

#[tokio::test]
async fn a_durable_server_keeps_its_data_and_refuses_a_second_owner() {
    let temp = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let dir = temp.path().join("pg");
    let config = EmbeddedConfig::durable(&dir);
    let server = Embedded::start(config.clone()).await.unwrap();
    let store = Store::open(server.store_config(Embedded::DATABASE)).await.unwrap();
    store.execute(&sql("make", "CREATE TABLE kept AS SELECT 42 AS v"), &[]).await.unwrap();

    let second = Embedded::start(config.clone()).await.unwrap_err();
    assert!(matches!(second, EmbeddedError::AlreadyRunning { .. }), "{second}");

    let settings = sql(
        "settings",
        "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'listen_addresses', 'data_checksums', 'server_encoding') ORDER BY name",
    );
    let found: Vec<(String, String)> =
        store.read(&settings, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let wanted =
        [("data_checksums", "on"), ("fsync", "on"), ("listen_addresses", ""), ("server_encoding", "UTF8")];
    assert_eq!(found, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));

    store.close();
    let pid = server.pid();
    server.stop().await.unwrap();
    assert!(!alive(pid));

    let server = Embedded::start(config).await.unwrap();
    let store = Store::open(server.store_config(Embedded::DATABASE)).await.unwrap();
    assert_eq!(store.read_one(&VALUE, &[]).await.unwrap().get::<_, i32>(0), 42);
}

#[tokio::test]
async fn a_session_without_the_password_is_refused() {
    let server = Embedded::start(EmbeddedConfig::memory()).await.unwrap();
    let (before, after) = server
        .url(Embedded::DATABASE)
        .reveal()
        .split_once('@')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(before.starts_with("postgres://bc:"));
    for credentials in ["postgres://bc", "postgres://bc:wrong", "postgres://postgres:x"] {
        let config = store::StoreConfig::new(store::Secret::new(format!("{credentials}@{after}")));
        assert!(Store::open(config).await.is_err(), "{credentials}");
    }
}

#[tokio::test]
async fn a_memory_server_leaves_nothing_behind() {
    let server = Embedded::start(EmbeddedConfig::memory()).await.unwrap();
    let (dir, pid) = (server.dir().to_owned(), server.pid());
    assert!(dir.exists());
    drop(server);
    assert!(!alive(pid));
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_stale_pid_file_of_a_reused_number_does_not_keep_the_server_down() {
    let temp = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let dir = temp.path().join("pg");
    Embedded::start(EmbeddedConfig::durable(&dir)).await.unwrap().stop().await.unwrap();
    // A sleeping process of the server's own user has the number the crash left in the file.
    let mut command = std::process::Command::new("sleep");
    command.arg("60");
    if let Ok(metadata) = std::fs::metadata(dir.join("pgdata"))
        && rustix::process::geteuid().is_root()
    {
        use std::os::unix::{fs::MetadataExt, process::CommandExt};
        command.gid(metadata.gid()).uid(metadata.uid());
    }
    let mut other = command.spawn().unwrap();
    std::fs::write(dir.join("pgdata/postmaster.pid"), format!("{}\n/x\n0\n5432\n", other.id())).unwrap();
    let server = Embedded::start(EmbeddedConfig::durable(&dir)).await.unwrap();
    server.stop().await.unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn a_killed_server_is_noticed_and_recovers_what_was_committed() {
    let temp = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let config = EmbeddedConfig::durable(temp.path().join("pg"));
    let server = Embedded::start(config.clone()).await.unwrap();
    let store = Store::open(server.store_config(Embedded::DATABASE)).await.unwrap();
    store.execute(&sql("make", "CREATE TABLE kept AS SELECT 42 AS v"), &[]).await.unwrap();
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let how = tokio::time::timeout(Duration::from_secs(20), server.ended()).await.unwrap();
    assert!(how.contains("signal: 9"), "{how}");
    let lost = store.read(&VALUE, &[]).await.unwrap_err();
    assert!(lost.retryable(), "{lost}");
    drop(server);

    let server = Embedded::start(config).await.unwrap();
    // The same store finds the new server at the same place.
    assert_eq!(store.read_one(&VALUE, &[]).await.unwrap().get::<_, i32>(0), 42);
    drop(server);
}

#[tokio::test]
async fn a_folder_with_other_things_in_it_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("thesis.txt"), "years of work").unwrap();
    let err = Embedded::start(EmbeddedConfig::durable(temp.path())).await.unwrap_err();
    assert!(matches!(err, EmbeddedError::NotOurs { .. }), "{err}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_missing_program_names_the_package() {
    let config = EmbeddedConfig { bin_dir: Some("/nonexistent".into()), ..EmbeddedConfig::memory() };
    let err = Embedded::start(config).await.unwrap_err();
    assert!(err.to_string().contains("apt-get install postgresql-15"), "{err}");
}

#[tokio::test]
async fn a_path_the_servers_user_may_not_pass_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let closed = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap();
    let err = Embedded::start(EmbeddedConfig::durable(closed.path().join("pg"))).await.unwrap_err();
    assert!(matches!(&err, EmbeddedError::BlockedPath { blocked, .. } if blocked == closed.path()), "{err}");
}

/// Runs this test binary again as a process that starts a server, says where, and waits to be killed.
#[tokio::test]
async fn a_parent_killed_with_minus_nine_leaves_no_postmaster_and_no_memory_folder() {
    const ROLE: &str = "BC_TEST_SERVER_DIR";
    if let Some(dir) = std::env::var_os(ROLE) {
        let config = if dir == "memory" { EmbeddedConfig::memory() } else { EmbeddedConfig::durable(dir) };
        let server = Embedded::start(config).await.unwrap();
        println!("server {} {}", server.pid(), server.dir().display());
        std::future::pending::<()>().await;
    }
    let temp = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let durable = temp.path().join("pg");
    for dir in [durable.as_path(), Path::new("memory")] {
        let (pid, found) = killed_parent(ROLE, dir).await;
        gone(pid).await;
        if dir == durable {
            // What was left behind is taken over at once, without waiting for anybody's clean-up.
            Embedded::start(EmbeddedConfig::durable(&durable)).await.unwrap().stop().await.unwrap();
        } else {
            eventually(Duration::from_secs(10), || async {
                if Path::new(&found).exists() { Err("the folder is there") } else { Ok(()) }
            })
            .await;
        }
    }
}

/// The postmaster and folder of a process that was killed while its server ran.
async fn killed_parent(role: &str, dir: &Path) -> (u32, String) {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut parent = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["a_parent_killed_with_minus_nine", "--nocapture", "--test-threads=1"])
        .env(role, dir)
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let (pid, found) = loop {
        let line = lines.next_line().await.unwrap().expect("it says where its server is");
        if let Some((_, rest)) = line.split_once("server ") {
            let (pid, found) = rest.split_once(' ').unwrap();
            break (pid.parse().unwrap(), found.to_owned());
        }
    };
    assert!(alive(pid));
    parent.kill().await.unwrap();
    (pid, found)
}
