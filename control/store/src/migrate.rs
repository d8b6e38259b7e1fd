//! Brings a database to this program's schema.
//!
//! A migration is `migrations/NNNN_name.sql`, applied once, in the order of its number, in one transaction with
//! the row that records it. One that starts with `-- no-transaction` (for CREATE INDEX CONCURRENTLY) runs statement
//! by statement and must itself bear being run again after a crash. An applied file never changes: its SHA-256 is
//! recorded and compared. Any number of processes may migrate at once; an advisory lock lets one through. One that has to wait
//! for a table lets go of what it has every two seconds, so that whoever works on the database goes on meanwhile.

use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use sha2::{Digest, Sha256};

use crate::error::{ErrorKind, StoreError};
use crate::{Sql, Store, sql};

mod split;

pub use split::statements;

/// One embedded file.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub version: u32,
    pub name: &'static str,
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// Any fixed number: it names the lock among the database's advisory locks.
const LOCK: i64 = 0x6263_6d69_6772;
/// Waiting for another process's migrations; long ones rewrite tables.
const LOCK_TIMEOUT_MS: u32 = 600_000;
/// Waiting for a table, at one time: whoever wants it after that waits behind.
const TABLE_LOCK_TIMEOUT_MS: u32 = 2_000;
/// Between two such waits, in which the others go on.
const TABLE_LOCK_PAUSE: Duration = Duration::from_secs(1);
/// The first line of a file whose statements cannot run in a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";
const ROLES: &[&str] = &["bc_gateway"];

const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version integer PRIMARY KEY, name text NOT NULL, sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp())";
const APPLIED: Sql =
    sql("migrations_applied", "SELECT version, name, sha256 FROM schema_migrations ORDER BY version");
const TABLE_EXISTS: Sql =
    sql("migrations_exist", "SELECT to_regclass('public.schema_migrations') IS NOT NULL AS found");
const RECORD: &str = "INSERT INTO schema_migrations (version, name, sha256) VALUES ($1, $2, $3)";

/// Where a database stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaState {
    Current,
    /// This many migrations are missing.
    Behind(usize),
}

/// The migrations of this program, oldest first.
pub fn embedded() -> &'static [Migration] {
    EMBEDDED
}

/// A digest over every embedded migration and the grants: two programs with the same one make the same schema.
pub fn fingerprint() -> String {
    let mut all = Sha256::new();
    for migration in EMBEDDED {
        all.update(migration.version.to_be_bytes());
        all.update(Sha256::digest(migration.text));
    }
    all.update(GRANTS);
    hex::encode(all.finalize())
}

/// Applies what is missing and the grants. Running it again changes nothing.
pub async fn run(store: &Store) -> Result<(), StoreError> {
    apply(store, EMBEDDED, GRANTS).await
}

/// Compares without changing anything: an error when the database is older or newer than this program, or was
/// migrated by files that differ.
pub async fn check(store: &Store) -> Result<(), StoreError> {
    let found = store.read_one(&TABLE_EXISTS, &[]).await?.get("found");
    let applied = if found { read_applied(store).await? } else { Vec::new() };
    match compare(EMBEDDED, &applied)? {
        SchemaState::Current => Ok(()),
        SchemaState::Behind(_) => Err(StoreError::new(
            "migrate",
            ErrorKind::SchemaTooOld {
                found: applied.last().map_or(0, |row| row.version),
                needed: EMBEDDED.last().map_or(0, |migration| migration.version),
            },
        )),
    }
}

pub(crate) struct Applied {
    version: u32,
    name: String,
    sha256: String,
}

async fn read_applied(store: &Store) -> Result<Vec<Applied>, StoreError> {
    let rows = store.read(&APPLIED, &[]).await?;
    Ok(rows.iter().map(applied_row).collect())
}

fn applied_row(row: &tokio_postgres::Row) -> Applied {
    Applied {
        version: u32::try_from(row.get::<_, i32>("version")).unwrap_or(0),
        name: row.get("name"),
        sha256: row.get("sha256"),
    }
}

/// What is missing, or why the two do not belong together. Pure.
pub(crate) fn compare(known: &[Migration], applied: &[Applied]) -> Result<SchemaState, StoreError> {
    let changed =
        |version, why| Err(StoreError::new("migrate", ErrorKind::MigrationChanged { version, why }));
    let newest_known = known.last().map_or(0, |migration| migration.version);
    if let Some(newest) = applied.last().filter(|row| row.version > newest_known) {
        let kind = ErrorKind::SchemaTooNew { found: newest.version, known: newest_known };
        return Err(StoreError::new("migrate", kind));
    }
    for row in applied {
        match known.iter().find(|migration| migration.version == row.version) {
            None => return changed(row.version, "this program has no such file"),
            Some(migration) if migration.name != row.name => return changed(row.version, "its name changed"),
            Some(migration) if digest(migration) != row.sha256 => {
                return changed(row.version, "its text changed");
            }
            Some(_) => {}
        }
    }
    let newest_applied = applied.last().map_or(0, |row| row.version);
    let missing =
        known.iter().filter(|migration| !applied.iter().any(|row| row.version == migration.version));
    let mut count = 0;
    for migration in missing {
        if migration.version < newest_applied {
            return changed(migration.version, "it was added below migrations that are applied");
        }
        count += 1;
    }
    Ok(if count == 0 { SchemaState::Current } else { SchemaState::Behind(count) })
}

