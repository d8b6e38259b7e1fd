//! What a world looks at when a gateway says something.

use wire::proto::agent::gateway_frame::Frame as Down;
use wire::proto::agent::{DesiredStateBody, GatewayFrame};

use super::invariants::Invariant;
use super::plane::node_id;
use super::skew::Met;
use super::world::World;

impl World {
    /// What an honest gateway says, before anything happens to it on the way.
    pub fn look_at_frame(&mut self, id: u64, frame: &GatewayFrame) {
        self.look_at_versions(id, frame);
        let Some(connection) = self.net.connections.get(&id) else { return };
        let (n, now) = (connection.node, self.now);
        match &frame.frame {
            Some(Down::Welcome(welcome)) => {
                self.watch.welcomes(n, welcome.session_epoch, now);
                if let Some(why) = self.hostile.must_not_be_welcome(id) {
                    self.watch.broken(Invariant::Versions, now, || format!("a Hello {why} was welcomed"));
                }
                if let Ok(journal) = welcome.journal_id.parse() {
                    self.watch.acks_events(&self.delivery, n, journal, welcome.acked_event_seq, now);
                }
            }
            Some(Down::Ack(ack)) => {
                if let Ok(journal) = ack.journal_id.parse()
                    && ack.event_seq > 0
                {
                    self.watch.acks_events(&self.delivery, n, journal, ack.event_seq, now);
                }
                self.watch.acks_results(&self.plane, &self.delivery, n, &ack.command_ids, now);
            }
            Some(Down::DesiredState(desired)) => {
                let body = wire::decode::<DesiredStateBody>("spec", &desired.body, desired.body.len());
                let Ok(body) = body else { return };
                let own = body.node_id == node_id(n).to_string();
                if !own {
                    self.watch
                        .broken(Invariant::OwnOnly, now, || format!("node {} is sent another's spec", n + 1));
                }
                let last = self.hostile.spec_sent(id, body.generation);
                if body.generation < last {
                    self.watch.broken(Invariant::NothingGoesBack, now, || {
                        format!("node {} is sent generation {} after {last}", n + 1, body.generation)
                    });
                }
            }
            _ => {}
        }
    }

    /// Who gets a session, and in which version: by what was said on this connection.
    fn look_at_versions(&mut self, id: u64, frame: &GatewayFrame) {
        let Some(connection) = self.net.connections.get(&id) else { return };
        let Some(offered) = connection.offered else { return };
        let (n, now) = (connection.node, self.now);
        let spoken = self.gateways[connection.gateway].release.versions();
        let common = spoken.common(offered);
        let right = match &frame.frame {
            Some(Down::Welcome(welcome)) => {
                self.met[n] = Met { protocol: Some(welcome.protocol), refusal: None };
                common == Some(welcome.protocol)
            }
            Some(Down::Refusal(refusal)) => {
                self.met[n] = Met { protocol: None, refusal: Some(refusal.reason.clone()) };
                let upgrade = refusal.reason == "upgrade_required";
                if upgrade {
                    self.hit("upgrade-required");
                }
                !upgrade || common.is_none()
            }
            _ => true,
        };
        if !right {
            self.watch.broken(Invariant::Versions, now, || {
                format!(
                    "a gateway that speaks {spoken} answers node {}, which offers {offered}, by {frame:?}",
                    n + 1
                )
            });
        }
    }
}
