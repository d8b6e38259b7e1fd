//! Contexts: which server, trusted how, known by which token file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use client::{Client, Config};
use serde::{Deserialize, Serialize};

use super::{Failure, Shell};

const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longer than any token.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The file: `~/.config/better-compute/config.toml`, readable by its owner alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, Context>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub url: String,
    /// The token is never in this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The only authorities to trust; the system's when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// `tnt_…`: used wherever a tenant may be given and is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl Contexts {
    /// `BETTER_COMPUTE_CONFIG`, else below `XDG_CONFIG_HOME`, else below the home folder.
    pub fn path(shell: &Shell) -> Result<PathBuf, Failure> {
        if let Some(path) = shell.var("BETTER_COMPUTE_CONFIG") {
            return Ok(PathBuf::from(path));
        }
        let base = match shell.var("XDG_CONFIG_HOME") {
            Some(base) => PathBuf::from(base),
            None => shell
                .home()
                .ok_or_else(|| {
                    Failure::local("no home folder: set BETTER_COMPUTE_CONFIG to where the contexts are")
                })?
                .join(".config"),
        };
        Ok(base.join("better-compute/config.toml"))
    }

    /// Empty when there is no file yet.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let bytes =
            kit::fs::read_if_present(path, FILE_BYTES_MAX).map_err(|err| Failure::local(kit::chain(&err)))?;
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        // It decides where tokens are sent.
        kit::fs::check_private(path).map_err(|err| Failure::local(kit::chain(&err)))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Failure::local(format!("{}: it is not UTF-8", path.display())))?;
        toml::from_str(&text).map_err(|err| Failure::local(format!("{}: {err}", path.display())))
    }

    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self)
            .map_err(|err| Failure::local(format!("failed to write contexts: {err}")))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        kit::fs::create_dir(folder, 0o700)
            .and_then(|()| kit::fs::write_atomic(path, text.as_bytes(), 0o600))
            .map_err(|err| Failure::local(kit::chain(&err)))
    }
}

/// Where a command goes.
pub struct Target {
    pub url: String,
    pub token: Option<String>,
    pub ca_file: Option<PathBuf>,
    pub tenant: Option<String>,
}

impl Target {
    pub fn client(&self, shell: &Shell) -> Result<Client, Failure> {
        let mut config =
            Config::new(&self.url).user_agent(concat!("better-compute/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            config = config.token(token);
        }
        if let Some(path) = &self.ca_file {
            config = config.ca_file(path);
        }
        Client::new(config, shell.clock.clone(), shell.rng.clone())
            .map_err(|err| Failure::local(kit::chain(&err)))
    }
}

/// The chosen context, with what the environment says over it. A token goes to no other server than the one it is kept for:
/// where the environment names another URL, it must bring the token too.
pub fn resolve(chosen: Option<&str>, shell: &Shell) -> Result<Target, Failure> {
    let path = Contexts::path(shell)?;
    let contexts = Contexts::load(&path)?;
    let url_of_env = shell.var("BETTER_COMPUTE_URL").map(str::to_owned);
    let context = match chosen.or(contexts.current.as_deref()) {
        Some(name) => Some(contexts.contexts.get(name).ok_or_else(|| unknown(name, &contexts))?.clone()),
        None => None,
    };
    let same_server = match (&url_of_env, &context) {
        (Some(url), Some(context)) => url.trim_end_matches('/') == context.url.trim_end_matches('/'),
        _ => true,
    };
    let kept = context.filter(|_| same_server);
    let url = match (url_of_env, &kept) {
        (Some(url), _) => url,
        (None, Some(context)) => context.url.clone(),
        (None, None) => {
            return Err(Failure::Local {
                message: "no server: there is no current context and BETTER_COMPUTE_URL is not set"
                    .to_owned(),
                help: "better-compute login --url https://… --token-stdin".to_owned(),
            });
        }
    };
    let token = match (shell.var("BETTER_COMPUTE_TOKEN_FILE"), shell.var("BETTER_COMPUTE_TOKEN")) {
        (Some(file), _) => Some(read_token(Path::new(file))?),
        (None, Some(token)) => Some(token.to_owned()),
        (None, None) => match kept.as_ref().and_then(|context| context.token_file.as_deref()) {
            Some(file) => Some(read_token(file)?),
            None => None,
        },
    };
    let ca_file = shell.var("BETTER_COMPUTE_CA_FILE").map(PathBuf::from);
    Ok(Target {
        url,
        token,
        ca_file: ca_file.or_else(|| kept.as_ref().and_then(|context| context.ca_file.clone())),
        tenant: kept.and_then(|context| context.tenant),
    })
}

fn unknown(name: &str, contexts: &Contexts) -> Failure {
    let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
    let message = match (api::near(name, known.iter().copied()), known.is_empty()) {
        (Some(near), _) => format!("no context {name:?}, did you mean {near:?}?"),
        (None, true) => format!("no context {name:?}: there is none yet"),
        (None, false) => format!("no context {name:?}: there is {}", known.join(", ")),
    };
    Failure::Usage { message, help: "better-compute context list".to_owned() }
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let failed = |err: kit::fs::FsError| Failure::local(kit::chain(&err));
    let bytes = kit::fs::read_bounded(path, TOKEN_BYTES_MAX).map_err(failed)?;
    kit::fs::check_private(path).map_err(failed)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::local(format!("{}: it holds no token", path.display())))?;
    match text.trim() {
        "" => Err(Failure::local(format!("{}: it is empty", path.display()))),
        token => Ok(token.to_owned()),
    }
}

