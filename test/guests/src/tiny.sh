#!/bin/sh
# Makes the tiny guest of Debian's packages, in the folder it is started in, which holds `init` and nothing else.
#
#   usage: tiny.sh OUT
set -eu
out=$1
meta=linux-image-cloud-amd64

apt-cache show "$meta" >/dev/null 2>&1 || apt-get update -qq
kernel=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: *\(linux-image-.*\)/\1/p' | head -n 1)
apt-get download -qq "$kernel" busybox-static dropbear-bin libtomcrypt1 libtommath1 libgmp10 libcrypt1 zlib1g libc6
dpkg-deb --fsys-tarfile "$kernel"_*.deb | tar -x ./boot ./lib/modules
dpkg-deb --fsys-tarfile busybox-static_*.deb | tar -x ./bin/busybox
for package in dropbear-bin libtomcrypt1 libtommath1 libgmp10 libcrypt1 zlib1g libc6; do
    dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x
done
mv boot/vmlinuz-* "$out/vmlinuz"

# Drivers in the order in which they need each other. Those that are built in have no file.
mkdir -p root/bin root/m root/proc root/sys root/dev root/seed root/etc/acpi/PWRF root/tmp root/disk root/.ssh root/lib64 root/lib/x86_64-linux-gnu
number=10
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover \
    virtio_net rng-core virtio-rng scsi_common scsi_mod cdrom sr_mod virtio_scsi isofs evdev button fat vfat nls_cp437 nls_ascii nls_utf8; do
    file=$(find lib/modules -name "$module.ko" | head -n 1)
    [ -z "$file" ] || cp "$file" "root/m/$number-$module.ko"
    number=$((number + 1))
done
cp bin/busybox root/bin/busybox
cp usr/sbin/dropbear usr/bin/dropbearkey root/bin/
for library in libc.so.6 libcrypt.so.1 libtomcrypt.so.1 libtommath.so.1 libgmp.so.10 libz.so.1; do
    cp -L "$(find lib usr/lib -name "$library" | head -n 1)" root/lib/x86_64-linux-gnu/
done
cp -L "$(find lib -name ld-linux-x86-64.so.2 | head -n 1)" root/lib64/
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
