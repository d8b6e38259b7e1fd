use std::sync::atomic::AtomicUsize;

use kit::SystemClock;
use tempfile::TempDir;

use super::*;

mod full;

/// What an image's lines do, one after the other; the last one is what all others do too.
#[derive(Clone, Copy)]
enum Line {
    Whole,
    /// After so many bytes.
    Cut(usize),
    Refused,
    Larger,
    /// From the first byte on, whatever was asked for.
    Anew,
}

/// An address at which nothing is.
const GONE: &str = "https://gone.example/x";
/// Of addresses at which something is, and comes by one byte in 100 seconds.
const SLOW: &str = "https://slow.example/";
/// Of addresses that bring out a fault in whoever asks there.
const PANICS: &str = "https://panics.example/";

struct Script {
    content: Vec<u8>,
    lines: Vec<Line>,
    opened: AtomicUsize,
    offsets: Mutex<Vec<u64>>,
}

impl ImageSource for Script {
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        let at = self.opened.fetch_add(1, Ordering::Relaxed).min(self.lines.len() - 1);
        self.offsets.lock().unwrap().push(offset);
        assert!(!image.url.starts_with(PANICS), "as the test wants it");
        if image.url.starts_with(SLOW) {
            let at = usize::try_from(offset).unwrap();
            let (total_bytes, byte) =
                (self.content.len() as u64, Bytes::copy_from_slice(&self.content[at..=at]));
            return Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(100)).await;
                Ok(Incoming { total_bytes, anew: false, bytes: futures::stream::iter([Ok(byte)]).boxed() })
            });
        }
        let rest = self.content.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        let chunks =
            |bytes: &[u8]| bytes.chunks(1_000).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        let mut total_bytes = self.content.len() as u64;
        let mut bytes: Vec<Result<Bytes, FetchError>> = match self.lines[at] {
            Line::Whole => chunks(rest),
            Line::Anew => chunks(&self.content),
            Line::Cut(after) => chunks(&rest[..after.min(rest.len())]),
            Line::Refused => Vec::new(),
            Line::Larger => {
                total_bytes = IMAGE_BYTES_MAX + 1;
                Vec::new()
            }
        };
        let cut = matches!(self.lines[at], Line::Cut(_));
        if cut {
            bytes.push(Err(FetchError { why: "the line was cut".into(), lasting: false }));
        }
        let refused = matches!(self.lines[at], Line::Refused) || image.url == GONE;
        let anew = matches!(self.lines[at], Line::Anew);
        Box::pin(async move {
            if refused {
                return Err(FetchError { why: "it is not there".into(), lasting: true });
            }
            Ok(Incoming { total_bytes, anew, bytes: futures::stream::iter(bytes).boxed() })
        })
    }
}

struct Host {
    dir: TempDir,
    source: Arc<Script>,
    images: Images,
    ended: tokio::sync::watch::Receiver<usize>,
}

fn content() -> Vec<u8> {
    (0..40_960u32).map(|at| (at % 251) as u8).collect()
}

fn image_of(content: &[u8]) -> ImageRef {
    ImageRef { sha256: Sha256::digest(content).into(), format: ImageFormat::Raw, url: String::new() }
}

fn host_of(content: Vec<u8>, dir: TempDir, lines: &[Line], kept_free: u64) -> Host {
    let (lines, opened) = (lines.to_vec(), AtomicUsize::new(0));
    let source = Arc::new(Script { content, lines, opened, offsets: Mutex::default() });
    let (tell, ended) = tokio::sync::watch::channel(0);
    let images = Images::keeping_free(
        kept_free,
        dir.path().join("images"),
        source.clone(),
        Arc::new(SystemClock::new()),
        Supervisor::new(),
        Arc::new(move || tell.send_modify(|ended| *ended += 1)),
    );
    Host { dir, source, images, ended }
}

fn host_in(dir: TempDir, lines: &[Line]) -> Host {
    host_of(content(), dir, lines, 0)
}

fn host(lines: &[Line]) -> Host {
    host_in(tempfile::tempdir().unwrap(), lines)
}

