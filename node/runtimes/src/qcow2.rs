//! Headers of QCOW2 disks (the format of QEMU's `docs/interop/qcow2.txt`, versions 2 and 3), read by ourselves: a
//! stranger's image is an input like any other, and a tool that looks at it may open what it names.
//!
//! Only the file itself is opened, never a path in it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::instance::{DISK_BYTES_MAX, ImageFormat};

const MAGIC: u32 = 0x5146_49fb;
/// A header and its extensions lie in the first cluster, which is at most this large.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// What QEMU opens.
const L1_BYTES_MAX: u64 = 32 << 20;
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
const BACKING_NAME_BYTES_MAX: u64 = 1023;
/// Five kinds are known; a list without an end is no header.
const EXTENSIONS_MAX: usize = 64;

mod feature {
    pub const DIRTY: u64 = 1;
    pub const CORRUPT: u64 = 1 << 1;
    pub const DATA_FILE: u64 = 1 << 2;
    pub const COMPRESSION_TYPE: u64 = 1 << 3;
    pub const EXTENDED_L2: u64 = 1 << 4;
    pub const KNOWN: u64 = DIRTY | CORRUPT | DATA_FILE | COMPRESSION_TYPE | EXTENDED_L2;
}

mod extension {
    pub const END: u32 = 0;
    pub const BACKING_FORMAT: u32 = 0xe279_2aca;
    pub const DATA_FILE: u32 = 0x4441_5441;
    pub const ENCRYPTION: u32 = 0x0537_be77;
}

#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    #[error("read disk {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("use disk {path:?}: {problem}")]
    Refused { path: PathBuf, problem: Problem },
}

/// Why a disk is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is no regular file")]
    NotAFile,
    #[error("it is no qcow2 of version 2 or 3")]
    NotQcow2,
    #[error("it ends early: {what}")]
    Truncated { what: &'static str },
    #[error("its header is malformed: {what}")]
    Malformed { what: &'static str },
    #[error("it says that it is corrupt")]
    Corrupt,
    #[error("it keeps its data in another file")]
    DataFile,
    #[error("it is encrypted")]
    Encrypted,
    #[error("it needs features that are not known here: {bits:#x}")]
    UnknownFeatures { bits: u64 },
    #[error("it is based on another file, and an image has to be whole")]
    Backing,
    #[error("it is not based on the instance's image")]
    OtherBacking,
}

/// What a header says. Everything it points to lies in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// What the guest sees.
    pub virtual_bytes: u64,
    /// The name of the file it is based on, as it stands there.
    pub backing: Option<Vec<u8>>,
    pub backing_format: Option<Vec<u8>>,
    l1_offset: u64,
    l1_entries: u64,
    cluster_bytes: u64,
}

impl Header {
    /// An image: whole in one file.
    pub fn is_whole(&self) -> Result<(), Problem> {
        match self.backing {
            None if self.backing_format.is_none() => Ok(()),
            _ => Err(Problem::Backing),
        }
    }

    /// An instance's disk, which whoever ran it may have rewritten: based on exactly this image, told to be of exactly this
    /// format.
    pub fn is_based_on(&self, image: &Path, format: ImageFormat) -> Result<(), Problem> {
        use std::os::unix::ffi::OsStrExt;
        let name = self.backing.as_deref() == Some(image.as_os_str().as_bytes());
        let same = self.backing_format.as_deref() == Some(format.qemu().as_bytes());
        if name && same { Ok(()) } else { Err(Problem::OtherBacking) }
    }
}

/// Reads and checks the header of the file at `path`, which must be a file and no link to one.
pub fn read(path: &Path) -> Result<Header, Qcow2Error> {
    let failed = |source: io::Error| Qcow2Error::Read { path: path.to_owned(), source };
    let refused = |problem| Qcow2Error::Refused { path: path.to_owned(), problem };
    // Opening a pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|err| failed(err.into()))?);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refused(Problem::NotAFile));
    }
    let mut first = Vec::new();
    (&file).take(CLUSTER_BYTES_MAX).read_to_end(&mut first).map_err(failed)?;
    let header = parse(&first, metadata.len()).map_err(refused)?;
    let bytes = usize::try_from(header.l1_entries * 8).expect("it was held against its bound");
    let mut table = vec![0; bytes];
    file.read_exact_at(&mut table, header.l1_offset).map_err(failed)?;
    check_l1(&header, &table, metadata.len()).map_err(refused)?;
    Ok(header)
}

