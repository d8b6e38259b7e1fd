//! What people get wrong, and what machines do to them: each is told apart, and nothing is lost by it.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e::dev::{Dev, eventually};
use e2e::program::{self, Done, Running};
use e2e::serve::{Balancer, Cloud, Serve, Target};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod disk;

/// An error at the start is found before anything slow is done.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);
const GONE_WITHIN: Duration = Duration::from_secs(40);

fn temp() -> anyhow::Result<tempfile::TempDir> {
    let temp = tempfile::Builder::new().prefix("bc-e2e-").tempdir()?;
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(temp)
}

/// Runs a program that should refuse to go on, and fails when it does go on.
fn refused(program: &str, args: &[&str], home: &Path) -> anyhow::Result<Done> {
    let mut command = Command::new(program::path(program)?);
    command.args(args).env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("BCD_JOIN_TOKEN");
    let (out, err) = (home.join("stdout"), home.join("stderr"));
    command.stdout(std::fs::File::create(&out)?).stderr(std::fs::File::create(&err)?);
    let mut running = Running::start(program, &mut command)?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = running.has_ended()? {
            break status;
        }
        ensure!(started.elapsed() < REFUSED_WITHIN, "{program} {args:?} goes on");
        std::thread::sleep(Duration::from_millis(20));
    };
    ensure!(!status.success(), "{program} {args:?} succeeded");
    let code = status.code().with_context(|| format!("{program} {args:?}: {status}"))?;
    let done = Done { code, stdout: std::fs::read_to_string(&out)?, stderr: std::fs::read_to_string(&err)? };
    ensure!(!done.stderr.contains("panicked"), "{done:?}");
    Ok(done)
}

fn says(done: &Done, wanted: &[&str]) -> anyhow::Result<()> {
    for text in wanted {
        ensure!(done.stderr.contains(text), "{text:?} is not in {done:?}");
    }
    Ok(())
}

#[test]
fn a_token_among_the_arguments_is_refused_and_not_repeated() -> anyhow::Result<()> {
    let home = temp()?;
    let secret = "0123456789abcdefghjkmnpqrstvwxyz0123456789";
    let (user, join) = (format!("bct_{secret}"), format!("bcjt_{secret}"));
    let flag = format!("--token={user}");
    for (program, args) in [
        ("better-compute", &["nodes", "list", &flag][..]),
        ("better-compute", &["login", &user][..]),
        ("bcd", &["join", &join][..]),
        ("bcd", &["join", "--token", &join][..]),
    ] {
        let done = refused(program, args, home.path())?;
        ensure!(done.code == 2, "{done:?}");
        ensure!(!done.stderr.contains(&secret[..12]) && !done.stdout.contains(&secret[..12]), "{done:?}");
        says(&done, &["every process on this machine can read arguments"])?;
    }
    Ok(())
}

#[test]
fn a_misspelt_key_is_named_with_the_one_that_was_meant() -> anyhow::Result<()> {
    let home = temp()?;
    let config = home.path().join("config.toml");
    let config_text = config.to_str().context("a plain path")?;
    std::fs::write(
        &config,
        "[database]\nurl_file = \"u\"\n[pki]\ndir = \"p\"\n[gateway]\nlisen = \"0.0.0.0:1\"\n",
    )?;
    let done = refused("better-compute", &["serve", "--config", config_text], home.path())?;
    says(&done, &[config_text, "`lisen`", "`listen`"])?;

    std::fs::write(&config, "[gateway]\nurl = \"https://gw.example.com\"\nserving_ca_pin = []\n")?;
    let done = refused("bcd", &["node", "--config", config_text], home.path())?;
    says(&done, &[config_text, "\"gateway.serving_ca_pin\"", "did you mean \"gateway.serving_ca_pins\"?"])
}

