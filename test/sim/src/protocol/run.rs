//! One run: a scenario played to its end, the faults taken away, and the world watched until it rests.

use std::collections::BTreeMap;

use model::lifecycle::CommandState;
use model::{CommandKind, Lane};

use super::clock::{MILLI, Micros, SECOND, moment};
use super::invariants::{CONVERGE_WITHIN, Invariant, SETTLE_SLACK, Violation};
use super::kinds::FOLLOWS;
use super::plane::node_id;
use super::scenario::Scenario;
use super::world::World;

/// After the last line, before faults stop.
const TAIL: Micros = 2 * SECOND;
/// How long a world at rest is watched.
const REST: Micros = 120 * SECOND;
/// What may happen in that time, for each node and gateway. A node beats every 10 s, states its status every 30 s and journals
/// the time as often; both ways that is some 40 frames.
const FRAMES_MAX: u64 = 60;
const COMMITS_MAX: u64 = 8;
/// A gateway writes heartbeats, looks for commands and specs and renews its lease: some four calls a second.
const CALLS_MAX: u64 = 600;

#[derive(Debug, Default)]
pub struct Outcome {
    pub hash: String,
    pub violation: Option<Violation>,
    /// Faults that hit something, by name.
    pub hits: BTreeMap<&'static str, u64>,
    pub steps: u64,
    pub frames: u64,
    pub commits: u64,
    pub lasted: Micros,
    /// How many commands came to each end.
    pub fates: BTreeMap<&'static str, u64>,
    pub text: Vec<String>,
}

impl Outcome {
    /// What follows from another fault is told, and not counted as one.
    pub fn faults(&self) -> u64 {
        self.hits.iter().filter(|(name, _)| !FOLLOWS.contains(name)).map(|(_, count)| count).sum()
    }
}

/// Plays a scenario. With `tell`, what happened is told as text too.
pub fn run(scenario: &Scenario, tell: bool) -> Outcome {
    let played = std::panic::catch_unwind(|| play(scenario, tell));
    played.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let detail = said.unwrap_or_else(|| "it did not say why".to_owned());
        Outcome {
            violation: Some(Violation { invariant: Invariant::NoPanic, at: 0, detail }),
            ..Outcome::default()
        }
    })
}

fn play(scenario: &Scenario, tell: bool) -> Outcome {
    pki::sign_the_same_each_time();
    let mut world = World::new(scenario);
    if tell {
        world.transcript.text = Some(Vec::new());
    }
    let over = play_lines(&mut world, scenario);
    play_until(&mut world, over + TAIL);
    if world.watch.violation.is_none() {
        world.heal();
        come_to_rest(&mut world);
    }
    finish(world)
}

/// Plays what happens, and says when the last of it did.
fn play_lines(world: &mut World, scenario: &Scenario) -> Micros {
    let mut over = 0;
    for (at, action) in &scenario.lines {
        let at = at * MILLI;
        play_until(world, at);
        if world.watch.violation.is_some() {
            break;
        }
        world.move_to(at);
        world.act(action);
        over = at;
    }
    over
}

/// The world as it is so long after the start, with what went wrong still wrong.
pub(super) fn world_after(scenario: &Scenario, until: Micros) -> World {
    let mut world = World::new(scenario);
    play_lines(&mut world, scenario);
    play_until(&mut world, until);
    world
}

fn play_until(world: &mut World, until: Micros) {
    while world.watch.violation.is_none() {
        let due = world.next_due();
        if due > until {
            return;
        }
        world.move_to(due);
        world.step();
    }
}

fn come_to_rest(world: &mut World) {
    let healed = world.now;
    let mut wait = 0;
    while world.watch.violation.is_none() {
        match unrest(world) {
            None => return watch_rest(world),
            Some(why) => {
                if let Some(violation) = too_late(world, healed, why) {
                    world.watch.violation = Some(violation);
                    return;
                }
            }
        }
        // Looking costs more than a step; the longer it takes, the less often.
        wait = (wait + SECOND / 2).min(10 * SECOND);
        let until = world.now + wait;
        play_until(world, until);
        world.move_to(until);
    }
}

/// Why the world is not at rest.
#[derive(Debug)]
enum Unrest {
    /// A command that is not settled, and when it must be at the latest.
    Command(String, Micros),
    Node(String),
}

