use std::path::PathBuf;

use hw::HostCommands;
use rustix::fs::inotify;
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

struct Bench {
    dir: TempDir,
    commands: HostCommands,
}

impl Bench {
    fn new() -> Self {
        Self { dir: TempDir::new().expect("a folder"), commands: HostCommands::new() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn raw(&self, bytes: u64) -> Image {
        let path = self.at("base.raw");
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        Image { path, format: ImageFormat::Raw }
    }

    async fn qcow2(&self, options: &[&str]) -> Image {
        let path = self.at("base.qcow2");
        let args = [&["create", "-q", "-f", "qcow2"], options, &[text(&path), "8M"]].concat();
        let done = self.commands.run(QEMU_IMG, &args).await.expect("qemu-img is installed");
        assert!(done.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Image { path, format: ImageFormat::Qcow2 }
    }

    async fn ensure(&self, image: &Image, mib: u64) -> Result<Made, DiskError> {
        ensure(&self.commands, &self.at("disk.qcow2"), image, mib * MIB, false).await
    }
}

#[tokio::test]
async fn a_disk_is_made_once_grows_and_never_shrinks() {
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        let bench = Bench::new();
        let image = match format {
            ImageFormat::Raw => bench.raw(8 * MIB),
            ImageFormat::Qcow2 | ImageFormat::Iso => bench.qcow2(&[]).await,
        };
        let small = bench.ensure(&image, 7).await;
        assert!(matches!(small, Err(DiskError::SmallerThanImage { .. })), "{small:?}");
        assert!(!bench.at("disk.qcow2").exists());
        assert_eq!(bench.ensure(&image, 16).await.expect("made"), Made::New);
        assert_eq!(bench.ensure(&image, 16).await.expect("there"), Made::AsItWas);
        assert_eq!(bench.ensure(&image, 32).await.expect("grown"), Made::Grown);
        assert_eq!(check_disk(&bench.at("disk.qcow2"), &image).expect("a disk").virtual_bytes, 32 * MIB);
        let shrunk = bench.ensure(&image, 16).await;
        assert!(matches!(shrunk, Err(DiskError::Shrinks { .. })), "{shrunk:?}");
        let mode = std::fs::metadata(bench.at("disk.qcow2")).expect("a disk").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[tokio::test]
async fn what_a_cut_creation_left_is_made_anew() {
    let bench = Bench::new();
    let image = bench.raw(8 * MIB);
    std::fs::write(bench.at("disk.new"), "half of a header").expect("a file");
    assert_eq!(bench.ensure(&image, 8).await.expect("made"), Made::New);
    assert!(!bench.at("disk.new").exists());
}

#[tokio::test]
async fn a_disk_that_its_guest_rewrote_is_not_opened() {
    let bench = Bench::new();
    let image = bench.raw(8 * MIB);
    bench.ensure(&image, 8).await.expect("made");
    let disk = bench.at("disk.qcow2");
    let mut bytes = std::fs::read(&disk).expect("a disk");
    let name = text(&image.path).as_bytes().to_owned();
    let at = bytes.windows(name.len()).position(|part| part == name).expect("it names its image");
    let other = [b"/etc/shadow", vec![b'x'; name.len() - 11].as_slice()].concat();
    bytes[at..at + name.len()].copy_from_slice(&other);
    std::fs::write(&disk, bytes).expect("a disk");
    let refused = bench.ensure(&image, 16).await.expect_err("it names another file");
    assert!(refused.is_refusal(), "{refused:?}");
}

#[tokio::test]
async fn a_disc_is_installed_from_onto_an_empty_disk() {
    let bench = Bench::new();
    let path = bench.at("disc.iso");
    std::fs::write(&path, vec![0; 64 * 1024]).expect("a file");
    let image = Image { path, format: ImageFormat::Iso };
    assert!(bench.ensure(&image, 8).await.expect_err("it is no disc").is_refusal());
    let seed = crate::seed::iso::write(&[("meta-data", &b"x"[..])]);
    std::fs::write(&image.path, seed).expect("a file");
    assert_eq!(bench.ensure(&image, 8).await.expect("made"), Made::New);
    let header = check_disk(&bench.at("disk.qcow2"), &image).expect("a disk");
    assert_eq!(header.is_whole(), Ok(()));
}

/// Counts every opening of the watched file by any process, `qemu-img` included.
struct Watched {
    path: PathBuf,
    inotify: std::os::fd::OwnedFd,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        std::fs::write(&path, "root:secret").expect("a file");
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK).expect("inotify");
        let what = inotify::WatchFlags::OPEN | inotify::WatchFlags::ACCESS;
        inotify::add_watch(&inotify, &path, what).expect("a watch");
        Self { path, inotify }
    }

    fn openings(&self) -> usize {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        std::iter::from_fn(|| reader.next().ok().map(|_| ())).count()
    }
}

#[tokio::test]
async fn no_file_that_an_image_names_is_ever_opened() {
    let bench = Bench::new();
    let secret = Watched::new(bench.at("secret"));
    let named = text(&secret.path).to_owned();
    let backing = ["-u", "-F", "raw", "-b", &named];
    let data = format!("data_file={},data_file_raw=on", bench.at("data").display());
    for options in [&backing[..], &["-o", &data]] {
        let image = bench.qcow2(options).await;
        secret.openings();
        let refused = bench.ensure(&image, 16).await.expect_err("it names a file");
        assert!(refused.is_refusal(), "{refused:?}");
        assert!(!bench.at("disk.qcow2").exists());
        assert_eq!(secret.openings(), 0);
    }
    // The watch works.
    let _ = std::fs::read(&secret.path).expect("a file");
    assert!(secret.openings() > 0);
}
