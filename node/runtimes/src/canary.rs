//! A kernel and nothing else: its first process says one line on the serial console. What is tried is whether it comes to
//! that. The kernel is the host's own, and the process is made here, so that nothing needs to be installed.

use std::path::{Path, PathBuf};

/// What the process says.
pub const WORD: &str = "bc-canary: userspace";
/// Without a word of its own until userspace; a panic ends the machine.
pub const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1";

/// The kernel to try: the one that runs, else the one that the system starts next.
pub fn host_kernel(boot: &Path, release: &str) -> Option<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+~-".contains(&byte);
    let running = Some(format!("vmlinuz-{release}")).filter(|name| name.bytes().all(plain));
    let names = running.into_iter().chain(["vmlinuz".to_owned()]);
    names.map(|name| boot.join(name)).find(|path| path.is_file())
}

/// The initial RAM disk: a console to speak on, and the process.
pub fn initrd() -> Vec<u8> {
    let mut archive = Vec::new();
    entry(&mut archive, "dev", 0o040_755, (0, 0), &[]);
    entry(&mut archive, "dev/console", 0o020_600, (5, 1), &[]);
    entry(&mut archive, "init", 0o100_755, (0, 0), &program());
    entry(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

/// One entry of an archive in the format `newc` of cpio(5).
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
    let align = |archive: &mut Vec<u8>| archive.resize(archive.len().next_multiple_of(4), 0);
    let number = |bytes: usize| u32::try_from(bytes).expect("the archive is tiny");
    let inode = number(archive.len()) + 1;
    archive.extend(b"070701");
    let (size, name_bytes) = (number(content.len()), number(name.len()) + 1);
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_bytes, 0];
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(name.bytes());
    archive.push(0);
    align(archive);
    archive.extend(content);
    align(archive);
}

/// An ELF program for x86-64 without libraries: write the word, let the console send it, power off.
fn program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let word = format!("{WORD}\n");
    let length = u32::try_from(word.len()).expect("it is one line").to_le_bytes();
    // Places are counted from the code's first byte.
    const CODE: u32 = 64;
    let to = |place: u32, after: u32| (place - after).to_le_bytes();
    let second = CODE + u32::from_le_bytes(length);
    #[rustfmt::skip]
    let code = [
        &[0xb8, 1, 0, 0, 0][..],               // mov eax, 1 (write)
        &[0xbf, 1, 0, 0, 0],                   // mov edi, 1
        &[0x48, 0x8d, 0x35], &to(CODE, 17),    // lea rsi, [the word]
        &[0xba], &length,                      // mov edx, its length
        &[0x0f, 0x05],                         // syscall
        &[0xb8, 35, 0, 0, 0],                  // mov eax, 35 (nanosleep)
        &[0x48, 0x8d, 0x3d], &to(second, 36),  // lea rdi, [one second]
        &[0x31, 0xf6],                         // xor esi, esi
        &[0x0f, 0x05],                         // syscall
        &[0xb8, 169, 0, 0, 0],                 // mov eax, 169 (reboot)
        &[0xbf, 0xad, 0xde, 0xe1, 0xfe],       // mov edi, its first magic number
        &[0xbe, 0x69, 0x19, 0x12, 0x28],       // mov esi, its second one
        &[0xba, 0xdc, 0xfe, 0x21, 0x43],       // mov edx, power off
        &[0x0f, 0x05],                         // syscall
        &[0xeb, 0xfe],                         // stay here
    ]
    .concat();
    assert_eq!(code.len(), CODE as usize, "the places in the code are counted right");
    let body = [&code, word.as_bytes(), &1u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
    let size = HEADERS + body.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // An executable, for x86-64, of version 1.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for place in [BASE + HEADERS, 64, 0] {
        elf.extend(place.to_le_bytes());
    }
    // No flags; a header of 64 bytes, one segment's of 56, and no sections.
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // One segment to load, readable and executable: the whole file.
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for number in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(number.to_le_bytes());
    }
    elf.extend(body);
    elf
}

#[cfg(test)]
mod tests;
