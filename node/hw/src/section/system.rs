//! Chassis and firmware, from DMI where there is one and the device tree where there is not.

use wire::inventory::{Firmware, SystemSection, Tpm};

use crate::root::Root;
use crate::text::Notes;

/// Texts that firmware ships with instead of an answer, in lowercase.
const PLACEHOLDERS: &[&str] = &[
    "0",
    "0000000000",
    "0123456789",
    "1234567890",
    "default string",
    "empty",
    "invalid",
    "n/a",
    "na",
    "none",
    "not applicable",
    "not available",
    "not specified",
    "o.e.m.",
    "oem",
    "system manufacturer",
    "system product name",
    "system serial number",
    "to be filled by o.e.m.",
    "unknown",
    "xxxxxxxxxx",
    "123456789",
    "chassis serial number",
    "serial number",
];

/// UUIDs that whole product lines share.
const SHARED_UUIDS: &[&str] = &[
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "12345678-1234-1234-1234-123456789abc",
    "01234567-89ab-cdef-0123-456789abcdef",
    "00112233-4455-6677-8899-aabbccddeeff",
    "deadbeef-dead-beef-dead-beefdeadbeef",
];

/// Secure Boot's variable, with the vendor GUID the UEFI specification gives global variables.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

fn meant(text: String) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let one_character = lower.chars().all(|c| lower.starts_with(c));
    let named = lower.chars().any(char::is_alphanumeric) && !(one_character && lower.len() > 3);
    (named && !PLACEHOLDERS.contains(&lower.as_str())).then_some(text)
}

/// A UUID in lowercase, unless it is a known placeholder or no UUID.
pub(super) fn product_uuid(text: &str) -> Option<String> {
    let uuid = text.trim().to_ascii_lowercase();
    let shaped = uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let mut digits = uuid.bytes().filter(|byte| *byte != b'-');
    let first = digits.next();
    let repeats = digits.all(|digit| Some(digit) == first);
    (shaped && !repeats && !SHARED_UUIDS.contains(&uuid.as_str())).then_some(uuid)
}

pub fn read(root: &Root) -> SystemSection {
    let mut notes = Notes::default();
    let mut dmi = |name: &str| notes.text(root, name, &format!("sys/class/dmi/id/{name}")).and_then(meant);
    let vendor = dmi("sys_vendor");
    let product = dmi("product_name");
    let serial = dmi("product_serial");
    let uuid = dmi("product_uuid").and_then(|text| product_uuid(&text));
    let firmware =
        Firmware { vendor: dmi("bios_vendor"), version: dmi("bios_version"), date: dmi("bios_date") };
    let product = product.or_else(|| notes.text(root, "model", "proc/device-tree/model"));
    let uefi = root.exists("sys/firmware").then(|| root.exists("sys/firmware/efi"));
    SystemSection {
        vendor,
        product,
        serial,
        product_uuid: uuid,
        firmware: (firmware != Firmware::default()).then_some(firmware),
        uefi,
        secure_boot: secure_boot(root, uefi, &mut notes),
        tpm: tpm(root, &mut notes),
        unread: notes.finish(),
    }
}

/// Four bytes of attributes, then one of value. A BIOS machine has no such variable, and no Secure Boot.
fn secure_boot(root: &Root, uefi: Option<bool>, notes: &mut Notes) -> Option<bool> {
    if !uefi? {
        return Some(false);
    }
    let variable = notes.take("secureBoot", root.bytes(SECURE_BOOT))?;
    match variable[..] {
        [_, _, _, _, value] => Some(value == 1),
        _ => {
            notes.add("secureBoot", "not five bytes");
            None
        }
    }
}

fn tpm(root: &Root, notes: &mut Notes) -> Option<Tpm> {
    if !root.exists("sys/class/tpm/tpm0") {
        return None;
    }
    let major = notes.text(root, "tpm", "sys/class/tpm/tpm0/tpm_version_major");
    let version = match major.as_deref() {
        Some("2") => Some("2.0".to_owned()),
        Some("1") => Some("1.2".to_owned()),
        _ => None,
    };
    Some(Tpm { version })
}
