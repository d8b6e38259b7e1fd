//! Releases that are not of one age: what each speaks and knows, and the matrix of what becomes of every pair of them.

use std::collections::BTreeMap;
use std::fmt::Write;

use model::CommandKind;
use model::lifecycle::CommandState;
use wire::versions::Versions;

use super::action::{Action, Hold, Release};
use super::clock::SECOND;
use super::invariants::Violation;
use super::plane::node_id;
use super::run::world_after;
use super::scenario::Scenario;

/// The version this release is taken to have brought: releases before it have room to speak older ones.
const CURRENT: u32 = 10;
/// A release speaks its own version and those of this many before it.
const WINDOW: u32 = 2;
/// A kind that comes with the release after this one: no daemon there is knows it.
pub const KIND_TO_COME: &str = "gpu.levitate";

impl Release {
    /// Counted like the versions they brought.
    const fn number(self) -> u32 {
        match self {
            Release::Below => CURRENT - 3,
            Release::OlderTwo => CURRENT - 2,
            Release::Older => CURRENT - 1,
            Release::Current => CURRENT,
            Release::Next => CURRENT + 1,
        }
    }

    pub const fn versions(self) -> Versions {
        Versions { min: self.number() - WINDOW, max: self.number() }
    }

    /// Kinds a daemon of it has a handler for: log collection is taken to have come with this release, and the deep diagnosis with
    /// the one before.
    pub fn handles(self, kind: CommandKind) -> bool {
        match kind {
            CommandKind::LogsCollect => self >= Release::Current,
            CommandKind::DiagNvml => self >= Release::Older,
            CommandKind::InventoryRefresh | CommandKind::GpuReset | CommandKind::NodeReboot => true,
        }
    }

    /// Whether it sends frames that no other release knows.
    pub fn sends_new_frames(self) -> bool {
        self == Release::Next
    }
}

/// What became of a daemon of one release and a gateway of another.
#[derive(Debug)]
pub struct Meeting {
    pub daemon: Release,
    pub gateway: Release,
    /// The version of the session, if there was one.
    pub protocol: Option<u32>,
    /// Why there was none.
    pub refusal: Option<String>,
    /// How commands ended, by kind: the state, and the reason when there is one.
    pub commands: BTreeMap<String, String>,
    /// The node has converged what it was sent.
    pub converged: bool,
    /// Frames of the other side that nobody here knows, and that changed nothing.
    pub unknown_frames: u64,
    pub violation: Option<Violation>,
}

/// Lets a daemon and a gateway of these releases meet for two minutes, with one command of each kind.
pub fn meet(daemon: Release, gateway: Release) -> Meeting {
    let mut lines = vec![
        (0, Action::GatewayRelease { gateway: 1, release: gateway }),
        (0, Action::NodeRelease { node: 1, release: daemon }),
        (0, Action::Spec { node: 1, hold: Hold::Held, number: 1 }),
    ];
    let kinds = CommandKind::ALL.iter().map(|kind| kind.name()).chain([KIND_TO_COME]);
    lines.extend(kinds.zip(1..).map(|(kind, id)| {
        let command = Action::Command { node: 1, id, kind: kind.to_owned(), ttl: 90, needs: 0, key: 0 };
        (20_000 + id * 1_000, command)
    }));
    let scenario = Scenario { seed: 1, nodes: 1, gateways: 1, lines };
    let world = world_after(&scenario, 120 * SECOND);
    let mut commands = BTreeMap::new();
    world.delivery.each_command(|command| {
        let kind = world.plane.commands.get(&command.command_id).map(|issued| issued.kind.clone());
        // What the machine makes of it is chance.
        let fate = match (command.state, command.reason) {
            (CommandState::Succeeded, _) | (CommandState::Failed, "broken") => "runs".to_owned(),
            (state, reason) if reason.is_empty() || reason == state.name() => state.name().to_owned(),
            (state, reason) => format!("{} {reason}", state.name()),
        };
        commands.insert(kind.unwrap_or_default(), fate);
    });
    let met = &world.met[0];
    Meeting {
        daemon,
        gateway,
        protocol: met.protocol,
        refusal: met.refusal.clone(),
        commands,
        converged: world.delivery.observed_generation(node_id(0)) == world.plane.newest[0],
        unknown_frames: world.hits.get("unknown-frame").copied().unwrap_or(0),
        violation: world.watch.violation.clone(),
    }
}

/// Every daemon with every gateway.
pub fn matrix() -> Vec<Meeting> {
    let daemons = Release::ALL.iter().copied();
    daemons.flat_map(|daemon| Release::ALL.iter().map(move |gateway| meet(daemon, *gateway))).collect()
}

/// Who gets a session, as a table: the version, or why not.
pub fn sessions_table(matrix: &[Meeting]) -> String {
    let mut text = String::from("| daemon | ");
    let names: Vec<String> =
        Release::ALL.iter().map(|gateway| format!("gateway {}", gateway.name())).collect();
    let _ = writeln!(text, "{} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for daemon in Release::ALL {
        let cells =
            matrix.iter().filter(|met| met.daemon == *daemon).map(|met| match (met.protocol, &met.refusal) {
                (Some(version), _) => relative(version),
                (None, Some(reason)) => format!("`{reason}`"),
                (None, None) => "no answer".to_owned(),
            });
        let _ = writeln!(text, "| {} | {} |", daemon.name(), cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// How each kind ends on each daemon, at a gateway of this release.
pub fn kinds_table(matrix: &[Meeting]) -> String {
    let mut text = String::from("| kind | ");
    let names: Vec<String> = Release::ALL.iter().map(|daemon| format!("daemon {}", daemon.name())).collect();
    let _ = writeln!(text, "{} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for kind in CommandKind::ALL.iter().map(|kind| kind.name()).chain([KIND_TO_COME]) {
        let here = matrix.iter().filter(|met| met.gateway == Release::Current);
        let cells = here.map(|met| met.commands.get(kind).map_or("", String::as_str));
        let _ = writeln!(text, "| `{kind}` | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// A version as the release that brought it.
fn relative(version: u32) -> String {
    let brought = Release::ALL.iter().find(|release| release.number() == version);
    brought.map_or_else(|| format!("version {version}"), |release| format!("session, {}", release.name()))
}

/// A frame of a release that nobody here knows, from its bytes.
pub fn unknown_frame<M: prost::Message + Default>() -> M {
    // Field 99, three bytes long.
    const BYTES: [u8; 6] = [0x9a, 0x06, 3, 1, 2, 3];
    M::decode(&BYTES[..]).expect("a field that is not known is left out")
}

/// How the last Hello of a node was answered.
#[derive(Debug, Clone, Default)]
pub struct Met {
    pub protocol: Option<u32>,
    pub refusal: Option<String>,
}
