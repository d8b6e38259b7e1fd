//! Boots the [`canary`] as a machine like any instance's, and listens for its word.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hw::Commands;
use kit::Clock;
use kit::fs::FsError;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;

use super::inventory::CANARY;
use super::xml::{self, Boot, Definition};
use super::{Libvirt, Options, path_text};
use crate::accel::{self, Accel, Accelerator, CANARY_WITHIN, Choice, Tried};
use crate::canary;
use crate::instance::Placement;
use crate::runtime::Trouble;

const MEMORY_BYTES: u64 = 256 << 20;
/// A kernel that says more than this before userspace says nothing that is waited for.
const CONSOLE_BYTES_MAX: usize = 1 << 20;

/// What the choice of an accelerator rests on.
#[derive(Debug, Clone, Copy)]
pub struct HostFacts<'a> {
    /// The kernel's random id of this boot.
    pub boot_id: &'a str,
    /// Whether `/dev/kvm` is there.
    pub has_kvm: bool,
    /// One to try, as [`canary::host_kernel`] finds it.
    pub kernel: Option<&'a Path>,
}

impl Libvirt {
    /// The runtime on what the host is best at, and why that is. The options' accelerator is the one that is chosen.
    pub async fn open(
        options: Options,
        asked: Accel,
        host: HostFacts<'_>,
        commands: Arc<dyn Commands>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Choice), FsError> {
        kit::fs::create_dir(&options.dir, 0o711)?;
        let memory = options.dir.join("accelerator");
        let mut runtime = Self::new(options, commands, clock);
        let (trial, kernel) = (&runtime, host.kernel);
        let choice = accel::choose(asked, host.has_kvm, host.boot_id, &memory, || {
            Box::pin(async move {
                match kernel {
                    Some(kernel) => trial.try_kernel(kernel, Accelerator::Kvm, CANARY_WITHIN).await,
                    None => Tried::NotTried { why: "no kernel of this host's was found to try".into() },
                }
            })
        })
        .await?;
        runtime.options.accelerator = choice.accelerator;
        Ok((runtime, choice))
    }

    /// Whether this kernel reaches userspace on the accelerator, and how soon. Nothing of the machine stays. Called by one
    /// caller at a time.
    pub async fn try_kernel(&self, kernel: &Path, accelerator: Accelerator, within: Duration) -> Tried {
        let not_tried = |err: &(dyn std::error::Error + 'static)| Tried::NotTried { why: kit::chain(err) };
        if let Err(trouble) = self.virsh.ok(&["version"]).await {
            return not_tried(&trouble);
        }
        let definition = match self.prepare_trial(kernel, accelerator) {
            Ok(definition) => definition,
            Err(trouble) => return not_tried(&trouble),
        };
        // Left by a daemon that was killed meanwhile.
        let _ = self.virsh.ok(&["destroy", CANARY]).await;
        let tried = self.boot_trial(&definition, within).await;
        let _ = self.virsh.ok(&["destroy", CANARY]).await;
        let _ = std::fs::remove_dir_all(self.options.dir.join("canary"));
        tried
    }

    /// Libvirt hands the files that a machine boots to QEMU's user, so they are copies of ours.
    fn prepare_trial(&self, kernel: &Path, accelerator: Accelerator) -> Result<String, Trouble> {
        let dir = self.options.dir.join("canary");
        kit::fs::create_dir(&dir, 0o711)?;
        self.let_through(&dir)?;
        let files = super::Files { dir: dir.clone() };
        files.socket()?;
        let (copy, initrd) = (dir.join("kernel"), dir.join("initrd"));
        std::fs::copy(kernel, &copy).map_err(|source| FsError {
            doing: "copy kernel",
            path: kernel.to_owned(),
            source,
        })?;
        kit::fs::write_atomic(&initrd, &canary::initrd(), 0o600)?;
        let text = xml::render(&Definition {
            name: CANARY,
            uuid: uuid::Uuid::from_u128(0x6263_6361_6e61_7279),
            accelerator,
            vcpus: 1,
            memory_bytes: MEMORY_BYTES,
            boot: Boot::Kernel { kernel: &copy, initrd: &initrd, line: canary::KERNEL_LINE },
            nics: &[],
            taps: Vec::new(),
            console: &files.console(),
            placement: &Placement::default(),
            devices: &[],
        });
        kit::fs::write_atomic(&files.xml(), text.as_bytes(), 0o600)?;
        Ok(path_text(&files.xml()).to_owned())
    }

    async fn boot_trial(&self, definition: &str, within: Duration) -> Tried {
        let stuck = |why: String| Tried::DidNotBoot { why };
        let started = self.clock.monotonic();
        // Paused until somebody listens, or its word may be lost.
        if let Err(trouble) = self.virsh.ok(&["create", "--file", definition, "--paused"]).await {
            return stuck(kit::chain(&trouble));
        }
        let path = self.options.dir.join("canary/tty");
        let mut console = match UnixStream::connect(&path).await {
            Ok(console) => console,
            Err(err) => return Tried::NotTried { why: format!("its console cannot be reached: {err}") },
        };
        if let Err(trouble) = self.virsh.ok(&["resume", CANARY]).await {
            return stuck(kit::chain(&trouble));
        }
        let mut heard = Vec::new();
        let has_spoken = {
            let listen = std::pin::pin!(hear_word(&mut console, &mut heard));
            match select(listen, self.clock.sleep(within)).await {
                Either::Left((has_spoken, _)) => Some(has_spoken),
                Either::Right(((), _)) => None,
            }
        };
        let last = last_words(&heard);
        match has_spoken {
            Some(true) => Tried::Booted { took: self.clock.monotonic().saturating_sub(started) },
            Some(false) => stuck(format!("the machine ended; the last it said was {last:?}")),
            None => stuck(format!("nothing within {} s; the last it said was {last:?}", within.as_secs())),
        }
    }
}

/// Whether the word came before the console ended.
async fn hear_word(console: &mut (impl AsyncRead + Unpin), heard: &mut Vec<u8>) -> bool {
    let word = canary::WORD.as_bytes();
    let mut buffer = [0; 4096];
    while heard.len() < CONSOLE_BYTES_MAX {
        match console.read(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
        }
        if heard.windows(word.len()).any(|part| part == word) {
            return true;
        }
    }
    false
}

fn last_words(heard: &[u8]) -> String {
    let text = String::from_utf8_lossy(heard);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}
