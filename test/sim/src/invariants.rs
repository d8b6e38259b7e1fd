//! What must be true of a fleet at any moment: of the rows, of the nodes, and of one look beside the one before.
//!
//! Each invariant has a number, a sentence and a reason. [`Checker`] asks them: the cheap ones after every step, all of them
//! every simulated minute, and those of a world that rests when it does. Whatever it answers is a fault of the control plane,
//! of a node, or of the invariant; never of the faults that were put in.
//!
//! To add one: a line in the table below, a rule in the file of its kind, a case in `tests/it/invariants.rs` that breaks it,
//! and a row in `docs/simulation.md`, whose test names what is missing.

use std::fmt;

use store::StoreError;

use crate::world::World;

mod books;
mod canonical;
mod instances;
mod lasting;
pub mod mutants;
mod nodes;
mod past;
mod rest;
mod rows;
mod secrets;
mod told;

pub use canonical::{canonical_state, canonical_tables};
pub use secrets::Canary;

macro_rules! invariants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal, $says:literal;)*) => {
        /// What is asked of the fleet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $($(#[doc = $doc])+ $variant = $number,)*
        }

        impl Invariant {
            pub const ALL: &[Invariant] = &[$(Invariant::$variant),*];

            /// The sentence that is true while all is well.
            pub const fn says(self) -> &'static str {
                match self { $(Invariant::$variant => $says,)* }
            }

            /// What goes wrong when it is not.
            pub fn why(self) -> String {
                let lines: &[&str] = match self { $(Invariant::$variant => &[$($doc),+],)* };
                lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
            }
        }
    };
}

invariants! {
    /// Two tenants on one GPU read each other's memory. Asked of the rows.
    AtomsBookedOnce = 1, "no device is in two allocations that have not ended";
    /// The same where it counts: a row that is right helps nobody whose device is also held for another.
    AtomsHeldOnce = 2, "no device is held for two allocations, on one node or on two";
    /// A command that cannot be repeated was carried out twice, or its end was told twice.
    EffectsOnce = 3, "nothing is carried out twice, and no end is told twice";
    /// Whoever read how a command ended must be able to rely on it.
    SettledOnce = 4, "a command settles once and never changes then";
    /// A reservation that hangs is capacity nobody has and nobody misses.
    BoundOrSaysWhy = 5, "a reservation is bound, or says why not, within a bound";
    /// What goes back lets an earlier owner, intent or report count again.
    NothingGoesBack = 6, "generations, epochs and acknowledgements never go back";
    /// Quotas are sums of rows: a row too many is capacity a tenant never gets back, one too few is somebody else's.
    QuotasAreTheirRows = 7, "what counts against quotas is what is reserved";
    /// Books that do not fit their allocations book twice tomorrow.
    BooksAreSound = 8, "what is booked is what allocations hold, and fits its node";
    /// What nobody remembers runs for ever, and nobody pays or answers for it.
    NodesHoldWhatRowsSay = 9, "a node holds nothing that no row explains, past a bound";
    /// Missing data, a lost session or a restored database must not take work or data away.
    DestroyedByIntent = 10, "nothing is destroyed without current, signed intent";
    /// A secret in a log, an event or another node's frame is no secret.
    SecretsStaySecret = 11, "no secret is in a row, a log or a frame that is not its own";
    /// A slow check taken for a dead machine moves work that was well.
    NoFalseUnreachable = 12, "while nothing fails, no node is called unreachable";
    /// A loop that never rests costs a fleet of a thousand clusters a core each, and hides the wake-up that was lost.
    LoopsRest = 13, "when the world rests, no loop has anything left to do";
    /// Readers go by the number: a gap is an event that somebody waits for, a second copy an action that somebody repeats.
    EventsOnceInOrder = 14, "events are numbered without a gap and each is told once";
    /// What was signed once is what nodes hold: other bytes under its name or number never reach them.
    SignedBytesStay = 15, "a command's bytes, and a spec's within its generation, never change";
    /// A spec that leaves out a hold is an order to keep what nobody asks for; one too many books twice.
    SpecsSayTheRows = 16, "when the world rests, a node's spec asks for what the rows say";
    /// The node forgets an event once it is acknowledged.
    AcknowledgedIsStored = 17, "what is acknowledged to a node is stored";
    /// A create that is sent twice makes one thing.
    KeysMakeOneThing = 18, "an idempotency key points at the one thing that was made under it";
    /// A session whose gateway is gone keeps its node's commands waiting.
    SessionsHaveGateways = 19, "an open session is a living gateway's, within a bound";
    /// A key that failed too often waits for a person; nothing in a simulation is such that it should.
    NothingParked = 20, "no work was given up";
    /// One that was given a name or an epoch and lost it writes nothing under it.
    OwnersAreFenced = 21, "whoever lost a lease, a claim or a session writes nothing under it";
    /// A change without its event is one that nobody who listens ever hears of, and the other way round.
    EventsWithTheirChange = 22, "a change is written together with its event, or neither is";
    /// What is proved of gateways over the store in memory is true of the deployment only as far as the two stores are one.
    StoresAgree = 23, "the delivery stores in memory and over PostgreSQL answer alike";
    /// Two machines at one address are neither of them reached, and one hears what is the other's.
    AddressesAreOnes = 24, "an address or a MAC is one instance's, for as long as it has its place";
    /// A host that has what nobody placed there runs it for nobody; a row that says more than its host has is a promise.
    HostsHaveWhatRowsSay = 25, "a host has of instances what was placed there, and as the row says, within a bound";
    /// Two copies of one machine write to what both take for theirs.
    RunsOnce = 26, "no instance runs on two hosts, but on one that was declared dead and has not heard yet";
    /// An instance that hangs between two states is one that its tenant can do nothing with and pays for.
    InstancesSettle = 27, "an instance becomes what was asked of it, or says why not, within a bound";
    /// What is left of every thousandth instance fills a fleet in a year.
    NothingLeft = 28, "when all instances were deleted, nothing of any is left";
}

