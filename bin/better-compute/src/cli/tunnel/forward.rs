//! `port-forward`: ports of this machine that lead to ports of an instance.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use client::Client;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kit::Clock;
use model::InstanceId;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};

use super::super::{Failure, Shell};
use super::proxy::BUFFER_BYTES;
use super::{Door, client, connect, context_arg, id_of, instance, instance_arg};

pub fn command() -> Command {
    Command::new("port-forward")
        .about("Listens on ports of this machine and carries what connects there to ports of an instance")
        .after_help("Each connection is a tunnel of its own. Ctrl-C ends them all.")
        .arg(instance_arg().required(true))
        .arg(
            Arg::new("ports")
                .value_name("[LOCAL:]REMOTE")
                .required(true)
                .action(ArgAction::Append)
                .value_parser(ports)
                .num_args(1..)
                .help("A port of the instance, and of this machine when it is another; 0 takes a free one"),
        )
        .arg(
            Arg::new("address")
                .long("address")
                .value_name("ADDRESS")
                .default_value("127.0.0.1")
                .value_parser(value_parser!(IpAddr))
                .help("Where to listen"),
        )
        .arg(context_arg())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    remote: u16,
}

fn ports(text: &str) -> Result<Ports, String> {
    let number = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is no port: 1 to 65535"));
    let (local, remote) = match text.split_once(':') {
        Some((local, remote)) => (number(local)?, number(remote)?),
        None => (number(text)?, number(text)?),
    };
    match remote {
        0 => Err("an instance has no port 0".to_owned()),
        remote => Ok(Ports { local, remote }),
    }
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let given = matches.get_one::<String>("instance").expect("clap requires it");
    let listen = matches.get_one::<IpAddr>("address").copied().unwrap_or(Ipv4Addr::LOCALHOST.into());
    let (client, tenant) = client(matches, shell)?;
    let id = id_of(&instance(given, tenant.as_deref(), &client).await?)?;
    let mut listeners = Vec::new();
    for ports in matches.get_many::<Ports>("ports").into_iter().flatten() {
        let address = SocketAddr::new(listen, ports.local);
        let listener = TcpListener::bind(address).await.map_err(|err| Failure::Local {
            message: format!("cannot listen on {address}: {err}"),
            help: format!("another port: better-compute port-forward {given} 0:{}", ports.remote),
        })?;
        let local = listener.local_addr().map_err(|err| Failure::local(err.to_string()))?;
        // Where programs read it.
        shell.out(&format!("{local} -> {given}:{}\n", ports.remote))?;
        listeners.push((listener, ports.remote));
    }
    let clock = shell.clock.clone();
    let serving = listeners.into_iter().map(|(listener, port)| serve(listener, port, id, &client, &clock));
    // Both arms are cancel-safe; what is open goes with the process.
    tokio::select! {
        _ = futures::future::join_all(serving) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(0)
}

async fn serve(listener: TcpListener, port: u16, id: InstanceId, client: &Client, clock: &Arc<dyn Clock>) {
    let mut open = FuturesUnordered::new();
    loop {
        // Both arms are cancel-safe: a connection that is not accepted stays, and those that are open go on.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(()) = open.next() => continue,
        };
        match accepted {
            Ok((tcp, from)) => open.push(async move {
                if let Err(said) = carry(tcp, port, id, client, clock).await {
                    eprintln!("{from}: {said}");
                }
            }),
            // Mostly a lack of file descriptors.
            Err(_) => clock.sleep(std::time::Duration::from_millis(100)).await,
        }
    }
}

async fn carry(
    mut tcp: TcpStream,
    port: u16,
    id: InstanceId,
    client: &Client,
    clock: &Arc<dyn Clock>,
) -> Result<(), String> {
    let door = Door::of_instance(id, "tcp", Some(port));
    let mut stream = connect(client, &door, clock).await.map_err(|failure| failure.to_string())?;
    let _ = tcp.set_nodelay(true);
    // However it ends: both ends know.
    let _ = copy_bidirectional_with_sizes(&mut tcp, &mut stream, BUFFER_BYTES, BUFFER_BYTES).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_two_numbers() {
        assert_eq!(ports("80"), Ok(Ports { local: 80, remote: 80 }));
        assert_eq!(ports("8080:80"), Ok(Ports { local: 8080, remote: 80 }));
        assert_eq!(ports("0:80"), Ok(Ports { local: 0, remote: 80 }));
        for wrong in ["", "0", "80:0", "80:", ":80", "65536", "a:80", "1:2:3", "-1"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
