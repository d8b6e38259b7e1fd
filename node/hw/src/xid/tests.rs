use proptest::prelude::*;

use super::*;

fn gpu(text: &str) -> Xid {
    find(text).unwrap_or_else(|| panic!("no Xid in {text:?}"))
}

#[test]
fn every_generation_of_lines_gives_its_code_and_device() {
    let cases = [
        ("NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", 79, "0000:c1:00.0"),
        ("NVRM: Xid (0000:03:00): 13, 0003 00000000", 13, "0000:03:00.0"),
        ("[  130.456] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed", 154, "0009:01:00.0"),
        ("Feb 01 14:25:31 host kernel: NVRM: Xid (PCI:0000:01:00): 38, pid=16,", 38, "0000:01:00.0"),
        ("NVRM: Xid (PCI:0000:04:00): 69", 69, "0000:04:00.0"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46", 28006, "0000:c1:00.0"),
    ];
    for (text, code, address) in cases {
        let xid = gpu(text);
        assert_eq!(xid.code, code, "{text}");
        assert_eq!(xid.pci_address.unwrap().to_string(), address, "{text}");
    }
}

#[test]
fn who_caused_it_is_read_where_it_is_known() {
    let xid =
        gpu("NVRM: Xid (PCI:0000:2b:00): 31, pid=1942, name=llama-bench, channel 0x00000002, MMU Fault");
    assert_eq!((xid.pid, xid.process.as_deref()), (Some(1942), Some("llama-bench")));
    assert_eq!(xid.detail, "channel 0x00000002, MMU Fault");
    let xid =
        gpu("NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.");
    assert_eq!((xid.pid, xid.process), (None, None));
    assert_eq!(xid.detail, "GPU has fallen off the bus.");
    let xid = gpu("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).");
    assert_eq!((xid.gpu_instance, xid.pid), (Some(5), Some(7194)));
}

#[test]
fn a_line_that_only_mentions_an_xid_is_none() {
    for text in [
        "NVRM: GPU at PCI:0000:05:00: GPU-7abf368a-5c5d-8600-2164-083a49fdba15",
        "nvidia-nvswitch2: open (major=510)",
        "NVRM: Xid (PCI:0000:05:00) 79",
        "NVRM: Xid (PCI:0000:05:00): soon, GPU",
        "",
    ] {
        assert_eq!(find(text), None, "{text}");
    }
    let odd = gpu("NVRM: Xid (PCI:0001:ab:cd): 69, no bus has a device 0xcd");
    assert_eq!((odd.code, odd.pci_address), (69, None), "an error is not lost with its address");
    let spoofed = "a.out[12]: segfault NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.";
    assert_eq!(parse(spoofed), None, "a kernel record must begin as an error line");
}

#[test]
fn application_errors_are_told_from_device_errors() {
    let code = |code: u32| gpu(&format!("NVRM: Xid (PCI:0000:01:00): {code}, x"));
    for application in [13, 31, 43, 45] {
        assert!(code(application).is_application(), "{application}");
    }
    for device in [48, 63, 64, 74, 79, 94, 95, 119, 145, 999] {
        assert!(!code(device).is_application(), "{device}");
    }
    assert!(gpu("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63").is_fatal_switch_error());
    assert!(!gpu("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 13, Non-fatal, x").is_fatal_switch_error());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_text_makes_the_parser_panic(text in "(NVRM: Xid \\(|nvidia-nvswitch0: SXid \\(|PCI:|0000:01:00|\\): |79|, |pid=|name=| GPU-I:|\\PC){0,16}") {
        if let Some(xid) = find(&text) {
            prop_assert!(xid.detail.len() <= wire::inventory::TEXT_BYTES_MAX);
        }
    }
}
