//! On a wake-up, and periodically without one: commands and cancels, specs, and sessions that must end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kernel::ports::delivery::{Poke, SessionKey, StoredCommand};
use kit::Wake;
use model::NodeId;

use super::{Hub, News};
use crate::live::Live;
use crate::session::Input;

/// Rounds of one pass: a store hands out about a thousand commands at once.
const DISPATCH_ROUNDS_MAX: usize = 16;
/// A full round means that more may wait.
const DISPATCH_FULL: usize = 1000;
/// Rounds of one pass over specs; each brings some megabytes.
const SPEC_ROUNDS_MAX: usize = 256;

/// After a pass over all sessions' specs that a wake-up asked for: those that come meanwhile fold into one. A pass that was due
/// anyway keeps no node waiting that there is news of.
const SPEC_PAUSE: Duration = Duration::from_millis(50);

/// When, on the monotonic clock, each part of a pass is next due without a wake-up.
#[derive(Default)]
pub(crate) struct SpecsDue {
    specs: Duration,
    ended: Duration,
}

impl Hub {
    /// Commands and cancels, apart from the rest: a pass over specs takes time that a command should not wait.
    pub(crate) async fn run_dispatch(self: Arc<Self>, mut wake: Wake) {
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.dispatch) => {}
            }
            self.dispatch_pass().await;
        }
    }

    /// One pass: over the nodes there is news of, and over all of them when that is due or nobody can tell which.
    pub(crate) async fn dispatch_pass(&self) {
        if !self.may_deliver() {
            return;
        }
        // Taken before the pass looks: a wake-up during it means another pass.
        let news = News::take(&self.dispatch_news);
        let now = self.clock.monotonic();
        let due = {
            let mut due = self.dispatch_due.lock().expect("no holder of this lock panics");
            let is_due = news.all || news.nodes.is_empty() || now >= *due;
            if is_due {
                *due = now + self.timing.dispatch;
            }
            is_due
        };
        if due {
            self.dispatch(&self.waiting().await, now).await;
            self.cancel(&self.lives()).await;
        } else {
            let named = self.lives_of(&news);
            self.dispatch(&named, now).await;
            self.cancel(&named).await;
        }
    }

    /// Sessions that commands may wait for.
    async fn waiting(&self) -> Vec<Arc<Live>> {
        self.metrics.call("commands_waiting");
        match self.store.commands_waiting(self.lease).await {
            Ok(Some(nodes)) => self.lives_of(&News { all: false, nodes: nodes.into_iter().collect() }),
            Ok(None) => self.lives(),
            Err(err) => {
                self.failed("look for commands", &err);
                Vec::new()
            }
        }
    }

    /// Specs, and sessions that must end.
    pub(crate) async fn run_specs(self: Arc<Self>, mut wake: Wake) {
        let mut due = SpecsDue::default();
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.ended.min(self.timing.specs)) => {}
            }
            if self.specs_pass(&mut due).await {
                self.clock.sleep(SPEC_PAUSE).await;
            }
        }
    }

    /// One pass: over the nodes there is news of, and over all of them when that is due or nobody can tell which. True when nobody
    /// could, and the next such wake-up may be near.
    pub(crate) async fn specs_pass(&self, due: &mut SpecsDue) -> bool {
        if !self.may_deliver() {
            return false;
        }
        // Taken before the pass looks: a wake-up during it means another pass.
        let news = News::take(&self.spec_news);
        let now = self.clock.monotonic();
        let named = self.lives_of(&news);
        if news.all || now >= due.ended {
            due.ended = now + self.timing.ended;
            self.end_revoked().await;
        } else if !named.is_empty() {
            self.end_revoked_of(&named).await;
        }
        if news.all || now >= due.specs {
            due.specs = now + self.timing.specs;
            self.push_specs(None).await;
        } else if !named.is_empty() {
            self.push_specs(Some(named)).await;
        }
        news.all
    }

    fn may_deliver(&self) -> bool {
        !self.is_over() && !self.is_draining()
    }

    async fn dispatch(&self, among: &[Arc<Live>], since: Duration) {
        for _ in 0..DISPATCH_ROUNDS_MAX {
            let mut lives: HashMap<NodeId, Arc<Live>> = HashMap::new();
            let mut lanes = Vec::new();
            for live in among {
                if let Some(credits) = live.lock().core.lanes() {
                    lives.insert(credits.session.node_id, live.clone());
                    lanes.push(credits);
                }
            }
            if lanes.is_empty() {
                return;
            }
            self.metrics.call("claim_commands");
            let claimed = match self.store.claim_commands(self.lease, lanes).await {
                Ok(claimed) => claimed,
                Err(err) => return self.failed("claim commands", &err),
            };
            let count = claimed.len();
            self.hand_out(claimed, &lives, since);
            if count < DISPATCH_FULL {
                return;
            }
        }
        // More waits: the next pass comes at once.
        News::note(&self.dispatch_news, &Poke::Everything);
        self.dispatch.wake();
    }

    fn hand_out(&self, claimed: Vec<StoredCommand>, lives: &HashMap<NodeId, Arc<Live>>, since: Duration) {
        let mut by_node: BTreeMap<NodeId, Vec<StoredCommand>> = BTreeMap::new();
        for command in claimed {
            by_node.entry(command.node_id).or_default().push(command);
        }
        for (node_id, commands) in by_node {
            if let Some(live) = lives.get(&node_id) {
                self.feed(live, Input::Commands(commands));
                self.metrics.dispatched(self.clock.monotonic().saturating_sub(since));
            }
        }
    }

    async fn cancel(&self, among: &[Arc<Live>]) {
        let sessions: Vec<SessionKey> =
            among.iter().filter_map(|live| live.lock().core.in_flight()).collect();
        if sessions.is_empty() {
            return;
        }
        self.metrics.call("cancels");
        match self.store.cancels(self.lease, sessions).await {
            Ok(cancels) => {
                for (node_id, command_id, reason) in cancels {
                    if let Some(live) = self.live_of(node_id) {
                        self.feed(&live, Input::Cancel(command_id, reason));
                    }
                }
            }
            Err(err) => self.failed("read cancels", &err),
        }
    }

    async fn end_revoked(&self) {
        self.metrics.call("ended");
        match self.store.ended(self.lease).await {
            Ok(ended) => self.end_sessions(ended),
            Err(err) => self.failed("read ended sessions", &err),
        }
    }

    async fn end_revoked_of(&self, named: &[Arc<Live>]) {
        let sessions: Vec<SessionKey> = named.iter().filter_map(|live| live.lock().core.key()).collect();
        if sessions.is_empty() {
            return;
        }
        self.metrics.call("ended_of");
        match self.store.ended_of(self.lease, sessions).await {
            Ok(ended) => self.end_sessions(ended),
            Err(err) => self.failed("read ended sessions", &err),
        }
    }

    /// Of these sessions, or of all.
    async fn push_specs(&self, among: Option<Vec<Arc<Live>>>) {
        // A node that cannot be sent its spec yet stays behind, and must not keep the others from theirs.
        let mut seen: HashSet<SessionKey> = HashSet::new();
        for _ in 0..SPEC_ROUNDS_MAX {
            let lives = among.clone().unwrap_or_else(|| self.lives());
            let sent: Vec<(SessionKey, u64)> = lives
                .iter()
                .filter_map(|live| live.lock().core.spec_sent())
                .filter(|(key, _)| !seen.contains(key))
                .collect();
            if sent.is_empty() {
                return;
            }
            self.metrics.call("specs_behind");
            let specs = match self.store.specs_behind(self.lease, sent.clone()).await {
                Ok(specs) if specs.is_empty() => return,
                Ok(specs) => specs,
                Err(err) => return self.failed("read specs", &err),
            };
            let keys: HashMap<NodeId, SessionKey> = sent.iter().map(|(key, _)| (key.node_id, *key)).collect();
            for spec in specs {
                let Some(key) = keys.get(&spec.node_id) else { continue };
                seen.insert(*key);
                if let Some(live) = self.live_of(spec.node_id) {
                    self.feed(&live, Input::Spec(spec));
                }
            }
        }
    }
}
