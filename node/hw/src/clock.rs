//! Whether the clock follows a time source.

/// What the kernel says of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSync {
    /// A time daemon disciplines it.
    Synchronized,
    Unsynchronized,
    Unknown,
}

impl ClockSync {
    /// Asks this machine's kernel (`adjtimex(2)`), which every time daemon keeps informed.
    #[allow(unsafe_code)]
    pub fn of_host() -> Self {
        // SAFETY: `timex` is plain integers and padding, for which all zeroes is a value.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live, writable `timex`; `modes` is 0, so the kernel only fills it in and needs no
        // privilege.
        match unsafe { libc::adjtimex(&mut timex) } {
            -1 => Self::Unknown,
            libc::TIME_ERROR => Self::Unsynchronized,
            _ if timex.status & libc::STA_UNSYNC != 0 => Self::Unsynchronized,
            _ => Self::Synchronized,
        }
    }
}