/// Bytes, read big-endian by offset; what lies past the end is an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&self, offset: u64, count: u64) -> Result<&'a [u8], Problem> {
        let truncated = Problem::Truncated { what: "the header" };
        let Ok(start) = usize::try_from(offset) else { return Err(truncated) };
        let Ok(count) = usize::try_from(count) else { return Err(truncated) };
        start.checked_add(count).and_then(|end| self.0.get(start..end)).ok_or(truncated)
    }

    fn u32(&self, offset: u64) -> Result<u32, Problem> {
        let bytes = self.bytes(offset, 4)?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    fn u64(&self, offset: u64) -> Result<u64, Problem> {
        let bytes = self.bytes(offset, 8)?;
        Ok(u64::from_be_bytes(bytes.try_into().expect("eight bytes were taken")))
    }
}

/// `first` are the first bytes of a file that is `file_bytes` long: its first cluster, or all of it.
pub fn parse(first: &[u8], file_bytes: u64) -> Result<Header, Problem> {
    let fields = Fields(first);
    if fields.u32(0).map_err(|_| Problem::NotQcow2)? != MAGIC {
        return Err(Problem::NotQcow2);
    }
    let version = fields.u32(4)?;
    let header_bytes = match version {
        2 => 72,
        3 => u64::from(fields.u32(100)?),
        _ => return Err(Problem::NotQcow2),
    };
    let cluster_bits = fields.u32(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(Problem::Malformed { what: "the size of its clusters" });
    }
    let cluster_bytes = 1u64 << cluster_bits;
    if version == 3 && (header_bytes < 104 || header_bytes % 8 != 0 || header_bytes > cluster_bytes) {
        return Err(Problem::Malformed { what: "the header's length" });
    }
    let extended_l2 = features(&fields, version)?;
    if fields.u32(32)? != 0 {
        return Err(Problem::Encrypted);
    }
    let virtual_bytes = fields.u64(24)?;
    if virtual_bytes == 0 || virtual_bytes > DISK_BYTES_MAX {
        return Err(Problem::Malformed { what: "the size of the disk" });
    }
    let (l1_offset, l1_entries) = tables(&fields, file_bytes, cluster_bytes, virtual_bytes, extended_l2)?;
    let backing = backing(&fields, cluster_bytes, header_bytes)?;
    let backing_format = extensions(&fields, header_bytes, cluster_bytes)?;
    Ok(Header { virtual_bytes, backing, backing_format, l1_offset, l1_entries, cluster_bytes })
}

/// Whether entries of L2 tables are of 16 bytes.
fn features(fields: &Fields<'_>, version: u32) -> Result<bool, Problem> {
    if version == 2 {
        return Ok(false);
    }
    let bits = fields.u64(72)?;
    if bits & feature::DATA_FILE != 0 {
        return Err(Problem::DataFile);
    }
    if bits & !feature::KNOWN != 0 {
        return Err(Problem::UnknownFeatures { bits: bits & !feature::KNOWN });
    }
    if bits & feature::CORRUPT != 0 {
        return Err(Problem::Corrupt);
    }
    if fields.u32(96)? > 6 {
        return Err(Problem::Malformed { what: "the width of its reference counts" });
    }
    Ok(bits & feature::EXTENDED_L2 != 0)
}