impl Invariant {
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{:02} {}", self.number(), self.says())
    }
}

/// Whose idea a mutant was, for the tables.
pub const fn chosen_by(another: bool) -> &'static str {
    if another { "another hand" } else { "the author" }
}

/// The two tables of `docs/simulation.md`: what is asked, and the mutants of the control plane with what catches them.
pub fn reference() -> String {
    let mut page = String::from("| | What is true | Why it must be |\n|---|---|---|\n");
    for one in Invariant::ALL {
        page.push_str(&format!("| I{:02} | {} | {} |\n", one.number(), one.says(), one.why()));
    }
    page.push_str(
        "\n| Mutant | What the program does wrong | Found by | In | Chosen by |\n|---|---|---|---|---|\n",
    );
    for mutants::Mutant { name, what, scenario, caught_by, by_another } in mutants::MUTANTS {
        let test = scenario.rsplit("::").next().unwrap_or_default();
        let by = chosen_by(*by_another);
        page.push_str(&format!("| `{name}` | {what} | I{:02} | `{test}` | {by} |\n", caught_by.number()));
    }
    page
}

/// One thing that broke an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    /// Ids and numbers, never a secret.
    pub what: String,
}

impl Violation {
    pub fn new(invariant: Invariant, what: impl Into<String>) -> Self {
        Self { invariant, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Asks the invariants of one run, and remembers what it saw.
#[derive(Default)]
pub struct Checker {
    past: past::Past,
    told: told::Told,
    marks: nodes::Marks,
    lasting: lasting::Lasting,
    hosts: instances::Hosts,
    canaries: Vec<Canary>,
    /// Whether any fault was put in so far.
    disturbed: bool,
    /// Whether the database is an older one than some of what the nodes hold.
    restored: bool,
}

impl Checker {
    pub fn new() -> Self {
        Self::default()
    }

    /// A secret that is looked for from now on.
    pub fn plant(&mut self, canary: Canary) {
        self.canaries.push(canary);
    }

    /// Text of a log, or anything else that outsiders see.
    pub fn scan(&self, place: &str, text: &[u8]) -> Vec<Violation> {
        secrets::scan(&self.canaries, place, text)
    }

    /// A fault is put in: nodes may be called unreachable from now on.
    pub fn disturbed(&mut self) {
        self.disturbed = true;
    }

    /// The database is an older one from now on. What was seen of its rows is forgotten, since they may go back, and what
    /// nodes hold beyond them is theirs to keep until a person judged it.
    pub fn database_restored(&mut self) {
        self.past = past::Past::default();
        self.told = told::Told::default();
        self.lasting = lasting::Lasting::default();
        self.hosts = instances::Hosts::default();
        self.restored = true;
    }

    /// What the nodes themselves and one statement can tell: after every step.
    pub async fn after_step(&mut self, world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
        let mut found = nodes::by_themselves(world);
        found.extend(instances::by_themselves(world, self.restored));
        found.extend(self.marks.look(world.nodes));
        found.extend(rows::cheap(world.store).await?);
        Ok(found)
    }

    /// Hosts by themselves, and beside the rows of what is placed on them.
    pub async fn of_hosts(&mut self, world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
        let mut found = instances::by_themselves(world, self.restored);
        if !self.restored {
            found.extend(self.hosts.look(world, false).await?);
        }
        Ok(found)
    }

    /// Everything: every simulated minute, and at the end. Ask while nothing moves.
    pub async fn every_minute(&mut self, world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
        let store = world.store;
        let mut found = self.after_step(world).await?;
        found.extend(rows::all(store).await?);
        found.extend(books::all(store).await?);
        found.extend(instances::rows(store).await?);
        found.extend(self.told.look(store).await?);
        found.extend(self.past.look(store).await?);
        found.extend(self.lasting.look(store).await?);
        if !self.restored {
            found.extend(nodes::beside_rows(world).await?);
            found.extend(self.hosts.look(world, false).await?);
        }
        if !self.disturbed {
            found.extend(rows::undisturbed(store).await?);
        }
        Ok(found)
    }

    /// What is true besides once nothing is put in any more and everything was given the time to settle; and what takes
    /// reading every row there ever was: that nothing told was changed, and that no secret is in it.
    pub async fn at_rest(&mut self, world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
        let mut found = self.every_minute(world).await?;
        found.extend(rest::all(world.store).await?);
        if !self.restored {
            found.extend(self.hosts.look(world, true).await?);
        }
        found.extend(self.told.again(world.store).await?);
        found.extend(secrets::in_rows(world.store, &self.canaries).await?);
        Ok(found)
    }

    /// What is true of a world at rest besides once every instance was deleted.
    pub async fn at_end(&mut self, world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
        let mut found = self.at_rest(world).await?;
        found.extend(instances::left(world, self.restored).await?);
        Ok(found)
    }
}
