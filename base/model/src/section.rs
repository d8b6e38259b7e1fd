//! Sections of a NodeSpec, in converge order. Adding one: a variant here and `sections/<name>/` in `handlers`.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    Host,
    Devices,
    Instances,
    Access,
    Telemetry,
    Site,
    Daemon,
}

impl Section {
    /// Converge order.
    pub const ALL: [Section; 7] = [
        Section::Host,
        Section::Devices,
        Section::Instances,
        Section::Access,
        Section::Telemetry,
        Section::Site,
        Section::Daemon,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Section::Host => "host",
            Section::Devices => "devices",
            Section::Instances => "instances",
            Section::Access => "access",
            Section::Telemetry => "telemetry",
            Section::Site => "site",
            Section::Daemon => "daemon",
        }
    }

    /// The field number in `NodeSpec`.
    pub const fn number(self) -> u32 {
        match self {
            Section::Host => 1,
            Section::Devices => 2,
            Section::Instances => 3,
            Section::Access => 4,
            Section::Telemetry => 5,
            Section::Site => 6,
            Section::Daemon => 7,
        }
    }

    pub fn parse(text: &str) -> Option<Section> {
        Section::ALL.into_iter().find(|section| section.name() == text)
    }
}

/// Where one section stands at a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SectionState {
    Converged,
    /// A retryable failure, or work under way: tried again on the next pass.
    Progressing,
    /// Terminal at this generation.
    Failed,
    /// Terminal: this daemon has no converger for it.
    Unsupported,
}

impl SectionState {
    pub const fn name(self) -> &'static str {
        match self {
            SectionState::Converged => "CONVERGED",
            SectionState::Progressing => "PROGRESSING",
            SectionState::Failed => "FAILED",
            SectionState::Unsupported => "UNSUPPORTED",
        }
    }

    /// Nothing more happens at this generation.
    pub const fn settled(self) -> bool {
        match self {
            SectionState::Converged | SectionState::Failed | SectionState::Unsupported => true,
            SectionState::Progressing => false,
        }
    }
}
