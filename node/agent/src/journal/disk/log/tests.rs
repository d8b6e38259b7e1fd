use super::*;
use std::sync::{Arc, Mutex};

/// A disk in memory that fails on demand.
#[derive(Clone)]
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails: Arc<Mutex<bool>>,
}

impl Memory {
    fn new() -> Self {
        Self { bytes: Arc::new(Mutex::new(vec![0; LOG_BYTES as usize])), fails: Arc::default() }
    }

    fn read_under(&self, checkpoint: u64) -> Result<Vec<Vec<u8>>, Rot> {
        Log::read(self, checkpoint).unwrap()
    }
}

impl Area for Memory {
    fn read(&self) -> io::Result<Vec<u8>> {
        Ok(self.bytes.lock().unwrap().clone())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if *self.fails.lock().unwrap() {
            return Err(io::Error::other("the disk says no"));
        }
        let at = at as usize;
        self.bytes.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn payload(n: u8) -> Vec<u8> {
    vec![n; 10 + usize::from(n)]
}

/// A log under checkpoint 7 with this many records.
fn filled(count: u8) -> (Memory, Log) {
    let memory = Memory::new();
    let mut log = Log::new(Box::new(memory.clone()), 7);
    (0..count).for_each(|n| log.append(&payload(n)).unwrap());
    (memory, log)
}

#[test]
fn what_is_appended_is_read_in_its_order_and_under_its_checkpoint_alone() {
    let (memory, _) = filled(5);
    assert_eq!(memory.read_under(7).unwrap(), (0..5).map(payload).collect::<Vec<_>>());
    assert_eq!(memory.read_under(6).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(memory.read_under(8).unwrap(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_log_that_begins_again_forgets_what_lies_behind() {
    let (memory, mut log) = filled(5);
    log.begin(8);
    log.append(&payload(9)).unwrap();
    assert_eq!(memory.read_under(8).unwrap(), [payload(9)]);
}

#[test]
fn a_last_record_cut_off_at_any_byte_is_as_if_it_were_not_there() {
    let (memory, log) = filled(3);
    let whole = memory.bytes.lock().unwrap().clone();
    let last = padded(HEADER_BYTES + payload(2).len());
    for kept in 0..HEADER_BYTES + payload(2).len() {
        let from = log.at - last + kept;
        memory.bytes.lock().unwrap()[from..].fill(0);
        assert_eq!(memory.read_under(7).unwrap(), [payload(0), payload(1)], "{kept} bytes of it");
        memory.bytes.lock().unwrap().copy_from_slice(&whole);
    }
}

#[test]
fn a_damaged_record_with_whole_ones_behind_it_is_rot() {
    let (memory, log) = filled(3);
    let last = log.at - padded(HEADER_BYTES + payload(2).len());
    for at in 0..last {
        // Padding is nobody's.
        let mut damaged = memory.clone();
        damaged.bytes = Arc::new(Mutex::new(memory.bytes.lock().unwrap().clone()));
        damaged.bytes.lock().unwrap()[at] ^= 0x40;
        match damaged.read_under(7) {
            Err(Rot { sequence }) => assert!(sequence < 2),
            Ok(found) => assert_eq!(found.len(), 3, "byte {at}"),
        }
    }
    assert_eq!(memory.read_under(7).unwrap().len(), 3);
}

#[test]
fn after_an_error_nothing_is_appended_before_the_next_checkpoint() {
    let (memory, mut log) = filled(1);
    *memory.fails.lock().unwrap() = true;
    assert!(log.append(&payload(1)).is_err());
    *memory.fails.lock().unwrap() = false;
    assert!(!log.has_room(1));
    log.begin(8);
    assert!(log.has_room(1));
}

#[test]
fn a_full_log_has_no_room() {
    let (memory, mut log) = filled(0);
    let big = vec![1; 60_000];
    let mut count = 0;
    while log.has_room(big.len()) {
        log.append(&big).unwrap();
        count += 1;
    }
    assert_eq!(memory.read_under(7).unwrap().len(), count);
    assert_eq!(count, 4);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn a_file_of_anything_is_read_without_harm(bytes in proptest::collection::vec(0u8..5, 0..4096), at in 0usize..4096) {
        let mut bytes = bytes;
        if at + 4 <= bytes.len() {
            bytes[at..at + 4].copy_from_slice(&MAGIC);
        }
        let _ = records(&bytes, 0);
    }
}
