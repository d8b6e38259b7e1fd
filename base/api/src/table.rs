//! Every method, in the order of the reference.

use crate::*;

pub const METHODS: &[MethodRow] = &[
    MethodRow::of::<system::Info>(),
    MethodRow::of::<system::ConfirmRestore>(),
    MethodRow::of::<tenants::Create>(),
    MethodRow::of::<tenants::Get>(),
    MethodRow::of::<tenants::List>(),
    MethodRow::of::<tenants::Delete>(),
    MethodRow::of::<users::Create>(),
    MethodRow::of::<users::Get>(),
    MethodRow::of::<users::List>(),
    MethodRow::of::<users::Disable>(),
    MethodRow::of::<users::Enable>(),
    MethodRow::of::<tokens::Create>(),
    MethodRow::of::<tokens::List>(),
    MethodRow::of::<tokens::Revoke>(),
    MethodRow::of::<tokens::Whoami>(),
    MethodRow::of::<policies::Put>(),
    MethodRow::of::<policies::Get>(),
    MethodRow::of::<policies::List>(),
    MethodRow::of::<policies::Delete>(),
    MethodRow::of::<bindings::Put>(),
    MethodRow::of::<bindings::List>(),
    MethodRow::of::<bindings::Delete>(),
    MethodRow::of::<sites::Create>(),
    MethodRow::of::<sites::Get>(),
    MethodRow::of::<sites::List>(),
    MethodRow::of::<pools::Create>(),
    MethodRow::of::<pools::Get>(),
    MethodRow::of::<pools::List>(),
    MethodRow::of::<pools::Update>(),
    MethodRow::of::<pools::Delete>(),
    MethodRow::of::<join_tokens::Create>(),
    MethodRow::of::<join_tokens::List>(),
    MethodRow::of::<join_tokens::Revoke>(),
    MethodRow::of::<join_requests::List>(),
    MethodRow::of::<join_requests::Approve>(),
    MethodRow::of::<join_requests::Reject>(),
    MethodRow::of::<nodes::List>(),
    MethodRow::of::<nodes::Get>(),
    MethodRow::of::<nodes::Inventory>(),
    MethodRow::of::<nodes::Adopt>(),
    MethodRow::of::<nodes::Update>(),
    MethodRow::of::<nodes::Cordon>(),
    MethodRow::of::<nodes::Uncordon>(),
    MethodRow::of::<nodes::Drain>(),
    MethodRow::of::<nodes::Revoke>(),
    MethodRow::of::<nodes::Abandon>(),
    MethodRow::of::<nodes::Remove>(),
    MethodRow::of::<nodes::ssh_certs::Issue>(),
    MethodRow::of::<nodes::ssh_certs::List>(),
    MethodRow::of::<nodes::ssh_certs::Revoke>(),
    MethodRow::of::<commands::Create>(),
    MethodRow::of::<commands::Get>(),
    MethodRow::of::<commands::List>(),
    MethodRow::of::<commands::Cancel>(),
    MethodRow::of::<reservations::Create>(),
    MethodRow::of::<reservations::Get>(),
    MethodRow::of::<reservations::List>(),
    MethodRow::of::<reservations::Extend>(),
    MethodRow::of::<reservations::Release>(),
    MethodRow::of::<reservations::Explain>(),
    MethodRow::of::<flavors::Create>(),
    MethodRow::of::<flavors::Get>(),
    MethodRow::of::<flavors::List>(),
    MethodRow::of::<images::Create>(),
    MethodRow::of::<images::Import>(),
    MethodRow::of::<images::Get>(),
    MethodRow::of::<images::List>(),
    MethodRow::of::<images::Delete>(),
    MethodRow::of::<instances::Create>(),
    MethodRow::of::<instances::Get>(),
    MethodRow::of::<instances::List>(),
    MethodRow::of::<instances::Start>(),
    MethodRow::of::<instances::Stop>(),
    MethodRow::of::<instances::Reboot>(),
    MethodRow::of::<instances::Resize>(),
    MethodRow::of::<instances::Recover>(),
    MethodRow::of::<instances::ForceRelease>(),
    MethodRow::of::<instances::Delete>(),
    MethodRow::of::<secrets::Put>(),
    MethodRow::of::<secrets::Get>(),
    MethodRow::of::<secrets::List>(),
    MethodRow::of::<secrets::Delete>(),
    MethodRow::of::<tunnels::Open>(),
    MethodRow::of::<tunnels::Get>(),
    MethodRow::of::<tunnels::List>(),
    MethodRow::of::<tunnels::Close>(),
    MethodRow::of::<quotas::Set>(),
    MethodRow::of::<quotas::List>(),
    MethodRow::of::<events::List>(),
    MethodRow::of::<audit::List>(),
    MethodRow::of::<work::ListParked>(),
    MethodRow::of::<work::Requeue>(),
];

/// The row of a method by its name.
pub fn find(name: &str) -> Option<&'static MethodRow> {
    METHODS.iter().find(|row| row.name == name)
}

/// Methods about one kind of thing.
pub struct Group {
    /// As in method names: `joinTokens`.
    pub name: &'static str,
    /// One line for help and reference.
    pub about: &'static str,
}

/// Every group, in the order of [`METHODS`].
pub const GROUPS: &[Group] = &[
    Group { name: "system", about: "The deployment itself" },
    Group { name: "tenants", about: "Whose things are: a tree with one root" },
    Group { name: "users", about: "People, and the service accounts of programs" },
    Group { name: "tokens", about: "What a user shows to be known as itself" },
    Group { name: "policies", about: "Documents that say who may do what" },
    Group { name: "bindings", about: "Which user holds which policy in which tenant" },
    Group { name: "sites", about: "Places where machines stand" },
    Group { name: "pools", about: "Nodes that are booked from together, by one policy" },
    Group { name: "joinTokens", about: "What a machine shows when it joins" },
    Group { name: "joinRequests", about: "Machines that wait for a person's word" },
    Group { name: "nodes", about: "Machines that joined" },
    Group { name: "commands", about: "What a node is told to do once" },
    Group { name: "reservations", about: "GPUs, CPUs and memory of one node, booked for a while" },
    Group { name: "flavors", about: "Sizes of virtual machines that a pool offers" },
    Group { name: "images", about: "What the disks of virtual machines begin with" },
    Group { name: "instances", about: "Virtual machines" },
    Group { name: "secrets", about: "Values that machines are told, and nobody else" },
    Group { name: "tunnels", about: "Ways into instances, and onto nodes' consoles" },
    Group { name: "quotas", about: "How much a tenant may hold at once" },
    Group { name: "events", about: "What happened, in order" },
    Group { name: "audit", about: "Who asked for what, and what was decided" },
    Group { name: "work", about: "Work that failed too often and waits for a person" },
];

pub fn group(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

#[cfg(test)]
mod tests;
