//! Many instances of one image.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use futures::StreamExt;
use kit::Supervisor;
use sha2::{Digest, Sha256};

use super::*;
use crate::images::{FetchError, ImageRef, ImageSource, Images, Incoming, Wanted};

const COUNT: u8 = 50;
const PIECE_BYTES: usize = 256 * 1024;
/// Of an overlay in which its guest has written nothing: its header and its tables.
const OVERLAY_BYTES_MAX: u64 = 1 << 20;

/// Where the image comes from, and what was taken there.
struct Counted {
    content: Bytes,
    opened: AtomicUsize,
    taken: Arc<AtomicU64>,
}

impl ImageSource for Counted {
    fn open<'a>(&'a self, _: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let rest = self.content.slice(usize::try_from(offset).expect("it is not longer than the image")..);
        let pieces: Vec<Bytes> = rest.chunks(PIECE_BYTES).map(|piece| rest.slice_ref(piece)).collect();
        let taken = self.taken.clone();
        let bytes = futures::stream::iter(pieces).map(move |piece| {
            taken.fetch_add(piece.len() as u64, Ordering::SeqCst);
            Ok(piece)
        });
        let total_bytes = self.content.len() as u64;
        Box::pin(async move { Ok(Incoming { total_bytes, anew: false, bytes: bytes.boxed() }) })
    }
}

#[tokio::test]
async fn fifty_instances_of_an_image_cost_one_download_and_one_base() {
    let host = Host::start();
    let content = Bytes::from(std::fs::read(host.tiny.disk()).expect("the tiny image"));
    let image =
        ImageRef { sha256: Sha256::digest(&content).into(), format: ImageFormat::Qcow2, url: String::new() };
    let taken = Arc::new(AtomicU64::new(0));
    let source = Arc::new(Counted { content, opened: AtomicUsize::new(0), taken });
    let (tell, mut ended) = tokio::sync::watch::channel(());
    let folder = host.runtime.options.dir.join("images");
    let images = Images::new(
        folder.clone(),
        source.clone(),
        Arc::new(SystemClock::new()),
        Supervisor::new(),
        Arc::new(move || tell.send_modify(|()| {})),
    );

    // All of them before it is there, as the first pass over their entries does.
    for _ in 0..COUNT {
        let wanted = images.want(&image);
        assert!(matches!(wanted, Wanted::Coming { .. }), "{wanted:?}");
    }
    ended.changed().await.expect("the fetch is told to have ended");
    let user_data = UserData::none();
    let mut bases = BTreeSet::new();
    for number in 1..=COUNT {
        let Wanted::Here(image) = images.want(&image) else { panic!("the image did not come") };
        bases.insert(image.path.clone());
        let instance = Instance { image: image.clone(), ..sample(number) };
        host.runtime.define(&instance, SeedInput::UserData(&user_data)).await.expect("it can be defined");
        let disk = host.runtime.files(instance.id).disk();
        disk::check_disk(&disk, &image).expect("it is based on the image");
        let own = std::fs::metadata(&disk).expect("its disk").blocks() * 512;
        assert!(own <= OVERLAY_BYTES_MAX, "{own} bytes of instance {number}'s own");
    }
    let opened = source.opened.load(Ordering::SeqCst);
    assert_eq!((opened, source.taken.load(Ordering::SeqCst)), (1, source.content.len() as u64));
    assert_eq!(host.runtime.bases().await.expect("they can be listed"), bases);
    let files = || -> Vec<PathBuf> {
        std::fs::read_dir(&folder).expect("the images").map(|entry| entry.expect("an image").path()).collect()
    };
    // Beside the image only the empty file that says where it came from.
    let images_there = || -> Vec<PathBuf> {
        let holds = |path: &PathBuf| std::fs::metadata(path).expect("an image").len() > 0;
        files().into_iter().filter(holds).collect()
    };
    assert_eq!(images_there(), bases.into_iter().collect::<Vec<_>>());

    // It stays for as long as one is based on it, also when nobody asks for it any more.
    for number in 1..=COUNT {
        images.tidy(&[], &host.runtime.bases().await.expect("they can be listed")).await.expect("tidy");
        assert_eq!(images_there().len(), 1, "before instance {number} goes");
        host.runtime.destroy(sample(number).id).await.expect("it can be removed");
    }
    images.tidy(&[], &host.runtime.bases().await.expect("they can be listed")).await.expect("tidy");
    assert_eq!(files(), Vec::<PathBuf>::new());
    assert_eq!(host.left(), Vec::<String>::new());
}
