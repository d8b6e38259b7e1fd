//! Reservations made, extended, released and run out, placed by several processes, and reported on by machines that say things
//! late and again.

use std::sync::Arc;

use kit::Rng;
use model::ReservationId;
use serde_json::{Value, json};
use sim::invariants::{Checker, Invariant, Violation};
use store::{RowExt, Sql, sql};

use super::{Outcome, Run, WORKERS, at_once, pause, sound};
use crate::cloud::{Cloud, GPUS, Process, run_all};

const NODES: usize = 3;
/// Keys that several creates share: whoever is first makes it, the others find it.
const SHARED_KEYS: u64 = 24;
/// Fewer placements than this say nothing.
const PLACEMENTS_MIN: i64 = 21;

const LIVE: Sql =
    sql("test_live", "SELECT reservation_id FROM reservations WHERE ended_at IS NULL ORDER BY 1");

async fn any(process: &Process, dice: &dyn Rng) -> Option<ReservationId> {
    let rows = process.store.read(&LIVE, &[]).await.unwrap();
    let at = usize::try_from(dice.below(rows.len() as u64)).expect("a small list");
    rows.get(at).map(|row| row.id("reservation_id"))
}

async fn call(process: &Process, method: &str, request: Value, may_say: &[&str]) {
    let told = process.call(method, request).await;
    let foreseen = may_say.contains(&told.code()) || crate::mutants::chosen();
    assert!(foreseen, "{method}: {}", told.body);
}

/// One key and one name in a few creates: the same request, from several processes at once.
async fn create(process: &Process, round: u64, dice: &dyn Rng) {
    let shared = dice.below(SHARED_KEYS);
    let mut request = json!({
        "pool": "gpu", "name": format!("once-{round}-{shared}"), "idempotencyKey": format!("k-{round}-{shared}"),
        "gpus": 1 + shared % u64::from(GPUS), "hours": 1 + shared % 4,
    });
    if shared.is_multiple_of(2) {
        request["vcpu"] = json!(1 + shared % 8);
    }
    if shared.is_multiple_of(7) {
        request["wholeNode"] = json!(true);
    }
    call(process, "reservations.create", request, &["ok", "QUOTA_EXCEEDED", "UNAVAILABLE"]).await;
}

async fn operate(cloud: &Cloud, process: &Process, round: u64, dice: &dyn Rng) {
    match dice.below(20) {
        0..5 if process.gathers => {
            let (one, two, three) =
                (create(process, round, dice), create(process, round, dice), create(process, round, dice));
            futures::join!(one, two, three);
        }
        0..5 => create(process, round, dice).await,
        5 => {
            let Some(id) = any(process, dice).await else { return };
            let request = json!({ "id": id.to_string(), "hours": 1 });
            call(
                process,
                "reservations.extend",
                request,
                &["ok", "INVALID_STATE", "UNAVAILABLE", "NOT_FOUND"],
            )
            .await;
        }
        6..9 => {
            let Some(id) = any(process, dice).await else { return };
            let request = json!({ "id": id.to_string() });
            call(process, "reservations.release", request, &["ok", "NOT_FOUND", "INVALID_STATE"]).await;
        }
        9..15 => {
            let at = usize::try_from(dice.below(NODES as u64)).expect("a few");
            cloud.machines[at].lock().await.live(process, &cloud.clock, dice).await;
        }
        15..17 => {
            let key = cloud.pool.uuid_text();
            process.handle(capacity::PLACE_QUEUE, &key).await.unwrap();
        }
        17 => {
            let at = usize::try_from(dice.below(NODES as u64)).expect("a few");
            let node_id = cloud.machines[at].lock().await.node_id;
            process.fleet.assemble(node_id).await.unwrap();
        }
        18 => process.sweep().await.unwrap(),
        _ if dice.below(3) == 0 => cloud.clock.pass(1_200),
        _ => lose_a_node(cloud, process, dice).await,
    }
}

/// Lost, left, and back.
async fn lose_a_node(cloud: &Cloud, process: &Process, dice: &dyn Rng) {
    let at = usize::try_from(dice.below(NODES as u64)).expect("a few");
    let node = cloud.machines[at].lock().await.node_id.uuid();
    run_all(&process.store, &format!("UPDATE nodes SET state = 'lost' WHERE node_id = '{node}'")).await;
    process.sweep().await.unwrap();
    run_all(&process.store, &format!("UPDATE nodes SET state = 'ready' WHERE node_id = '{node}'")).await;
}

trait UuidText {
    fn uuid_text(self) -> String;
}

impl<I: model::Id> UuidText for I {
    fn uuid_text(self) -> String {
        self.uuid().hyphenated().to_string()
    }
}