pub fn command() -> Command {
    let name = Arg::new("name").value_name("NAME");
    Command::new("context")
        .about("Which server commands go to")
        .after_help(
            "Environment, over the context:\n  \
             BETTER_COMPUTE_URL         the server; a context's token goes to its own server only\n  \
             BETTER_COMPUTE_TOKEN_FILE  a file with the token, readable by its owner alone\n  \
             BETTER_COMPUTE_TOKEN       the token itself\n  \
             BETTER_COMPUTE_CA_FILE     PEM file of the only authorities to trust\n  \
             BETTER_COMPUTE_CONFIG      where contexts are kept: ~/.config/better-compute/config.toml",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("Lists contexts"))
        .subcommand(
            Command::new("use").about("Makes a context the current one").arg(name.clone().required(true)),
        )
        .subcommand(Command::new("show").about("Shows where commands go, the environment included").arg(name))
}

pub fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let path = Contexts::path(shell)?;
    match matches.subcommand() {
        Some(("use", matches)) => {
            let mut contexts = Contexts::load(&path)?;
            let name = matches.get_one::<String>("name").expect("clap requires it");
            let url = contexts.contexts.get(name).ok_or_else(|| unknown(name, &contexts))?.url.clone();
            contexts.current = Some(name.clone());
            contexts.save(&path)?;
            shell.note(&format!("commands go to {url} ({name}) from now on"));
        }
        Some(("show", matches)) => {
            let chosen = matches.get_one::<String>("name").map(String::as_str);
            let target = resolve(chosen, shell)?;
            let contexts = Contexts::load(&path)?;
            let name = chosen.or(contexts.current.as_deref()).unwrap_or("-");
            let authorities =
                target.ca_file.map_or("the system's".to_owned(), |file| file.display().to_string());
            shell.out(&format!(
                "context      {name}\nserver       {}\ntoken        {}\nauthorities  {authorities}\ntenant       {}\nfile         {}\n",
                target.url,
                if target.token.is_some() { "present" } else { "none: better-compute login --token-stdin" },
                target.tenant.as_deref().unwrap_or("the caller's"),
                path.display(),
            ))?;
        }
        _ => {
            let contexts = Contexts::load(&path)?;
            if contexts.contexts.is_empty() {
                shell.note("none yet: better-compute login --url https://… --token-stdin");
            }
            let width = contexts.contexts.keys().map(String::len).max().unwrap_or(0);
            for (name, context) in &contexts.contexts {
                let mark = if contexts.current.as_ref() == Some(name) { "*" } else { " " };
                shell.out(&format!("{mark} {name:<width$}  {}\n", context.url))?;
            }
        }
    }
    Ok(0)
}
