//! A machine as libvirt's domain XML has it. Everything in it was checked where it entered, and everything the hypervisor
//! may open is named with its format: libvirt probes nothing, and there is no display to connect to.

use std::io;
use std::path::Path;

use quick_xml::Writer;
use quick_xml::events::BytesText;
use uuid::Uuid;

use super::path_text;
use crate::accel::Accelerator;
use crate::instance::{Image, ImageFormat, Nic, Placement};
use crate::vfio::PciAddress;

/// Marks what we defined, for people and other tools: what is ours is told by name and UUID.
const NAMESPACE: &str = "https://better-compute.dev/libvirt/1";

pub struct Definition<'a> {
    pub name: &'a str,
    pub uuid: Uuid,
    pub accelerator: Accelerator,
    pub vcpus: u32,
    pub memory_bytes: u64,
    pub boot: Boot<'a>,
    pub nics: &'a [Nic],
    /// The host's interface of each card.
    pub taps: Vec<String>,
    /// Where the serial console's socket will be.
    pub console: &'a Path,
    pub placement: &'a Placement,
    /// The host's, which wait for it.
    pub devices: &'a [PciAddress],
}

pub enum Boot<'a> {
    Disk { disk: &'a Path, image: &'a Image, seed: &'a Path },
    Kernel { kernel: &'a Path, initrd: &'a Path, line: &'a str },
}

type Xml = Writer<Vec<u8>>;

pub fn render(definition: &Definition<'_>) -> String {
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    domain(&mut xml, definition).expect("a buffer takes what is written to it");
    String::from_utf8(xml.into_inner()).expect("only text was written")
}

fn empty(xml: &mut Xml, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
    xml.create_element(name).with_attributes(attributes.iter().copied()).write_empty().map(drop)
}

fn text(xml: &mut Xml, name: &str, attributes: &[(&str, &str)], content: &str) -> io::Result<()> {
    let element = xml.create_element(name).with_attributes(attributes.iter().copied());
    element.write_text_content(BytesText::new(content)).map(drop)
}

fn within(
    xml: &mut Xml,
    name: &str,
    attributes: &[(&str, &str)],
    content: impl FnOnce(&mut Xml) -> io::Result<()>,
) -> io::Result<()> {
    let element = xml.create_element(name).with_attributes(attributes.iter().copied());
    element.write_inner_content(content).map(drop)
}

fn domain(xml: &mut Xml, definition: &Definition<'_>) -> io::Result<()> {
    let kind = match definition.accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "qemu",
    };
    within(xml, "domain", &[("type", kind)], |xml| {
        text(xml, "name", &[], definition.name)?;
        text(xml, "uuid", &[], &definition.uuid.to_string())?;
        within(xml, "metadata", &[], |xml| {
            empty(xml, "bc:instance", &[("xmlns:bc", NAMESPACE), ("name", definition.name)])
        })?;
        text(xml, "memory", &[("unit", "b")], &definition.memory_bytes.to_string())?;
        seat(xml, definition)?;
        machine(xml, definition)?;
        within(xml, "devices", &[], |xml| devices(xml, definition))
    })
}

/// Which of the host's CPUs, memory and pages it has. The strict mode has memory of its NUMA nodes or none.
fn seat(xml: &mut Xml, definition: &Definition<'_>) -> io::Result<()> {
    let Placement { cpus, memory } = definition.placement;
    let vcpus = definition.vcpus.to_string();
    let is_pinned = usize::try_from(definition.vcpus).is_ok_and(|vcpus| vcpus == cpus.len());
    let floats_on = list(cpus);
    let mut placed = vec![("placement", "static")];
    if !cpus.is_empty() && !is_pinned {
        placed.push(("cpuset", floats_on.as_str()));
    }
    text(xml, "vcpu", &placed, &vcpus)?;
    if is_pinned && !cpus.is_empty() {
        within(xml, "cputune", &[], |xml| {
            cpus.iter().enumerate().try_for_each(|(vcpu, cpu)| {
                empty(xml, "vcpupin", &[("vcpu", &vcpu.to_string()), ("cpuset", &cpu.to_string())])
            })
        })?;
    }
    if !memory.mems.is_empty() {
        within(xml, "numatune", &[], |xml| {
            empty(xml, "memory", &[("mode", "strict"), ("nodeset", &list(&memory.mems))])
        })?;
    }
    if memory.hugepage_bytes > 0 {
        within(xml, "memoryBacking", &[], |xml| {
            within(xml, "hugepages", &[], |xml| {
                empty(xml, "page", &[("size", &memory.hugepage_bytes.to_string()), ("unit", "b")])
            })?;
            empty(xml, "locked", &[])
        })?;
    }
    Ok(())
}

fn list(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(",")
}

