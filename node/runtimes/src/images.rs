//! Images that instances of this host begin with: fetched once for all that want one, verified, and kept while one is based
//! on them.
//!
//! ```text
//! <sha256>.<format>.part         what has come of it from the control plane's own store; a fetch goes on behind it, also after
//!                                a restart
//! <sha256>.<format>.<url>.part   what has come of it from an address, which <url> is a digest of
//! <sha256>.<format>              whole: its digest verified, its header read. It is never written again
//! <sha256>.<format>.from-<url>   it came from there too; `store` is the control plane's own
//! ```
//!
//! What comes from one place is fetched apart from what comes from another: an address that is slow, or has another file, is in
//! nobody's way but of those that named it. And a file that came from one place is nobody's who named another, until it came
//! from there: who knows a digest need not have the image.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kit::fs::FsError;
use kit::{Clock, Supervisor, TaskKind};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::admission::KEPT_BYTES_MIN;
use crate::disk;
use crate::instance::{Image, ImageFormat};

mod error;
mod part;
mod wanted;

pub use error::ImageError;
use part::Part;
pub use wanted::Wanted;

const FETCH: TaskKind = TaskKind::isolated("image fetch");
/// Larger than any system's image; what is larger is a mistake.
pub const IMAGE_BYTES_MAX: u64 = 256 << 30;
/// At once from the own store, and as many from addresses: more would only share the line.
const FETCHES_MAX: usize = 4;
/// Whoever is slower than this gives its place to the next one, and goes on behind what has come when its turn is again.
const FETCH_WITHIN: Duration = Duration::from_secs(6 * 60 * 60);
/// A fetch that failed is told for so long before it is made again.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Cuts in a row, with nothing that came in between, after which a fetch has failed.
const CUTS_MAX: u32 = 5;
const CUT_PAUSE: Duration = Duration::from_secs(1);
/// A line on which less than this comes within the time is as good as cut.
const STALL_BYTES: u64 = 1 << 20;
const STALL_WITHIN: Duration = Duration::from_secs(120);
/// Between an image's name and from where it came.
const MARK: &str = ".from-";

/// An image as a spec names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRef {
    pub sha256: [u8; 32],
    pub format: ImageFormat,
    /// From where; empty for the control plane's own store.
    pub url: String,
}

/// What comes of an image, from where it was asked for on.
pub struct Incoming {
    /// Of the whole image.
    pub total_bytes: u64,
    /// It comes from its first byte on, wherever it was asked for: the source knows no other way.
    pub anew: bool,
    pub bytes: BoxStream<'static, Result<Bytes, FetchError>>,
}

/// Why nothing comes, or nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fetch the image: {why}")]
pub struct FetchError {
    pub why: String,
    /// Asking again is of no use: whoever has the image refuses.
    pub lasting: bool,
}

/// Where images come from.
pub trait ImageSource: Send + Sync + 'static {
    /// The image's bytes from `offset` on. Dropping what comes ends it.
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>>;
}

#[derive(Default)]
struct Progress {
    got: AtomicU64,
    total: AtomicU64,
}

enum Fetch {
    Coming(Arc<Progress>),
    Failed { at: Duration, err: Arc<ImageError> },
}

/// Told that a fetch has ended, well or not.
pub type Ended = Arc<dyn Fn() + Send + Sync>;

/// What of the file system is promised to others, at this moment.
pub type PromisedOf = Box<dyn Fn() -> u64 + Send + Sync>;

/// The images of this host. Cheap to clone; clones share what comes.
#[derive(Clone)]
pub struct Images(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    kept_free_min: u64,
    source: Arc<dyn ImageSource>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    ended: Ended,
    store_lines: Semaphore,
    address_lines: Semaphore,
    /// By where what has come is.
    fetches: Mutex<BTreeMap<PathBuf, Fetch>>,
    promised: OnceLock<PromisedOf>,
}

impl Images {
    /// `dir` is the images' own.
    pub fn new(
        dir: PathBuf,
        source: Arc<dyn ImageSource>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
        ended: Ended,
    ) -> Self {
        Self::keeping_free(KEPT_BYTES_MIN, dir, source, clock, supervisor, ended)
    }

    /// Beside disks on the same file system, which may still grow by so many bytes: those are not taken. Said once.
    pub fn beside(self, promised: PromisedOf) -> Self {
        drop(self.0.promised.set(promised));
        self
    }

    /// With so much of the disk kept free at least; with 0 none of it is.
    pub fn keeping_free(
        kept_free_min: u64,
        dir: PathBuf,
        source: Arc<dyn ImageSource>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
        ended: Ended,
    ) -> Self {
        Self(Arc::new(Inner {
            dir,
            kept_free_min,
            source,
            clock,
            supervisor,
            ended,
            store_lines: Semaphore::new(FETCHES_MAX),
            address_lines: Semaphore::new(FETCHES_MAX),
            fetches: Mutex::default(),
            promised: OnceLock::new(),
        }))
    }

