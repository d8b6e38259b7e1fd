use super::*;

const CLUSTER: ClusterMarks = ClusterMarks { system_identifier: 7, timeline: 2, lsn: 1_000 };

fn marks(epoch: i64, fence: i64, cluster: Option<ClusterMarks>) -> Marks {
    Marks { deployment_id: "d".to_owned(), epoch, fence, cluster }
}

#[test]
fn marks_that_went_back_are_suspected_and_those_that_went_on_are_not() {
    let recorded = marks(3, 10, Some(CLUSTER));
    let with = |change: fn(&mut ClusterMarks)| {
        let mut cluster = CLUSTER;
        change(&mut cluster);
        Some(cluster)
    };
    let cases: [(&str, Marks, &str); 11] = [
        ("the same", marks(3, 10, Some(CLUSTER)), "ok"),
        ("a later position", marks(3, 11, with(|c| c.lsn += 1)), "ok"),
        (
            "a promoted standby behind the position",
            marks(
                3,
                10,
                with(|c| {
                    c.timeline += 1;
                    c.lsn -= 500
                }),
            ),
            "ok",
        ),
        ("the control file became unreadable", marks(3, 10, None), "ok"),
        ("a confirmed restore", marks(4, 1, with(|c| c.system_identifier = 8)), "confirmed"),
        ("an older epoch", marks(2, 10, Some(CLUSTER)), "suspected"),
        ("a lower counter", marks(3, 9, Some(CLUSTER)), "suspected"),
        ("a lower counter on a newer timeline", marks(3, 9, with(|c| c.timeline += 1)), "suspected"),
        ("another cluster", marks(3, 10, with(|c| c.system_identifier = 8)), "suspected"),
        ("an older timeline", marks(3, 10, with(|c| c.timeline = 1)), "suspected"),
        ("an earlier position", marks(3, 10, with(|c| c.lsn -= 1)), "suspected"),
    ];
    for (name, found, wanted) in cases {
        let verdict = match judge(Some(&recorded), &found) {
            RestoreVerdict::Consistent => "ok",
            RestoreVerdict::Confirmed => "confirmed",
            RestoreVerdict::Suspected { .. } => "suspected",
            RestoreVerdict::FirstSeen => "first",
        };
        assert_eq!(verdict, wanted, "{name}");
    }
    assert_eq!(judge(None, &recorded), RestoreVerdict::FirstSeen);
}

#[test]
fn a_record_reads_back_and_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    assert!(read_record(&path).unwrap().is_none());
    let written = marks(3, 10, Some(CLUSTER));
    write_record(&path, &written).unwrap();
    assert_eq!(read_record(&path).unwrap(), Some(written));

    let text = std::fs::read_to_string(&path).unwrap();
    for damage in
        [text.replace("10", "11"), text.replace("\"version\": 1", "\"version\": 2"), text[..40].to_owned()]
    {
        std::fs::write(&path, damage).unwrap();
        assert!(matches!(read_record(&path), Err(RestoreError::Damaged { .. })));
    }
}
