//! What nodes ask of the world, and how their machines go up and down.

use std::time::Duration;

use super::Run;
use crate::fleet::event::{Event, ToNode};
use crate::fleet::gateway;
use crate::fleet::line::Line;
use crate::fleet::node::Ask;

/// A connection that nobody answers is given up.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
const REFUSED_WITHIN: Duration = Duration::from_millis(20);
/// A restart of a machine takes this long.
const REBOOT_MIN: Duration = Duration::from_secs(20);
const REBOOT_MAX: Duration = Duration::from_secs(90);

impl Run<'_> {
    /// Whatever the node's last step asked for.
    pub(super) fn after_node(&mut self, node: usize) {
        for ask in std::mem::take(&mut self.nodes[node].asks) {
            match ask {
                Ask::Dial => self.dial(node),
                Ask::Renew => self.renew(node),
            }
        }
    }

    fn dial(&mut self, node: usize) {
        let up: Vec<usize> =
            self.gateways.iter().filter(|gateway| gateway.up).map(|gateway| gateway.index).collect();
        let gateway = self.core.pick(&up).copied();
        let asking = &mut self.nodes[node];
        let line = Line::new(&self.core, node, asking.life, asking.slow);
        asking.dialed(line.clone());
        let partitioned = asking.partitioned;
        let Some(identity) = asking.identity.clone() else { return };
        let ended =
            |why: &str| Event::ToNode(line.clone(), ToNode::Ended { why: why.to_owned(), pushback: None });
        let Some(gateway) = gateway.filter(|_| !partitioned) else {
            let after = if partitioned { DIAL_WITHIN } else { REFUSED_WITHIN };
            return self.core.post(after, ended("nobody answers"));
        };
        if identity.not_after < self.core.now() {
            return self.core.post(REFUSED_WITHIN, ended("the certificate is over"));
        }
        let gateway = &mut self.gateways[gateway];
        if self.executor.is_paused(gateway.process) {
            // Its kernel takes the connection, and nobody says anything.
            line.cut();
            return self.core.post(DIAL_WITHIN, ended("no answer in time"));
        }
        let Some(served) = gateway.served() else {
            return self.core.post(REFUSED_WITHIN, ended("the gateway does not serve now"));
        };
        gateway.lines.retain(|line| !line.is_cut());
        gateway.lines.push(line.clone());
        let session = gateway::session(served, gateway::peer(&identity), line);
        self.core.spawn(gateway.process, "session", Box::pin(session));
    }

    fn renew(&mut self, node: usize) {
        let asking = &self.nodes[node];
        let (life, rng) = (asking.life, asking.rng.clone());
        let serving: Vec<_> = self
            .gateways
            .iter()
            .filter(|gateway| gateway.up && !self.executor.is_paused(gateway.process))
            .filter_map(|gateway| Some((gateway.process, gateway.served()?)))
            .collect();
        match (self.core.pick(&serving).cloned(), asking.identity.clone()) {
            (Some((process, served)), Some(identity)) if !asking.partitioned => {
                let renewal = gateway::renewal(self.core.clone(), served, identity, rng, node, life);
                self.core.spawn(process, "renewal", Box::pin(renewal));
                // Should the gateway die with the answer.
                let renewed = Err("no answer in time".to_owned());
                self.core.post(Duration::from_secs(30), Event::Renewed { node, life, renewed });
            }
            _ => {
                let renewed = Err("nobody answers".to_owned());
                self.core.post(DIAL_WITHIN, Event::Renewed { node, life, renewed });
            }
        }
    }

    pub(super) fn node_starts(&mut self, node: usize, life: u64) {
        if self.nodes[node].life == life && !self.nodes[node].is_up() && self.kept[node] == 0 {
            self.nodes[node].start();
            self.after_node(node);
        }
    }

    /// The machine goes down as a command asked, and comes up again.
    pub(super) fn node_reboots(&mut self, node: usize, life: u64) {
        let machine = &mut self.nodes[node];
        if machine.life == life && machine.is_up() {
            self.checker.disturbed();
            machine.crash();
            machine.lose_runtime();
            let life = machine.life;
            self.core.post(self.core.between(REBOOT_MIN, REBOOT_MAX), Event::NodeStarts { node, life });
        }
    }
}
