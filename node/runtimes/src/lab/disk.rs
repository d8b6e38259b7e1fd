//! A small disk of a test's own, in mounts that nobody else sees.

#![allow(unsafe_code)]

use std::path::Path;
use std::process::Command;

const TRIES_MAX: u32 = 1000;

/// Runs it on a thread with a file system of so many MiB, where the programs that it starts see it too. As root.
pub fn on_a_small_disk(mib: u32, test: impl AsyncFnOnce(&Path) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: mounts, and a working folder that this thread shares with no other from here on, are all that goes by it;
        // no memory and no descriptor does.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
            .expect("mounts of our own, as root");
        run("mount", &["--make-rprivate", "/"]);
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path().to_str().expect("its path is text").to_owned();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m,mode=755"), "lab", &at]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test(dir.path()));
        run("umount", &["--lazy", &at]);
    });
    if let Err(panicked) = thread.join() {
        std::panic::resume_unwind(panicked);
    }
}

/// Leaves so many bytes of it at most.
pub fn fill(dir: &Path, left: u64) {
    let file = std::fs::File::create(dir.join("fill")).expect("a file");
    // What others write at that moment is of what was free when it was asked.
    for _ in 0..TRIES_MAX {
        let free = crate::disk::space(dir).expect("it is there").free_bytes;
        let bytes = free.saturating_sub(left);
        if bytes == 0 {
            return;
        }
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::NOSPC) => std::thread::yield_now(),
            done => return done.expect("a file that has its room"),
        }
    }
    panic!("others take the disk faster than it can be filled");
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().expect("it runs");
    assert!(status.success(), "{program} {args:?}");
}
