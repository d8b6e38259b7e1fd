//! GPUs of the host that instances have. An instance has them from its first start on, and until it is destroyed or does not
//! start.

use std::path::{Path, PathBuf};

use kit::fs::FsError;
use model::InstanceId;

use super::Libvirt;
use super::files::Files;
use super::inventory::folders;
use crate::instance::Instance;
use crate::runtime::Trouble;
use crate::vfio::{self, Gpu, PciAddress, VfioError};

/// Where it is written down what an instance has of the host's devices.
pub fn gpu_record(instances: &Path, id: InstanceId) -> PathBuf {
    Files { dir: instances.join(id.to_string()) }.gpus()
}

/// What the host's inventory said of each GPU that an instance of this folder has.
///
/// # Errors
/// When one of the records cannot be read: it may be about any.
pub fn handed(instances: &Path) -> Result<Vec<String>, FsError> {
    let mut handed = Vec::new();
    for id in folders(instances)? {
        handed.extend(vfio::facts(&gpu_record(instances, id))?);
    }
    Ok(handed)
}

impl Libvirt {
    /// All that is to be the guest's with its GPUs. One that is refused is refused before anything of it is made.
    pub(super) fn devices_of(&self, instance: &Instance) -> Result<Vec<PciAddress>, Trouble> {
        match &self.passthrough {
            _ if instance.gpus.is_empty() => Ok(Vec::new()),
            Some(passthrough) => Ok(passthrough.addresses(&instance.gpus)?),
            None => Err(VfioError::NoDriver.into()),
        }
    }

    pub(super) async fn take_gpus(&self, id: InstanceId, gpus: &[Gpu]) -> Result<(), Trouble> {
        let Some(passthrough) = self.passthrough.as_ref().filter(|_| !gpus.is_empty()) else { return Ok(()) };
        let record = self.files(id).gpus();
        match passthrough.take(&record, gpus).await {
            Ok(()) => Ok(()),
            // What does not move now does not move back either. The next try goes on.
            Err(stuck @ VfioError::Stuck) => Err(stuck.into()),
            Err(err) => {
                // Half of what it asks for is nothing to it, and the host can use it.
                passthrough.give_back(&record).await?;
                Err(err.into())
            }
        }
    }

    pub(super) async fn give_back_gpus(&self, id: InstanceId) -> Result<(), Trouble> {
        match &self.passthrough {
            Some(passthrough) => Ok(passthrough.give_back(&self.files(id).gpus()).await?),
            None => Ok(()),
        }
    }
}
