use std::net::IpAddr;
use std::time::Duration;

use kit::{Clock, Supervisor, SystemClock};
use runtimes::images::{ImageError, Wanted};
use runtimes::{ImageFormat, Images};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::super::guard::tests::Names;
use super::server::{Answer, Server, moved, part, said, serve, whole};
use super::*;

const NAME: &str = "images.test";
/// Of the file, behind its name: what nobody is told.
const QUERY: &str = "x.raw?token=s3cr3t";

fn file() -> Vec<u8> {
    (0..40_960u32).map(|at| (at % 251) as u8).collect()
}

/// A server, a name for it, and a source for which this host's owner has named its address.
struct World {
    server: Server,
    source: FromAddress,
}

fn source(server: &Server, names: Names, networks: &[&str]) -> FromAddress {
    let networks = networks.iter().map(|text| text.parse().unwrap()).collect();
    FromAddress::new(Guard::new(Arc::new(names), networks), Some(server.authorities()))
}

fn names() -> Names {
    Names::default().name(NAME, &[&["127.0.0.1"]]).own("127.0.0.1")
}

async fn world(answers: Vec<Answer>) -> World {
    let server = serve(&[NAME, "127.0.0.1"], answers).await;
    World { source: source(&server, names(), &["127.0.0.1/32"]), server }
}

fn image(url: impl Into<String>) -> ImageRef {
    ImageRef { sha256: Sha256::digest(file()).into(), format: ImageFormat::Raw, url: url.into() }
}

impl World {
    fn image(&self) -> ImageRef {
        image(self.server.url(NAME, QUERY))
    }

    async fn refusal(&self) -> FetchError {
        self.refusal_behind(0).await
    }

    async fn refusal_behind(&self, offset: u64) -> FetchError {
        let url = self.server.url(NAME, "x.raw");
        let told = refusal(&self.source, &self.image(), offset).await;
        assert!(told.why.starts_with(&url), "{told}");
        told
    }

    /// All that comes behind a byte, and whether it begins anew.
    async fn come(&self, offset: u64) -> (Vec<u8>, u64, bool) {
        let Incoming { total_bytes, anew, mut bytes } =
            self.source.open(&self.image(), offset).await.unwrap();
        let mut all = Vec::new();
        while let Some(some) = bytes.next().await {
            all.extend(some.unwrap());
        }
        (all, total_bytes, anew)
    }
}

/// Why nothing comes, which is not what nobody is told.
async fn refusal(source: &FromAddress, image: &ImageRef, offset: u64) -> FetchError {
    match source.open(image, offset).await {
        Err(told) => {
            assert!(!told.why.contains("s3cr3t"), "{told}");
            told
        }
        Ok(incoming) => panic!("{} bytes come", incoming.total_bytes),
    }
}

#[tokio::test]
async fn a_file_comes_whole() {
    let world = world(vec![whole(&file(), file().len())]).await;
    assert_eq!(world.come(0).await, (file(), 40_960, false));
    let request = &world.server.requests()[0];
    assert!(request.starts_with("get /x.raw?token=s3cr3t http/1.1\r\n"), "{request}");
    assert!(request.contains("accept-encoding: identity\r\n"), "{request}");
    for never in ["range:", "authorization:", "cookie:", "referer:"] {
        assert!(!request.contains(never), "{request}");
    }
}

#[tokio::test]
async fn what_is_behind_a_byte_comes_or_all_of_it_does() {
    let parts = world(vec![part(&file(), 9_000, 31_960)]).await;
    assert_eq!(parts.come(9_000).await, (file()[9_000..].to_vec(), 40_960, false));
    assert_eq!(parts.server.offsets(), [9_000]);
    let whole = world(vec![whole(&file(), file().len())]).await;
    assert_eq!(whole.come(9_000).await, (file(), 40_960, true));
}

#[tokio::test]
async fn when_nothing_is_behind_a_byte_the_digest_says_what_came() {
    let complete = world(vec![said(416, &[("content-range", "bytes */40960")], b"")]).await;
    assert_eq!(complete.come(40_960).await, (Vec::new(), 40_960, false));
    // One that does not say how much there is, and one that cannot be right.
    for range in ["bytes */*", "bytes */40960"] {
        let world = world(vec![said(416, &[("content-range", range)], b""), whole(&file(), 40_960)]).await;
        assert_eq!(world.come(9_000).await, (file(), 40_960, true), "{range}");
        assert_eq!(world.server.offsets(), [9_000, 0]);
    }
}