fn unrest(world: &World) -> Option<Unrest> {
    let mut open = None;
    world.delivery.each_command(|command| {
        if command.state.terminal() || open.is_some() {
            return;
        }
        let Some(issued) = world.plane.commands.get(&command.command_id) else { return };
        let kind = CommandKind::parse(&issued.kind).map(CommandKind::policy);
        let timeout = kind.map_or(model::command::UNKNOWN_KIND_TIMEOUT, |policy| policy.timeout);
        let over = issued.not_after.since(moment(0)) + timeout;
        let by = Micros::try_from(over.as_micros()).unwrap_or(Micros::MAX) + SETTLE_SLACK;
        open = Some(Unrest::Command(
            format!("{} {} is {}", command.command_id, issued.kind, command.state.name()),
            by,
        ));
    });
    let specs = || {
        let waits = world.sign_again_at.is_some();
        waits.then(|| Unrest::Node("specs of an epoch that is over are not signed anew".to_owned()))
    };
    open.or_else(specs)
        .or_else(|| (0..world.nodes.len()).find_map(|n| node_unrest(world, n).map(Unrest::Node)))
}

fn node_unrest(world: &World, n: usize) -> Option<String> {
    let node = &world.nodes[n];
    let Some(process) = &node.process else { return Some(format!("node {} is down", n + 1)) };
    let (observed, newest) = (world.delivery.observed_generation(node_id(n)), world.plane.newest[n]);
    if observed != newest {
        return Some(format!("node {} has observed {observed} of {newest}", n + 1));
    }
    let held = process.engine.held().map_or(0, |held| held.generation);
    if held != newest {
        return Some(format!("node {} holds {held} of {newest}", n + 1));
    }
    let view = process.engine.view(node.now(world.now, process.started));
    let journal = &view.journal;
    if view.session.state != "open" {
        return Some(format!("node {} is {}: {}", n + 1, view.session.state, view.session.last_end));
    }
    let full = Lane::ALL.iter().all(|lane| view.lane_credits.get(lane.name()) == Some(&lane.credits()));
    let waits = journal.event_backlog + journal.unacked_results + view.deferred_commands + view.running.len();
    (waits > 0 || !full || !process.workers.is_empty()).then(|| {
        format!(
            "node {}: {} events and {} results wait, {} commands deferred, {} running, credits {:?}",
            n + 1,
            journal.event_backlog,
            journal.unacked_results,
            view.deferred_commands,
            view.running.len(),
            view.lane_credits
        )
    })
}

fn too_late(world: &World, healed: Micros, why: Unrest) -> Option<Violation> {
    let now = world.now;
    let late = now > healed + CONVERGE_WITHIN;
    let violation = |invariant, detail| Some(Violation { invariant, at: now, detail });
    match why {
        Unrest::Command(what, by) if now > by.max(healed + CONVERGE_WITHIN) => {
            violation(Invariant::Settles, what)
        }
        Unrest::Command(..) => None,
        // A node may have to wait for a command to time out before it can be at rest, but not to converge.
        Unrest::Node(what) if late => {
            let credits = what.contains("credits");
            violation(if credits { Invariant::Credits } else { Invariant::Settles }, what)
        }
        Unrest::Node(_) => None,
    }
}

/// Watches a world at rest: all it may do is keep its sessions.
fn watch_rest(world: &mut World) {
    // What was just said is on its way.
    play_until(world, world.now + 35 * SECOND);
    let (frames, commits, calls) = (world.frames, world.commits, world.store.calls());
    play_until(world, world.now + REST);
    let parties = (world.nodes.len() + world.gateways.len()) as u64;
    let counted = [
        ("frames", world.frames - frames, FRAMES_MAX * parties),
        ("commits", world.commits - commits, COMMITS_MAX * parties),
        ("calls of the store", world.store.calls() - calls, CALLS_MAX * parties),
    ];
    let now = world.now;
    for (what, count, max) in counted {
        if count > max {
            world
                .watch
                .broken(Invariant::Rests, now, || format!("{count} {what} in two minutes at rest, of {max}"));
        }
    }
    for n in 0..world.nodes.len() {
        world.look_at_unlisted(n);
    }
    if let Some(why) = unrest(world) {
        world.watch.broken(Invariant::Rests, now, || format!("a world at rest did not stay so: {why:?}"));
    }
}

fn finish(mut world: World) -> Outcome {
    let mut fates: BTreeMap<&'static str, u64> = BTreeMap::new();
    world.delivery.each_command(|command| {
        *fates.entry(CommandState::name(command.state)).or_default() += 1;
    });
    let text = world.transcript.text.take().unwrap_or_default();
    Outcome {
        violation: world.watch.violation,
        hits: world.hits,
        steps: world.steps,
        frames: world.frames,
        commits: world.commits,
        lasted: world.now,
        fates,
        text,
        hash: world.transcript.finish(),
    }
}
