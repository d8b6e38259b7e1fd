//! Where an instance's files are, and what its record says.

use std::path::{Path, PathBuf};

use kit::fs::FsError;

use crate::instance::{Image, ImageFormat, Instance};
use crate::record::InstanceRecord;
use crate::runtime::Trouble;

/// What `sun_path` takes, less its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// One instance's files.
pub struct Files {
    pub dir: PathBuf,
}

impl Files {
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.qcow2")
    }

    pub fn seed(&self) -> PathBuf {
        self.dir.join("seed.iso")
    }

    pub fn record(&self) -> PathBuf {
        self.dir.join("record")
    }

    pub fn xml(&self) -> PathBuf {
        self.dir.join("domain.xml")
    }

    /// What it has of the host's devices.
    pub fn gpus(&self) -> PathBuf {
        self.dir.join("gpus")
    }

    pub fn console(&self) -> PathBuf {
        self.dir.join("tty")
    }

    /// Whether a socket can be there, and whether the path is text, as libvirt has it.
    pub fn socket(&self) -> Result<(), FsError> {
        let path = self.console();
        let why = match path.to_str() {
            None => "it is no text".to_owned(),
            Some(text) if text.len() > SOCKET_PATH_BYTES_MAX => {
                format!(
                    "a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter data folder"
                )
            }
            Some(_) => return Ok(()),
        };
        Err(FsError { doing: "use", path, source: std::io::Error::other(why) })
    }
}

pub fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

pub fn record_of(instance: &Instance) -> InstanceRecord {
    let format = match instance.image.format {
        ImageFormat::Qcow2 => "qcow2",
        ImageFormat::Raw => "raw",
        ImageFormat::Iso => "iso",
    };
    InstanceRecord {
        version: InstanceRecord::VERSION,
        image_path: path_text(&instance.image.path).to_owned(),
        image_format: format.to_owned(),
        vcpus: instance.vcpus,
        memory_bytes: instance.memory_bytes,
        disk_backed_bytes: instance.disk_backed_bytes,
        mems: instance.placement.memory.mems.clone(),
        hugepage_bytes: instance.placement.memory.hugepage_bytes,
        gpus: instance.gpus.clone(),
    }
}

pub fn image_of(record: &InstanceRecord) -> Result<Image, Trouble> {
    let format = match record.image_format.as_str() {
        "qcow2" => ImageFormat::Qcow2,
        "raw" => ImageFormat::Raw,
        "iso" => ImageFormat::Iso,
        _ => return Err(Trouble::Unreadable { what: "the format of an instance's image in its record" }),
    };
    Ok(Image { path: PathBuf::from(&record.image_path), format })
}