#[tokio::test]
async fn another_part_than_was_asked_for_is_refused() {
    let file = file();
    let ranged = |range: &str, body: &[u8]| said(206, &[("content-range", range)], body);
    for answer in [
        ranged("bytes 8999-40959/40960", &file[8_999..]),
        ranged("bytes 9000-40959/*", &file[9_000..]),
        ranged("bytes 9000-40960/40960", &file[9_000..]),
        // As many bytes as the range has is what comes.
        ranged("bytes 9000-40958/40960", &file[9_000..]),
        ranged("bytes */40960", &file[9_000..]),
        ranged("lines 9000-40959/40960", &file[9_000..]),
        said(206, &[], &file[9_000..]),
    ] {
        let told = world(vec![answer]).await.refusal_behind(9_000).await;
        assert!(told.lasting && told.why.ends_with("another part than that behind byte 9000"), "{told}");
    }
    // A part, when all was asked for.
    let told = world(vec![part(&file, 0, file.len())]).await.refusal().await;
    assert!(told.lasting && told.why.ends_with("it answers 206"), "{told}");
}

#[test]
fn a_content_range_is_read_as_it_is_written() {
    let range = |first, last, total_bytes| Some(Range { sent: Some((first, last)), total_bytes });
    assert_eq!(Range::parse("bytes 0-9/10"), range(0, 9, 10));
    assert_eq!(Range::parse("bytes 5-7/10"), range(5, 7, 10));
    assert_eq!(Range::parse("bytes */10"), Some(Range { sent: None, total_bytes: 10 }));
    for wrong in [
        "",
        "bytes",
        "bytes 0-9",
        "bytes 0-9/*",
        "bytes 0-10/10",
        "bytes 9-0/10",
        "bytes -9/10",
        "bytes +0-9/10",
        "bytes 0-9/10/10",
        "bytes 0-9/99999999999999999999",
        "items 0-9/10",
    ] {
        assert_eq!(Range::parse(wrong), None, "{wrong}");
    }
}

#[tokio::test]
async fn what_an_answer_says_lasts_or_passes() {
    for (status, lasting) in [
        (204, true),
        (304, true),
        (400, true),
        (403, true),
        (404, true),
        (408, false),
        (410, true),
        (416, true),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let told = world(vec![said(status, &[], b"")]).await.refusal().await;
        assert_eq!(told.lasting, lasting, "{told}");
        assert!(told.why.ends_with(&format!("it answers {status}")), "{told}");
    }
}

#[tokio::test]
async fn a_file_of_unknown_length_or_packed_is_refused() {
    let chunked = said(200, &[("transfer-encoding", "chunked")], b"3\r\nabc\r\n0\r\n\r\n");
    let told = world(vec![chunked]).await.refusal().await;
    assert!(told.lasting && told.why.ends_with("how long the file is"), "{told}");
    for offset in [0, 9_000] {
        let packed = said(200, &[("content-encoding", "gzip")], b"abc");
        let told = world(vec![packed]).await.refusal_behind(offset).await;
        assert!(told.lasting && told.why.contains("packed"), "{told}");
    }
}

#[tokio::test]
async fn a_redirect_is_followed_five_times() {
    let file = file();
    let loops = world(vec![moved("/x.raw?token=s3cr3t")]).await;
    let told = loops.refusal().await;
    assert!(told.lasting && told.why.ends_with("it is redirected more than 5 times"), "{told}");
    assert_eq!(loops.server.requests().len(), 6);
    let mut answers = vec![moved("/y?token=other"); 5];
    answers.push(whole(&file, file.len()));
    assert_eq!(world(answers).await.come(0).await, (file, 40_960, false));
}

#[tokio::test]
async fn a_redirect_leads_to_nothing_that_an_address_may_not_be() {
    for (to, why) in [
        ("http://images.test/x", "http://images.test/x: images are fetched by https alone"),
        ("file:///etc/shadow", "file:///etc/shadow: images are fetched by https alone"),
        (
            "https://me:pw@images.test/",
            "https://images.test/: the address has a user's name or password in it",
        ),
        ("https://127.0.0.2/?token=s3cr3t", "does not name 127.0.0.2/32"),
        ("https://2130706434/", "does not name 127.0.0.2/32"),
        ("https://0x7f.2/", "does not name 127.0.0.2/32"),
        ("https://[::1]/", "does not name ::1/128"),
        ("https://[::ffff:7f00:2]/", "does not name 127.0.0.2/32"),
        ("https://[64:ff9b::a00:1]/", "names no network with 10.0.0.1"),
        ("//169.254.169.254/latest/meta-data", "no image is fetched from there"),
        ("https://[fd00:ec2::254]/latest", "no image is fetched from there"),
        ("https://inside.test/x", "names no network with 10.0.0.5"),
        ("https://own.test/x", "does not name 198.41.0.4/32"),
        ("https://[", "it is redirected to what is no URL"),
    ] {
        let server = serve(&[NAME], vec![moved(to)]).await;
        let names = names()
            .name("inside.test", &[&["10.0.0.5"]])
            .name("own.test", &[&["198.41.0.4"]])
            .own("198.41.0.4");
        let source = source(&server, names, &["127.0.0.1/32"]);
        let told = refusal(&source, &image(server.url(NAME, QUERY)), 0).await;
        assert!(told.lasting && told.why.ends_with(why), "{to}: {told}");
        assert!(told.why.starts_with(&server.url(NAME, "x.raw")), "{told}");
        assert_eq!(server.requests().len(), 1, "{to}");
    }
}

