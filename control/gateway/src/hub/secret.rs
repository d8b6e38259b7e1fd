//! Nodes' questions for secrets, which a worker answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kernel::ports::delivery::{InboxAnswer, InboxKind, InboxRequest};
use prost::Message;

use super::Hub;
use crate::session::{Answer, AskedSecret};

/// A little less than a node waits, so that it hears that nobody answered.
const PATIENCE: Duration = Duration::from_secs(9);
/// Of all sessions at once: they leave workers time for joins and renewals.
const AT_ONCE_MAX: usize = 64;

/// One place among those, for as long as it is asked.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(places: &'a AtomicUsize) -> Option<Self> {
        let room = |taken| (taken < AT_ONCE_MAX).then_some(taken + 1);
        places.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok().then_some(Self(places))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Hub {
    /// Whatever goes wrong is no answer: the node asks again, and its session is in nobody's way.
    pub(super) async fn ask_secret(&self, asked: AskedSecret) -> Answer {
        let AskedSecret { request, cert_serial } = asked;
        let bytes = request.encode_to_vec();
        // It was read before it came here.
        let request_id =
            wire::secret::request(&bytes).map(|(_, asked)| asked.request_id.to_vec()).unwrap_or_default();
        let answer = match Place::take(&self.asked_secrets) {
            Some(_place) => self.ask_worker(bytes, cert_serial).await,
            None => None,
        };
        Answer::Secret { request_id, answer }
    }

    async fn ask_worker(&self, request: Vec<u8>, cert_serial: String) -> Option<Vec<u8>> {
        let request = InboxRequest {
            kind: InboxKind::Secret,
            request,
            source_ip: String::new(),
            peer_serial: Some(cert_serial),
        };
        self.metrics.call("ask");
        match self.store.ask(self.lease, request, PATIENCE).await {
            Ok(InboxAnswer::Reply(reply)) => Some(reply),
            Ok(InboxAnswer::Refused(why)) => {
                tracing::warn!(target: "security", why, "a question for a secret was refused");
                None
            }
            Ok(InboxAnswer::TimedOut) => None,
            Err(err) => {
                self.failed("ask for a secret", &err);
                None
            }
        }
    }
}
