use proptest::prelude::*;

use super::*;

#[test]
fn an_x86_server_is_read() {
    let cpu = |n: u32, package: u32, core: u32| {
        format!(
            "processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n\
             physical id\t: {package}\ncore id\t\t: {core}\nflags\t\t: fpu vmx avx512f amx_tile nosuch\n\n"
        )
    };
    let text: String = [cpu(0, 0, 0), cpu(1, 0, 1), cpu(2, 1, 0), cpu(3, 0, 0)].concat();
    let info = cpuinfo(&text);
    assert_eq!(info.model.as_deref(), Some("Intel(R) Xeon(R) Platinum 8480C"));
    assert_eq!((info.threads, info.sockets, info.cores), (4, Some(2), Some(3)));
    assert_eq!(info.flags, ["amx_tile", "avx512f", "vmx"]);
}

#[test]
fn an_arm_server_gets_its_name_from_its_numbers() {
    let text = "processor\t: 0\nFeatures\t: fp asimd sve2 bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
    let info = cpuinfo(text);
    assert_eq!(info.model.as_deref(), Some("Neoverse-V2"));
    assert_eq!(info.vendor.as_deref(), Some("ARM"));
    assert_eq!((info.threads, info.sockets, info.cores), (1, None, None));
    assert_eq!(info.flags, ["asimd", "bf16", "sve2"]);
    let unknown = cpuinfo("processor: 0\nCPU implementer : 0x99\nCPU part : 0xd4f\n");
    assert_eq!((unknown.model, unknown.vendor), (None, None));
}

#[test]
fn meminfo_is_in_bytes_and_sums_its_huge_pages() {
    let text = "MemTotal:       65836000 kB\nMemFree:  100 kB\nMemAvailable:   30000000 kB\n\
                HugePages_Total:      32\nHugePages_Free:       30\nHugepagesize:    1048576 kB\n";
    let info = meminfo(text);
    assert_eq!(info.total, Some(65_836_000 * 1024));
    assert_eq!(info.hugetlb, Some(32 << 30));
    let live = info.live().unwrap();
    assert_eq!(live.available_bytes, 30_000_000 * 1024);
    assert_eq!(
        meminfo("Hugetlb: 4096 kB\nHugePages_Total: 1\nHugepagesize: 2048 kB\n").hugetlb,
        Some(4 << 20)
    );
    assert_eq!(meminfo("MemTotal: 12 parsecs\nMemAvailable: 1 kB").live(), None);
    assert_eq!(node_total_bytes("Node 1 MemTotal:       1024 kB\nNode 1 MemFree: 1 kB\n"), Some(1 << 20));
    assert_eq!(node_total_bytes("Node 1 MemFree: 1 kB\n"), None);
}

#[test]
fn pressure_is_in_hundredths_of_a_percent() {
    let text =
        "some avg10=1.22 avg60=0.05 avg300=100.00 total=19720378\nfull avg10=0.00 avg60=0.00 total=0\n";
    let read = pressure(text);
    let some = read.some.unwrap();
    assert_eq!(
        (some.avg10_centi_percent, some.avg60_centi_percent, some.avg300_centi_percent),
        (122, 5, 10_000)
    );
    assert_eq!(some.total_us, 19_720_378);
    assert_eq!(read.full, None, "a line without avg300 is no line");
    assert_eq!(pressure("some avg10=101.00 avg60=0.00 avg300=0.00 total=1").some, None);
}

#[test]
fn steal_is_the_share_between_two_readings() {
    let first = cpu_times("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1\n").unwrap();
    let second = cpu_times("cpu  150 0 100 1200 0 0 0 50 7 0\n").unwrap();
    assert_eq!(second.steal_centi_percent_since(&first), Some(1_000));
    assert_eq!(first.steal_centi_percent_since(&second), None, "counters went back");
    assert_eq!(first.steal_centi_percent_since(&first), None, "no time passed");
    for bad in ["", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu  a b c d e f g h"] {
        assert_eq!(cpu_times(bad), None, "{bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_text_makes_a_parser_panic(text in "(processor|physical id|core id|MemTotal|some|full|cpu |avg10|total|CPU part|[:= \n\t.,0-9x-]|kB|\\PC){0,60}") {
        cpuinfo(&text);
        meminfo(&text);
        node_total_bytes(&text);
        pressure(&text);
        cpu_times(&text);
    }
}