#[tokio::test]
async fn a_name_is_judged_by_what_it_is_when_it_is_connected_to() {
    let file = file();
    let server = serve(&[NAME], vec![whole(&file, file.len())]).await;
    let image = image(server.url(NAME, QUERY));
    for (answer, why) in [
        ("127.0.0.1", "127.0.0.1 is a loopback address"),
        ("10.0.0.5", "10.0.0.5 is a private address"),
        ("169.254.169.254", "169.254.169.254 is where a provider"),
        ("198.41.0.4", "198.41.0.4 is this host's own address"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1 is a loopback address"),
    ] {
        let names = Names::default().name(NAME, &[&[answer]]).own("198.41.0.4");
        let told = refusal(&source(&server, names, &[]), &image, 0).await;
        let expected = format!("every address of \"images.test\" is refused: {why}");
        assert!(told.lasting && told.why.contains(&expected), "{told}");
    }
    // What was right when somebody looked is not asked for again.
    let rebound = Names::default().name(NAME, &[&["127.0.0.1"], &["127.0.0.2"]]);
    let source = source(&server, rebound, &["127.0.0.1/32"]);
    assert!(source.open(&image, 0).await.is_ok());
    assert!(refusal(&source, &image, 0).await.why.contains("127.0.0.2 is a loopback address"));
    assert_eq!(server.requests().len(), 1, "nobody else was connected to");
}

#[tokio::test]
async fn an_address_in_the_place_of_a_name_is_judged_alike() {
    let file = file();
    let server = serve(&["127.0.0.1"], vec![whole(&file, file.len())]).await;
    let image = image(server.url("127.0.0.1", QUERY));
    let told = refusal(&source(&server, names(), &[]), &image, 0).await;
    assert!(told.lasting && told.why.ends_with("does not name 127.0.0.1/32"), "{told}");
    assert!(server.requests().is_empty());
    assert!(source(&server, names(), &["127.0.0.1/32"]).open(&image, 0).await.is_ok());
}

#[tokio::test]
async fn what_this_host_is_its_kernel_says() {
    let server = serve(&["localhost"], vec![whole(&file(), 40_960)]).await;
    let image = image(server.url("localhost", QUERY));
    let of = |networks: &[&str]| {
        let networks = networks.iter().map(|text| text.parse().unwrap()).collect();
        let guard = Guard::new(Arc::new(super::super::HostLookup), networks);
        FromAddress::new(guard, Some(server.authorities()))
    };
    let told = refusal(&of(&["127.0.0.0/8", "::/0"]), &image, 0).await;
    assert!(told.lasting && told.why.contains("is this host's own address"), "{told}");
    assert!(of(&["127.0.0.1/32"]).open(&image, 0).await.is_ok());
}

#[tokio::test]
async fn only_a_plain_https_url_is_an_address() {
    let server = serve(&[NAME], vec![said(404, &[], b"")]).await;
    let source = source(&server, names(), &["127.0.0.1/32"]);
    let long = format!("https://{NAME}/{}", "x".repeat(URL_BYTES_MAX));
    for (url, why) in [
        ("http://images.test/?token=s3cr3t", "http://images.test/: images are fetched by https alone"),
        (
            "https://s3cr3t@images.test/",
            "https://images.test/: the address has a user's name or password in it",
        ),
        (
            "https://me:s3cr3t@images.test/",
            "https://images.test/: the address has a user's name or password in it",
        ),
        (
            "https://:s3cr3t@images.test/",
            "https://images.test/: the address has a user's name or password in it",
        ),
        ("https:///?s3cr3t@", "its address is no URL"),
        ("s3cr3t", "its address is no URL"),
        (&long, "its address is longer than 8 KiB"),
    ] {
        let told = refusal(&source, &image(url), 0).await;
        assert_eq!((told.why.as_str(), told.lasting), (why, true), "{url}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn whom_the_authorities_do_not_know_is_not_asked() {
    let (server, other) = (serve(&["another.test"], vec![whole(&file(), 40_960)]).await, world(vec![]).await);
    let named = names().name("another.test", &[&["127.0.0.1"]]);
    // Another's name, and another's authority.
    for (source, host) in [
        (source(&server, names(), &["127.0.0.1/32"]), NAME),
        (source(&other.server, named, &["127.0.0.1/32"]), "another.test"),
    ] {
        let told = refusal(&source, &image(server.url(host, QUERY)), 0).await;
        assert!(!told.lasting && told.why.contains("certificate"), "{told}");
    }
    assert!(server.requests().is_empty());
    let gone = FromAddress::new(Guard::new(Arc::new(names()), vec![]), Some("/nowhere/ca.pem".into()));
    let told = refusal(&gone, &image("https://images.test/?token=s3cr3t"), 0).await;
    assert!(!told.lasting && told.why.contains("/nowhere/ca.pem"), "{told}");
}

/// The time of the system, in which pauses are short.
struct Brisk(SystemClock);

impl Clock for Brisk {
    fn now(&self) -> model::Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let pause = duration < Duration::from_secs(60);
        self.0.sleep(if pause { Duration::from_millis(1) } else { duration })
    }
}

/// What comes of an image on a host, and what is in its folder then.
async fn fetched(
    source: impl ImageSource,
    image: &ImageRef,
    dir: &TempDir,
) -> Result<Vec<u8>, Arc<ImageError>> {
    let (tell, mut ended) = tokio::sync::watch::channel(0);
    let images = Images::new(
        dir.path().join("images"),
        Arc::new(source),
        Arc::new(Brisk(SystemClock::new())),
        Supervisor::new(),
        Arc::new(move || tell.send_modify(|count| *count += 1)),
    );
    loop {
        match images.want(image) {
            Wanted::Here(image) => return Ok(std::fs::read(image.path).unwrap()),
            Wanted::Coming { .. } => ended.changed().await.unwrap(),
            Wanted::Failed(err) => return Err(err),
        }
    }
}

#[tokio::test]
async fn a_line_that_is_cut_goes_on_behind_what_has_come() {
    let file = file();
    let (cut, busy) = (whole(&file, 5_000), said(503, &[], b""));
    let World { server, source } =
        world(vec![cut, busy, part(&file, 5_000, 7_000), part(&file, 12_000, 28_960)]).await;
    let image = image(server.url(NAME, QUERY));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(fetched(source, &image, &dir).await.unwrap(), file);
    assert_eq!(server.offsets(), [0, 5_000, 5_000, 12_000]);
}

#[tokio::test]
async fn who_knows_no_parts_is_listened_to_from_the_beginning() {
    let file = file();
    let World { server, source } = world(vec![whole(&file, 5_000), whole(&file, file.len())]).await;
    let image = image(server.url(NAME, QUERY));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(fetched(source, &image, &dir).await.unwrap(), file);
    assert_eq!(server.offsets(), [0, 5_000]);
}

#[tokio::test]
async fn another_file_at_the_address_is_refused() {
    let World { server, source } = world(vec![said(200, &[], b"something else")]).await;
    let dir = tempfile::tempdir().unwrap();
    let err = fetched(source, &image(server.url(NAME, QUERY)), &dir).await.unwrap_err();
    assert!(err.is_lasting() && err.reason() == "ImageDigestMismatch", "{err}");
}

/// Says who was asked.
struct Asked(&'static str);

impl ImageSource for Asked {
    fn open<'a>(&'a self, _: &'a ImageRef, _: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        std::future::ready(Err(lasting(self.0.to_owned()))).boxed()
    }
}

#[tokio::test]
async fn an_image_without_an_address_is_the_own_stores() {
    let sources =
        super::super::Sources { store: Arc::new(Asked("store")), address: Arc::new(Asked("address")) };
    for (url, asked) in [("", "store"), ("https://images.test/", "address")] {
        let Err(told) = sources.open(&image(url), 0).await else { panic!("there is none") };
        assert_eq!(told.why, asked);
    }
}

#[test]
fn a_place_is_shown_by_its_host_and_its_path() {
    for (url, shown) in [
        ("https://a.test/x?y#z", "https://a.test/x".to_owned()),
        ("https://a.test:8443/x", "https://a.test:8443/x".to_owned()),
        ("https://[2001:db8::1]:8443/", "https://[2001:db8::1]:8443/".to_owned()),
        (&format!("https://a.test/{}", "x".repeat(500)), format!("https://a.test/{}...", "x".repeat(241))),
    ] {
        assert_eq!(Place::parse(url).unwrap().to_string(), shown);
    }
    assert_eq!(
        Place::parse("https://[::1]/").unwrap().address(),
        Some(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))
    );
    assert_eq!(Place::parse("https://0177.0.0.1/").unwrap().address(), Some(IpAddr::from([127, 0, 0, 1])));
    assert_eq!(Place::parse("https://a.test/").unwrap().address(), None);
}
