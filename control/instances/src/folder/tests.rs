use super::*;

fn digest(content: &[u8]) -> ImageDigest {
    Sha256::digest(content).into()
}

fn upload(number: u128, content: &[u8]) -> Upload {
    let image_id = ImageId::from_uuid(uuid::Uuid::from_u128(number));
    Upload { image_id, digest: digest(content), total_bytes: content.len() as u64, known: false }
}

fn known(upload: Upload) -> Upload {
    Upload { known: true, ..upload }
}

fn content() -> Vec<u8> {
    (0..700_000u32).map(|at| (at % 251) as u8).collect()
}

/// In pieces, as a request's body comes; with a break at its end.
fn bytes(content: &[u8], breaks: bool) -> ImageBytes {
    let mut pieces: Vec<std::io::Result<Bytes>> =
        content.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    if breaks {
        pieces.push(Err(std::io::Error::other("the line was cut")));
    }
    futures::stream::iter(pieces).boxed()
}

struct Folder {
    dir: tempfile::TempDir,
    images: ImageFolder,
}

fn folder() -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let images = ImageFolder::keeping_free(dir.path().join("images"), 0);
    Folder { dir, images }
}

impl Folder {
    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("images")).map(|entries| entries.count()).unwrap_or(0)
    }

    async fn read(&self, digest: ImageDigest, offset: u64) -> Option<(u64, Vec<u8>)> {
        let read = self.images.read(digest, offset).await.unwrap()?;
        let pieces: Vec<_> = read.bytes.collect().await;
        Some((read.total_bytes, pieces.into_iter().flat_map(|piece| piece.unwrap()).collect()))
    }
}

#[tokio::test]
async fn an_image_comes_in_pieces_and_is_read_from_anywhere() {
    let folder = folder();
    let (content, upload) = (content(), upload(1, &content()));
    let (digest, total) = (upload.digest, upload.total_bytes);
    assert_eq!(folder.images.received(upload).await.unwrap(), Received::Part(0));
    assert!(folder.read(digest, 0).await.is_none());
    let came = folder.images.append(upload, 0, bytes(&content[..300_000], true)).await;
    assert!(matches!(came, Err(ImageStoreError::BrokenOff(_))), "{came:?}");
    assert_eq!(folder.images.received(upload).await.unwrap(), Received::Part(300_000), "what came stays");
    let came = folder.images.append(upload, 0, bytes(&content, false)).await;
    assert!(matches!(came, Err(ImageStoreError::Offset { at: 300_000, given: 0 })), "{came:?}");
    let came = folder.images.append(upload, 300_000, bytes(&content[300_000..400_000], false)).await;
    assert_eq!(came.unwrap(), Received::Part(400_000));
    let came = folder.images.append(upload, 400_000, bytes(&content[400_000..], false)).await;
    assert_eq!(came.unwrap(), Received::Whole(total));
    assert_eq!(folder.images.received(known(upload)).await.unwrap(), Received::Whole(total));
    for offset in [0, 1, 262_144, 699_999, 700_000, 900_000] {
        let from = usize::try_from(offset).unwrap().min(content.len());
        assert_eq!(folder.read(digest, offset).await, Some((total, content[from..].to_vec())), "{offset}");
    }
    let again = folder.images.append(known(upload), 0, bytes(&[], false)).await;
    assert_eq!(again.unwrap(), Received::Whole(total), "it is there already");
    let other_size = Upload { total_bytes: total + 1, ..known(upload) };
    assert_eq!(folder.images.received(other_size).await.unwrap(), Received::Part(0));
    assert_eq!(folder.files(), 1);
}

#[tokio::test]
async fn who_knows_the_digest_alone_has_to_send_the_image() {
    let folder = folder();
    let content = content();
    let (one, two) = (upload(1, &content), upload(2, &content));
    folder.images.append(one, 0, bytes(&content, false)).await.unwrap();
    let came = folder.images.append(two, 0, bytes(&[], false)).await;
    assert_eq!(came.unwrap(), Received::Part(0));
    let came = folder.images.append(two, 0, bytes(&content, false)).await;
    assert_eq!(came.unwrap(), Received::Whole(two.total_bytes));
    assert_eq!(folder.read(one.digest, 0).await, Some((one.total_bytes, content)));
}

#[tokio::test]
async fn what_is_removed_is_gone_and_removing_it_again_is_no_fault() {
    let folder = folder();
    let content = content();
    let (whole, part) = (upload(1, &content), upload(2, b"another"));
    folder.images.append(whole, 0, bytes(&content, false)).await.unwrap();
    folder.images.append(part, 0, bytes(b"ano", false)).await.unwrap();
    for _ in 0..2 {
        folder.images.drop_part(part.image_id).await.unwrap();
        assert_eq!(folder.images.received(part).await.unwrap(), Received::Part(0));
    }
    assert!(folder.read(whole.digest, 0).await.is_some());
    for _ in 0..2 {
        folder.images.remove(whole.digest).await.unwrap();
        assert!(folder.read(whole.digest, 0).await.is_none());
    }
    assert_eq!(folder.files(), 0);
}

