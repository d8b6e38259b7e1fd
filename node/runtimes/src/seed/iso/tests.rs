use proptest::prelude::*;

use super::*;

/// Reads an image as a kernel would: from a volume descriptor to its folder, and from there to the files.
fn read(image: &[u8], descriptor: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let le = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize;
    let volume = &image[descriptor * SECTOR..][..SECTOR];
    assert_eq!(&volume[1..6], b"CD001");
    assert_eq!(le(&volume[80..84]) * SECTOR, image.len());
    assert_eq!(volume[128..132], [0, 8, 8, 0]);
    let root = &volume[156..190];
    let folder = &image[le(&root[2..6]) * SECTOR..][..le(&root[10..14])];
    let mut files = Vec::new();
    let mut at = 0;
    while folder[at] != 0 {
        let record = &folder[at..at + usize::from(folder[at])];
        assert_eq!(record[2..6].iter().rev().collect::<Vec<_>>(), record[6..10].iter().collect::<Vec<_>>());
        let name = record[33..33 + usize::from(record[32])].to_vec();
        if record[25] & 2 == 0 {
            files.push((name, image[le(&record[2..6]) * SECTOR..][..le(&record[10..14])].to_vec()));
        }
        at += record.len();
    }
    files
}

fn ucs2(name: &str) -> Vec<u8> {
    name.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

#[test]
fn both_trees_lead_to_the_same_files() {
    let long = vec![b'x'; 5000];
    let files: [(&str, &[u8]); 3] =
        [("meta-data", b"instance-id: one\n"), ("network-config", &long), ("user-data", b"")];
    let image = write(&files);
    assert_eq!(&image[16 * SECTOR + 40..][..7], b"cidata ");
    assert_eq!(&image[17 * SECTOR + 40..][..14], b"\0c\0i\0d\0a\0t\0a\0 ");
    assert_eq!(image[18 * SECTOR], 0xff);
    let plain = read(&image, 16);
    let joliet = read(&image, 17);
    let names = |files: &[(Vec<u8>, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&plain), [b"META_DAT.;1", b"NETWORK_.;1", b"USER_DAT.;1"].map(|name| name.to_vec()));
    assert_eq!(names(&joliet), files.map(|(name, _)| ucs2(name)));
    for (at, (_, content)) in files.iter().enumerate() {
        assert_eq!(plain[at].1, *content);
        assert_eq!(joliet[at].1, *content);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn contents_are_kept_whatever_they_are(
        contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..7000), 0..4),
    ) {
        let names = ["a-file", "b-file", "c-file", "d-file"];
        let files: Vec<(&str, &[u8])> = names.into_iter().zip(contents.iter().map(Vec::as_slice)).collect();
        let image = write(&files);
        prop_assert_eq!(image.len() % SECTOR, 0);
        let found: Vec<Vec<u8>> = read(&image, 17).into_iter().map(|(_, content)| content).collect();
        prop_assert_eq!(found, contents);
    }
}