fn machine(xml: &mut Xml, definition: &Definition<'_>) -> io::Result<()> {
    within(xml, "os", &[], |xml| {
        text(xml, "type", &[("arch", "x86_64"), ("machine", "q35")], "hvm")?;
        match definition.boot {
            Boot::Disk { .. } => Ok(()),
            Boot::Kernel { kernel, initrd, line } => {
                text(xml, "kernel", &[], path_text(kernel))?;
                text(xml, "initrd", &[], path_text(initrd))?;
                text(xml, "cmdline", &[], line)
            }
        }
    })?;
    within(xml, "features", &[], |xml| {
        empty(xml, "acpi", &[])?;
        empty(xml, "apic", &[])
    })?;
    match definition.accelerator {
        // As the host's, so that nothing is slower in a guest than it has to be. Another host may not take it as it runs.
        Accelerator::Kvm => empty(xml, "cpu", &[("mode", "host-passthrough"), ("check", "none")])?,
        // All that is emulated: systems of today ask for more than the first x86-64 had.
        Accelerator::Tcg => empty(xml, "cpu", &[("mode", "maximum"), ("check", "none")])?,
    }
    within(xml, "clock", &[("offset", "utc")], |xml| {
        empty(xml, "timer", &[("name", "rtc"), ("tickpolicy", "catchup")])?;
        empty(xml, "timer", &[("name", "pit"), ("tickpolicy", "delay")])?;
        empty(xml, "timer", &[("name", "hpet"), ("present", "no")])
    })?;
    // A guest that powers off is stopped; one that failed is too, and says so.
    text(xml, "on_poweroff", &[], "destroy")?;
    text(xml, "on_reboot", &[], "restart")?;
    text(xml, "on_crash", &[], "destroy")?;
    within(xml, "pm", &[], |xml| {
        empty(xml, "suspend-to-mem", &[("enabled", "no")])?;
        empty(xml, "suspend-to-disk", &[("enabled", "no")])
    })
}

fn devices(xml: &mut Xml, definition: &Definition<'_>) -> io::Result<()> {
    if let Boot::Disk { disk, image, seed } = &definition.boot {
        disks(xml, disk, image, seed)?;
    }
    empty(xml, "controller", &[("type", "usb"), ("model", "none")])?;
    for (nic, tap) in definition.nics.iter().zip(&definition.taps) {
        within(xml, "interface", &[("type", "bridge")], |xml| {
            empty(xml, "mac", &[("address", &nic.mac.to_string())])?;
            empty(xml, "source", &[("bridge", nic.bridge.as_str())])?;
            empty(xml, "target", &[("dev", tap)])?;
            empty(xml, "model", &[("type", "virtio")])
        })?;
    }
    for device in definition.devices {
        hostdev(xml, device)?;
    }
    within(xml, "serial", &[("type", "unix")], |xml| {
        empty(xml, "source", &[("mode", "bind"), ("path", path_text(definition.console))])?;
        empty(xml, "target", &[("port", "0")])
    })?;
    within(xml, "rng", &[("model", "virtio")], |xml| {
        text(xml, "backend", &[("model", "random")], "/dev/urandom")
    })?;
    within(xml, "video", &[], |xml| empty(xml, "model", &[("type", "none")]))?;
    empty(xml, "memballoon", &[("model", "none")])
}

/// Unmanaged: who moved it to where it waits moves it back.
fn hostdev(xml: &mut Xml, device: &PciAddress) -> io::Result<()> {
    let [domain, bus, slot, function] = device.parts().map(|digits| format!("0x{digits}"));
    let address = [
        ("domain", domain.as_str()),
        ("bus", bus.as_str()),
        ("slot", slot.as_str()),
        ("function", function.as_str()),
    ];
    within(xml, "hostdev", &[("mode", "subsystem"), ("type", "pci"), ("managed", "no")], |xml| {
        within(xml, "source", &[], |xml| empty(xml, "address", &address))
    })
}

/// The disk is `vda`. The seed is on a SCSI bus, for which kernels of clouds have a driver that they lack for SATA.
fn disks(xml: &mut Xml, disk: &Path, image: &Image, seed: &Path) -> io::Result<()> {
    let qcow2 = [("name", "qemu"), ("type", "qcow2"), ("cache", "none"), ("discard", "unmap")];
    within(xml, "disk", &[("type", "file"), ("device", "disk")], |xml| {
        empty(xml, "driver", &qcow2)?;
        empty(xml, "source", &[("file", path_text(disk))])?;
        match image.format {
            ImageFormat::Iso => empty(xml, "backingStore", &[])?,
            ImageFormat::Qcow2 | ImageFormat::Raw => {
                within(xml, "backingStore", &[("type", "file")], |xml| {
                    empty(xml, "format", &[("type", image.format.qemu())])?;
                    shared(xml, &image.path)?;
                    empty(xml, "backingStore", &[])
                })?;
            }
        }
        empty(xml, "target", &[("dev", "vda"), ("bus", "virtio")])?;
        empty(xml, "boot", &[("order", "1")])
    })?;
    empty(xml, "controller", &[("type", "scsi"), ("index", "0"), ("model", "virtio-scsi")])?;
    cdrom(xml, "sda", seed, None)?;
    match image.format {
        // An empty disk boots nothing, so the disc comes next; once it is installed, the disk does.
        ImageFormat::Iso => cdrom(xml, "sdb", &image.path, Some("2")),
        ImageFormat::Qcow2 | ImageFormat::Raw => Ok(()),
    }
}

/// An image that other instances use too. It is readable to all, and libvirt would make QEMU's user its owner, who could
/// write to it.
fn shared(xml: &mut Xml, image: &Path) -> io::Result<()> {
    within(xml, "source", &[("file", path_text(image))], |xml| {
        empty(xml, "seclabel", &[("model", "dac"), ("relabel", "no")])
    })
}

/// One that has a place in the order of booting is an image; the seed is the instance's own.
fn cdrom(xml: &mut Xml, target: &str, file: &Path, order: Option<&str>) -> io::Result<()> {
    within(xml, "disk", &[("type", "file"), ("device", "cdrom")], |xml| {
        empty(xml, "driver", &[("name", "qemu"), ("type", "raw")])?;
        match order {
            Some(_) => shared(xml, file)?,
            None => empty(xml, "source", &[("file", path_text(file))])?,
        }
        empty(xml, "target", &[("dev", target), ("bus", "scsi")])?;
        empty(xml, "readonly", &[])?;
        match order {
            Some(order) => empty(xml, "boot", &[("order", order)]),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests;
