//! `proxy`: standard input and output as a connection to a port of an instance, for ssh's ProxyCommand.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use client::Client;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};

use super::super::{Failure, Shell};
use super::{Door, NotYet, Sealed, client, connect, context_arg, id_of, instance, instance_arg};

pub const BUFFER_BYTES: usize = 64 * 1024;
/// What names of instances may end in, so that a pattern in ssh_config matches them.
pub const SUFFIX: &str = ".bc";

pub fn command() -> Command {
    Command::new("proxy")
        .about("Connects standard input and output with a port of an instance, as ssh's ProxyCommand")
        .arg(instance_arg().required_unless_present("node"))
        .arg(
            Arg::new("port")
                .value_name("PORT")
                .default_value("22")
                .value_parser(value_parser!(u16).range(1..))
                .help("Of the instance"),
        )
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("NODE")
                .help("The SSH server of this node itself, and no instance"),
        )
        .arg(wait_arg())
        .arg(context_arg())
}

/// A guest that has just been started has no SSH server yet.
pub fn wait_arg() -> Arg {
    Arg::new("wait-timeout")
        .long("wait-timeout")
        .value_name("SECONDS")
        .default_value("60")
        .value_parser(value_parser!(u64).range(0..=3600))
        .help("How long to wait for the port to take connections")
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let (client, tenant) = client(matches, shell)?;
    let given = matches.get_one::<String>("instance").map(String::as_str).unwrap_or_default();
    let door = match matches.get_one::<String>("node") {
        // There is no instance, and what follows is the port.
        Some(node) => {
            let port = if given.is_empty() { Ok(22) } else { given.parse() };
            let port = port.map_err(|_| Failure::usage(format!("{given:?} is no port of a node")))?;
            Door::ssh_of_node(node, port)
        }
        None => {
            let port = *matches.get_one::<u16>("port").expect("it has a default");
            let name = given.strip_suffix(SUFFIX).unwrap_or(given);
            let found = instance(name, tenant.as_deref(), &client).await?;
            Door::of_instance(id_of(&found)?, "ssh", Some(port))
        }
    };
    let patience = Duration::from_secs(matches.get_one::<u64>("wait-timeout").copied().unwrap_or_default());
    let mut stream = patiently(&client, &door, patience, shell).await?;
    let mut own = tokio::io::join(tokio::io::stdin(), tokio::io::stdout());
    let carried = copy_bidirectional_with_sizes(&mut own, &mut stream, BUFFER_BYTES, BUFFER_BYTES).await;
    let _ = stream.shutdown().await;
    match carried {
        Ok(_) => Ok(0),
        Err(err) => Err(Failure::local(format!("the connection was cut off: {err}"))),
    }
}

/// The same once the port takes connections, within a time.
async fn patiently(
    client: &Client,
    door: &Door,
    patience: Duration,
    shell: &mut Shell,
) -> Result<Sealed, Failure> {
    let (clock, mut told) = (shell.clock.clone(), false);
    let until = clock.monotonic() + patience;
    loop {
        let failure = match connect(client, door, &clock).await {
            Err(failure) if NotYet::is(&failure) && clock.monotonic() < until => failure,
            done => return done,
        };
        if !std::mem::replace(&mut told, true) {
            shell.note(&format!("waiting for {}: {failure}", door.shown));
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
}