    /// The image, or how it stands; it is fetched when nobody fetches it yet.
    pub fn want(&self, image: &ImageRef) -> Wanted {
        let (path, part) = (self.0.path(image), self.0.part(image));
        let mut fetches = self.0.locked();
        // Under the lock: a fetch puts its file in place before it takes its entry out.
        if self.0.is_here(image) {
            return Wanted::Here(Image { path, format: image.format });
        }
        let now = self.0.clock.monotonic();
        match fetches.get(&part) {
            Some(Fetch::Coming(progress)) => return progress.wanted(),
            Some(Fetch::Failed { at, err }) if now.saturating_sub(*at) < TOLD_FOR => {
                return Wanted::Failed(err.clone());
            }
            Some(Fetch::Failed { .. }) | None => {}
        }
        let progress = Arc::new(Progress::default());
        fetches.insert(part.clone(), Fetch::Coming(progress.clone()));
        drop(fetches);
        let (inner, image) = (self.0.clone(), image.clone());
        self.0.supervisor.spawn(FETCH, move |stop| async move {
            // What a panic leaves behind is what a process that is killed does: some of the file.
            let fetch = AssertUnwindSafe(inner.fetch(&image, &part, &progress)).catch_unwind();
            match stop.run_until_cancelled(fetch).await {
                Some(Ok(came)) => inner.settle(part, came),
                Some(Err(panic)) => {
                    inner.settle(part, Err(ImageError::Panicked));
                    resume_unwind(panic);
                }
                // A fetch that is stopped leaves what has come for the next process.
                None => {}
            }
            Ok::<_, Infallible>(())
        });
        Wanted::Coming { got_bytes: 0, total_bytes: 0 }
    }

    /// Removes what no instance is based on and none of `wanted` asks for. What is being fetched stays.
    pub async fn tidy(&self, wanted: &[ImageRef], based: &BTreeSet<PathBuf>) -> Result<(), FsError> {
        let mut kept = based.clone();
        {
            let mut fetches = self.0.locked();
            for image in wanted {
                if !self.0.is_here(image) {
                    kept.insert(self.0.part(image));
                }
                kept.insert(self.0.path(image));
            }
            fetches.retain(|part, fetch| matches!(fetch, Fetch::Coming(_)) || kept.contains(part));
            kept.extend(fetches.keys().cloned());
        }
        let inner = self.0.clone();
        let removed = tokio::task::spawn_blocking(move || inner.remove_but(&kept)).await;
        removed.unwrap_or_else(|err| Err(inner_failed(&self.0.dir, std::io::Error::other(err))))
    }
}

/// An address, as names of files have it.
fn place(url: &str) -> String {
    hex::encode(&Sha256::digest(url)[..8])
}

fn inner_failed(dir: &Path, source: std::io::Error) -> FsError {
    FsError { doing: "tidy", path: dir.to_owned(), source }
}

impl Progress {
    fn wanted(&self) -> Wanted {
        Wanted::Coming {
            got_bytes: self.got.load(Ordering::Relaxed),
            total_bytes: self.total.load(Ordering::Relaxed),
        }
    }
}

impl Inner {
    fn path(&self, image: &ImageRef) -> PathBuf {
        let format = match image.format {
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Raw => "raw",
            ImageFormat::Iso => "iso",
        };
        self.dir.join(format!("{}.{format}", hex::encode(image.sha256)))
    }

    fn part(&self, image: &ImageRef) -> PathBuf {
        let mut name = self.path(image).into_os_string();
        if !image.url.is_empty() {
            name.push(format!(".{}", place(&image.url)));
        }
        name.push(".part");
        name.into()
    }

    /// Says that the image came from where it is asked for.
    fn mark(&self, image: &ImageRef) -> PathBuf {
        let mut name = self.path(image).into_os_string();
        name.push(MARK);
        name.push(if image.url.is_empty() { "store".to_owned() } else { place(&image.url) });
        name.into()
    }

    fn is_here(&self, image: &ImageRef) -> bool {
        self.path(image).is_file() && self.mark(image).is_file()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Fetch>> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, part: PathBuf, came: Result<(), ImageError>) {
        match came {
            Ok(()) => drop(self.locked().remove(&part)),
            Err(err) => {
                tracing::warn!(image = %part.display(), err = kit::chain(&err), "image not fetched");
                let at = self.clock.monotonic();
                self.locked().insert(part, Fetch::Failed { at, err: Arc::new(err) });
            }
        }
        (self.ended)();
    }

    async fn fetch(&self, image: &ImageRef, part: &Path, progress: &Progress) -> Result<(), ImageError> {
        let lines = if image.url.is_empty() { &self.store_lines } else { &self.address_lines };
        // The semaphore is never closed.
        let _line = lines.acquire().await;
        let over = self.clock.sleep(FETCH_WITHIN);
        // What has come stays whichever ends first.
        tokio::select! {
            done = self.fetch_whole(image, part, progress) => done,
            () = over => Err(ImageError::TooSlow),
        }
    }

