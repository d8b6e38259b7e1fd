//! How many commands a node can still take, lane by lane: what its last heartbeat said, less what was sent since.

use std::collections::BTreeMap;

use model::lifecycle::CommandEvent;
use model::{CommandId, Lane};
use wire::limits::HELLO_COMMANDS_MAX;

/// A sent command that has said nothing for this many heartbeats is taken to be counted in what they report.
const COUNTED_AFTER_BEATS: u32 = 2;

#[derive(Debug, Clone, Copy)]
struct Flight {
    command_id: CommandId,
    lane: Lane,
    /// The node said that it has it, so its credits no longer count it as free.
    held: bool,
    sent_at_beat: u32,
    cancel_sent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Credits {
    reported: [u32; Lane::ALL.len()],
    flights: Vec<Flight>,
    beats: u32,
}

impl Credits {
    /// Takes what the node says; more than a lane has is not believed.
    pub(super) fn report(&mut self, credits: &BTreeMap<String, u32>) {
        self.beats = self.beats.wrapping_add(1);
        for lane in Lane::ALL {
            self.reported[lane as usize] =
                credits.get(lane.name()).map_or(0, |free| (*free).min(lane.credits()));
        }
        for flight in &mut self.flights {
            flight.held |= self.beats.wrapping_sub(flight.sent_at_beat) >= COUNTED_AFTER_BEATS;
        }
    }

    pub(super) fn sent(&mut self, command_id: CommandId, lane: Lane) {
        self.flights.retain(|flight| flight.command_id != command_id);
        // Commands that were settled elsewhere leave no trace here; the oldest of them make room.
        if self.flights.len() >= HELLO_COMMANDS_MAX {
            self.flights.remove(0);
        }
        let sent_at_beat = self.beats;
        self.flights.push(Flight { command_id, lane, held: false, sent_at_beat, cancel_sent: false });
    }

    pub(super) fn update(&mut self, command_id: CommandId, event: CommandEvent) {
        let Some(at) = self.flights.iter().position(|flight| flight.command_id == command_id) else { return };
        let lane = self.flights[at].lane;
        let free = &mut self.reported[lane as usize];
        match event {
            CommandEvent::Acked | CommandEvent::Running => {
                if !std::mem::replace(&mut self.flights[at].held, true) {
                    *free = free.saturating_sub(1);
                }
            }
            CommandEvent::Busy => {
                self.flights.remove(at);
                *free = 0;
            }
            CommandEvent::Succeeded
            | CommandEvent::Failed
            | CommandEvent::Rejected
            | CommandEvent::Cancelled
            | CommandEvent::Expired => {
                if self.flights.remove(at).held {
                    *free = (*free + 1).min(lane.credits());
                }
            }
            CommandEvent::Sent => {}
        }
    }

    pub(super) fn left(&self, lane: Lane) -> u32 {
        let unsaid = self.flights.iter().filter(|flight| flight.lane == lane && !flight.held).count();
        let unsaid = if kit::mutant::on("gateway.credits-unspent") { 0 } else { unsaid };
        self.reported[lane as usize].saturating_sub(u32::try_from(unsaid).unwrap_or(u32::MAX))
    }

    pub(super) fn any_in_flight(&self) -> bool {
        !self.flights.is_empty()
    }

    /// True the first time for a command under way.
    pub(super) fn cancel(&mut self, command_id: CommandId) -> bool {
        let flight = self.flights.iter_mut().find(|flight| flight.command_id == command_id);
        flight.is_some_and(|flight| !std::mem::replace(&mut flight.cancel_sent, true))
    }
}

#[cfg(test)]
mod tests;
