//! With or without hardware virtualization. That `/dev/kvm` is there says little: on a cloud's machine it may start guests
//! that never get anywhere. A kernel that was seen to reach userspace says enough.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use futures::future::BoxFuture;
use kit::fs::FsError;
use serde::{Deserialize, Serialize};

use crate::record;

/// How soon the kernel must be there. Emulated without KVM it takes three seconds.
pub const CANARY_WITHIN: Duration = Duration::from_secs(20);

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Accel {
    #[default]
    Auto,
    Kvm,
    Tcg,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is none of auto, kvm and tcg")]
pub struct AccelError {
    given: String,
}

impl FromStr for Accel {
    type Err = AccelError;

    fn from_str(text: &str) -> Result<Self, AccelError> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(AccelError { given: text.chars().take(64).collect() }),
        }
    }
}

/// What guests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    /// QEMU's own emulation: slow, and everywhere.
    Tcg,
}

/// The choice and what it rests on, for `doctor` and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub accelerator: Accelerator,
    pub because: Because,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    Configured,
    NoDevice,
    /// There is no kernel to try, or nothing to try it with: not remembered.
    NotTried {
        why: String,
    },
    Booted {
        took: Duration,
    },
    DidNotBoot {
        why: String,
    },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        };
        match &self.because {
            Because::Configured => write!(f, "{name}: the configuration says so"),
            Because::NoDevice => write!(f, "{name}: this host has no /dev/kvm"),
            Because::NotTried { why } => write!(f, "{name}: kvm could not be tried: {why}"),
            Because::Booted { took } => {
                write!(f, "{name}: a kernel reached userspace on it in {:.1} s", took.as_secs_f64())
            }
            Because::DidNotBoot { why } => write!(f, "{name}: no kernel boots on this host's kvm: {why}"),
        }
    }
}

/// What a try came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tried {
    Booted { took: Duration },
    DidNotBoot { why: String },
    NotTried { why: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    version: u32,
    boot_id: String,
    /// None when it did not boot.
    took_ms: Option<u64>,
    why: String,
}

const VERSION: u32 = 1;

/// Chooses. `canary` boots a kernel on KVM and is called at most once in each boot of the host, whose outcome lies in the
/// file `memory`. Another kernel of the host, or another firmware, is another boot.
pub async fn choose<'a>(
    asked: Accel,
    has_device: bool,
    boot_id: &str,
    memory: &Path,
    canary: impl FnOnce() -> BoxFuture<'a, Tried>,
) -> Result<Choice, FsError> {
    let of = |accelerator, because| Ok(Choice { accelerator, because });
    match asked {
        Accel::Kvm => return of(Accelerator::Kvm, Because::Configured),
        Accel::Tcg => return of(Accelerator::Tcg, Because::Configured),
        Accel::Auto if !has_device => return of(Accelerator::Tcg, Because::NoDevice),
        Accel::Auto => {}
    }
    if let Some(because) = remembered(boot_id, memory) {
        return of(accelerator(&because), because);
    }
    let remember = |took_ms, why: &str| {
        let outcome =
            Remembered { version: VERSION, boot_id: boot_id.to_owned(), took_ms, why: why.to_owned() };
        record::write(memory, &outcome)
    };
    let because = match canary().await {
        Tried::Booted { took } => {
            remember(Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)), "")?;
            Because::Booted { took }
        }
        Tried::DidNotBoot { why } => {
            remember(None, &why)?;
            Because::DidNotBoot { why }
        }
        Tried::NotTried { why } => Because::NotTried { why },
    };
    of(accelerator(&because), because)
}

/// What cannot be read is not remembered: the kernel is tried again.
fn remembered(boot_id: &str, memory: &Path) -> Option<Because> {
    let found: Remembered = record::read(memory).ok()??;
    if found.version != VERSION || found.boot_id != boot_id {
        return None;
    }
    Some(match found.took_ms {
        Some(took) => Because::Booted { took: Duration::from_millis(took) },
        None => Because::DidNotBoot { why: found.why },
    })
}

fn accelerator(because: &Because) -> Accelerator {
    match because {
        Because::Booted { .. } => Accelerator::Kvm,
        Because::Configured | Because::NoDevice | Because::NotTried { .. } | Because::DidNotBoot { .. } => {
            Accelerator::Tcg
        }
    }
}

#[cfg(test)]
mod tests;
