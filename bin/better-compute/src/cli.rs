//! The API on the command line: one command for each row of the method table, and what surrounds them.
//!
//! `commands()` is grafted onto the program's root; `run()` takes what was parsed. Arguments come from the shapes of the
//! requests, so a new method has its command at once; columns, waiting and asking are told per method where that is nicer.

mod api_command;
mod columns;
mod confirm;
mod context;
mod detail;
mod events;
mod failure;
mod flags;
mod follow;
mod import;
mod install;
mod login;
mod output;
mod request;
mod secrets;
mod shell;
mod ssh_cert;
mod table;
mod text;
mod tunnel;

use clap::{ArgMatches, Command};

pub use context::{Context, Contexts};
pub use failure::Failure;
pub use secrets::holds_token;
pub use shell::Shell;

/// Every command of this half: the groups of the API, then what surrounds them.
pub fn commands() -> Vec<Command> {
    let mut commands: Vec<Command> = api::GROUPS.iter().map(api_command::group).collect();
    commands.extend([context::command(), login::command(), install::command()]);
    commands.extend(tunnel::commands());
    commands.extend([completions_command(), man_command()]);
    commands
}

/// Whether a subcommand of the root belongs to this half.
pub fn owns(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs the subcommand `name`, one of [`commands`]. `root` makes the whole program's command, for completions and man pages.
/// Gives the exit code: 0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 conflict, 6 timed out waiting.
pub async fn run(name: &str, matches: &ArgMatches, root: impl Fn() -> Command, shell: &mut Shell) -> u8 {
    let done = match name {
        "context" => context::run(matches, shell),
        "login" => login::run(matches, shell).await,
        "daemon" => install::run(matches, shell).await,
        "ssh" | "console" | "port-forward" | "proxy" | "ssh-config" => {
            tunnel::run(name, matches, shell).await
        }
        "completions" => completions(matches, root(), shell),
        "man" => man(matches, root(), shell),
        _ => api_command::run(name, matches, shell).await,
    };
    match done {
        Ok(code) => code,
        Err(failure) => failure.print(shell),
    }
}

fn completions_command() -> Command {
    Command::new("completions")
        .about("Prints a completion script for a shell")
        .arg(clap::Arg::new("shell").required(true).value_parser(clap::value_parser!(clap_complete::Shell)))
}

fn completions(matches: &ArgMatches, mut root: Command, shell: &mut Shell) -> Result<u8, Failure> {
    let kind = *matches.get_one::<clap_complete::Shell>("shell").expect("clap requires it");
    let name = root.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(kind, &mut root, name, &mut script);
    shell.out(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

fn man_command() -> Command {
    Command::new("man").about("Writes manual pages into a folder").arg(
        clap::Arg::new("folder")
            .required(true)
            .value_name("FOLDER")
            .value_parser(clap::value_parser!(std::path::PathBuf)),
    )
}

fn man(matches: &ArgMatches, root: Command, shell: &mut Shell) -> Result<u8, Failure> {
    let folder = matches.get_one::<std::path::PathBuf>("folder").expect("clap requires it");
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(root.disable_help_subcommand(true), folder))
        .map_err(|err| {
            Failure::local(format!("failed to write manual pages to {}: {err}", folder.display()))
        })?;
    shell.note(&format!("manual pages are in {}", folder.display()));
    Ok(0)
}

#[cfg(test)]
mod tests;