    async fn fetch_whole(
        &self,
        image: &ImageRef,
        part: &Path,
        progress: &Progress,
    ) -> Result<(), ImageError> {
        // Others go through, and list nothing: QEMU runs as a user of its own.
        kit::fs::create_dir(&self.dir, 0o711)?;
        let came = Part::open(part).await?;
        let resumes = came.got > 0;
        match self.complete(image, came, progress).await {
            // What an earlier process left may have been torn when the host lost its power.
            Err(ImageError::OtherDigest { .. }) if resumes => {
                self.complete(image, Part::open(part).await?, progress).await
            }
            done => done,
        }
    }

    /// Goes on behind what has come, over as many lines as it takes.
    async fn complete(
        &self,
        image: &ImageRef,
        mut part: Part,
        progress: &Progress,
    ) -> Result<(), ImageError> {
        progress.got.store(part.got, Ordering::Relaxed);
        let mut cuts = 0;
        loop {
            let before = part.got;
            let err = match self.stream(image, &mut part, progress).await {
                Ok(()) => return self.take(part, image).await,
                Err(err) => err,
            };
            cuts = if part.got > before { 0 } else { cuts + 1 };
            if !err.is_cut() {
                // A disk that is full stays so while this lies on it.
                kit::fs::remove_if_present(&part.path)?;
                return Err(err);
            }
            if cuts == CUTS_MAX {
                return Err(err);
            }
            tracing::info!(image = %part.path.display(), got = part.got, err = kit::chain(&err), "fetch was cut");
            self.clock.sleep(CUT_PAUSE * (1 << cuts)).await;
        }
    }

    /// One line, until the image is whole.
    async fn stream(&self, image: &ImageRef, part: &mut Part, progress: &Progress) -> Result<(), ImageError> {
        let mut incoming = self.within(self.source.open(image, part.got)).await??;
        let total = incoming.total_bytes;
        if total > IMAGE_BYTES_MAX {
            return Err(ImageError::TooLarge { total });
        }
        if incoming.anew {
            part.begin_anew().await?;
        }
        progress.total.store(total, Ordering::Relaxed);
        self.room(total.saturating_sub(part.got))?;
        let mut window = (self.clock.monotonic(), part.got);
        while part.got < total {
            let Some(bytes) = self.within(incoming.bytes.next()).await? else {
                return Err(ImageError::Short { got: part.got, total });
            };
            let bytes = bytes?;
            let room = usize::try_from(total - part.got).unwrap_or(usize::MAX);
            let bytes = bytes.slice(..bytes.len().min(room));
            part.write(&bytes).await?;
            progress.got.store(part.got, Ordering::Relaxed);
            let now = self.clock.monotonic();
            if now.saturating_sub(window.0) >= STALL_WITHIN {
                if part.got - window.1 < STALL_BYTES.min(total) {
                    return Err(ImageError::Stalled);
                }
                window = (now, part.got);
            }
        }
        Ok(())
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, ImageError> {
        let over = self.clock.sleep(STALL_WITHIN);
        // Both arms are dropped whole: a line that stands still is left.
        tokio::select! {
            done = work => Ok(done),
            () = over => Err(ImageError::Stalled),
        }
    }

    fn room(&self, needed: u64) -> Result<(), ImageError> {
        let promised = self.promised.get().map_or(0, |promised| promised());
        let left = disk::space(&self.dir)?.left(self.kept_free_min).saturating_sub(promised);
        match needed <= left {
            true => Ok(()),
            false => Err(ImageError::NoRoom { needed: needed.div_ceil(1 << 20), left: left >> 20 }),
        }
    }

    /// Puts what has come in its place, when it is what was asked for.
    async fn take(&self, part: Part, image: &ImageRef) -> Result<(), ImageError> {
        let (from, found) = part.close().await?;
        if found != image.sha256 {
            kit::fs::remove_if_present(&from)?;
            return Err(ImageError::OtherDigest { found: hex::encode(found) });
        }
        let failed = |doing, source| FsError { doing, path: from.clone(), source };
        let whole = Image { path: from.clone(), format: image.format };
        let checked = tokio::task::spawn_blocking(move || disk::check_image(&whole)).await;
        if let Err(err) = checked.map_err(|err| failed("read", std::io::Error::other(err)))? {
            kit::fs::remove_if_present(&from)?;
            return Err(err.into());
        }
        let path = self.path(image);
        if path.is_file() {
            // It came from elsewhere before, and disks may be based on that file.
            kit::fs::remove_if_present(&from)?;
        } else {
            tokio::fs::rename(&from, path).await.map_err(|source| failed("rename", source))?;
        }
        tokio::fs::write(self.mark(image), b"").await.map_err(|source| failed("mark", source))?;
        Ok(kit::fs::sync_dir(&self.dir)?)
    }

    fn remove_but(&self, kept: &BTreeSet<PathBuf>) -> Result<(), FsError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(err) => return Err(inner_failed(&self.dir, err)),
        };
        for entry in entries {
            let path = entry.map_err(|err| inner_failed(&self.dir, err))?.path();
            let marked = path.to_str().and_then(|path| path.rsplit_once(MARK));
            let of_kept = marked.is_some_and(|(whole, _)| kept.contains(Path::new(whole)));
            if !of_kept && !kept.contains(&path) {
                kit::fs::remove_if_present(&path)?;
                tracing::info!(image = %path.display(), "image removed: nothing here is based on it");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
