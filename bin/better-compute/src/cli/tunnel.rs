//! Ways in: `ssh`, `console`, `port-forward`, and `proxy`, which plain `ssh` and its relatives are configured with.

mod connect;
mod console;
mod forward;
mod node_ssh;
mod proxy;
mod ssh;

use clap::{Arg, ArgMatches, Command};
use model::{InstanceId, NodeId};
use serde_json::{Value, json};

use super::api_command::{self, add_tenant};
use super::text::at;
use super::{Failure, Shell, context};
use client::Client;

pub use connect::{Sealed, connect};

pub fn commands() -> [Command; 5] {
    [ssh::command(), console::command(), forward::command(), proxy::command(), ssh::config_command()]
}

pub async fn run(name: &str, matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    match name {
        "ssh" => ssh::run(matches, shell).await,
        "console" => console::run(matches, shell).await,
        "port-forward" => forward::run(matches, shell).await,
        "proxy" => proxy::run(matches, shell).await,
        _ => ssh::config(matches, shell),
    }
}

/// What is to be reached, as `tunnels.open` takes it.
#[derive(Debug, Clone)]
pub struct Door {
    request: Value,
    /// As a person would name it.
    pub shown: String,
}

impl Door {
    pub fn of_instance(id: InstanceId, op: &'static str, port: Option<u16>) -> Self {
        let mut request = json!({ "instance": id.to_string(), "op": op });
        if let Some(port) = port {
            request["port"] = port.into();
        }
        Self { request, shown: id.to_string() }
    }

    /// The SSH server of a node itself.
    pub fn ssh_of_node(node: &str, port: u16) -> Self {
        Self { request: json!({ "node": node, "op": "ssh", "port": port }), shown: node.to_owned() }
    }

    pub fn of_node(node: &str) -> Self {
        Self { request: json!({ "node": node, "op": "console" }), shown: node.to_owned() }
    }
}

/// That a port takes no connections, which may be so for a moment only.
pub struct NotYet;

impl NotYet {
    const WORD: &'static str = "NotReached";

    pub fn is(failure: &Failure) -> bool {
        matches!(failure, Failure::Local { message, .. } if message.ends_with(&format!("({})", Self::WORD)))
    }
}

fn context_arg() -> Arg {
    Arg::new("context").long("context").value_name("NAME").help("Where, instead of in the current context")
}

fn instance_arg() -> Arg {
    Arg::new("instance").value_name("INSTANCE").help("Its id, or its name when no other has it")
}

/// The client of the context that was asked for.
fn client(matches: &ArgMatches, shell: &mut Shell) -> Result<(Client, Option<String>), Failure> {
    let target = context::resolve(matches.get_one::<String>("context").map(String::as_str), shell)?;
    let tenant = target.tenant.clone();
    Ok((target.client(shell)?, tenant))
}

/// The instance that was meant, with what is to be known of it.
async fn instance(given: &str, tenant: Option<&str>, client: &Client) -> Result<Value, Failure> {
    if given.parse::<NodeId>().is_ok() {
        return Err(Failure::Usage {
            message: format!("{given} is a node: for its own console there is --node"),
            help: format!("better-compute console --node {given}"),
        });
    }
    let get = api::find("instances.get").expect("the table has it");
    let mut wanted = json!({ "id": given });
    add_tenant(get, &mut wanted, tenant);
    api_command::send(get, &super::request::check(get, wanted)?, client).await
}

fn id_of(instance: &Value) -> Result<InstanceId, Failure> {
    at(instance, "id").parse().map_err(|_| Failure::local("the answer names no instance"))
}
