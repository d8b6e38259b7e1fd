//! What to do about what a host says, as the next command. Pure.

use model::InstanceId;

/// By the reason that the host gives; none for reasons that say all, or that pass by themselves. `failed`: it tries no more.
fn next(reason: &str, failed: bool, id: InstanceId, image: &str) -> Option<String> {
    let start = format!("better-compute instances start {id}");
    let anew = "delete the instance and make it anew";
    Some(match reason {
        "ImageDigestMismatch" => {
            format!("name the file that is there by its own digest (better-compute images create), {anew}")
        }
        "ImageUnavailable" if failed => {
            format!(
                "see that hosts can fetch image {image:?} (better-compute images list --output wide), then {start}"
            )
        }
        "ImageRefused" => format!(
            "make one file of the image (qemu-img convert -O qcow2 IN OUT), better-compute images import OUT, {anew}"
        ),
        "InvalidInstance" | "NoGpuPassthrough" => anew.to_owned(),
        "NoRuntime" => format!("bcd doctor on the host tells what it lacks; then {start}"),
        "DuplicateMac" => {
            format!("take the other card away (virsh domiflist NAME on the host), then {start}, or {anew}")
        }
        "ForeignDomain" => format!("rename the other domain (virsh domrename on the host), then {start}"),
        "NetworkRules" | "NatBridge" | "RuntimeUnavailable" | "RuntimeUnreadable" => {
            "bcd doctor on the host tells what is wrong there".to_owned()
        }
        "ResourcesExhausted" => {
            "it starts when others of the host stop (better-compute instances list --node NODE)".to_owned()
        }
        "DiskTrouble" => "see to the host's disk: df -h in its data folder, bcd doctor".to_owned(),
        _ => return None,
    })
}

/// A host's words with what to do about them.
pub(crate) fn with_next(message: &str, reason: &str, failed: bool, id: InstanceId, image: &str) -> String {
    match next(reason, failed, id, image) {
        Some(next) => format!("{message}; next: {next}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_person_has_to_do_is_told_and_the_rest_is_left_as_it_was_said() {
        let id = InstanceId::from_uuid(uuid::Uuid::from_u128(7));
        let of = |message, reason, failed| with_next(message, reason, failed, id, "debian-12");
        let told = of("https://a.example/x: it answers 404", "ImageUnavailable", true);
        assert!(told.starts_with("https://a.example/x: it answers 404; next: "), "{told}");
        assert!(told.ends_with(&format!("better-compute instances start {id}")), "{told}");
        for said in ["ImageComing", "ShuttingDown", "Stopping", "SomethingNew"] {
            assert_eq!(of("41 of 100 MiB", said, true), "41 of 100 MiB", "{said}");
        }
        assert_eq!(of("it answers 503", "ImageUnavailable", false), "it answers 503", "it is tried again");
    }
}
