//! Planted secrets, looked for wherever they may not be.

use base64::Engine as _;
use model::NodeId;
use store::{RowExt, Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

/// A secret that was given out, by a name that may be shown.
#[derive(Clone)]
pub struct Canary {
    pub name: String,
    /// The node whose own frames may carry it, if any.
    pub owner: Option<NodeId>,
    forms: Vec<Vec<u8>>,
}

impl Canary {
    /// Looked for as it is, in hex and in both alphabets of base64.
    ///
    /// # Panics
    /// On fewer than eight bytes, which would be found by chance.
    pub fn new(name: impl Into<String>, owner: Option<NodeId>, secret: &[u8]) -> Self {
        use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
        assert!(secret.len() >= 8, "a canary is long enough not to be found by chance");
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut forms = vec![secret.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes()];
        forms.push(STANDARD_NO_PAD.encode(secret).into_bytes());
        forms.push(URL_SAFE_NO_PAD.encode(secret).into_bytes());
        Self { name: name.into(), owner, forms }
    }
}

impl std::fmt::Debug for Canary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canary").field("name", &self.name).field("owner", &self.owner).finish_non_exhaustive()
    }
}

pub(super) fn scan(canaries: &[Canary], place: &str, text: &[u8]) -> Vec<Violation> {
    let has = |form: &Vec<u8>| text.windows(form.len()).any(|window| window == form.as_slice());
    canaries
        .iter()
        .filter(|canary| canary.forms.iter().any(has))
        .map(|canary| Violation::new(Invariant::SecretsStaySecret, format!("{} is in {place}", canary.name)))
        .collect()
}

/// Everything that somebody reads who is not the secret's owner, as bytes.
const READ_BY_OTHERS: Sql = sql(
    "sim_read_by_others",
    "SELECT format('%s %s', kind, subject) AS place, convert_to(data::text, 'UTF8') AS text, NULL::uuid AS node_id FROM outbox_events
     UNION ALL SELECT format('event %s', seq), convert_to(concat_ws('|', subject, data::text), 'UTF8'), NULL FROM events
     UNION ALL SELECT format('audit %s', audit_id), convert_to(concat_ws('|', principal, action, resource, decision, outcome,
       source_ip, detail::text), 'UTF8'), NULL FROM audit
     UNION ALL SELECT format('work %s %s', queue, key), convert_to(concat_ws('|', key, payload::text, last_error), 'UTF8'), NULL
       FROM work
     UNION ALL SELECT format('idempotency key %s', resource), convert_to(key, 'UTF8'), NULL FROM idempotency
     UNION ALL SELECT format('command %s', command_id), convert_to(concat_ws('|', reason, message, cancel_reason), 'UTF8'), NULL
       FROM commands
     UNION ALL SELECT format('body of %s', command_id), body, node_id FROM commands
     UNION ALL SELECT format('result of %s', command_id), result, node_id FROM commands WHERE result IS NOT NULL
     UNION ALL SELECT format('spec of %s', node_id), spec_body, node_id FROM nodes WHERE spec_body IS NOT NULL
     UNION ALL SELECT format('status of %s', node_id), convert_to(concat_ws('|', sections::text, conditions::text,
       pressure::text), 'UTF8'), NULL FROM node_status
     UNION ALL SELECT format('report of %s', node_id), report, NULL FROM node_events
     UNION ALL SELECT format('request %s', inbox_id), request, NULL FROM join_inbox
     UNION ALL SELECT format('refusal %s', inbox_id), convert_to(refusal, 'UTF8'), NULL FROM join_inbox WHERE refusal IS NOT NULL
     UNION ALL SELECT format('answer %s', inbox_id), reply, NULL FROM join_inbox WHERE reply IS NOT NULL
     UNION ALL SELECT format('secret %s', secret_id), sealed, NULL FROM secrets
     UNION ALL SELECT format('trust bundle %s', version), message, NULL FROM trust_bundles
     UNION ALL SELECT format('node %s', node_id), convert_to(concat_ws('|', name, hostname, cordon_reason, quarantine_reason,
       revoke_reason, labels::text), 'UTF8'), NULL FROM nodes
     UNION ALL SELECT format('reservation %s', reservation_id), convert_to(concat_ws('|', name, waiting_reason, failure,
       selector::text), 'UTF8'), NULL FROM reservations",
);

pub(super) async fn in_rows(store: &Store, canaries: &[Canary]) -> Result<Vec<Violation>, StoreError> {
    if canaries.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for row in store.read(&READ_BY_OTHERS, &[]).await? {
        let Some(text) = row.get::<_, Option<&[u8]>>("text") else { continue };
        let node_id: Option<NodeId> = row.opt_id("node_id");
        let others: Vec<Canary> =
            canaries.iter().filter(|canary| node_id.is_none() || canary.owner != node_id).cloned().collect();
        found.extend(scan(&others, row.get("place"), text));
    }
    Ok(found)
}
