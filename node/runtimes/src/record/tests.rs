use tempfile::TempDir;

use super::*;

#[test]
fn a_record_is_read_as_it_was_written_or_not_at_all() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("record");
    assert_eq!(read::<InstanceRecord>(&path).expect("it is absent"), None);
    let record = InstanceRecord {
        version: InstanceRecord::VERSION,
        image_path: "/images/one".into(),
        image_format: "qcow2".into(),
        vcpus: 2,
        memory_bytes: 1 << 30,
        disk_backed_bytes: 0,
        mems: Vec::new(),
        hugepage_bytes: 0,
        gpus: Vec::new(),
    };
    write(&path, &record).expect("written");
    assert_eq!(read(&path).expect("it is whole"), Some(record));
    let text = std::fs::read_to_string(&path).expect("a file");
    for damaged in [
        text.replace("/images/one", "/images/two"),
        text[..70].to_owned(),
        String::new(),
        text.replacen('1', "2", 1),
    ] {
        std::fs::write(&path, &damaged).expect("a file");
        assert!(read::<InstanceRecord>(&path).is_err(), "{damaged}");
    }
}
