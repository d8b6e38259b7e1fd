//! The words of a scenario.

/// Words of a scenario, and the values they stand for.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$note])* $variant,)* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == word)
            }
        }
    };
}

words! {
    /// Where in its work a daemon dies. Every one of its waits is one of these.
    Point {
        /// It has decided, and nothing is written.
        Decided = "decided",
        /// Its writes are in the page cache.
        Appended = "appended",
        /// They are durable, and nothing of what follows has happened.
        Committed = "committed",
        /// Between two of a step's effects.
        Effect = "effect",
        /// A command has acted on the machine, and nobody has heard of it.
        Acted = "acted",
        /// A converge pass has acted on the machine, and its report is not journaled.
        Passed = "passed",
        /// The marks are in the journal and not in their mirror.
        Mirror = "mirror",
        /// Right after its start.
        Started = "started",
    }
}

words! {
    /// What goes with a daemon that dies.
    How {
        /// The process alone: what it wrote is in the page cache.
        Kill = "kill",
        /// The machine loses its power: nothing that was not synced is left.
        Power = "power",
        /// As above, while the disk was writing: some commits had reached it, the last one in part.
        Torn = "torn",
        /// Power and journal both.
        Lost = "lost",
    }
}

words! {
    Way { Up = "up", Down = "down", Both = "both", }
}

words! {
    /// What a gateway that is not ours any more does with a node's session.
    Treason {
        /// Sends again what it, or another, once sent this node.
        Replay = "replay",
        /// The same, of what was meant for another node.
        Divert = "divert",
        /// Keeps frames to itself.
        Withhold = "withhold",
        /// Sends a frame after the one that follows it.
        Swap = "swap",
        /// Sends a frame twice.
        Double = "double",
        /// Invents a command.
        ForgeCommand = "forge-command",
        /// Changes a command that was signed.
        AlterCommand = "alter-command",
        /// Invents a spec.
        ForgeSpec = "forge-spec",
        /// Sends a spec of an older epoch, or an older one, that was signed.
        OldSpec = "old-spec",
        /// Answers with such a one when it is to send the newest.
        StaleSpec = "stale-spec",
        /// Acknowledges what it never stored.
        ForgeAck = "forge-ack",
        /// Acknowledges what it stored of another journal.
        OldAck = "old-ack",
        /// Acknowledges in its next Welcome more than there is: to the node its journal is an older copy.
        HighAck = "high-ack",
        ForgeCancel = "forge-cancel",
        /// States a time long gone in its next Welcome.
        PastWelcome = "past-welcome",
        /// States a time far ahead in its next Welcome.
        FutureWelcome = "future-welcome",
        /// The same in an answer to a heartbeat.
        FutureBeat = "future-beat",
        Revoke = "revoke",
        Garbage = "garbage",
    }
}

words! {
    /// What a node that is not ours any more says.
    Lie {
        /// Its next Hello names another node.
        OtherNode = "other-node",
        /// Its next Hello holds a generation nobody made.
        HighGeneration = "high-generation",
        /// Its next Hello has observed a generation nobody made, and says nothing else that is not so.
        HighObserved = "high-observed",
        /// Its next Hello has seen an epoch that does not exist.
        HighEpoch = "high-epoch",
        /// A result of a command of another node.
        ForeignResult = "foreign-result",
        /// Takes back what it said: a settled command runs again.
        Regress = "regress",
        /// Events that are stored already.
        OldEvents = "old-events",
        /// Events of another journal.
        ForeignEvents = "foreign-events",
        /// A status of another node.
        ForeignStatus = "foreign-status",
        /// Says everything twice.
        Double = "double",
        /// A second Hello.
        SecondHello = "second-hello",
    }
}

words! {
    /// Who speaks which version.
    Version {
        /// A daemon from before the first version this gateway speaks, with its next Hello.
        OldAgent = "old-agent",
        /// A daemon of a later version that speaks this one too.
        NewAgent = "new-agent",
        /// A gateway from before the first version this daemon speaks, with its next Welcome.
        OldGateway = "old-gateway",
        /// A gateway of a later version: frames and fields nobody here knows.
        NewGateway = "new-gateway",
    }
}

words! {
    /// A release of the daemon, or of the gateway, against the one that this is.
    Release {
        /// Before the oldest one this one still talks to.
        Below = "n-3",
        OlderTwo = "n-2",
        Older = "n-1",
        Current = "n",
        Next = "n+1",
    }
}

words! {
    /// What a gateway asks of the store under its lease.
    Call {
        Renew = "renew",
        Open = "open_session",
        Heartbeats = "heartbeats",
        Ended = "ended",
        Claim = "claim_commands",
        Cancels = "cancels",
        Updates = "apply_updates",
        Events = "put_events",
        Statuses = "put_statuses",
        SpecsBehind = "specs_behind",
        Spec = "spec",
    }
}

impl Point {
    /// The name a death there is counted under.
    pub const fn crash_name(self) -> &'static str {
        match self {
            Point::Decided => "crash-decided",
            Point::Appended => "crash-appended",
            Point::Committed => "crash-committed",
            Point::Effect => "crash-effect",
            Point::Acted => "crash-acted",
            Point::Passed => "crash-passed",
            Point::Mirror => "crash-mirror",
            Point::Started => "crash-started",
        }
    }
}

impl Call {
    /// The name its death there is counted under.
    pub const fn crash_name(self) -> &'static str {
        match self {
            Call::Renew => "gateway-dies-renew",
            Call::Open => "gateway-dies-open",
            Call::Heartbeats => "gateway-dies-heartbeats",
            Call::Ended => "gateway-dies-ended",
            Call::Claim => "gateway-dies-claim",
            Call::Cancels => "gateway-dies-cancels",
            Call::Updates => "gateway-dies-updates",
            Call::Events => "gateway-dies-events",
            Call::Statuses => "gateway-dies-statuses",
            Call::SpecsBehind => "gateway-dies-specs-behind",
            Call::Spec => "gateway-dies-spec",
        }
    }
}

words! {
    /// What a spec does about a hold.
    Hold { Held = "held", Released = "released", Dropped = "dropped", }
}
