//! Reserves, extends and releases at random through the API, as one client of several.
//!
//! `e2e-storm URL TOKEN_FILE SEED CALLS`: prints how its calls were answered, and fails on an answer that no client should get.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use e2e::serve::{Api, items};
use kit::{Rng, SeededRng};
use serde_json::{Value, json};

/// Calls of one process under way at once.
const AT_ONCE: u64 = 4;
/// A dozen fill the machines; the others wait in line.
const CROWD: usize = 30;
const LOOK_EVERY: u64 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, token_file, seed, calls] = args.as_slice() else {
        bail!("e2e-storm URL TOKEN_FILE SEED CALLS")
    };
    let api = Api::new(url.clone(), &std::fs::read_to_string(token_file)?)?;
    let (seed, calls): (u64, u64) = (seed.parse()?, calls.parse()?);
    let share = |nth: u64| calls / AT_ONCE + u64::from(nth < calls % AT_ONCE);
    let one = |nth: u64| storm(&api, seed.wrapping_mul(AT_ONCE).wrapping_add(nth), share(nth));
    let (a, b, c, d) = tokio::try_join!(one(0), one(1), one(2), one(3))?;
    let mut told = BTreeMap::<String, u64>::new();
    for (answer, times) in [a, b, c, d].into_iter().flatten() {
        *told.entry(answer).or_default() += times;
    }
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

async fn storm(api: &Api, seed: u64, calls: u64) -> anyhow::Result<BTreeMap<String, u64>> {
    let dice = SeededRng::new(seed);
    let dice: &dyn Rng = &dice;
    let mut told = BTreeMap::<String, u64>::new();
    let mut known = Vec::new();
    for nth in 0..calls {
        // What is known grows old: others extend and release the same.
        if nth % LOOK_EVERY == 0 {
            let listed = api.ok("reservations.list", json!({ "limit": CROWD })).await?;
            known = items(&listed).iter().map(|reservation| reservation["id"].clone()).collect();
        }
        let (choice, live) = (dice.below(10), any(&known, dice));
        let (method, body, refusals): (_, _, &[&str]) = match live {
            Some((id, _)) if choice < 2 => {
                ("reservations.extend", json!({ "id": id, "hours": 1 }), &["INVALID_STATE"])
            }
            Some((id, crowded)) if crowded || choice < 6 => {
                ("reservations.release", json!({ "id": id }), &["INVALID_STATE"])
            }
            _ => (
                "reservations.create",
                json!({
                    "pool": "gpu", "gpus": 1 + dice.below(4), "hours": 1 + dice.below(5),
                    "idempotencyKey": format!("storm-{seed}-{nth}"),
                }),
                &["CAPACITY_UNAVAILABLE", "QUOTA_EXCEEDED"],
            ),
        };
        let answer = match api.call(method, body).await {
            Ok(_) => "ok".to_owned(),
            Err(client::ClientError::Refused(refusal)) => {
                let code = refusal.code().name().to_owned();
                if !refusals.contains(&code.as_str()) {
                    bail!("{method}: {code}: {}", refusal.problem.message);
                }
                code
            }
            Err(err) => return Err(err).context(method),
        };
        *told.entry(format!("{method} {answer}")).or_default() += 1;
    }
    Ok(told)
}

/// One of them, and whether they are more than the machines can hold.
fn any(known: &[Value], dice: &dyn Rng) -> Option<(Value, bool)> {
    let at = usize::try_from(dice.below(known.len().max(1) as u64)).ok()?;
    Some((known.get(at)?.clone(), known.len() == CROWD))
}
