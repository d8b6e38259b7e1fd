use super::*;
use crate::conformance::sample;
use crate::instance::MemoryPlace;
use crate::name;

fn rendered(accelerator: Accelerator, format: ImageFormat) -> String {
    placed(accelerator, format, &Placement::default())
}

fn placed(accelerator: Accelerator, format: ImageFormat, placement: &Placement) -> String {
    given(accelerator, format, placement, &[])
}

fn given(
    accelerator: Accelerator,
    format: ImageFormat,
    placement: &Placement,
    devices: &[PciAddress],
) -> String {
    let instance = sample(1);
    let image = Image { path: "/images/<one> & \"two\"".into(), format };
    render(&Definition {
        name: &name::domain(instance.id),
        uuid: instance.id.uuid(),
        accelerator,
        vcpus: 2,
        memory_bytes: 1 << 30,
        boot: Boot::Disk { disk: Path::new("/i/disk.qcow2"), image: &image, seed: Path::new("/i/seed.iso") },
        nics: &instance.nics,
        taps: vec![name::tap(instance.id, 0)],
        console: Path::new("/i/console.sock"),
        placement,
        devices,
    })
}

/// Every attribute `name` of elements `element`, in order.
fn attributes(document: &str, element: &str, name: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(document);
    let mut found = Vec::new();
    loop {
        match reader.read_event().expect("it is well-formed") {
            Event::Start(start) | Event::Empty(start) if start.name().as_ref() == element => {
                let value = start.try_get_attribute(name).expect("it is well-formed");
                found.extend(value.map(|value| {
                    value
                        .normalized_value(quick_xml::XmlVersion::Implicit1_0)
                        .expect("it is well-formed")
                        .into_owned()
                }));
            }
            Event::Eof => return found,
            _ => {}
        }
    }
}

#[test]
fn everything_that_is_opened_is_named_with_its_format() {
    let document = rendered(Accelerator::Tcg, ImageFormat::Qcow2);
    assert_eq!(
        attributes(&document, "source", "file"),
        ["/i/disk.qcow2", "/images/<one> & \"two\"", "/i/seed.iso"]
    );
    assert_eq!(attributes(&document, "driver", "type"), ["qcow2", "raw"]);
    assert_eq!(attributes(&document, "format", "type"), ["qcow2"]);
    // The one that says where the chain ends keeps libvirt from looking for it.
    assert_eq!(document.matches("<backingStore/>").count(), 1, "{document}");
    let disc = rendered(Accelerator::Tcg, ImageFormat::Iso);
    assert_eq!(attributes(&disc, "driver", "type"), ["qcow2", "raw", "raw"]);
    assert_eq!(attributes(&disc, "boot", "order"), ["1", "2"]);
    assert_eq!(disc.matches("<backingStore/>").count(), 1, "{disc}");
}

#[test]
fn nobody_becomes_the_owner_of_an_image() {
    for format in [ImageFormat::Qcow2, ImageFormat::Raw, ImageFormat::Iso] {
        let document = rendered(Accelerator::Tcg, format);
        assert_eq!(attributes(&document, "seclabel", "relabel"), ["no"], "{document}");
    }
}

#[test]
fn nothing_listens_but_the_console() {
    let document = rendered(Accelerator::Kvm, ImageFormat::Raw);
    for absent in ["graphics", "spice", "vnc", "channel", "redirdev", "hostdev", "filesystem", "qemu:"] {
        assert!(!document.contains(absent), "{absent}: {document}");
    }
    assert_eq!(attributes(&document, "source", "path"), ["/i/console.sock"]);
    assert_eq!(attributes(&document, "source", "mode"), ["bind"]);
}

#[test]
fn a_card_is_on_its_bridge_by_a_tap_of_a_known_name() {
    let document = rendered(Accelerator::Kvm, ImageFormat::Raw);
    assert_eq!(attributes(&document, "mac", "address"), ["52:54:00:00:00:01"]);
    assert_eq!(attributes(&document, "source", "bridge"), ["br0"]);
    let tap = name::tap(sample(1).id, 0);
    assert!(attributes(&document, "target", "dev").contains(&tap), "{document}");
}

#[test]
fn one_that_may_be_anywhere_says_nothing_of_its_place() {
    let document = rendered(Accelerator::Kvm, ImageFormat::Raw);
    assert_eq!(attributes(&document, "vcpu", "cpuset"), Vec::<String>::new());
    for absent in ["cputune", "numatune", "memoryBacking"] {
        assert!(!document.contains(absent), "{absent}: {document}");
    }
}

#[test]
fn a_vcpu_is_on_its_cpu_and_more_cpus_are_for_all() {
    let memory = MemoryPlace { mems: vec![1, 2], hugepage_bytes: 1 << 30 };
    let pinned = placed(Accelerator::Kvm, ImageFormat::Raw, &Placement { cpus: vec![4, 9], memory });
    assert_eq!(attributes(&pinned, "vcpupin", "vcpu"), ["0", "1"]);
    assert_eq!(attributes(&pinned, "vcpupin", "cpuset"), ["4", "9"]);
    assert_eq!(attributes(&pinned, "vcpu", "cpuset"), Vec::<String>::new());
    assert_eq!(attributes(&pinned, "memory", "nodeset"), ["1,2"]);
    assert_eq!(attributes(&pinned, "memory", "mode"), ["strict"]);
    assert_eq!(attributes(&pinned, "page", "size"), ["1073741824"]);
    let floating = Placement { cpus: vec![4, 5, 9], ..Placement::default() };
    let floating = placed(Accelerator::Kvm, ImageFormat::Raw, &floating);
    assert_eq!(attributes(&floating, "vcpu", "cpuset"), ["4,5,9"]);
    assert!(!floating.contains("vcpupin"), "{floating}");
}

#[test]
fn devices_of_the_host_are_the_guests_where_they_wait() {
    let devices = ["0000:53:00.0", "0001:c3:1f.7"].map(|address| address.parse().expect("an address"));
    let document = given(Accelerator::Kvm, ImageFormat::Raw, &Placement::default(), &devices);
    assert_eq!(attributes(&document, "hostdev", "managed"), ["no", "no"]);
    assert_eq!(attributes(&document, "address", "domain"), ["0x0000", "0x0001"]);
    assert_eq!(attributes(&document, "address", "bus"), ["0x53", "0xc3"]);
    assert_eq!(attributes(&document, "address", "slot"), ["0x00", "0x1f"]);
    assert_eq!(attributes(&document, "address", "function"), ["0x0", "0x7"]);
}

#[test]
fn the_processor_is_the_hosts_or_an_emulated_one() {
    let kvm = rendered(Accelerator::Kvm, ImageFormat::Raw);
    assert_eq!(attributes(&kvm, "domain", "type"), ["kvm"]);
    assert_eq!(attributes(&kvm, "cpu", "mode"), ["host-passthrough"]);
    let tcg = rendered(Accelerator::Tcg, ImageFormat::Raw);
    assert_eq!(attributes(&tcg, "domain", "type"), ["qemu"]);
    assert_eq!(attributes(&tcg, "cpu", "mode"), ["maximum"]);
}
