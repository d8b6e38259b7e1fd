//! `console`: the serial console of an instance, or a shell on a node, on this terminal.

use std::io;

use clap::{Arg, ArgMatches, Command};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use wire::tunnel::{CONSOLE_DATA_BYTES_MAX, ConsoleFrame, ConsoleFrames};

use super::super::{Failure, Shell};
use super::{Door, Sealed, client, connect, context_arg, id_of, instance, instance_arg};

/// Ctrl-], as telnet and virsh have it.
const LEAVE: u8 = 0x1d;

pub fn command() -> Command {
    Command::new("console")
        .about("Opens the serial console of an instance, or a shell on a node")
        .after_help("Ctrl-] leaves. A serial console may wait for Enter before it says anything.")
        .arg(instance_arg().required_unless_present("node").conflicts_with("node"))
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("NODE")
                .help("A shell on this node itself, by its id or name"),
        )
        .arg(context_arg())
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let (client, tenant) = client(matches, shell)?;
    let door = match (matches.get_one::<String>("node"), matches.get_one::<String>("instance")) {
        (Some(node), _) => Door::of_node(node),
        (None, given) => {
            let given = given.map(String::as_str).unwrap_or_default();
            let found = instance(given, tenant.as_deref(), &client).await?;
            Door::of_instance(id_of(&found)?, "console", None)
        }
    };
    let stream = connect(&client, &door, &shell.clock.clone()).await?;
    let of_node = matches.contains_id("node");
    let how = if of_node { "" } else { "; Enter, if nothing is to be seen" };
    shell.note(&format!("connected with {}: Ctrl-] leaves{how}", door.shown));
    let raw = match shell.input_is_terminal {
        true => {
            Some(Raw::begin().map_err(|err| Failure::local(format!("failed to take the terminal: {err}")))?)
        }
        false => None,
    };
    let ended = carry(stream, raw.is_some()).await;
    drop(raw);
    shell.note("");
    ended.map_err(|err| Failure::local(format!("the console was cut off: {err}")))
}

/// Until either side leaves. Gives the exit status of what ran there.
async fn carry(stream: Sealed, on_terminal: bool) -> io::Result<u8> {
    let (mut from, mut to) = tokio::io::split(stream);
    let typed = async {
        let mut resized = signal(SignalKind::window_change())?;
        let (mut input, mut buffer) = (tokio::io::stdin(), vec![0; CONSOLE_DATA_BYTES_MAX]);
        if let Some(size) = size(on_terminal) {
            to.write_all(&size.encode()).await?;
        }
        loop {
            to.flush().await?;
            // Both arms are cancel-safe: nothing is read by an arm that loses.
            let frame = tokio::select! {
                read = input.read(&mut buffer) => match &buffer[..read?] {
                    // Who has no more to say may want to hear the rest.
                    [] => std::future::pending().await,
                    typed => match typed.iter().position(|byte| on_terminal && *byte == LEAVE) {
                        Some(_) => return Ok::<_, io::Error>(0),
                        None => ConsoleFrame::Data(typed.to_vec()),
                    },
                },
                _ = resized.recv() => match size(on_terminal) {
                    Some(size) => size,
                    None => continue,
                },
            };
            to.write_all(&frame.encode()).await?;
        }
    };
    let shown = async {
        let (mut frames, mut buffer) = (ConsoleFrames::default(), vec![0; CONSOLE_DATA_BYTES_MAX]);
        let mut output = tokio::io::stdout();
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<_, io::Error>(0);
            }
            frames.push(&buffer[..read]);
            while let Some(frame) = frames.next_frame().map_err(io::Error::other)? {
                match frame {
                    ConsoleFrame::Data(data) => output.write_all(&data).await?,
                    ConsoleFrame::Exit(status) => return Ok(status),
                    ConsoleFrame::Resize { .. } => {}
                }
            }
            output.flush().await?;
        }
    };
    // The loser is dropped, and with it the tunnel.
    tokio::select! {
        left = typed => left,
        ended = shown => ended,
    }
}

fn size(on_terminal: bool) -> Option<ConsoleFrame> {
    let size = tcgetwinsize(io::stdout()).ok().filter(|_| on_terminal)?;
    Some(ConsoleFrame::Resize { columns: size.ws_col, rows: size.ws_row })
}

/// The terminal as it was, once this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
