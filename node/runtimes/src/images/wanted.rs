//! How an image that was asked for stands, as it is told.

use std::fmt;
use std::sync::Arc;

use super::ImageError;
use crate::instance::Image;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[derive(Debug, Clone)]
pub enum Wanted {
    Here(Image),
    /// It comes, and whoever waits is told when that has ended.
    Coming {
        got_bytes: u64,
        total_bytes: u64,
    },
    Failed(Arc<ImageError>),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => write!(f, "the image is here"),
            Self::Coming { total_bytes: 0, .. } => write!(f, "the image is asked for"),
            // Never more than there is: what has come is rounded down, and what there is up.
            Self::Coming { got_bytes, total_bytes } if *total_bytes >= GIB => {
                let tenths = |bytes: u64| bytes * 10;
                let (got, total) = (tenths(*got_bytes) / GIB, tenths(*total_bytes).div_ceil(GIB));
                let (got, total) = ((got / 10, got % 10), (total / 10, total % 10));
                write!(f, "{}.{} of {}.{} GiB of the image have come", got.0, got.1, total.0, total.1)
            }
            Self::Coming { got_bytes, total_bytes } => {
                write!(f, "{} of {} MiB of the image have come", got_bytes / MIB, total_bytes.div_ceil(MIB))
            }
            Self::Failed(err) => write!(f, "{}", kit::chain(&**err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_is_told_in_units_that_a_person_reads() {
        let told = |got_bytes, total_bytes| Wanted::Coming { got_bytes, total_bytes }.to_string();
        assert_eq!(told(0, 0), "the image is asked for");
        assert_eq!(told(41 * MIB + 7, 100 * MIB - 1), "41 of 100 MiB of the image have come");
        assert_eq!(told(0, 1), "0 of 1 MiB of the image have come");
        assert_eq!(told(1288490188, 3 * GIB + 400 * MIB), "1.1 of 3.4 GiB of the image have come");
        assert_eq!(told(GIB - 1, GIB), "0.9 of 1.0 GiB of the image have come");
        assert_eq!(told(256 * GIB, 256 * GIB), "256.0 of 256.0 GiB of the image have come");
    }
}
