//! Beside a disk that fills up.

use super::*;
use crate::lab::{fill, on_a_small_disk};

const MIB: u64 = 1 << 20;

/// Has an image of so many bytes, and its host's disk is full by the time that the second of them comes.
struct Filler {
    disk: PathBuf,
    bytes: u64,
}

impl ImageSource for Filler {
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        assert_eq!(offset, 0);
        let (disk, total_bytes) = (self.disk.clone(), self.bytes);
        let small = image.format == ImageFormat::Iso;
        let piece = Bytes::from(vec![7; MIB as usize]);
        let bytes = futures::stream::iter(0..total_bytes / MIB).map(move |at| {
            if at == 1 {
                fill(&disk, 64 * 1024);
            }
            Ok(piece.clone())
        });
        let content = Bytes::from(content());
        Box::pin(async move {
            let few = futures::stream::iter([Ok(content.clone())]).boxed();
            let total_bytes = if small { content.len() as u64 } else { total_bytes };
            Ok(Incoming { total_bytes, anew: false, bytes: if small { few } else { bytes.boxed() } })
        })
    }
}

fn images_on(disk: &Path, bytes: u64) -> (Images, tokio::sync::watch::Receiver<usize>) {
    let (tell, ended) = tokio::sync::watch::channel(0);
    let images = Images::keeping_free(
        0,
        disk.join("images"),
        Arc::new(Filler { disk: disk.to_owned(), bytes }),
        Arc::new(SystemClock::new()),
        Supervisor::new(),
        Arc::new(move || tell.send_modify(|ended| *ended += 1)),
    );
    (images, ended)
}

#[test]
fn a_disk_that_fills_up_ends_that_fetch_and_gives_back_what_came() {
    on_a_small_disk(32, async |disk| {
        let (images, mut ended) = images_on(disk, 16 * MIB);
        let image = image_of(b"whatever it is");
        assert!(matches!(images.want(&image), Wanted::Coming { .. }));
        ended.wait_for(|ended| *ended == 1).await.unwrap();
        let failed = images.want(&image);
        let err = failure(&failed);
        assert_eq!((err.reason(), err.is_lasting()), ("ResourcesExhausted", false), "{err:?}");
        assert!(!images.0.part(&image).exists(), "a full disk stays so while it lies there");
        std::fs::remove_file(disk.join("fill")).unwrap();
        // Another image is another matter.
        let other = ImageRef { format: ImageFormat::Iso, ..image_of(&content()) };
        assert!(matches!(images.want(&other), Wanted::Coming { .. }));
        ended.wait_for(|ended| *ended == 2).await.unwrap();
        let told = images.want(&other);
        assert_eq!(failure(&told).reason(), "ImageRefused", "it came whole, and is no disc");
    });
}

#[test]
fn an_image_leaves_room_for_what_disks_were_promised() {
    on_a_small_disk(32, async |disk| {
        let (images, mut ended) = images_on(disk, 16 * MIB);
        let images = images.beside(Box::new(|| 20 * MIB));
        let image = image_of(b"whatever it is");
        assert!(matches!(images.want(&image), Wanted::Coming { .. }));
        ended.wait_for(|ended| *ended == 1).await.unwrap();
        let failed = images.want(&image);
        let err = failure(&failed);
        assert!(matches!(err, ImageError::NoRoom { needed: 16, .. }), "{err:?}");
        assert_eq!((err.reason(), err.is_lasting()), ("ResourcesExhausted", false));
    });
}