#[test]
fn a_taken_port_is_named_with_a_way_around_it() -> anyhow::Result<()> {
    let home = temp()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let args = ["dev", "--memory", "--sim", "0", "--listen", &address];
    let done = refused("better-compute", &args, home.path())?;
    says(&done, &[&address, "another program listens there", "--listen 127.0.0.1:0"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateways_taken_port_is_named() -> anyhow::Result<()> {
    let (cloud, home) = (Cloud::new().await?, temp()?);
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    let serve =
        Serve { gateway_listen: address, ..Serve::new("gateway", &["gateway", "worker"], &cloud.db.url) };
    let config = cloud.config(&serve)?;
    let args = ["serve", "--config", config.to_str().context("a plain path")?];
    says(&refused("better-compute", &args, home.path())?, &[&address.to_string(), "in use"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_away_is_unavailable_until_it_is_back() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let way = || vec![Target::Unix(cloud.database_socket().expect("a server with a socket"))];
    let between = Balancer::new(SocketAddr::from(([127, 0, 0, 1], 0)), way()).await?;
    let address = between.address;
    let url = cloud.url(None, Some(address))?;
    let server = cloud.serve(&Serve::new("api", &["api", "worker"], &url))?;
    let api = cloud.api(&server)?;
    api.ok("tokens.whoami", json!({})).await?;
    drop(between);
    let client = server.api.clone().context("it has an API")?;
    let at: SocketAddr = client.trim_start_matches("http://").parse()?;
    let token = std::fs::read_to_string(cloud.admin_token())?;
    let path = api::find("sites.create").context("a method")?.path();
    for name in ["one", "two"] {
        let body = json!({ "name": name }).to_string();
        let (status, answer) = post(at, &path, token.trim(), body.as_bytes()).await?;
        ensure!(status == 503 && answer["error"]["code"] == "UNAVAILABLE", "{status} {answer}");
        ensure!(
            !answer.to_string().contains(&address.to_string()),
            "what is inside is told outside: {answer}"
        );
    }
    let _between = Balancer::new(address, way()).await?;
    e2e::serve::eventually(GONE_WITHIN, "it answers again", async || {
        let answered = api.call("sites.create", json!({ "name": "three" })).await;
        Ok(answered.map(drop).map_err(|err| kit::chain(&err)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_down_older_or_newer_is_told_apart() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let home = temp()?;
    let run = |name: &str, command: &str, url: &str| {
        let config = cloud.config(&Serve::new(name, &["worker"], url))?;
        refused(
            "better-compute",
            &[command, "--config", config.to_str().context("a plain path")?],
            home.path(),
        )
    };
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let down = cloud.url(None, Some(nobody))?;
    let done = run("down", "serve", &down)?;
    says(&done, &["refused"])?;
    let password = cloud.db.url.split(['@', ':']).nth(2).context("a password")?;
    ensure!(!done.stderr.contains(password), "{done:?}");

    let newest = cloud.db.scalar_i64("SELECT max(version)::bigint FROM schema_migrations").await;
    cloud.db.batch("INSERT INTO schema_migrations (version, name, sha256) VALUES (9999, 'later', 'x')").await;
    for command in ["serve", "migrate"] {
        says(&run("newer", command, &cloud.db.url)?, &["9999", "start a newer program"])?;
    }
    cloud.db.batch(&format!("DELETE FROM schema_migrations WHERE version IN (9999, {newest})")).await;
    let done = run("older", "serve", &cloud.db.url)?;
    says(&done, &["better-compute migrate", &format!("{newest:04}")])?;
    let done = run("older", "doctor", &cloud.db.url)?;
    ensure!(
        done.stdout.contains("fail  schema") && done.stdout.contains("better-compute migrate"),
        "{done:?}"
    );
    Ok(())
}

#[test]
fn a_data_folder_of_somebody_else_is_refused() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give a folder away");
        return Ok(());
    }
    let home = temp()?;
    let data = home.path().join("data");
    std::fs::create_dir(&data)?;
    std::os::unix::fs::chown(&data, Some(65_534), Some(65_534))?;
    let data = data.to_str().context("a plain path")?;
    let done =
        refused("better-compute", &["dev", "--data-dir", data, "--listen", "127.0.0.1:0"], home.path())?;
    says(&done, &[data, "65534", "--data-dir"])?;
    ensure!(std::fs::read_dir(data)?.next().is_none(), "something was written there");
    Ok(())
}

/// Processes whose working folder is below `dir`.
fn working_below(dir: &Path) -> anyhow::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The folder of the database that this `dev` runs.
fn database_of(dev: u32) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        let parent = rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok());
        if name.ends_with("(postgres") && parent == Some(dev) {
            let data = std::fs::read_link(path.join("cwd"))?;
            return Ok(data.parent().context("pgdata lies in its folder")?.to_owned());
        }
    }
    bail!("no database of {dev} runs")
}

#[test]
fn a_second_dev_is_refused_and_a_killed_one_leaves_nothing_that_runs() -> anyhow::Result<()> {
    let temp = temp()?;
    let id = {
        let mut dev = Dev::start_in(temp.path(), &["--sim", "1"])?;
        let data = dev.data_dir.to_str().context("a plain path")?.to_owned();
        let home = temp.path().join("second");
        std::fs::create_dir(&home)?;
        let second =
            refused("better-compute", &["dev", "--data-dir", &data, "--listen", "127.0.0.1:0"], &home)?;
        says(&second, &["another `better-compute dev` runs on", &data])?;

        let made = dev.json(&["reservations", "create", "--pool", "gpu", "--gpus", "2", "--wait"])?;
        ensure!(!working_below(&dev.data_dir)?.is_empty(), "the database works in its folder");
        dev.running.kill()?;
        eventually(GONE_WITHIN, "the database ends with its parent", || {
            let left = working_below(&dev.data_dir)?;
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
        })?;
        made["id"].as_str().context("an id")?.to_owned()
    };
    let dev = Dev::start_in(temp.path(), &["--sim", "1"])?;
    let read = dev.json(&["reservations", "get", &id])?;
    ensure!(read["state"] == "active", "{read}");
    Ok(())
}

#[test]
fn a_killed_dev_in_memory_is_swept_up() -> anyhow::Result<()> {
    let mut dev = Dev::start(&["--memory", "--sim", "1"])?;
    let (folder, database) = (dev.data_dir.clone(), database_of(dev.running.pid())?);
    ensure!(folder.is_dir() && database.is_dir());
    dev.running.kill()?;
    eventually(GONE_WITHIN, "the database's folder goes", || {
        let left = working_below(&database)?;
        Ok(if left.is_empty() && !database.exists() { Ok(()) } else { Err(format!("{left:?}")) })
    })?;
    let _next = Dev::start(&["--memory", "--sim", "0"])?;
    ensure!(!folder.exists(), "{} was not swept up", folder.display());
    Ok(())
}

/// One request over HTTP/1.1 as it is written here. Gives the status and the body.
async fn post(address: SocketAddr, path: &str, token: &str, body: &[u8]) -> anyhow::Result<(u16, Value)> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let mut head = Vec::new();
    write!(
        head,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&head).await?;
    // It may answer before it has read all.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer)?;
    let status = answer.split_whitespace().nth(1).context("a status")?.parse()?;
    let (_, body) = answer.split_once("\r\n\r\n").context("a body")?;
    Ok((status, serde_json::from_str(body).with_context(|| body.to_owned())?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_wrong_is_refused_where_it_is_wrong() -> anyhow::Result<()> {
    let cloud = Cloud::new().await?;
    let server = cloud.serve(&Serve::new("api", &["api"], &cloud.db.url))?;
    let url = server.api.as_deref().context("it has an API")?;
    let address: SocketAddr = url.trim_start_matches("http://").parse()?;
    let token = std::fs::read_to_string(cloud.admin_token())?;
    let large = [b"{\"pool\":\"".to_vec(), vec![b'x'; (1 << 20) + 1]].concat();
    let node = "node_01m8kxqey1f2ybks4gamzncgye";
    let cases: [(&str, Vec<u8>, u16, &str, &str); 9] = [
        ("reservations.create", br#"["gpu"]"#.to_vec(), 400, "", "expected a JSON object"),
        (
            "reservations.create",
            br#"{"pool":"gpu","gpuss":1}"#.to_vec(),
            400,
            "/gpuss",
            "did you mean `gpus`",
        ),
        (
            "reservations.create",
            format!(r#"{{"pool":"{node}"}}"#).into(),
            400,
            "/pool",
            "starts with \"pool_\"",
        ),
        ("reservations.get", format!(r#"{{"id":"{node}"}}"#).into(), 400, "/id", "starts with \"rsv_\""),
        ("reservations.create", br#"{"pool":"gpu","gpus":"#.to_vec(), 400, "", "not valid JSON"),
        ("reservations.create", br#"{"pool":"gpu","gpus":"four"}"#.to_vec(), 400, "/gpus", "whole number"),
        ("reservations.create", br#"{"pool":"gpu","gpus":4096}"#.to_vec(), 400, "/gpus", "1024"),
        ("reservations.create", b"\xff\xfe".to_vec(), 400, "", "not valid JSON"),
        ("reservations.create", large, 413, "", "1048576 bytes"),
    ];
    for (method, body, status, pointer, message) in cases {
        let (seen, answer) =
            post(address, &api::find(method).context(method)?.path(), token.trim(), &body).await?;
        let error = &answer["error"];
        ensure!(seen == status && error["code"] == "INVALID_INPUT", "{seen} {answer}");
        ensure!(error["details"]["pointer"] == pointer, "{answer}");
        ensure!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{answer}");
        ensure!(error["requestId"].is_string(), "{answer}");
    }
    let (status, answer) = post(address, "/api/compute/tokens/whoami", token.trim(), b"{}").await?;
    ensure!(status == 200, "it answers no more: {answer}");
    Ok(())
}