/// Where the L1 table is and how many entries it has.
fn tables(
    fields: &Fields<'_>,
    file_bytes: u64,
    cluster_bytes: u64,
    virtual_bytes: u64,
    extended_l2: bool,
) -> Result<(u64, u64), Problem> {
    let within = |what, offset: u64, bytes: u64| -> Result<(), Problem> {
        if offset == 0 || !offset.is_multiple_of(cluster_bytes) {
            return Err(Problem::Malformed { what });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= file_bytes => Ok(()),
            Some(_) | None => Err(Problem::Truncated { what }),
        }
    };
    let l1_entries = u64::from(fields.u32(36)?);
    let l1_offset = fields.u64(40)?;
    let entry_bytes = if extended_l2 { 16 } else { 8 };
    let entry_covers = cluster_bytes / entry_bytes * cluster_bytes;
    if l1_entries < virtual_bytes.div_ceil(entry_covers) || l1_entries * 8 > L1_BYTES_MAX {
        return Err(Problem::Malformed { what: "the L1 table's length" });
    }
    within("the L1 table", l1_offset, l1_entries * 8)?;
    let refcount_bytes = u64::from(fields.u32(56)?) * cluster_bytes;
    if refcount_bytes == 0 || refcount_bytes > REFCOUNT_TABLE_BYTES_MAX {
        return Err(Problem::Malformed { what: "the reference counts' table's length" });
    }
    within("the table of reference counts", fields.u64(48)?, refcount_bytes)?;
    Ok((l1_offset, l1_entries))
}

fn backing(fields: &Fields<'_>, cluster_bytes: u64, header_bytes: u64) -> Result<Option<Vec<u8>>, Problem> {
    let offset = fields.u64(8)?;
    let bytes = u64::from(fields.u32(16)?);
    if offset == 0 {
        return Ok(None);
    }
    let end = offset.checked_add(bytes);
    let inside = offset >= header_bytes && end.is_some_and(|end| end <= cluster_bytes);
    if bytes == 0 || bytes > BACKING_NAME_BYTES_MAX || !inside {
        return Err(Problem::Malformed { what: "the name of the file it is based on" });
    }
    Ok(Some(fields.bytes(offset, bytes)?.to_vec()))
}

/// Walks the extensions up to their end and returns the format of the file that the disk is based on.
fn extensions(
    fields: &Fields<'_>,
    header_bytes: u64,
    cluster_bytes: u64,
) -> Result<Option<Vec<u8>>, Problem> {
    let mut format = None;
    let mut at = header_bytes;
    for _ in 0..EXTENSIONS_MAX {
        // They end with the cluster when nothing else ends them.
        if at + 8 > cluster_bytes {
            return Ok(format);
        }
        let (kind, bytes) = (fields.u32(at)?, u64::from(fields.u32(at + 4)?));
        at += 8;
        if kind == extension::END {
            return Ok(format);
        }
        if at + bytes > cluster_bytes {
            return Err(Problem::Malformed { what: "an extension's length" });
        }
        let data = fields.bytes(at, bytes)?;
        match kind {
            extension::DATA_FILE => return Err(Problem::DataFile),
            extension::ENCRYPTION => return Err(Problem::Encrypted),
            extension::BACKING_FORMAT if format.is_none() => format = Some(data.to_vec()),
            extension::BACKING_FORMAT => {
                return Err(Problem::Malformed { what: "two formats of the file it is based on" });
            }
            // What is not known is left alone, as the format asks.
            _ => {}
        }
        at += bytes.next_multiple_of(8);
    }
    Err(Problem::Malformed { what: "more extensions than any tool writes" })
}

/// Every L2 table lies in the file.
fn check_l1(header: &Header, table: &[u8], file_bytes: u64) -> Result<(), Problem> {
    const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    for entry in table.chunks_exact(8) {
        let offset = u64::from_be_bytes(entry.try_into().expect("chunks are of eight bytes")) & OFFSET;
        if offset == 0 {
            continue;
        }
        if !offset.is_multiple_of(header.cluster_bytes) {
            return Err(Problem::Malformed { what: "an L2 table's place" });
        }
        if offset + header.cluster_bytes > file_bytes {
            return Err(Problem::Truncated { what: "an L2 table" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
