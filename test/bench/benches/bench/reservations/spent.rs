//! Where the control plane's time goes, by its own metrics: each transaction and each statement by name.

use std::collections::BTreeMap;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest of each are shown.
const SHOWN: usize = 14;
const TRANSACTIONS: &str = "better_compute_store_op_seconds";
const STATEMENTS: &str = "better_compute_store_statement_seconds";

/// How often, and how long in all.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    count: f64,
    seconds: f64,
}

#[derive(Debug, Default)]
pub struct Spent {
    transactions: BTreeMap<String, Total>,
    statements: BTreeMap<String, Total>,
}

impl Spent {
    pub async fn read(api: &str) -> anyhow::Result<Self> {
        let text = get(api, "/metrics").await?;
        Ok(Self { transactions: totals(&text, TRANSACTIONS), statements: totals(&text, STATEMENTS) })
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let since = |now: &BTreeMap<String, Total>, then: &BTreeMap<String, Total>| {
            let one = |(name, total): (&String, &Total)| {
                let before = then.get(name).copied().unwrap_or_default();
                let total =
                    Total { count: total.count - before.count, seconds: total.seconds - before.seconds };
                (name.clone(), total)
            };
            now.iter().map(one).collect()
        };
        Self {
            transactions: since(&self.transactions, &earlier.transactions),
            statements: since(&self.statements, &earlier.statements),
        }
    }

    /// Beside each other run as many as there are connections, so the times add up to more than what passed.
    pub fn say(&self, reservations: usize) {
        for (what, all) in [("transactions", &self.transactions), ("statements", &self.statements)] {
            println!("\nlongest {what}, for each reservation: how many, their time in all, the mean of one");
            let mut sorted: Vec<_> = all.iter().collect();
            sorted.sort_by(|one, other| other.1.seconds.total_cmp(&one.1.seconds));
            for (name, total) in sorted.into_iter().take(SHOWN) {
                let each = reservations.max(1) as f64;
                println!(
                    "  {name:<28} {:>7.2} {:>9.0} us {:>9.0} us",
                    total.count / each,
                    total.seconds * 1e6 / each,
                    total.seconds * 1e6 / total.count.max(1.0),
                );
            }
        }
    }
}

/// The counts and sums of one histogram by its label.
fn totals(text: &str, metric: &str) -> BTreeMap<String, Total> {
    let mut totals: BTreeMap<String, Total> = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(metric) else { continue };
        let Some((kind, rest)) = rest.split_once('{') else { continue };
        let Some((labels, value)) = rest.split_once("} ") else { continue };
        let Some(name) = labels.split('"').nth(1) else { continue };
        let value: f64 = value.trim().parse().unwrap_or(0.0);
        let total = totals.entry(name.to_owned()).or_default();
        match kind {
            "_count" => total.count = value,
            "_sum" => total.seconds = value,
            _ => {}
        }
    }
    totals
}

async fn get(api: &str, path: &str) -> anyhow::Result<String> {
    let address = api.strip_prefix("http://").context("an API without TLS")?.trim_end_matches('/');
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
