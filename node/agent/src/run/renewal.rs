//! The actor's share of renewing: when, one at a time, and durable before it is used.

use std::convert::Infallible;
use std::time::Duration;

use kit::{Backoff, TaskKind};

use super::Message;
use super::actor::Actor;
use crate::clock::Now;
use crate::engine::{Certificate, Input};
use crate::identity::Identity;
use crate::renew::{self, RenewError};

const RENEWAL: TaskKind = TaskKind::isolated("renewal");
/// Jitter may draw next to nothing; a renewal is not worth asking for more often.
const RENEWAL_WAIT_MIN: Duration = Duration::from_secs(5);

/// When the certificate is asked for again.
pub(super) struct Renewal {
    under_way: bool,
    /// Believed, and not durable yet.
    got: Option<Box<Identity>>,
    not_before: Duration,
    backoff: Backoff,
}

impl Default for Renewal {
    fn default() -> Self {
        Self {
            under_way: false,
            got: None,
            not_before: Duration::ZERO,
            backoff: Backoff::new(renew::RETRY_FIRST, renew::RETRY_CEILING),
        }
    }
}

impl Actor {
    /// Monotonic; server time judges the certificate, so the wait is recomputed with every step.
    pub(super) fn renewal_due(&self, now: Now) -> Duration {
        if self.renewal.under_way {
            return Duration::MAX;
        }
        let due = renew::due(self.identity.not_before, self.identity.not_after);
        let wait = due.since(self.engine.server_time(now));
        (now.monotonic + wait).max(self.renewal.not_before)
    }

    pub(super) fn start_renewal(&mut self, now: Now) {
        self.renewal.under_way = true;
        let (link, identity) = (self.ports.link.clone(), self.identity.clone());
        let (inbox, rng) = (self.mailbox.inbox.clone(), self.ports.rng.clone());
        let at = self.engine.server_time(now);
        self.ports.supervisor.spawn(RENEWAL, |cancel| async move {
            let entropy = crate::entropy::RngEntropy(rng);
            // Dropping a renewal loses an answer nobody relies on yet: the old key and certificate are still in place.
            tokio::select! {
                result = renew::renew(link.as_ref(), &identity, &entropy, at) => {
                    let _ = inbox.send(Message::Renewed(Box::new(result))).await;
                }
                () = cancel.cancelled() => {}
            }
            Ok::<_, Infallible>(())
        });
    }

    pub(super) fn renewed(&mut self, result: Result<Identity, RenewError>) {
        match result {
            Ok(renewed) => self.renewal.got = Some(Box::new(renewed)),
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "renewal failed, the certificate held goes on");
                self.renew_later();
            }
        }
    }

    /// Makes a renewed identity durable, and only then uses it.
    pub(super) async fn take_renewal(&mut self, inputs: &mut Vec<Input>) {
        let Some(renewed) = self.renewal.got.take() else { return };
        let key = Box::new(renewed.key.clone());
        let certificate = Certificate { begins: renewed.not_before, ends: renewed.not_after };
        if self.store_identity(renew::take(&self.identity, *renewed)).await {
            tracing::info!(node_id = %self.identity.node_id, not_after = %certificate.ends, "renewed the certificate");
            self.renewal.under_way = false;
            self.renewal.backoff.reset();
            inputs.push(Input::Renewed { key, certificate });
        } else {
            self.renew_later();
        }
    }

    fn renew_later(&mut self) {
        self.renewal.under_way = false;
        let wait = self.renewal.backoff.next_wait(self.ports.rng.as_ref()).max(RENEWAL_WAIT_MIN);
        self.renewal.not_before = self.now().monotonic + wait;
    }
}
