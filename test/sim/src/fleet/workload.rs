//! Clients of the API: tenants book, extend and release, operators look, command, close and open nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use kernel::{Incoming, Pipeline};
use model::DeploymentId;
use serde_json::{Value, json};

use super::exec::ProcessId;
use super::setup::{POOL, SOURCE};
use super::time::Core;

const DEADLINE: Duration = Duration::from_secs(30);
/// Reservations that clients hold at once, by node: past it they release more than they book.
const HELD_PER_NODE: usize = 4;

/// What clients know.
#[derive(Default)]
pub struct Clients(Mutex<Known>);

#[derive(Default)]
struct Known {
    token: String,
    nodes: Vec<String>,
    reservations: Vec<String>,
    closed: Vec<String>,
    commands: Vec<String>,
    answers: BTreeMap<String, u64>,
}

/// What is done with an answer.
#[derive(Clone, Copy)]
enum Keep {
    Nothing,
    Reservation,
    Command,
}

impl Clients {
    pub fn new(token: String, nodes: Vec<String>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Known { token, nodes, ..Known::default() })))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Answers by their code, `ok` among them.
    pub fn answers(&self) -> BTreeMap<String, u64> {
        self.known().answers.clone()
    }

    /// An older database does not know of what was made since.
    pub fn forget(&self) {
        let mut known = self.known();
        known.reservations.clear();
        known.commands.clear();
    }

    pub fn confirm_restore(
        self: &Arc<Self>,
        core: &Core,
        process: ProcessId,
        pipeline: &Arc<Pipeline>,
        deployment_id: DeploymentId,
        epoch: i64,
    ) {
        let body = json!({ "confirm": deployment_id.to_string(), "epoch": epoch, "reason": "simulated" });
        self.send(core, process, pipeline, "system.confirmRestore", body, Keep::Nothing);
    }

    pub fn declare_dead(
        self: &Arc<Self>,
        core: &Core,
        process: ProcessId,
        pipeline: &Arc<Pipeline>,
        node: &str,
    ) {
        let body = json!({ "node": node, "confirm": node });
        self.send(core, process, pipeline, "nodes.abandon", body, Keep::Nothing);
    }

    /// Takes every node into its pool, as an operator does with machines that came without one.
    pub fn adopt(
        self: &Arc<Self>,
        core: &Core,
        process: ProcessId,
        pipeline: &Arc<Pipeline>,
        nodes: &[(String, &'static str)],
    ) {
        for (node, pool) in nodes {
            let body = json!({ "node": node, "pool": pool });
            self.send(core, process, pipeline, "nodes.adopt", body, Keep::Nothing);
        }
    }

    /// One call of somebody, by the seed.
    pub fn act(self: &Arc<Self>, core: &Core, process: ProcessId, pipeline: &Arc<Pipeline>, calm: bool) {
        let (method, body, keep) = {
            let mut known = self.known();
            let Some(node) = core.pick(&known.nodes).cloned() else { return };
            let full = known.reservations.len() >= HELD_PER_NODE * known.nodes.len();
            match core.rng.below(100) {
                0..40 if !full => book(core, &mut known),
                0..62 => match take(core, &mut known.reservations) {
                    Some(id) => ("reservations.release", json!({ "id": id }), Keep::Nothing),
                    None => book(core, &mut known),
                },
                62..72 => match core.pick(&known.reservations).cloned() {
                    Some(id) => ("reservations.extend", json!({ "id": id, "hours": 1 }), Keep::Nothing),
                    None => book(core, &mut known),
                },
                72..80 => command(&node, "inventory.refresh", json!({})),
                80..87 => command(&node, "diag.nvml", json!({ "expectedGpus": 8 })),
                87..95 if calm => command(&node, "inventory.refresh", json!({})),
                87..90 => command(&node, "node.reboot", json!({ "reason": "simulated" })),
                90..93 => {
                    known.closed.push(node.clone());
                    ("nodes.cordon", json!({ "node": node, "reason": "simulated" }), Keep::Nothing)
                }
                93..95 => {
                    known.closed.push(node.clone());
                    ("nodes.drain", json!({ "node": node, "reason": "simulated" }), Keep::Nothing)
                }
                95..99 => match take(core, &mut known.closed) {
                    Some(node) => ("nodes.uncordon", json!({ "node": node }), Keep::Nothing),
                    None => command(&node, "inventory.refresh", json!({})),
                },
                _ => match take(core, &mut known.commands) {
                    Some(id) => ("commands.cancel", json!({ "id": id }), Keep::Nothing),
                    None => command(&node, "diag.nvml", json!({})),
                },
            }
        };
        self.send(core, process, pipeline, method, body, keep);
    }

    /// Opens every closed node again, so that the world can come to rest.
    pub fn settle(self: &Arc<Self>, core: &Core, process: ProcessId, pipeline: &Arc<Pipeline>) {
        let closed = std::mem::take(&mut self.known().closed);
        for node in closed {
            self.send(core, process, pipeline, "nodes.uncordon", json!({ "node": node }), Keep::Nothing);
        }
    }

    fn send(
        self: &Arc<Self>,
        core: &Core,
        process: ProcessId,
        pipeline: &Arc<Pipeline>,
        method: &'static str,
        body: Value,
        keep: Keep,
    ) {
        let (clients, pipeline) = (self.clone(), pipeline.clone());
        let call = async move {
            let token = clients.known().token.clone();
            let incoming = Incoming {
                method,
                body: Bytes::from(body.to_string()),
                bearer: Some(&token),
                source_ip: SOURCE,
                deadline: DEADLINE,
                request_id: None,
            };
            let answer = pipeline.call(incoming).await;
            let code = answer.code.map_or("ok", |code| code.name());
            let mut known = clients.known();
            *known.answers.entry(format!("{method} {code}")).or_default() += 1;
            let id = serde_json::from_slice::<Value>(&answer.body).ok();
            let id = id.as_ref().and_then(|answer| answer["id"].as_str()).map(str::to_owned);
            if let (None, Some(id)) = (answer.code, id) {
                match keep {
                    Keep::Nothing => {}
                    Keep::Reservation => known.reservations.push(id),
                    Keep::Command => known.commands.push(id),
                }
            }
        };
        core.spawn(process, "client", Box::pin(call));
    }
}

fn take(core: &Core, from: &mut Vec<String>) -> Option<String> {
    let at = usize::try_from(core.rng.below(from.len() as u64)).ok()?;
    (at < from.len()).then(|| from.swap_remove(at))
}

fn book(core: &Core, _known: &mut Known) -> (&'static str, Value, Keep) {
    let gpus = [1, 1, 1, 2, 2, 4, 8][usize::try_from(core.rng.below(7)).unwrap_or(0)];
    let mut request = json!({
        "pool": POOL,
        "gpus": gpus,
        "vcpu": gpus * 2,
        "memoryGiB": gpus * 8,
        "idempotencyKey": format!("sim-{:016x}", core.rng.u64()),
    });
    if core.one_in(3) {
        request["hours"] = json!(1 + core.rng.below(3));
    }
    ("reservations.create", request, Keep::Reservation)
}

fn command(node: &str, kind: &str, payload: Value) -> (&'static str, Value, Keep) {
    let mut request = json!({ "node": node, "kind": kind, "payload": payload });
    if kind == "node.reboot" {
        request["confirm"] = json!(node);
    }
    ("commands.create", request, Keep::Command)
}
