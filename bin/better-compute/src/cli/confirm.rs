//! Verbs that take something away say what, and ask.

use api::MethodRow;
use client::Client;
use model::{CommandKind, Id, NodeId};
use serde_json::{Value, json};

use super::text::{age, at};
use super::{Failure, Shell};

/// How a verb is confirmed.
enum Ask {
    /// A yes is enough.
    Yes(&'static str),
    /// The same, once it was shown what goes with it.
    YesToAll,
    /// The node's name, typed.
    NodeName(&'static str),
    /// The deployment's id, typed.
    Deployment,
}

fn of(method: &str, request: &Value) -> Option<Ask> {
    Some(match method {
        "policies.delete" => Ask::Yes("delete"),
        "tenants.delete" if request["withContents"] == true => Ask::YesToAll,
        "bindings.delete" | "tenants.delete" | "pools.delete" | "images.delete" | "secrets.delete" => {
            Ask::Yes("delete")
        }
        "users.disable" => Ask::Yes("disable"),
        "tokens.revoke" | "joinTokens.revoke" => Ask::Yes("revoke"),
        "nodes.revokeSshCert" => Ask::Yes("revoke"),
        "reservations.release" => Ask::Yes("release"),
        "instances.delete" => Ask::Yes("delete, with its disk,"),
        "instances.forceRelease" => Ask::Yes("leave the disk on its host, and make anew,"),
        "nodes.drain" => Ask::Yes("drain"),
        "nodes.revoke" => Ask::NodeName("revoke"),
        "nodes.abandon" => Ask::NodeName("declare dead, and give up what is held on,"),
        "nodes.remove" => Ask::NodeName("remove"),
        "commands.create" => {
            let kind = CommandKind::parse(&at(request, "kind"))?;
            if !kind.policy().destructive {
                return None;
            }
            Ask::NodeName("interrupt what runs on")
        }
        "system.confirmRestore" => Ask::Deployment,
        _ => return None,
    })
}

/// Asks where it must be asked, and gives back the request with what it takes to go through.
pub async fn confirm(
    row: &'static MethodRow,
    mut request: Value,
    yes: bool,
    client: &Client,
    shell: &mut Shell,
) -> Result<Value, Failure> {
    let Some(ask) = of(row.name, &request) else { return Ok(request) };
    if request.get("dryRun") == Some(&Value::Bool(true)) || request.get("confirm").is_some() {
        return Ok(request);
    }
    if !yes && !shell.interactive() {
        let (group, verb) = row.cli();
        return Err(Failure::Usage {
            message: format!(
                "{group} {verb} takes something away, and nobody is there to be asked: give --yes"
            ),
            help: format!("better-compute {group} {verb} --help"),
        });
    }
    match ask {
        Ask::Yes(verb) => {
            let subject = ["id", "serial", "node", "pool", "policy", "image", "secret"]
                .iter()
                .map(|name| at(&request, name))
                .find(|it| !it.is_empty());
            let question = format!("{verb} {}? [y/N] ", subject.unwrap_or_default());
            if !yes && !matches!(shell.ask(&question).to_lowercase().as_str(), "y" | "yes") {
                return Err(not_done(shell));
            }
        }
        Ask::YesToAll => {
            if !yes && !agrees_to_all(row, &request, client, shell).await? {
                return Err(not_done(shell));
            }
        }
        Ask::NodeName(verb) => {
            let name = node_name(&request, client).await?;
            if !yes {
                if row.name.starts_with("nodes.") {
                    show_holds(row, &request, client, shell).await?;
                }
                let typed = shell.ask(&format!("this will {verb} {name} for good; type its name to go on: "));
                if typed != name {
                    return Err(not_done(shell));
                }
            }
            request["confirm"] = name.into();
        }
        Ask::Deployment => {
            let info = call("system.info", json!({}), client).await?;
            let id = at(&info, "deploymentId");
            if !yes {
                let reason = at(&info, "observeOnly.reason");
                shell.note(&format!("deployment {id}, epoch {}: {reason}", at(&info, "epoch")));
                shell.note("nodes will take intent of this database again, and refuse that of any older one");
                if shell.ask("type the deployment's id to go on: ") != id {
                    return Err(not_done(shell));
                }
                if request.get("epoch").is_none() {
                    request["epoch"] = info["epoch"].clone();
                }
            }
            request["confirm"] = id.into();
        }
    }
    Ok(request)
}

/// Shows what would go, and asks.
async fn agrees_to_all(
    row: &'static MethodRow,
    request: &Value,
    client: &Client,
    shell: &mut Shell,
) -> Result<bool, Failure> {
    let mut dry = request.clone();
    dry["dryRun"] = true.into();
    let would = call(row.name, dry, client).await?;
    let name = at(&would, "name");
    for one in would["has"].as_array().into_iter().flatten() {
        shell.note(&format!("{name} has {}", super::text::plain(one)));
    }
    let answer = shell.ask(&format!("delete {name}, with all of it? [y/N] "));
    Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

/// A node that was given by its id, by its name.
async fn node_name(request: &Value, client: &Client) -> Result<String, Failure> {
    let given = at(request, "node");
    if !given.starts_with(NodeId::PREFIX) {
        return Ok(given);
    }
    Ok(at(&call("nodes.get", json!({ "node": given }), client).await?, "name"))
}

/// What is on a node, by asking what would happen.
async fn show_holds(
    row: &'static MethodRow,
    request: &Value,
    client: &Client,
    shell: &mut Shell,
) -> Result<(), Failure> {
    let mut dry = request.clone();
    dry["dryRun"] = true.into();
    let change = call(row.name, dry, client).await?;
    let node = &change["node"];
    shell.note(&format!(
        "{} is {}, last seen {} ago",
        at(node, "name"),
        at(node, "state"),
        age(super::text::number(node, "lastSeenSeconds"))
    ));
    for hold in change["holds"].as_array().into_iter().flatten() {
        shell.note(&format!("  holds     {}", super::text::plain(hold)));
    }
    Ok(())
}

async fn call(method: &str, request: Value, client: &Client) -> Result<Value, Failure> {
    let row = api::find(method).expect("the table has it");
    match client.call_value(row, request.clone()).await {
        Ok(answer) => Ok(answer),
        Err(error) => Err(Failure::Call { error, method: row, request }),
    }
}

fn not_done(shell: &mut Shell) -> Failure {
    shell.note("nothing was done");
    Failure::Quiet(super::failure::exit::FAILED)
}