fn digest(migration: &Migration) -> String {
    hex::encode(Sha256::digest(migration.text))
}

/// [`run`] over given files, so that a test can bring its own.
pub(crate) async fn apply(store: &Store, known: &[Migration], grants: &str) -> Result<(), StoreError> {
    let connection = store.connection().await?;
    if let Some(now) = store.virtual_now() {
        // As the migrations before 0012 know it.
        let set = format!("SET compute.now = '{now}'");
        connection.batch_execute(&set).await.map_err(|err| StoreError::driver("set_clock", &err))?;
    }
    let done = apply_on(&connection, known, grants).await;
    // The session holds the lock and unlimited timeouts: it ends here instead of going back to the pool.
    drop(Object::take(connection));
    done
}

async fn apply_on(connection: &Object, known: &[Migration], grants: &str) -> Result<(), StoreError> {
    let step = async |at: &'static str, text: &str| {
        connection.batch_execute(text).await.map_err(|err| StoreError::driver(at, &err))
    };
    step("migrate_lock", &format!("SET statement_timeout = 0; SET lock_timeout = {LOCK_TIMEOUT_MS}")).await?;
    step("migrate_lock", &format!("SELECT pg_advisory_lock({LOCK})")).await?;
    step("migrate_table", TABLE).await?;
    let rows =
        connection.query(APPLIED.text, &[]).await.map_err(|err| StoreError::driver(APPLIED.name, &err))?;
    let applied: Vec<Applied> = rows.iter().map(applied_row).collect();
    compare(known, &applied)?;
    for migration in
        known.iter().filter(|migration| !applied.iter().any(|row| row.version == migration.version))
    {
        tracing::info!(version = migration.version, name = migration.name, "applying a migration");
        if migration.text.starts_with(NO_TRANSACTION) {
            let done = apply_one(connection, migration).await;
            done.map_err(|err| StoreError::driver(migration.name, &err))?;
        } else {
            patiently(connection, migration.name, async || apply_one(connection, migration).await).await?;
        }
    }
    if ensure_roles(connection).await? {
        let text = format!("{}; {grants}\n; COMMIT", begin());
        patiently(connection, "grants", async || connection.batch_execute(&text).await).await?;
    }
    Ok(())
}

/// Tries a transaction again when others have its tables, or were served first in a deadlock, for as long as one may wait for a
/// lock at all.
async fn patiently(
    connection: &Object,
    name: &'static str,
    transaction: impl AsyncFn() -> Result<(), tokio_postgres::Error>,
) -> Result<(), StoreError> {
    let until = Instant::now() + Duration::from_millis(LOCK_TIMEOUT_MS.into());
    loop {
        let Err(err) = transaction().await else { return Ok(()) };
        let err = StoreError::driver(name, &err);
        let taken = matches!(err.kind(), ErrorKind::LockTimeout | ErrorKind::Deadlock);
        if !taken || Instant::now() >= until {
            return Err(err);
        }
        tracing::info!(name, "others have its tables: it waits");
        connection.batch_execute("ROLLBACK").await.map_err(|err| StoreError::driver(name, &err))?;
        tokio::time::sleep(TABLE_LOCK_PAUSE).await;
    }
}

/// Begins a transaction that waits for no table for long.
fn begin() -> String {
    format!("BEGIN; SET LOCAL lock_timeout = {TABLE_LOCK_TIMEOUT_MS}")
}

async fn apply_one(connection: &Object, migration: &Migration) -> Result<(), tokio_postgres::Error> {
    let version = i32::try_from(migration.version).expect("a version has four digits");
    let in_transaction = !migration.text.starts_with(NO_TRANSACTION);
    if in_transaction {
        connection.batch_execute(&begin()).await?;
        connection.batch_execute(migration.text).await?;
    } else {
        for statement in statements(migration.text) {
            connection.batch_execute(statement).await?;
        }
    }
    connection.execute(RECORD, &[&version, &migration.name, &digest(migration)]).await?;
    if in_transaction {
        connection.batch_execute("COMMIT").await?;
    }
    Ok(())
}

/// Makes the roles the grants speak of. They belong to the cluster, so another database's migration may make them
/// at the same time. False when one is absent and may not be made: then there is nobody to grant to.
async fn ensure_roles(connection: &Object) -> Result<bool, StoreError> {
    for role in ROLES {
        let create = format!(
            "DO $$ BEGIN
                IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role} NOLOGIN; END IF;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        );
        if let Err(err) = connection.batch_execute(&create).await {
            let err = StoreError::driver("ensure_roles", &err);
            if *err.kind() != ErrorKind::InsufficientPrivilege {
                return Err(err);
            }
            tracing::warn!(role, "no right to create a database role, its grants are left out");
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
