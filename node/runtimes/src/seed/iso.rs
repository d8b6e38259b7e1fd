//! A disc image with a few small files: ISO 9660 (ECMA-119) with the Joliet supplement, which is what keeps their names as
//! they are. One folder, one extent for each file, no dates, so that equal files make equal images.
//!
//! ```text
//! sector  0  16        17      18   19, 20       21, 22       23     24      25 ...
//!         -  volume,   Joliet  end  path tables  path tables  files  files   contents
//! ```

const SECTOR: usize = 2048;
/// What cloud-init looks for.
const LABEL: &str = "cidata";
const FIRST_FILE: usize = 25;
/// How many fit the folder's one sector, with the longest names.
const FILES_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 32;
/// 1 January 1980: no file is of any time.
const DATE: [u8; 7] = [80, 1, 1, 0, 0, 0, 0];
const ROOT_TABLE_BYTES: u32 = 10;

/// Which of the two trees over the same contents.
#[derive(Clone, Copy)]
enum Tree {
    Plain,
    Joliet,
}

impl Tree {
    fn path_tables(self) -> (u32, u32) {
        match self {
            Self::Plain => (19, 20),
            Self::Joliet => (21, 22),
        }
    }

    fn folder(self) -> u32 {
        match self {
            Self::Plain => 23,
            Self::Joliet => 24,
        }
    }

    /// As the tree's names are written: eight of A-Z, 0-9 and '_', or UCS-2.
    fn name(self, name: &str) -> Vec<u8> {
        match self {
            Self::Plain => {
                let short = name.chars().take(8).map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() });
                format!("{}.;1", short.collect::<String>()).into_bytes()
            }
            Self::Joliet => name.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }
}

/// The image. Names are of a-z, digits and '-', in order, and differ in their first eight characters; there are at most
/// eight of them.
pub fn write(files: &[(&str, &[u8])]) -> Vec<u8> {
    debug_assert!(files.len() <= FILES_MAX && files.iter().all(|(name, _)| name.len() <= NAME_CHARS_MAX));
    debug_assert!(files.is_sorted_by(|a, b| a.0 < b.0));
    let sectors = |bytes: usize| bytes.div_ceil(SECTOR);
    let total = FIRST_FILE + files.iter().map(|(_, content)| sectors(content.len())).sum::<usize>();
    let mut image = vec![0; total * SECTOR];
    let mut next = FIRST_FILE;
    let mut extents = Vec::with_capacity(files.len());
    for (name, content) in files {
        image[next * SECTOR..][..content.len()].copy_from_slice(content);
        extents.push((*name, small(next), small(content.len())));
        next += sectors(content.len());
    }
    volume(&mut image[16 * SECTOR..17 * SECTOR], Tree::Plain, small(total));
    volume(&mut image[17 * SECTOR..18 * SECTOR], Tree::Joliet, small(total));
    put(&mut image, 18 * SECTOR, b"\xffCD001\x01");
    for tree in [Tree::Plain, Tree::Joliet] {
        let (little, big) = tree.path_tables();
        let root = |place: [u8; 4], parent: [u8; 2]| [&[1, 0][..], &place, &parent, &[0, 0]].concat();
        put(&mut image, at(little), &root(tree.folder().to_le_bytes(), 1u16.to_le_bytes()));
        put(&mut image, at(big), &root(tree.folder().to_be_bytes(), 1u16.to_be_bytes()));
        put(&mut image, at(tree.folder()), &folder(tree, &extents));
    }
    image
}

/// Numbers of sectors and bytes of an image that is bounded by what a seed may hold.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a seed is far below 4 GiB")
}

fn at(sector: u32) -> usize {
    sector as usize * SECTOR
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// As ISO 9660 has numbers: little-endian, then big-endian.
fn both32(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn both16(number: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&number.to_le_bytes());
    bytes[2..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// A volume descriptor (ECMA-119 8.4 and 8.5).
fn volume(sector: &mut [u8], tree: Tree, total: u32) {
    let (little, big) = tree.path_tables();
    let kind = match tree {
        Tree::Plain => 1,
        Tree::Joliet => 2,
    };
    put(sector, 0, &[kind]);
    put(sector, 1, b"CD001\x01");
    // Texts that nothing is said in: blanks, of one byte or two.
    for (start, end) in [(8, 40), (40, 72), (190, 813)] {
        for (place, byte) in sector[start..end].iter_mut().enumerate() {
            *byte = match tree {
                Tree::Plain => b' ',
                Tree::Joliet => [0, b' '][place % 2],
            };
        }
    }
    match tree {
        Tree::Plain => put(sector, 40, LABEL.as_bytes()),
        Tree::Joliet => {
            put(sector, 40, &tree.name(LABEL));
            put(sector, 88, b"%/E");
        }
    }
    put(sector, 80, &both32(total));
    put(sector, 120, &both16(1));
    put(sector, 124, &both16(1));
    put(sector, 128, &both16(SECTOR as u16));
    put(sector, 132, &both32(ROOT_TABLE_BYTES));
    put(sector, 140, &little.to_le_bytes());
    put(sector, 148, &big.to_be_bytes());
    put(sector, 156, &record(&[0], tree.folder(), SECTOR as u32, true));
    for date in [813, 830, 847, 864] {
        put(sector, date, b"0000000000000000\0");
    }
    put(sector, 881, &[1]);
}

/// The one folder: itself, its parent, which is itself too, and the files.
fn folder(tree: Tree, files: &[(&str, u32, u32)]) -> Vec<u8> {
    let own = |name: u8| record(&[name], tree.folder(), SECTOR as u32, true);
    let mut bytes = [own(0), own(1)].concat();
    for (name, sector, length) in files {
        bytes.extend(record(&tree.name(name), *sector, *length, false));
    }
    bytes
}

/// A directory record (ECMA-119 9.1), of even length.
fn record(name: &[u8], sector: u32, length: u32, is_folder: bool) -> Vec<u8> {
    let name_bytes = u8::try_from(name.len()).expect("names are bounded");
    let padding = usize::from(name.len().is_multiple_of(2));
    let mut bytes = vec![0, 0];
    bytes.extend(both32(sector));
    bytes.extend(both32(length));
    bytes.extend(DATE);
    bytes.extend([if is_folder { 2 } else { 0 }, 0, 0]);
    bytes.extend(both16(1));
    bytes.push(name_bytes);
    bytes.extend(name);
    bytes.extend(vec![0; padding]);
    bytes[0] = u8::try_from(bytes.len()).expect("names are bounded");
    bytes
}

#[cfg(test)]
mod tests;
