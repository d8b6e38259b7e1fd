#!/bin/sh
# Makes the tiny guest of Debian's packages, in the folder it is started in, which holds `init` and nothing else.
#
#   usage: tiny.sh OUT
set -eu
out=$1
meta=linux-image-cloud-amd64

apt-cache show "$meta" >/dev/null 2>&1 || apt-get update -qq
kernel=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: *\(linux-image-.*\)/\1/p' | head -n 1)
apt-get download -qq "$kernel" busybox-static
dpkg-deb --fsys-tarfile "$kernel"_*.deb | tar -x ./boot ./lib/modules
dpkg-deb --fsys-tarfile busybox-static_*.deb | tar -x ./bin/busybox
mv boot/vmlinuz-* "$out/vmlinuz"

# Drivers in the order in which they need each other. Those that are built in have no file.
mkdir -p root/bin root/m root/proc root/sys root/dev root/seed root/etc/acpi/PWRF root/tmp
number=10
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover \
    virtio_net rng-core virtio-rng scsi_common scsi_mod cdrom sr_mod virtio_scsi isofs evdev button; do
    file=$(find lib/modules -name "$module.ko" | head -n 1)
    [ -z "$file" ] || cp "$file" "root/m/$number-$module.ko"
    number=$((number + 1))
done
cp bin/busybox root/bin/busybox
install -m 0755 init root/init
printf '#!/bin/sh\npoweroff -f\n' >root/etc/acpi/PWRF/00000080
chmod 0755 root/etc/acpi/PWRF/00000080
(cd root && find . | sort | ../bin/busybox cpio -o -H newc -R 0:0 2>/dev/null) | gzip -n >"$out/initrd"

# A disk without partitions, whose first sector is the boot loader's.
cat >syslinux.cfg <<'END'
DEFAULT tiny
PROMPT 0
LABEL tiny
    KERNEL vmlinuz
    INITRD initrd
    APPEND console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check nokaslr mitigations=off
END
truncate -s 32M disk.raw
mkfs.vfat -n TINY disk.raw >/dev/null
mcopy -i disk.raw "$out/vmlinuz" "$out/initrd" syslinux.cfg ::/
syslinux --install disk.raw
qemu-img convert -f raw -O qcow2 -c disk.raw "$out/tiny.qcow2"
