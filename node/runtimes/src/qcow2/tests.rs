use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const CLUSTER: usize = 65_536;

/// A small disk of version 3, made by hand: header, L1 table, table of reference counts, one L2 table.
fn disk() -> Vec<u8> {
    let mut bytes = vec![0; 4 * CLUSTER];
    put32(&mut bytes, 0, MAGIC);
    put32(&mut bytes, 4, 3);
    put32(&mut bytes, 20, 16);
    put64(&mut bytes, 24, 64 << 20);
    put32(&mut bytes, 36, 1);
    put64(&mut bytes, 40, CLUSTER as u64);
    put64(&mut bytes, 48, 2 * CLUSTER as u64);
    put32(&mut bytes, 56, 1);
    put32(&mut bytes, 96, 4);
    put32(&mut bytes, 100, 104);
    put64(&mut bytes, CLUSTER, (3 * CLUSTER as u64) | 1 << 63);
    bytes
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Result<Header, Problem> {
    let mut bytes = disk();
    change(&mut bytes);
    whole(&bytes)
}

/// As [`read`] does it.
fn whole(bytes: &[u8]) -> Result<Header, Problem> {
    let length = bytes.len() as u64;
    let header = parse(&bytes[..bytes.len().min(CLUSTER_BYTES_MAX as usize)], length)?;
    let start = header.l1_offset as usize;
    check_l1(&header, &bytes[start..start + header.l1_entries as usize * 8], length)?;
    Ok(header)
}

fn extension(bytes: &mut [u8], at: usize, kind: u32, data: &[u8]) -> usize {
    put32(bytes, at, kind);
    put32(bytes, at + 4, data.len() as u32);
    bytes[at + 8..at + 8 + data.len()].copy_from_slice(data);
    at + 8 + data.len().next_multiple_of(8)
}

#[test]
fn a_plain_disk_is_an_image() {
    let header = with(|_| {}).expect("it is plain");
    assert_eq!(header.virtual_bytes, 64 << 20);
    assert_eq!(header.is_whole(), Ok(()));
}

#[test]
fn what_names_another_file_is_no_image() {
    let named = with(|bytes| {
        put64(bytes, 8, 200);
        put32(bytes, 16, 11);
        bytes[200..211].copy_from_slice(b"/etc/shadow");
    });
    let header = named.expect("the header is well-formed");
    assert_eq!(header.backing.as_deref(), Some(&b"/etc/shadow"[..]));
    assert_eq!(header.is_whole(), Err(Problem::Backing));
    assert_eq!(header.is_based_on(Path::new("/etc/passwd"), ImageFormat::Raw), Err(Problem::OtherBacking));

    assert_eq!(with(|bytes| put64(bytes, 72, feature::DATA_FILE)), Err(Problem::DataFile));
    let by_extension = with(|bytes| {
        extension(bytes, 104, extension::DATA_FILE, b"/etc/shadow");
    });
    assert_eq!(by_extension, Err(Problem::DataFile));
    // Also behind extensions that nobody knows.
    let hidden = with(|bytes| {
        let next = extension(bytes, 104, 0x1234_5678, b"anything");
        extension(bytes, next, extension::DATA_FILE, b"x");
    });
    assert_eq!(hidden, Err(Problem::DataFile));
    let format_alone = with(|bytes| {
        extension(bytes, 104, extension::BACKING_FORMAT, b"raw");
    });
    assert_eq!(format_alone.expect("it is well-formed").is_whole(), Err(Problem::Backing));
}

#[test]
fn what_is_not_understood_is_not_used() {
    assert_eq!(with(|bytes| put64(bytes, 72, 1 << 5)), Err(Problem::UnknownFeatures { bits: 32 }));
    assert_eq!(with(|bytes| put64(bytes, 72, 1 << 63)), Err(Problem::UnknownFeatures { bits: 1 << 63 }));
    assert_eq!(with(|bytes| put64(bytes, 72, feature::CORRUPT)), Err(Problem::Corrupt));
    assert_eq!(with(|bytes| put32(bytes, 32, 1)), Err(Problem::Encrypted));
    assert_eq!(with(|bytes| put32(bytes, 32, 2)), Err(Problem::Encrypted));
    let by_extension = with(|bytes| {
        extension(bytes, 104, extension::ENCRYPTION, &[0; 16]);
    });
    assert_eq!(by_extension, Err(Problem::Encrypted));
    assert_eq!(with(|bytes| put32(bytes, 4, 1)), Err(Problem::NotQcow2));
    assert_eq!(with(|bytes| put32(bytes, 4, 4)), Err(Problem::NotQcow2));
    assert_eq!(whole(b"#!/bin/sh"), Err(Problem::NotQcow2));
    assert_eq!(whole(b""), Err(Problem::NotQcow2));
}

#[test]
fn a_disk_that_ends_early_is_found_out() {
    let bytes = disk();
    for length in [8, 71, 103, CLUSTER - 1, CLUSTER + 7, 2 * CLUSTER, 3 * CLUSTER - 1, 4 * CLUSTER - 1] {
        let cut = whole(&bytes[..length]);
        assert!(matches!(cut, Err(Problem::Truncated { .. })), "{length}: {cut:?}");
    }
}

#[test]
fn a_header_out_of_its_bounds_is_malformed() {
    let changes: [(usize, u32); 8] =
        [(20, 8), (20, 22), (36, 0), (36, u32::MAX), (56, 0), (56, u32::MAX), (96, 7), (100, 96)];
    for (at, value) in changes {
        let read = with(|bytes| put32(bytes, at, value));
        assert!(matches!(read, Err(Problem::Malformed { .. })), "{at}: {read:?}");
    }
    for (at, value) in [(24, 0), (24, u64::MAX), (40, 0), (40, 12), (48, 0), (40, u64::MAX - 7)] {
        let read = with(|bytes| put64(bytes, at, value));
        assert!(read.is_err(), "{at}: {read:?}");
    }
    let backing = with(|bytes| {
        put64(bytes, 8, u64::MAX - 3);
        put32(bytes, 16, 8);
    });
    assert!(matches!(backing, Err(Problem::Malformed { .. })), "{backing:?}");
    let endless = with(|bytes| {
        let mut at = 104;
        for _ in 0..EXTENSIONS_MAX {
            at = extension(bytes, at, 7, b"");
        }
    });
    assert!(matches!(endless, Err(Problem::Malformed { .. })), "{endless:?}");
    let long = with(|bytes| {
        put32(bytes, 104, 7);
        put32(bytes, 108, u32::MAX);
    });
    assert!(matches!(long, Err(Problem::Malformed { .. })), "{long:?}");
}

fn qemu_img(dir: &TempDir, args: &[&str]) {
    let done =
        Command::new("qemu-img").current_dir(dir.path()).args(args).output().expect("qemu-img is installed");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn what_qemu_makes_is_read_as_it_was_made() {
    let dir = TempDir::new().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let options: [&[&str]; 5] = [
        &[],
        &["-o", "compat=0.10"],
        &["-o", "cluster_size=512"],
        &["-o", "cluster_size=2M"],
        &["-o", "extended_l2=on,compression_type=zstd"],
    ];
    for option in options {
        qemu_img(&dir, &[&["create", "-q", "-f", "qcow2"], option, &["plain.qcow2", "300M"]].concat());
        let header =
            read(&at("plain.qcow2")).unwrap_or_else(|err| panic!("{option:?}: {}", kit::chain(&err)));
        assert_eq!(header.virtual_bytes, 300 << 20, "{option:?}");
        assert_eq!(header.is_whole(), Ok(()), "{option:?}");
    }
    let base = at("plain.qcow2");
    let base_text = base.to_str().expect("a path of letters");
    qemu_img(
        &dir,
        &["create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", base_text, "over.qcow2", "1G"],
    );
    let header = read(&at("over.qcow2")).expect("it is well-formed");
    assert_eq!(header.virtual_bytes, 1 << 30);
    assert_eq!(header.is_based_on(&base, ImageFormat::Qcow2), Ok(()));
    assert_eq!(header.is_based_on(&base, ImageFormat::Raw), Err(Problem::OtherBacking));
    assert_eq!(header.is_whole(), Err(Problem::Backing));

    let data = "data_file=outside.raw,data_file_raw=on";
    qemu_img(&dir, &["create", "-q", "-f", "qcow2", "-o", data, "data.qcow2", "10M"]);
    assert!(matches!(read(&at("data.qcow2")), Err(Qcow2Error::Refused { problem: Problem::DataFile, .. })));
    std::fs::write(at("secret"), "secret").expect("a file");
    qemu_img(
        &dir,
        &[
            "create",
            "-q",
            "-f",
            "qcow2",
            "--object",
            "secret,id=s,file=secret",
            "-o",
            "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
            "luks.qcow2",
            "10M",
        ],
    );
    assert!(matches!(read(&at("luks.qcow2")), Err(Qcow2Error::Refused { problem: Problem::Encrypted, .. })));
}

#[test]
fn only_a_file_itself_is_opened() {
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("disk");
    std::fs::write(&file, disk()).expect("a file");
    assert!(read(&file).is_ok());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    assert!(matches!(read(&link), Err(Qcow2Error::Read { .. })));
    assert!(matches!(read(dir.path()), Err(Qcow2Error::Refused { problem: Problem::NotAFile, .. })));
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    assert!(matches!(read(&pipe), Err(Qcow2Error::Refused { problem: Problem::NotAFile, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), length in any::<u64>()) {
        let _ = parse(&bytes, length);
    }

    /// Close to a header, where the interesting mistakes are.
    #[test]
    fn a_damaged_header_is_read_within_the_file_or_refused(
        changes in prop::collection::vec((0usize..256, any::<u8>()), 1..12),
        length in 0usize..=4 * CLUSTER,
    ) {
        let mut bytes = disk();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(length);
        if let Ok(header) = parse(&bytes, bytes.len() as u64) {
            prop_assert!(header.l1_offset + header.l1_entries * 8 <= bytes.len() as u64);
            prop_assert!(header.virtual_bytes > 0 && header.virtual_bytes <= DISK_BYTES_MAX);
            prop_assert!(header.backing.is_none_or(|name| !name.is_empty() && name.len() <= 1023));
        }
    }
}