pub async fn scenario(run: Run) -> Outcome {
    play(run, Cloud::new(WORKERS, NODES).await).await
}

/// One of the processes at a time places in the pool, under a lease that lapses whenever the clock jumps. Each connection has its
/// process's name, and who books without holding the pool is noted by the database.
pub async fn hand_over(run: Run) -> Outcome {
    let cloud = Cloud::with_owners_from(1, WORKERS, NODES).await;
    run_all(&cloud.store, WATCH).await;
    let store = cloud.store.clone();
    play(run, cloud).await?;
    let rows = store.read(&TRESPASSED, &[]).await.unwrap();
    let told = |row: &store::Row| Violation::new(Invariant::OwnersAreFenced, row.get::<_, String>("what"));
    if rows.is_empty() { Ok(()) } else { Err(rows.iter().map(told).collect()) }
}

const WATCH: &str = "
    CREATE TABLE placers (holder text NOT NULL, process text NOT NULL, PRIMARY KEY (holder, process));
    CREATE TABLE trespasses (process text NOT NULL, what text NOT NULL);
    CREATE FUNCTION note_placer() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF new.name LIKE 'placer:%' THEN
        INSERT INTO placers VALUES (new.holder, current_setting('application_name')) ON CONFLICT DO NOTHING;
      END IF;
      RETURN new;
    END $$;
    CREATE FUNCTION note_trespass() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NOT EXISTS (
        SELECT FROM leases l JOIN placers p ON p.holder = l.holder
        WHERE l.name LIKE 'placer:%' AND l.expires_at > compute_now() AND p.process = current_setting('application_name'))
      THEN
        INSERT INTO trespasses VALUES (current_setting('application_name'), new.allocation_id::text);
      END IF;
      RETURN new;
    END $$;
    CREATE TRIGGER note_placer BEFORE INSERT OR UPDATE ON leases FOR EACH ROW EXECUTE FUNCTION note_placer();
    CREATE TRIGGER note_trespass AFTER INSERT ON allocations FOR EACH ROW EXECUTE FUNCTION note_trespass()";
const TRESPASSED: Sql = sql(
    "test_trespassed",
    "SELECT format('%s booked %s in a pool that it does not hold', process, what) AS what FROM trespasses ORDER BY 1 LIMIT 10",
);

async fn play(run: Run, cloud: Cloud) -> Outcome {
    let cloud = Arc::new(cloud);
    call(&cloud.processes[0], "quotas.set", json!({ "resource": "gpu", "amount": 30 }), &["ok"]).await;
    let mut checker = Checker::new();
    checker.disturbed();
    let (mut round, mut tried) = (0, 0);
    while run.goes_on(round, tried, PLACEMENTS_MIN) {
        let mut tasks = Vec::new();
        for at in 0..WORKERS {
            let (cloud, dice) = (cloud.clone(), run.dice(round, at));
            tasks.push(async move {
                for _ in 0..14 {
                    operate(&cloud, &cloud.processes[at], round, &*dice).await;
                    pause(&*dice).await;
                }
            });
        }
        at_once(tasks).await;
        // What may last a while, may not last two rounds, in which the clock jumps.
        cloud.catch_up().await;
        let found = cloud.violations(&mut checker, false).await;
        if !found.is_empty() {
            return Err(found);
        }
        tried = cloud.db.scalar_i64("SELECT count(*) FROM allocations").await;
        round += 1;
    }
    assert!(tried >= PLACEMENTS_MIN, "{tried} placements: nothing was tried");
    end(&cloud, &mut checker).await
}

/// Everything is let go; then nothing is booked, held or counted, and nothing is left to do.
async fn end(cloud: &Cloud, checker: &mut Checker) -> Outcome {
    cloud.settle().await;
    let mut found: Vec<Violation> = Vec::new();
    for _ in 0..20 {
        let rows = cloud.store.read(&LIVE, &[]).await.unwrap();
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let id: ReservationId = row.id("reservation_id");
            let request = json!({ "id": id.to_string() });
            call(&cloud.processes[0], "reservations.release", request, &["ok", "NOT_FOUND"]).await;
        }
        cloud.settle().await;
    }
    found.extend(cloud.violations(checker, true).await);
    for table in ["bookings", "host_bookings", "quota_holds"] {
        let left = cloud.db.scalar_i64(&format!("SELECT count(*) FROM {table}")).await;
        if left > 0 {
            let what = format!("{left} rows of {table} are left of nothing");
            found.push(Violation::new(Invariant::BooksAreSound, what));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reservations_under_eight_hands_stay_sound() {
    sound(scenario(Run::from_env(5)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pool_that_changes_hands_is_booked_once() {
    sound(hand_over(Run::from_env(5)).await);
}
