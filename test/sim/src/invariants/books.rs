//! The rules of the books, which `capacity` keeps with its rows, under the invariants they belong to.

use store::{Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

/// Whatever keeps a resource from being counted wrongly against somebody's quota.
fn invariant_of(rule: &str) -> Invariant {
    if rule.contains("no atom is in two") {
        Invariant::AtomsBookedOnce
    } else if rule.contains("quota") || rule.starts_with("holds are of") {
        Invariant::QuotasAreTheirRows
    } else {
        Invariant::BooksAreSound
    }
}

/// Creates that carried a key and the things they made: the name of a reservation or an instance is its own, so two of one
/// name, made under one key, are two of one create.
const KEYS: Sql = sql(
    "sim_keys",
    "SELECT tenant_id::text AS tenant, user_id::text AS who, key, resource FROM idempotency ORDER BY 1, 2, 3",
);
const MADE: Sql = sql(
    "sim_made",
    "SELECT reservation_id, NULL::uuid AS instance_id FROM reservations UNION ALL SELECT NULL, instance_id FROM instances ORDER BY 1, 2",
);
const TWICE: Sql = sql(
    "sim_named_twice",
    "SELECT format('%s: %s reservations', name, count(*)) AS what FROM reservations
     WHERE name LIKE 'once-%' GROUP BY tenant_id, created_by, name HAVING count(*) > 1
     UNION ALL SELECT format('%s: %s instances', name, count(*)) FROM instances
     WHERE name LIKE 'once-%' GROUP BY tenant_id, created_by, name HAVING count(*) > 1 ORDER BY 1",
);

pub(super) async fn all(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let broken = capacity::invariants(store).await?;
    let mut found: Vec<Violation> = broken
        .into_iter()
        .map(|broken| Violation::new(invariant_of(broken.rule), format!("{}: {}", broken.rule, broken.what)))
        .collect();
    found.extend(keys(store).await?);
    Ok(found)
}

/// A key outlives nothing it points at, and a load whose creates are named `once-…`, each with a key of its own, has at most one
/// thing of each name.
async fn keys(store: &Store) -> Result<Vec<Violation>, StoreError> {
    use model::{InstanceId, ReservationId};
    use store::RowExt;
    let keys = store.read(&KEYS, &[]).await?;
    let made: std::collections::BTreeSet<String> = store
        .read(&MADE, &[])
        .await?
        .iter()
        .map(|row| match row.opt_id::<InstanceId>("instance_id") {
            Some(id) => id.to_string(),
            None => row.id::<ReservationId>("reservation_id").to_string(),
        })
        .collect();
    let kept = [<ReservationId as model::Id>::PREFIX, <InstanceId as model::Id>::PREFIX];
    let mut found = Vec::new();
    for row in &keys {
        let resource: &str = row.get("resource");
        if kept.iter().any(|prefix| resource.starts_with(prefix)) && !made.contains(resource) {
            let what = format!("{} points at {resource}, which does not exist", row.get::<_, &str>("key"));
            found.push(Violation::new(Invariant::KeysMakeOneThing, what));
        }
    }
    let twice = store.read(&TWICE, &[]).await?;
    found.extend(
        twice.iter().map(|row| Violation::new(Invariant::KeysMakeOneThing, row.get::<_, String>("what"))),
    );
    Ok(found)
}
