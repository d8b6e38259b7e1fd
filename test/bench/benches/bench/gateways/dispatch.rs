//! From the COMMIT that queues a command to its receipt by the node, with thousands of sessions; and before that, what a gateway with
//! as many sessions and nothing to do asks of the database.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bench::figures::{Figure, Run, Sample, short};
use bench::probe;
use kit::{Clock, OsRng, Rng, SystemClock};
use model::{CommandId, CommandKind, NodeId};
use prost::Message;
use store::{Op, Sql, Store, sql};
use uuid::Uuid;
use wire::proto::agent::CommandBody;

use super::database::{self, Database};
use super::{Fleet, gateway};
use crate::statements::{self, Statement};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 5_000)]
    sessions: u64,
    #[arg(long, default_value_t = 2)]
    processes: u64,
    /// Commands a second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Seconds of commands, and of nothing to do before them.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

const INSERT: Sql = sql(
    "bench_command",
    "INSERT INTO commands (command_id, node_id, kind, lane, destructive, body, signature, not_before, not_after, timeout_at,
       min_generation, created_by)
     VALUES ($1, $2, $3, $4, false, $5, '\\x00', compute_now(), compute_now() + interval '1 hour',
       compute_now() + interval '2 hours', 0, 'bench')",
);
const KIND: CommandKind = CommandKind::InventoryRefresh;
const HEARTBEAT: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(2);
/// One page of PostgreSQL's log, which is what a small commit writes.
const PROBE_BYTES: usize = 8192;
/// What connecting leaves behind is over by then.
const SETTLES: Duration = Duration::from_secs(4);
const RECEIVED_WITHIN: Duration = Duration::from_secs(10);
/// Between the enqueue's COMMIT and the frame: that of the claim, without which a restarted gateway would send again.
const COMMITS: u32 = 1;
const SHOWN: usize = 12;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let made = SystemClock::new().now();
    let at = made.millis().to_string();
    let database = Database::start(dir.path(), args.sessions, made)?;
    let mut fleet = Fleet::start(args.sessions, args.processes, &at)?;
    let (_process, address) = gateway(1, &at, &database.url())?;
    println!("{}", fleet.connect("connect", &address, HEARTBEAT)?);
    let runtime = crate::runtime()?;
    runtime.block_on(statements::analyze(&database.store))?;
    std::thread::sleep(SETTLES);
    idle(args, &database, &runtime)?;
    let before = probe::append_and_sync(dir.path(), PROBE_BYTES, 1, PROBE)?;
    println!("{before}");
    let (run, asked) = commands(args, &database, &mut fleet, &runtime)?;
    println!("{run}");
    let lasted = run.lasted;
    println!("statements while commands were sent, with those that queue them");
    database::say_statements(&asked, lasted, SHOWN);
    let after = probe::append_and_sync(dir.path(), PROBE_BYTES, 1, PROBE)?;
    println!("{after}");
    let sync = before.percentile(99).max(after.percentile(99));
    let over = run.percentile(99).saturating_sub(sync * COMMITS);
    Figure::of("dispatch: p99 over its durable steps", over.as_secs_f64() * 1e3, "ms")
        .times(run.percentile(50), run.percentile(99))
        .at_most(10.0, 3.0)
        .note(format!(
            "{} sessions, {} commands a second; k = {COMMITS} (the claim) x fdatasync p99 {} taken off; fdatasync p50 {}",
            fleet.nodes,
            args.rate,
            short(sync),
            short(before.percentile(50)),
        ))
        .say()
}

fn idle(args: &Args, database: &Database, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let before = runtime.block_on(database.statements())?;
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(args.seconds));
    let asked = statements::since(runtime.block_on(database.statements())?, &before);
    let lasted = started.elapsed();
    let calls: i64 = asked.iter().map(|one| one.calls).sum();
    println!(
        "statements of a gateway with {} sessions that do nothing but beat every {HEARTBEAT:?}",
        args.sessions
    );
    database::say_statements(&asked, lasted, SHOWN);
    Figure::of("idle gateway: statements", calls as f64 / lasted.as_secs_f64(), "/s")
        .at_most(4.0, 4.0)
        .note(format!("{} sessions, as pg_stat_statements counts, BEGIN and COMMIT included", args.sessions))
        .say()
}

fn commands(
    args: &Args,
    database: &Database,
    fleet: &mut Fleet,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<(Run, Vec<Statement>)> {
    fleet.received()?;
    let before = runtime.block_on(database.statements())?;
    let started = Instant::now();
    let sent = runtime.block_on(enqueue_all(args, &database.store, fleet.nodes))?;
    let lasted = started.elapsed();
    let mut received: HashMap<String, i64> = HashMap::new();
    let waited = Instant::now();
    while received.len() < sent.len() && waited.elapsed() < RECEIVED_WITHIN {
        received.extend(fleet.received()?);
        std::thread::sleep(Duration::from_millis(100));
    }
    let asked = statements::since(runtime.block_on(database.statements())?, &before);
    ensure!(received.len() == sent.len(), "{} of {} commands came", received.len(), sent.len());
    let samples = sent.iter().filter_map(|(command_id, at, committed)| {
        let took = received.get(command_id)? - committed;
        // It may come before the COMMIT that queued it has come back to us.
        Some(Sample { at: *at, took: Duration::from_micros(u64::try_from(took).unwrap_or(0)) })
    });
    Ok((Run::new("command, from its COMMIT to its node", lasted, samples.collect()), asked))
}

/// Each command's id, when in the run it was queued, and when its COMMIT came back in microseconds of the wall clock.
async fn enqueue_all(args: &Args, store: &Store, nodes: u64) -> anyhow::Result<Vec<(String, Duration, i64)>> {
    let (clock, rng): (SystemClock, &dyn Rng) = (SystemClock::new(), &OsRng);
    let started = Instant::now();
    let mut pace = tokio::time::interval(Duration::from_secs(1) / args.rate);
    let count = u64::from(args.rate) * args.seconds;
    let mut sent = Vec::new();
    for _ in 0..count {
        pace.tick().await;
        let node_id = NodeId::from_uuid(Uuid::from_u128(u128::from(rng.below(nodes)) + 1));
        let command_id: CommandId = rng.id(clock.now());
        enqueue(store, node_id, command_id).await?;
        sent.push((command_id.to_string(), started.elapsed(), clock.now().micros()));
    }
    Ok(sent)
}

async fn enqueue(store: &Store, node_id: NodeId, command_id: CommandId) -> anyhow::Result<()> {
    let body = CommandBody {
        command_id: command_id.to_string(),
        node_id: node_id.to_string(),
        deployment_epoch: 1,
        kind: KIND.name().to_owned(),
        not_after_ms: u64::MAX / 2,
        payload: Some(wire::command::empty_payload(KIND)),
        ..CommandBody::default()
    }
    .encode_to_vec();
    let (body, key) = (&body, node_id.uuid().hyphenated().to_string());
    let key = key.as_str();
    store
        .tx(Op::new("bench_command"), |tx| {
            Box::pin(async move {
                let params = (command_id.uuid(), node_id.uuid(), KIND.name(), KIND.policy().lane.name());
                tx.execute(&INSERT, &[&params.0, &params.1, &params.2, &params.3, body]).await?;
                tx.notify(fleet::DELIVERY_CHANNEL, key);
                Ok::<_, store::StoreError>(())
            })
        })
        .await?;
    Ok(())
}
