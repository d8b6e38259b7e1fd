//! The same guest as a person would start it: an overlay, a seed, a definition, and libvirt.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use runtimes::instance::{AuthorizedKey, Placement};
use runtimes::{Image, ImageFormat, Instance, Nic, UserData, seed};

use super::{Host, Made};
use crate::program;

const MAC: &str = "52:54:00:ba:5e:01";
const NAME: &str = "by-hand";

pub struct ByHand<'a> {
    host: &'a Host,
    dir: PathBuf,
    base: PathBuf,
    definition: String,
    instance: Instance,
}

impl<'a> ByHand<'a> {
    /// Of the pool's network, at its other end.
    pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 250));

    /// Defined as an instance is that runs, but for its names and its files.
    pub fn like(host: &'a Host, anchor: &Made, dir: &Path) -> anyhow::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))?;
        let files = host.dir.join("libvirt/instances").join(&anchor.id);
        let definition = std::fs::read_to_string(files.join("domain.xml"))?;
        let base = host.images()?.pop().context("the image")?;
        let id: model::InstanceId = anchor.id.parse()?;
        let mac = between(&definition, "<mac address=\"", "\"")?;
        let definition = definition
            .replace(&files.display().to_string(), &dir.display().to_string())
            .replace(&runtimes::name::domain(id), NAME)
            .replace(&mac, MAC)
            .replace(&runtimes::name::tap(id, 0), "hand0")
            .replace(
                &uuid::Uuid::hyphenated(model::Id::uuid(id)).to_string(),
                &uuid::Uuid::from_u128(7).to_string(),
            );
        let key = std::fs::read_to_string(host.key.with_extension("pub"))?;
        let nic = Nic {
            mac: MAC.parse()?,
            bridge: between(&definition, "<source bridge=\"", "\"")?.parse()?,
            addresses: vec![format!("{}/24", Self::ADDRESS).parse()?],
            gateways: vec![Ipv4Addr::new(10, 88, 0, 1).into()],
            nameservers: Vec::new(),
        };
        let instance = Instance {
            id,
            vcpus: 1,
            memory_bytes: 192 << 20,
            disk_bytes: 1 << 30,
            image: Image { path: base.clone(), format: ImageFormat::Qcow2 },
            nics: vec![nic],
            hostname: NAME.parse()?,
            ssh_keys: vec![AuthorizedKey::parse(key.trim())?],
            placement: Placement::default(),
            gpus: Vec::new(),
            disk_backed_bytes: 0,
        };
        Ok(Self { host, dir: dir.to_owned(), base, definition, instance })
    }

    pub fn start(&self) -> anyhow::Result<()> {
        let mut overlay = Command::new("qemu-img");
        overlay.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(&self.base);
        program::done(overlay.arg(self.dir.join("disk.qcow2")).arg("1G"))?;
        std::fs::write(self.dir.join("seed.iso"), seed::render(&self.instance, &UserData::none()))?;
        let definition = self.dir.join("domain.xml");
        std::fs::write(&definition, &self.definition)?;
        self.host.libvirtd.virsh_ok(&["define", definition.to_str().context("a path")?])?;
        self.host.libvirtd.virsh_ok(&["start", NAME])?;
        Ok(())
    }

    pub fn remove(&self) -> anyhow::Result<()> {
        self.host.libvirtd.virsh_ok(&["destroy", NAME])?;
        self.host.libvirtd.virsh_ok(&["undefine", NAME])?;
        for file in ["disk.qcow2", "seed.iso", "domain.xml", "tty"] {
            let _ = std::fs::remove_file(self.dir.join(file));
        }
        Ok(())
    }
}

fn between(text: &str, before: &str, after: &str) -> anyhow::Result<String> {
    let found = text.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    Ok(found.with_context(|| format!("no {before:?} in {text}"))?.0.to_owned())
}
