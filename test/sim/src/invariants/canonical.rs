//! A digest of everything the database holds, equal for two runs that ended the same.

use std::collections::BTreeMap;
use std::sync::Mutex;

use sha2::{Digest, Sha256};
use store::{Sql, Store, StoreError, sql};

/// Every table with rows of its own: a partitioned one by its parent.
const TABLES: Sql = sql(
    "sim_tables",
    "SELECT c.relname::text AS name FROM pg_class c
     WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1",
);

/// When each migration ran, by the machine's clock.
const SKIPPED: &[&str] = &["schema_migrations"];

/// Columns that no seed decides, and why.
const VOLATILE: &[(&str, &str)] = &[
    // The database's own generator makes these; nothing else refers to them.
    ("work", "work_id"),
    ("deployment", "deployment_id"),
    // The server counts all its transactions, also those of other databases.
    ("node_capacity", "changed_xid"),
    ("work_wake_batches", "xid"),
];

/// Statements are static in this program; the one per table lives as long as it.
static STATEMENTS: Mutex<BTreeMap<String, Sql>> = Mutex::new(BTreeMap::new());

fn statement(table: &str) -> Sql {
    let mut made = STATEMENTS.lock().expect("no holder of this lock panics");
    *made.entry(table.to_owned()).or_insert_with(|| {
        let volatile: Vec<String> = VOLATILE
            .iter()
            .filter(|(of, _)| *of == table)
            .map(|(_, column)| format!("'{column}'"))
            .collect();
        let text = format!(
            "SELECT encode(sha256(convert_to(coalesce(string_agg(line, E'\\n' ORDER BY line COLLATE \"C\"), ''), 'UTF8')), 'hex')
               AS digest
             FROM (SELECT (to_jsonb(t) - ARRAY[{}]::text[])::text AS line FROM \"{table}\" t) AS lines",
            volatile.join(", "),
        );
        sql("sim_canonical", Box::leak(text.into_boxed_str()))
    })
}

/// The digest of each table: its rows as canonical JSON, in the order of their text.
pub async fn canonical_tables(store: &Store) -> Result<BTreeMap<String, String>, StoreError> {
    let mut digests = BTreeMap::new();
    for row in store.read(&TABLES, &[]).await? {
        let table: String = row.get("name");
        if !SKIPPED.contains(&table.as_str()) {
            let digest = store.read_one(&statement(&table), &[]).await?.get("digest");
            digests.insert(table, digest);
        }
    }
    Ok(digests)
}

/// One digest of all tables, in lowercase hex.
pub fn canonical_state(tables: &BTreeMap<String, String>) -> String {
    let mut all = Sha256::new();
    for (table, digest) in tables {
        all.update(format!("{table} {digest}\n"));
    }
    all.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
