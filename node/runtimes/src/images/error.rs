//! Why an image is not here.

use kit::fs::FsError;

use super::{FETCH_WITHIN, FetchError, IMAGE_BYTES_MAX, STALL_WITHIN};
use crate::admission::EXHAUSTED;
use crate::disk::{self, DiskError};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("fetch the image: nothing came for {} s", STALL_WITHIN.as_secs())]
    Stalled,
    #[error("fetch the image: it did not come within {} hours", FETCH_WITHIN.as_secs() / 3600)]
    TooSlow,
    #[error("fetch the image: it ended after {got} of {total} bytes")]
    Short { got: u64, total: u64 },
    #[error("fetch the image: it has {total} bytes; at most {IMAGE_BYTES_MAX} are possible")]
    TooLarge { total: u64 },
    #[error("fetch the image: {needed} MiB more are needed, and the disk has {left} MiB for it; free some")]
    NoRoom { needed: u64, left: u64 },
    #[error("fetch the image: a fault of the daemon broke it off, which its log tells of")]
    Panicked,
    #[error("the image's SHA-256 is {found}; the file at its address is another one")]
    OtherDigest { found: String },
    #[error(transparent)]
    Refused(#[from] DiskError),
    #[error(transparent)]
    Files(#[from] FsError),
}

impl ImageError {
    /// Trying again changes nothing while the same is asked for.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Fetch(err) => err.lasting,
            Self::TooLarge { .. } | Self::OtherDigest { .. } => true,
            Self::Refused(err) => err.is_refusal(),
            Self::Stalled
            | Self::TooSlow
            | Self::Short { .. }
            | Self::NoRoom { .. }
            | Self::Panicked
            | Self::Files(_) => false,
        }
    }

    /// The line was cut: what came is good, and the fetch may go on behind it.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Fetch(err) => !err.lasting,
            Self::Stalled | Self::Short { .. } => true,
            Self::TooSlow
            | Self::TooLarge { .. }
            | Self::NoRoom { .. }
            | Self::Panicked
            | Self::OtherDigest { .. }
            | Self::Refused(_)
            | Self::Files(_) => false,
        }
    }

    /// One stable word, for statuses.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::OtherDigest { .. } => "ImageDigestMismatch",
            Self::Refused(err) if err.is_refusal() => "ImageRefused",
            Self::TooLarge { .. } => "ImageRefused",
            Self::NoRoom { .. } => EXHAUSTED,
            Self::Files(err) if disk::is_full(err) => EXHAUSTED,
            Self::Files(_) | Self::Refused(_) => "DiskTrouble",
            Self::Fetch(_) | Self::Stalled | Self::TooSlow | Self::Short { .. } | Self::Panicked => {
                "ImageUnavailable"
            }
        }
    }
}
