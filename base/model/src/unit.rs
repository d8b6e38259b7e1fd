//! Units. GiB in the API, bytes on the wire.

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// `GiB` to bytes; none when it does not fit.
pub const fn gib_to_bytes(gib: u64) -> Option<u64> {
    gib.checked_mul(GIB)
}

/// Bytes to whole GiB, rounded down: what can be booked of them.
pub const fn bytes_to_gib(bytes: u64) -> u64 {
    bytes / GIB
}

/// MiB to whole GiB, rounded up: what they count for.
pub const fn mib_to_gib_up(mib: u64) -> u64 {
    mib.div_ceil(GIB / MIB)
}