#[tokio::test]
async fn an_image_that_was_removed_while_it_came_is_sent_anew() {
    let folder = folder();
    let (content, upload) = (content(), upload(1, &content()));
    let images = folder.images.clone();
    let removes = futures::stream::once(async move {
        images.drop_part(upload.image_id).await.unwrap();
        Ok(Bytes::new())
    });
    let came = folder.images.append(upload, 0, removes.chain(bytes(&content, false)).boxed()).await;
    assert!(matches!(came, Err(ImageStoreError::Offset { at: 0, .. })), "{came:?}");
    let came = folder.images.append(upload, 0, bytes(&content, false)).await;
    assert_eq!(came.unwrap(), Received::Whole(upload.total_bytes));
}

#[tokio::test]
async fn another_process_that_sends_the_same_image_is_waited_for() {
    let folder = folder();
    // Apart from the first, as another process is: what it holds is in none of its lists.
    let elsewhere = ImageFolder::keeping_free(folder.dir.path().join("images"), 0);
    let (content, upload) = (content(), upload(1, &content()));
    let sends = elsewhere.clone();
    let half = bytes(&content[..300_000], false);
    let tries = futures::stream::once(async move {
        let came = sends.append(upload, 300_000, bytes(b"x", false)).await;
        assert!(matches!(came, Err(ImageStoreError::Busy)), "{came:?}");
        Ok(Bytes::new())
    });
    let rest = bytes(&content[300_000..], false);
    let came = folder.images.append(upload, 0, half.chain(tries).chain(rest).boxed()).await;
    assert_eq!(came.unwrap(), Received::Whole(upload.total_bytes));
    let again = elsewhere.append(upload, 0, bytes(&content, false)).await;
    assert_eq!(again.unwrap(), Received::Whole(upload.total_bytes));
}

#[test]
fn a_full_disk_is_told_as_such_and_takes_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("one.part"), dir.path().join("two.part"));
    std::fs::write(&path, b"what came").unwrap();
    std::fs::write(&other, b"another's").unwrap();
    let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let part = Part { path: path.clone(), file, hash: Sha256::new(), got: 9 };
    let came = part.write(&Bytes::from_static(b"more"));
    assert!(matches!(came.err(), Some(ImageStoreError::NoSpace(_))));
    assert!(!path.exists() && other.exists());
}

#[tokio::test]
async fn bytes_of_another_image_do_not_stay() {
    let folder = folder();
    let content = content();
    let another = Upload { digest: digest(b"another"), ..upload(1, &content) };
    let came = folder.images.append(another, 0, bytes(&content, false)).await;
    assert!(matches!(came, Err(ImageStoreError::OtherDigest { .. })), "{came:?}");
    let shorter = Upload { total_bytes: content.len() as u64 - 1, ..upload(1, &content) };
    let came = folder.images.append(shorter, 0, bytes(&content, false)).await;
    assert!(matches!(came, Err(ImageStoreError::TooLong { .. })), "{came:?}");
    assert_eq!(folder.files(), 0);
}

#[tokio::test]
async fn one_sender_at_a_time() {
    let folder = folder();
    let (content, upload) = (content(), upload(1, &content()));
    let total = upload.total_bytes;
    let stalls: ImageBytes = futures::stream::pending().boxed();
    let first = folder.images.append(upload, 0, stalls);
    let second = async {
        // The first one has its place from its first poll on.
        tokio::task::yield_now().await;
        folder.images.append(upload, 0, bytes(&content, false)).await
    };
    tokio::select! {
        biased;
        _ = first => panic!("it stalls"),
        came = second => assert!(matches!(came, Err(ImageStoreError::Busy)), "{came:?}"),
    }
    // What it had begun with the file comes to its end first.
    let came = loop {
        match folder.images.append(upload, 0, bytes(&content, false)).await {
            Err(ImageStoreError::Busy) => tokio::task::yield_now().await,
            came => break came,
        }
    };
    assert_eq!(came.unwrap(), Received::Whole(total), "the place of one that is gone is free");
}

#[tokio::test]
async fn what_has_no_room_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let images = ImageFolder::keeping_free(dir.path().join("images"), u64::MAX);
    let content = content();
    let came = images.append(upload(1, &content), 0, bytes(&content, false)).await;
    assert!(matches!(came, Err(ImageStoreError::Full { .. })), "{came:?}");
}

#[tokio::test]
async fn who_sends_the_same_image_is_in_nobodys_way() {
    let folder = folder();
    let content = content();
    let (one, two) = (upload(1, &content), upload(2, &content));
    let came = folder.images.append(one, 0, bytes(&content[..300_000], false)).await;
    assert_eq!(came.unwrap(), Received::Part(300_000));
    // Another announces the same, sends something else, and loses that alone.
    let lie = Upload { total_bytes: 1, ..two };
    let came = folder.images.append(lie, 0, bytes(b"x", false)).await;
    assert!(matches!(came, Err(ImageStoreError::OtherDigest { .. })), "{came:?}");
    let stalls = folder.images.append(two, 0, futures::stream::pending().boxed());
    let goes_on = folder.images.append(one, 300_000, bytes(&content[300_000..], false));
    tokio::select! {
        biased;
        _ = stalls => panic!("it stalls"),
        came = goes_on => assert_eq!(came.unwrap(), Received::Whole(one.total_bytes)),
    }
    assert_eq!(folder.images.received(known(two)).await.unwrap(), Received::Whole(two.total_bytes));
}
