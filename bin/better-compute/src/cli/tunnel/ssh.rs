//! `ssh` and `ssh-config`: OpenSSH's own client, led through a tunnel.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::super::text::at;
use super::super::{Contexts, Failure, Shell};
use super::proxy::{SUFFIX, wait_arg};
use super::{client, context_arg, id_of, instance, node_ssh};

const KNOWN_HOSTS: &str = "known_hosts";

pub fn command() -> Command {
    Command::new("ssh")
        .about("Logs in to an instance by OpenSSH, through a tunnel; or to a node, by a certificate for just that")
        .after_help(
            "Everything after INSTANCE is ssh's: better-compute ssh web -i ~/.ssh/id_ed25519 -L 8080:localhost:80\n\
             or a command to run there: better-compute ssh web uname -a\n\
             On a node: better-compute ssh --node root@gpu-7 --reason 'disk full' -- uname -a",
        )
        .arg(
            Arg::new("instance")
                .value_name("[USER@]INSTANCE")
                .required_unless_present("node")
                .help("Its id, or its name when no other has it; as the image's user when none is given"),
        )
        .arg(
            Arg::new("args")
                .value_name("ARGS")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .help("Options of ssh, and a command to run"),
        )
        .args(node_ssh::args())
        .arg(wait_arg())
        .arg(context_arg())
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    if matches.contains_id("node") {
        return node_ssh::run(matches, shell).await;
    }
    let given = matches.get_one::<String>("instance").expect("clap requires it");
    let (user, given) = match given.rsplit_once('@') {
        Some((user, given)) => (Some(user.to_owned()), given),
        None => (None, given.as_str()),
    };
    let (client, tenant) = client(matches, shell)?;
    let found = instance(given, tenant.as_deref(), &client).await?;
    let id = id_of(&found)?;
    let user = user
        .or_else(|| Some(at(&found, "loginUser").to_owned()).filter(|user| !user.is_empty() && user != "-"));
    let mut ssh = std::process::Command::new("ssh");
    let proxy = proxy_command(matches.get_one::<String>("context").map(String::as_str))?;
    let patience = matches.get_one::<u64>("wait-timeout").copied().unwrap_or_default();
    ssh.arg("-o").arg(format!("ProxyCommand={proxy} --wait-timeout {patience} {id} %p"));
    for option in host_keys(shell)? {
        ssh.arg("-o").arg(option);
    }
    if let Some(user) = user {
        ssh.arg("-l").arg(user);
    }
    let (options, command) = split(matches.get_many::<String>("args").into_iter().flatten());
    ssh.args(options).arg(id.to_string()).args(command);
    // Only when there is no ssh does it come back.
    let err = ssh.exec();
    Err(no_ssh("ssh", &err, "a serial console: better-compute console INSTANCE"))
}

/// That a program of OpenSSH's is not to be run.
pub fn no_ssh(program: &str, err: &std::io::Error, instead: &str) -> Failure {
    Failure::Local {
        message: format!("cannot run {program}: {err}"),
        help: format!("apt-get install openssh-client; or {instead}"),
    }
}

/// Options come before the host and a command after it, so that what is given after the instance is both.
pub fn split<'a>(args: impl Iterator<Item = &'a String>) -> (Vec<&'a str>, Vec<&'a str>) {
    /// Those of ssh that have a value of their own.
    const WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";
    let (mut options, mut command, mut value_follows) = (Vec::new(), Vec::new(), false);
    for arg in args {
        if !command.is_empty() {
            command.push(arg.as_str());
        } else if value_follows {
            value_follows = false;
            options.push(arg.as_str());
        } else if arg == "--" {
            continue;
        } else if let Some(letters) = arg.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            // The first that has a value has the rest of the word as it, or the next word.
            value_follows = letters.find(|letter| WITH_VALUE.contains(letter)) == Some(letters.len() - 1);
            options.push(arg.as_str());
        } else {
            command.push(arg.as_str());
        }
    }
    (options, command)
}

/// This very program, as a shell takes it.
pub fn proxy_command(context: Option<&str>) -> Result<String, Failure> {
    let program =
        std::env::current_exe().map_err(|err| Failure::local(format!("where is this program? {err}")))?;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    // A percent sign is ssh's.
    let mut command = quoted(&program.display().to_string()).replace('%', "%%");
    command.push_str(" proxy");
    if let Some(context) = context {
        command.push_str(&format!(" --context {}", quoted(context).replace('%', "%%")));
    }
    Ok(command)
}

/// An instance's keys are its own for as long as there is its id, and are kept apart from those of hosts.
pub fn host_keys(shell: &Shell) -> Result<[String; 3], Failure> {
    let known: PathBuf = Contexts::path(shell)?.with_file_name(KNOWN_HOSTS);
    Ok([
        format!("UserKnownHostsFile=\"{}\"", known.display()),
        "StrictHostKeyChecking=accept-new".to_owned(),
        "CheckHostIP=no".to_owned(),
    ])
}

pub fn config_command() -> Command {
    Command::new("ssh-config")
        .about("Prints lines for ~/.ssh/config, by which plain ssh, scp, rsync and editors find instances")
        .after_help(format!("Then: ssh debian@web{SUFFIX}, scp file inst_01k5w…:, and so on."))
        .arg(context_arg())
}

pub fn config(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let proxy = proxy_command(matches.get_one::<String>("context").map(String::as_str))?;
    let mut text = format!("Host inst_* *{SUFFIX}\n    ProxyCommand {proxy} %h %p\n");
    for option in host_keys(shell)? {
        let (name, value) = option.split_once('=').unwrap_or((&option, ""));
        text.push_str(&format!("    {name} {value}\n"));
    }
    shell.out(&text)?;
    if shell.output_is_terminal {
        shell.note("  add them with: better-compute ssh-config >> ~/.ssh/config");
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ssh_go_before_the_host_and_a_command_after_it() {
        let split = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (options, command) = split(words.iter());
            (options.join(" "), command.join(" "))
        };
        assert_eq!(split("uname -a"), (String::new(), "uname -a".into()));
        assert_eq!(split("-i key uname -a"), ("-i key".into(), "uname -a".into()));
        assert_eq!(split("-ikey -tt top"), ("-ikey -tt".into(), "top".into()));
        assert_eq!(split("-v -L 1:h:2 -N"), ("-v -L 1:h:2 -N".into(), String::new()));
        assert_eq!(split("-- ls -l"), (String::new(), "ls -l".into()));
        assert_eq!(split("-vi key ls"), ("-vi key".into(), "ls".into()));
    }
}