impl Host {
    /// Wants it until it is here or has failed.
    async fn settled(&mut self, image: &ImageRef) -> Wanted {
        loop {
            let seen = *self.ended.borrow_and_update();
            match self.images.want(image) {
                Wanted::Coming { .. } => {}
                settled => return settled,
            }
            if *self.ended.borrow() == seen {
                self.ended.changed().await.unwrap();
            }
        }
    }

    /// But for what says from where they came.
    fn files(&self) -> Vec<String> {
        self.all_files().into_iter().filter(|name| !name.contains(MARK)).collect()
    }

    fn all_files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir.path().join("images")) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn failure(wanted: &Wanted) -> &ImageError {
    match wanted {
        Wanted::Failed(err) => err,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_that_want_an_image_cost_one_fetch() {
    let mut host = host(&[Line::Whole]);
    let image = image_of(&content());
    for _ in 0..50 {
        assert!(matches!(host.images.want(&image), Wanted::Coming { .. }));
    }
    let Wanted::Here(found) = host.settled(&image).await else { panic!("it is not here") };
    assert_eq!(std::fs::read(&found.path).unwrap(), content());
    assert_eq!(host.source.opened.load(Ordering::Relaxed), 1);
    assert!(matches!(host.images.want(&image), Wanted::Here(_)), "it is there from then on");
    assert_eq!(host.files(), [format!("{}.raw", hex::encode(image.sha256))]);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_cut_goes_on_where_it_was() {
    let mut host = host(&[Line::Cut(5_000), Line::Cut(7_000), Line::Whole]);
    let image = image_of(&content());
    let here = host.settled(&image).await;
    assert!(matches!(here, Wanted::Here(_)), "{here}");
    assert_eq!(*host.source.offsets.lock().unwrap(), [0, 5_000, 12_000]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_can_only_begin_anew_is_taken_at_its_word() {
    let mut host = host(&[Line::Cut(5_000), Line::Anew]);
    let image = image_of(&content());
    let Wanted::Here(found) = host.settled(&image).await else { panic!("it is not here") };
    assert_eq!(std::fs::read(&found.path).unwrap(), content());
    assert_eq!(*host.source.offsets.lock().unwrap(), [0, 5_000]);
}

#[tokio::test]
async fn an_address_is_in_nobodys_way_but_of_those_that_named_it() {
    let mut host = host(&[Line::Whole]);
    let good = image_of(&content());
    let gone = at(GONE);
    assert!(failure(&host.settled(&gone).await).is_lasting());
    assert!(matches!(host.images.want(&good), Wanted::Coming { .. }), "another's trouble is not told");
    assert!(matches!(host.settled(&good).await, Wanted::Here(_)));
    assert!(matches!(host.images.want(&gone), Wanted::Failed(_)), "a digest is not enough for what is here");
}

fn at(url: impl Into<String>) -> ImageRef {
    ImageRef { url: url.into(), ..image_of(&content()) }
}

#[tokio::test(start_paused = true)]
async fn addresses_that_are_slow_are_not_in_the_stores_way() {
    let mut host = host(&[Line::Whole]);
    let began = tokio::time::Instant::now();
    for number in 0..FETCHES_MAX {
        assert!(matches!(host.images.want(&at(format!("{SLOW}{number}"))), Wanted::Coming { .. }));
    }
    assert!(matches!(host.settled(&image_of(&content())).await, Wanted::Here(_)));
    assert!(began.elapsed() < STALL_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_slow_gives_its_place_to_the_next_one() {
    let mut host = host(&[Line::Whole]);
    let slow: Vec<ImageRef> = (0..FETCHES_MAX).map(|number| at(format!("{SLOW}{number}"))).collect();
    for image in &slow {
        assert!(matches!(host.images.want(image), Wanted::Coming { .. }));
    }
    let began = tokio::time::Instant::now();
    let waits = at("https://quick.example/x");
    assert!(matches!(host.images.want(&waits), Wanted::Coming { .. }));
    host.ended.changed().await.unwrap();
    let failed = host.images.want(&slow[0]);
    let err = failure(&failed);
    assert!(
        !err.is_lasting() && err.reason() == "ImageUnavailable" && err.to_string().contains("6 hours"),
        "{err}"
    );
    assert!(host.images.0.part(&slow[0]).is_file(), "what has come stays");
    assert!(matches!(host.settled(&waits).await, Wanted::Here(_)));
    assert!(began.elapsed() < FETCH_WITHIN + STALL_WITHIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_comes_from_two_places_at_once_is_one_image() {
    let mut host = host(&[Line::Whole]);
    let images = ["", "https://a.example/x", "https://b.example/x"].map(at);
    for image in &images {
        assert!(matches!(host.images.want(image), Wanted::Coming { .. }));
    }
    host.ended.wait_for(|ended| *ended == images.len()).await.unwrap();
    for image in &images {
        let Wanted::Here(found) = host.images.want(image) else { panic!("it is not here") };
        assert_eq!(std::fs::read(&found.path).unwrap(), content());
    }
    assert_eq!(host.source.opened.load(Ordering::Relaxed), 3);
    assert_eq!(host.files(), [format!("{}.raw", hex::encode(images[0].sha256))]);
}

#[tokio::test(start_paused = true)]
async fn lines_on_which_nothing_comes_end_the_fetch_and_what_came_stays() {
    let mut host = host(&[Line::Cut(5_000), Line::Cut(0)]);
    let image = image_of(&content());
    let failed = host.settled(&image).await;
    let err = failure(&failed);
    assert!(!err.is_lasting() && err.reason() == "ImageUnavailable", "{err}");
    assert_eq!(host.source.opened.load(Ordering::Relaxed), 1 + CUTS_MAX as usize);
    assert_eq!(host.files(), [format!("{}.raw.part", hex::encode(image.sha256))]);
}

#[tokio::test]
async fn a_fetch_that_panics_has_failed_and_is_in_nobodys_way() {
    let mut host = host(&[Line::Whole]);
    for number in 0..=FETCHES_MAX {
        let image = at(format!("{PANICS}{number}"));
        let failed = host.settled(&image).await;
        let err = failure(&failed);
        assert!(matches!(err, ImageError::Panicked) && !err.is_lasting(), "{err}");
        assert_eq!(err.reason(), "ImageUnavailable");
        assert!(matches!(host.images.want(&image), Wanted::Failed(_)), "it is told for a while");
    }
    assert!(matches!(host.settled(&at("https://quick.example/x")).await, Wanted::Here(_)));
}

#[tokio::test]
async fn a_restart_goes_on_behind_what_had_come() {
    let dir = tempfile::tempdir().unwrap();
    let image = image_of(&content());
    std::fs::create_dir(dir.path().join("images")).unwrap();
    let part = dir.path().join("images").join(format!("{}.raw.part", hex::encode(image.sha256)));
    std::fs::write(&part, &content()[..9_000]).unwrap();
    let mut host = host_in(dir, &[Line::Whole]);
    assert!(matches!(host.settled(&image).await, Wanted::Here(_)));
    assert_eq!(*host.source.offsets.lock().unwrap(), [9_000]);
}

#[tokio::test]
async fn what_was_torn_is_fetched_anew() {
    let dir = tempfile::tempdir().unwrap();
    let image = image_of(&content());
    std::fs::create_dir(dir.path().join("images")).unwrap();
    let part = dir.path().join("images").join(format!("{}.raw.part", hex::encode(image.sha256)));
    std::fs::write(&part, vec![0; 50_000]).unwrap();
    let mut host = host_in(dir, &[Line::Whole]);
    let here = host.settled(&image).await;
    assert!(matches!(here, Wanted::Here(_)), "{here}");
    assert_eq!(*host.source.offsets.lock().unwrap(), [50_000, 0]);
}

#[tokio::test]
async fn another_file_is_refused_and_does_not_stay() {
    let mut host = host(&[Line::Whole]);
    let image = image_of(b"something else");
    let failed = host.settled(&image).await;
    let err = failure(&failed);
    assert!(err.is_lasting() && err.reason() == "ImageDigestMismatch", "{err}");
    assert!(err.to_string().contains(&hex::encode(Sha256::digest(content()))), "{err}");
    assert!(host.files().is_empty(), "{:?}", host.files());
    assert!(matches!(host.images.want(&image), Wanted::Failed(_)), "it is told for a while");
    assert_eq!(host.source.opened.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_image_that_names_other_files_is_refused_whatever_its_digest() {
    // A qcow2 header of version 2 with a backing file's name behind it.
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x02");
    header[8..16].copy_from_slice(&72u64.to_be_bytes());
    header[16..20].copy_from_slice(&11u32.to_be_bytes());
    header[20..24].copy_from_slice(&16u32.to_be_bytes());
    header[72..83].copy_from_slice(b"/etc/shadow");
    let mut host = host_of(header.clone(), tempfile::tempdir().unwrap(), &[Line::Whole], 0);
    let image = ImageRef { format: ImageFormat::Qcow2, ..image_of(&header) };
    let failed = host.settled(&image).await;
    let err = failure(&failed);
    assert!(err.is_lasting() && err.reason() == "ImageRefused", "{err}");
    assert!(host.files().is_empty(), "{:?}", host.files());
}

#[tokio::test]
async fn what_has_no_room_is_not_begun() {
    let mut host = host_of(content(), tempfile::tempdir().unwrap(), &[Line::Whole], u64::MAX);
    let image = image_of(&content());
    let failed = host.settled(&image).await;
    let err = failure(&failed);
    assert!(!err.is_lasting() && err.reason() == "ResourcesExhausted", "{err}");
    assert!(host.files().is_empty(), "{:?}", host.files());
}

#[tokio::test]
async fn what_is_refused_or_too_large_fails_for_good() {
    for line in [Line::Refused, Line::Larger] {
        let mut host = host(&[line]);
        let image = image_of(&content());
        let failed = host.settled(&image).await;
        assert!(failure(&failed).is_lasting(), "{failed}");
        assert!(host.files().is_empty(), "{:?}", host.files());
    }
}

#[tokio::test]
async fn who_names_the_digest_of_anothers_image_does_not_have_it() {
    let mut host = host(&[Line::Whole]);
    let image = image_of(&content());
    assert!(matches!(host.settled(&image).await, Wanted::Here(_)));
    let told = host.settled(&at(GONE)).await;
    assert!(failure(&told).is_lasting(), "what is here came from the store, and not from there: {told}");
    assert!(matches!(host.images.want(&image), Wanted::Here(_)));
    let other = at("https://a.example/x");
    assert!(matches!(host.images.want(&other), Wanted::Coming { .. }), "it has to come from there first");
    assert!(matches!(host.settled(&other).await, Wanted::Here(_)));
    assert_eq!((host.files().len(), host.all_files().len()), (1, 3));
}

#[tokio::test]
async fn only_what_something_is_based_on_or_asks_for_stays() {
    let mut host = host(&[Line::Whole]);
    let image = image_of(&content());
    let Wanted::Here(found) = host.settled(&image).await else { panic!("it is not here") };
    let torn = host.dir.path().join("images/00.raw.part");
    // The image has to come from there too.
    let elsewhere = at(GONE);
    std::fs::write(host.images.0.part(&elsewhere), &content()[..9_000]).unwrap();
    let other = ImageRef { sha256: [7; 32], ..elsewhere.clone() };
    let begun = host.images.0.part(&other);
    std::fs::write(&begun, b"what has come so far").unwrap();
    host.images.tidy(&[elsewhere.clone(), other], &BTreeSet::new()).await.unwrap();
    assert!(found.path.is_file() && begun.is_file() && host.images.0.part(&elsewhere).exists());
    std::fs::write(&torn, b"left by nobody knows whom").unwrap();
    host.images.tidy(&[], &BTreeSet::from([found.path.clone()])).await.unwrap();
    assert!(found.path.is_file() && !torn.exists() && !begun.exists());
    assert!(matches!(host.images.want(&image), Wanted::Here(_)), "from where it came stays known");
    host.images.tidy(std::slice::from_ref(&image), &BTreeSet::new()).await.unwrap();
    assert!(found.path.is_file());
    host.images.tidy(&[], &BTreeSet::new()).await.unwrap();
    assert!(host.all_files().is_empty(), "{:?}", host.all_files());
}
